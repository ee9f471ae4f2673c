"""COCO's numbers: equal to pycocotools bit for bit, and right where pycocotools is not."""

from __future__ import annotations

import json
import math

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings

from detpipe.core.tables import BOXES
from detpipe.evaluate import coco

SUMMARY = ["AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl"]


def summary(scores: pd.DataFrame) -> dict[str, float]:
    whole = scores[scores["class_name"] == ""]
    return dict(zip(whole["metric"], whole["value"], strict=True))


def by_class(scores: pd.DataFrame, metric: str = "AP") -> dict[str, float]:
    rows = scores[(scores["class_name"] != "") & (scores["metric"] == metric)]
    return dict(zip(rows["class_name"], rows["value"], strict=True))


def percent(values: dict[str, float]) -> dict[str, float]:
    return {name: 100 * value for name, value in values.items()}


def same(ours: dict[str, float], theirs: dict[str, float]) -> bool:
    """Equal bit for bit, NaN equal to NaN, in the same order."""
    return list(ours) == list(theirs) and np.array_equal(
        list(ours.values()), list(theirs.values()), equal_nan=True
    )


def test_published_numbers_of_cocoapi_to_the_last_bit(coco100):
    scores = coco.score(*coco100.tables, dataset="test")
    assert summary(scores) == percent(coco100.published)
    assert list(summary(scores)) == SUMMARY
    assert set(scores["dataset"]) == {"test"} and set(scores["task"]) == {"bbox"}


@pytest.mark.parametrize("limit", [1, 3, 10, 20, 100, 300])
def test_real_data_equals_pycocotools_at_every_limit_and_by_class(coco100, referee, limit):
    found = json.loads(coco100.found_file.read_text())
    limits = sorted({1, min(10, limit), limit})
    expected = referee(coco100.truth, found, limits=limits)
    scores = coco.score(*coco100.tables, dataset="test", max_detections=limit)
    assert same(summary(scores), percent(expected.summary))
    named = {coco100.names[number]: 100 * v for number, v in expected.by_class.items()}
    assert same(by_class(scores), named)
    assert by_class(scores)["hair drier"] != by_class(scores)["hair drier"]  # no truth: NaN


corner = st.integers(0, 12)
side = st.integers(1, 12)
a_box = st.tuples(corner, corner, side, side)
area = st.sampled_from([100.0, 1023.5, 1024.0, 5000.0, 9216.0, 9217.0])
image = st.sampled_from([0, 7, 10, 2, 139])
category = st.integers(1, 3)
truths = st.lists(st.tuples(image, category, a_box, area, st.booleans()), min_size=1, max_size=14)
founds = st.lists(st.tuples(image, category, a_box, st.integers(0, 5)), max_size=30)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(truth=truths, found=founds, limit=st.sampled_from([1, 2, 5, 100]))
def test_random_sets_equal_pycocotools_bit_for_bit(make, referee, truth, found, limit):
    """Crowds, ties, borders of sizes, empty images and classes, image id 0, limits."""
    names = {1: "a", 2: "b-c", 3: "d"}
    ids = [139, 0, 10, 7, 2]  # the referee sorts them; so must we
    boxes = make.boxes(
        *((str(i), names[c], x, y, x + w, y + h) for i, c, (x, y, w, h), *_ in truth),
        area=[a for *_, a, _ in truth],
        iscrowd=[crowd for *_, crowd in truth],
    )
    detections = make.detections(
        *((str(i), names[c], x, y, x + w, y + h, s / 5) for i, c, (x, y, w, h), s in found)
    )
    scores = coco.score(
        make.images([str(i) for i in ids]), boxes, detections, make.classes(*names.values()),
        dataset="test", max_detections=limit,
    )  # fmt: skip
    expected = referee(
        {
            "images": [{"id": i, "width": 200, "height": 100} for i in ids],
            "categories": [{"id": c, "name": n} for c, n in names.items()],
            "annotations": [
                {
                    "id": n, "image_id": i, "category_id": c, "bbox": list(box), "area": a,
                    "iscrowd": int(crowd),
                }
                for n, (i, c, box, a, crowd) in enumerate(truth, start=1)
            ],
        },
        [
            {"image_id": i, "category_id": c, "bbox": list(box), "score": s / 5}
            for i, c, box, s in found
        ],
        limits=sorted({1, min(10, limit), limit}),
    )  # fmt: skip
    assert same(summary(scores), percent(expected.summary))
    assert same(by_class(scores), {names[k]: 100 * v for k, v in expected.by_class.items()})


def test_one_box_example_of_torchmetrics(make):
    scores = coco.score(
        make.images(["x"], 640, 480), make.boxes(("x", "a", 214, 41, 562, 285)),
        make.detections(("x", "a", 258, 41, 606, 285, 0.536)), make.classes("a"), dataset="test",
    )  # fmt: skip
    values = summary(scores)
    assert [values[n] for n in ("AP50", "AP75")] == pytest.approx([100] * 2)
    assert [values[n] for n in ("AP", "APl", "AR1", "AR10", "AR100")] == pytest.approx([60] * 5)
    assert math.isnan(values["APs"]) and math.isnan(values["APm"])


