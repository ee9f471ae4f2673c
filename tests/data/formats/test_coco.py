from __future__ import annotations

import json
import unicodedata

import numpy as np
import pytest

from detpipe.core.errors import DataError
from detpipe.core.tables import BOX_COLUMNS
from detpipe.data.formats import coco

from .conftest import rules


def test_equals_pycocotools_on_coco_itself(shared_data, tmp_path):
    """Boxes, areas, crowds and names of 839 annotations, the referee reading the same file."""
    pycocotools = pytest.importorskip("pycocotools.coco")
    source = shared_data / "eval_truth_coco100" / "instances_val2014_100.json"
    content = json.loads(source.read_text())
    (tmp_path / "images").mkdir()
    for image in content["images"]:
        (tmp_path / "images" / image["file_name"]).touch()
    (tmp_path / "instances_val2014.json").write_text(source.read_text())
    found = coco.read(tmp_path, annotations="instances_val2014.json")
    truth = pycocotools.COCO(str(source))
    assert len(found.images) == len(truth.imgs) == 100
    assert len(found.boxes) == len(truth.anns) == 839
    assert set(found.images["split"]) == {"val"}
    assert found.issues.empty
    for row in found.boxes.itertuples():
        theirs = truth.anns[int(row.annotation_id)]
        x, y, w, h = theirs["bbox"]
        assert row.image_id == str(theirs["image_id"])
        assert row.class_name == truth.cats[theirs["category_id"]]["name"]
        assert np.allclose([row.x1, row.y1, row.x2, row.y2], [x, y, x + w, y + h], atol=1e-9)
        assert (row.area, row.iscrowd) == (theirs["area"], bool(theirs["iscrowd"]))
    assert found.classes["class_name"].tolist() == [
        truth.cats[number]["name"] for number in sorted(truth.cats)
    ]


def test_chess_as_its_readme_says(shared_data):
    found = coco.read(shared_data / "chess_coco_roboflow")
    assert (len(found.images), len(found.boxes), len(found.classes)) == (29, 376, 14)
    assert set(found.images["split"]) == {"test"}
    assert found.boxes["class_name"].nunique() == 12
    assert not found.boxes["class_name"].isin(["pieces", "bishop"]).any()
    assert found.boxes["annotation_id"].is_unique
    assert "0" in set(found.boxes["annotation_id"])
    assert (~found.images["image_id"].isin(found.boxes["image_id"])).sum() == 1
    assert found.boxes.groupby("image_id").size().max() == 32
    assert found.images["path"].str.startswith("test/").all()


def test_screws_as_its_readme_says(shared_data):
    found = coco.read(shared_data / "screws_coco_cvat")
    assert (len(found.images), len(found.boxes)) == (5, 5)
    assert found.images["path"].tolist()[0] == "images/screw_002.jpg"
    missing = [
        p for p in found.images["path"] if not (shared_data / "screws_coco_cvat" / p).exists()
    ]
    assert missing == ["images/screw_045.jpg"]  # the check names it
    sides = found.boxes["x2"] - found.boxes["x1"], found.boxes["y2"] - found.boxes["y1"]
    assert (found.boxes["area"] < sides[0] * sides[1]).all()  # the polygon's


def test_categories_from_zero_give_the_same_tables(tmp_path, picture, coco_file):
    picture("images/a.jpg")
    coco_file()
    from_one = coco.read(tmp_path)
    coco_file(
        categories=[{"id": 0, "name": "cat"}, {"id": 1, "name": "dog"}],
        annotations=[{"id": 1, "image_id": 1, "category_id": 0, "bbox": [4, 5, 20, 30]}],
    )
    from_zero = coco.read(tmp_path)
    assert from_zero.classes.equals(from_one.classes)
    assert from_zero.boxes.equals(from_one.boxes)


