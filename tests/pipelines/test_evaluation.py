"""What belongs together: weights, the state of the data set, detections, scores, thresholds."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from detpipe.core.errors import ConfigError, DetpipeError
from tests.pipelines.conftest import Project

OTHER = {**Project.SMALL, "data": {"reader": {"images": 44, "size": 96}, "check": {"workers": 0}}}


@pytest.fixture(scope="module")
def trained(project: Project) -> Project:
    project.run("train")
    return project


def test_detections_are_known_by_weights_and_data(trained: Project) -> None:
    made = json.loads(trained.path("07_model_output/sample/evaluated.json").read_text())
    assert set(made) == {"weights", "data"}
    assert all(len(text) == 16 for text in made.values())


def test_every_data_set_has_its_timing(trained: Project) -> None:
    timing = pd.read_csv(trained.path("08_reporting/sample/timing.csv"))
    assert set(timing["dataset"]) == {"val", "test"}
    assert set(timing["part"]) == {"data", "model", "post"}
    assert (timing["ms_per_image"] > 0).all()


def test_a_split_that_is_not_there_is_named(trained: Project) -> None:
    with pytest.raises(ConfigError, match=r"no split 'night'; the data set has"):
        trained.run("evaluate", params={**Project.SMALL, "evaluate": {"more": ["night"]}})


def test_further_splits_and_losses_on_demand_have_rows_of_their_own(trained: Project) -> None:
    trained.run("evaluate", params={**Project.SMALL, "evaluate": {"more": ["train"], "loss": True}})
    scores = pd.read_csv(trained.path("08_reporting/sample/scores.csv"), keep_default_na=False)
    assert set(scores["dataset"]) == {"val", "test", "train"}
    per_image = pd.read_csv(trained.path("08_reporting/sample/per_image.csv"))
    assert set(per_image["dataset"]) == {"val", "test", "train"}
    for dataset in ("val", "test", "train"):
        rows = scores[(scores["task"] == "loss") & (scores["dataset"] == dataset)]
        values = rows.set_index("metric")["value"].astype(float)
        assert values["total"] == pytest.approx(values.drop("total").sum(), rel=1e-4)


def test_predict_takes_the_thresholds_of_these_weights(trained: Project) -> None:
    params = {**Project.SMALL, "predict": {"score_threshold": "best_f1"}}
    table = pd.read_csv(trained.path("08_reporting/sample/thresholds.csv"), keep_default_na=False)
    trained.run("predict", params=params)
    found = pd.read_csv(trained.path("07_model_output/sample/predictions.csv"))
    sets = {str(name): rows for name, rows in table.groupby("dataset")}
    all_classes = {
        name: rows.set_index("class_name")["score_threshold"] for name, rows in sets.items()
    }
    own = all_classes["val"] if all_classes["val"][""] != "" else all_classes["test"]
    for name, rows in found.groupby("class_name"):
        # A class in which nothing was right has none of its own: that of all classes counts.
        assert rows["score"].min() >= float(own[name] if own[name] != "" else own[""])

    file = trained.path("08_reporting/sample/thresholds.csv")
    text = file.read_text()
    made = json.loads(trained.path("07_model_output/sample/evaluated.json").read_text())
    file.write_text(text.replace(made["weights"], "0" * 16))
    with pytest.raises(DetpipeError, match="made with other weights"):
        trained.run("predict", params=params)
    file.write_text(text)


def test_reports_on_another_state_of_the_data_are_refused(trained: Project) -> None:
    import shutil

    shutil.rmtree(trained.path("01_raw/sample"))
    trained.run("data", params=OTHER)
    for pipeline in ("report", "verify"):
        with pytest.raises(DetpipeError, match="another state of the data set"):
            trained.run(pipeline, params=OTHER)
    with pytest.raises(DetpipeError, match="another state of the data set"):
        trained.run("train", params=OTHER, only_missing_outputs=True)
    trained.run("evaluate", params=OTHER)
    trained.run("verify", params=OTHER)


def breaks(*, dataset: str) -> list[dict[str, object]]:
    """A metric with a mistake."""
    raise ZeroDivisionError(dataset)


def test_an_evaluation_that_broke_off_is_no_ones_and_is_taken_up_again(trained: Project) -> None:
    """As after ``kill -9``: neither the gate nor a report takes what an earlier one left."""
    scores = trained.path("08_reporting/sample/scores.csv")
    before = scores.read_text()
    broken = {"metrics": {"broken": {"use": f"{__name__}.breaks"}}}
    with pytest.raises(DetpipeError, match="ZeroDivisionError"):
        trained.run("evaluate", params={**OTHER, "evaluate": broken})
    assert not scores.exists()
    with pytest.raises(DetpipeError, match="kedro run --pipeline evaluate"):
        trained.run("verify", params=OTHER)
    trained.run("evaluate", params=OTHER, only_missing_outputs=True)
    assert scores.read_text() == before
    trained.path("07_model_output/sample/evaluated.json").unlink()
    with pytest.raises(DetpipeError, match="broke off"):
        trained.run("verify", params=OTHER)
