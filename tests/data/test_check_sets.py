from __future__ import annotations

import contextlib

import numpy as np
import pandas as pd
import pytest

from detpipe.core.tables import CLASSES
from detpipe.data.check import inspect
from detpipe.data.check_config import CheckConfig

ALL = CheckConfig(decode=False)
FINE = ("a", "cat", 4, 5, 24, 35), ("b", "dog", 0, 0, 64, 48)


def values(issues: pd.DataFrame, rule: str) -> list[str]:
    return issues["value"][issues["rule"] == rule].tolist()


def test_a_val_set_in_which_no_image_has_objects_is_said(tmp_path, data_set):
    found = data_set(
        *FINE, pictures=("a", "b", "c"), splits={"a": "train", "b": "train", "c": "val"}
    )
    checked = inspect(found, tmp_path, ALL)
    (row,) = checked.issues.to_dict("records")
    assert (row["severity"], row["rule"], row["value"]) == ("warning", "split_without_boxes", "val")
    assert "its scores will be empty" in row["action"]
    assert len(checked.images) == 3


def test_more_objects_than_can_be_found_are_said_and_crowds_do_not_count(tmp_path, data_set):
    many = [("a", "cat", n, 1, n + 9, 9) for n in range(7)]
    found = data_set(FINE[1], *many)
    found.boxes.loc[7, "iscrowd"] = True
    said = {}
    for limit in (None, 5, 6):
        issues = inspect(found, tmp_path, ALL, max_detections=limit).issues
        said[limit] = issues[issues["rule"] == "many_boxes"]
    assert said[5][["file", "image_id", "value"]].to_numpy().tolist() == [
        ["a.png", "a", "6 objects"]
    ]
    assert "evaluate.max_detections" in said[5]["action"].iloc[0]
    assert said[None].empty
    assert said[6].empty


def test_a_class_that_only_some_splits_have_is_named_with_its_counts(tmp_path, data_set):
    boxes = [
        ("a", "cat", 1, 1, 20, 20), ("a", "dog", 2, 2, 20, 20), ("a", "dog", 3, 2, 20, 20),
        ("b", "cat", 4, 4, 30, 30), ("c", "cat", 4, 4, 30, 30),
    ]  # fmt: skip
    splits = {"a": "train", "b": "val", "c": "val", "d": "test"}  # test has no truth at all
    found = data_set(*boxes, pictures=tuple("abcd"), splits=splits, classes=("cow", "dog", "cat"))
    issues = inspect(found, tmp_path, ALL).issues
    assert values(issues, "class_not_in_split") == ["dog: train 2, val 0"]
    assert values(issues, "split_without_boxes") == ["test"]
    assert values(issues, "class_without_boxes") == ["cow"]
    whole = data_set(*boxes, pictures=tuple("abcd"), classes=("dog", "cat"))
    assert not values(inspect(whole, tmp_path, ALL).issues, "class_not_in_split")


ODD_NAMES = ["a,b", 'say "x"', "a/b", "a-b", "(a)", "a&b", "a b", "é", "–", "猫", "+", "-", "C++"]


def test_odd_names_of_classes_stay_as_they_are_and_apart(tmp_path, data_set):
    """Comma, quote, slash, dash, bracket, ampersand, other scripts: none merged, none lost."""
    boxes = [("ab"[n % 2], name, n, 1, n + 20, 20) for n, name in enumerate(ODD_NAMES)]
    checked = inspect(data_set(*boxes, classes=tuple(ODD_NAMES)), tmp_path, ALL)
    assert checked.boxes["class_name"].tolist() == ODD_NAMES
    assert checked.classes["class_name"].tolist() == ODD_NAMES
    assert values(checked.issues, "similar_class_names") == ["a,b / a/b / a-b / a&b / a b"]
    assert not values(checked.issues, "unreadable_text")


