"""Calibration errors by hand, against a second implementation and against hotcoco's."""

from __future__ import annotations

import math
from fractions import Fraction

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings

from detpipe.core.errors import ConfigError
from detpipe.evaluate.calibration import calibration, score
from detpipe.evaluate.coco import evaluator

from . import coco_rule

NaN = float("nan")


def numbers(rows) -> dict[str, dict[str, float]]:
    """class_name → metric → value."""
    return {n: dict(zip(g["metric"], g["value"], strict=True))
            for n, g in rows.groupby("class_name")}  # fmt: skip


@pytest.fixture
def lamps(make):
    """Class a: 0.9 right (IoU 1), 0.8 right (IoU 0.6), 0.9 wrong, 0.3 wrong. Class b: 0.3 right."""
    return make.tables(
        make.images(["1", "2"]),
        make.boxes(
            ("1", "a", 0, 0, 10, 10), ("2", "a", 0, 0, 10, 10), ("2", "b", 50, 50, 60, 60),
        ),
        make.detections(
            ("1", "a", 0, 0, 10, 10, 0.9), ("2", "a", 0, 0, 10, 6, 0.8),
            ("1", "a", 50, 0, 60, 10, 0.9), ("2", "a", 50, 0, 60, 10, 0.3),
            ("2", "b", 50, 50, 60, 60, 0.3),
        ),
        make.classes("a", "b", "c"),
    )  # fmt: skip


def test_bins_by_hand(lamps):
    got = calibration(*lamps, dataset="val", bins=2, iou=0.5, max_detections=100)
    assert got["class_name"].tolist() == ["", "", "a", "a", "b", "b", "c", "c"]
    assert set(got["dataset"]) == {"val"}
    columns = ["lower", "upper", "detections", "confidence", "precision", "mean_iou"]
    assert list(got) == ["dataset", "class_name", *columns]
    expected = [
        [0.0, 0.5, 2, 30, 50, 100], [0.5, 1.0, 3, 260 / 3, 200 / 3, 80],
        [0.0, 0.5, 1, 30, 0, NaN], [0.5, 1.0, 3, 260 / 3, 200 / 3, 80],
        [0.0, 0.5, 1, 30, 100, 100], [0.5, 1.0, 0, NaN, NaN, NaN],
        [0.0, 0.5, 0, NaN, NaN, NaN], [0.5, 1.0, 0, NaN, NaN, NaN],
    ]  # fmt: skip
    for row, numbers_ in zip(got[columns].values.tolist(), expected, strict=True):
        assert row == pytest.approx(numbers_, nan_ok=True)


def test_errors_by_hand(lamps):
    got = numbers(score(*lamps, dataset="val", bins=2))
    # Gaps of all: 20 for 2 detections, 20 for 3. Of a: 30 for 1, 20 for 3; its precision × IoU is
    # 2/3 × 80, a gap of 33.3 for 3. Of b: 70, with precision × IoU of 100 too.
    laece = {"a": (30 + 3 * (260 / 3 - 160 / 3)) / 4, "b": 70}
    assert got[""] == pytest.approx({"ECE": 20, "MCE": 20, "LaECE": (laece["a"] + 70) / 2})
    assert got["a"] == pytest.approx({"ECE": 22.5, "MCE": 30, "LaECE": laece["a"]})
    assert got["b"] == pytest.approx({"ECE": 70, "MCE": 70, "LaECE": 70})
    assert all(math.isnan(value) for value in got["c"].values())


