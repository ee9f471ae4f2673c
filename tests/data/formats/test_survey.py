"""How far ``auto`` looks, and what it takes for what in spite of how it is written."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from detpipe.core.errors import DataError
from detpipe.data.formats import auto, survey
from detpipe.data.formats.beginnings import header, is_coco, is_csv, is_yolo


@pytest.fixture
def text(tmp_path):
    def write(name: str, content: object) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        written = content if isinstance(content, str) else json.dumps(content)
        path.write_bytes(written.encode())

    return write


def taken_for(root) -> str:
    """The reader that was chosen."""
    issues = auto.read(root).issues
    (value,) = issues["value"][issues["rule"] == "format"]
    return value.split(":")[0]


# --- many files --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["coco", "voc"])
def test_many_other_files_of_the_ending_do_not_hide_a_set(
    tmp_path, picture, text, coco_file, voc_file, kind
):
    for number in range(600):
        text(f"0/{number}/notes.{'json' if kind == 'coco' else 'xml'}", '{"a": 1}')
    picture("set/images/a.jpg")
    if kind == "coco":
        coco_file("set/annotations/instances_train.json")
    else:
        voc_file("a", folder="set/Annotations")
        shutil.move(tmp_path / "set/images", tmp_path / "set/JPEGImages")
    assert taken_for(tmp_path) == kind


def test_data_yaml_is_found_among_many_yaml_files(tmp_path, picture, text):
    picture("images/train/a.jpg")
    text("labels/train/a.txt", "0 .5 .5 .2 .2\n")
    for number in range(300):
        text(f"{'az'[number % 2]}{number}.yaml", "lr: 0.1\n")
    text("data.yaml", "names: [cat]\ntrain: images/train\n")
    assert taken_for(tmp_path) == "yolo"


def test_forty_csv_files_are_forty_ways(tmp_path, picture, text):
    picture("a.jpg")
    for number in range(40):
        text(f"{number}.csv", "image,label,x1,y1,x2,y2\na.jpg,cat,1,2,3,4\n")
    with pytest.raises(DataError, match="can be read in 40 ways"):
        auto.read(tmp_path)


def test_files_that_were_not_opened_are_counted(tmp_path, picture, text, monkeypatch):
    monkeypatch.setattr(survey, "MOST_BYTES", 2 * survey._OPENING)
    picture("a.jpg")
    for number in range(5):
        text(f"{number}.json", {"a": number})
    with pytest.raises(DataError, match=r"may be annotations \(3 were not opened\)"):
        auto.read(tmp_path)


def test_a_set_too_far_down_is_not_called_empty(tmp_path, picture):
    picture("/".join(["x"] * (survey.DEPTH + 1)) + "/a.jpg")
    with pytest.raises(DataError, match=f"nothing in {survey.DEPTH} levels of folders"):
        auto.read(tmp_path)
    os.rename(tmp_path / "x" / "x", tmp_path / "y")  # noqa: PTH104
    assert taken_for(tmp_path) == "folder"


# --- beginnings --------------------------------------------------------------------------------


@pytest.mark.parametrize("front", ["info", "licenses"])
def test_coco_whose_beginning_is_long(tmp_path, picture, text, coco_file, front):
    picture("images/a.jpg")
    path = coco_file()
    long = {"info": {"description": "x" * survey.HEAD}} if front == "info" else {
        "info": {}, "licenses": [{"id": n, "url": "x" * 100} for n in range(700)],
    }  # fmt: skip
    path.write_text(json.dumps({**long, **json.loads(path.read_text())}))
    assert taken_for(tmp_path) == "coco"
    assert not is_coco('{"info": {"description": "x"}}')  # whole, and no lists
    assert not is_coco('{"openapi": "3", "info": {"description": "x')


@pytest.mark.parametrize(
    ("content", "yolo"),
    [
        ("names: [a]\ntrain: x\n", True),
        ("'names': [a]\n\"train\" : x\n", True),
        ("{names: [a], train: x}\n", True),
        ('{"names": ["a"],\n "val": "x"}\n', True),
        ("other:\n  names: [a]\n  train: x\n", False),
        ("{other: 1, train: x}\n", False),
    ],
)
def test_spellings_of_data_yaml(content, yolo):
    assert is_yolo(content) == yolo


@pytest.mark.parametrize("end", ["\r", "\r\n"])
def test_other_line_ends(tmp_path, picture, text, end):
    picture("images/a.jpg")
    text("labels/a.txt", "0 .5 .5 .2 .2\n")
    text("data.yaml", "# a set\nnames: [cat]\ntrain: images\n".replace("\n", end))
    assert taken_for(tmp_path) == "yolo"
    (tmp_path / "data.yaml").unlink()
    (tmp_path / "labels/a.txt").unlink()
    text("boxes.csv", "image,label,x1,y1,x2,y2\na.jpg,cat,1,2,3,4\n".replace("\n", end))
    assert taken_for(tmp_path) == "csv"


@pytest.mark.parametrize("before", ["\n", " \n\n", "sep=;\n"])
def test_what_stands_before_a_csv_header(before):
    assert is_csv(header(before + "image;label;x1;y1;x2;y2\na.jpg;cat;1;2;3;4\n"))


def test_rows_without_header_may_have_signs_and_exponents():
    assert is_csv(header("a.jpg,-3,0,1e1,4.5,cat\n"))
    assert not is_csv(header("a.jpg,-3,0,nan,4.5,cat\n"))


@pytest.mark.parametrize(
    "content",
    [
        "image,label,x1,y1,x2,y2\na.jpg,cat,1,2,3,4\n",
        "a.jpg,1,2,3,4,cat\n",
        "image\tlabel\tx1\ty1\tx2\ty2\na.jpg\tcat\t1\t2\t3\t4\n",
    ],
)
def test_a_csv_may_end_in_txt(tmp_path, picture, text, content):
    picture("a.jpg")
    text("boxes.txt", content)
    text("readme.txt", "a, b and c\n")
    assert taken_for(tmp_path) == "csv"
    assert len(auto.read(tmp_path).boxes) == 1


def test_tracks_are_no_csv(tmp_path, picture, text):
    picture("img1/000001.jpg")
    text("gt.txt", "1,1,20,30,40,50\n")
    assert taken_for(tmp_path) == "folder"


def test_a_list_of_a_split_that_cannot_be_read(tmp_path, picture, voc_file):
    picture("JPEGImages/a.jpg")
    voc_file("a")
    (tmp_path / "ImageSets/Main").mkdir(parents=True)
    (tmp_path / "ImageSets/Main/train.txt").symlink_to("gone.txt")
    (tmp_path / "notes.csv").write_text("image,label,x1,y1,x2,y2\na.jpg,cat,1,2,3,4\n")
    with pytest.raises(DataError, match="can be read in 2 ways"):
        auto.read(tmp_path)


def test_links_to_themselves_hide_nothing(tmp_path, picture, coco_file):
    picture("images/a.jpg")
    coco_file("train.json")
    for name in ("x", "x.yaml", "images/b.jpg"):
        (tmp_path / name).symlink_to((tmp_path / name).name)
    found = auto.read(tmp_path)
    assert taken_for(tmp_path) == "coco"
    assert found.images["path"].tolist() == ["images/a.jpg"]
