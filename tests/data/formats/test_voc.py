from __future__ import annotations

import json
import os
from xml.sax.saxutils import escape

import pandas as pd
import pytest
from PIL import Image

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
    assert rules(found) == {"truncated_objects": 1}
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


def test_boxes_that_are_no_numbers_show_what_is_written(tmp_path, picture, voc_file):
    picture("JPEGImages/a.jpg")
    wrong = cat("?", 2, 3, 4), "<name>cat</name><polygon/>", "<name>x</name>", cat("inf", 2, 3, 4)
    voc_file("a", cat(9, 2, 3, 4), *wrong)
    found = voc.read(tmp_path)
    assert found.boxes[BOX_COLUMNS].to_numpy().tolist() == [[9, 2, 3, 4]]
    columns = ["severity", "rule", "file", "annotation_id", "value"]
    wrong = found.issues[found.issues["rule"] == "box_not_a_number"]
    assert wrong[columns].to_numpy().tolist() == [
        ["warning", "box_not_a_number", "Annotations/a.xml", name, value]
        for name, value in (
            ("a-2", "cat xmin=? ymin=2 xmax=3 ymax=4"), ("a-3", "cat without a box"),
            ("a-4", "x without a box"), ("a-5", "cat xmin=inf ymin=2 xmax=3 ymax=4"),
        )
    ]  # fmt: skip


def test_a_decimal_comma_is_an_error(tmp_path, picture, voc_file):
    picture("JPEGImages/a.jpg")
    voc_file("a", cat("1,5", 2, 3, "4,25"), cat(1, 2, 3, 4))
    found = voc.read(tmp_path)
    (issue,) = found.issues.to_dict("records")
    assert (issue["severity"], issue["rule"]) == ("error", "decimal_comma")
    assert issue["value"] == "cat xmin=1,5 ymin=2 xmax=3 ymax=4,25"
    assert found.boxes["annotation_id"].tolist() == ["a-2"]


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


def test_names_with_blanks_are_listed_whole(tmp_path, picture, voc_file):
    for stem in ("a b", "c 1", "d"):
        picture(f"JPEGImages/{stem}.jpg")
        voc_file(stem)
    (tmp_path / "ImageSets/Main").mkdir(parents=True)
    (tmp_path / "ImageSets/Main/train.txt").write_text("a b \nc 1\nd -1\n")
    found = voc.read(tmp_path)
    assert found.images["image_id"].tolist() == ["a b", "c 1", "d"]
    assert found.issues.empty


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
    with pytest.raises(DataError, match="in a folder 'Annotations'"):
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


# D15 to D19 have tests above: fractions, fields left out, names without ending, no object, order
# of corners.


def test_extra_keeps_what_else_an_object_says(tmp_path, picture, voc_file):
    picture("JPEGImages/a.jpg")
    more = (
        "<pose>Left</pose><truncated> 1 </truncated><difficult>0</difficult>"
        "<attributes><attribute><name>age</name><value>3</value></attribute>"
        "<attribute><name>rotation</name><value>0.0</value></attribute></attributes>"
    )
    voc_file("a", cat(1, 2, 3, 4, more=more), cat(1, 2, 3, 4))
    found = voc.read(tmp_path, extra=True)
    assert json.loads(found.boxes["extra"][0]) == {
        "pose": "Left", "truncated": "1",
        "attributes": {
            "attribute": [{"name": "age", "value": "3"}, {"name": "rotation", "value": "0.0"}]
        },
    }  # fmt: skip
    assert found.boxes["extra"][1] == ""
    assert rules(found) == {"truncated_objects": 1}
    assert "extra" not in voc.read(tmp_path).boxes


def test_truncated_objects_are_counted_as_the_readmes_say(shared_data):
    for folder, options, count, objects in (
        ("bccd_voc", {}, 1131, 4888),
        ("cards_csv", {"annotations": "images", "images": "images"}, 5, 231),
    ):
        issues = voc.read(shared_data / folder, **options).issues.set_index("rule")
        assert issues.loc["truncated_objects", "value"] == f"{count} of {objects} objects"


