"""Each image's numbers, and which is the worst."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from detpipe.evaluate import coco
from detpipe.evaluate.confusion import confusion_table
from detpipe.evaluate.per_image import per_image

from . import coco_rule

COUNTS = ["objects", "detections", "right", "wrong", "missed"]


@pytest.fixture
def four(make):
    """Four images: all found, one of two found, wrong and missed, nothing there."""
    return make.tables(
        make.images(["good", "half", "bad", "empty"]),
        make.boxes(
            ("good", "cat", 0, 0, 50, 50), ("half", "cat", 0, 0, 50, 50),
            ("half", "dog", 60, 0, 99, 50), ("bad", "cat", 0, 0, 50, 50),
        ),
        make.detections(
            ("good", "cat", 0, 0, 50, 50, 0.9), ("half", "cat", 0, 0, 50, 50, 0.9),
            ("bad", "dog", 0, 0, 50, 50, 0.9), ("good", "dog", 0, 0, 9, 9, 0.29),
        ),
        make.classes("cat", "dog"),
    )  # fmt: skip


def test_counts_by_hand(four):
    table = per_image(*four, dataset="test")
    assert table.columns.tolist() == [
        "dataset", "image_id", "path", *COUNTS, "precision", "recall", "f1", "AP50",
    ]  # fmt: skip
    assert table["image_id"].tolist() == ["bad", "half", "empty", "good"]
    assert table[COUNTS].to_numpy().tolist() == [
        [1, 1, 0, 1, 1], [2, 1, 1, 0, 1], [0, 0, 0, 0, 0], [1, 1, 1, 0, 0]
    ]  # fmt: skip
    nan = pytest.approx([0, 100, np.nan, 100], nan_ok=True)
    assert table["precision"].tolist() == nan
    assert table["recall"].tolist() == pytest.approx([0, 50, np.nan, 100], nan_ok=True)
    assert table["f1"].tolist() == pytest.approx([0, 200 / 3, 100, 100])
    assert table["AP50"].tolist() == pytest.approx([0, 50, np.nan, 100], nan_ok=True)
    assert table["path"].tolist() == ["bad.jpg", "half.jpg", "empty.jpg", "good.jpg"]
    assert set(table["dataset"]) == {"test"}


def test_the_threshold_is_for_all_but_ap(four):
    faint = per_image(*four, dataset="test", score_threshold=0.29).set_index("image_id")
    assert faint.loc["good", "f1"] == pytest.approx(200 / 3)
    strict = per_image(*four, dataset="test", score_threshold=0.95).set_index("image_id")
    assert strict.loc["good", "f1"] == 0 and strict.loc["good", "AP50"] == pytest.approx(100)


def test_ap50_is_at_half_whatever_the_iou(make):
    tables = (
        make.images(["1"]), make.boxes(("1", "cat", 0, 0, 10, 10)),
        make.detections(("1", "cat", 0, 0, 10, 7, 0.9)), make.classes("cat"),
    )  # fmt: skip
    table = per_image(*tables, dataset="test", iou=0.75)
    assert table[["right", "f1"]].iloc[0].tolist() == [0, 0]
    assert table["AP50"].tolist() == pytest.approx([100])


def test_of_equal_f1_more_mistakes_are_worse(make):
    boxes = make.boxes(("1", "cat", 0, 0, 9, 9), *[("2", "cat", x, 0, x + 9, 9) for x in (0, 20)])
    table = per_image(
        make.images(["1", "2"]), boxes, make.detections(), make.classes("cat"), dataset="test"
    )
    assert table["image_id"].tolist() == ["2", "1"] and table["f1"].tolist() == [0, 0]


@pytest.mark.parametrize("names", [("cat",), ()])
def test_without_anything_all_is_well(make, names):
    images, classes = make.images(["1", "2"]), make.classes(*names)
    table = per_image(images, make.boxes(), make.detections(), classes, dataset="test")
    assert table["f1"].tolist() == [100, 100] and table["AP50"].isna().all()
    none = per_image(images.iloc[:0], make.boxes(), make.detections(), classes, dataset="test")
    assert none.empty and none.columns.tolist() == table.columns.tolist()


def test_crowds_do_not_count(make):
    boxes = make.boxes(("1", "cat", 0, 0, 50, 50), iscrowd=True)
    found = make.detections(("1", "cat", 0, 0, 40, 40, 0.9))
    table = per_image(make.images(["1"]), boxes, found, make.classes("cat"), dataset="test")
    assert table[[*COUNTS, "f1"]].iloc[0].tolist() == [0, 0, 0, 0, 0, 100]


def test_a_detection_on_a_crowd_does_not_lower_ap(make):
    boxes = make.boxes(
        ("1", "cat", 0, 0, 50, 50), ("1", "cat", 60, 0, 90, 50), iscrowd=[True, False]
    )
    found = make.detections(("1", "cat", 0, 0, 40, 40, 0.9), ("1", "cat", 60, 0, 90, 50, 0.8))
    table = per_image(make.images(["1"]), boxes, found, make.classes("cat"), dataset="test")
    assert table[["precision", "AP50"]].iloc[0].tolist() == pytest.approx([100, 100])


def test_real_data_adds_up(coco100):
    images, boxes, *_ = coco100.tables
    table = per_image(*coco100.tables, dataset="test", score_threshold=0.25)
    assert sorted(table["image_id"]) == sorted(images["image_id"])
    assert table["f1"].is_monotonic_increasing
    assert (table["right"] + table["missed"]).sum() == (~boxes["iscrowd"]).sum()
    confusion = confusion_table(*coco100.tables).to_numpy()
    assert table["right"].sum() == np.trace(confusion)
    assert table["detections"].sum() == confusion[:, :-1].sum()


def test_ap50_of_an_image_is_that_of_a_set_of_this_image(coco100):
    images, boxes, detections, classes = coco100.tables
    table = per_image(*coco100.tables, dataset="test").set_index("image_id")
    for image_id in images["image_id"].iloc[::4]:
        alone = (t[t["image_id"] == image_id] for t in (images, boxes, detections))
        scores = coco.score(*alone, classes, dataset="test", per_class=False)
        expected = scores.set_index("metric").loc["AP50", "value"]
        assert table.loc[image_id, "AP50"] == pytest.approx(expected, nan_ok=True)
    assert table["AP50"].nunique() > 20


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(coco_rule.truths, coco_rule.founds, coco_rule.ious, coco_rule.limits)
def test_random_sets_equal_a_second_implementation(make, truth, found, iou, limit):
    table = per_image(
        *coco_rule.tables(make, truth, found), dataset="test",
        iou=float(iou), score_threshold=0.5, max_detections=limit,
    ).set_index("image_id")  # fmt: skip
    outcomes = coco_rule.match(truth, found, iou=iou, limit=limit)
    for image in coco_rule.IMAGES:
        mine = [
            "right" if isinstance(outcome, tuple) else outcome
            for n, outcome in outcomes.items()
            if found[n].image == image and found[n].twelfths >= 6
        ]
        objects = sum(t.image == image and not t.crowd for t in truth)
        right, wrong = mine.count("right"), mine.count("wrong")
        expected = [objects, right + wrong, right, wrong, objects - right]
        assert table.loc[image, COUNTS].tolist() == expected
