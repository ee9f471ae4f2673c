"""Rules of the house that no single module can see to."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import textwrap

import pytest


def run(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_imports_point_down_and_only_the_kedro_side_knows_kedro(project_root):
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as l; l()"],
        cwd=project_root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "2 kept, 0 broken" in done.stdout


def test_a_detector_trains_and_is_scored_without_kedro_and_mlflow(tmp_path):
    out = run(
        """
        import importlib, pkgutil, sys
        from pathlib import Path

        class Blocker:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in ("kedro", "kedro_datasets", "mlflow"):
                    raise ImportError(f"{name} is blocked")

        sys.meta_path.insert(0, Blocker())
        import detpipe
        for part in ("core", "data", "models", "evaluate", "train", "hooks"):
            package = importlib.import_module(f"detpipe.{part}")
            for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
                importlib.import_module(module.name)

        from detpipe.core.config import Spec
        from detpipe.data import sample, sampler
        from detpipe.data.store import Store
        from detpipe.data.stream import EvalStream, TrainStream
        from detpipe.evaluate import coco, run
        from detpipe.models import tiny
        from detpipe.train.build import train_detector
        from detpipe.train.config import TrainConfig

        root = Path(sys.argv[1])
        found = sample.read(root / "sample", images=40, size=96)
        store = Store.from_tables(*found[:3], root / "sample", split="train")
        names = list(found.classes["class_name"])
        stream = TrainStream(
            store, batch_size=2, sampler=sampler.shuffle(length=len(store), seed=0), resize=None
        )
        config = TrainConfig(
            duration="2 steps", batch_size=2, device="cpu",
            optimizer=Spec(use="torch.optim.SGD", lr=0.01),
        )
        model = tiny.build(len(names), width=16)
        result = train_detector(
            model, stream, config=config, folder=root / "run", classes=names, evaluate=None,
            run_config={},
        )
        test = Store.from_tables(*found[:3], root / "sample", split="test")
        got = run.predict(
            model, EvalStream(test, batch_size=2, resize=None), class_names=names, device="cpu"
        )
        images = found.images[found.images["split"] == "test"]
        boxes = found.boxes[found.boxes["image_id"].isin(images["image_id"])]
        scores = coco.score(images, boxes, got.detections, found.classes, dataset="test")
        print(result.step, len(scores) > 12)
        """,
        str(tmp_path),
    )
    assert out.split() == ["2", "True"]


def test_tables_are_scored_reported_and_verified_without_torch():
    out = run(
        """
        import sys
        from detpipe.evaluate import coco, files, gallery, plots, report, scoring, verify, voc
        from detpipe.evaluate import compare, expected, lvis, page, thresholds
        from detpipe.data import check, describe, prepare
        from detpipe.pipelines import compare, data, evaluate, report, verify
        print("torch" in sys.modules)
        """
    )
    assert out.strip() == "False"


def test_the_registry_lists_every_pipeline_without_importing_torch_or_mlflow(project_root):
    out = run(
        """
        import sys
        from pathlib import Path
        from kedro.framework.project import pipelines
        from kedro.framework.startup import bootstrap_project
        bootstrap_project(Path(sys.argv[1]))
        print(*sorted(pipelines))
        print(sorted({"torch", "mlflow", "pandas", "matplotlib"} & set(sys.modules)))
        """,
        str(project_root),
    )
    names, heavy = out.strip().splitlines()[-2:]
    assert names.split() == [
        "__default__", "batch_size", "compare", "convert", "data", "evaluate", "evaluate_files",
        "export", "lr_range", "predict", "preview", "report", "train", "verify",
    ]  # fmt: skip
    assert heavy == "[]"


def test_the_generated_pages_are_what_the_code_says(project_root):
    pages = runpy.run_path(str(project_root / "docs/make_configuration.py"))["pages"]()
    assert list(pages) == ["configuration.md", "reference.md", "rules.md", "training.md"]
    for name, text in pages.items():
        assert text == (project_root / "docs" / name).read_text(), (
            f"docs/{name} is behind the code: python docs/make_configuration.py"
        )
        assert not re.search(r":\w+:`|(?<!`)``(?!`)", text), "docstring markup is left"


@pytest.mark.parametrize(
    "page",
    [
        "README.md", "docs/data.md", "docs/models.md", "docs/pipelines.md", "docs/reference.md",
        "docs/training.md",
    ],
)  # fmt: skip
def test_what_a_page_tells_to_use_exists(project_root, page):
    from detpipe.core.config import locate

    text = (project_root / page).read_text()
    paths = set(re.findall(r"detpipe(?:\.\w+)+\.(?:read|build|score)\b", text))
    for path in paths:
        assert callable(locate(path)), path


def test_links_between_pages_lead_somewhere(project_root):
    pages = [project_root / "README.md", *(project_root / "docs").glob("*.md")]
    broken = []
    for page in pages:
        for link, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", page.read_text()):
            goal = page.parent / link if link else page
            if not goal.exists() or (anchor and anchor not in anchors(goal)):
                broken.append(f"{page.name}: {link}#{anchor}")
    assert broken == []


def anchors(page):
    """What GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_tests_that_the_documentation_names_exist(project_root):
    page = (project_root / "docs/coming_from.md").read_text()
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", page)
    assert len(named) > 50
    for file, test in named:
        text = (project_root / "tests" / file).read_text()
        assert re.search(rf"^def {test}\(", text, re.MULTILINE), f"{file}::{test}"