def test_bccd_oddities(shared_data):
    found = voc.read(shared_data / "bccd_voc", extra=True)
    boxes = found.boxes
    flat = boxes[(boxes["x1"] == boxes["x2"]) | (boxes["y1"] == boxes["y2"])]
    assert flat[["image_id", "class_name", *BOX_COLUMNS]].to_numpy().tolist() == [
        ["BloodImage_00338", "RBC", 504, 337, 504, 337],
        ["BloodImage_00343", "RBC", 181, 329, 181, 329],
    ]
    sides = boxes[["x2", "y2"]].to_numpy() - boxes[["x1", "y1"]].to_numpy()
    area = sides.prod(axis=1)
    assert ((area > 0) & (area < 32 * 32)).sum() == 39
    assert boxes["area"].tolist() == area.tolist()
    assert boxes.groupby("image_id").size().max() == 30
    truncated = [json.loads(text)["truncated"] for text in boxes["extra"]]
    assert truncated.count("1") == 1131


@pytest.mark.parametrize(
    ("shape", "corners"),
    [
        ("<robndbox><cx>30</cx><cy>20</cy><w>20</w><h>10</h><angle>0</angle></robndbox>",
         [20, 15, 40, 25]),
        ("<robndbox><cx>30</cx><cy>20</cy><w>20</w><h>10</h><angle>1.5707963267948966</angle>"
         "</robndbox>", [25, 10, 35, 30]),
        ("<robndbox><cx>30</cx><cy>20</cy><w>10</w><h>10</h><angle>0.7853981633974483</angle>"
         "</robndbox>", [30 - 50**0.5, 20 - 50**0.5, 30 + 50**0.5, 20 + 50**0.5]),
        ("<polygon><x1>5</x1><y1>6</y1><x2>9</x2><y2>2</y2><x3>7</x3><y3>8</y3></polygon>",
         [5, 2, 9, 8]),
        ("<polygon><username>me</username><pt><x>5</x><y>6</y></pt><pt><x>9</x><y>2</y></pt>"
         "</polygon>", [5, 2, 9, 6]),
    ],
)  # fmt: skip
def test_boxes_of_other_shapes(tmp_path, picture, voc_file, shape, corners):
    picture("JPEGImages/a.jpg")
    voc_file("a", f"<name>cat</name>{shape}")
    found = voc.read(tmp_path)
    assert found.boxes[BOX_COLUMNS].iloc[0].tolist() == pytest.approx(corners)
    assert rules(found) == {"rotated_boxes" if "robndbox" in shape else "polygons": 1}


def test_polygons_and_turned_boxes_beside_a_box(tmp_path, picture, voc_file):
    picture("JPEGImages/a.jpg")
    polygon = "<polygon><x1>0</x1><y1>0</y1><x2>60</x2><y2>0</y2></polygon>"
    turn = "<attributes><attribute><name>rotation</name><value>45</value></attribute></attributes>"
    voc_file("a", cat(1, 2, 3, 4, more=polygon), cat(1, 2, 3, 4, more=turn), cat(1, 2, 3, 4))
    found = voc.read(tmp_path)
    assert found.boxes[BOX_COLUMNS].to_numpy().tolist() == [[1, 2, 3, 4]] * 3
    values = dict(zip(found.issues["rule"], found.issues["value"], strict=True))
    assert values == {"polygons": "1 of 3 objects", "rotated_boxes": "1 of 3 objects"}
    assert found.boxes["annotation_id"].tolist() == ["a-1", "a-2", "a-3"]


def test_another_ending_is_named_and_can_be_read(shared_data, tmp_path, picture):
    """trees_csv/tests/float_annotations.txt is VOC XML, and there is no tile.jpg."""
    text = (shared_data / "trees_csv/tests/float_annotations.txt").read_text()
    with pytest.raises(DataError, match=r"tests/float_annotations\.txt can be read with.*'suffix'"):
        voc.read(shared_data / "trees_csv", annotations="tests")
    with pytest.raises(DataError, match=r"none of the 1 images was found, first 'tile\.jpg'"):
        voc.read(shared_data / "trees_csv", annotations="tests", suffix=".txt")
    picture("tile.jpg")
    (tmp_path / "Annotations").mkdir()
    (tmp_path / "Annotations/float.txt").write_text(text)
    (tmp_path / "Annotations/notes.txt").write_text("no annotation")
    xml = "<annotation><filename>tile.jpg</filename></annotation>"
    (tmp_path / "Annotations/a.xml").write_text(xml)
    found = voc.read(tmp_path)
    (issue,) = found.issues.to_dict("records")
    assert issue["rule"] == "xml_other_ending" and "Annotations/float.txt" in issue["value"]
    (tmp_path / "Annotations/notes.txt").unlink()
    (tmp_path / "Annotations/a.xml").unlink()
    assert len(voc.read(tmp_path, suffix=".TXT").boxes) == text.count("<object>")
    with pytest.raises(DataError, match="must begin with a dot"):
        voc.read(tmp_path, suffix="txt")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "latin-1", "cp1252", "gb18030", "euc-jp"])
