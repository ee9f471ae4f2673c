"""Expectations: what is missed, missing or no number is a row with its reason."""

from __future__ import annotations

import math
import re

import pytest
import yaml
from pydantic import ValidationError

from detpipe.core.errors import VerificationError
from detpipe.core.tables import SCORES, VERDICT
from detpipe.evaluate.config import Expectation, VerifyConfig
from detpipe.evaluate.verify import FEW, require, table, verify

NAN = float("nan")


@pytest.fixture
def scores():
    rows = [
        ("val", "bbox", "AP", "", 38.7), ("val", "bbox", "AP50", "", 60.0),
        ("val", "bbox", "APs", "", NAN), ("val", "bbox", "AP", "traffic-light", 20.0),
        ("test", "bbox", "AP", "", 30.0),
    ]  # fmt: skip
    return SCORES.make([dict(zip(SCORES.columns, row, strict=True)) for row in rows])


def judged(scores, *, baseline_scores=None, **expectation):
    if not {"value", "tolerance", "min", "max", "baseline"} & set(expectation):
        expectation |= {"value": 38.5, "tolerance": 0.2}
    expectation = {"dataset": "val", "metric": "AP", **expectation}
    verdict = verify(scores, VerifyConfig(expected=[expectation]), baseline_scores=baseline_scores)
    assert list(verdict.columns) == list(VERDICT.columns) and len(verdict) == 1
    return verdict.iloc[0]


@pytest.mark.parametrize(
    "value, tolerance, ok",
    [(38.5, 0.2, True), (38.9, 0.2, True), (38.45, 0.2, False), (38.95, 0.2, False),
     (38.7, 0, True), (0, 100, True)],
)  # fmt: skip
def test_within_the_tolerance_on_either_side_border_included(scores, value, tolerance, ok):
    row = judged(scores, value=value, tolerance=tolerance)
    assert row["ok"] == ok and row["actual"] == 38.7 and bool(row["reason"]) is not ok


def test_a_miss_says_on_which_side(scores):
    assert "8.7 above" in judged(scores, value=30, tolerance=0.2)["reason"]
    assert "11.3 below" in judged(scores, value=50, tolerance=0.2)["reason"]


@pytest.mark.parametrize(
    "bounds, ok, low, high",
    [
        ({"min": 38.7}, True, 38.7, NAN), ({"min": 38.8}, False, 38.8, NAN),
        ({"max": 38.7}, True, NAN, 38.7), ({"max": 38.6}, False, NAN, 38.6),
        ({"min": 38, "max": 39}, True, 38, 39), ({"min": 39, "max": 40}, False, 39, 40),
        ({"min": 38.7, "max": 38.7}, True, 38.7, 38.7), ({"min": 0}, True, 0, NAN),
    ],
)  # fmt: skip
def test_bounds_on_one_side_or_both_border_included(scores, bounds, ok, low, high):
    row = judged(scores, **bounds)
    assert row["ok"] == ok and bool(row["reason"]) is not ok
    assert row[["min", "max"]].tolist() == pytest.approx([low, high], nan_ok=True)
    assert math.isnan(row["expected"]) and math.isnan(row["tolerance"])


def test_a_missed_bound_says_by_how_much(scores):
    assert "1.3 below the least that passes, 40" in judged(scores, min=40)["reason"]
    assert "3.7 above the most that passes, 35" in judged(scores, max=35, min=1)["reason"]


def test_the_bounds_of_a_value_are_in_the_verdict(scores):
    row = judged(scores, value=38.5, tolerance=0.2)
    assert row[["expected", "tolerance", "min", "max"]].tolist() == [38.5, 0.2, 38.3, 38.7]
    row = judged(scores, value=0.1, tolerance=0.2)
    assert row[["min", "max"]].tolist() == [-0.1, 0.3], "not 0.30000000000000004"


@pytest.mark.parametrize(
    "form",
    [
        {}, {"value": 1}, {"tolerance": 1}, {"value": 1, "min": 0}, {"baseline": "a"},
        {"value": 1, "tolerance": 1, "max": 3}, {"value": 1, "tolerance": 1, "baseline": "a"},
        {"value": 1, "baseline": "a"}, {"baseline": "a", "tolerance": 1, "min": -1},
        {"tolerance": 1, "min": 1},
    ],
)  # fmt: skip
def test_half_a_form_or_two_at_once_is_refused_and_all_forms_are_named(form):
    with pytest.raises(ValidationError) as error:
        Expectation(metric="AP", **form)
    said = str(error.value)
    assert "value and tolerance; min, max or both; baseline and tolerance" in said
    given = [name for name in Expectation.model_fields if name in form]
    assert f"this has {' and '.join(given) or 'none of these'}" in said


