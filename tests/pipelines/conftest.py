"""A project folder of its own for each test module: configuration and sources, no data."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest


class Project:
    """A detpipe project in a temporary folder."""

    SMALL: Mapping[str, Any] = {
        "data": {"reader": {"images": 40, "size": 96}, "check": {"workers": 0}},
        "model": {"width": 16},
        "report": {"samples": 50, "pictures": 2},
        "train": {
            "duration": "8 steps",
            "batch_size": 4,
            "log_every": "2 steps",
            "hooks": {"evaluate": {"every": "4 steps"}, "checkpoint": {"every": "4 steps"}},
        },
    }

    def __init__(self, folder: Path, source: Path) -> None:
        self.folder = folder
        shutil.copytree(source / "conf", folder / "conf")
        shutil.copy(source / ".telemetry", folder)
        settings = (source / "pyproject.toml").read_text()
        # The package is installed; Kedro only wants a source folder inside the project.
        (folder / "pyproject.toml").write_text(
            settings.replace('source_dir = "src"', 'source_dir = "."')
        )

        # The sample set's expected results are those of its whole training.
        (folder / "conf/local/parameters_verify.yml").write_text("verify: {expected: []}\n")

    def run(
        self, pipeline: str, *, env: str | None = None, params: Mapping[str, Any] = SMALL, **options
    ):
        """``kedro run`` in this process; ``options`` are those of ``session.run``."""
        from kedro.framework.session import KedroSession
        from kedro.framework.startup import bootstrap_project

        bootstrap_project(self.folder)
        with KedroSession.create(
            project_path=self.folder, env=env, runtime_params=dict(params)
        ) as session:
            return session.run(pipeline_names=[pipeline], **options)

    def command(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """``kedro …`` as a process of its own; its output in ``communicate()``."""
        environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "400"}
        return subprocess.Popen(
            [sys.executable, "-m", "kedro", *arguments],
            cwd=self.folder,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            **options,
        )

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """What MLflow's SQLite store holds."""
        with sqlite3.connect(self.folder / "mlflow.db") as store:
            return store.execute(query, values).fetchall()

    def path(self, inside: str) -> Path:
        return self.folder / "data" / inside


@pytest.fixture(scope="module")
def project(tmp_path_factory, project_root):
    import kedro.framework.project  # noqa: F401 - it sets up logging, before caplog listens

    return Project(tmp_path_factory.mktemp("project"), project_root)


@pytest.fixture(autouse=True)
def _no_tracking_address(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    monkeypatch.delenv("DETPIPE_RAW", raising=False)