def test_declared_encodings(tmp_path, picture, voc_file, encoding):
    picture("JPEGImages/a.jpg")
    name = "猫" if encoding in ("gb18030", "euc-jp") else "é"
    path = voc_file("a", cat(1, 2, 3, 4).replace("cat", name))
    text = f'<?xml version="1.0" encoding="{encoding}"?>\n{path.read_text("utf-8")}'
    path.write_bytes(text.encode(encoding))
    assert voc.read(tmp_path).classes["class_name"].tolist() == [name]


def test_encodings_that_are_not_declared_are_an_option(tmp_path, picture, voc_file):
    picture("JPEGImages/a.jpg")
    path = voc_file("a", cat(1, 2, 3, 4).replace("cat", "鸟"))
    path.write_bytes(path.read_text("utf-8").encode("gb18030"))
    with pytest.raises(DataError, match=r"a\.xml: it is not UTF-8.*option 'encoding'"):
        voc.read(tmp_path)
    assert voc.read(tmp_path, encoding="gb18030").classes["class_name"].tolist() == ["鸟"]
    with pytest.raises(DataError, match="unknown encoding"):
        voc.read(tmp_path, encoding="latein")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_entities_are_refused(tmp_path, picture, voc_file, encoding):
    """Billion laughs, and files of this machine."""
    picture("JPEGImages/a.jpg")
    path = voc_file("a", cat(1, 2, 3, 4).replace("cat", "&a;"))
    body, head = path.read_text("utf-8"), f'<?xml version="1.0" encoding="{encoding}"?>'
    laughs = "".join(f'<!ENTITY {n} "{"&" + b + ";" + "&" + b + ";"}">' for n, b in ("ab", "bc"))
    for inner in (f"{laughs}<!ENTITY c 'ha'>", f"<!ENTITY a SYSTEM 'file://{path}'>"):
        path.write_bytes(f"{head}<!DOCTYPE annotation [{inner}]>{body}".encode(encoding))
        with pytest.raises(DataError, match=r"a\.xml: it declares XML entities"):
            voc.read(tmp_path)
    path.write_bytes(f"{head}<!DOCTYPE annotation SYSTEM 'voc.dtd'>{body}".replace(
        "&a;", "cat").encode(encoding))  # fmt: skip
    assert voc.read(tmp_path).classes["class_name"].tolist() == ["cat"]


def test_an_image_that_is_missing_is_left_to_the_check(tmp_path, picture, voc_file):
    picture("JPEGImages/a.jpg")
    voc_file("a", cat(1, 2, 3, 4))
    voc_file("b", cat(1, 2, 3, 4))
    found = voc.read(tmp_path)
    assert found.images["path"].tolist() == ["JPEGImages/a.jpg", "JPEGImages/b.jpg"]
    assert len(found.boxes) == 2


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "I;16"])
def test_pictures_of_every_mode(tmp_path, voc_file, mode):
    """D13, D14: what a picture looks like inside is no matter of the reader's."""
    (tmp_path / "JPEGImages").mkdir()
    Image.new(mode, (64, 48)).save(tmp_path / f"JPEGImages/a.{'jpg' if mode == 'CMYK' else 'png'}")
    voc_file("a", cat(1, 2, 3, 4))
    assert len(voc.read(tmp_path).images) == 1


