from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from detpipe.core.errors import DataError
from detpipe.core.tables import BOX_COLUMNS
from detpipe.data.formats import voc

from .conftest import rules

BOX = "<bndbox><xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox>"


def cat(*box: object, more: str = "") -> str:
    return f"<name>cat</name>{BOX.format(*box)}{more}"


@pytest.mark.parametrize("folder", ["bccd_voc", "bccd_voc/BCCD"])
def test_bccd_as_its_readme_says(shared_data, folder):
    found = voc.read(shared_data / folder)
    assert found.boxes["class_name"].value_counts().to_dict() == {
        "RBC": 4155, "WBC": 372, "Platelets": 361,
    }  # fmt: skip
    assert found.images["split"].value_counts().to_dict() == {"train": 205, "val": 87, "test": 72}
    assert set(found.images["width"]) == {640}
    assert set(found.images["height"]) == {480}
    assert found.issues.empty
    assert all((shared_data / folder / path).is_file() for path in found.images["path"])


def test_bccd_equals_its_csv_box_for_box(shared_data):
    """The source ships the same 4,888 boxes as csv: an independent reading."""
    found = voc.read(shared_data / "bccd_voc")
    theirs = pd.read_csv(shared_data / "bccd_voc" / "test.csv")
    truth = sorted(
        zip(
            theirs["filename"].str.removesuffix(".jpg"), theirs["cell_type"],
            *(theirs[c].astype(float) for c in ("xmin", "ymin", "xmax", "ymax")), strict=True,
        )
    )  # fmt: skip
    columns = ["image_id", "class_name", *BOX_COLUMNS]
    assert sorted(found.boxes[columns].itertuples(index=False, name=None)) == truth


def test_cards_beside_their_xml_with_other_endings(shared_data):
    found = voc.read(shared_data / "cards_csv", annotations="images", images="images")
    assert (len(found.images), len(found.boxes)) == (117, 231)
    assert found.images["path"].str.endswith(".JPG").sum() == 102
    assert all((shared_data / "cards_csv" / path).is_file() for path in found.images["path"])


def test_fractions_as_in_the_trees(shared_data, tmp_path):
    """A real file with fractional coordinates, a .txt ending and no image."""
    source = (shared_data / "trees_csv/tests/float_annotations.txt").read_text()
    (tmp_path / "Annotations").mkdir()
    (tmp_path / "Annotations/tile.xml").write_text(source)
    (tmp_path / "tile.jpg").touch()
    found = voc.read(tmp_path)
    assert len(found.boxes) == source.count("<object>")
    first = [
        float(source.split(f"<{t}>")[1].split("<")[0]) for t in ("xmin", "ymin", "xmax", "ymax")
    ]
    assert found.boxes[BOX_COLUMNS].iloc[0].tolist() == first
    assert any(value % 1 for value in first)


def test_the_named_ending_wins(shared_data):
    """OSBS_029 is there as .png and as .tif; its XML names the .tif."""
    found = voc.read(shared_data / "trees_csv", annotations="data", images="data")
    paths = dict(zip(found.images["image_id"], found.images["path"], strict=True))
    assert paths["OSBS_029"] == "data/OSBS_029.tif"
    counts = found.boxes.groupby("image_id").size().to_dict()
    assert counts["OSBS_029"] == 61
    assert counts["2019_YELL_2_541000_4977000_image_crop"] == 279
    assert found.boxes["class_name"].value_counts()["Dead"] == 28


@pytest.mark.parametrize(
    ("written", "difficult"),
    [
        ("1", True),
        ("0", False),
        ("Unspecified", False),
        ("0.0597", False),
        ("", False),
        (None, False),
    ],
)
def test_difficult_in_every_spelling(tmp_path, picture, voc_file, written, difficult):
    picture("JPEGImages/a.jpg")
    more = "" if written is None else f"<difficult>{written}</difficult><truncated>x</truncated>"
    voc_file("a", cat(1, 2, 3, 4, more=more))
    assert voc.read(tmp_path).boxes["difficult"].tolist() == [difficult]


@pytest.mark.parametrize("filename", ["a", "", "a.JPG", "a.png", "somewhere/else/a.jpg", "b.jpg"])
def test_a_wrong_file_name_is_mended_by_the_stem(tmp_path, picture, voc_file, filename):
    picture("JPEGImages/a.jpg")
    voc_file("a", cat(1, 2, 3, 4), filename=filename)
    assert voc.read(tmp_path).images["path"].tolist() == ["JPEGImages/a.jpg"]


def test_two_candidates_are_an_error(tmp_path, picture, voc_file):
    picture("JPEGImages/a.png")
    picture("JPEGImages/a.bmp")
    picture("JPEGImages/b.png")
    voc_file("a", filename="a")
    voc_file("b", filename="b")
    found = voc.read(tmp_path)
    (issue,) = found.issues[found.issues["severity"] == "error"].to_dict("records")
    assert issue["rule"] == "ambiguous_image"
    assert issue["value"] == "JPEGImages/a.bmp, JPEGImages/a.png"
    assert found.images["image_id"].tolist() == ["b"]


