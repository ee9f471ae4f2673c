from __future__ import annotations

import re
import sqlite3
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from detpipe.core.errors import NonFiniteLoss
from detpipe.data.augment import HorizontalFlip
from detpipe.data.mix import Mosaic
from detpipe.data.transform import Until
from detpipe.datasets import WeightsDataset
from detpipe.pipelines.train import transforms
from detpipe.train.config import TrainConfig

from .conftest import Project

FLIP = {"use": "detpipe.data.augment.HorizontalFlip"}


def config(**augment: object) -> TrainConfig:
    """100 steps of 2 × 4 images."""
    return TrainConfig.model_validate(
        {"duration": "100 steps", "batch_size": 4, "accumulate": 2, "augment": augment,
         "optimizer": {"use": "torch.optim.SGD"}}
    )  # fmt: skip


@pytest.mark.parametrize(
    ("until", "position"),
    [
        (0.85, 85 * 8),
        (1, 100 * 8),
        (0.001, 8),  # at least one
        ("0 steps", 0),
        (0.333, 33 * 8),  # whole steps
        ("40 steps", 40 * 8),
        ("160 images", 160),
        ("0.5 epochs", 10 * 8),  # of 160 images, 20 steps
        ("1000 steps", 1000 * 8),
    ],
)
def test_until_becomes_an_image_of_the_run(until: object, position: int) -> None:
    (step,) = transforms(config(flip={**FLIP, "until": until}), images_per_epoch=160)
    assert isinstance(step, Until)
    assert isinstance(step.transform, HorizontalFlip)
    assert step.position == position


def test_transforms_keep_their_order_and_null_takes_one_out() -> None:
    settings = config(
        mosaic={"use": "detpipe.data.mix.Mosaic", "scale": [0.8, 1.2], "until": 0.5},
        none=None,
        flip=FLIP,
    )
    mosaic, flip = transforms(settings, images_per_epoch=160)
    assert isinstance(mosaic, Until)
    assert isinstance(mosaic.transform, Mosaic)
    assert isinstance(flip, HorizontalFlip)


def test_every_set_of_transforms_on_the_page_is_accepted(project_root: Path) -> None:
    page = (project_root / "docs/training.md").read_text()
    (section,) = re.findall(r"^## Augmentation\n(.*?)^## ", page, re.DOTALL | re.MULTILINE)
    sets = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)]
    sets = [one for one in sets if "train" not in one]
    assert len(sets) == 4
    for one in sets:
        assert len(transforms(config(**one), images_per_epoch=160)) == len(one)


@pytest.fixture(scope="module")
def trained(project: Project) -> Project:
    project.run("train")
    return project


def test_the_log_of_a_run_is_a_file_and_an_artifact(trained: Project) -> None:
    """Also the log of a run that another one follows is kept, by the tracker."""
    log = trained.path("08_reporting/sample/run.log").read_text()
    assert "detpipe.train.announce: training is done: step 8 of 8" in log
    (kept,) = trained.folder.glob("mlartifacts/*/artifacts/logs/run.log")
    assert kept.read_text() in log
    assert "training is done: step 8 of 8" in kept.read_text()


def test_weights_say_what_they_are_and_how_good(trained: Project) -> None:
    weights = WeightsDataset(
        filepath=str(trained.path("06_models/sample/weights.safetensors"))
    ).load()
    metadata = weights.metadata
    assert metadata["step"] == 8
    assert (metadata["published"], metadata["source"]) == ("final", "model")
    assert metadata["metrics"]["train/loss"] > 0
    assert metadata["config"]["train"]["batch_size"] == 4
    assert metadata["versions"]["torch"] == version("torch")


def test_nan_ends_a_run_as_failed_and_names_what_is_left(project: Project) -> None:
    exploding = {**Project.SMALL, "train": {**Project.SMALL["train"], "log_every": "1 steps"}}
    exploding["train"] |= {
        "optimizer": {"use": "torch.optim.SGD", "lr": 1e30},
        "hooks": {"checkpoint": {"every": "1 steps"}, "evaluate": {"every": "0 steps"}},
        "schedule": {"use": "detpipe.train.schedule.constant"},
    }
    with pytest.raises(NonFiniteLoss, match=r"Images of this batch: .*\.jpg"):
        project.run("train", params=exploding)
    (status,) = project.rows("SELECT status FROM runs ORDER BY start_time DESC LIMIT 1")[0]
    assert status == "FAILED"
    (error,) = project.rows("SELECT value FROM tags WHERE key = 'error'")[-1]
    assert "not finite" in error


def test_a_run_that_was_killed_without_a_word_is_called_so_by_the_next(project: Project) -> None:
    project.run("train")
    last = project.path("06_models/sample/.mlflow_run")
    with sqlite3.connect(project.folder / "mlflow.db") as store:
        store.execute("UPDATE runs SET status = 'RUNNING', end_time = NULL WHERE run_uuid = ?",
                      [last.read_text()])  # fmt: skip
    killed = last.read_text()
    project.run("evaluate")
    assert project.rows("SELECT status FROM runs WHERE run_uuid = ?", [killed]) == [("KILLED",)]
    assert last.read_text() != killed
