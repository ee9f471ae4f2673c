from __future__ import annotations

import json
import os

import pytest
from PIL import Image

from detpipe.core.errors import DataError
from detpipe.core.tables import BOX_COLUMNS
from detpipe.data.formats import openimages

from .conftest import rules

HEADER = (
    "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,"
    "IsOccluded,IsTruncated,IsGroupOf,IsDepiction,IsInside"
)
CLICKS = ",XClick1X,XClick2X,XClick3X,XClick4X,XClick1Y,XClick2Y,XClick3Y,XClick4Y"
CLASSES = "/m/01g317,Person\n/m/0199g,Bicycle\n/m/01yrx,Cat\n"


@pytest.fixture
def downloaded(tmp_path, picture):
    """Rows of train as Open Images' own files have them; ``more`` are other files."""

    def write(*rows: str, name="train-annotations-bbox.csv", header=HEADER, **more: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("\n".join([header, *rows]) + "\n")
        files = {"class-descriptions-boxable.csv": CLASSES, **more}
        for file, text in files.items():
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).write_text(text)

    return write


CAT = "000a,xclick,/m/01yrx,1,0.25,0.75,0.5,1,0,0,0,0,0"
CROWD = "000a,activemil,/m/01g317,1,0,0.5,0,0.25,1,0,1,0,-1"


def test_shares_and_labels_become_pixels_and_names(tmp_path, picture, downloaded):
    picture("train/000a.jpg", width=64, height=48)
    downloaded(CAT, CROWD)
    found = openimages.read(tmp_path)
    assert found.images[["image_id", "path", "width", "height", "split"]].to_numpy().tolist() == [
        ["000a", "train/000a.jpg", 64, 48, "train"]
    ]
    # XMin XMax YMin YMax of the file against x1 y1 x2 y2 here
    expected = [
        [float(row.split(",")[at]) * side for at, side in ((4, 64), (6, 48), (5, 64), (7, 48))]
        for row in (CAT, CROWD)
    ]
    assert found.boxes[BOX_COLUMNS].to_numpy().tolist() == expected
    assert found.boxes["class_name"].tolist() == ["Cat", "Person"]
    assert found.boxes["iscrowd"].tolist() == [False, True]
    assert found.boxes["area"].tolist() == [32 * 24, 32 * 12]
    assert found.classes["class_name"].tolist() == ["Person", "Bicycle", "Cat"]
    assert rules(found) == {"group_of": 1}
    assert "extra" not in found.boxes


def test_extra_keeps_the_flags_by_their_names(tmp_path, picture, downloaded):
    picture("train/000a.jpg")
    clicks = ",0.1,0.2,0.3,0.4,0.1,0.2,0.3,0.4"
    downloaded(CAT + clicks, CROWD + clicks, header=HEADER + CLICKS)
    found = openimages.read(tmp_path, extra=True)
    assert [json.loads(text) for text in found.boxes["extra"]] == [
        {"Source": "xclick", "IsOccluded": 0, "IsTruncated": 0, "IsDepiction": 0, "IsInside": 0},
        {"Source": "activemil", "IsOccluded": 1, "IsTruncated": 0, "IsDepiction": 0,
         "IsInside": -1},
    ]  # fmt: skip


def test_the_newer_class_file_has_a_header(tmp_path, picture, downloaded):
    picture("train/000a.jpg")
    downloaded(CAT, **{"oidv7-class-descriptions-boxable.csv": f"LabelName,DisplayName\n{CLASSES}"})
    (tmp_path / "class-descriptions-boxable.csv").unlink()
    found = openimages.read(tmp_path)
    assert found.classes["class_name"].tolist() == ["Person", "Bicycle", "Cat"]


def test_of_the_file_of_all_labels_only_those_with_boxes_are_classes(tmp_path, picture, downloaded):
    picture("train/000a.jpg")
    downloaded(CAT, CROWD, **{"class-descriptions.csv": CLASSES})
    (tmp_path / "class-descriptions-boxable.csv").unlink()
    assert openimages.read(tmp_path).classes["class_name"].tolist() == ["Person", "Cat"]
    chosen = openimages.read(tmp_path, classes="class-descriptions.csv")
    assert chosen.classes["class_name"].tolist() == ["Person", "Bicycle", "Cat"]


def test_labels_without_a_name_keep_their_label(tmp_path, picture, downloaded):
    picture("train/000a.jpg")
    downloaded(CAT, CROWD, **{"class-descriptions-boxable.csv": "/m/01yrx,Cat\n/m/x,Cat\n"})
    found = openimages.read(tmp_path)
    assert found.boxes["class_name"].tolist() == ["Cat", "/m/01g317"]
    assert rules(found) == {"unnamed_label": 1, "group_of": 1, "duplicate_category_name": 1}
    (tmp_path / "class-descriptions-boxable.csv").unlink()
    without = openimages.read(tmp_path)
    assert without.classes["class_name"].tolist() == ["/m/01g317", "/m/01yrx"]
    assert rules(without) == {"no_class_names": 1, "group_of": 1}