def test_laece_of_all_is_the_mean_of_the_classes_however_large(make):
    """Three of a at 1.0, one of b at 0.7, one of c at 0.1; all right, with an IoU of 1."""
    found = [("a", 0, 1.0), ("a", 20, 1.0), ("a", 40, 1.0), ("b", 60, 0.7), ("c", 80, 0.1)]
    places = [("1", name, x, 0, x + 10, 10) for name, x, _ in found]
    tables = make.tables(
        make.images(["1"]), make.boxes(*places),
        make.detections(*((*p, s) for p, (*_, s) in zip(places, found, strict=True))),
        make.classes("a", "b", "c"),
    )  # fmt: skip
    got = numbers(score(*tables, dataset="val"))
    assert [got[name]["LaECE"] for name in "abc"] == pytest.approx([0, 30, 90])
    assert got[""] == pytest.approx({"ECE": 24, "MCE": 90, "LaECE": 40})


def test_rows_of_the_metric(lamps):
    rows = score(*lamps, dataset="val", iou=0.75)
    assert rows["class_name"].tolist() == [name for name in ("", "a", "b", "c") for _ in range(3)]
    assert rows["metric"].tolist() == ["ECE_75", "MCE_75", "LaECE_75"] * 4
    assert set(rows["dataset"]) == {"val"} and set(rows["task"]) == {"bbox"}
    assert len(score(*lamps, dataset="val", per_class=False)) == 3


def paper(counted, objects, name, *, bins):
    """(ECE, MCE, LaECE) in percent of one class or of all pooled, as the papers write them."""
    mine = [d for d in counted if name in ("", d.label)]
    if not mine:
        return None, None, None
    ece, mce, laece = Fraction(0), Fraction(0), Fraction(0)
    for m in range(1, bins + 1):
        low, high = Fraction(m - 1, bins), Fraction(m, bins)
        bin_ = [d for d in mine if low < d.score <= high or (m == 1 and d.score == 0)]
        if not bin_:
            continue
        confidence = sum(d.score for d in bin_) / len(bin_)
        right = [d.iou for d in bin_ if d.iou is not None]
        precision = Fraction(len(right), len(bin_))
        mean_iou = sum(right) / len(right) if right else Fraction(0)
        weight = Fraction(len(bin_), len(mine))
        ece += weight * abs(confidence - precision)
        mce = max(mce, abs(confidence - precision))
        laece += weight * abs(confidence - precision * mean_iou)
    return 100 * ece, 100 * mce, 100 * laece if objects else None


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(coco_rule.truths, coco_rule.founds, coco_rule.ious, coco_rule.limits)
def test_errors_equal_the_papers(make, truth, found, iou, limit):
    """6 bins: half of the scores lie on an edge; crowds, limits, classes without truth."""
    got = numbers(
        score(
            *coco_rule.tables(make, truth, found), dataset="val", bins=6, iou=float(iou),
            max_detections=limit,
        )
    )  # fmt: skip
    counted = coco_rule.counted(truth, found, iou=iou, limit=limit)
    by_class = []
    for name in coco_rule.CLASSES:
        objects = sum(not t.crowd and t.label == name for t in truth)
        expected = paper(counted, objects, name, bins=6)
        by_class.append(expected[2])
        assert list(got[name].values()) == [close(value) for value in expected]
    there = [value for value in by_class if value is not None]
    mean = sum(there) / len(there) if there else None
    expected = (*paper(counted, 1, "", bins=6)[:2], mean)
    assert list(got[""].values()) == [close(value) for value in expected]


def close(value):
    return pytest.approx(NaN if value is None else float(value), nan_ok=True, abs=1e-9)


