"""The csv file and the Parquet tables as written, looked at with pandas and csv."""

from __future__ import annotations

import csv

import pandas as pd
import pytest

from detpipe.core.errors import DataError
from tests.data.writers.sets import on_disk, write

BOXES = [
    {"image": 1, "class_name": 'a, "b"', "x1": 0.1, "y1": 1.0, "x2": 1 / 3, "y2": 7.0,
     "area": 2.5, "iscrowd": True, "difficult": False, "extra": '{"pose":"x, y"}'},
    {"image": 1, "class_name": "cat", "x1": 1.0, "y1": 1.0, "x2": 3.0, "y2": 2.0,
     "area": 2.0, "iscrowd": False, "difficult": True, "extra": ""},
]  # fmt: skip
MADE = (
    ["p/a b.jpg", "q/é.png"], [(9, 8), (7, 6)], ["train", "val"], ["", "g;1"], BOXES,
    ["cat", 'a, "b"', "dog"],
)  # fmt: skip


def test_the_csv_file_says_everything_in_plain_columns(tmp_path):
    write("csv", on_disk(MADE, tmp_path / "source"), tmp_path / "source", tmp_path / "out")
    with (tmp_path / "out/boxes.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    empty = dict.fromkeys(
        ("class_name", "x1", "y1", "x2", "y2", "iscrowd", "difficult", "area", "extra"), ""
    )
    image = {"path": "images/q/é.png", "width": "7", "height": "6", "split": "val", "group": "g;1"}
    assert rows == [
        {"path": "images/p/a b.jpg", "width": "9", "height": "8", "split": "train", "group": "",
         **empty},
        {**image, "class_name": 'a, "b"', "x1": "0.1", "y1": "1", "x2": repr(1 / 3), "y2": "7",
         "iscrowd": "1", "difficult": "0", "area": "2.5", "extra": '{"pose":"x, y"}'},
        {**image, "class_name": "cat", "x1": "1", "y1": "1", "x2": "3", "y2": "2",
         "iscrowd": "0", "difficult": "1", "area": "2", "extra": ""},
    ]  # fmt: skip
    assert (tmp_path / "out/classes.txt").read_text() == 'cat\na, "b"\ndog\n'


def test_a_csv_set_without_a_box_has_a_row_an_image(tmp_path):
    made = (["a.jpg"], [(9, 8)], ["train"], [""], [], ["cat"])
    write("csv", on_disk(made, tmp_path / "source"), tmp_path / "source", tmp_path / "out")
    assert len(pd.read_csv(tmp_path / "out/boxes.csv")) == 1


def test_class_names_with_line_breaks_are_refused(tmp_path):
    found = on_disk((*MADE[:4], [], ["a\nb"]), tmp_path / "source")
    with pytest.raises(DataError, match="csv cannot hold class names"):
        write("csv", found, tmp_path / "source", tmp_path / "out")


def test_the_parquet_tables_are_ours_but_for_the_paths(tmp_path):
    found = on_disk(MADE, tmp_path / "source", ids="text")
    write("parquet", found, tmp_path / "source", tmp_path / "out")
    images, boxes, classes = (
        pd.read_parquet(tmp_path / f"out/{name}.parquet") for name in ("images", "boxes", "classes")
    )
    assert images["path"].tolist() == ["images/p/a b.jpg", "images/q/é.png"]
    pd.testing.assert_frame_equal(images.drop(columns="path"), found.images.drop(columns="path"))
    pd.testing.assert_frame_equal(boxes, found.boxes)
    pd.testing.assert_frame_equal(classes, found.classes)
    for path, source in zip(images["path"], found.images["path"], strict=True):
        copied, original = tmp_path / "out" / path, tmp_path / "source" / source
        assert copied.read_bytes() == original.read_bytes()
