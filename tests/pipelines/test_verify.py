"""The gate in real sessions: what is written, what a miss leaves behind, what a baseline is."""

from __future__ import annotations

import logging

import pandas as pd
import pytest

from detpipe.core.errors import ConfigError, VerificationError
from detpipe.core.tables import SCORES
from detpipe.datasets import WeightsDataset
from detpipe.pipelines import verify as gate

from .conftest import Project

EXPECTED = "conf/expected/sample.yml"


def verdict(project: Project) -> pd.DataFrame:
    file = project.path("08_reporting/sample/verdict.csv")
    return pd.read_csv(file, keep_default_na=False)


def with_verify(**verify: object) -> dict[str, object]:
    return {**Project.SMALL, "verify": verify}


def write_scores(project: Project, **values: float) -> None:
    """What the verify pipeline reads: scores of the metrics in percent, and its reports."""
    folder = project.path("08_reporting/sample")
    folder.mkdir(parents=True, exist_ok=True)
    rows = [("test", "bbox", metric, "", value) for metric, value in values.items()]
    pd.DataFrame(rows, columns=list(SCORES.columns)).to_csv(folder / "scores.csv", index=False)
    evaluated = project.path("07_model_output/sample/evaluated.json")
    evaluated.parent.mkdir(parents=True, exist_ok=True)
    evaluated.write_text("{}")
    for name in gate.REPORTS:
        file = "report.html" if name == "report_page" else f"{name}.csv"
        (folder / file).write_text("dataset,image_id,path\n")


@pytest.fixture
def fresh(project: Project) -> Project:
    """The project with scores and without a file of expectations."""
    (project.folder / EXPECTED).unlink(missing_ok=True)
    write_scores(project, AP=80.123, AP50=95.0)
    return project


def test_what_is_written_is_held_against_the_runs_after(fresh: Project) -> None:
    fresh.run("verify", params=with_verify(write=True, tolerance=1))
    assert verdict(fresh).empty, "a run is not judged by what it writes itself"
    fresh.run("verify")
    assert verdict(fresh)["expected"].tolist() == [80.12, 95.0]
    assert verdict(fresh)["ok"].all()
    write_scores(fresh, AP=78.0, AP50=95.0)
    with pytest.raises(VerificationError, match=r"test bbox AP: expected 80.12 ± 1, got 78.0000"):
        fresh.run("verify")
    assert verdict(fresh)["ok"].tolist() == [False, True]


def test_an_expectation_of_the_parameters_wins_over_the_written_one(fresh: Project) -> None:
    fresh.run("verify", params=with_verify(write=True))
    write_scores(fresh, AP=40.0, AP50=95.0)
    fresh.run("verify", params=with_verify(expected=[["bbox", "AP", 40, 1]]))
    assert verdict(fresh)["metric"].tolist() == ["AP", "AP50"]


def test_a_run_that_misses_the_parameters_fails_and_writes_nothing(fresh: Project) -> None:
    with pytest.raises(VerificationError, match="AP"):
        fresh.run("verify", params=with_verify(write=True, expected=[{"metric": "AP", "min": 99}]))
    assert verdict(fresh)["min"].tolist() == [99.0]
    assert not (fresh.folder / EXPECTED).exists()


def test_a_broken_file_of_expectations_names_itself_and_the_line(fresh: Project) -> None:
    file = fresh.folder / EXPECTED
    file.parent.mkdir(exist_ok=True)
    file.write_text("# mine\n- {metric: AP, mim: 3}\n")
    with pytest.raises(ConfigError, match=r"(?s)conf/expected/sample\.yml.*line 2.*'min'"):
        fresh.run("verify")


def test_two_forms_at_once_are_refused_before_any_node(fresh: Project) -> None:
    both = {"metric": "AP", "value": 1, "tolerance": 1, "min": 3}
    with pytest.raises(ConfigError, match=r"verify\.expected\.0: .*is one of"):
        fresh.run("data", params=with_verify(expected=[both]))


