from __future__ import annotations

import json

import pytest

from detpipe.core.errors import DataError
from detpipe.core.tables import BOX_COLUMNS
from detpipe.data.formats import crowdhuman

ID = "273271,c9db000d5146c15"


def person(*, tag="person", fbox=(-4, 2, 30, 50), **more):
    return {
        "tag": tag, "fbox": list(fbox), "vbox": [0, 3, 20, 40], "hbox": [5, 6, 7, 8],
        "head_attr": {"ignore": 0, "occ": 0, "unsure": 0}, "extra": {"box_id": 0, "occ": 1}, **more,
    }  # fmt: skip


@pytest.fixture
def odgt(tmp_path, picture):
    def write(*records, name="annotation_train.odgt", pictures="Images") -> None:
        text = "\n".join(
            record
            if isinstance(record, str)
            else json.dumps({"ID": record[0], "gtboxes": record[1]})
            for record in records
        )
        (tmp_path / name).write_text(text + "\n")
        for record in records:
            if pictures and not isinstance(record, str):
                picture(f"{pictures}/{record[0]}.jpg")

    return write


@pytest.mark.parametrize(
    ("kind", "name", "corners"),
    [
        ("fbox", "person", [-4, 2, 26, 52]),
        ("vbox", "person", [0, 3, 20, 43]),
        ("hbox", "head", [5, 6, 12, 14]),
    ],
)
def test_three_boxes_a_person(tmp_path, odgt, kind, name, corners):
    odgt((ID, [person()]), ("b", []))
    found = crowdhuman.read(tmp_path, box=kind)
    assert found.images[["image_id", "path", "split"]].to_numpy().tolist() == [
        [ID, f"Images/{ID}.jpg", "train"], ["b", "Images/b.jpg", "train"],
    ]  # fmt: skip
    assert found.boxes["image_id"].tolist() == [ID]
    assert found.boxes[BOX_COLUMNS].to_numpy().tolist() == [corners]
    assert found.boxes["area"].tolist() == [(corners[2] - corners[0]) * (corners[3] - corners[1])]
    assert found.classes["class_name"].tolist() == [name]
    assert found.issues.empty


def test_ignored_boxes_are_crowd_regions(tmp_path, odgt):
    """The rule of the set's own evaluation: mask, extra.ignore, and head_attr.ignore of heads."""
    odgt(
        (ID, [
            person(),
            person(tag="mask", extra={}),
            person(extra={"box_id": 3, "ignore": 1}),
            person(extra={"ignore": 0}),
            person(head_attr={"ignore": 1}),
        ])
    )  # fmt: skip
    bodies = crowdhuman.read(tmp_path)
    assert bodies.boxes["iscrowd"].tolist() == [False, True, True, False, False]
    assert bodies.classes["class_name"].tolist() == ["person"]
    assert bodies.issues[["rule", "value"]].to_numpy().tolist() == [
        ["ignore_regions", "2 of 5 boxes"]
    ]
    heads = crowdhuman.read(tmp_path, box="hbox")
    assert heads.boxes["iscrowd"].tolist() == [False, True, True, False, True]


def test_extra_keeps_the_rest(tmp_path, odgt):
    odgt((ID, [person(head_attr={})]))
    found = crowdhuman.read(tmp_path, extra=True)
    assert [json.loads(text) for text in found.boxes["extra"]] == [
        {"tag": "person", "vbox": [0, 3, 20, 40], "hbox": [5, 6, 7, 8],
         "extra": {"box_id": 0, "occ": 1}},
    ]  # fmt: skip
    assert "extra" not in crowdhuman.read(tmp_path).boxes


@pytest.mark.parametrize(
    "pictures",
    ["Images", "images", "CrowdHuman_train01/Images", "CrowdHuman_train", "Images/train"],
)
def test_places_of_the_pictures(tmp_path, odgt, pictures):
    odgt((ID, [person()]), pictures=pictures)
    assert crowdhuman.read(tmp_path).images["path"].tolist() == [f"{pictures}/{ID}.jpg"]


