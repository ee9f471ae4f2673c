from __future__ import annotations

import unicodedata

import pandas as pd
import pytest

from detpipe.data.check import inspect
from detpipe.data.check_config import CheckConfig
from detpipe.data.formats.base import IssueLog, make_tables, split_in_name, unique_ids
from detpipe.data.formats.locate import ImageFinder


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("instances_val2017", "val"),
        ("val2014_100", "val"),
        ("train_labels", "train"),
        ("Training", "training"),
        ("valid", "valid"),
        ("trainval", "trainval"),
        ("instances_minival", ""),
        ("contest", ""),
        ("constraints", ""),
        ("image_info_test-dev2017", "test"),
    ],
)
def test_split_in_name(name, split):
    assert split_in_name(name) == split


@pytest.mark.parametrize(
    ("written", "on_disk", "how"),
    [
        ("a.jpg", "a.jpg", "exact"),
        ("sub/a.jpg", "sub/a.jpg", "exact"),
        ("C:\\Users\\me\\pictures\\a.jpg", "a.jpg", "moved"),
        ("/home/me/set/sub/a.jpg", "sub/a.jpg", "moved"),
        ("a.jpg", "a.JPG", "spelling"),
        (unicodedata.normalize("NFD", "café – 猫 1.jpg"), "café – 猫 1.jpg", "spelling"),
        ("a", "a.png", "stem"),
        ("a.jpg", "a.PNG", "stem"),
        ("frame.0001", "frame.0001.jpg", "stem"),
        ("b.jpg", "a.jpg", "missing"),
    ],
)
def test_an_image_is_found_by_what_is_written(tmp_path, written, on_disk, how):
    path = tmp_path / on_disk
    path.parent.mkdir(exist_ok=True)
    path.touch()
    match = ImageFinder([tmp_path / "nowhere", tmp_path]).find(written)
    assert match.how == how
    assert match.path == (None if how == "missing" else path)


def test_an_exact_name_wins_over_a_likely_one_in_an_earlier_folder(tmp_path):
    for name in ("first/a.JPG", "second/a.jpg"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    finder = ImageFinder([tmp_path / "first", tmp_path / "second"])
    assert finder.find("a.jpg").path == tmp_path / "second/a.jpg"


def test_two_endings_of_one_name_are_ambiguous(tmp_path):
    for name in ("a.png", "a.tif"):
        (tmp_path / name).touch()
    match = ImageFinder([tmp_path]).find("a.jpg")
    assert match.how == "ambiguous"
    assert [path.name for path in match.candidates] == ["a.png", "a.tif"]
    assert ImageFinder([tmp_path]).find("a.tif").how == "exact"


def test_unique_ids_takes_the_first_way_that_tells_all_apart():
    assert unique_ids([["1", "2"], ["a", "b"]]) == ["1", "2"]
    assert unique_ids([["1", "1"], ["t-1", "v-1"], ["x", "y"]]) == ["t-1", "v-1"]
    assert unique_ids([["", "1"], ["x", "y"]]) == ["x", "y"]


def test_an_empty_log_is_an_empty_table():
    assert IssueLog().table().empty
    assert list(IssueLog().table().columns)[:2] == ["severity", "rule"]


def _boxes(*names):
    return [
        {
            "image_id": "1", "annotation_id": str(n), "class_name": name, "x1": 0, "y1": 0, "x2": 1,
            "y2": 1, "area": 1, "iscrowd": False, "difficult": False,
        }
        for n, name in enumerate(names)
    ]  # fmt: skip


IMAGE = [{"image_id": "1", "path": "a.jpg", "width": 9, "height": 9, "split": ""}]
NFD = unicodedata.normalize("NFD", "café")


@pytest.mark.parametrize(
    ("classes", "expected"), [(["café", " b", "b", NFD], ["café", "b"]), (None, ["b", "café"])]
)
def test_names_that_look_the_same_are_one_class(classes, expected):
    found = make_tables(IMAGE, _boxes(" b", "b", NFD, "café"), classes, IssueLog())
    assert found.classes["class_name"].tolist() == expected
    assert found.boxes["class_name"].tolist() == ["b", "b", "café", "café"]
    (issue,) = found.issues.to_dict("records")
    assert (issue["severity"], issue["rule"]) == ("info", "class_name_cleaned")
    assert "' b' -> 'b'" in issue["value"]


def test_clean_names_are_left_in_peace():
    found = make_tables(IMAGE, _boxes("b", "a c"), ["b", "a c"], IssueLog())
    assert found.classes["class_name"].tolist() == ["b", "a c"]
    assert found.issues.empty


@pytest.mark.parametrize("classes", [None, ["b", "", "  "]])
def test_blanks_are_no_class(tmp_path, picture, classes):
    picture("a.jpg")
    boxes = pd.DataFrame(_boxes("b", "", " \t")).assign(x2=9, y2=[7, 8, 9])
    found = make_tables(IMAGE, boxes, classes, IssueLog())
    assert found.classes["class_name"].tolist() == ["b"]
    issues = inspect(found, tmp_path, CheckConfig()).issues
    errors = issues[issues["severity"] == "error"]
    assert errors["rule"].tolist() == ["no_class_name"] * 2
    config = CheckConfig.model_validate({"rules": {"no_class_name": "drop"}})
    assert inspect(found, tmp_path, config).boxes["class_name"].tolist() == ["b"]
