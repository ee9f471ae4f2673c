"""Expectations: what is missed, missing or no number is a row with its reason."""

from __future__ import annotations

import math

import pytest

from detpipe.core.errors import VerificationError
from detpipe.core.tables import SCORES, VERDICT
from detpipe.evaluate.config import VerifyConfig
from detpipe.evaluate.verify import require, verify

NAN = float("nan")


@pytest.fixture
def scores():
    rows = [
        ("val", "bbox", "AP", "", 38.7), ("val", "bbox", "AP50", "", 60.0),
        ("val", "bbox", "APs", "", NAN), ("val", "bbox", "AP", "traffic-light", 20.0),
        ("test", "bbox", "AP", "", 30.0),
    ]  # fmt: skip
    return SCORES.make([dict(zip(SCORES.columns, row, strict=True)) for row in rows])


def judged(scores, **expectation):
    expectation = {"dataset": "val", "metric": "AP", "value": 38.5, "tolerance": 0.2, **expectation}
    verdict = verify(scores, VerifyConfig(expected=[expectation]))
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
    assert "8.7 above" in judged(scores, value=30)["reason"]
    assert "11.3 below" in judged(scores, value=50)["reason"]


@pytest.mark.parametrize(
    "wrong, says",
    [
        ({"dataset": "tset"}, ["no data set 'tset'", "did you mean 'test'?", "'val', 'test'"]),
        ({"task": "segm"}, ["no task 'segm'", "'bbox'"]),
        ({"metric": "mAP"}, ["no metric 'mAP'", "did you mean 'AP'?", "'AP50'"]),
        ({"class_name": "trafic-light"}, ["no class", "did you mean 'traffic-light'?"]),
        ({"dataset": "test", "class_name": "x"}, ["no class 'x'", "there is none"]),
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
    assert "expected 50 ± 0.1, got 30.0000" in lines[0] and "AP99" in lines[1]


def test_nothing_expected_is_an_empty_verdict_and_said(scores, caplog):
    caplog.set_level("INFO")
    verdict = verify(scores, VerifyConfig())
    assert verdict.empty and list(verdict.columns) == list(VERDICT.columns)
    assert "nothing is verified" in caplog.text
    require(verdict)
