"""LVIS's lists of classes and frequencies in every format: written, or said to be lost."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from detpipe.core.errors import DataError
from detpipe.core.tables import CLASSES, IMAGES
from detpipe.data.config import ConvertConfig, DataConfig
from detpipe.pipelines.convert import convert
from tests.data.writers.sets import on_disk, picture, read, write

CATEGORIES = [
    {"id": 4, "name": "cat", "frequency": "f"}, {"id": 9, "name": "dog", "frequency": "r"},
    {"id": 11, "name": "cow"}, {"id": 30, "name": "été", "frequency": "c"},
]  # fmt: skip


def lists(negative, not_exhaustive):
    return {"neg_category_ids": negative, "not_exhaustive_category_ids": not_exhaustive}


LISTS = {
    "train": [lists([30, 9], []), lists([], [4]), {}, {"neg_category_ids": [11]}],
    "val": [{}],
}


@pytest.fixture
def lvis(tmp_path):
    """Ids far from 1..C, an image without a list, one with one of both, a file without any."""
    root, number = tmp_path / "lvis", 0
    (root / "annotations").mkdir(parents=True)
    for split, own in LISTS.items():
        images, boxes = [], []
        for more in own:
            number += 1
            picture(root / f"images/{split}/{number}.png", number, width=40, height=30)
            images.append(
                {"id": number, "file_name": f"{number}.png", "width": 40, "height": 30, **more}
            )
            boxes.append(
                {"id": number, "image_id": number, "category_id": 4, "bbox": [1, 2, 10, 12],
                 "area": 60, "iscrowd": 0, "segmentation": [[1, 2, 11, 2, 11, 14]]}
            )  # fmt: skip
        content = {"images": images, "annotations": boxes, "categories": CATEGORIES}
        (root / f"annotations/instances_{split}.json").write_text(json.dumps(content))
    return root


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("to", ["coco", "parquet"])
def test_what_convert_makes_of_lvis_is_read_as_lvis_is(lvis, tmp_path, to, checked, caplog):
    data = DataConfig.model_validate({"reader": "coco", "check": {"workers": 0}})
    target = ConvertConfig.model_validate({"to": to, "checked": checked})
    convert(lvis, tmp_path / "out", tmp_path / "cache", data, target)
    assert "cannot hold" not in caplog.text
    found, back = read("coco", lvis), read(to, tmp_path / "out")
    assert found.images["negative"].tolist() == ['["été","dog"]', "[]", "", '["cow"]', ""]
    assert found.images["not_exhaustive"].tolist() == ["[]", '["cat"]', "", "", ""]
    assert found.classes["frequency"].tolist() == ["f", "r", "", "c"]
    own = ["path", "twin"]  # of where pictures lie
    pd.testing.assert_frame_equal(
        back.images.drop(columns=own, errors="ignore"), found.images.drop(columns="path")
    )
    pd.testing.assert_frame_equal(back.boxes, found.boxes)
    pd.testing.assert_frame_equal(back.classes, found.classes)


def test_coco_files_have_lvis_fields_with_the_numbers_of_the_written_categories(lvis, tmp_path):
    write("coco", read("coco", lvis), lvis, tmp_path / "out")
    train, val = (
        json.loads((tmp_path / f"out/annotations/instances_{split}.json").read_text())
        for split in LISTS
    )
    fields = ("neg_category_ids", "not_exhaustive_category_ids")
    assert [{k: i[k] for k in fields if k in i} for i in train["images"]] == [
        lists([4, 2], []), lists([], [1]), {}, {"neg_category_ids": [3]},
    ]  # fmt: skip
    assert not set(fields) & set(val["images"][0])
    for content in (train, val):
        assert [(c["id"], c["name"], c.get("frequency")) for c in content["categories"]] == [
            (1, "cat", "f"), (2, "dog", "r"), (3, "cow", None), (4, "été", "c"),
        ]  # fmt: skip
        assert "frequency" not in content["categories"][2]


def test_other_sets_get_none_of_lvis_fields(tmp_path):
    found = on_disk((["a.jpg"], [(9, 9)], ["train"], [""], [], ["cat"]), tmp_path / "source")
    write("coco", found, tmp_path / "source", tmp_path / "out")
    content = json.loads((tmp_path / "out/annotations/instances_train.json").read_text())
    assert content["images"] == [{"id": 1, "file_name": "a.jpg", "width": 9, "height": 9}]
    assert content["categories"] == [{"id": 1, "name": "cat", "supercategory": ""}]


@pytest.mark.parametrize("target", ["voc", "yolo", "csv"])
def test_formats_that_lose_the_lists_say_so_in_one_line(lvis, tmp_path, target, caplog):
    write(target, read("coco", lvis), lvis, tmp_path / "out")
    (line,) = [message for message in caplog.messages if "cannot hold" in message]
    assert "3 image(s) with LVIS's lists of classes (negative, not_exhaustive)" in line
    assert "3 class(es) with LVIS's frequency" in line


@pytest.mark.parametrize("target", ["voc", "yolo", "csv"])
def test_formats_that_lose_nothing_say_nothing(tmp_path, target, caplog):
    found = on_disk((["a.jpg"], [(9, 9)], ["train"], [""], [], []), tmp_path / "source")
    images = IMAGES.make(found.images.assign(negative="", not_exhaustive=""))
    classes = CLASSES.empty().assign(frequency=pd.Series(dtype="str"))
    found = found._replace(images=images, classes=classes)
    write(target, found, tmp_path / "source", tmp_path / "out")
    assert not caplog.records


def made(tmp_path, text):
    found = on_disk((["a.jpg"], [(9, 9)], ["train"], [""], [], ["cat", "dog"]), tmp_path / "source")
    return found._replace(images=IMAGES.make(found.images.assign(negative=text)))


def test_names_of_lists_that_are_no_class_are_left_out_and_counted(tmp_path, caplog):
    write("coco", made(tmp_path, '["ox","dog","elk"]'), tmp_path / "source", tmp_path / "out")
    content = json.loads((tmp_path / "out/annotations/instances_train.json").read_text())
    assert content["images"][0]["neg_category_ids"] == [2]
    assert [c["name"] for c in content["categories"]] == ["cat", "dog"]
    assert "2 name(s) in LVIS's lists that are no class, left out" in caplog.text


@pytest.mark.parametrize("text", ["cat", '"cat"', "{}", "[1]"])
def test_a_list_that_is_none_names_the_image(tmp_path, text):
    with pytest.raises(DataError, match=r"images\.negative of image '1' is no JSON list"):
        write("coco", made(tmp_path, text), tmp_path / "source", tmp_path / "out")
    assert not (tmp_path / "out").exists()