@pytest.mark.parametrize("ids", [(0, 1, 0), (1, 1, 1), (None, None, None), (7, None, 8)])
def test_annotation_ids_become_unique_and_it_is_said(tmp_path, picture, coco_file, ids):
    picture("images/a.jpg")
    coco_file(
        annotations=[
            {"id": i, "image_id": 1, "category_id": 1, "bbox": [n, 5, 20, 30]}
            for n, i in enumerate(ids)
        ]
    )
    found = coco.read(tmp_path)
    assert found.boxes["annotation_id"].is_unique
    assert found.boxes["x1"].tolist() == [0, 1, 2]
    assert rules(found) == {"annotation_ids": 1}


def test_files_with_the_same_ids_and_another_class_order(tmp_path, picture, coco_file):
    """Everything goes by name: as in one file, and boxes stay with their images."""
    for split in ("train", "valid"):
        picture(f"{split}/{split}.jpg")
    coco_file("train/_annotations.coco.json", images=[{"id": 1, "file_name": "train.jpg"}])
    coco_file(
        "valid/_annotations.coco.json",
        images=[{"id": 1, "file_name": "valid.jpg"}],
        annotations=[{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4]}],
        categories=[{"id": 1, "name": "dog"}, {"id": 2, "name": "cat"}, {"id": 3, "name": "cow"}],
    )
    found = coco.read(tmp_path)
    assert found.classes["class_name"].tolist() == ["cat", "dog", "cow"]
    assert found.images["image_id"].tolist() == ["train-1", "valid-1"]
    assert found.images["path"].tolist() == ["train/train.jpg", "valid/valid.jpg"]
    assert found.images["split"].tolist() == ["train", "valid"]
    assert found.boxes["class_name"].tolist() == ["cat", "dog"]
    assert found.boxes["image_id"].tolist() == ["train-1", "valid-1"]
    assert found.boxes["annotation_id"].tolist() == ["train-1", "valid-1"]
    assert rules(found) == {"class_not_in_file": 1, "image_ids": 1, "annotation_ids": 1}
    said = found.issues.set_index("rule").loc["class_not_in_file"]
    assert (said["file"], said["value"]) == ("train/_annotations.coco.json", "cow")


@pytest.mark.parametrize(
    ("image_id", "reference"),
    [(0, "0"), ("0", 0), ("0001", 1), (1, "0001"), (3, 3.0), ("x7", "x7"), ("0001", "0001")],
)
def test_ids_match_as_text_or_as_numbers(tmp_path, picture, coco_file, image_id, reference):
    picture("images/a.jpg")
    coco_file(
        images=[{"id": image_id, "file_name": "a.jpg"}],
        annotations=[{"id": 1, "image_id": reference, "category_id": "1", "bbox": [4, 5, 6, 7]}],
    )
    found = coco.read(tmp_path)
    assert found.boxes["image_id"].tolist() == found.images["image_id"].tolist() == [str(image_id)]
    assert found.boxes["class_name"].tolist() == ["cat"]


def test_0001_and_1_are_two_images_if_both_are_there(tmp_path, picture, coco_file):
    picture("images/a.jpg")
    picture("images/b.jpg")
    coco_file(
        images=[{"id": "0001", "file_name": "a.jpg"}, {"id": 1, "file_name": "b.jpg"}],
        annotations=[
            {"image_id": i, "category_id": 1, "bbox": [1, 1, 5, 5]} for i in ("0001", 1, "1", "01")
        ],
    )
    found = coco.read(tmp_path)
    assert found.boxes["image_id"].tolist() == ["0001", "1", "1", "01"]  # the last fits neither


