from __future__ import annotations

import pandas as pd
import pytest

from detpipe.core.errors import DataError
from detpipe.data.formats import parquet


@pytest.fixture
def tables(tmp_path):
    images = pd.DataFrame(
        {"image_id": ["a", "b"], "path": ["a.jpg", "x/b.jpg"], "width": [64, 0], "height": [48, 0],
         "split": ["train", ""], "group": ["clip 1", ""], "note": ["mine", "mine"]}
    )  # fmt: skip
    boxes = pd.DataFrame(
        {"image_id": ["a"], "annotation_id": ["7"], "class_name": ["cat"], "x1": [1.5], "y1": [2.0],
         "x2": [30.0], "y2": [40.0], "area": [99.0], "iscrowd": [True], "difficult": [False],
         "extra": ['{"truncated": 1}']}
    )  # fmt: skip
    classes = pd.DataFrame({"class_name": ["dog", "cat"]})
    found = {"images": images, "boxes": boxes, "classes": classes}
    for name, table in found.items():
        table.to_parquet(tmp_path / f"{name}.parquet", index=False)
    return found


def test_tables_come_back_as_they_are(tmp_path, tables):
    found = parquet.read(tmp_path)
    for name, table in tables.items():
        expected = table.drop(columns="note", errors="ignore")
        pd.testing.assert_frame_equal(getattr(found, name), expected, check_dtype=False)
    assert found.issues.empty
    moved = parquet.read(tmp_path, images="../pictures/")
    assert moved.images["path"].tolist() == ["../pictures/a.jpg", "../pictures/x/b.jpg"]


def test_optional_columns_are_optional(tmp_path, tables):
    tables["images"].drop(columns="group").to_parquet(tmp_path / "images.parquet")
    tables["boxes"].iloc[:0].drop(columns="extra").to_parquet(tmp_path / "boxes.parquet")
    found = parquet.read(tmp_path)
    assert "group" not in found.images and "extra" not in found.boxes
    assert len(found.images) == 2 and found.boxes.empty
    assert found.classes["class_name"].tolist() == ["dog", "cat"]


def test_what_is_wrong_names_the_file(tmp_path, tables):
    tables["boxes"].drop(columns="area").to_parquet(tmp_path / "boxes.parquet")
    with pytest.raises(DataError, match=r"boxes\.parquet: table 'boxes' lacks .* area"):
        parquet.read(tmp_path)
    (tmp_path / "boxes.parquet").write_text("no parquet")
    with pytest.raises(DataError, match=r"boxes\.parquet cannot be read as Parquet"):
        parquet.read(tmp_path)
    (tmp_path / "boxes.parquet").unlink()
    with pytest.raises(DataError, match=r"there is no .*boxes\.parquet"):
        parquet.read(tmp_path)


@pytest.mark.parametrize("part", ["pages", "footer"])
def test_damaged_bytes_are_said(tmp_path, tables, part):
    path = tmp_path / "boxes.parquet"
    data = bytearray(path.read_bytes())
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    start, stop = (4, footer) if part == "pages" else (footer, len(data) - 8)
    data[start:stop] = bytes(b ^ 0x5A for b in data[start:stop])
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"boxes\.parquet cannot be read as Parquet"):
        parquet.read(tmp_path)
