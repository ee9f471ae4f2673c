from __future__ import annotations

import json
import logging
import pickle
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch.utils.data import WeightedRandomSampler

from detpipe.core.config import Spec, check_spec
from detpipe.core.errors import ConfigError, DataError
from detpipe.core.tables import BOXES, CLASSES, IMAGES
from detpipe.data.formats import voc
from detpipe.data.order import Cycle
from detpipe.data.sampler import (
    RESOURCES,
    Sampler,
    aspect_ratio_grouped,
    class_balanced,
    repeat_factor,
    sequential,
    shuffle,
    weighted,
)
from detpipe.data.store import Store
from detpipe.train.config import SAMPLER_RESOURCES

HERE = "detpipe.data.sampler"

# Every sampler with options that make it do something on the store of `mixed`.
SPECS = [
    {"use": f"{HERE}.shuffle"},
    {"use": f"{HERE}.sequential"},
    {"use": f"{HERE}.repeat_factor", "threshold": 0.5},
    {"use": f"{HERE}.class_balanced"},
    {"use": f"{HERE}.weighted", "weights": {"clip_a/*": 2.5, "clip_b/*": 0}},
    {"use": f"{HERE}.aspect_ratio_grouped", "bins": 3},
    {
        "use": f"{HERE}.aspect_ratio_grouped",
        "sampler": {"use": f"{HERE}.repeat_factor", "threshold": 0.5},
    },
]
IDS = [spec["use"].rpartition(".")[2] + "+inner" * ("sampler" in spec) for spec in SPECS]


def make_store(
    labels: Sequence[str],
    *,
    crowds: Sequence[str] = (),
    paths: Sequence[str] = (),
    sizes: Sequence[tuple[int, int]] = (),
    classes: str = "abc",
) -> Store:
    """Image i shows the classes ``labels[i]`` (a letter a box), and crowds of ``crowds[i]``.

    ``sizes`` are (width, height).
    """
    images = [
        {
            "image_id": str(i),
            "path": paths[i] if paths else f"{i}.jpg",
            "width": sizes[i][0] if sizes else 20,
            "height": sizes[i][1] if sizes else 10,
            "split": "train",
        }
        for i in range(len(labels))
    ]
    shown = [(i, name, False) for i, names in enumerate(labels) for name in names]
    shown += [(i, name, True) for i, names in enumerate(crowds) for name in names]
    rows = [
        {"image_id": str(i), "annotation_id": str(n), "class_name": name, "x1": 0.0, "y1": 0.0,
         "x2": 5.0, "y2": 5.0, "area": 25.0, "iscrowd": crowd, "difficult": False}
        for n, (i, name, crowd) in enumerate(shown)
    ]  # fmt: skip
    return Store.from_tables(
        IMAGES.make(images) if images else IMAGES.empty(),
        BOXES.make(rows) if rows else BOXES.empty(),
        CLASSES.make([{"class_name": name} for name in classes]),
        Path("/pictures"),
    )


@pytest.fixture(scope="module")
def mixed() -> Store:
    """37 images in two clips, of all sorts of sizes, some without objects."""
    rng = np.random.default_rng(0)
    return make_store(
        ["a" * int(i % 5 > 0) + "b" * int(i % 3 == 0) + "c" * int(i == 11) for i in range(37)],
        paths=[f"clip_{'ab'[i % 2]}/{i}.jpg" for i in range(37)],
        sizes=[tuple(rng.integers(200, 800, 2).tolist()) for _ in range(37)],
    )


def build(spec: dict[str, Any], store: Store, *, seed: int = 3, batch_size: int = 4) -> Sampler:
    """As the train pipeline does."""
    built = Spec.model_validate(spec).build(
        length=len(store), seed=seed, store=store, batch_size=batch_size
    )
    assert hasattr(built, "index")
    return built  # type: ignore[no-any-return]


def read(sampler: Sampler, count: int, start: int = 0) -> list[int]:
    return [sampler.index(position) for position in range(start, start + count)]