def test_what_is_missing_is_filled_where_it_can_be(tmp_path, picture, coco_file):
    picture("images/a.jpg")
    path = coco_file(
        images=[{"id": 1, "file_name": "a.jpg"}],
        annotations=[{"image_id": 1, "category_id": 2, "bbox": [4, 5, 20, 30]}],
        categories=None,
    )
    assert set(json.loads(path.read_text())) == {"images", "annotations"}
    found = coco.read(tmp_path)
    (row,) = found.boxes.itertuples()
    assert (row.class_name, row.area, row.iscrowd) == ("2", 600.0, False)
    assert found.images[["width", "height"]].to_numpy().tolist() == [[0, 0]]
    assert rules(found)["no_categories"] == 1
    coco_file(annotations=None)
    found = coco.read(tmp_path)
    assert found.boxes.empty
    assert len(found.images) == 1
    assert rules(found) == {"no_annotations": 1}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"annotations": []}', "has no 'images' list"),
        ("[]", "no COCO annotation file"),
        ('{"images": [{"id": 1, ]}', "not valid JSON: .*column"),
        ('{"images": [{"id": 1, "file_name": ["a"]}]}', r"images\[0\].file_name"),
    ],
)
def test_a_file_that_is_no_coco_file_is_named(tmp_path, content, message):
    (tmp_path / "_annotations.coco.json").write_text(content)
    with pytest.raises(DataError, match=message) as error:
        coco.read(tmp_path)
    assert "_annotations.coco.json" in str(error.value)


def test_numbers_as_text_nan_and_a_byte_order_mark(tmp_path, picture):
    picture("a.jpg")
    (tmp_path / "_annotations.coco.json").write_text(
        '\ufeff{"images": [{"id": 1, "file_name": "a.jpg", "width": "64", "height": "48"}],'
        '"categories": [{"id": 1, "name": "cat"}], "annotations": ['
        '{"id": 1, "image_id": 1, "category_id": 1, "bbox": ["1", "2", "3.5", "4"], "area": NaN},'
        '{"id": 2, "image_id": 1, "category_id": 1, "bbox": [1, NaN, 3, 4], "iscrowd": "0"},'
        '{"id": 3, "image_id": 1, "category_id": 1, "bbox": []}]}',
        "utf-8",
    )
    found = coco.read(tmp_path)
    assert found.images[["width", "height"]].to_numpy().tolist() == [[64, 48]]
    assert found.boxes[BOX_COLUMNS].iloc[0].tolist() == [1, 2, 4.5, 6]
    assert found.boxes["area"].iloc[0] == 14
    assert found.boxes[BOX_COLUMNS].iloc[1:].isna().any(axis=1).all()  # the check reports them
    assert not found.boxes["iscrowd"].any()


def test_crowds_and_segmentations_of_every_kind(tmp_path, picture, coco_file):
    picture("images/a.jpg")
    shapes = [
        [[1, 1, 5, 1, 5, 5]],
        {"counts": [3, 2, 1], "size": [48, 64]},
        {"counts": "abc", "size": [48, 64]},
        None,
        [],
    ]
    coco_file(
        annotations=[
            {"id": n, "image_id": 1, "category_id": 1, "bbox": [n, 0, 9, 9], "segmentation": shape,
             "iscrowd": int(n == 1)}
            for n, shape in enumerate(shapes)
        ]
    )  # fmt: skip
    found = coco.read(tmp_path)
    assert found.boxes["iscrowd"].tolist() == [False, True, False, False, False]
    assert found.boxes["x1"].tolist() == [0, 1, 2, 3, 4]


def test_names_with_blanks_accents_and_other_case(tmp_path, picture, coco_file):
    names = ["é – 猫 (1).jpg", "IMG 1.JPG", "b&b's, [1].jpg"]
    written = [unicodedata.normalize("NFD", names[0]), "IMG 1.jpg", names[2]]
    for name in names:
        picture(f"images/{name}")
    coco_file(images=[{"id": n, "file_name": name} for n, name in enumerate(written)])
    found = coco.read(tmp_path)
    assert found.images["path"].tolist() == [f"images/{name}" for name in names]
    assert rules(found)["image_spelling"] == 1


@pytest.mark.parametrize("name", ["a,b", 'say "x"', "n/a", "t-shirt", "f(x)", "R&D", "$1", "[/b]"])
def test_class_names_stay_as_they_are(tmp_path, picture, coco_file, name):
    picture("images/a.jpg")
    coco_file(categories=[{"id": 1, "name": name}])
    found = coco.read(tmp_path)
    assert found.classes["class_name"].tolist() == found.boxes["class_name"].tolist() == [name]


