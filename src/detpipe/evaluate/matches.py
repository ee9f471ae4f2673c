"""Which detections are right, by COCO's rule: what curves, thresholds and calibration count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from detpipe.core.errors import ConfigError
from detpipe.core.tables import BOX_COLUMNS, positions
from detpipe.evaluate.coco import evaluator

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Matches:
    """What became of the detections; N of them, those within the limit, in their table's order.

    A detection is right, ignored, or (neither of both) wrong.

    Attributes:
        row: ``[N]`` place in the table of detections, 0-based.
        label: ``[N]`` place of its class in the table of classes, 0-based.
        score: ``[N]`` 0..1.
        right: ``[N]`` whether it took a box of the truth.
        ignored: ``[N]`` whether it lies on a crowd region, so that it does not count.
        truth: ``[N]`` place in the table of boxes of the box it took, 0-based; -1 for none.
        iou: ``[N]`` its overlap with that box, 0..1; NaN for none.
        objects: ``[C]`` boxes of the truth in each class, crowd regions not counted.
    """

    row: NDArray[np.intp]
    label: NDArray[np.intp]
    score: NDArray[np.float64]
    right: NDArray[np.bool_]
    ignored: NDArray[np.bool_]
    truth: NDArray[np.intp]
    iou: NDArray[np.float64]
    objects: NDArray[np.intp]


def matches(
    images: pd.DataFrame,
    boxes: pd.DataFrame,
    detections: pd.DataFrame,
    classes: pd.DataFrame,
    *,
    iou: float,
    max_detections: int,
) -> Matches:
    """Matches detections with the truth as COCO does, at one IoU.

    In each image and class the best ``max_detections`` detections, best first (equal scores in the
    order of rows), take the free box that they overlap most, if by ``iou`` or more. One that finds
    no free box is ignored where it lies on a crowd region (``iou`` of its own area), else wrong.

    Args:
        images: the images table.
        boxes: the truth.
        detections: what was found.
        classes: the classes table.
        iou: the least overlap, reached or exceeded.
        max_detections: best detections that count, per image and class.

    Raises:
        ConfigError: ``iou`` is not a share above 0.
    """
    if not 0 < iou <= 1:
        raise ConfigError(f"iou must lie above 0 and up to 1, got {iou}; half of the union is 0.5")
    engine = evaluator(images, boxes, detections, classes, limits=[max_detections])
    engine.params.iou_thrs = [iou]
    engine.evaluate()
    # The engine's ids of detections and truth are their rows from 1. Dicts by id of all detections
    # take a tenth of the time of eval_imgs, which makes one for each image, class and size.
    found = engine.image_diagnostics(iou_thr=iou)
    truth = np.full(len(detections), -1, dtype=np.intp)
    taken = found["dt_match"]
    truth[np.fromiter(taken.keys(), np.intp, len(taken)) - 1] = (
        np.fromiter(taken.values(), np.intp, len(taken)) - 1
    )
    ignored = np.ones(len(detections), dtype=bool)
    counted = found["dt_status"]  # neither the ignored nor those above the limit
    ignored[np.fromiter(counted.keys(), np.intp, len(counted)) - 1] = False

    label = positions(detections["class_name"], classes["class_name"]).astype(np.intp)
    score = detections["score"].to_numpy(dtype=np.float64)
    image = positions(detections["image_id"], images["image_id"])
    row = np.flatnonzero(_ranks(image * len(classes) + label, score) < max_detections)
    right = truth >= 0
    overlaps = np.full(len(detections), np.nan)
    overlaps[right] = pair_ious(
        detections[BOX_COLUMNS].to_numpy(dtype=np.float64)[right],
        boxes[BOX_COLUMNS].to_numpy(dtype=np.float64)[truth[right]],
    )
    real = boxes.loc[~boxes["iscrowd"], "class_name"]
    objects = np.bincount(positions(real, classes["class_name"]), minlength=len(classes))
    return Matches(
        row, label[row], score[row], right[row], ignored[row], truth[row], overlaps[row], objects
    )


def pair_ious(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """IoU of each of ``a`` ``[N, 4]`` with its row of ``b`` ``[N, 4]``; x1 y1 x2 y2."""
    sides = np.minimum(a[:, 2:], b[:, 2:]) - np.maximum(a[:, :2], b[:, :2])
    shared = sides.clip(0).prod(axis=1)
    union = (a[:, 2:] - a[:, :2]).prod(axis=1) + (b[:, 2:] - b[:, :2]).prod(axis=1) - shared
    overlaps: NDArray[np.float64] = np.zeros_like(shared)
    np.divide(shared, union, out=overlaps, where=union > 0)
    return overlaps


def iou_suffix(iou: float) -> str:
    """What the name of a metric at this IoU ends in: nothing at 0.5, ``_75`` at 0.75."""
    return "" if iou == 0.5 else f"_{100 * iou:g}"


def _ranks(group: NDArray[np.integer], score: NDArray[np.float64]) -> NDArray[np.intp]:
    """``[N]`` rank of each within its group from 0, best first, equals in their order."""
    order = np.lexsort((-score, group))
    sorted_group = group[order]
    ranks = np.empty(len(order), dtype=np.intp)
    ranks[order] = np.arange(len(order)) - np.searchsorted(sorted_group, sorted_group)
    return ranks