@pytest.mark.parametrize(
    ("names", "groups"),
    [
        (["Cat", "cat", "dog"], ["Cat / cat"]),
        (["traffic light", "traffic_light", "Traffic-Light"], None),
        (["straße", "STRASSE"], ["straße / STRASSE"]),
        (["+", "-", "?"], []),
        (["cat", "cats", "1", "2"], []),
    ],
)
def test_names_that_differ_in_nothing_one_hears(tmp_path, data_set, names, groups):
    found = data_set(*FINE)._replace(classes=CLASSES.make([{"class_name": n} for n in names]))
    got = values(inspect(found, tmp_path, ALL).issues, "similar_class_names")
    assert got == ([" / ".join(names)] if groups is None else groups)


READABLE = [
    "café",
    "Straße",
    "naïve",
    "猫",
    "Ñandú",
    "дом",
    "Ä Ö Ü",
    "100 °C",
    "a\u200db",
    "Â",
    "Ã",
]


def misread():
    """(name, as it looks when its UTF-8 is read in another encoding)."""
    for name in READABLE:
        for encoding in ("cp1252", "latin-1"):
            with contextlib.suppress(UnicodeDecodeError):  # not every byte is a letter of cp1252
                yield name, name.encode().decode(encoding)


@pytest.mark.parametrize(("name", "wrong"), list(misread()))
def test_text_read_in_the_wrong_encoding_is_told_and_what_it_means(tmp_path, data_set, name, wrong):
    right = data_set(*FINE, classes=("cat", "dog", name))
    assert not values(inspect(right, tmp_path, ALL).issues, "unreadable_text")
    bad = data_set(*FINE, classes=("cat", "dog", wrong))
    (said,) = values(inspect(bad, tmp_path, ALL).issues, "unreadable_text")
    assert said.startswith(f"class {wrong!r}: UTF-8 read as ")
    assert said.endswith(f"perhaps {name!r}")


def test_control_and_replacement_characters_are_shown_so_that_one_sees_them(tmp_path, data_set):
    found = data_set(*FINE, classes=("cat", "dog", "a\ufffdb", "bell\x07", "\ufeffbom", "c1\x85"))
    found.images["image_id"] = ["a", "b\t1"]
    found.boxes["image_id"] = ["a", "b\t1"]
    rows = inspect(found, tmp_path, ALL).issues
    rows = rows[rows["rule"] == "unreadable_text"]
    assert rows["value"].tolist() == [
        "class 'a\ufffdb'", r"class 'bell\x07'", r"class '\ufeffbom'", r"class 'c1\x85'", r"'b\t1'",
    ]  # fmt: skip
    assert rows["file"].tolist() == ["", "", "", "", "b.png"]


def test_a_path_in_the_wrong_encoding_is_one_row_an_image(tmp_path, data_set):
    found = data_set(*FINE)
    (tmp_path / "a.png").rename(tmp_path / "cafÃ©.png")
    found.images["path"] = ["cafÃ©.png", "b.png"]
    rows = inspect(found, tmp_path, ALL).issues
    assert rows[["rule", "file", "image_id"]].to_numpy().tolist() == [
        ["unreadable_text", "cafÃ©.png", "a"]
    ]
    assert "perhaps 'café.png'" in rows["value"].iloc[0]


def test_images_without_objects_are_counted_by_split(tmp_path, data_set):
    names = tuple("abcdefgh")
    splits = {name: ("train", "val")[n % 2] for n, name in enumerate(names)}
    boxes = [("a", "cat", 1, 2, 30, 40), ("b", "cat", 1, 2, 30, 40), ("d", "cat", 1, 2, 30, 40)]
    found = data_set(*boxes, pictures=names, splits=splits, classes=("cat",))
    counts = {
        split: np.sum([name not in "abd" for name in names if splits[name] == split])
        for split in ("train", "val")
    }
    assert values(inspect(found, tmp_path, ALL).issues, "images_without_boxes") == [
        f"{counts['train']} of 4 in train", f"{counts['val']} of 4 in val",
    ]  # fmt: skip
