"""Which image is for what: train, val or test."""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd

from detpipe.core.errors import DataError
from detpipe.core.tables import IMAGES
from detpipe.data.config import SplitConfig
from detpipe.data.formats.base import sample
from detpipe.data.hashes import groups as connected
from detpipe.data.stratify import Counts, counted, stratify

logger = logging.getLogger(__name__)


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
    ``group_pattern`` finds in their paths) stay together, and so do files of equal content
    (``images.twin``). The result depends on the images' paths, their classes and groups, and the
    seed only, not on the order of rows; one file listed twice goes to one split.

    Raises:
        DataError: a split's name is unknown, an image has none, a path does not fit
            ``group_pattern``, or there are fewer groups than ``folds``.
    """
    groups = _groups(images, config)
    images = images.copy()
    if config.by == "own" or (config.by == "auto" and images["split"].any()):
        images["split"] = _own(images["split"], config)
    else:
        images["split"] = _drawn(images, boxes, _with_twins(images, groups), config)
        _say_shares(images["split"], boxes, images, config)
    if groups is not None:
        _warn_about_torn_groups(images["split"], groups)
    counts = images["split"].value_counts()
    logger.info("split: %s", ", ".join(f"{name} {counts.get(name, 0)}" for name in SPLITS))
    empty = [name for name in SPLITS if name not in counts]
    if empty:
        logger.warning("no image in: %s", ", ".join(empty))
    return IMAGES.make(images)


def undecided(images: pd.DataFrame, config: SplitConfig) -> pd.DataFrame:
    """The table without the splits that will be drawn anew: nothing is to be judged by them.

    Raises:
        DataError: ``keep`` names what is not there.
    """
    if config.by not in ("ratio", "folds"):
        return images
    _kept(images["split"], config)
    return images.assign(split=images["split"].where(images["split"].isin(config.keep), ""))


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
    found = (
        images["path"]
        .str.extract(config.group_pattern if pattern.groups else f"({config.group_pattern})")
        .iloc[:, 0]
    )
    unfit = images["path"][found.isna()]
    if len(unfit):
        raise DataError(
            f"data.split.group_pattern '{config.group_pattern}' is not found in {len(unfit)} of "
            f"{len(images)} paths, the first: '{unfit.iloc[0]}'"
        )
    # Names that look the same are the same.
    found = found.map(lambda name: unicodedata.normalize("NFC", name))
    logger.info("split: %d groups of images, by data.split.group_pattern", found.nunique())
    return found


def _with_twins(images: pd.DataFrame, groups: pd.Series | None) -> pd.Series | None:
    """The groups, those with files of equal content as one."""
    if "twin" not in images or not (images["twin"] != "").any():
        return groups
    units = images["path"] if groups is None else groups
    code, names = pd.factorize(units, sort=True)
    alike = pd.DataFrame({"twin": images["twin"].to_numpy(), "code": code})
    alike = alike[alike["twin"] != ""]
    first = alike.groupby("twin")["code"].transform("min")
    merged = connected(zip(first.tolist(), alike["code"].tolist(), strict=True))
    for group in merged:
        code[np.isin(code, group)] = group[0]
    logger.info("split: %d group(s) of files of equal content stay together",
                alike["twin"].nunique())  # fmt: skip
    return pd.Series(names[code], index=images.index)


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
    if "twin" in images:  # a copy of what stays in test is no training image
        beside = kept.dropna().groupby(images["twin"]).first().drop("", errors="ignore")
        kept = kept.fillna(images["twin"].map(beside))
    free = images[kept.isna()]
    units = free["path"] if groups is None else groups[free.index]
    names, counts = counted(free, units, boxes)
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
        parts = stratify(counts, shares, seed=config.seed)
        chosen = np.array(names_of)[parts]
    split_of = dict(zip(names, chosen.tolist(), strict=True))
    return kept.where(kept.notna(), units.map(split_of).reindex(images.index))


def _say_shares(
    splits: pd.Series, boxes: pd.DataFrame, images: pd.DataFrame, config: SplitConfig
) -> None:
    """Warns of shares that large groups made impossible, and of classes that a split lacks."""
    if config.by != "folds" and not config.keep:
        got = {name: float((splits == name).mean()) for name in SPLITS}
        off = [n for n in SPLITS if abs(got[n] - getattr(config, n)) > max(0.05, 1.5 / len(splits))]
        if off:
            logger.warning(
                "split: %s, because groups of images stay together",
                ", ".join(f"{n} got {got[n]:.0%} of the images, not {getattr(config, n):.0%}"
                          for n in off),
            )  # fmt: skip
    split_of = pd.Series(splits.to_numpy(), index=images["image_id"].to_numpy())
    held = boxes["class_name"].groupby(boxes["image_id"].map(split_of)).unique()
    classes = set(boxes["class_name"].unique())
    for name in SPLITS:
        if name in held.index and (lacking := sorted(classes - set(held[name]))):
            logger.warning("split: no box in %s of: %s", name, sample(lacking).replace("[", "("))


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


def _fold_of(counts: Counts, config: SplitConfig, *, test_is_kept: bool) -> npt.NDArray[np.str_]:
    """test: the same for every fold; val: the part number ``fold`` of the rest; train: all else."""
    chosen = np.full(len(counts.weight), "train", dtype="<U5")
    rest = np.arange(len(chosen))
    if config.test and not test_is_kept:
        aside = stratify(counts, np.array([1 - config.test, config.test]), seed=config.seed)
        chosen[aside == 1] = "test"
        rest = rest[aside == 0]
    if len(rest) < config.folds:
        raise DataError(
            f"data.split.folds is {config.folds}, and there are {len(rest)} images (or groups of "
            f"them) to divide"
        )
    shares = np.full(config.folds, 1 / config.folds)
    parts = stratify(counts.of(rest), shares, seed=config.seed)
    chosen[rest[parts == config.fold]] = "val"
    return chosen