def test_bounds_that_nothing_can_meet_are_refused():
    with pytest.raises(ValidationError, match=r"at least 3 \(min\) and at most 2 \(max\)"):
        Expectation(metric="AP", min=3, max=2)
    with pytest.raises(ValidationError, match="baseline is empty"):
        Expectation(metric="AP", baseline="", min=3)


def test_a_written_tolerance_must_be_finite():
    for tolerance in (NAN, math.inf, -1):
        with pytest.raises(ValidationError):
            VerifyConfig(tolerance=tolerance)


@pytest.fixture
def runs(scores):
    """The function that finds a run's scores, and the names it was asked for."""
    asked = []
    better = scores.assign(value=scores["value"] + 1)

    def baseline_scores(name):
        asked.append(name)
        if name == "typo":
            raise LookupError("no run 'typo'; did you mean 'best'?\nthere is 'best'")
        return better

    baseline_scores.asked = asked
    return baseline_scores


@pytest.mark.parametrize(
    "form, ok, low, high",
    [
        ({"tolerance": 1}, True, 38.7, 40.7), ({"tolerance": 0.9}, False, 38.8, 40.6),
        ({"min": -1}, True, 38.7, NAN), ({"min": -0.9}, False, 38.8, NAN),
        ({"max": -1}, True, NAN, 38.7), ({"max": -1.1}, False, NAN, 38.6),
        ({"min": -2, "max": 0}, True, 37.7, 39.7), ({"min": 0, "max": 2}, False, 39.7, 41.7),
    ],
)  # fmt: skip
def test_against_a_baseline_whose_result_is_one_point_better(scores, runs, form, ok, low, high):
    row = judged(scores, baseline_scores=runs, baseline="best", **form)
    assert row["ok"] == ok and bool(row["reason"]) is not ok
    assert row["baseline"] == "best" and row["expected"] == pytest.approx(39.7)
    assert row[["min", "max"]].tolist() == pytest.approx([low, high], nan_ok=True)


def test_a_miss_of_a_baseline_says_what_it_reached(scores, runs):
    row = judged(scores, baseline_scores=runs, baseline="best", tolerance=0.5)
    assert "1 below the baseline's 39.7, tolerance 0.5" in row["reason"]
    row = judged(scores, baseline_scores=runs, baseline="best", min=-0.5)
    assert "0.5 below the least that passes, 39.2 (baseline 39.7 -0.5)" in row["reason"]


def test_a_baseline_that_is_not_there_is_a_failed_row_with_the_reason_in_one_line(scores, runs):
    row = judged(scores, baseline_scores=runs, baseline="typo", min=0)
    assert not row["ok"] and row["actual"] == 38.7
    assert row["reason"] == (
        "the baseline 'typo' cannot be used: no run 'typo'; did you mean 'best'? there is 'best'"
    )


def test_a_tracker_that_is_down_is_a_failed_row(scores):
    def down(name):
        raise ConnectionError("connection refused")

    row = judged(scores, baseline_scores=down, baseline="best", tolerance=1)
    assert not row["ok"] and "connection refused" in row["reason"]
    row = judged(scores, baseline="best", tolerance=1)
    assert not row["ok"] and "no tracker" in row["reason"]
    row = judged(scores, baseline_scores=lambda name: None, baseline="best", tolerance=1)
    assert not row["ok"] and "cannot be used" in row["reason"]


def test_a_baseline_without_this_number_is_a_failed_row_that_says_what_it_has(scores, runs):
    few = scores[scores["dataset"] == "test"]
    row = judged(scores, baseline_scores=lambda name: few, baseline="old", min=0)
    assert "the baseline 'old' has no data set 'val' (there is 'test')" in row["reason"]
    row = judged(scores, baseline_scores=runs, baseline="best", metric="APs", min=0)
    assert "the result is NaN" in row["reason"]
    assert "the result of the baseline 'best' is NaN" in row["reason"]