def test_both_splits_and_repeated_ids(tmp_path, odgt):
    odgt((ID, [person()]))
    odgt((ID, [person(fbox=(1, 2, 3, 4))]), ("b", []), name="annotation_val.odgt")
    found = crowdhuman.read(tmp_path)
    assert found.images["image_id"].tolist() == [f"train-{ID}", f"val-{ID}", "val-b"]
    assert found.images["split"].tolist() == ["train", "val", "val"]
    assert found.boxes["image_id"].tolist() == [f"train-{ID}", f"val-{ID}"]
    assert found.boxes["x1"].tolist() == [-4, 1]
    chosen = crowdhuman.read(tmp_path, annotations={"test": "annotation_val.odgt"})
    assert chosen.images["split"].tolist() == ["test", "test"]
    odgt((ID, [person()]), (ID, []))
    twice = crowdhuman.read(tmp_path, annotations="annotation_train.odgt")
    assert twice.images["image_id"].is_unique  # the check says that one file is listed twice


def test_objects_without_the_box_are_counted(tmp_path, odgt):
    odgt((ID, [person(), person(hbox=None), person(hbox=[1, 2, 3])]))
    found = crowdhuman.read(tmp_path, box="hbox")
    assert len(found.boxes) == 1
    assert found.issues[["rule", "value"]].to_numpy().tolist() == [
        ["object_without_box", f"2 of 3, in {ID}"]
    ]


def test_every_wrong_line_is_named(tmp_path, odgt):
    odgt((ID, [person()]), '{"ID": "b", "gtboxes": [{"tag": "person", "fbox": "1 2 3 4"}]}', "{",
         '{"gtboxes": []}')  # fmt: skip
    with pytest.raises(DataError, match=r"(?s)line 2: Expected `array.*fbox.*line 3.*line 4.*`ID`"):
        crowdhuman.read(tmp_path)


def test_what_is_missing_is_said(tmp_path, odgt):
    with pytest.raises(DataError, match="no odgt file"):
        crowdhuman.read(tmp_path)
    with pytest.raises(DataError, match=r"no such annotation file: .*a\.odgt"):
        crowdhuman.read(tmp_path, annotations="a.odgt")
    odgt((ID, [person()]), pictures="")
    with pytest.raises(DataError, match=r"(?s)none of the 1 image.*Images"):
        crowdhuman.read(tmp_path)
    with pytest.raises(DataError, match="'box' must be"):
        crowdhuman.read(tmp_path, box="body")


# --- files that are not as they should be ------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "crowd"),
    [(1, True), ("1", True), ("true", True), (True, True), (0, False), ("0", False),
     ("false", False), (None, False)],
)  # fmt: skip
def test_ignore_in_every_spelling(tmp_path, odgt, written, crowd):
    odgt((ID, [person(extra={"ignore": written})]))
    assert crowdhuman.read(tmp_path).boxes["iscrowd"].tolist() == [crowd]


def test_hidden_copies_are_not_read(tmp_path, odgt):
    odgt((ID, [person()]))
    for name in ("._annotation_train.odgt", "__MACOSX/annotation_train.odgt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"\0\5\26\7")
    assert len(crowdhuman.read(tmp_path).images) == 1


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_an_empty_file_is_said(tmp_path, text):
    (tmp_path / "a.odgt").write_text(text)
    with pytest.raises(DataError, match=r"a\.odgt has no odgt record"):
        crowdhuman.read(tmp_path)


def test_lines_that_cannot_be_records(tmp_path, odgt):
    deep = f'{{"ID": "b", "gtboxes": [{{"tag": "x", "extra": {{"a": {"[" * 5000}'
    odgt((ID, [person()]), deep, '{"ID": "\\ud800"}')
    with pytest.raises(DataError, match=r"(?s)line 2: nested too deeply.*line 3: "):
        crowdhuman.read(tmp_path)


@pytest.mark.parametrize("width", ["-100", "1" + "0" * 25, "1e300"])
def test_sizes_that_cannot_be_are_said(tmp_path, odgt, picture, width):
    picture("Images/b.jpg")
    odgt(f'{{"ID": "b", "width": {width}, "height": 48}}')
    found = crowdhuman.read(tmp_path)
    assert found.images[["width", "height"]].to_numpy().tolist() == [[0, 0]]
    assert found.issues[["rule", "file"]].to_numpy().tolist() == [
        ["size_impossible", "annotation_train.odgt"]
    ]


def test_a_byte_order_mark_is_no_mistake(tmp_path, odgt):
    odgt((ID, [person()]))
    path = tmp_path / "annotation_train.odgt"
    path.write_text(path.read_text(), "utf-8-sig")
    assert len(crowdhuman.read(tmp_path).boxes) == 1


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "a.odgt").symlink_to(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"a\.odgt cannot be read: it is a link to"):
        crowdhuman.read(tmp_path)
