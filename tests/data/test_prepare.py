from __future__ import annotations

import logging

import numpy as np
import pandas as pd
import pytest

from detpipe.core.errors import DataError
from detpipe.core.tables import CLASSES, IMAGES
from detpipe.data.config import CheckConfig, SplitConfig
from detpipe.data.formats import voc, yolo
from detpipe.data.prepare import list_classes, split


def make_images(splits) -> pd.DataFrame:
    return IMAGES.make(
        [
            {"image_id": str(n), "path": f"{n}.jpg", "width": 9, "height": 9, "split": name}
            for n, name in enumerate(splits)
        ]
    )


def make_boxes(*pairs: tuple[str, str]) -> pd.DataFrame:
    return pd.DataFrame(pairs, columns=["image_id", "class_name"])


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("train", "train"), ("training", "train"), ("Train", "train"),
        ("val", "val"), ("valid", "val"), ("validation", "val"), ("dev", "val"),
        ("test", "test"), ("testing", "test"),
    ],
)  # fmt: skip
def test_common_names_are_understood(name, meaning):
    assert split(make_images([name]), make_boxes(), SplitConfig())["split"].tolist() == [meaning]


def test_rename_comes_first():
    config = SplitConfig(rename={"test": "val", "trainval": "train"})
    got = split(make_images(["trainval", "test"]), make_boxes(), config)
    assert got["split"].tolist() == ["train", "val"]


def test_what_cannot_be_understood_lists_what_there_is():
    with pytest.raises(
        DataError, match=r"unknown split\(s\) 'fold1'; .*'train' \(2\).*'fold1' \(1\)"
    ):
        split(make_images(["train", "train", "fold1"]), make_boxes(), SplitConfig())
    with pytest.raises(DataError, match=r"2 of 3 images belong to no split.*by: ratio"):
        split(make_images(["train", "", ""]), make_boxes(), SplitConfig())
    with pytest.raises(DataError, match=r"rename: trian is none of"):
        split(make_images(["a"]), make_boxes(), SplitConfig(rename={"a": "trian"}))


def test_an_empty_split_is_said(caplog):
    with caplog.at_level(logging.WARNING):
        split(make_images(["train"]), make_boxes(), SplitConfig())
    assert "no image in: val, test" in caplog.text


RATIO = SplitConfig(by="ratio")


def some_data(count: int = 200) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Images with classes of very different frequency; some without boxes."""
    rng = np.random.default_rng(3)
    pairs = [
        (str(n), name)
        for n in range(count)
        for name, share in (("common", 0.8), ("some", 0.3), ("rare", 0.05))
        if rng.random() < share
    ]
    return make_images([""] * count), make_boxes(*pairs)


def test_the_split_depends_on_paths_and_seed_only():
    images, boxes = some_data()
    first = split(images, boxes, RATIO).set_index("path")["split"]
    rng = np.random.default_rng(0)
    mixed = images.iloc[rng.permutation(len(images))]
    again = split(mixed, boxes.iloc[rng.permutation(len(boxes))], RATIO)
    assert again["path"].tolist() == mixed["path"].tolist()
    assert again.set_index("path")["split"].loc[first.index].equals(first)
    ids = {old: f"x{999 - int(old)}" for old in images["image_id"]}  # ids are only names
    renamed = split(
        images.assign(image_id=images["image_id"].map(ids)),
        boxes.assign(image_id=boxes["image_id"].map(ids)),
        RATIO,
    )
    assert renamed.set_index("path")["split"].equals(first)
    other = split(images, boxes, SplitConfig(by="ratio", seed=1)).set_index("path")["split"]
    assert not other.equals(first)


def test_the_global_random_state_is_not_touched():
    np.random.seed(5)
    before = np.random.get_state()[1].tolist()
    split(*some_data(), RATIO)
    assert np.random.get_state()[1].tolist() == before


@pytest.mark.parametrize("seed", range(5))
def test_each_class_is_shared_out_like_the_whole(seed):
    images, boxes = some_data()
    config = SplitConfig(by="ratio", train=0.6, val=0.2, test=0.2, seed=seed)
    got = split(images, boxes, config)
    assert got["split"].value_counts().to_dict() == {"train": 120, "val": 40, "test": 40}
    held = boxes.merge(got, on="image_id").groupby(["class_name", "split"]).size().unstack()
    for name, row in held.iterrows():
        # To the image, but for the class that nearly every image has: it takes what is left.
        ideal = row.sum() * np.array([0.2, 0.6, 0.2])  # test, train, val
        off = np.abs(row[["test", "train", "val"]].to_numpy() - ideal).max()
        assert off <= (5 if name == "common" else 1), name
    empty = got[~got["image_id"].isin(boxes["image_id"])]["split"].value_counts()
    off = empty[["test", "train", "val"]].to_numpy() - empty.sum() * np.array([0.2, 0.6, 0.2])
    assert np.abs(off).max() <= 1


def test_a_rare_class_reaches_every_split_where_chance_would_miss():
    """Ten images of a class among 200: drawn blindly, val lacks it about every third time."""
    images = make_images([""] * 200)
    boxes = make_boxes(*((str(n), "rare" if n < 10 else "common") for n in range(200)))
    for seed in range(20):
        got = split(images, boxes, SplitConfig(by="ratio", seed=seed))
        rare = got[got["image_id"].isin([str(n) for n in range(10)])]["split"].value_counts()
        assert rare.to_dict() == {"train": 8, "val": 1, "test": 1}


def test_small_sets_and_shares_of_zero():
    assert split(make_images([""] * 3), make_boxes(), RATIO)["split"].nunique() == 3
    assert set(split(make_images([""]), make_boxes(), RATIO)["split"]) == {"train"}
    got = split(
        make_images([""] * 10), make_boxes(), SplitConfig(by="ratio", train=0.7, val=0.3, test=0)
    )
    assert got["split"].value_counts().to_dict() == {"train": 7, "val": 3}


def test_a_file_listed_twice_stays_together():
    images, boxes = some_data(60)
    twice = pd.concat([images, images.assign(image_id="again" + images["image_id"])])
    got = split(twice, boxes, SplitConfig(by="ratio", train=0.4, val=0.3, test=0.3))
    assert (got.groupby("path")["split"].nunique() == 1).all()


def test_real_sets_keep_their_own_split(shared_data):
    found = voc.read(shared_data / "bccd_voc")
    got = split(found.images, found.boxes, SplitConfig())
    assert got["split"].value_counts().to_dict() == {"train": 205, "val": 87, "test": 72}
    found = yolo.read(shared_data / "cones_yolo")
    got = split(found.images, found.boxes, SplitConfig())
    assert got["split"].value_counts().to_dict() == {"train": 182, "val": 101, "test": 48}


def test_empty_classes_are_dropped_or_kept_and_the_order_stays(caplog):
    classes = CLASSES.make([{"class_name": name} for name in ("pieces", "z", "a", "[/b]", "m")])
    boxes = make_boxes(("1", "m"), ("1", "z"), ("2", "a"))
    got = list_classes(classes, boxes, CheckConfig())
    assert got["class_name"].tolist() == ["z", "a", "m"]
    assert "left out of the model: pieces" in caplog.text
    assert "[/" not in caplog.text
    caplog.clear()
    got = list_classes(classes, boxes, CheckConfig(empty_classes="keep"))
    assert got["class_name"].tolist() == ["pieces", "z", "a", "[/b]", "m"]
    assert "kept as outputs of the model: pieces" in caplog.text
    with pytest.raises(DataError, match="no class with a box"):
        list_classes(classes, make_boxes(), CheckConfig())
