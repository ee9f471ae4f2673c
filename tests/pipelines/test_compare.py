"""Two trainings and a file side by side, in real Kedro sessions with a real MLflow store."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from detpipe.core.errors import ConfigError, DataError
from detpipe.evaluate.config import CompareConfig, EvaluateConfig
from detpipe.pipelines.compare import compare_runs


@pytest.fixture(scope="module")
def trained(project):
    """The project after two short trainings: names of runs → their ids, the older first."""
    project.run("train")
    params = project.SMALL | {"train": project.SMALL["train"] | {"duration": "16 steps"}}
    project.run("train", params=params)
    rows = project.rows("select run_uuid from runs order by start_time")
    project.runs = [run for (run,) in rows]
    return project


def params(project, **runs: str):
    return project.SMALL | {"compare": {"runs": runs, "samples": 50}}


def report(project, run: str, name: str) -> Path:
    folder = project.folder / "mlartifacts" / run / "artifacts/reports"
    return folder / name


@pytest.mark.slow
def test_two_trainings_are_compared_and_the_page_is_in_the_run(trained):
    old, new = trained.runs[:2]
    trained.run("compare", params=params(trained, old=old, new=new))
    table = pd.read_csv(trained.path("08_reporting/sample/comparison.csv"))
    assert table["run"].unique().tolist() == ["old", "new"]
    for run, own in {"old": old, "new": new}.items():
        scores = pd.read_csv(report(trained, own, "scores.csv"))
        scores = scores[(scores["dataset"] == "test") & scores["class_name"].isna()]
        expected = scores.set_index("metric")["value"]
        whole = table[(table["run"] == run) & table["class_name"].isna()].set_index("metric")
        for metric in ("AP", "AP50", "AP75", "AR100"):
            assert whole["value"][metric] == pytest.approx(expected[metric], abs=1e-6)
    ((run, name, status),) = trained.rows(
        "select run_uuid, name, status from runs order by start_time desc limit 1"
    )
    assert (name, status) == ("compare sample", "FINISHED")
    assert report(trained, run, "comparison.csv").exists()
    page = report(trained, run, "comparison.html").read_text(encoding="utf-8")
    assert f"MLflow run train tiny sample, {old}" in page


@pytest.mark.slow
def test_a_name_means_the_newest_run_and_a_file_stands_beside_it(trained):
    file = trained.path("07_model_output/sample/test_detections.parquet")  # of the newest run
    chosen = params(trained, run="train tiny sample", file=str(file))
    trained.run("compare", params=chosen)
    table = pd.read_csv(trained.path("08_reporting/sample/comparison.csv"))
    whole = table[(table["run"] == "file") & table["class_name"].isna()]
    assert (whole[["difference", "low", "high"]] == 0).all(axis=None)
    assert not table["differs"].any()


@pytest.mark.slow
def test_runs_on_other_data_are_refused(trained):
    old, new = trained.runs[:2]
    data = trained.SMALL["data"] | {"split": {"by": "ratio", "seed": 3}}
    other = trained.SMALL | {"data": data}  # other images are the test
    trained.run("data", params=other)
    wanted = other | {"compare": {"runs": {"old": old, "new": new}}}
    with pytest.raises(DataError, match=r"another state of the data set \(images\)") as caught:
        trained.run("compare", params=wanted)
    assert "compare.runs.old" in str(caught.value)
    assert "compare.runs.new" in str(caught.value)


def refused(**settings):
    images = pd.DataFrame({"image_id": ["1"], "path": ["1.jpg"], "width": 9, "height": 9,
                           "split": ["test"]})  # fmt: skip
    compare_runs(
        images, pd.DataFrame(), pd.DataFrame({"class_name": ["a"]}), Path("nowhere"), {},
        CompareConfig.model_validate(settings), EvaluateConfig(),
    )  # fmt: skip


@pytest.mark.parametrize("runs", [{}, {"only": "one"}])
def test_fewer_than_two_runs_are_refused_with_a_command_to_copy(runs):
    with pytest.raises(ConfigError, match=f"with {len(runs)} run.*--params.*compare.runs.new="):
        refused(runs=runs)


def test_an_unknown_split_is_refused():
    with pytest.raises(ConfigError, match="no split 'train'; there are test"):
        refused(runs=["a.csv", "b.csv"], dataset="train")


def test_all_runs_that_cannot_be_read_are_told_at_once(tmp_path):
    runs = {"old": str(tmp_path / "a.csv"), "new": str(tmp_path / "b.json")}
    with pytest.raises(DataError) as caught:
        refused(runs=runs)
    for name, file in runs.items():
        assert f"compare.runs.{name}: {file}: there is no such file of detections" in str(
            caught.value
        )


def test_a_file_of_bare_category_ids_is_told_which_setting_of_compare_names_them(tmp_path):
    file = tmp_path / "r.json"
    file.write_text('[{"image_id": 1, "category_id": 7, "bbox": [1, 2, 3, 4], "score": 0.5}]')
    with pytest.raises(DataError) as caught:
        refused(runs={"old": str(file), "new": str(file)})
    assert "'compare: {categories: {7: <its class>" in str(caught.value)
    assert "compare.categories=<a COCO file" in str(caught.value)
    assert "evaluate_files" not in str(caught.value)
