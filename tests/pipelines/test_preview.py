"""``preview``, ``lr_range`` and ``batch_size`` in a real Kedro session."""

from __future__ import annotations

import shutil
from itertools import islice
from pathlib import Path

import pandas as pd
import pytest
import torch
from PIL import Image

from detpipe.core.errors import ConfigError, DetpipeError
from detpipe.data.config import StreamConfig
from detpipe.data.store import Store
from detpipe.pipelines import preview
from detpipe.pipelines.train import training_stream
from detpipe.train.config import TrainConfig
from detpipe.train.lr_range import exponential
from detpipe.train.preview import LrRangeConfig

from .conftest import Project

LR_RANGE = {"start": 1e-5, "end": 0.1, "steps": 10}
PARAMS = {
    **Project.SMALL,
    "train": {
        **Project.SMALL["train"],
        "augment": {"flip": {"use": "torchvision.transforms.v2.RandomHorizontalFlip", "p": 1.0}},
        "groups": {"backbone_lr_factor": 0.1},
    },
    "preview": {"batches": 2, "depth": 1, "latency_runs": 2, "lr_range": LR_RANGE},
}


TRAIN = TrainConfig(**{**PARAMS["train"], "optimizer": {"use": "torch.optim.AdamW"}, "hooks": {}})


@pytest.fixture(scope="module")
def looked(project):
    """The project after the data, preview and lr_range pipelines."""
    for pipeline in ("data", "preview", "lr_range"):
        project.run(pipeline, params=PARAMS)
    return project


def report(project, name: str):
    return project.path(f"08_reporting/sample/{name}")


def tables(project) -> list[pd.DataFrame]:
    folder = project.path("03_primary/sample")
    names = ("images", "boxes", "classes")
    return [pd.read_parquet(folder / f"{name}.parquet") for name in names]


def packed(project) -> Store:
    return Store.open(project.path("03_primary/sample/store.detpipe"), Path())


def test_nothing_of_a_training_is_there(looked):
    assert not looked.path("06_models/sample/checkpoints").exists()
    assert not list(looked.path("06_models").rglob("*.safetensors"))
    assert not report(looked, "history.csv").exists()


def test_the_picture_is_of_the_first_training_batches(looked):
    """Drawn once more from the stream that the train pipeline builds."""
    from detpipe.data.preview import draw_batch

    store = packed(looked)
    _, stream = training_stream(store, looked.path("01_raw/sample"), TRAIN, StreamConfig())
    sheets = [draw_batch(batch, store.class_names) for batch in islice(stream.batches(0), 2)]
    with Image.open(report(looked, "augmented_batch.png")) as picture:
        assert picture.height == sum(sheet.height for sheet in sheets)
        top = 0
        for sheet in sheets:
            part = picture.crop((0, top, sheet.width, top + sheet.height))
            assert part.tobytes() == sheet.tobytes()
            top += sheet.height


def test_the_model_is_summed_up(looked):
    table = pd.read_csv(report(looked, "model_summary.csv"))
    whole = table.iloc[0]
    assert list(table["module"]) == ["(whole model)", "inner"]
    assert whole["flops"] > 0
    assert whole["training_mib"] > 0
    assert whole["detect_ms"] > 0
    assert (whole["image"], whole["batch_size"]) == ("96 × 96", 4)


def test_there_are_figures(looked):
    for name in ("schedule/learning_rate.png", "lr_range/lr_range.png"):
        with Image.open(report(looked, name)) as picture:
            assert min(picture.size) > 100
            assert len(picture.convert("RGB").getcolors(10**6)) > 10


def test_the_range_test_has_the_options_of_its_section(looked):
    table = pd.read_csv(report(looked, "lr_range.csv"))
    steps = LR_RANGE["steps"]
    expected = [exponential(k / steps, **LR_RANGE) for k in range(steps)]
    assert list(table["lr"]) == pytest.approx(expected[: len(table)])
    assert table["loss"].gt(0).all()


def test_the_results_are_in_the_tracker(looked):
    runs = looked.rows("select name, status, artifact_uri from runs")
    names = {name for name, _, _ in runs}
    assert {"preview tiny sample", "lr_range tiny sample"} <= names
    files = {file.name for file in (looked.folder / "mlartifacts").rglob("reports/**/*.*")}
    assert {"augmented_batch.png", "model_summary.csv", "learning_rate.png"} <= files


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_there_is_no_search_for_a_batch_size(looked):
    with pytest.raises(ConfigError, match="needs a CUDA GPU"):
        looked.run("batch_size", params=PARAMS)
    assert not report(looked, "batch_size_search.csv").exists()


def test_a_mistake_in_the_section_is_found_before_any_work(looked):
    wrong = {**PARAMS, "preview": {"lr_range": {"start": 1.0, "end": 0.1}, "batchs": 1}}
    with pytest.raises(DetpipeError, match="batches"):
        looked.run("data", params=wrong)


def test_a_range_that_does_not_rise_is_refused():
    with pytest.raises(ValueError, match=r"start \(1\) must be below end \(0.1\)"):
        LrRangeConfig(start=1.0, end=0.1)


def test_the_search_is_given_the_largest_images_of_the_set(monkeypatch, looked, tmp_path):
    """One picture, which is not in the first batch, is made three times as high."""
    images, boxes, classes = tables(looked)
    raw = shutil.copytree(looked.path("01_raw/sample"), tmp_path / "raw")
    _, stream = training_stream(packed(looked), raw, TRAIN, StreamConfig())
    first = {target.image_id for target in next(stream.batches(0)).targets}
    row = images[(images["split"] == "train") & ~images["image_id"].isin(first)].index[-1]
    file = raw / images.loc[row, "path"]
    with Image.open(file) as picture:
        tall = picture.resize((96, 288))
    tall.save(file)
    images.loc[row, "height"] = 288
    given = {}

    def search(model, filled, *, config, limit):
        given.update(images=filled, limit=limit)
        return pd.DataFrame({"batch_size": [1, 2], "fits": [True, False]})

    monkeypatch.setattr("detpipe.train.batch_size.search_batch_size", search)
    section = preview.PreviewConfig(batch_size={"batches": 1})
    store = Store.from_tables(images, boxes, classes, Path())
    table = preview.search_batch_size(None, store, raw, TRAIN, StreamConfig(), section)
    assert len(table) == 2
    assert given["limit"] == (images["split"] == "train").sum()
    assert tuple(given["images"].images[0].shape) == (3, 288, 96)


@pytest.mark.slow
def test_a_profile_is_an_artifact_of_its_training(tmp_path_factory, project_root):
    project = Project(tmp_path_factory.mktemp("profiled"), project_root)
    hook = {"use": "detpipe.hooks.profile.Profile", "start": 2, "steps": 2}
    hooks = {**Project.SMALL["train"]["hooks"], "profile": hook}
    project.run(
        "train", params={**Project.SMALL, "train": {**Project.SMALL["train"], "hooks": hooks}}
    )
    files = [file.name for file in (project.folder / "mlartifacts").rglob("artifacts/profile/*")]
    assert sorted(files) == ["steps_3-4.json.gz", "steps_3-4.txt"]