def check_rounding(sampler: Sampler, shares: Sequence[float], *, cycles: int) -> np.ndarray:
    """In each cycle an image's number is its share, rounded down or up; [cycles, images]."""
    expected = np.array(shares)
    length = round(expected.sum())
    assert expected.sum() == pytest.approx(length)
    order = np.array(read(sampler, cycles * length)).reshape(cycles, length)
    counts = np.stack([np.bincount(cycle, minlength=len(expected)) for cycle in order])
    assert counts.shape[1] == len(expected)
    assert (counts >= np.floor(expected + 1e-9)).all()
    assert (counts <= np.ceil(expected - 1e-9)).all()
    return counts


def check_shares(sampler: Sampler, shares: Sequence[float], *, cycles: int = 1500) -> None:
    """On average an image's number in a cycle is its share.

    The mean of ``cycles`` draws may be off by 4 standard errors, where one draw has the variance
    p (1 - p), p being the share's part after the point.
    """
    counts = check_rounding(sampler, shares, cycles=cycles)
    part = np.array(shares) % 1
    error = np.sqrt(part * (1 - part) / cycles)
    assert (np.abs(counts.mean(0) - shares) <= 4 * error + 1e-9).all()


# --- shuffle and sequential --------------------------------------------------------------------


def test_every_image_once_an_epoch_each_in_its_own_order() -> None:
    sampler = shuffle(length=50, seed=1)
    epochs = [read(sampler, 50, 50 * e) for e in range(3)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_sequential() -> None:
    assert read(sequential(length=3), 7) == [0, 1, 2, 0, 1, 2, 0]


# --- what holds for all ------------------------------------------------------------------------


@pytest.mark.parametrize("spec", SPECS, ids=IDS)
def test_order_is_a_function_of_seed_and_position_only(spec: dict[str, Any], mixed: Store) -> None:
    positions = np.arange(300)
    order = read(build(spec, mixed), len(positions))
    jumping = build(spec, mixed)
    for position in np.random.default_rng(1).permutation(positions).tolist():
        assert jumping.index(position) == order[position]
    assert read(pickle.loads(pickle.dumps(jumping)), len(positions)) == order
    if "sequential" not in spec["use"]:
        assert read(build(spec, mixed, seed=4), len(positions)) != order


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("spec", SPECS, ids=IDS)
def test_ranks_that_read_every_nth_batch_make_up_one_reader(
    spec: dict[str, Any], ranks: int, mixed: Store
) -> None:
    batch, count = 4, 240
    whole = read(build(spec, mixed, batch_size=batch), count)
    together = [-1] * count
    for rank in range(ranks):
        own = build(spec, mixed, batch_size=batch)  # a process of its own has an object of its own
        for first in range(rank * batch, count, ranks * batch):
            together[first : first + batch] = read(own, batch, first)
    assert together == whole


@pytest.mark.parametrize("spec", SPECS, ids=IDS)
def test_a_seed_moves_no_global_generator(spec: dict[str, Any], mixed: Store) -> None:
    np.random.seed(0)
    before, torch_before = np.random.get_state()[1].copy(), torch.get_rng_state()  # type: ignore[union-attr,index]
    read(build(spec, mixed), 100)
    assert np.array_equal(before, np.random.get_state()[1])  # type: ignore[index]
    assert torch.equal(torch_before, torch.get_rng_state())


@pytest.mark.parametrize("spec", SPECS, ids=IDS)
def test_an_empty_store_is_an_error(spec: dict[str, Any]) -> None:
    spec = {k: v for k, v in spec.items() if k != "weights"} | (
        {"weights": {}} if "weights" in spec else {}
    )
    with pytest.raises(DataError, match="train split is empty"):
        build(spec, make_store([]))


def test_samplers_are_offered_what_the_configuration_says() -> None:
    assert RESOURCES == SAMPLER_RESOURCES


# --- cycles ------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    weights=st.lists(st.sampled_from([0.0, 0.1, 0.3, 1.0, 1.5, 2.0, 7.25]), min_size=1, max_size=30)
    .filter(any)
    .map(np.array),
    length=st.integers(1, 60),
    seed=st.integers(0, 2**32),
)
def test_a_cycle_has_its_length_and_each_image_its_share_rounded(
    weights: np.ndarray, length: int, seed: int
) -> None:
    cycle = Cycle(weights, length=length, seed=seed)
    check_rounding(cycle, weights * length / weights.sum(), cycles=4)