def test_a_baseline_is_asked_for_once_and_only_if_there_is_one(scores, runs):
    named = {"dataset": "val", "metric": "AP", "min": -5}
    config = VerifyConfig(expected=[{**named, "baseline": n} for n in ("a", "typo", "a", "typo")])
    verify(scores, config, baseline_scores=runs)
    assert runs.asked == ["a", "typo"]
    verify(scores, VerifyConfig(expected=[named]), baseline_scores=runs)
    assert runs.asked == ["a", "typo"]


def test_written_expectations_are_judged_too_but_the_parameters_win(scores, caplog):
    caplog.set_level("INFO")
    config = VerifyConfig(expected=[["bbox", "AP", 30, 1]])
    written = [
        Expectation(metric="AP", value=99, tolerance=0.5),
        Expectation(dataset="val", metric="AP", value=38.7, tolerance=0.5),
    ]
    verdict = verify(scores, config, written=written)
    assert verdict["expected"].tolist() == [30, 38.7] and verdict["ok"].all()
    assert caplog.text.count("verify.expected counts, not the written expectation, for test") == 1


def test_the_log_shows_the_verdict_as_a_table_without_markup(scores, caplog):
    caplog.set_level("INFO")
    config = VerifyConfig(expected=[["bbox", "AP", 30, 1], ["bbox", "[/x]", 30, 1]])
    verdict = verify(scores, config)
    lines = table(verdict).splitlines()
    assert lines[0].split() == ["data", "set", "task", "metric", "expected", "actual", "reason"]
    assert lines[2].split() == ["ok", "test", "bbox", "AP", "30", "±", "1", "30.00"]
    assert lines[1].split()[:8] == ["MISSED", "test", "bbox", "(/x)", "30", "±", "1", "no"]
    assert lines[0].index("actual") == lines[2].index("30.00") == lines[1].index("no result")
    assert "[" not in caplog.text.split("met:")[1] and lines[2] in caplog.text


def test_of_many_expectations_the_log_shows_the_misses_and_counts_the_rest(scores, caplog):
    caplog.set_level("INFO")
    met, missed = ["bbox", "AP", 30, 1], ["bbox", "AP", 50, 1]
    few = verify(scores, VerifyConfig(expected=[met] * (FEW - 1) + [missed]))
    assert len(table(few).splitlines()) == 1 + FEW and not few["ok"].iloc[-1]
    many = verify(scores, VerifyConfig(expected=[met] * FEW + [missed]))
    assert len(table(many).splitlines()) == 2 and table(many) in caplog.text
    all_met = verify(scores, VerifyConfig(expected=[met] * (FEW + 1)))
    assert table(all_met) == ""
    assert caplog.messages[-1] == f"{FEW + 1} of {FEW + 1} expectations are met"


def test_a_baseline_that_is_missing_has_no_result_in_the_table(scores, runs):
    config = VerifyConfig(expected=[{"dataset": "val", "metric": "AP", "baseline": "typo",
                                     "tolerance": 1}])  # fmt: skip
    assert "  no result (baseline typo)  38.70  " in table(
        verify(scores, config, baseline_scores=runs)
    )


def test_a_metric_to_write_that_is_not_there_is_a_failed_row_with_near_names(scores):
    verdict = verify(scores, VerifyConfig(write=True, metrics=["AP*", "AP5O", "mAP*"]))
    assert verdict["metric"].tolist() == ["AP5O", "mAP*"] and not verdict["ok"].any()
    with pytest.raises(VerificationError) as error:
        require(verdict)
    assert (
        "verify.metrics AP5O: got no result: nothing is written: the scores have no metric "
        "'AP5O'; did you mean 'AP50'?"
    ) in str(error.value)
    assert verify(scores, VerifyConfig(metrics=["AP5O"])).empty, "nothing is to be written"
    assert verify(SCORES.empty(), VerifyConfig(write=True)).empty, "there is nothing to name"


def test_an_expectation_of_nothing_finite_is_a_failed_row(scores):
    for bounds in ({"min": NAN}, {"max": math.inf}, {"min": -math.inf, "max": 100}):
        row = judged(scores, **bounds)
        assert not row["ok"] and "finite" in row["reason"]


def test_an_infinite_result_never_passes(scores):
    row = judged(scores.assign(value=math.inf), min=3)
    assert not row["ok"] and "the result is inf" in row["reason"]


