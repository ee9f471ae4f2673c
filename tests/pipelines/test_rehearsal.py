"""Runs of which nothing is kept."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from detpipe.core.errors import ConfigError, DataError, TrainingError

from .conftest import Project

TINY = {**Project.SMALL, "data": {**Project.SMALL["data"], "reader": {"images": 20, "size": 96}}}


def with_train(**changes: object) -> dict[str, object]:
    return {**TINY, "train": {**TINY["train"], **changes}}


def files(project: Project) -> dict[Path, bytes]:
    """Everything a run could leave, without the sample set's pictures and the lock."""
    found = [*project.path("").rglob("*"), *project.folder.glob("ml*")]
    return {
        path: path.read_bytes()
        for path in found
        if path.is_file() and "01_raw" not in path.parts and path.name != ".lock"
    }


def test_a_dry_run_goes_through_everything_and_keeps_nothing(project, caplog, tmp_path) -> None:
    caplog.set_level("INFO")
    project.run("train", params=with_train(dry_run=True))
    said = caplog.text
    assert "2 steps" in said
    assert "step 1/2" in said
    assert "step 2/2" in said
    assert "evaluation: 1 during training, at step 1 of 2" in said
    assert "Evaluation results for test" in said
    assert "dry run: all nodes ran; nothing was kept" in said
    assert files(project) == {}


def test_a_dry_run_leaves_a_run_that_is_there_as_it_is(project, caplog) -> None:
    project.run("train", params=TINY)
    before = files(project)
    caplog.set_level("INFO")
    project.run("train", params=with_train(dry_run=True, resume=True))
    assert files(project) == before
    assert "nothing was kept" in caplog.text
    project.run("train", params=with_train(resume=True))
    assert "is already finished" in caplog.text


def test_a_mistake_shows_in_a_dry_run(project) -> None:
    broken = {"broken": {"use": "tests.pipelines.test_rehearsal.Broken"}}
    hooks = {**TINY["train"]["hooks"], **broken}
    before = files(project)
    with pytest.raises(ZeroDivisionError):
        project.run("train", params=with_train(dry_run=True, hooks=hooks))
    assert files(project) == before


class Broken:
    """Fails when the run has ended."""

    def on_end(self, ctx: object) -> None:
        raise ZeroDivisionError


def test_what_cannot_be_learnt_by_heart_fails(project) -> None:
    hopeless = with_train(overfit=1, optimizer={"lr": 1e-9})
    before = files(project)
    with pytest.raises(TrainingError, match=r"overfit: failed. 8 steps on 1 batch\(es\)"):
        project.run("train", params=hopeless)
    assert files(project) == before


@pytest.mark.parametrize("setting", [{"dry_run": True}, {"overfit": 1}])
@pytest.mark.parametrize("pipeline", ["evaluate", "preview"])
def test_only_a_training_can_be_rehearsed(project, pipeline, setting) -> None:
    before = files(project)
    with pytest.raises(ConfigError, match="this pipeline does not train"):
        project.run(pipeline, params=with_train(**setting))
    assert files(project) == before


def test_a_dry_run_leaves_samplers_all_images(project, caplog) -> None:
    caplog.set_level("INFO")
    images = pd.read_parquet(project.path("03_primary/sample/images.parquet"))
    last = images.loc[images["split"] == "train", "path"].iloc[-1]
    sampler = {"use": "detpipe.data.sampler.weighted", "weights": {last: 3}}
    project.run("train", params=with_train(dry_run=True, sampler=sampler))
    assert "dry run: all nodes ran" in caplog.text


def test_more_batches_than_there_are(project) -> None:
    with pytest.raises(DataError, match=r"overfit is 9 batches of 4, but only \d+ training images"):
        project.run("train", params=with_train(overfit=9))


@pytest.mark.slow
def test_one_batch_is_learnt_by_heart(project, caplog) -> None:
    """The loss gets near zero, and what is evaluated is what was learnt."""
    caplog.set_level("INFO")
    project.run("train", params=with_train(overfit=1, duration="250 steps", log_every="50 steps"))
    assert "overfit: passed. 250 steps on 1 batch(es)" in caplog.text
    lines = caplog.text.splitlines()
    scores = next(line for line in lines if line.split()[:2] == ["test", "bbox"])
    assert float(scores.split()[3]) > 95  # AP50
