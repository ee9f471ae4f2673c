"""Which detections overlap which boxes, whatever their classes; and AP of what is right or not."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from detpipe.core.tables import BOX_COLUMNS, positions
from detpipe.evaluate.matches import pair_ious

if TYPE_CHECKING:
    from numpy.typing import NDArray

_AT_ONCE = 500_000
"""Pairs that are computed together: some 100 MB."""
_RECALLS = np.linspace(0, 1, 101)
"""Where COCO reads the precision."""


class Pairs(NamedTuple):
    """P pairs of a detection and a box: by detection, the largest overlap first.

    Attributes:
        detection: ``[P]`` place in the table of detections, 0-based.
        box: ``[P]`` place in the table of boxes, 0-based.
        iou: ``[P]`` their overlap, above 0 and up to 1.
    """

    detection: NDArray[np.intp]
    box: NDArray[np.intp]
    iou: NDArray[np.float64]

    def where(self, chosen: NDArray[np.bool_]) -> Pairs:
        """The pairs for which ``chosen`` ``[P]`` is true."""
        return Pairs(self.detection[chosen], self.box[chosen], self.iou[chosen])


def overlaps(boxes: pd.DataFrame, detections: pd.DataFrame, *, least: float) -> Pairs:
    """Every pair in one image that overlaps by ``least`` or more; crowd regions have none.

    Args:
        boxes: the truth.
        detections: what was found.
        least: the least IoU of a pair, 0..1; pairs without overlap are left out even at 0.
    """
    real = np.flatnonzero(~boxes["iscrowd"].to_numpy())
    ids = boxes["image_id"].iloc[real]
    known = ids.drop_duplicates()
    image = positions(ids, known)
    by_image = np.argsort(image, kind="stable")
    real, image = real[by_image], image[by_image]
    theirs = positions(detections["image_id"], known)
    first = np.searchsorted(image, theirs, "left")
    count = np.searchsorted(image, theirs, "right") - first
    ends = np.cumsum(count)
    total = int(ends[-1]) if len(ends) else 0
    cuts = np.searchsorted(ends, np.arange(_AT_ONCE, total, _AT_ONCE)).tolist()
    truth = boxes[BOX_COLUMNS].to_numpy(dtype=np.float64)
    found = detections[BOX_COLUMNS].to_numpy(dtype=np.float64)
    parts = [Pairs(np.empty(0, np.intp), np.empty(0, np.intp), np.empty(0))]
    for start, stop in pairwise([0, *cuts, len(found)]):
        counts = count[start:stop]
        d = np.repeat(np.arange(start, stop), counts)
        shift = first[start:stop] - (np.cumsum(counts) - counts)
        t = real[np.repeat(shift, counts) + np.arange(len(d))]
        iou = pair_ious(found[d], truth[t])
        near = np.flatnonzero((iou >= least) & (iou > 0))
        near = near[np.lexsort((-iou[near], d[near]))]
        parts.append(Pairs(d[near], t[near], iou[near]))
    return Pairs(
        np.concatenate([part.detection for part in parts]),
        np.concatenate([part.box for part in parts]),
        np.concatenate([part.iou for part in parts]),
    )


def average_precision(
    group: NDArray[np.integer], right: NDArray[np.bool_], objects: NDArray[np.integer]
) -> NDArray[np.float64]:
    """COCO's AP of each group: the mean of the precision at 101 recalls, made monotone.

    Args:
        group: ``[N]`` number of each detection's group (such as its class), from 0; detections
            best first, without those that do not count.
        right: ``[N]`` whether it is right.
        objects: ``[G]`` how many objects each group has; no fewer than it has right ones.

    Returns:
        ``[G]`` AP in 0..1; NaN for a group without objects.
    """
    order = np.argsort(group, kind="stable")
    group, right = group[order], right[order]
    first = np.searchsorted(group, group)
    rights: NDArray[np.intp] = np.cumsum(right)
    nth = rights - (rights - right)[first]  # first is the group's first place
    precision = nth / (np.arange(len(group)) - first + 1)
    group, nth, precision = group[right], nth[right], precision[right]
    best = pd.Series(precision[::-1]).groupby(group[::-1]).cummax().to_numpy()[::-1]
    total = objects[group]
    # The n-th right one gives the precision at the recalls above (n - 1) / total up to n / total.
    until = np.searchsorted(_RECALLS, nth / total, "right")
    since = np.where(nth == 1, 0, np.searchsorted(_RECALLS, (nth - 1) / total, "right"))
    sums = np.bincount(group, weights=(until - since) * best, minlength=len(objects))
    return np.where(objects > 0, sums / len(_RECALLS), np.nan)
