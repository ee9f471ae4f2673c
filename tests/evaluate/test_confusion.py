"""The confusion counts by hand, by a second implementation, and adds up."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from detpipe.evaluate.confusion import confusion_table

from . import coco_rule, error_rule


def counts(make, boxes, found, names=("cat", "dog"), **options):
    images = make.images(["1", "2", "3"])
    table = confusion_table(
        images, make.boxes(*boxes), make.detections(*found), make.classes(*names), **options
    )
    assert list(table.index) == list(table.columns) == [*names, "background"]
    return table.to_numpy().tolist()


A, B = (0, 0, 10, 10), (20, 0, 30, 10)


@pytest.mark.parametrize(
    "boxes, found, expected",
    [
        pytest.param(
            [("1", "cat", *A), ("1", "dog", *B)], [("1", "dog", *A, 0.9), ("1", "cat", *B, 0.9)],
            [[0, 1, 0], [1, 0, 0], [0, 0, 0]], id="swapped",
        ),
        pytest.param(
            [("1", "cat", *A)], [("1", "cat", *A, 0.9), ("1", "cat", *A, 0.8)],
            [[1, 0, 0], [0, 0, 0], [1, 0, 0]], id="duplicate",
        ),
        pytest.param([("1", "dog", *A)], [], [[0, 0, 0], [0, 0, 1], [0, 0, 0]], id="missed"),
        pytest.param(
            [("1", "cat", *A)], [("1", "dog", *B, 0.9), ("2", "cat", *A, 0.9)],
            [[0, 0, 1], [0, 0, 0], [1, 1, 0]], id="background",
        ),
    ],
)  # fmt: skip
def test_counts_by_hand(make, boxes, found, expected):
    assert counts(make, boxes, found) == expected


def test_a_box_of_the_own_class_comes_first(make):
    # The cat's detection overlaps the dog most, and is right all the same.
    boxes = [("1", "dog", 0, 0, 10, 10), ("1", "cat", 0, 0, 10, 14)]
    found = [("1", "cat", 0, 0, 10, 10, 0.9)]
    assert counts(make, boxes, found) == [[1, 0, 0], [0, 0, 1], [0, 0, 0]]


def test_the_better_detection_takes_the_box_of_another_class(make):
    found = [("1", "dog", *A, 0.5), ("1", "bird", 0, 0, 10, 9, 0.6)]
    table = counts(make, [("1", "cat", *A)], found, names=("cat", "dog", "bird"))
    assert table == [[0, 0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0]]


def test_faint_detections_do_not_count(make):
    found = [("1", "cat", *A, 0.25), ("1", "cat", *B, 0.24)]
    assert counts(make, [], found) == [[0, 0, 0], [0, 0, 0], [1, 0, 0]]
    assert counts(make, [], found, score_threshold=0.0)[2] == [2, 0, 0]
    assert counts(make, [], found, score_threshold=0.0, max_detections=1)[2] == [1, 0, 0]


def test_a_detection_on_a_crowd_does_not_count(make):
    boxes = make.boxes(("1", "cat", 0, 0, 50, 50), iscrowd=True)
    found = make.detections(("1", "cat", *A, 0.9), ("1", "dog", *A, 0.9))
    table = confusion_table(make.images(["1"]), boxes, found, make.classes("cat", "dog"))
    assert table.to_numpy().tolist() == [[0, 0, 0], [0, 0, 0], [0, 1, 0]]


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(coco_rule.truths, coco_rule.founds, coco_rule.ious, coco_rule.limits)
def test_random_sets_equal_a_second_implementation_and_add_up(make, truth, found, iou, limit):
    table = confusion_table(
        *coco_rule.tables(make, truth, found),
        iou=float(iou), score_threshold=0.0, max_detections=limit,
    )  # fmt: skip
    assert table.to_numpy().tolist() == error_rule.confusion(truth, found, iou=iou, limit=limit)
    objects = [t.label for t in truth if not t.crowd]
    counted = [c.label for c in coco_rule.counted(truth, found, iou=iou, limit=limit)]
    for name in coco_rule.CLASSES:
        assert table.loc[name].sum() == objects.count(name)
        assert table[name].sum() == counted.count(name)
    assert table.iloc[-1, -1] == 0


def test_every_box_of_real_data_counts_once(coco100):
    boxes = coco100.tables.boxes
    table = confusion_table(*coco100.tables)
    rows = table.drop("background").sum(axis=1)
    objects = boxes[~boxes["iscrowd"]]["class_name"].value_counts()
    assert rows[rows > 0].to_dict() == objects.to_dict()


def test_a_class_called_background_is_no_background(make):
    boxes = make.boxes(("1", "background", 0, 0, 10, 10))
    table = confusion_table(
        make.images(["1"]), boxes, make.detections(), make.classes("background")
    )
    assert list(table.index) == ["background", "(background)"]
    assert table.to_numpy().tolist() == [[0, 1], [0, 0]]


@pytest.mark.parametrize("ids, names", [([], []), (["1"], []), ([], ["cat"]), (["1"], ["cat"])])
def test_nothing_gives_a_table_of_zeros(make, ids, names):
    tables = make.images(ids), make.boxes(), make.detections(), make.classes(*names)
    table = confusion_table(*tables)
    assert table.shape == (len(names) + 1, len(names) + 1) and not table.to_numpy().any()