def test_truth_as_predictions_scores_100(coco100):
    images, boxes, _, classes = coco100.tables
    alone = boxes[~boxes["iscrowd"]]
    scores = coco.score(images, boxes, alone.assign(score=1.0), classes, dataset="test")
    assert summary(scores)["AP"] == pytest.approx(100) == summary(scores)["AR100"]
    present = set(alone["class_name"])
    assert {n for n, v in by_class(scores).items() if v == pytest.approx(100)} == present


def test_no_detections_are_zero_not_an_error(make, coco100):
    images, boxes, detections, classes = coco100.tables
    scores = coco.score(images, boxes, detections.iloc[:0], classes, dataset="test")
    assert summary(scores) == dict.fromkeys(SUMMARY, 0.0)
    assert set(by_class(scores).values()) - {0.0} != set()  # NaN where there is no truth
    assert by_class(scores)["person"] == 0.0


@pytest.mark.parametrize("crowd", [False, True], ids=["no boxes", "only crowds"])
def test_no_ground_truth_is_nan_and_said(make, caplog, crowd):
    boxes = make.boxes(("1", "a", 0, 0, 9, 9), iscrowd=True) if crowd else BOXES.empty()
    scores = coco.score(
        make.images(["1"]), boxes, make.detections(("1", "a", 0, 0, 9, 9, 0.5)),
        make.classes("a", "b"), dataset="val",
    )  # fmt: skip
    assert list(summary(scores)) == SUMMARY and scores["value"].isna().all()
    assert list(by_class(scores)) == ["a", "b"]
    assert "'val': no ground truth" in caplog.text


def test_class_without_ground_truth_is_nan_and_not_in_the_mean(make):
    boxes = make.boxes(("1", "a", 0, 0, 50, 50))
    detections = make.detections(("1", "a", 0, 0, 50, 50, 0.9), ("1", "b", 0, 0, 50, 50, 0.8))
    scores = coco.score(
        make.images(["1"]), boxes, detections, make.classes("a", "b"), dataset="test"
    )
    assert summary(scores)["AP"] == pytest.approx(100)
    assert by_class(scores)["a"] == pytest.approx(100) and math.isnan(by_class(scores)["b"])


@pytest.mark.parametrize("ids", [["0", "1"], ["0", "0"], ["1", "1"], ["", ""], ["é", "猫"]])
def test_annotation_ids_do_not_matter(make, ids):
    boxes = make.boxes(("0", "a", 0, 0, 50, 50), ("1", "a", 9, 9, 40, 40)).assign(annotation_id=ids)
    detections = boxes.assign(score=0.9)
    scores = coco.score(
        make.images(["0", "1"]), boxes, detections, make.classes("a"), dataset="test"
    )
    assert summary(scores)["AP"] == pytest.approx(100)


def test_more_than_100_objects_in_an_image(make):
    grid = [("1", "a", 10 * (i % 15), 10 * (i // 15), 10 * (i % 15) + 8, 10 * (i // 15) + 8)
            for i in range(150)]  # fmt: skip
    boxes = make.boxes(*grid)
    tables = make.tables(make.images(["1"]), boxes, boxes.assign(score=0.5), make.classes("a"))
    at = {n: summary(coco.score(*tables, dataset="test", max_detections=n)) for n in (100, 150)}
    assert at[100]["AP"] == pytest.approx(66.3, abs=0.05)
    assert at[150]["AP"] == pytest.approx(100) == at[150]["AR150"]


def test_limits_below_ten_leave_out_what_lies_above(coco100):
    names = list(summary(coco.score(*coco100.tables, dataset="test", max_detections=5)))
    assert [n for n in names if n.startswith("AR")] == ["AR1", "AR5", "ARs", "ARm", "ARl"]


def test_result_depends_neither_on_the_order_of_images_nor_on_their_ids(coco100):
    images, boxes, detections, classes = coco100.tables
    expected = coco.score(*coco100.tables, dataset="test")
    shuffled = images.sample(frac=1, random_state=3)
    again = coco.score(shuffled, boxes, detections, classes, dataset="test")
    pd.testing.assert_frame_equal(again, expected, check_exact=True)

    def renamed(table):
        return table.assign(image_id="img-" + table["image_id"].str.zfill(12))

    again = coco.score(
        renamed(images), renamed(boxes), renamed(detections), classes, dataset="test"
    )
    pd.testing.assert_frame_equal(again, expected, check_exact=True)


def test_every_class_name_has_its_own_rows(make):
    names = ["a,b", 'say "x"', "a/b", "a-b", "a(b)", "R&D", "a b", "猫", "é"]
    boxes = make.boxes(*(("1", name, 20 * i, 0, 20 * i + 15, 15) for i, name in enumerate(names)))
    scores = coco.score(
        make.images(["1"]), boxes, boxes.assign(score=1.0), make.classes(*names), dataset="test"
    )
    assert by_class(scores) == pytest.approx(dict.fromkeys(names, 100))
    assert by_class(scores, "AP50") == pytest.approx(dict.fromkeys(names, 100))


def test_difficult_boxes_count_as_any_other(make):
    tables = [make.images(["1"]), make.detections(), make.classes("a")]
    boxes = make.boxes(("1", "a", 0, 0, 50, 50), difficult=True)
    scores = coco.score(tables[0], boxes, *tables[1:], dataset="test")
    assert summary(scores)["AP"] == 0.0
