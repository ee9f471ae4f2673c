"""COCO files that are damaged, or name pictures and numbers in ways that mislead."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from detpipe.core.errors import DataError
from detpipe.core.tables import BOX_COLUMNS
from detpipe.data.check import inspect
from detpipe.data.check_config import CheckConfig
from detpipe.data.formats import coco
from detpipe.data.formats.coco_segments import box_of

from .conftest import rules


def _box(number=1, image_id=1, category_id=1, **fields):
    box = {"id": number, "image_id": image_id, "category_id": category_id, "bbox": [1, 2, 3, 4]}
    return {**box, **fields}


def _only(found, rule):
    (row,) = found.issues[found.issues["rule"] == rule].to_dict("records")
    return row


# --- files -------------------------------------------------------------------------------------


def test_hidden_files_are_not_read(tmp_path, picture, coco_file):
    picture("images/a.jpg")
    coco_file("annotations/train.json")
    (tmp_path / "annotations/._train.json").write_bytes(b"\0\5\26\7")
    coco_file("__MACOSX/_annotations.coco.json")
    found = coco.read(tmp_path)
    assert found.images["path"].tolist() == ["images/a.jpg"]


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, kind):
    path = tmp_path / "train.json"
    if kind == "link":
        path.symlink_to("gone.json")
    else:
        path.mkdir()
    with pytest.raises(DataError, match=r"train\.json cannot be read"):
        coco.read(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_named(tmp_path, coco_file):
    coco_file("train.json").chmod(0)
    with pytest.raises(DataError, match=r"train\.json cannot be read: Permission"):
        coco.read(tmp_path)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"annotations": "a" * 300}, "no such annotation file"),
        ({"annotations": {}}, "'annotations' is empty"),
        ({"images": "a" * 300}, "no such folder"),
    ],
)
def test_options_that_name_nothing(tmp_path, picture, coco_file, options, says):
    picture("images/a.jpg")
    coco_file()
    with pytest.raises(DataError, match=says):
        coco.read(tmp_path, **options)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_other_unicode_is_read(tmp_path, picture, coco_file, encoding):
    picture("images/a.jpg")
    path = coco_file(categories=[{"id": 1, "name": "猫"}])
    content = json.loads(path.read_text())
    path.write_bytes(json.dumps(content, ensure_ascii=False).encode(encoding))
    assert coco.read(tmp_path).classes["class_name"].tolist() == ["猫"]


def test_other_encodings_have_a_way_out(tmp_path, coco_file):
    path = coco_file(categories=[{"id": 1, "name": "?"}])
    path.write_bytes(path.read_bytes().replace(b"?", b"\xe9"))
    with pytest.raises(DataError, match=r"not written in UTF-8.*save it in UTF-8"):
        coco.read(tmp_path)


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"categories": [{"id": 1, "name": "cat\ud800"}]}, r"cat\\ud800.*half of a letter"),
        ({"images": [{"id": 1, "file_name": "\ud800.jpg"}]}, "half of a letter"),
    ],
)
def test_half_a_letter_is_refused(tmp_path, picture, coco_file, parts, says):
    picture("images/a.jpg")
    coco_file(**parts)
    with pytest.raises(DataError, match=says):
        coco.read(tmp_path)


@pytest.mark.parametrize("place", ["info", "annotations"])
def test_lists_that_are_nested_too_deep(tmp_path, picture, coco_file, place):
    picture("images/a.jpg")
    path = coco_file(**{place: "here"})
    path.write_text(path.read_text().replace('"here"', "[" * 5000 + "]" * 5000))
    with pytest.raises(DataError, match=r"train\.json.*nested too deep"):
        coco.read(tmp_path)


# --- images ------------------------------------------------------------------------------------


def _listed(*names):
    return [{"id": n, "file_name": name} for n, name in enumerate(names, 1)]


@pytest.mark.parametrize(
    ("names", "refused"),
    [
        (["0001.jpg", "cam2/0001.jpg"], ["cam2/0001.jpg"]),
        (["cam1/0001.jpg", "cam2/0001.jpg"], ["cam1/0001.jpg", "cam2/0001.jpg"]),
        (["C:\\x\\0001.jpg", "0001.jpg", "0002.jpg"], ["C:\\x\\0001.jpg"]),
    ],
)
def test_a_picture_of_another_name_is_not_taken(tmp_path, picture, coco_file, names, refused):
    """Boxes of a file that is missing must not come to lie on another one's picture."""
    picture("images/0001.jpg")
    picture("images/0002.jpg")
    coco_file(images=_listed(*names), annotations=[_box(1, 1), _box(2, 2)])
    found = coco.read(tmp_path)
    rows = found.issues[found.issues["rule"] == "ambiguous_image"]
    assert rows["severity"].unique().tolist() == ["error"]
    assert [value.split("'")[1] for value in rows["value"]] == refused
    assert len(found.images) == len(names) - len(refused)


def test_leading_folders_are_left_out_where_nothing_else_has_the_file(tmp_path, picture, coco_file):
    picture("images/0001.jpg")
    picture("images/0002.jpg")
    coco_file(images=_listed("cam2/0001.jpg", "0002.jpg"), annotations=[_box()])
    found = coco.read(tmp_path)
    assert _only(found, "image_path")["severity"] == "info"
    assert found.images["path"].tolist() == ["images/0001.jpg", "images/0002.jpg"]


