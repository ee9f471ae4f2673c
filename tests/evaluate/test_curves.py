"""Curves and thresholds against a second implementation, by hand, and AP from the curve."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings

from detpipe.evaluate.curves import best_thresholds, curves, score, thin

from . import coco_rule

NAMES = ["", *coco_rule.CLASSES]
quick = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
NaN = float("nan")


def at(truth, found, name, *, iou, limit, threshold):
    """(precision, recall, F1) in percent of what is left of ``found`` at a threshold.

    The detections below it are taken away before they are matched.
    """
    kept = [f for f in found if Fraction(f.twelfths, 12) >= threshold]
    counted = coco_rule.counted(truth, kept, iou=iou, limit=limit)
    mine = [d.iou is not None for d in counted if name in ("", d.label)]
    objects = sum(not t.crowd and name in ("", t.label) for t in truth)
    right = sum(mine)
    precision = Fraction(right, len(mine)) if mine else Fraction(0)
    if not objects:
        return 100 * precision, None, None
    recall = Fraction(right, objects)
    both = precision + recall
    return 100 * precision, 100 * recall, 200 * precision * recall / both if both else Fraction(0)


def same(ours, theirs) -> bool:
    """Equal numbers; NaN is None."""
    return list(ours) == [
        pytest.approx(NaN if v is None else float(v), nan_ok=True, abs=1e-9) for v in theirs
    ]


@quick
@given(coco_rule.truths, coco_rule.founds, coco_rule.ious, coco_rule.limits)
def test_curves_equal_a_filter_at_every_threshold(make, truth, found, iou, limit):
    options = {"iou": iou, "limit": limit}
    got = curves(*coco_rule.tables(make, truth, found), iou=float(iou), max_detections=limit)
    assert list(got) == ["class_name", "score", "precision", "recall", "f1"]
    expected = [
        (name, float(threshold), *at(truth, found, name, **options, threshold=threshold))
        for name in NAMES
        for threshold in sorted(
            {
                d.score for d in coco_rule.counted(truth, found, **options)
                if name in ("", d.label)
            },
            reverse=True,
        )
    ]  # fmt: skip
    assert len(got) == len(expected)
    for row, (name, threshold, *numbers) in zip(got.values.tolist(), expected, strict=True):
        assert row[:2] == [name, threshold]
        assert same(row[2:], numbers)


@quick
@given(coco_rule.truths, coco_rule.founds, coco_rule.ious, coco_rule.limits)
def test_best_thresholds_are_the_highest_of_the_best_f1(make, truth, found, iou, limit):
    options = {"iou": iou, "limit": limit}
    got = best_thresholds(
        *coco_rule.tables(make, truth, found), dataset="val", iou=float(iou), max_detections=limit
    )
    assert got["class_name"].tolist() == NAMES and set(got["dataset"]) == {"val"}
    for name, row in zip(NAMES, got.drop(columns=["dataset", "class_name"]).values, strict=True):
        best = (Fraction(0), None, (Fraction(0),) * 3)
        for twelfths in range(12, -1, -1):
            threshold = Fraction(twelfths, 12)
            numbers = at(truth, found, name, **options, threshold=threshold)
            if numbers[2] is None:
                best = (0, None, (None,) * 3)
            elif numbers[2] > best[0]:
                best = (numbers[2], threshold, numbers)
        assert same(row, (best[1], *best[2]))


@quick
@given(coco_rule.truths, coco_rule.founds, coco_rule.ious, coco_rule.limits)
def test_scores_at_a_fixed_threshold(make, truth, found, iou, limit):
    got = score(
        *coco_rule.tables(make, truth, found), dataset="val", iou=float(iou),
        max_detections=limit, score_threshold=0.5,
    )  # fmt: skip
    for name in NAMES:
        precision, recall, f1 = at(
            truth, found, name, iou=iou, limit=limit, threshold=Fraction(1, 2)
        )
        numbers = (None,) * 3 if f1 is None else (f1, precision, recall)
        assert same(got.loc[got["class_name"] == name, "value"], (*numbers, Fraction(1, 2)))


@pytest.mark.parametrize("limit", [3, 100])
def test_ap50_of_pycocotools_comes_out_of_the_curve(coco100, referee, limit):
    images, boxes, detections, classes = coco100.tables
    # A curve keeps equal scores together, which pycocotools ranks: here none are equal.
    ranks = detections["score"].rank(method="first").to_numpy() / len(detections)
    found = [
        {**f, "score": s}
        for f, s in zip(json.loads(coco100.found_file.read_text()), ranks.tolist(), strict=True)
    ]
    got = curves(
        images, boxes, detections.assign(score=ranks), classes, iou=0.5, max_detections=limit
    )
    points = []
    for name, objects in boxes.loc[~boxes["iscrowd"], "class_name"].value_counts().items():
        steps = got[got["class_name"] == name]
        recall = (steps["recall"] * objects / 100).round().to_numpy() / objects
        precision = steps["precision"].to_numpy() / 100
        points.append([precision[recall >= r].max(initial=0.0) for r in np.linspace(0, 1, 101)])
    expected = referee(coco100.truth, found, limits=[1, limit]).summary["AP50"]
    assert np.mean(points) == pytest.approx(expected, abs=1e-12)


@pytest.fixture
def four(make):
    """Two objects of a; right at 0.9 and 0.6, wrong at 0.8 and 0.6. One of b, not found."""
    return make.tables(
        make.images(["1", "2"]),
        make.boxes(("1", "a", 0, 0, 9, 9), ("2", "a", 0, 0, 9, 9), ("2", "b", 50, 50, 60, 60)),
        make.detections(
            ("1", "a", 0, 0, 9, 9, 0.9), ("1", "a", 20, 0, 29, 9, 0.8),
            ("2", "a", 0, 0, 9, 9, 0.6), ("2", "a", 20, 0, 29, 9, 0.6),
            ("1", "c", 0, 0, 9, 9, 0.1),
        ),
        make.classes("a", "b", "c"),
    )  # fmt: skip


def test_by_hand(four):
    table = best_thresholds(*four, dataset="val", iou=0.5, max_detections=100).set_index(
        "class_name"
    )
    # a: F1 2/3 at 0.9 (1 right of 1, 2 objects) and at 0.6 (2 right of 4): the higher.
    assert table.loc["a"].tolist() == ["val", 0.9, 100, 50, pytest.approx(200 / 3)]
    # all: 2 right of 4, 3 objects, at 0.6 beat 1 right of 1 at 0.9: 4/7 > 2/4.
    assert table.loc[""].tolist()[1:] == pytest.approx([0.6, 50, 200 / 3, 400 / 7])
    # b has truth and is never found; c is found and has no truth.
    assert table.loc["b"].iloc[2:].tolist() == [0, 0, 0] and math.isnan(table.loc["b"].iloc[1])
    assert table.loc["c"].iloc[1:].isna().all()


def test_rows_of_the_metric(four):
    rows = score(*four, dataset="val", iou=0.75)
    assert rows["class_name"].tolist() == [name for name in ("", "a", "b", "c") for _ in range(4)]
    assert rows["metric"].tolist()[:4] == [
        "F1_75", "precision_75", "recall_75", "score_threshold_75",
    ]  # fmt: skip
    assert set(rows["dataset"]) == {"val"} and set(rows["task"]) == {"bbox"}
    assert rows["value"].tolist()[4:8] == [pytest.approx(200 / 3), 100, 50, 0.9]
    assert len(score(*four, dataset="val", per_class=False)) == 4
    assert score(*four, dataset="val")["metric"].tolist()[0] == "F1"


def test_the_worst_kinds_of_nothing(make, four, caplog):
    images, boxes, detections, classes = four
    unfound = score(images, boxes, detections.iloc[:0], classes, dataset="val")
    assert unfound["value"].tolist()[:3] == [0, 0, 0] and math.isnan(unfound["value"][3])
    assert not caplog.records
    assert curves(images, boxes, detections.iloc[:0], classes, iou=0.5, max_detections=9).empty
    untrue = score(images, boxes.iloc[:0], detections, classes, dataset="val")
    assert len(untrue) == 16 and untrue["value"].isna().all()
    assert "data set 'val': no ground truth, so there is no F1" in caplog.text
    crowds = boxes.assign(iscrowd=True)
    assert score(images, crowds, detections, classes, dataset="val")["value"].isna().all()
    for threshold in ("best_f1", 0.5):
        bare = score(*(t.iloc[:0] for t in four), dataset="val", score_threshold=threshold)
        assert bare["metric"].tolist() == ["F1", "precision", "recall", "score_threshold"]


def test_a_thin_curve_keeps_ends_and_best(coco100):
    whole = curves(*coco100.tables, iou=0.5, max_detections=100)
    few = thin(whole, 20)
    assert len(few.merge(whole)) == len(few)  # nothing that is not there
    best = best_thresholds(*coco100.tables, dataset="", iou=0.5, max_detections=100)
    best = best.set_index("class_name")["score_threshold"]
    assert set(few["class_name"]) == set(whole["class_name"])
    for name, steps in whole.groupby("class_name"):
        mine = few.loc[few["class_name"] == name, "score"].tolist()
        assert mine[0] == steps["score"].max() and mine[-1] == steps["score"].min()
        assert len(mine) == len(steps) if len(steps) <= 20 else 20 <= len(mine) <= 21
        assert math.isnan(best[name]) or best[name] in mine
        gaps = np.diff(np.flatnonzero(steps["score"].isin(mine)))
        assert len(steps) <= 20 or gaps.max() <= math.ceil(len(steps) / 19)
    assert thin(whole.iloc[:0], 20).empty


def test_a_thin_curve_keeps_the_first_step_after_a_class_of_one():
    """The first step of b, where nothing is right, is neither its best nor its last."""
    whole = pd.DataFrame(
        {
            "class_name": ["a", "b", "b", "b"], "score": [0.5, 0.9, 0.8, 0.7],
            "precision": [100.0, 0, 50, 40], "recall": [100.0, 0, 50, 60], "f1": [100.0, 0, 50, 48],
        }
    )  # fmt: skip
    assert thin(whole, 2).equals(whole)
    assert thin(whole.assign(f1=NaN), 2)["score"].tolist() == [0.5, 0.9, 0.7]
