"""MLflow's side against a real SQLite store, and against a server that is not there."""

from __future__ import annotations

import json
import os

import mlflow
import pytest

from detpipe.core.config import Duration, Spec
from detpipe.tracking.records import flatten
from detpipe.tracking.writer import RUN_ID_FILE, MlflowWriter, metric_names

CLASS_NAMES = ["a,b", 'quo"te', "x/y", "non-fiction", "(bracket)", "[/x]", "R&D", "R+D", "猫", "é"]


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    """An experiment in an MLflow SQLite store of its own."""
    folder = tmp_path_factory.mktemp("store")
    before = mlflow.get_tracking_uri()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("MLFLOW_TRACKING_URI", "")  # MLflow writes the address into it
        mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
        yield mlflow.create_experiment("test", artifact_location=(folder / "artifacts").as_uri())
        mlflow.set_tracking_uri(before)


@pytest.fixture
def store(experiment):
    """The id of an active run."""
    with mlflow.start_run(experiment_id=experiment) as run:
        yield run.info.run_id


def history(run_id: str, key: str) -> list[tuple[int, float]]:
    found = mlflow.MlflowClient().get_metric_history(run_id, key)
    return sorted((metric.step, metric.value) for metric in found)


def test_any_class_name_becomes_a_metric_and_no_two_become_one(store):
    names = metric_names(f"val/bbox/AP/{name}" for name in CLASS_NAMES)
    assert len(set(names.values())) == len(CLASS_NAMES)
    mlflow.log_metrics(dict.fromkeys(names.values(), 1.0))
    assert set(mlflow.get_run(store).data.metrics) == set(names.values())


AWKWARD = ["val/a/", "val/a//b", "val/..", "val/.", "/a", "a" * 300, "b" * 300 + "c", "", "val/a"]


def test_names_that_are_no_normal_paths_or_too_long_are_taken(store):
    names = metric_names(AWKWARD)
    assert len(set(names.values())) == len(AWKWARD)
    mlflow.log_metrics(dict.fromkeys(names.values(), 1.0))
    assert set(mlflow.get_run(store).data.metrics) == set(names.values())


def test_a_refused_metric_does_not_hold_up_the_others(store, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("detpipe.tracking.writer._clean", lambda name: name)
    writer = MlflowWriter(folder=tmp_path)
    writer.open(start_step=0)
    writer.write(1, {"train/loss": 0.5, "no@name": 1.0, "train/lr": 0.1})
    writer.close()
    assert set(mlflow.get_run(store).data.metrics) == {"train/loss", "train/lr"}
    assert "refuses the metric 'no@name'" in caplog.text


def test_a_resumed_run_sends_what_the_killed_one_did_not_get_out(store, tmp_path):
    rows = [{"step": step, "train/loss": float(step)} for step in (1, 2, 3, 4)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)) + '\n{"step": 5, "tr')
    mlflow.log_metric("train/loss", 1.0, step=1)  # all that was sent before the kill
    writer = MlflowWriter(folder=tmp_path)
    writer.open(start_step=3)
    writer.write(4, {"train/loss": 4.0})
    writer.close()
    assert history(store, "train/loss") == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]


def test_a_name_that_mlflow_takes_stays_as_it_is():
    assert metric_names(["val/bbox/AP", "non-fiction 2"]) == {
        "val/bbox/AP": "val/bbox/AP",
        "non-fiction 2": "non-fiction 2",
    }
    mine = metric_names(["AP/a,b", "AP/a_b", "AP/a(b"])
    assert mine == {"AP/a_b": "AP/a_b", "AP/a(b": "AP/a_b_2", "AP/a,b": "AP/a_b_3"}


def test_parameters_are_flat_and_keep_lists_of_values_together():
    values = {"train": {"duration": Duration(steps=5), "hooks": {}}, "anchors": [16, 32]}
    flat = flatten(values | {"model": Spec(use="a.b", width=3), "rows": [{"x": 1}, {"x": 2}]})
    assert flat["train.duration"] == "5 steps"
    assert flat["train.hooks"] == "{}"
    assert flat["anchors"] == "[16, 32]"
    assert (flat["model.use"], flat["model.width"]) == ("a.b", "3")
    assert (flat["rows.0.x"], flat["rows.1.x"]) == ("1", "2")


def test_the_writer_sends_every_row_by_the_end(store, tmp_path):
    writer = MlflowWriter(folder=tmp_path)
    writer.open(start_step=0)
    for step in range(1, 2001):
        writer.write(step, {"train/loss": 1 / step})
    writer.close()
    assert history(store, "train/loss") == [(step, 1 / step) for step in range(1, 2001)]


def test_a_resumed_writer_sends_no_step_twice(store, tmp_path):
    first = MlflowWriter(folder=tmp_path)
    first.open(start_step=0)
    for step in (2, 4, 6):
        first.write(step, {"train/loss": step})
    first.close()
    assert (tmp_path / RUN_ID_FILE).read_text() == store
    again = MlflowWriter(folder=tmp_path)
    again.open(start_step=3)  # the checkpoint was at 3; 4 and 6 are in the tracker already
    for step in (4, 6, 8):
        again.write(step, {"train/loss": step})
    again.close()
    assert [step for step, _ in history(store, "train/loss")] == [2, 4, 6, 8]


def test_a_run_that_was_killed_before_its_first_checkpoint_sends_no_step_twice(store, tmp_path):
    for _ in range(2):  # the resumed run begins at step 0 again, in the same run
        writer = MlflowWriter(folder=tmp_path)
        writer.open(start_step=0)
        for step in (2, 4):
            writer.write(step, {"train/loss": step})
        writer.close()
    assert [step for step, _ in history(store, "train/loss")] == [2, 4]


def test_rows_that_could_not_be_sent_are_kept_in_a_file(store, tmp_path, monkeypatch, caplog):
    writer = MlflowWriter(folder=tmp_path)
    writer.open(start_step=0)

    def lost(*arguments, **options):
        raise ConnectionError("server away")

    monkeypatch.setattr(mlflow.MlflowClient, "log_batch", lost)
    writer.write(1, {"train/loss": 0.5})
    writer.close()
    rows = [json.loads(line) for line in (tmp_path / "mlflow_unsent.jsonl").open()]
    assert [(name, value, step) for name, value, step, _ in rows] == [("train/loss", 0.5, 1)]
    assert "could not be sent" in caplog.text


def test_without_a_run_the_writer_writes_nothing(experiment, tmp_path):
    writer = MlflowWriter(folder=tmp_path)
    writer.open(start_step=0)
    writer.write(1, {"train/loss": 0.5})
    writer.close()
    assert list(tmp_path.iterdir()) == []


def test_a_tracking_server_that_is_away_costs_a_warning(tmp_path, project_root, monkeypatch):
    from tests.pipelines.conftest import Project

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    project = Project(tmp_path, project_root)
    project.run("data")
    assert os.environ["MLFLOW_TRACKING_URI"] == "http://127.0.0.1:9", "as the user set it"
    assert project.path("03_primary/sample/images.parquet").exists()
    assert not (project.folder / "mlflow.db").exists()
