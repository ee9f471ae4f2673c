"""Csv files that are damaged, odd, or written by programs that do it their own way."""

from __future__ import annotations

import os

import pandas as pd
import pytest

from detpipe.core.errors import DataError
from detpipe.core.tables import BOX_COLUMNS
from detpipe.data.check import inspect
from detpipe.data.check_config import CheckConfig
from detpipe.data.formats import csv
from detpipe.data.formats.csv_text import read_table

from .conftest import rules

HEADER = "image,label,x1,y1,x2,y2\n"


@pytest.fixture
def folder(tmp_path, picture):
    """Three pictures, and what writes ``boxes.csv`` beside them."""
    for name in "abc":
        picture(f"{name}.jpg")

    def write(text: str, *, name: str = "boxes.csv", encoding: str = "utf-8"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text.encode(encoding))
        return tmp_path

    return write


def _only(found, rule):
    (row,) = found.issues[found.issues["rule"] == rule].to_dict("records")
    return row


# --- files -------------------------------------------------------------------------------------


def test_hidden_files_and_folders_are_not_read(folder):
    folder("\0\5", name="._boxes.csv")
    folder(HEADER, name=".backup/train.csv")
    root = folder(HEADER + "a.jpg,cat,1,2,3,4\n")
    assert csv.read(root).images["path"].tolist() == ["a.jpg"]


def test_a_link_to_nowhere_is_named(tmp_path):
    (tmp_path / "train.csv").symlink_to("gone.csv")
    with pytest.raises(DataError, match=r"train\.csv cannot be read: .*gone\.csv"):
        csv.read(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_named(folder):
    root = folder(HEADER)
    (root / "boxes.csv").chmod(0)
    with pytest.raises(DataError, match=r"boxes\.csv cannot be read: Permission"):
        csv.read(root)


def test_a_folder_of_that_name_is_no_file(folder):
    root = folder(HEADER + "a.jpg,cat,1,2,3,4\n")
    (root / "train.csv").mkdir()
    assert len(csv.read(root).boxes) == 1
    with pytest.raises(DataError, match=r"train\.csv cannot be read"):
        csv.read(root, annotations="train.csv")


@pytest.mark.parametrize("options", [{"annotations": "a" * 300}, {"classes": "a" * 300}])
def test_names_that_are_too_long_are_not_there(folder, options):
    with pytest.raises(DataError, match="no such"):
        csv.read(folder(HEADER + "a.jpg,cat,1,2,3,4\n"), **options)


def test_a_list_of_classes_that_cannot_be_read(folder):
    root = folder(HEADER + "a.jpg,cat,1,2,3,4\n")
    (root / "classes.txt").mkdir()
    with pytest.raises(DataError, match=r"classes\.txt cannot be read"):
        csv.read(root)


# --- the first lines ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "before", ["\n", "\n\r\n", " \n", "sep=,\n", "\ufeff", "\ufeffsep=,\r\n", '"sep=,"\n']
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_what_stands_before_the_header_does_not_count(folder, before, encoding):
    root = folder(before + HEADER + 'a.jpg,"big, cat",1,2,3,4\n')
    found = csv.read(root, encoding=encoding)
    assert found.boxes[["class_name", *BOX_COLUMNS]].to_numpy().tolist() == [
        ["big, cat", 1, 2, 3, 4]
    ]


def test_blank_lines_before_rows_without_header(folder):
    root = folder("\n\na.jpg,1,2,3,4,cat\nb.jpg,1,2,3,4,dog\n")
    assert csv.read(root).boxes["class_name"].tolist() == ["cat", "dog"]


def test_rows_without_header_may_have_signs_and_exponents(folder):
    root = folder("a.jpg,-3,0,1e1,4.5,cat\nb.jpg,1,2,3,4,dog\n")
    assert csv.read(root).boxes[BOX_COLUMNS].to_numpy().tolist() == [[-3, 0, 10, 4.5], [1, 2, 3, 4]]


@pytest.mark.parametrize("text", [HEADER, HEADER.strip()])
def test_a_header_alone_has_no_rows(folder, text):
    path = folder(text) / "boxes.csv"
    table = read_table(path, only=["image", "x1", "other"])
    assert table.columns.tolist() == ["image", "x1"]
    assert table.empty
    assert csv.read(path.parent).images.empty


def test_columns_of_one_name_become_different(folder):
    root = folder("path,class,class,class.1,x1,y1,x2,y2,class\na.jpg,p,q,r,1,2,3,4,s\n")
    table = read_table(root / "boxes.csv")
    assert table.columns.is_unique
    assert sorted(table.iloc[0].tolist()) == sorted(["a.jpg", *"pqr1234s"])
    found = csv.read(root, columns={"class_name": "class.1"})
    assert found.boxes["class_name"].tolist() == table["class.1"].tolist()


@pytest.mark.parametrize("end", ["\r", "\r\n"])
def test_other_line_ends(folder, end):
    root = folder((HEADER + 'a.jpg,"a ""cat""",1,2,3,4\nb.jpg,dog,1,2,3,4\n').replace("\n", end))
    assert csv.read(root).boxes["class_name"].tolist() == ['a "cat"', "dog"]


# --- rows --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ('a.jpg,"a \\"b\\" c",1,2,3,4\n', 2),
        ('a.jpg,"cat,1,2,3,4\nb.jpg,dog,1,2,3,4\nc.jpg,"cat,1,2,3,4\n', 4),
    ],
)
def test_quotation_marks_that_swallow_what_follows_are_refused(folder, rows, line):
    with pytest.raises(DataError, match=f"up to line {line}: a quotation mark"):
        csv.read(folder(HEADER + rows))