def test_an_upload_that_has_another_ones_file_is_a_warning(tmp_path, picture, coco_file):
    picture("images/a.jpg")
    coco_file(images=_listed("a.jpg", "cafebabe-a.jpg"), annotations=[_box(1, 1), _box(2, 2)])
    checked = inspect(coco.read(tmp_path), tmp_path, CheckConfig())
    row = _only(checked, "image_listed_twice")
    assert (row["severity"], row["file"]) == ("warning", "images/a.jpg")


@pytest.mark.parametrize(("width", "height"), [(-100, 48), (64, 1e300), (2**31, 48)])
def test_sizes_that_no_picture_has_are_unknown(tmp_path, picture, coco_file, width, height):
    picture("images/a.jpg")
    coco_file(images=[{"id": 1, "file_name": "a.jpg", "width": width, "height": height}])
    found = coco.read(tmp_path)
    assert found.images[["width", "height"]].to_numpy().tolist() == [[0, 0]]
    row = _only(found, "size_impossible")
    assert row["file"] == "annotations/instances_train.json"
    assert row["value"] == f"1 image(s), the first images/a.jpg: {width:g}x{height:g}"
    checked = inspect(found, tmp_path, CheckConfig())
    assert checked.images[["width", "height"]].to_numpy().tolist() == [[64, 48]]


@pytest.mark.parametrize("name", ["b\0.jpg", "b\0/a.jpg", "b" * 300 + "/b.jpg", "b" * 300])
def test_a_name_that_no_file_can_have_is_missing(tmp_path, picture, coco_file, name):
    picture("images/a.jpg")
    coco_file(images=_listed("a.jpg", name))
    checked = inspect(coco.read(tmp_path), tmp_path, CheckConfig())
    errors = checked.issues[checked.issues["severity"] == "error"]
    expected = "ambiguous_image" if name.endswith("/a.jpg") else "missing_image"
    assert errors["rule"].tolist() == [expected]


# --- numbers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "crowd"),
    [("true", True), ("yes", True), (" True", True), ("1", True), ("0", False), ("no", False)],
)
def test_flags_in_words(tmp_path, picture, coco_file, written, crowd):
    picture("images/a.jpg")
    coco_file(annotations=[_box(iscrowd=written), _box(2)])
    assert coco.read(tmp_path).boxes["iscrowd"].tolist() == [crowd, False]


@pytest.mark.parametrize(
    ("listed", "wanted", "same"),
    [
        ("1234567890123456788", "1234567890123456789", False),
        ("12000", "12e3", False),
        ("0012", "12.0", True),
        (12, "+12", True),
    ],
)
def test_ids_are_compared_digit_by_digit(tmp_path, picture, coco_file, listed, wanted, same):
    picture("images/a.jpg")
    coco_file(
        images=[{"id": listed, "file_name": "a.jpg"}], annotations=[_box(image_id=wanted)]
    )  # fmt: skip
    found = coco.read(tmp_path)
    assert (found.boxes["image_id"] == found.images["image_id"]).tolist() == [same]


@pytest.mark.parametrize("bbox", [[1, 2, 3], [1, 2, 3, 4, 5], [1, "x", 3, 4], [1, None, 3, 4], []])
@pytest.mark.parametrize("text_id", [True, False])
def test_a_box_that_is_none_is_shown_as_written(tmp_path, picture, coco_file, bbox, text_id):
    picture("images/a.jpg")
    coco_file(annotations=[_box(), _box("two" if text_id else 2, bbox=bbox)])
    found = coco.read(tmp_path)
    assert np.isnan(found.boxes[BOX_COLUMNS].iloc[1]).all() or len(bbox) == 4
    row = _only(found, "box_as_written")
    assert row["annotation_id"] == ("two" if text_id else "2")
    assert row["value"] == f"1 record(s): {json.dumps(bbox, separators=(',', ':'))}"


def test_right_boxes_are_not_spoken_of(tmp_path, picture, coco_file):
    picture("images/a.jpg")
    coco_file(annotations=[_box(), _box("2", bbox=["1", "2.5", 3, 4])])
    found = coco.read(tmp_path)
    assert found.boxes[BOX_COLUMNS].to_numpy().tolist() == [[1, 2, 4, 6], [1, 2.5, 4, 6.5]]
    assert "box_as_written" not in rules(found)


def test_decimal_commas_are_an_error(tmp_path, picture, coco_file):
    picture("images/a.jpg")
    coco_file(annotations=[_box(), _box(2, bbox=["1,5", "2", "3,0", "4"])])
    row = _only(coco.read(tmp_path), "decimal_comma")
    assert row["severity"] == "error"
    assert row["value"] == '1 record(s), the first: ["1,5","2","3,0","4"]'


def test_an_area_of_400_digits_is_none(tmp_path, picture, coco_file):
    picture("images/a.jpg")
    coco_file(annotations=[_box(area=10**400), _box(2, area=float("nan"))])
    assert coco.read(tmp_path).boxes["area"].tolist() == [12, 12]


@pytest.mark.parametrize(
    "shape",
    [
        {"size": [9, 9], "counts": [10**30]},
        {"size": [9, 9], "counts": [1, 2**62, 2**62]},
        {"size": [10**30, 9], "counts": [1, 2, 3]},
        {"size": [9, 9], "counts": "o" * 99},
        [[10**400, 1, 2, 3, 4, 5]],
    ],
)
def test_a_shape_of_numbers_that_cannot_be_has_no_box(shape):
    assert box_of(shape) is None
