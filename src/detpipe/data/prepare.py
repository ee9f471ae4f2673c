"""From a checked data set to what is trained on: which image is for what, and which classes."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd

from detpipe.core.errors import DataError
from detpipe.core.tables import CLASSES, IMAGES
from detpipe.data.config import CheckConfig, SplitConfig

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
    With ``by: ratio`` images are drawn anew, stratified: each class (and the images without
    objects) is shared out like the whole. The result depends on the images' paths, their classes
    and the seed only, not on the order of rows; one file listed twice goes to one split.

    Raises:
        DataError: ``by: own``, and a name is unknown or an image has none.
    """
    images = images.copy()
    if config.by == "own":
        images["split"] = _own(images["split"], config)
    else:
        images["split"] = _drawn(images, boxes, config)
    counts = images["split"].value_counts()
    logger.info("split: %s", ", ".join(f"{name} {counts.get(name, 0)}" for name in SPLITS))
    empty = [name for name in SPLITS if name not in counts]
    if empty:
        logger.warning("no image in: %s", ", ".join(empty))
    return IMAGES.make(images)


def _own(splits: pd.Series, config: SplitConfig) -> pd.Series:
    wrong = sorted(set(config.rename.values()) - set(SPLITS))
    if wrong:
        raise DataError(
            f"data.split.rename: {', '.join(wrong)} is none of {', '.join(SPLITS)}"
        )  # fmt: skip
    there = ", ".join(f"'{name}' ({count})" for name, count in splits.value_counts().items())
    without = int((splits == "").sum())
    if without:
        raise DataError(
            f"{without} of {len(splits)} images belong to no split (the data set has {there}); "
            f"draw one with data.split.by: ratio"
        )
    target = {
        name: config.rename.get(name, _COMMON_NAMES.get(str(name).strip().lower()))
        for name in splits.unique()
    }
    unknown = [f"'{name}'" for name, meaning in target.items() if meaning is None]
    if unknown:
        raise DataError(
            f"unknown split(s) {', '.join(unknown)}; the data set has {there}. Say which of "
            f"{', '.join(SPLITS)} each one is with data.split.rename, or use data.split.by: ratio"
        )
    return splits.map(target)


def _drawn(images: pd.DataFrame, boxes: pd.DataFrame, config: SplitConfig) -> pd.Series:
    """Iterative stratification (Sechidis et al. 2011), with exact numbers of images."""
    paths = sorted(images["path"].unique())
    path_of = dict(zip(images["image_id"], images["path"], strict=True))
    names = sorted(boxes["class_name"].unique())
    held = boxes[boxes["image_id"].isin(path_of)]
    row = pd.Index(paths).get_indexer(held["image_id"].map(path_of))
    column = pd.Index(names).get_indexer(held["class_name"])
    has = np.zeros((len(paths), len(names) + 1), dtype=bool)
    has[row, column] = True
    has[:, -1] = ~has.any(axis=1)  # images without objects count as a class of their own
    shares = np.array([config.train, config.val, config.test])
    chosen = _stratify(has, shares, seed=config.seed)
    split_of = {path: SPLITS[which] for path, which in zip(paths, chosen, strict=True)}
    return images["path"].map(split_of)


def _stratify(
    has: npt.NDArray[np.bool_], shares: npt.NDArray[np.float64], *, seed: int
) -> npt.NDArray[np.int64]:
    """Which subset each of N images goes to.

    Args:
        has: ``bool [N, K]``, whether image n has class k; every image has at least one.
        shares: ``[S]``, sum 1.
        seed: of the order and of ties.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(has))
    room = _whole_numbers(shares, len(has))
    wanted = shares[:, None] * has.sum(axis=0)  # [S, K]: images of a class a subset still wants
    chosen = np.full(len(has), -1, dtype=np.int64)
    left = has.sum(axis=0).astype(np.int64)
    while (chosen < 0).any():
        rarest = int(np.argmin(np.where(left > 0, left, np.iinfo(np.int64).max)))
        for image in order[(chosen[order] < 0) & has[order, rarest]]:
            open_ = room > 0
            wish = np.where(open_, wanted[:, rarest], -np.inf)
            ties = np.flatnonzero(wish == wish.max())
            best = int(ties[np.argmax(room[ties])])
            chosen[image] = best
            room[best] -= 1
            wanted[best] -= has[image]
            left -= has[image]
    return chosen


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


def list_classes(classes: pd.DataFrame, boxes: pd.DataFrame, config: CheckConfig) -> pd.DataFrame:
    """The ``classes`` table of the model, in the data set's order.

    Classes without a single box (such as the super-category of Roboflow's exports) are left out or
    kept, as ``empty_classes`` says; either is logged.

    Raises:
        DataError: no class is left.
    """
    used = classes["class_name"].isin(boxes["class_name"].unique())
    empty = [str(name).replace("[", "(") for name in classes["class_name"][~used]]
    if empty and config.empty_classes == "drop":
        logger.warning("classes without boxes, left out of the model: %s", ", ".join(empty))
        classes = classes[used]
    elif empty:
        logger.warning("classes without boxes, kept as outputs of the model: %s", ", ".join(empty))
    if classes.empty:
        raise DataError("the data set has no class with a box, so there is nothing to train on")
    return CLASSES.make(classes)
