from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from detpipe.core.tables import BOXES, CLASSES, IMAGES
from detpipe.data.formats import coco, voc, yolo
from detpipe.evaluate.self_test import self_test

CATS = CLASSES.make([{"class_name": "cat"}, {"class_name": "[/dog]"}])


def tables(count: int, *, crowd: bool = False) -> tuple[pd.DataFrame, pd.DataFrame]:
    """``val`` with ``count`` cats in one image; ``test`` with an image and nothing in it."""
    images = IMAGES.make(
        {"image_id": s, "path": f"{s}.jpg", "width": 640, "height": 480, "split": s}
        for s in ("val", "test")
    )
    rows = [
        {"image_id": "val", "annotation_id": str(n), "class_name": "cat", "x1": 3 * n, "y1": 5,
         "x2": 3 * n + 2, "y2": 9.5, "area": 9, "iscrowd": crowd, "difficult": False}
        for n in range(count)
    ]  # fmt: skip
    return images, BOXES.make(rows) if rows else BOXES.empty()


def row(table: pd.DataFrame, dataset: str, name: str = "") -> pd.Series:
    return table[(table["dataset"] == dataset) & (table["class_name"] == name)].iloc[0]


def test_truth_as_detections_is_100_and_what_has_no_truth_says_so():
    table = self_test(*tables(7), CATS, max_detections=100)
    assert row(table, "val")["AP"] == 100
    assert row(table, "val")["reason"] == ""
    assert row(table, "val", "cat")["AP"] == 100
    for dataset, name in (("val", "[/dog]"), ("test", ""), ("test", "cat")):
        assert np.isnan(row(table, dataset, name)["AP"])
        assert row(table, dataset, name)["reason"] == "no object"


def test_more_objects_than_may_be_found_is_the_reason_and_the_number_is_the_true_limit(caplog):
    table = self_test(*tables(150), CATS, max_detections=100)
    # 100 of 150 found: precision is 1 up to recall 2/3, which is 67 of COCO's 101 recall points.
    assert row(table, "val")["AP"] == pytest.approx(100 * 67 / 101)
    assert (
        "1 image(s) hold more than evaluate.max_detections = 100 objects, 150 at most"
        in (row(table, "val")["reason"])
    )
    assert "50 cannot be found" in caplog.text
    assert "(/dog" not in caplog.text  # no object is nothing to warn about for a single class
    assert row(self_test(*tables(150), CATS, max_detections=150), "val")["AP"] == 100


def test_the_limit_is_of_an_image_whatever_its_classes():
    images, boxes = tables(150)
    boxes["class_name"] = ["cat", "[/dog]", "cat"] * 50
    table = self_test(images, boxes, CATS, max_detections=100)
    assert row(table, "val")["AP"] < 70
    assert "150 at most: 50 cannot be found" in row(table, "val", "[/dog]")["reason"]


def test_crowds_only():
    table = self_test(*tables(2, crowd=True), CATS, max_detections=100)
    assert row(table, "val")["reason"] == "only crowd regions"


@pytest.mark.parametrize(
    ("name", "reader", "options"),
    [
        ("bccd_voc", voc, {}),
        ("cones_yolo", yolo, {}),
        ("chess_coco_roboflow", coco, {}),
    ],
)
def test_real_sets(shared_data, name, reader, options):
    found = reader.read(shared_data / name, **options)
    boxes = found.boxes[found.boxes["area"] > 0]
    table = self_test(found.images, boxes, found.classes, max_detections=100)
    assert set(table.loc[table["class_name"] == "", "AP"].round(6)) == {100}