def test_an_image_comes_as_often_as_its_share_in_expectation() -> None:
    weights = np.array([0.05, 1.0, 0.7, 2.35, 0.0, 0.4, 0.5])  # they add up to 5
    for length in (5, 3, 11):
        shares = weights * length / 5
        check_shares(Cycle(weights, length=length, seed=0), shares)


def test_frequencies_are_those_of_torchs_weighted_random_sampler() -> None:
    store = make_store([""] * 6, paths=[f"{name}/{i}.jpg" for i, name in enumerate("aabccc")])
    by_image = [3.0, 3.0, 0.5, 1.0, 1.0, 1.0]
    draws = 60_000
    theirs = WeightedRandomSampler(by_image, draws, generator=torch.Generator().manual_seed(0))
    expected = np.bincount(list(theirs), minlength=6) / draws
    sampler = weighted(store=store, seed=0, weights={"a/*": 3, "b/*": 0.5})
    ours = np.bincount(read(sampler, draws), minlength=6) / draws
    # Theirs draws each place on its own: a standard error of sqrt(p (1 - p) / n) <= 0.002.
    assert ours == pytest.approx(expected, abs=0.008)


# --- repeat factor -----------------------------------------------------------------------------

# 8 images, threshold 0.5. a is on 6 of 8: f = 0.75, r = max(1, sqrt(0.5 / 0.75)) = 1.
# b is on 2 of 8 (the crowds of images 0 and 7 do not count): f = 0.25, r = sqrt(2).
# c is on 1 of 8: f = 0.125, r = sqrt(4) = 2. An image has the largest of its classes' factors.
LVIS_LABELS = ["aaa", "a", "ab", "bb", "ac", "a", "a", ""]
LVIS_CROWDS = ["b", "", "", "", "", "", "", "b"]
LVIS_FACTORS = [1, 1, 2**0.5, 2**0.5, 2, 1, 1, 1]  # sum 9.83


def test_repeat_factors_are_those_of_lvis() -> None:
    store = make_store(LVIS_LABELS, crowds=LVIS_CROWDS)
    sampler = repeat_factor(store=store, seed=0, threshold=0.5)
    # A cycle has 10 places; the rounding of 9.83 is shared by all in proportion.
    check_shares(sampler, [factor * 10 / (6 + 2 * 2**0.5 + 1) for factor in LVIS_FACTORS])