@pytest.mark.parametrize(
    "wrong, says",
    [
        ({"dataset": "tset"}, ["no data set 'tset'", "did you mean 'test'?", "'val', 'test'"]),
        ({"task": "segm"}, ["no task 'segm'", "'bbox'"]),
        ({"metric": "mAP"}, ["no metric 'mAP'", "did you mean 'AP'?", "'AP50'"]),
        ({"class_name": "trafic-light"}, ["no class", "did you mean 'traffic-light'?"]),
        ({"dataset": "test", "class_name": "x"}, ["no class 'x'", "there is none"]),
        ({"metric": ""}, ["no metric ''", "'AP50'"]),
    ],
)
def test_what_is_not_there_is_a_failed_row_that_says_what_is(scores, wrong, says):
    row = judged(scores, **wrong)
    assert not row["ok"] and math.isnan(row["actual"])
    assert all(part in row["reason"] for part in says)


def test_no_scores_at_all_is_a_failed_row():
    row = judged(SCORES.empty())
    assert not row["ok"] and "there is none" in row["reason"]


def test_nan_never_passes(scores):
    actual = judged(scores, metric="APs", value=1, tolerance=100)
    assert not actual["ok"] and "result is NaN" in actual["reason"]
    for value in (NAN, math.inf):
        expected = judged(scores, metric="APs", value=value, tolerance=100)
        assert not expected["ok"] and "finite" in expected["reason"]
    endless = judged(scores, value=1, tolerance=math.inf)
    assert not endless["ok"] and "finite" in endless["reason"]


def test_the_seeds_four_items_and_a_class(scores):
    config = VerifyConfig(
        expected=[
            ["bbox", "AP", 30.1, 0.2],
            {"dataset": "val", "metric": "AP", "class_name": "traffic-light", "value": 20,
             "tolerance": 0},
        ]
    )  # fmt: skip
    verdict = verify(scores, config)
    assert verdict["ok"].tolist() == [True, True] and verdict["dataset"].tolist() == ["test", "val"]
    require(verdict)


def test_require_raises_with_a_line_for_each_miss(scores):
    config = VerifyConfig(
        expected=[
            ["bbox", "AP", 30, 0.1], ["bbox", "AP", 50, 0.1], ["bbox", "AP99", 50, 0.1],
        ]
    )  # fmt: skip
    with pytest.raises(VerificationError) as error:
        require(verify(scores, config))
    title, *lines = str(error.value).splitlines()
    assert "2 of 3" in title and len(lines) == 2
    assert "expected 50 ± 0.1, got 30.0000" in lines[0]
    assert "AP99: expected 50 ± 0.1, got no result: " in lines[1] and "nan" not in lines[1]


@pytest.mark.parametrize(
    "form, says",
    [
        ({"min": 40}, "expected at least 40, got"), ({"max": 10}, "expected at most 10, got"),
        ({"min": 1, "max": 2}, "expected 1 to 2, got"),
        ({"baseline": "best", "tolerance": 0.1}, "expected 39.7 ± 0.1 (baseline best), got"),
        ({"baseline": "best", "min": 1}, "expected at least 40.7 (baseline best), got"),
        ({"baseline": "typo", "min": 1}, "AP: got 38.7000: the baseline 'typo' cannot"),
    ],
)  # fmt: skip
def test_require_says_what_was_expected_in_every_form(scores, runs, form, says):
    config = VerifyConfig(expected=[{"dataset": "val", "metric": "AP", **form}])
    with pytest.raises(VerificationError) as error:
        require(verify(scores, config, baseline_scores=runs))
    assert says in str(error.value)


def test_nothing_expected_is_an_empty_verdict_and_said(scores, caplog):
    caplog.set_level("INFO")
    verdict = verify(scores, VerifyConfig())
    assert verdict.empty and list(verdict.columns) == list(VERDICT.columns)
    assert "nothing is verified" in caplog.text
    require(verdict)


def test_every_expectation_on_the_page_is_understood(project_root):
    page = (project_root / "docs/verify.md").read_text("utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    config = VerifyConfig.model_validate(yaml.safe_load(block)["verify"])
    assert [e.metric for e in config.expected] == ["AP", "AP50", "AP", "ECE", "AR100", "AP", "AP"]
