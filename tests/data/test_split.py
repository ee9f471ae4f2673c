from __future__ import annotations

import logging

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detpipe.core.errors import DataError
from detpipe.core.tables import IMAGES
from detpipe.data.config import SplitConfig
from detpipe.data.formats import voc, yolo
from detpipe.data.split import split, undecided
from detpipe.data.stratify import Counts, _whole_numbers, stratify


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


# --- groups, folds, what stays -----------------------------------------------------------------


def clips(count: int = 40, *, seed: int = 4) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Frames of clips of very different length; classes belong to clips."""
    rng = np.random.default_rng(seed)
    frames = [(c, f) for c in range(count) for f in range(int(rng.integers(1, 12)))]
    images = make_images([""] * len(frames))
    images["path"] = [f"in/clip{c:02}_{f:03}.jpg" for c, f in frames]
    kind = rng.choice(["cat", "dog", "bird"], count, p=[0.6, 0.3, 0.1])
    boxes = make_boxes(*((str(n), kind[c]) for n, (c, f) in enumerate(frames) if f != 1))
    return images, boxes


def clip_of(images: pd.DataFrame) -> pd.Series:
    return images["path"].str.slice(0, 9)


def test_groups_by_a_pattern_are_never_torn_apart():
    images, boxes = clips()
    config = SplitConfig(by="ratio", train=0.6, val=0.2, test=0.2, group_pattern=r"(clip\d+)_")
    got = split(images, boxes, config)
    assert (got.groupby(clip_of(got))["split"].nunique() == 1).all()
    shares = got["split"].value_counts(normalize=True)
    assert abs(shares["train"] - 0.6) < 0.06
    assert abs(shares["val"] - 0.2) < 0.06
    held = boxes.merge(got, on="image_id").groupby(["class_name", "split"]).size().unstack()
    assert (held > 0).all(axis=None)  # the rare class too
    alone = split(images, boxes, config.model_copy(update={"group_pattern": None}))
    assert (alone.groupby(clip_of(alone))["split"].nunique() > 1).any()


def test_groups_of_the_reader_are_the_same_as_those_of_a_pattern():
    images, boxes = clips()
    by_pattern = split(images, boxes, SplitConfig(by="ratio", group_pattern=r"clip\d+"))
    named = split(images, boxes, SplitConfig(by="ratio", group_pattern=r"(?P<clip>clip\d+)"))
    assert named["split"].tolist() == by_pattern["split"].tolist()
    column = images["path"].str.extract(r"(clip\d+)")[0]
    by_column = split(images.assign(group=column), boxes, RATIO)
    assert by_column["split"].tolist() == by_pattern["split"].tolist()
    assert by_column["group"].tolist() == column.tolist()
    with pytest.raises(DataError, match="take one of them away"):
        split(images.assign(group=column), boxes, SplitConfig(by="ratio", group_pattern="x"))


def test_an_image_without_group_is_its_own():
    images, boxes = some_data(40)
    images["group"] = ""
    images.loc[:9, "group"] = "video"
    got = split(images, boxes, SplitConfig(by="ratio", train=0.5, val=0.25, test=0.25))
    assert got.loc[:9, "split"].nunique() == 1
    assert got["split"].value_counts().to_dict() == {"train": 20, "val": 10, "test": 10}


def test_a_pattern_that_does_not_fit_names_a_path_and_a_broken_one_is_refused():
    images, boxes = clips()
    images.loc[3, "path"] = "in/other.jpg"
    with pytest.raises(DataError, match=r"not found in 1 of \d+ paths, the first: 'in/other.jpg'"):
        split(images, boxes, SplitConfig(by="ratio", group_pattern=r"clip\d+"))
    with pytest.raises(ValueError, match="no regular expression"):
        SplitConfig(by="ratio", group_pattern="(")


def test_groups_torn_by_the_sets_own_split_are_said(caplog):
    images, boxes = clips(4)
    images["split"] = ["train", "test"] * (len(images) // 2) + ["val"] * (len(images) % 2)
    got = split(images, boxes, SplitConfig(group_pattern=r"clip\d+"))
    assert got["split"].tolist() == images["split"].tolist()
    torn = int((got.groupby(clip_of(got))["split"].nunique() > 1).sum())
    assert f"{torn} of 4 groups have images in several splits" in caplog.text
    assert torn


@pytest.mark.parametrize("grouped", [False, True])
def test_each_image_is_val_in_exactly_one_fold_and_test_in_none_or_all(grouped):
    images, boxes = clips()
    pattern = r"clip\d+" if grouped else None
    folds = [
        split(
            images, boxes,
            SplitConfig(by="folds", folds=4, fold=k, test=0.2, group_pattern=pattern, seed=7),
        )["split"]
        for k in range(4)
    ]  # fmt: skip
    times = sum((fold == "val").astype(int) for fold in folds)
    assert set(times[folds[0] == "test"]) == {0}
    assert set(times[folds[0] != "test"]) == {1}
    assert all((fold == "test").equals(folds[0] == "test") for fold in folds)
    assert abs((folds[0] == "test").mean() - 0.2) < 0.05
    if grouped:
        assert all((fold.groupby(clip_of(images)).nunique() == 1).all() for fold in folds)
    else:
        assert {int((fold == "val").sum()) for fold in folds} <= {
            int(times.sum()) // 4, -(-int(times.sum()) // 4)
        }  # fmt: skip


def test_folds_are_stratified():
    images, boxes = some_data()
    shares = [
        boxes.merge(
            split(images, boxes, SplitConfig(by="folds", folds=5, fold=k, test=0)), on="image_id"
        ).query("split == 'val'")["class_name"].value_counts()
        for k in range(5)
    ]  # fmt: skip
    for name in ("some", "rare"):
        assert max(s[name] for s in shares) - min(s[name] for s in shares) <= 1


def test_own_splits_are_kept_while_the_rest_is_drawn():
    images, boxes = some_data(100)
    images["split"] = ["test"] * 30 + ["trainval"] * 70
    config = SplitConfig(by="ratio", keep=["test"])
    got = split(images, boxes, config)
    assert (got["split"][:30] == "test").all()
    assert got["split"][30:].value_counts().to_dict() == {"train": 62, "val": 8}  # 8 : 1 of 70
    folds = split(images, boxes, SplitConfig(by="folds", folds=7, fold=6, keep=["test"]))
    assert (folds["split"][:30] == "test").all()
    assert folds["split"][30:].value_counts().to_dict() == {"train": 60, "val": 10}


def test_auto_draws_only_where_there_is_no_split():
    images, boxes = some_data(50)
    auto = SplitConfig(by="auto")
    assert split(images, boxes, auto)["split"].tolist() == (
        split(images, boxes, RATIO)["split"].tolist()
    )
    own = make_images(["training"] * 30 + ["valid"] * 20)
    assert split(own, boxes, auto)["split"].tolist() == ["train"] * 30 + ["val"] * 20
    with pytest.raises(DataError, match="1 of 2 images belong to no split"):
        split(make_images(["train", ""]), make_boxes(), auto)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"by": "ratio", "keep": ["holdout"]}, "no split holdout; the data set has 'a', 'b'"),
        ({"by": "ratio", "keep": ["a"]}, "say which of train, val, test a is"),
        ({"by": "ratio", "keep": ["a", "b"], "rename": {"a": "train", "b": "val"}}, "by: own"),
        ({"by": "ratio", "keep": ["a"], "rename": {"a": "test"}, "train": 0, "val": 0, "test": 1},
         "the shares of these are 0"),
        ({"by": "folds", "folds": 5, "test": 0}, "folds is 5, and there are 4 images"),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_refused(settings, message):
    with pytest.raises(DataError, match=message):
        split(make_images(["a", "a", "b", "b"]), make_boxes(), SplitConfig(**settings))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fold": 1}, "fold has no effect with by: own"),
        ({"by": "ratio", "folds": 3}, "folds has no effect with by: ratio"),
        ({"keep": ["test"]}, "keep has no effect with by: own"),
        ({"by": "folds", "folds": 3, "fold": 3}, "fold counts from 0 to 2"),
        ({"by": "ratio", "train": 0.5}, "must be 1"),
        ({"by": "folds", "test": 1}, "leaves nothing"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        SplitConfig(**settings)


def dense(has: np.ndarray, weights: np.ndarray, shares: np.ndarray, *, seed: int) -> list[int]:
    """Iterative stratification on the whole matrix of units and classes, as published."""
    order = np.random.default_rng(seed).permutation(len(has))
    order = order[np.argsort(-weights[order], kind="stable")]
    room = _whole_numbers(shares, int(weights.sum()))
    wanted = shares[:, None] * has.sum(axis=0)
    chosen = np.full(len(has), -1)
    while (chosen < 0).any():
        left = has[chosen < 0].sum(axis=0)
        rarest = int(np.argmin(np.where(left > 0, left, left.max() + 1)))
        for unit in order[(chosen[order] < 0) & (has[order, rarest] > 0)]:
            wish = np.where(room > 0, wanted[:, rarest], -np.inf)
            best = int(np.lexsort((-np.arange(len(room)), room, wish))[-1])
            chosen[unit] = best
            room[best] -= weights[unit]
            wanted[best] -= has[unit]
    return chosen.tolist()


@settings(max_examples=100, deadline=None)
@given(
    rows=st.integers(1, 9).flatmap(
        lambda n: st.lists(st.lists(st.integers(0, 3), min_size=n, max_size=n).filter(any),
                           min_size=1, max_size=60)
    ),
    parts=st.lists(st.integers(0, 9), min_size=2, max_size=4).filter(any),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_it_is_iterative_stratification_to_the_last_image(rows, parts, seed):
    has, shares = np.array(rows), np.array(parts) / sum(parts)
    weights = has.max(axis=1)
    unit, klass = np.nonzero(has)
    counts = Counts(weights, unit, klass, has[unit, klass])
    assert stratify(counts, shares, seed=seed).tolist() == dense(has, weights, shares, seed=seed)


# --- files of equal content --------------------------------------------------------------------


def test_files_of_equal_content_stay_together_with_their_groups():
    images, boxes = some_data(60)
    images["twin"] = ""
    images.loc[[3, 17, 44], "twin"] = "3.jpg"
    images.loc[[5, 6], "twin"] = "5.jpg"
    for seed in range(10):
        config = SplitConfig(by="ratio", train=0.4, val=0.3, test=0.3, seed=seed)
        got = split(images, boxes, config)["split"]
        assert got[[3, 17, 44]].nunique() == 1
        assert got[[5, 6]].nunique() == 1
    # A group and a picture like one of it: all of them on one side.
    images["group"] = ["a" if n in (17, 20, 30) else "" for n in range(60)]
    got = split(images, boxes, config)["split"]
    assert got[[3, 17, 44, 20, 30]].nunique() == 1


def test_a_copy_of_what_stays_goes_to_its_side():
    images, boxes = some_data(40)
    images["split"] = ["test"] * 10 + ["rest"] * 30
    images["twin"] = ""
    images.loc[[3, 20], "twin"] = "3.jpg"
    images.loc[[25, 26], "twin"] = "25.jpg"
    got = split(images, boxes, SplitConfig(by="ratio", keep=["test"]))["split"]
    assert got[20] == "test"
    assert (got == "test").sum() == 11
    assert got[[25, 26]].nunique() == 1


def test_without_such_files_the_column_changes_nothing():
    images, boxes = some_data()
    assert split(images.assign(twin=""), boxes, RATIO)["split"].equals(
        split(images, boxes, RATIO)["split"]
    )


def test_what_will_be_drawn_anew_is_judged_by_no_split():
    images = make_images(["train", "valid", "test", "test"])
    assert undecided(images, SplitConfig())["split"].tolist() == images["split"].tolist()
    assert undecided(images, RATIO)["split"].tolist() == [""] * 4
    keep = SplitConfig(by="folds", folds=2, keep=["test"])
    assert undecided(images, keep)["split"].tolist() == ["", "", "test", "test"]
    with pytest.raises(DataError, match="no split tset; the data set has 'train', 'valid', 'test'"):
        undecided(images, SplitConfig(by="ratio", keep=["tset"]))


def test_shares_that_groups_make_impossible_and_classes_that_a_split_lacks_are_said(caplog):
    images = make_images([""] * 40)
    images["group"] = ["big"] * 30 + [f"{n}" for n in range(10)]
    boxes = make_boxes(*((str(n), "[/a]" if n < 30 else "b") for n in range(40)))
    split(images, boxes, SplitConfig(by="ratio", train=0.5, val=0.25, test=0.25))
    got = 35 / 40  # the rarer class is shared out first: half of it, and then all of the group
    assert f"train got {got:.0%} of the images, not 50%" in caplog.text
    assert "split: no box in val of: (/a]" in caplog.text
