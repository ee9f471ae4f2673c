from __future__ import annotations

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from detpipe.core.tables import BOXES, CLASSES, IMAGES
from detpipe.data.describe import describe, plots
from detpipe.data.formats import csv, voc


@pytest.fixture
def tables():
    images = IMAGES.make(
        [
            {"image_id": i, "path": f"{i}.jpg", "width": 100, "height": h, "split": s}
            for i, h, s in (("a", 80, "train"), ("b", 60, "train"), ("c", 90, "val"))
        ]
    )
    boxes = BOXES.make(
        [
            {"image_id": i, "annotation_id": str(n), "class_name": c, "x1": 0, "y1": 0, "x2": side,
             "y2": side, "area": side**2, "iscrowd": c == "dog", "difficult": n == 0}
            for n, (i, c, side) in enumerate(
                [("a", "cat", 4), ("a", "cat", 31), ("a", "dog", 32), ("c", "cat", 96)]
            )
        ]
    )  # fmt: skip
    classes = CLASSES.make([{"class_name": "cat"}, {"class_name": "dog"}])
    return images, boxes, classes


def value(table, statistic, *, split="", class_name=""):
    (row,) = table[
        (table["split"] == split)
        & (table["class_name"] == class_name)
        & (table["statistic"] == statistic)
    ].itertuples()
    return row.value


def test_statistics_of_a_set_small_enough_to_count(tables):
    table = describe(*tables)
    expected = {
        "images": 3, "images_without_boxes": 1, "boxes": 4, "crowd": 1, "difficult": 1,
        "box_side_min": 4, "box_side_median": 31.5, "box_side_max": 96, "tiny_boxes": 1,
        "small_boxes": 2, "medium_boxes": 1, "large_boxes": 1, "boxes_per_image_median": 1,
        "boxes_per_image_max": 3, "image_width_min": 100, "image_height_median": 80,
        "image_height_max": 90,
    }  # fmt: skip
    for statistic, number in expected.items():
        assert value(table, statistic) == pytest.approx(number), statistic
    assert value(table, "boxes", split="train", class_name="cat") == 2
    assert value(table, "images", split="train", class_name="cat") == 1
    assert value(table, "images_without_boxes", split="train") == 1
    assert value(table, "boxes", split="val", class_name="dog") == 0
    assert np.isnan(value(table, "box_side_median", split="val", class_name="dog"))
    assert not table.duplicated(["split", "class_name", "statistic"]).any()


def test_parts_add_up_on_a_real_set(shared_data):
    found = voc.read(shared_data / "bccd_voc")
    table = describe(found.images, found.boxes, found.classes)
    assert value(table, "boxes") == 4888
    assert value(table, "boxes_per_image_max") == 30
    assert value(table, "boxes", class_name="RBC") == 4155
    for names in (["train", "val", "test"],):
        assert sum(value(table, "boxes", split=s) for s in names) == 4888
        assert sum(value(table, "boxes", split=s, class_name="WBC") for s in names) == 372
    small = sum(value(table, f"{size}_boxes") for size in ("small", "medium", "large"))
    assert small == 4888
    sides = np.sqrt(
        np.prod(found.boxes[["x2", "y2"]].to_numpy() - found.boxes[["x1", "y1"]], axis=1)
    )
    assert value(table, "box_side_median") == pytest.approx(np.median(sides))


def test_small_boxes_are_counted_as_the_readme_counts_them(shared_data):
    found = voc.read(shared_data / "bccd_voc")
    boxes = found.boxes[found.boxes["area"] > 0]  # as after the check
    assert value(describe(found.images, boxes, found.classes), "small_boxes") == 39


def test_nothing_at_all():
    table = describe(IMAGES.empty(), BOXES.empty(), CLASSES.empty())
    assert value(table, "images") == value(table, "boxes") == 0
    assert np.isnan(value(table, "box_side_max"))


@pytest.mark.parametrize("kind", ["some", "no boxes", "nothing", "no split"])
def test_pictures_are_drawn_for_every_kind_of_set(tables, tmp_path, kind):
    images, boxes, classes = tables
    if kind == "no boxes":
        boxes = BOXES.empty()
    if kind == "nothing":
        images, boxes, classes = IMAGES.empty(), BOXES.empty(), CLASSES.empty()
    if kind == "no split":
        images = images.assign(split="")
        classes = pd.concat([classes, CLASSES.make([{"class_name": "$a_b^"}])])
    figures = plots(images, boxes, classes)
    assert set(figures) == {
        "class_counts", "image_sizes", "box_sizes", "aspect_ratios", "boxes_per_image", "positions"
    }  # fmt: skip
    for name, figure in figures.items():
        figure.savefig(tmp_path / f"{name}.png", dpi=40)
        assert (tmp_path / f"{name}.png").stat().st_size > 1000


def test_bars_hold_every_box_of_a_real_set(shared_data):
    found = csv.read(shared_data / "cards_csv")
    figures = plots(found.images, found.boxes, found.classes)
    bars = figures["class_counts"].axes[0].patches
    assert sum(bar.get_width() for bar in bars) == 231
    for name, total in (("box_sizes", 231), ("aspect_ratios", 231), ("boxes_per_image", 117)):
        tops = {}
        for bar in figures[name].axes[0].patches:
            top = bar.get_y() + bar.get_height()
            tops[bar.get_x()] = max(top, tops.get(bar.get_x(), 0))
        assert sum(tops.values()) == total, name
    assert figures["positions"].axes[0].images[0].get_array().sum() == 231


def test_importing_it_imports_no_matplotlib():
    code = "import sys, detpipe.data.describe; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
