"""Sharing out units (images, or groups of them) so that each class is shared out like the whole."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from detpipe.core.tables import positions

Whole = npt.NDArray[np.int64]


class Counts(NamedTuple):
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

    def of(self, units: Whole) -> Counts:
        """Those of some units (ascending), numbered from 0."""
        number = np.full(len(self.weight), -1)
        number[units] = np.arange(len(units))
        kept = number[self.unit] >= 0
        return Counts(
            self.weight[units], number[self.unit[kept]], self.klass[kept], self.number[kept]
        )


def counted(
    images: pd.DataFrame, units: pd.Series, boxes: pd.DataFrame
) -> tuple[list[str], Counts]:
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
    return names, Counts(np.bincount(unit_of), found // base, found % base, count)


def stratify(counts: Counts, shares: npt.NDArray[np.float64], *, seed: int) -> Whole:
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