@pytest.mark.parametrize("name", ["a,b", 'a "b"', "a/b", "a-b", "a (b)", "a & b", "<a>", "0"])
def test_class_names_with_every_sign(tmp_path, picture, voc_file, name):
    """D26."""
    picture("JPEGImages/a.jpg")
    voc_file("a", cat(1, 2, 3, 4).replace("cat", escape(name)))
    assert voc.read(tmp_path).classes["class_name"].tolist() == [name]


# --- files that are not as they should be ------------------------------------------------------


def write_list(tmp_path, name: str, *lines: str, encoding="utf-8") -> None:
    folder = tmp_path / "ImageSets/Main"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("\n".join(lines), encoding)


def splits_of(found) -> dict[str, str]:
    return dict(zip(found.images["image_id"], found.images["split"], strict=True))


def test_linked_folders_are_read_and_hidden_copies_are_not(
    tmp_path, picture, voc_file, tmp_path_factory
):
    picture("JPEGImages/a.jpg")
    inside = voc_file("a", cat(1, 2, 3, 4))
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    inside.rename(elsewhere / "a.xml")
    (tmp_path / "Annotations/linked").symlink_to(elsewhere)
    for name in (".ipynb_checkpoints/a-checkpoint", "._a", "__MACOSX/a"):
        voc_file(name, cat(1, 2, 3, 4), folder="Annotations")
    (tmp_path / "Annotations/._a.xml").write_bytes(b"\0\5\26\7")
    found = voc.read(tmp_path)
    assert found.images["image_id"].tolist() == ["a"]
    assert found.issues.empty


def test_one_name_in_two_folders_must_be_listed_with_its_folder(tmp_path, picture, voc_file):
    for folder in ("s1", "s2"):
        picture(f"JPEGImages/{folder}/a.jpg")
        voc_file("a", cat(1, 2, 3, 4), folder=f"Annotations/{folder}")
    write_list(tmp_path, "train.txt", "a")
    found = voc.read(tmp_path)
    (issue,) = found.issues.to_dict("records")
    assert (issue["severity"], issue["rule"]) == ("error", "ambiguous_image")
    assert issue["value"] == "Annotations/s1/a.xml, Annotations/s2/a.xml"
    assert found.images.empty
    write_list(tmp_path, "train.txt", "s1/a")
    write_list(tmp_path, "val.txt", "s2/a.jpg")
    found = voc.read(tmp_path)
    assert found.images[["path", "split"]].to_numpy().tolist() == [
        ["JPEGImages/s1/a.jpg", "train"], ["JPEGImages/s2/a.jpg", "val"]
    ]  # fmt: skip
    assert found.issues.empty


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (("train.txt", "valid.txt"), ("train", "valid")),
        (("Train.txt", "Val.TXT"), ("train", "val")),
        (("training.txt", "dev.txt"), ("training", "dev")),
    ],
)
def test_lists_by_other_names(tmp_path, picture, voc_file, names, splits):
    for stem, name in zip("ab", names, strict=True):
        picture(f"JPEGImages/{stem}.jpg")
        voc_file(stem)
        write_list(tmp_path, name, f"{stem}.JPG")
    write_list(tmp_path, "trainval.txt", "a", "b")
    found = voc.read(tmp_path)
    assert splits_of(found) == dict(zip("ab", splits, strict=True))
    assert found.issues.empty


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "latin-1"])
def test_encodings_of_lists(tmp_path, picture, voc_file, encoding):
    picture("JPEGImages/é.jpg")
    voc_file("é")
    write_list(tmp_path, "train.txt", "é", encoding=encoding)
    if encoding == "latin-1":
        with pytest.raises(DataError, match=r"train\.txt is not written in UTF-8"):
            voc.read(tmp_path)
    else:
        assert splits_of(voc.read(tmp_path)) == {"é": "train"}


@pytest.mark.parametrize(
    ("annotations", "images"),
    [
        ("Annotations/{}", "JPEGImages/{}"),
        ("Annotations/{}", "images/{}"),
        ("Annotations/{}", "JPEGImages"),
        ("{}/annotations", "{}/images"),
        ("{}/xml", "{}/JPEGImages"),
    ],
)
def test_places_of_the_images_of_splits(tmp_path, picture, voc_file, annotations, images):
    for split, name in (("train", "a"), ("val", "b")):
        picture(f"{images.format(split)}/{name}.jpg")
        voc_file(name, folder=annotations.format(split))
    found = voc.read(tmp_path)
    assert found.images[["path", "split"]].to_numpy().tolist() == [
        [f"{images.format(split)}/{name}.jpg", split] for split, name in (("train", "a"),
                                                                         ("val", "b"))
    ]  # fmt: skip
    assert found.issues.empty