def test_pictures_without_rows_are_negatives(tmp_path, picture, downloaded):
    for name in ("train/000a.jpg", "train/000b.jpg", "test/000c.jpg"):
        picture(name)
    downloaded(CAT)
    found = openimages.read(tmp_path)
    assert found.images["path"].tolist() == ["train/000a.jpg", "train/000b.jpg"]
    assert found.images["width"].tolist() == [64, 64]
    assert rules(found) == {"images_without_rows": 1}
    left = openimages.read(tmp_path, negatives=False)
    assert left.images["path"].tolist() == ["train/000a.jpg"]
    assert left.issues.empty


def test_one_folder_for_all_splits_has_no_negatives(tmp_path, picture, downloaded):
    for name in ("000a", "000b", "000c"):
        picture(f"images/{name}.jpg")
    downloaded(CAT)
    downloaded(CAT.replace("000a", "000b"), name="validation-annotations-bbox.csv")
    found = openimages.read(tmp_path)
    assert found.images[["image_id", "split"]].to_numpy().tolist() == [
        ["000a", "train"], ["000b", "validation"],
    ]  # fmt: skip


def test_images_that_were_not_downloaded(tmp_path, picture, downloaded):
    picture("validation/000a.png")
    other = CAT.replace("000a", "ffff")
    downloaded(other, name="train-annotations-bbox.csv")
    downloaded(CAT, other, name="validation-annotations-bbox.csv")
    with pytest.raises(DataError, match=r"none of the 1 image\(s\) that train-annot.*ffff\.jpg"):
        openimages.read(tmp_path)
    found = openimages.read(tmp_path, partial=True)
    assert found.images["path"].tolist() == ["validation/000a.png"]
    assert found.boxes["image_id"].tolist() == ["000a"]
    assert rules(found) == {"not_downloaded": 2, "image_ending": 1}
    values = found.issues.set_index("rule").loc["not_downloaded", "value"].tolist()
    assert values == ["1 of 1 image(s), first ffff", "1 of 2 image(s), first ffff"]
    whole = openimages.read(tmp_path, annotations="validation-annotations-bbox.csv")
    assert whole.images["path"].tolist() == ["validation/000a.png", "validation/ffff.jpg"]
    (tmp_path / "validation/000a.png").unlink()
    with pytest.raises(DataError, match="not one picture"):
        openimages.read(tmp_path, partial=True)


def test_as_fiftyone_downloads_it(tmp_path, picture, downloaded):
    picture("validation/data/000a.jpg")
    downloaded(
        CAT, name="validation/labels/detections.csv",
        **{"validation/metadata/classes.csv": CLASSES, "validation/labels/classifications.csv": ""},
    )  # fmt: skip
    (tmp_path / "class-descriptions-boxable.csv").unlink()
    found = openimages.read(tmp_path)
    assert found.images[["path", "split"]].to_numpy().tolist() == [
        ["validation/data/000a.jpg", "validation"]
    ]
    assert found.boxes["class_name"].tolist() == ["Cat"]
    assert rules(found) == {"other_annotations": 1}


def test_labels_of_whole_images_are_named_and_not_read(tmp_path, picture, downloaded):
    picture("train/000a.jpg")
    text = "ImageID,Source,LabelName,Confidence\n000a,verification,/m/01yrx,1\n"
    downloaded(CAT, **{"train-annotations-human-imagelabels-boxable.csv": text})
    found = openimages.read(tmp_path)
    (issue,) = found.issues.to_dict("records")
    assert (issue["rule"], issue["value"]) == (
        "other_annotations", "train-annotations-human-imagelabels-boxable.csv",
    )  # fmt: skip


def test_the_image_is_taken_upright(tmp_path, downloaded):
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "train").mkdir()
    Image.new("RGB", (64, 48)).save(tmp_path / "train/000a.jpg", exif=exif)
    downloaded(CAT)
    found = openimages.read(tmp_path)
    assert found.boxes[BOX_COLUMNS].to_numpy().tolist() == [[12, 32, 36, 64]]


def test_the_same_image_in_two_splits_keeps_both(tmp_path, picture, downloaded):
    picture("train/000a.jpg")
    picture("test/000a.jpg")
    downloaded(CAT)
    downloaded(CROWD, name="test-annotations-bbox.csv")
    found = openimages.read(tmp_path)
    assert found.images["image_id"].tolist() == ["test-000a", "train-000a"]
    assert found.boxes["image_id"].tolist() == ["test-000a", "train-000a"]
    assert found.boxes["class_name"].tolist() == ["Person", "Cat"]