@pytest.mark.parametrize("labels", [["a", "ab", "b", ""], ["", "", ""], ["a"] * 3 + [""]])
def test_repeat_factor_without_rare_classes_is_shuffle(
    labels: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        sampler = repeat_factor(store=make_store(labels), seed=5, threshold=0.25)
    assert "repeats nothing" in caplog.text
    order = read(shuffle(length=len(labels), seed=5), 40)
    assert read(sampler, 40) == order


def test_repeat_factors_of_real_annotations(shared_data: Path) -> None:
    """Against the formula written with pandas alone."""
    read_back = voc.read(shared_data / "bccd_voc" / "BCCD")
    images, boxes, classes = read_back.images, read_back.boxes, read_back.classes
    store = Store.from_tables(images, boxes, classes, shared_data)
    threshold = 0.6
    pairs = boxes.loc[~boxes["iscrowd"], ["image_id", "class_name"]].drop_duplicates()
    share = pairs["class_name"].map(pairs["class_name"].value_counts() / len(images))
    factor = ((threshold / share) ** 0.5).clip(lower=1)
    order = [store.image_ids[i] for i in range(len(store))]  # by split
    expected = factor.groupby(pairs["image_id"]).max().reindex(order, fill_value=1.0)
    length = round(expected.sum())
    assert length > len(images)
    sampler = repeat_factor(store=store, seed=0, threshold=threshold)
    check_shares(sampler, expected.to_numpy() * length / expected.sum(), cycles=200)


# --- class balanced ----------------------------------------------------------------------------


def test_class_balanced_is_a_class_then_one_of_its_images() -> None:
    # a on 4 images, b on 2, c on 1. A class has 1/3, each of its images an equal part of it; the
    # 5 images with objects share 5 of the 7 places of a cycle:
    labels = ["a", "a", "ab", "abb", "c", "", ""]
    crowds = ["b", "", "", "", "", "", "c"]
    a, b, c = 1 / 3 / 4, 1 / 3 / 2, 1 / 3
    expected = [5 * a, 5 * a, 5 * (a + b), 5 * (a + b), 5 * c, 1, 1]
    sampler = class_balanced(store=make_store(labels, crowds=crowds), seed=0)
    check_shares(sampler, expected)


def test_classes_are_seen_equally_often_where_images_show_one_class() -> None:
    labels = ["a"] * 30 + ["b"] * 9 + ["c"]
    sampler = class_balanced(store=make_store(labels, classes="abcd"), seed=0)  # d is on none
    seen = Counter(labels[i] for i in read(sampler, 40 * 300))
    assert set(seen) == set("abc")
    assert list(seen.values()) == pytest.approx([4000] * 3, rel=0.01)


def test_power_softens_the_balance() -> None:
    # One class an image: a class of n images comes n * n ** -power times, here 16 to 1 images.
    labels = ["a"] * 16 + ["b"]
    for power, ratio in ((0.0, 16.0), (0.5, 4.0), (1.0, 1.0)):
        sampler = class_balanced(store=make_store(labels), seed=0, power=power)
        check_shares(sampler, [17 / (ratio + 1) * ratio / 16] * 16 + [17 / (ratio + 1)])


def test_class_balanced_without_objects_is_shuffle() -> None:
    store = make_store([""] * 5, crowds=["a"] * 5)
    assert read(class_balanced(store=store, seed=2), 30) == read(shuffle(length=5, seed=2), 30)


# --- weighted ----------------------------------------------------------------------------------

CLIPS = [
    "clip_a/x/0.jpg",
    "clip_a/1.jpg",
    "clip_b/2.jpg",
    "clip_b/3.png",
    "4.jpg",
    "clip [c]/5.jpg",
]


def of_clips(weights: dict[str, float | None]) -> Sampler:
    return weighted(store=make_store([""] * len(CLIPS), paths=CLIPS), seed=0, weights=weights)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ({}, [1, 1, 1, 1, 1, 1]),
        ({"clip_a/*": 2}, [2, 2, 1, 1, 1, 1]),
        ({"clip_a/*": 0.5, "*": 2}, [0.25, 0.25, 1, 1, 1, 1]),
        ({"clip_a/?.jpg": 3}, [1, 3, 1, 1, 1, 1]),
        ({"*.png": 4, "clip_b/*": 2}, [1, 1, 2, 4, 1, 1]),
        ({"clip_b/*": 2, "*.jpg": 1}, [1, 1, 2, 2, 1, 1]),
        ({"clip_a/*": 0, "clip_b/*": None}, [0, 0, 1, 1, 1, 1]),
        ({"clip [[]c[]]/*": 0.25}, [4, 4, 4, 4, 4, 1]),
    ],
)
def test_the_first_pattern_that_matches_counts(
    weights: dict[str, float | None], expected: list[float]
) -> None:
    places = sum(weight > 0 for weight in expected)
    check_shares(of_clips(weights), [w * places / sum(expected) for w in expected])


def test_weight_0_leaves_the_others_as_in_a_shuffle() -> None:
    sampler = of_clips({"clip_a/*": 0, "4.jpg": 0})
    for cycle in range(5):
        assert sorted(read(sampler, 3, 3 * cycle)) == [2, 3, 5]


def test_mistaken_patterns_come_all_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        of_clips({"clip_a/*": 2, "clipa/*": 2, "clip_a/1*": 3, "*.tif": 1, "clip [c]/*": 2})
    message = str(caught.value)
    assert "'clipa/*' matches no training image; did you mean 'clip_a/*'?" in message
    assert "'clip_a/1*' has no effect: patterns before it match all its images" in message
    assert "'*.tif' matches no training image; their paths are such as 'clip_a/x/0.jpg'" in message
    assert "'clip [c]/*' matches no training image; did you mean 'clip [[]c]/*'?" in message
    assert "weight 0" not in message