def test_nothing_outside_the_folder_is_taken(tmp_path, picture, voc_file):
    picture("images/a.jpg")
    voc_file("a", folder="set")
    with pytest.raises(DataError, match="none of the 1 images was found"):
        voc.read(tmp_path / "set", annotations=".")


def test_a_copy_with_its_originals_file_name(tmp_path, picture, voc_file):
    """Augmented: the boxes of a_flip.xml are those of a_flip.jpg."""
    for stem in ("a", "a_flip"):
        picture(f"JPEGImages/{stem}.jpg")
        voc_file(stem, cat(1, 2, 3, 4), filename="a.jpg")
    found = voc.read(tmp_path)
    assert found.images["path"].tolist() == ["JPEGImages/a.jpg", "JPEGImages/a_flip.jpg"]
    (issue,) = found.issues.to_dict("records")
    assert (issue["severity"], issue["rule"]) == ("warning", "other_file_name")
    assert "Annotations/a_flip.xml: 'a.jpg' -> a_flip.jpg" in issue["value"]
    (tmp_path / "JPEGImages/a_flip.jpg").unlink()
    assert voc.read(tmp_path).images["path"].tolist() == ["JPEGImages/a.jpg"] * 2


def test_a_namesake_in_another_folder_is_not_preferred(tmp_path, picture, voc_file):
    picture("JPEGImages/cat.jpg")
    picture("1.png")  # a preview, say
    voc_file("1", filename="cat.jpg")
    assert voc.read(tmp_path).images["path"].tolist() == ["JPEGImages/cat.jpg"]


@pytest.mark.parametrize(
    ("filename", "rule"),
    [("C:\\x\\a.jpg", "image_path"), ("A.JPG", "image_spelling"), ("a.png", "image_ending")],
)
def test_how_an_image_was_found_is_said(tmp_path, picture, voc_file, filename, rule):
    picture("JPEGImages/a.jpg")
    voc_file("a", filename=filename)
    assert rules(voc.read(tmp_path)) == {rule: 1}


def test_files_that_cannot_be_read_are_named(tmp_path, picture, voc_file):
    picture("JPEGImages/a.jpg")
    path = voc_file("a", cat(1, 2, 3, 4))
    (tmp_path / "Annotations/gone.xml").symlink_to(tmp_path / "nowhere")
    (tmp_path / "Annotations/folder.xml").mkdir()
    with pytest.raises(DataError, match=r"gone\.xml: it is a link to .*nowhere") as error:
        voc.read(tmp_path)
    assert "folder.xml" not in str(error.value)
    (tmp_path / "Annotations/gone.xml").unlink()
    deep = "<b>" * 5000 + "</b>" * 5000
    path.write_text(path.read_text().replace("</object>", f"{deep}</object>"))
    assert len(voc.read(tmp_path).boxes) == 1
    with pytest.raises(DataError, match=r"a\.xml: an <object> is nested too deeply"):
        voc.read(tmp_path, extra=True)


def test_a_declared_encoding_that_is_wrong_has_a_way_out(tmp_path, picture, voc_file):
    picture("JPEGImages/a.jpg")
    path = voc_file("a", cat(1, 2, 3, 4).replace("cat", "é"))
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n{path.read_text("utf-8")}'
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=r"not UTF-8 as it declares.*option 'encoding'"):
        voc.read(tmp_path)
    assert voc.read(tmp_path, encoding="latin-1").classes["class_name"].tolist() == ["é"]


def test_a_file_name_that_is_not_utf8(tmp_path, voc_file):
    path = voc_file("a")
    path.rename(path.with_name(os.fsdecode(b"caf\xe9.xml")))
    with pytest.raises(DataError, match=r"not in UTF-8.*\n- .*Annotations/caf\\udce9\.xml"):
        voc.read(tmp_path)