def test_an_image_without_objects_stays(tmp_path, picture, voc_file):
    picture("JPEGImages/a.jpg")
    picture("JPEGImages/b.jpg")
    voc_file("a")
    voc_file("b", cat(1, 2, 3, 4))
    found = voc.read(tmp_path)
    assert found.images["image_id"].tolist() == ["a", "b"]
    assert found.boxes["image_id"].tolist() == ["b"]


def test_one_based_coordinates(tmp_path, picture, voc_file):
    """Pixels 1..64 of a 64 pixel wide image are 0..64, end excluded."""
    picture("JPEGImages/a.jpg")
    voc_file("a", cat(1, 1, 64, 48))
    assert voc.read(tmp_path).boxes[BOX_COLUMNS].to_numpy().tolist() == [[1, 1, 64, 48]]
    found = voc.read(tmp_path, one_based=True)
    assert found.boxes[BOX_COLUMNS].to_numpy().tolist() == [[0, 0, 64, 48]]
    assert found.boxes["area"].tolist() == [64 * 48]


def test_wrong_boxes_are_kept_for_the_check(tmp_path, picture, voc_file):
    picture("JPEGImages/a.jpg")
    voc_file("a", cat(9, 2, 3, 4), cat("?", 2, 3, 4), "<name>cat</name><polygon/>")
    boxes = voc.read(tmp_path).boxes[BOX_COLUMNS]
    assert boxes.iloc[0].tolist() == [9, 2, 3, 4]
    assert np.isnan(boxes.iloc[1]["x1"])
    assert boxes.iloc[2].isna().all()


def test_lists_decide_and_say_what_they_leave_out(tmp_path, picture, voc_file):
    for stem in ("a", "b", "c", "d"):
        picture(f"JPEGImages/{stem}.jpg")
        voc_file(stem, cat(1, 2, 3, 4))
    lists = tmp_path / "ImageSets" / "Main"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text("a\nb  1\n\n")
    (lists / "test.txt").write_text("c\na\nz\n")
    (lists / "trainval.txt").write_text("a\nb\nd\n")
    (lists / "cat_train.txt").write_text("d 1\n")
    found = voc.read(tmp_path)
    splits = dict(zip(found.images["image_id"], found.images["split"], strict=True))
    assert splits == {"a": "train", "b": "train", "c": "test"}
    assert rules(found) == {"not_in_a_list": 1, "image_in_two_splits": 1, "no_annotation_file": 1}
    assert set(found.issues[found.issues["severity"] == "error"]["image_id"]) == {"a", "z"}


def test_trainval_counts_where_train_and_val_are_missing(tmp_path, picture, voc_file):
    picture("JPEGImages/a.jpg")
    voc_file("a")
    (tmp_path / "ImageSets/Main").mkdir(parents=True)
    (tmp_path / "ImageSets/Main/trainval.txt").write_text("a\n")
    assert voc.read(tmp_path).images["split"].tolist() == ["trainval"]


def test_folders_named_like_splits(tmp_path, picture, voc_file):
    """Roboflow's VOC export: XML beside the images, the same name in two folders."""
    for split in ("train", "valid"):
        picture(f"{split}/a.jpg")
        voc_file("a", cat(1, 2, 3, 4), folder=split)
    found = voc.read(tmp_path)
    assert found.images["path"].tolist() == ["train/a.jpg", "valid/a.jpg"]
    assert found.images["split"].tolist() == ["train", "valid"]
    assert found.images["image_id"].tolist() == ["train/a", "valid/a"]
    assert found.boxes["image_id"].tolist() == ["train/a", "valid/a"]


def test_every_malformed_file_is_named_at_once(tmp_path, voc_file):
    voc_file("a")
    (tmp_path / "Annotations/b.xml").write_text("<annotation>")
    (tmp_path / "Annotations/c.xml").write_text("<html></html>")
    with pytest.raises(DataError, match=r"(?s)b\.xml: no element found.*c\.xml.*<html>"):
        voc.read(tmp_path)


def test_nothing_found_says_what_was_tried(tmp_path, voc_file):
    with pytest.raises(DataError, match="no folder 'Annotations'"):
        voc.read(tmp_path)
    voc_file("a")
    with pytest.raises(DataError, match=r"none of the 1 images was found, first 'a\.jpg'"):
        voc.read(tmp_path)
    voc_file("a", folder="VOC2007/Annotations")
    voc_file("a", folder="VOC2012/Annotations")
    (tmp_path / "Annotations/a.xml").unlink()
    (tmp_path / "Annotations").rmdir()
    with pytest.raises(DataError, match=r"several VOC data sets: VOC2007, VOC2012"):
        voc.read(tmp_path)


def test_blanks_around_a_name_are_no_part_of_it(tmp_path, picture, voc_file):
    picture("JPEGImages/a.jpg")
    box = "<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>3</xmax><ymax>4</ymax></bndbox>"
    voc_file("a", f"<name> cat </name>{box}", f"<name>cat</name>{box}")
    found = voc.read(tmp_path)
    assert found.classes["class_name"].tolist() == ["cat"]
    assert rules(found)["class_name_cleaned"] == 1