@pytest.mark.parametrize(("iou", "limit", "bins"), [(0.5, 100, 10), (0.75, 100, 7), (0.5, 2, 25)])
def test_real_data_equals_hotcoco(coco100, iou, limit, bins):
    images, boxes, detections, classes = coco100.tables
    # Its bins hold their lower edge, Guo's their upper: no score may lie on one.
    inside = detections.assign(score=detections["score"].clip(0.002, 0.998) + 0.0001)
    engine = evaluator(images, boxes, inside, classes, limits=[limit])
    engine.params.iou_thrs = [iou]
    engine.evaluate()
    theirs = engine.calibration(n_bins=bins, iou_threshold=iou)
    tables = (images, boxes, inside, classes)
    metric = score(*tables, dataset="val", bins=bins, iou=iou, max_detections=limit)
    suffix = "" if iou == 0.5 else "_75"
    ours = numbers(metric)
    assert ours[""]["ECE" + suffix] == pytest.approx(100 * theirs["ece"])
    assert ours[""]["MCE" + suffix] == pytest.approx(100 * theirs["mce"])
    by_class = {n: v["ECE" + suffix] for n, v in ours.items() if n}
    by_class = {n: ece for n, ece in by_class.items() if not math.isnan(ece)}
    assert by_class == pytest.approx({n: 100 * v for n, v in theirs["per_category"].items()})
    got = calibration(*tables, dataset="val", bins=bins, iou=iou, max_detections=limit)
    assert got["detections"][:bins].tolist() == [b["count"] for b in theirs["bins"]]
    for row, theirs_bin in zip(got[:bins].to_dict("records"), theirs["bins"], strict=True):
        if row["detections"]:
            assert row["confidence"] == pytest.approx(100 * theirs_bin["avg_confidence"])
            assert row["precision"] == pytest.approx(100 * theirs_bin["avg_accuracy"])


def test_a_score_on_an_edge_belongs_below_it(make):
    tables = make.tables(
        make.images(["1"]), make.boxes(),
        make.detections(*(("1", "a", 0, 0, 9, 9, k / 10) for k in range(11))), make.classes("a"),
    )  # fmt: skip
    got = calibration(*tables, dataset="val", bins=10, iou=0.5, max_detections=100)
    assert got["detections"].tolist() == [2, *[1] * 9] * 2
    assert got["upper"].tolist()[:10] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]


def test_a_detection_on_a_crowd_does_not_count(lamps):
    images, boxes, detections, classes = lamps
    crowd = boxes.iloc[[0]].assign(x1=50.0, x2=60.0, iscrowd=True)
    boxes = pd.concat([boxes, crowd], ignore_index=True)
    got = calibration(images, boxes, detections, classes, dataset="", bins=1, iou=0.5,
                      max_detections=100)  # fmt: skip
    assert got["detections"].tolist() == [4, 3, 1, 0]


def test_scores_that_are_probabilities_are_calibrated(make):
    """Of ten detections of 0.7 seven are right."""
    spots = [(20 * n, 0, 20 * n + 10, 10) for n in range(10)]
    tables = make.tables(
        make.images(["1"]), make.boxes(*(("1", "a", *spot) for spot in spots[:7])),
        make.detections(*(("1", "a", *spot, 0.7) for spot in spots)), make.classes("a"),
    )  # fmt: skip
    got = numbers(score(*tables, dataset="val"))
    assert got[""] == pytest.approx({"ECE": 0, "MCE": 0, "LaECE": 0}, abs=1e-9)


def test_nothing_found_is_no_number(lamps, caplog):
    images, boxes, detections, classes = lamps
    rows = score(images, boxes, detections.iloc[:0], classes, dataset="val")
    assert len(rows) == 12 and rows["value"].isna().all()
    assert "data set 'val': no detections, so there is no calibration" in caplog.text
    bare = score(*(t.iloc[:0] for t in lamps), dataset="val")
    assert bare["metric"].tolist() == ["ECE", "MCE", "LaECE"] and bare["value"].isna().all()


def test_without_truth_every_detection_is_wrong(lamps):
    images, boxes, detections, classes = lamps
    got = numbers(score(images, boxes.iloc[:0], detections, classes, dataset="val", bins=1))
    assert got[""]["ECE"] == pytest.approx(64) == got[""]["MCE"]  # the mean score
    assert math.isnan(got[""]["LaECE"]) and math.isnan(got["a"]["LaECE"])


def test_a_count_of_bins_below_one_is_refused(lamps):
    with pytest.raises(ConfigError, match="bins must be 1 or more, got 0"):
        score(*lamps, dataset="val", bins=0)
