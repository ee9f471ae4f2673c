"""LVIS's lists of classes by image, and how frequent classes are, on their way to the tables."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from detpipe.core.errors import DataError
from detpipe.core.tables import CLASSES, IMAGES
from detpipe.data.check import inspect
from detpipe.data.check_config import CheckConfig
from detpipe.data.config import ClassesConfig, DataConfig
from detpipe.data.formats import coco, parquet
from detpipe.data.formats.classes import choose_classes
from detpipe.data.prepare import list_classes
from detpipe.data.split import split

NAMES = {1: "cat", 2: "dog", 3: "cow"}


@pytest.fixture
def lvis(tmp_path, picture, coco_file):
    """Writes a file of images 1, 2, … with these lists; each has a cat, or what ``boxes`` says."""

    def write(*lists, boxes=None, frequencies=("f", "c", "r"), folder="."):
        for number in range(1, len(lists) + 1):
            picture(f"{folder}/images/{number}.png", width=60 + number)
        boxes = [(n, 1) for n in range(1, len(lists) + 1)] if boxes is None else boxes
        coco_file(
            f"{folder}/annotations/instances_train.json",
            images=[{"id": n, "file_name": f"{n}.png", **own} for n, own in enumerate(lists, 1)],
            annotations=[
                {"id": n, "image_id": image, "category_id": of, "bbox": [2, 3, 20, 30]}
                for n, (image, of) in enumerate(boxes, 1)
            ],
            categories=[
                {"id": number, "name": name} | ({"frequency": letter} if letter else {})
                for (number, name), letter in zip(NAMES.items(), frequencies, strict=True)
            ],
        )
        return tmp_path / folder

    return write


def absent(*ids):
    return {"neg_category_ids": list(ids), "not_exhaustive_category_ids": []}


def partly(*ids):
    return {"neg_category_ids": [], "not_exhaustive_category_ids": list(ids)}


def lists(found, column="negative"):
    return [json.loads(text) if text else None for text in found.images[column]]


def test_ids_are_matched_as_those_of_boxes_are(lvis):
    ids = ["2", "03", 2, 2.0, None, "x", 9]
    found = coco.read(lvis(absent(*ids), boxes=[]))
    assert lists(found) == [["dog", "cow"]]


def test_an_image_without_a_list_differs_from_one_whose_list_is_empty(lvis):
    found = coco.read(lvis(absent(), {}, {"neg_category_ids": None}, {"neg_category_ids": [3]}))
    assert lists(found) == [[], None, None, ["cow"]]
    assert lists(found, "not_exhaustive") == [[], None, None, None]
    assert found.issues.set_index("rule")["value"]["lvis_federated"] == "2 image(s)"


def test_other_files_have_no_such_column(lvis):
    found = coco.read(lvis({}, frequencies=(None, "often", 3)))
    assert not {"negative", "not_exhaustive", "frequency"} & {*found.images, *found.classes}


def test_a_list_that_is_none_is_refused(lvis):
    root = lvis({"neg_category_ids": 3})
    with pytest.raises(DataError, match="neg_category_ids"):
        coco.read(root)


def test_an_image_record_without_a_name_takes_its_lists_with_it(lvis):
    root = lvis(absent(2), absent(3))
    file = root / "annotations/instances_train.json"
    file.write_text(file.read_text().replace("1.png", ""))
    assert lists(coco.read(root)) == [["cow"]]


# --- classes chosen ------------------------------------------------------------------------------


def chosen(root, **config):
    return choose_classes(coco.read(root), ClassesConfig(**config))


def test_lists_have_the_new_names_of_classes_that_stay(lvis):
    found = chosen(lvis(absent(2, 3), partly(1)), rename={"cow": "ox", "cat": "tom"}, drop=["dog"])
    assert lists(found) == [["ox"], []]
    assert lists(found, "not_exhaustive") == [[], ["tom"]]
    assert found.classes.to_dict("list") == {"class_name": ["tom", "ox"], "frequency": ["f", "r"]}


def test_an_image_without_a_list_has_none_after_renaming(lvis):
    assert lists(chosen(lvis({}, absent(2)), rename={"cat": "tom"})) == [None, ["dog"]]


@pytest.mark.parametrize(
    ("own", "boxes", "negative", "not_exhaustive"),
    [
        (absent(1, 2), [], ["pet"], []),
        (absent(1), [], [], []),  # nobody looked for dogs: of pets nothing is known
        (absent(2), [(1, 1)], [], []),
        (absent(3), [(1, 1)], ["cow"], ["pet"]),  # there may be a dog without a box
        (absent(), [(1, 1), (1, 2)], [], []),
        (partly(2), [(1, 1), (1, 2)], [], ["pet"]),
        ({"not_exhaustive_category_ids": [3]}, [(1, 1)], None, ["cow"]),
        ({}, [(1, 1)], None, None),
    ],
)
def test_classes_that_become_one(lvis, own, boxes, negative, not_exhaustive):
    root = lvis(own, absent(), boxes=boxes)  # the other image: there is a list at all
    found = chosen(root, rename={"cat": "pet", "dog": "pet"})
    assert lists(found)[0] == negative
    assert lists(found, "not_exhaustive")[0] == not_exhaustive


@pytest.mark.parametrize(
    ("of_cat", "of_dog", "merged"),
    [("c", "f", "f"), ("r", "r", ""), ("r", None, ""), ("r", "c", "")],
)
def test_the_frequency_of_merged_classes_is_not_guessed(lvis, of_cat, of_dog, merged):
    root = lvis(absent(), frequencies=(of_cat, of_dog, "r"))
    found = chosen(root, rename={"cat": "pet", "dog": "pet"})
    assert found.classes["frequency"].tolist() == [merged, "r"]


# --- further on its way --------------------------------------------------------------------------


def join(root, *names):
    sets = [{"path": name, "use": "coco"} for name in names]
    return DataConfig.model_validate({"reader": {"use": "join", "sets": sets}}).reader.build(root)


def test_a_set_with_lists_joined_with_one_without(lvis, tmp_path):
    lvis(absent(2), folder="with")
    lvis({}, frequencies=(None, None, None), folder="without")
    found = join(tmp_path, "with", "without")
    assert lists(found) == [["dog"], None]
    assert found.classes["frequency"].tolist() == ["f", "c", "r"]


def test_joined_sets_that_differ_in_a_frequency(lvis, tmp_path):
    lvis(absent(2), folder="one")
    lvis(absent(2), frequencies=("f", "r", None), folder="two")
    assert join(tmp_path, "one", "two").classes["frequency"].tolist() == ["f", "", "r"]


def test_lists_and_frequencies_go_through_check_split_and_files(lvis, tmp_path):
    found = coco.read(lvis(absent(2), partly(1), {}))
    data = DataConfig.model_validate({"reader": {"use": "coco"}})
    checked = inspect(found, tmp_path, CheckConfig())
    images = split(checked.images, checked.boxes, data.split)
    classes = list_classes(found.classes, checked.boxes, data.check)
    assert images["negative"].tolist() == ['["dog"]', "[]", ""]
    assert images["not_exhaustive"].tolist() == ["[]", '["cat"]', ""]
    assert classes.to_dict("list") == {"class_name": ["cat"], "frequency": ["f"]}
    for table, frame in ((IMAGES, images), (CLASSES, found.classes)):
        frame.to_parquet(tmp_path / f"{table.name}.parquet")
    checked.boxes.to_parquet(tmp_path / "boxes.parquet")
    again = parquet.read(tmp_path)
    pd.testing.assert_frame_equal(again.images, images)
    pd.testing.assert_frame_equal(again.classes, found.classes)