@pytest.mark.parametrize(
    ("json_name", "image_name", "written", "split"),
    [
        ("annotations/instances_train2017.json", "train2017/a.jpg", "a.jpg", "train"),
        ("annotations/instances_train.json", "images/train/a.jpg", "a.jpg", "train"),
        ("annotations/instances_default.json", "images/a.jpg", "a.jpg", ""),
        ("annotations/val.json", "val/a.jpg", "a.jpg", "val"),
        ("annotations/val.json", "images/a.jpg", "/home/me/data/images/a.jpg", "val"),
        ("valid/_annotations.coco.json", "valid/a.jpg", "a.jpg", "valid"),
        ("_annotations.coco.json", "a.jpg", "a.jpg", ""),
        ("train.json", "images/a.jpg", "images/a.jpg", "train"),
    ],
)
def test_layouts_found_without_being_told(
    tmp_path, picture, coco_file, json_name, image_name, written, split
):
    picture(image_name)
    coco_file(json_name, images=[{"id": 1, "file_name": written}])
    found = coco.read(tmp_path)
    assert found.images["path"].tolist() == [image_name]
    assert found.images["split"].tolist() == [split]


def test_options_name_files_and_folder(tmp_path, picture, coco_file):
    picture("pictures/a.jpg")
    coco_file("one.json")
    coco_file("two.json", images=[{"id": 5, "file_name": "a.jpg"}], annotations=[])
    found = coco.read(
        tmp_path, annotations={"train": "one.json", "test": "two.json"}, images="pictures"
    )
    assert found.images["split"].tolist() == ["train", "test"]
    assert found.images["image_id"].tolist() == ["1", "5"]
    with pytest.raises(DataError, match=r"no such annotation file.*three\.json.*one\.json"):
        coco.read(tmp_path, annotations="three.json")


def test_nothing_found_says_what_was_tried(tmp_path, coco_file):
    with pytest.raises(DataError, match=r"instances_\*\.json.*no JSON file at all"):
        coco.read(tmp_path)
    coco_file()
    with pytest.raises(DataError, match=r"(?s)first 'a\.jpg'.*images \(no such folder\).*'images'"):
        coco.read(tmp_path)
    with pytest.raises(DataError, match="does not exist"):
        coco.read(tmp_path / "elsewhere")


def test_wrong_records_become_issues(tmp_path, picture, coco_file):
    picture("images/a.jpg")
    picture("images/b.jpg")
    coco_file(
        images=[
            {"id": 1, "file_name": "a.jpg"},
            {"id": 1, "file_name": "b.jpg"},
            {"id": 2},
        ],
        categories=[{"id": 1, "name": "cat"}, {"id": 1, "name": "dog"}, {"id": 3, "name": "cat"}],
        annotations=[{"id": 1, "image_id": 1, "category_id": 9, "bbox": [1, 2, 3, 4]}],
    )
    found = coco.read(tmp_path)
    assert rules(found) == {
        "duplicate_image_id": 1,
        "no_file_name": 1,
        "duplicate_category_id": 1,
        "duplicate_category_name": 1,
    }
    assert found.boxes["class_name"].tolist() == ["unknown category 9"]


def test_one_name_in_two_spellings_is_one_class(tmp_path, picture, coco_file):
    decomposed = unicodedata.normalize("NFD", "café")
    for split, name in (("train", "café"), ("val", f"{decomposed} ")):
        picture(f"images/{split}/a.jpg")
        coco_file(f"annotations/instances_{split}.json", categories=[{"id": 1, "name": name}])
    found = coco.read(tmp_path)
    assert found.classes["class_name"].tolist() == ["café"]
    assert found.boxes["class_name"].tolist() == ["café", "café"]
    assert "class_name_cleaned" in rules(found) and "class_not_in_file" not in rules(found)