def test_a_miss_ends_the_command_with_1_and_a_table_in_the_log(fresh: Project) -> None:
    settings = fresh.folder / "conf/local/parameters_verify.yml"
    before = settings.read_text()
    settings.write_text("verify: {expected: [{metric: AP, max: 60}, {metric: AP51, min: 1}]}\n")
    try:
        process = fresh.command("run", "--pipeline", "verify")
        said, _ = process.communicate(timeout=120)
    finally:
        settings.write_text(before)
    assert process.returncode == 1, said
    assert "Traceback" not in said
    assert "2 of 2 expected results are not met" in said
    assert "test bbox AP: expected at most 60, got 80.1230: 20.12 above" in said
    assert "no metric 'AP51'; did you mean 'AP50'?" in said
    assert "0 of 2 expectations are met:" in said and "at most 60  80.12" in said


def test_judging_alone_ends_nothing(fresh: Project) -> None:
    """The report has the verdict in it without the gate."""
    judge = gate.create_judge_pipeline()
    assert [node.short_name for node in judge.nodes] == ["verify"]
    both = judge + gate.create_pipeline()
    assert len(both.nodes) == 2, "put together they judge once"


@pytest.mark.slow
def test_a_rehearsal_neither_writes_nor_judges_by_the_file(
    tmp_path, project_root, caplog: pytest.LogCaptureFixture
) -> None:
    project = Project(tmp_path, project_root)
    file = project.folder / EXPECTED
    file.parent.mkdir()
    file.write_text("- {metric: AP, min: 99}\n")
    caplog.set_level(logging.INFO)
    rehearsed = {**Project.SMALL["train"], "dry_run": True}
    data = {**Project.SMALL["data"], "reader": {"images": 20, "size": 96}}
    project.run("train", params=with_verify(write=True) | {"train": rehearsed, "data": data})
    assert file.read_text() == "- {metric: AP, min: 99}\n"
    assert "nothing is verified" in caplog.text


@pytest.fixture(scope="module")
def trained(project: Project) -> Project:
    """Trained for long enough to find something; its run is named 'train tiny sample'."""
    (project.folder / EXPECTED).unlink(missing_ok=True)
    train = {**Project.SMALL["train"], "duration": "100 steps", "log_every": "50 steps",
             "hooks": {"evaluate": {"every": "0 steps"}}}  # fmt: skip
    project.run("train", params={**Project.SMALL, "train": train})
    return project


def reached(project: Project) -> float:
    scores = pd.read_csv(project.path("08_reporting/sample/scores.csv"), keep_default_na=False)
    row = scores[(scores["dataset"] == "test") & (scores["metric"] == "AP50")]
    return float(row["value"].iloc[0])


@pytest.mark.slow
def test_a_worse_model_misses_what_a_better_one_wrote(trained: Project) -> None:
    file = trained.path("06_models/sample/weights.safetensors")
    good = file.read_bytes()
    trained.run("evaluate", params=with_verify(write=True))
    assert reached(trained) > 10
    trained.run("evaluate")
    assert verdict(trained)["ok"].all() and len(verdict(trained)) == 4
    weights = WeightsDataset(filepath=str(file))
    worse = weights.load()
    for name, tensor in worse.state.items():
        if tensor.is_floating_point():
            worse.state[name] = tensor * 0.5
    weights.save(worse)
    overview = trained.path("08_reporting/sample/overview.csv")
    overview.unlink()
    try:
        with pytest.raises(VerificationError, match="AP50: expected"):
            trained.run("evaluate")
    finally:
        file.write_bytes(good)
        (trained.folder / EXPECTED).unlink()
    assert overview.exists(), "reports come first"
    assert not verdict(trained)["ok"].all()


@pytest.mark.slow
def test_a_named_run_is_the_baseline(trained: Project) -> None:
    """Evaluated anew the same weights are neither better nor worse than their training's end."""
    same = {"metric": "AP50", "baseline": "train tiny sample"}
    expected = [{**same, "tolerance": 0}, {**same, "min": 0}, {**same, "min": 0.1}]
    with pytest.raises(VerificationError, match="1 of 3 expected results"):
        trained.run("evaluate", params=with_verify(expected=expected))
    found = verdict(trained)
    assert found["ok"].astype(str).tolist() == ["True", "True", "False"]
    assert found["expected"].astype(float).tolist() == pytest.approx([reached(trained)] * 3)


@pytest.mark.slow
def test_a_baseline_that_was_never_run_is_a_failed_row(trained: Project) -> None:
    expected = [{"metric": "AP50", "baseline": "train tinny sample", "min": 0}]
    with pytest.raises(VerificationError, match="did you mean 'train tiny sample'"):
        trained.run("evaluate", params=with_verify(expected=expected))
    assert not verdict(trained)["ok"].any()
