"""How well each image fares: the worst first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from detpipe.core.tables import positions
from detpipe.evaluate.common import image_order
from detpipe.evaluate.matches import Matches, matches
from detpipe.evaluate.overlaps import average_precision

if TYPE_CHECKING:
    from numpy.typing import NDArray


def per_image(
    images: pd.DataFrame,
    boxes: pd.DataFrame,
    detections: pd.DataFrame,
    classes: pd.DataFrame,
    *,
    dataset: str,
    iou: float = 0.5,
    score_threshold: float = 0.5,
    max_detections: int = 100,
) -> pd.DataFrame:
    """Images from worst to best by F1 = 2·right / (2·right + wrong + missed).

    Right is a detection that COCO matches with a box at ``iou``; wrong are the other detections
    with at least ``score_threshold``, missed the boxes left. Crowd regions and detections on them
    do not count. Equal F1: more wrong and missed first, then in the order of image ids.

    Args:
        images: the images table.
        boxes: the truth.
        detections: what was found.
        classes: the classes table.
        dataset: the name for the rows.
        iou: the least overlap, reached or exceeded.
        score_threshold: detections below it count for AP50 only.
        max_detections: best detections that count, per image and class.

    Returns:
        One row an image: dataset, image_id, path, objects, detections (right and wrong), right,
        wrong, missed, and in percent precision (NaN without detections), recall (NaN without
        objects), f1 (100 without either) and AP50: COCO's AP at IoU 0.5 of this image alone, of
        all its detections, as mean over the classes that it has objects of (NaN without).
    """
    order = image_order(images)
    ids = pd.Series(order, dtype="str")
    truth = _Truth(boxes, classes, ids)
    found = matches(images, boxes, detections, classes, iou=iou, max_detections=max_detections)
    place = positions(detections["image_id"], ids)
    counted = ~found.ignored & (found.score >= score_threshold)

    def count(chosen: NDArray[np.bool_]) -> NDArray[np.intp]:
        return np.bincount(place[found.row[chosen]], minlength=len(order))

    right, wrong = count(counted & found.right), count(counted & ~found.right)
    missed = truth.objects - right
    if iou != 0.5:
        found = matches(images, boxes, detections, classes, iou=0.5, max_detections=max_detections)
    table = pd.DataFrame(
        {
            "dataset": dataset, "image_id": ids,
            "path": images.set_index("image_id")["path"].loc[order].to_numpy(),
            "objects": truth.objects, "detections": right + wrong,
            "right": right, "wrong": wrong, "missed": missed,
            "precision": _percent(right, right + wrong),
            "recall": _percent(right, truth.objects),
            "f1": np.nan_to_num(_percent(2 * right, 2 * right + wrong + missed), nan=100.0),
            "AP50": truth.average_precision(found, place[found.row]),
        }
    )  # fmt: skip
    worst_first = np.lexsort((-(wrong + missed), table["f1"].to_numpy()))
    return table.iloc[worst_first].reset_index(drop=True)


class _Truth:
    """Objects, crowd regions left out, by image and class."""

    def __init__(self, boxes: pd.DataFrame, classes: pd.DataFrame, ids: pd.Series) -> None:
        real = boxes[~boxes["iscrowd"]]
        image = positions(real["image_id"], ids).astype(np.int64)
        self._classes, self._images = len(classes), len(ids)
        pairs = image * self._classes + positions(real["class_name"], classes["class_name"])
        self.objects = np.bincount(image, minlength=len(ids))
        """``[I]`` how many each image has."""
        self._pairs, self._counts = np.unique(pairs, return_counts=True)

    def average_precision(self, found: Matches, image: NDArray[np.integer]) -> NDArray[np.float64]:
        """``[I]`` percent; ``image``: the number of each detection's image."""
        pairs = image.astype(np.int64) * self._classes + found.label
        group = np.searchsorted(self._pairs, pairs)
        there = np.append(self._pairs, -1)[group] == pairs  # of a class that the image has
        order = np.argsort(-found.score, kind="stable")
        order = order[(there & ~found.ignored)[order]]
        values = average_precision(group[order], found.right[order], self._counts)
        owner = self._pairs // max(self._classes, 1)
        sums = np.bincount(owner, weights=values, minlength=self._images)
        return _percent(sums, np.bincount(owner, minlength=self._images))


def _percent(part: NDArray[np.number], whole: NDArray[np.integer]) -> NDArray[np.float64]:
    """NaN where there is no whole."""
    percent: NDArray[np.float64] = np.full(len(whole), np.nan)
    np.divide(100 * part, whole, out=percent, where=whole > 0)
    return percent