def test_what_is_wrong_is_said(tmp_path, picture, downloaded):
    with pytest.raises(DataError, match="no boxes of Open Images"):
        openimages.read(tmp_path)
    downloaded(CAT, header=HEADER.replace("XMax", "Right"))
    with pytest.raises(DataError, match=r"lacks the column\(s\) XMax"):
        openimages.read(tmp_path)
    downloaded(CAT, CAT + ",1,2", CAT)
    with pytest.raises(
        DataError, match=r"train-annotations-bbox\.csv.*\n- line 3: 15 values, not 13: 000a"
    ):
        openimages.read(tmp_path)
    picture("train/000a.jpg")
    downloaded(CAT.replace("0.75", "?"), CAT.replace(",1,", ",0.5,", 1))
    found = openimages.read(tmp_path)
    assert found.boxes["x2"].isna().tolist() == [True, False]  # the check reports it
    assert rules(found) == {"score_column": 1}
    with pytest.raises(DataError, match="no such annotation file"):
        openimages.read(tmp_path, annotations=["a.csv"])
    with pytest.raises(DataError, match="no such file of class names"):
        openimages.read(tmp_path, classes="a.csv")
    with pytest.raises(DataError, match="must have two columns"):
        openimages.read(tmp_path, classes="train-annotations-bbox.csv")


# --- files that are not as they should be ------------------------------------------------------


def test_pictures_outside_the_folder_are_not_taken(tmp_path, picture):
    """``../data`` is FiftyOne's place beside ``labels`` only."""
    for name in ("set/000a.jpg", "data/000a.jpg", "data/private.jpg"):
        picture(name)
    (tmp_path / "set/train-annotations-bbox.csv").write_text(f"{HEADER}\n{CAT}\n")
    assert openimages.read(tmp_path / "set").images["path"].tolist() == ["000a.jpg"]


def test_pictures_beside_fiftyones_labels(tmp_path, picture):
    """In a folder that is not called like a split."""
    picture("mine/data/000a.jpg")
    (tmp_path / "mine/labels").mkdir()
    (tmp_path / "mine/labels/detections.csv").write_text(f"{HEADER}\n{CAT}\n")
    assert openimages.read(tmp_path).images["path"].tolist() == ["mine/data/000a.jpg"]


def test_hidden_copies_are_not_read(tmp_path, picture, downloaded):
    picture("train/000a.jpg")
    downloaded(CAT)
    for name in ("train/._000a.jpg", "._train-annotations-bbox.csv", "._classes.csv"):
        (tmp_path / name).write_bytes(b"\0\5\26\7")
    found = openimages.read(tmp_path)
    assert found.images["path"].tolist() == ["train/000a.jpg"]
    assert found.issues.empty


@pytest.mark.parametrize(
    ("written", "crowd"),
    [("1", True), ("1.0", True), ("True", True), (" 1", True), ("0", False), ("-1", False),
     ("False", False), ("", False)],
)  # fmt: skip
def test_group_of_in_every_spelling(tmp_path, picture, downloaded, written, crowd):
    picture("train/000a.jpg")
    values = CAT.split(",")
    values[HEADER.split(",").index("IsGroupOf")] = written
    downloaded(",".join(values))
    assert openimages.read(tmp_path).boxes["iscrowd"].tolist() == [crowd]


def test_no_row_is_said(tmp_path, downloaded):
    downloaded()
    with pytest.raises(DataError, match=r"not one box in train-annotations-bbox\.csv"):
        openimages.read(tmp_path)


def test_two_pictures_of_one_name_have_two_ids(tmp_path, picture, downloaded):
    picture("train/000a.jpg")
    picture("train/000a.png")
    downloaded(CAT)
    found = openimages.read(tmp_path)
    assert found.images["image_id"].tolist() == ["train-train/000a.jpg", "train-train/000a.png"]
    assert found.boxes["image_id"].tolist() == ["train-train/000a.jpg"]


def test_encoding_is_an_option(tmp_path, picture, downloaded):
    picture("train/000a.jpg")
    downloaded(CAT)
    classes = tmp_path / "class-descriptions-boxable.csv"
    classes.write_text("/m/01yrx,Chatière\n", "cp1252")
    with pytest.raises(DataError, match=r"boxable\.csv is not written.*option 'encoding'"):
        openimages.read(tmp_path)
    found = openimages.read(tmp_path, encoding="cp1252")
    assert found.boxes["class_name"].tolist() == ["Chatière"]


def test_a_file_name_that_is_not_utf8(tmp_path, picture, downloaded):
    picture("train/000a.jpg")
    path = picture("train/b.jpg")
    path.rename(path.with_name(os.fsdecode(b"caf\xe9.jpg")))
    downloaded(CAT)
    with pytest.raises(DataError, match=r"not in UTF-8.*\n- train/caf\\udce9\.jpg"):
        openimages.read(tmp_path)