def test_nothing_left_is_an_error() -> None:
    with pytest.raises(ConfigError, match="every training image has weight 0"):
        of_clips({"*": 0})


# --- aspect ratio ------------------------------------------------------------------------------


def mixed_sizes(count: int, seed: int = 0) -> list[tuple[int, int]]:
    """Seven of ten landscape, as in COCO; ratios around 4:3 and 3:4."""
    rng = np.random.default_rng(seed)
    ratios = np.exp(rng.normal(0.29, 0.15, count) * np.where(rng.random(count) < 0.7, 1, -1))
    return [(round(480 * r**0.5), round(480 / r**0.5)) for r in ratios]


def padding(sampler: Sampler, store: Store, *, batch_size: int, epochs: int) -> float:
    """Padded pixels as a share of all, in batches as torchvision's detectors make them.

    An image is scaled to a short side of 800, or to a long one of 1333 if that is less, and put
    into the smallest canvas that holds the batch.
    """
    batches = epochs * len(store) // batch_size
    sizes = store.sizes[read(sampler, batches * batch_size)].astype(float)
    sizes *= np.minimum(800 / sizes.min(1), 1333 / sizes.max(1))[:, None]
    canvas = sizes.reshape(batches, batch_size, 2).max(1).prod(1) * batch_size
    return float(1 - sizes.prod(1).sum() / canvas.sum())


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 40),
    batch=st.integers(1, 9),
    bins=st.integers(2, 6),
    seed=st.integers(0, 9),
)
def test_every_place_of_the_other_sampler_comes_once(
    count: int, batch: int, bins: int, seed: int
) -> None:
    store = make_store([""] * count, sizes=mixed_sizes(count, seed))
    grouped = aspect_ratio_grouped(
        length=count, seed=seed, store=store, batch_size=batch, bins=bins
    )
    size = -(-count // batch) * batch
    inner = shuffle(length=count, seed=seed)
    for window in range(3):
        ours, theirs = read(grouped, size, window * size), read(inner, size, window * size)
        assert sorted(ours) == sorted(theirs)
    ratios = store.sizes[:, 1] / store.sizes[:, 0]
    edges = [2 ** (2 * k / bins - 1) for k in range(1, bins)]
    groups = [np.digitize(ratios[ours[f : f + batch]], edges) for f in range(0, size, batch)]
    assert sum(len(set(group)) > 1 for group in groups) <= bins - 1


def test_two_bins_part_landscape_from_portrait() -> None:
    sizes = [(30, 20), (20, 30)] * 8
    store = make_store([""] * 16, sizes=sizes)
    grouped = aspect_ratio_grouped(length=16, seed=0, store=store, batch_size=4)
    kinds = [{i % 2 for i in read(grouped, 4, first)} for first in range(0, 160, 4)]
    assert all(len(kind) == 1 for kind in kinds)
    orders = {tuple(min(kind) for kind in kinds[k : k + 4]) for k in range(0, 40, 4)}
    assert len(orders) > 1  # batches are shuffled, each window anew


def test_images_keep_the_order_of_the_other_sampler_within_a_bin() -> None:
    store = make_store([""] * 12, sizes=[(30, 20), (20, 30)] * 6)
    grouped = aspect_ratio_grouped(
        length=12, seed=0, store=store, batch_size=3, sampler=Spec(use=f"{HERE}.sequential")
    )
    batches = {tuple(read(grouped, 3, first)) for first in range(0, 12, 3)}
    assert batches == {(0, 2, 4), (6, 8, 10), (1, 3, 5), (7, 9, 11)}


def test_left_over_images_are_put_together_in_order_of_ratio() -> None:
    # Three bins, parted at 0.79 and 1.26, hold 0, 1, 2 and 3, 4, 5 and 6, 7: none has a batch of
    # 4. In order of ratio they are 0, 1, 2, 5, 3, 4, 6, 7.
    ratios = [0.5, 0.6, 0.7, 1.1, 1.2, 0.9, 1.5, 1.6]
    grouped = aspect_ratio_grouped(
        length=8,
        seed=0,
        store=make_store([""] * 8, sizes=[(round(100 * ratio), 100) for ratio in ratios]),
        batch_size=4,
        bins=3,
        sampler=Spec(use=f"{HERE}.sequential"),
    )
    assert sorted(read(grouped, 4, first) for first in (0, 4)) == [[0, 1, 2, 5], [3, 4, 6, 7]]


def test_a_square_image_is_with_the_wider_ones() -> None:
    store = make_store([""] * 4, sizes=[(10, 10), (10, 20), (20, 10), (10, 20)])
    grouped = aspect_ratio_grouped(length=4, seed=0, store=store, batch_size=2)
    assert {frozenset(read(grouped, 2, first)) for first in (0, 2)} == {
        frozenset({0, 2}),
        frozenset({1, 3}),
    }


def test_an_unknown_size_counts_as_square() -> None:
    # With 3 bins the middle one reaches from 0.79 to 1.26.
    sizes = [(0, 0), (30, 10), (0, 0), (10, 30), (30, 10), (10, 30), (20, 20), (21, 20)]
    grouped = aspect_ratio_grouped(
        length=8, seed=0, store=make_store([""] * 8, sizes=sizes), batch_size=2, bins=3
    )
    batches = {frozenset(read(grouped, 2, first)) for first in range(0, 8, 2)}
    assert {frozenset({1, 4}), frozenset({3, 5})} <= batches


@pytest.mark.parametrize("batch_size", [2, 8, 16])
def test_grouping_saves_padding(batch_size: int) -> None:
    store = make_store([""] * 300, sizes=mixed_sizes(300))
    plain, two, six = paddings(store, batch_size=batch_size)
    assert two < 0.6 * plain
    assert six < 0.6 * two


def test_grouping_saves_padding_on_pictures_of_coco(shared_data: Path) -> None:
    file = shared_data / "eval_truth_coco100" / "instances_val2014_100.json"
    images = json.loads(file.read_text())["images"]
    sizes = [(image["width"], image["height"]) for image in images]
    plain, two, six = paddings(make_store([""] * len(sizes), sizes=sizes), batch_size=4)
    assert six < two < 0.6 * plain


def paddings(store: Store, *, batch_size: int) -> tuple[float, float, float]:
    """The padding of shuffle, and of 2 and 6 bins."""
    options: dict[str, Any] = {"length": len(store), "seed": 0}
    grouped: dict[str, Any] = {**options, "store": store, "batch_size": batch_size}
    samplers = (
        shuffle(**options),
        aspect_ratio_grouped(**grouped),
        aspect_ratio_grouped(**grouped, bins=6),
    )
    plain, two, six = (padding(s, store, batch_size=batch_size, epochs=4) for s in samplers)
    return plain, two, six


# --- from YAML ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"use": f"{HERE}.repeat_factor", "threshold": 0}, "threshold: .*greater than 0"),
        ({"use": f"{HERE}.repeat_factor", "treshold": 0.1}, "did you mean 'threshold'"),
        ({"use": f"{HERE}.class_balanced", "power": 2}, "power: .*less than or equal to 1"),
        ({"use": f"{HERE}.weighted"}, "needs the option 'weights'"),
        ({"use": f"{HERE}.weighted", "weights": {"a/*": -1}}, "weights.a/.*greater than or"),
        ({"use": f"{HERE}.weighted", "weights": {"a/*": float("inf")}}, "finite"),
        ({"use": f"{HERE}.aspect_ratio_grouped", "bins": 1}, "bins: .*greater than or equal to 2"),
        (
            {"use": f"{HERE}.aspect_ratio_grouped", "sampler": {"use": f"{HERE}.shufle"}},
            "did you mean 'detpipe.data.sampler.shuffle'",
        ),
        (
            {
                "use": f"{HERE}.aspect_ratio_grouped",
                "sampler": {"use": f"{HERE}.repeat_factor", "threshold": -1},
            },
            "sampler: .*threshold: .*greater than 0",
        ),
    ],
)
def test_mistakes_are_found_before_any_work(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_spec(Spec.model_validate(spec), where="train.sampler", provided=RESOURCES)


@pytest.mark.parametrize("spec", SPECS, ids=IDS)
def test_good_settings_pass(spec: dict[str, Any]) -> None:
    check_spec(Spec.model_validate(spec), where="train.sampler", provided=RESOURCES)
