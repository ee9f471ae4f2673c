"""Which image is for what: train, val or test."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from detpipe.core.errors import DataError
from detpipe.core.tables import IMAGES, positions
from detpipe.data.config import SplitConfig

logger = logging.getLogger(__name__)

Whole = npt.NDArray[np.int64]

SPLITS = ("train", "val", "test")
"""The names of the splits from here on."""

_COMMON_NAMES: Mapping[str, str] = {
    "train": "train", "training": "train",
    "val": "val", "valid": "val", "validation": "val", "dev": "val",
    "test": "test", "testing": "test",
}  # fmt: skip


def split(images: pd.DataFrame, boxes: pd.DataFrame, config: SplitConfig) -> pd.DataFrame:
    """The ``images`` table with ``split`` one of train, val, test.

    With ``by: own`` the data set's names are translated, first by ``rename``, then common ones.
    With ``by: ratio`` or ``folds`` images are drawn anew, stratified: each class (and the images
    without objects) is shared out like the whole. Images of one group (``images.group``, or what
    ``group_pattern`` finds in their paths) stay together. The result depends on the images' paths,
    their classes and groups, and the seed only, not on the order of rows; one file listed twice
    goes to one split.

    Raises:
        DataError: a split's name is unknown, an image has none, a path does not fit
            ``group_pattern``, or there are fewer groups than ``folds``.
    """
    groups = _groups(images, config)
    images = images.copy()
    if config.by == "own" or (config.by == "auto" and images["split"].any()):
        images["split"] = _own(images["split"], config)
    else:
        images["split"] = _drawn(images, boxes, groups, config)
    if groups is not None:
        _warn_about_torn_groups(images["split"], groups)
    counts = images["split"].value_counts()
    logger.info("split: %s", ", ".join(f"{name} {counts.get(name, 0)}" for name in SPLITS))
    empty = [name for name in SPLITS if name not in counts]
    if empty:
        logger.warning("no image in: %s", ", ".join(empty))
    return IMAGES.make(images)


# --- the data set's own ------------------------------------------------------------------------


def _own(splits: pd.Series, config: SplitConfig) -> pd.Series:
    there = ", ".join(f"'{name}' ({count})" for name, count in splits.value_counts().items())
    without = int((splits == "").sum())
    if without:
        raise DataError(
            f"{without} of {len(splits)} images belong to no split (the data set has {there}); "
            f"draw one with data.split.by: ratio"
        )
    target = _meanings(splits, config)
    unknown = [f"'{name}'" for name, meaning in target.items() if meaning is None]
    if unknown:
        raise DataError(
            f"unknown split(s) {', '.join(unknown)}; the data set has {there}. Say which of "
            f"{', '.join(SPLITS)} each one is with data.split.rename, or use data.split.by: ratio"
        )
    return splits.map(target)


def _meanings(splits: pd.Series, config: SplitConfig) -> dict[str, str | None]:
    """Own name → train, val, test, or None."""
    wrong = sorted(set(config.rename.values()) - set(SPLITS))
    if wrong:
        raise DataError(f"data.split.rename: {', '.join(wrong)} is none of {', '.join(SPLITS)}")
    return {
        str(name): config.rename.get(name, _COMMON_NAMES.get(str(name).strip().lower()))
        for name in splits.unique()
    }


# --- groups ------------------------------------------------------------------------------------


def _groups(images: pd.DataFrame, config: SplitConfig) -> pd.Series | None:
    """The group of each image; None where there are none. Images without one are their own."""
    named = images["group"] if "group" in images and (images["group"] != "").any() else None
    if config.group_pattern is None:
        return None if named is None else named.where(named != "", images["path"])
    if named is not None:
        raise DataError(
            "data.split.group_pattern is given, and the reader gives groups too (its option "
            "'group', or a column of that name): take one of them away"
        )
    pattern = re.compile(config.group_pattern)
    found = images["path"].str.extract(
        config.group_pattern if pattern.groups else f"({config.group_pattern})"
    )[0]
    unfit = images["path"][found.isna()]
    if len(unfit):
        raise DataError(
            f"data.split.group_pattern '{config.group_pattern}' is not found in {len(unfit)} of "
            f"{len(images)} paths, the first: '{unfit.iloc[0]}'"
        )
    logger.info("split: %d groups of images, by data.split.group_pattern", found.nunique())
    return found


def _warn_about_torn_groups(splits: pd.Series, groups: pd.Series) -> None:
    torn = splits.groupby(groups).nunique()
    torn = torn[torn > 1]
    if len(torn):
        logger.warning(
            "%d of %d groups have images in several splits, the first: '%s'; results on images "
            "like those that were trained on say little",
            len(torn), groups.nunique(), str(torn.index[0]).replace("[", "("),
        )  # fmt: skip


# --- drawn -------------------------------------------------------------------------------------


def _drawn(
    images: pd.DataFrame, boxes: pd.DataFrame, groups: pd.Series | None, config: SplitConfig
) -> pd.Series:
    """Iterative stratification (Sechidis et al. 2011); of single images in exact numbers."""
    kept = _kept(images["split"], config)
    free = images[kept.isna()]
    units = free["path"] if groups is None else groups[free.index]
    names, counts = _counted(free, units, boxes)
    if config.by == "folds":
        chosen = _fold_of(counts, config, test_is_kept=bool((kept == "test").any()))
    else:
        names_of = [name for name in SPLITS if not (kept == name).any()]
        shares = np.array([getattr(config, name) for name in names_of], dtype=float)
        if not shares.sum():
            raise DataError(
                f"data.split.keep leaves {len(free)} images for {', '.join(names_of)}, and the "
                f"shares of these are 0"
            )
        shares = shares if len(shares) == len(SPLITS) else shares / shares.sum()
        parts = _stratify(counts, shares, seed=config.seed)
        chosen = np.array(names_of)[parts]
    split_of = dict(zip(names, chosen.tolist(), strict=True))
    return kept.where(kept.notna(), units.map(split_of).reindex(images.index))


def _kept(splits: pd.Series, config: SplitConfig) -> pd.Series:
    """train, val or test where the own split stays, else NaN."""
    absent = [name for name in config.keep if not (splits == name).any()]
    if absent:
        there = ", ".join(f"'{name}'" for name in splits.unique())
        raise DataError(
            f"data.split.keep: there is no split {', '.join(absent)}; the data set has {there}"
        )
    chosen = splits[splits.isin(config.keep)]
    target = _meanings(chosen, config)
    if unknown := [name for name, meaning in target.items() if meaning is None]:
        raise DataError(
            f"data.split.keep: say which of {', '.join(SPLITS)} {', '.join(unknown)} is with "
            f"data.split.rename"
        )
    if len(chosen) == len(splits) and len(splits):
        raise DataError("data.split.keep names every split there is: use data.split.by: own")
    return splits.map(target).where(splits.isin(config.keep))


class _Counts(NamedTuple):
    """How many images of each of N units hold each of K classes, where there are some.

    Attributes:
        weight: ``[N]``, images of a unit.
        unit: ``[P]``, ascending.
        klass: ``[P]``; the last class is that of the images without objects.
        number: ``[P]``, 1 and more.
    """

    weight: Whole
    unit: Whole
    klass: Whole
    number: Whole

    def of(self, units: Whole) -> _Counts:
        """Those of some units (ascending), numbered from 0."""
        number = np.full(len(self.weight), -1)
        number[units] = np.arange(len(units))
        kept = number[self.unit] >= 0
        return _Counts(
            self.weight[units], number[self.unit[kept]], self.klass[kept], self.number[kept]
        )


def _counted(
    images: pd.DataFrame, units: pd.Series, boxes: pd.DataFrame
) -> tuple[list[str], _Counts]:
    """Names of the units, in order, and what they hold; an image listed twice counts once."""
    path, paths = pd.factorize(images["path"])
    first = np.unique(path, return_index=True)[1]
    names = sorted(units.iloc[first].unique())
    unit_of = positions(units.iloc[first], pd.Series(names)).astype(np.int64)
    row = positions(boxes["image_id"], images["image_id"])
    held = boxes["class_name"][row >= 0]
    classes = sorted(held.unique())
    base = len(classes) + 1
    pairs = np.unique(path[row[row >= 0]] * base + positions(held, pd.Series(classes)))
    empty = np.setdiff1d(np.arange(len(paths)), pairs // base)
    pairs = np.concatenate([pairs, empty * base + len(classes)])
    found, count = np.unique(unit_of[pairs // base] * base + pairs % base, return_counts=True)
    return names, _Counts(np.bincount(unit_of), found // base, found % base, count)


def _fold_of(counts: _Counts, config: SplitConfig, *, test_is_kept: bool) -> npt.NDArray[np.str_]:
    """test: the same for every fold; val: the part number ``fold`` of the rest; train: all else."""
    chosen = np.full(len(counts.weight), "train", dtype="<U5")
    rest = np.arange(len(chosen))
    if config.test and not test_is_kept:
        aside = _stratify(counts, np.array([1 - config.test, config.test]), seed=config.seed)
        chosen[aside == 1] = "test"
        rest = rest[aside == 0]
    if len(rest) < config.folds:
        raise DataError(
            f"data.split.folds is {config.folds}, and there are {len(rest)} images (or groups of "
            f"them) to divide"
        )
    shares = np.full(config.folds, 1 / config.folds)
    parts = _stratify(counts.of(rest), shares, seed=config.seed)
    chosen[rest[parts == config.fold]] = "val"
    return chosen


def _stratify(counts: _Counts, shares: npt.NDArray[np.float64], *, seed: int) -> Whole:
    """Which subset each of N units (images, or groups of images) goes to.

    Args:
        counts: of the units; each has at least one class.
        shares: ``[S]``, sum 1.
        seed: of the order and of ties.
    """
    weight, unit, klass, number = counts
    order = np.random.default_rng(seed).permutation(len(weight))
    order = order[np.argsort(-weight[order], kind="stable")]  # what is large is placed first
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    by_class = unit[np.lexsort((rank[unit], klass))]
    ends = np.cumsum(np.bincount(klass)).tolist()  # where a class ends in by_class
    starts = np.searchsorted(unit, np.arange(len(weight) + 1)).tolist()
    # What is read one by one is a list: numpy's numbers take three times as long.
    room = _whole_numbers(shares, int(weight.sum())).tolist()
    total = np.bincount(klass, weights=number)
    left, wanted = total.tolist(), (shares[:, None] * total).tolist()  # [K]; [S][K]
    chosen = [-1] * len(weight)
    while any(left):
        rarest = min((n, k) for k, n in enumerate(left) if n)[1]
        for one in by_class[ends[rarest - 1] if rarest else 0 : ends[rarest]].tolist():
            if chosen[one] >= 0:
                continue
            wishes = [
                (wanted[s][rarest] if free > 0 else -np.inf, free) for s, free in enumerate(room)
            ]
            best = wishes.index(max(wishes))
            chosen[one] = best
            room[best] -= int(weight[one])
            part, wish = slice(starts[one], starts[one + 1]), wanted[best]
            for k, n in zip(klass[part].tolist(), number[part].tolist(), strict=True):
                wish[k] -= n
                left[k] -= n
    return np.array(chosen)


def _whole_numbers(shares: npt.NDArray[np.float64], total: int) -> npt.NDArray[np.int64]:
    """``shares`` of ``total`` as whole numbers that add up, none of them 0 where it can be."""
    exact = shares * total
    numbers = np.floor(exact + 1e-9).astype(np.int64)
    for index in np.argsort(numbers - exact, kind="stable")[: total - int(numbers.sum())]:
        numbers[index] += 1
    for index in np.flatnonzero((shares > 0) & (numbers == 0)):
        if numbers.max() > 1:
            numbers[int(np.argmax(numbers))] -= 1
            numbers[index] = 1
    return numbers
