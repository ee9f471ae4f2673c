"""Earlier runs in a real SQLite store of MLflow."""

from __future__ import annotations

import mlflow
import numpy as np
import pandas as pd
import pytest

from detpipe.core.errors import DetpipeError
from detpipe.core.tables import DETECTIONS, IMAGES, SCORES
from detpipe.tracking.records import log_table
from detpipe.tracking.runs import detections_of, digest_of, find_run, other_tables, scores_of

AWKWARD = ["it's", 'a "b"', "'x' and \"y\"", "100%", "[/z]", "a_b"]
CLASS_NAMES = ["NA", "", "x,y", 'quo"te', "猫", "[/x]", "1"]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store of its own with two experiments: name → ids of its runs, the oldest first."""
    folder = tmp_path_factory.mktemp("store")
    before = mlflow.get_tracking_uri()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("MLFLOW_TRACKING_URI", "")  # MLflow writes the address into it
        mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
        places = [
            mlflow.create_experiment(name, artifact_location=(folder / name).as_uri())
            for name in ("one", "two")
        ]
        with pytest.raises(DetpipeError) as caught:
            find_run("train")
        ids: dict[str, list[str]] = {"message before there were runs": [str(caught.value)]}

        def make(name, status, experiment=places[0]):
            with mlflow.start_run(experiment_id=experiment, run_name=name) as run:
                ids.setdefault(name, []).append(run.info.run_id)
            mlflow.MlflowClient().set_terminated(run.info.run_id, status)

        make("train tiny", "FINISHED")
        make("train tiny", "FINISHED", places[1])
        make("train tiny", "FAILED")
        make("train big", "FAILED")
        make("train dig", "FINISHED")
        make("gone", "FINISHED")
        mlflow.delete_run(ids["gone"][0])
        for name in AWKWARD:
            make(name, "FINISHED", places[1])
        yield ids
        mlflow.set_tracking_uri(before)


@pytest.fixture
def run(store):
    """An active run."""
    (place,) = mlflow.search_experiments(filter_string="name = 'one'")
    with mlflow.start_run(experiment_id=place.experiment_id, run_name="active") as active:
        yield active
    mlflow.delete_run(active.info.run_id)


def test_a_run_is_found_by_its_id_whatever_its_status(store):
    (failed,) = store["train big"]
    assert find_run(failed).info.run_id == failed


def test_by_name_it_is_the_newest_that_finished_of_all_experiments(store, caplog):
    caplog.set_level("INFO")
    assert find_run("train tiny").info.run_id == store["train tiny"][1]
    assert f"2 finished runs are named 'train tiny'; taken is the newest, {store['train tiny'][1]}"\
        in caplog.text  # fmt: skip


@pytest.mark.parametrize("name", AWKWARD)
def test_a_run_of_any_name_is_found(store, name):
    assert [find_run(name).info.run_id] == store[name]


def test_an_unknown_name_brings_near_ones_that_finished_in_one_sentence(store):
    with pytest.raises(DetpipeError) as caught:
        find_run("train tinny")
    assert str(caught.value).endswith(
        "has no run of the name or id 'train tinny' (did you mean 'train tiny' or 'train dig'?)"
    )


def test_without_near_names_the_newest_five_that_finished_are_told(store):
    with pytest.raises(DetpipeError) as caught:
        find_run("zzz")
    newest = ", ".join(repr(name) for name in AWKWARD[:0:-1])
    assert str(caught.value).endswith(f"'zzz'; the newest that finished: {newest}")


def test_a_run_that_goes_on_is_never_offered(run):
    for text in ("activ", "zzz", "active"):
        with pytest.raises(DetpipeError) as caught:
            find_run(text)
        said = str(caught.value)
        assert run.info.run_id not in said and "'active'" not in said.replace(f"'{text}'", "")
    assert said == "no run of the name 'active' has finished well"


def test_an_unknown_or_deleted_id_is_unknown(store):
    for text in ("0" * 32, store["gone"][0]):
        with pytest.raises(DetpipeError, match=f"no run of the name or id '{text}'"):
            find_run(text)


def test_a_name_of_runs_that_failed_only_asks_for_an_id(store):
    with pytest.raises(DetpipeError) as caught:
        find_run("train big")
    assert "no run of the name 'train big' has finished well" in str(caught.value)
    assert f"can be named by its id, {store['train big'][0]} (FAILED)" in str(caught.value)


def test_a_store_without_runs_says_so(store):
    assert store["message before there were runs"][0].endswith(
        "has no run of the name or id 'train', nor any other that finished"
    )


def test_a_tracker_that_is_not_there_is_named(monkeypatch):
    before = mlflow.get_tracking_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    mlflow.set_tracking_uri("http://127.0.0.1:9")
    try:
        with pytest.raises(DetpipeError, match=r"MLflow at http://127\.0\.0\.1:9 cannot be asked"):
            find_run("train")
    finally:
        mlflow.set_tracking_uri(before)


def test_scores_come_back_with_the_real_names_of_classes(run, tmp_path):
    scores = SCORES.make(
        [
            {"dataset": "test", "task": "bbox", "metric": "AP", "class_name": name, "value": value}
            for name, value in zip(CLASS_NAMES, [*np.linspace(0.1, 99, 6), np.nan], strict=True)
        ]
    )
    scores.to_csv(tmp_path / "scores.csv", index=False)
    mlflow.log_artifact(str(tmp_path / "scores.csv"), "reports")
    pd.testing.assert_frame_equal(scores_of(run), scores)


def test_detections_come_back_of_the_data_set_that_is_asked_for(run, tmp_path):
    for dataset, score in {"val": 0.1, "test": 0.2}.items():
        found = DETECTIONS.make(
            [{"image_id": "1", "class_name": "a", "x1": 0, "y1": 0, "x2": 1, "y2": 1,
              "score": score}]
        )  # fmt: skip
        found.to_parquet(tmp_path / f"{dataset}_detections.parquet")
        mlflow.log_artifact(str(tmp_path / f"{dataset}_detections.parquet"), "detections")
        pd.testing.assert_frame_equal(detections_of(run, dataset), found)
    missing = r"no 'detections/train_detections.parquet' \('detections' holds .*/test_detections"
    with pytest.raises(DetpipeError, match=missing):
        detections_of(run, "train")


def test_a_run_without_scores_is_named_with_what_is_missing(store):
    run = find_run(store["train big"][0])
    missing = r"run 'train big' .* has no 'reports/scores.csv' \(nothing is in 'reports'\)"
    with pytest.raises(DetpipeError, match=missing):
        scores_of(run)


def images(width: int = 10) -> pd.DataFrame:
    return IMAGES.make(
        [
            {"image_id": i, "path": f"{i}.jpg", "width": width, "height": 9, "split": "test"}
            for i in "12"
        ]
    )


def test_a_table_that_is_not_the_one_of_the_run_is_told(run):
    log_table("images", images())
    run = mlflow.get_run(run.info.run_id)
    assert other_tables(run, images=images()) == []
    assert other_tables(run, images=images(width=11)) == ["images"]


def test_a_run_that_says_nothing_of_its_tables_passes_with_a_warning(run, caplog):
    assert other_tables(run, images=images()) == []
    assert "does not say with which images" in caplog.text


def test_the_digest_knows_content_and_not_order_or_the_way_to_a_file(tmp_path):
    table = images()
    assert digest_of(table.iloc[::-1]) == digest_of(table)
    table.to_parquet(tmp_path / "images.parquet")
    assert digest_of(IMAGES.make(pd.read_parquet(tmp_path / "images.parquet"))) == digest_of(table)
    assert digest_of(images(width=11)) != digest_of(table)