def test_quotation_marks_that_are_meant_are_read(folder):
    """Line ends in a value, a backslash at its end, marks written twice; blank lines between."""
    root = folder(
        HEADER + 'a.jpg,"two\nlines",1,2,3,4\n\nb.jpg,"x\\",1,2,3,4\nc.jpg,"""",1,2,3,4\n'
    )
    assert csv.read(root).boxes["class_name"].tolist() == ["two\nlines", "x\\", '"']


@pytest.mark.parametrize("nothing", ["nan", "None", "NaN", "null", ""])
def test_rows_of_nothing_are_images_without_objects(folder, nothing):
    row = ",".join(["b.jpg", *[nothing] * 5])
    found = csv.read(folder(f"{HEADER}a.jpg,cat,1,2,3,4\n{row}\n"))
    assert found.images["path"].tolist() == ["a.jpg", "b.jpg"]
    assert found.classes["class_name"].tolist() == ["cat"]
    assert rules(found)["empty_image_row"] == 1


def test_a_box_without_class_is_an_error(folder):
    root = folder(HEADER + "a.jpg,,1,2,3,4\nb.jpg,cat,1,2,3,4\n")
    issues = inspect(csv.read(root), root, CheckConfig()).issues
    assert issues["rule"][issues["severity"] == "error"].tolist() == ["no_class_name"]


def test_four_points_are_no_corners(folder):
    header = "image,label,x1,y1,x2,y2,x3,y3,x4,y4,right,low\n"
    root = folder(header + "a.jpg,cat,1,2,9,2,9,8,1,8,9,8\n")
    with pytest.raises(DataError, match=r"boxes\.csv: a box has four points"):
        csv.read(root, annotations="boxes.csv")
    found = csv.read(root, columns={"x1": "x1", "y1": "y1", "x2": "right", "y2": "low"})
    assert found.boxes[BOX_COLUMNS].to_numpy().tolist() == [[1, 2, 9, 8]]


def test_blanks_around_paths_do_not_count(folder):
    root = folder("label, image, x1, y1, x2, y2\ncat, a.jpg, 1, 2, 3, 4\ncat, b.jpg , 1, 2, 3, 4\n")
    assert csv.read(root).images["path"].tolist() == ["a.jpg", "b.jpg"]


@pytest.mark.parametrize(
    ("header", "row", "shown"),
    [
        ("x1,y1,x2,y2", "1,x,3,4", "1; x; 3; 4"),
        ("bbox", '"[1, 2, 3]"', "[1, 2, 3]"),
        ("x,y,w,h", "1,2,,4", "1; 2; ; 4"),
    ],
)
def test_a_box_that_is_none_is_shown_as_written(folder, header, row, shown):
    good = {"bbox": '"[1, 2, 3, 4]"'}.get(header, "1,2,3,4")
    root = folder(f"image,label,{header}\na.jpg,cat,{good}\nb.jpg,cat,{row}\n")
    found = csv.read(root)
    issue = _only(found, "box_as_written")
    assert issue["file"] == "boxes.csv"
    assert issue["value"] == f"1 row(s): {shown}"
    assert rules(inspect(found, root, CheckConfig()))["box_not_a_number"] == 1


def test_right_boxes_are_not_spoken_of(folder):
    found = csv.read(folder(HEADER + "a.jpg,cat,1,2,3,4\nb.jpg,,,,,\n"))
    assert "box_as_written" not in rules(found)


# --- images ------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", ["inf", "-100", "1e300"])
def test_sizes_that_no_picture_has_are_unknown(folder, width):
    root = folder(f"image,label,x1,y1,x2,y2,width,height\na.jpg,cat,1,2,3,4,{width},48\n")
    found = csv.read(root)
    assert found.images[["width", "height"]].to_numpy().tolist() == [[0, 0]]
    issue = _only(found, "size_impossible")
    assert (issue["file"], issue["severity"]) == ("boxes.csv", "warning")
    assert issue["value"] == f"1 image(s), the first a.jpg: {float(width):g}x48"


def test_sizes_that_are_not_listed_are_not_spoken_of(folder):
    root = folder("image,label,x1,y1,x2,y2,width,height\na.jpg,cat,1,2,3,4,,x\n")
    assert "size_impossible" not in rules(csv.read(root))


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("name", ["x\0.jpg", "x" * 300 + ".jpg", "x" * 300 + "/x.jpg"])
def test_a_name_that_no_file_can_have_is_missing(folder, name, shares):
    root = folder(HEADER + f"a.jpg,cat,0.1,.2,.3,.4\n{name},cat,.1,.2,.3,.4\n")
    issues = inspect(csv.read(root, shares=shares), root, CheckConfig()).issues
    assert issues["rule"][issues["severity"] == "error"].tolist() == ["missing_image"]


def test_a_split_whose_name_no_folder_can_have(folder):
    root = folder("image,label,x1,y1,x2,y2,split\na.jpg,cat,1,2,3,4," + "s" * 300 + "\n")
    assert csv.read(root).images["path"].tolist() == ["a.jpg"]


def test_ids_differ_whatever_the_names(folder, picture):
    picture("train-a.jpg")
    rows = [("a.jpg", "train"), ("a.jpg", "val"), ("train-a.jpg", "val")]
    text = "".join(f"{path},cat,1,2,3,4,{split}\n" for path, split in rows)
    found = csv.read(folder("image,label,x1,y1,x2,y2,split\n" + text))
    assert list(found.images[["path", "split"]].itertuples(index=False, name=None)) == rows
    assert found.images["image_id"].is_unique
    merged = found.boxes.merge(found.images, on="image_id")
    pd.testing.assert_series_equal(merged["path"], found.images["path"])
