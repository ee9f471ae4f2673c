"""The average precision of Pascal VOC: matching at one IoU, crowd and difficult boxes ignored."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from detpipe.core.tables import BOX_COLUMNS, SCORES

if TYPE_CHECKING:
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

TASK = "bbox"


def score(
    boxes: pd.DataFrame,
    detections: pd.DataFrame,
    classes: pd.DataFrame,
    *,
    dataset: str,
    iou: float = 0.5,
    rule: Literal["area", "11point"] = "area",
) -> pd.DataFrame:
    """Scores boxes as the Pascal VOC development kit does.

    Detections of a class, best first (equal scores in the order of rows), each take the box of
    their image that they overlap most. Below ``iou`` they are wrong; on a difficult box (or a
    crowd region) they do not count; on a box already found they are wrong, else right. There is
    no limit of detections. Boxes with exclusive x2/y2 need none of the kit's "+ 1".

    Args:
        boxes: the truth.
        detections: what was found.
        classes: the classes table.
        dataset: the name for the rows.
        iou: the least overlap, reached or exceeded.
        rule: ``area`` under the monotone precision-recall curve (VOC 2010 to 2012; metric
            ``AP12``), or the mean of ``11point`` precisions (VOC 2007; ``AP07``). At another IoU
            than 0.5 its percent follows the name: ``AP12_75``.

    Returns:
        A scores table, percent: the mean over classes with ground truth, then every class (NaN
        without ground truth, 0 without detections).
    """
    metric = {"area": "AP12", "11point": "AP07"}[rule]
    metric += "" if iou == 0.5 else f"_{100 * iou:g}"
    precision_of = _area if rule == "area" else _eleven_points
    truths = dict(iter(boxes.groupby("class_name")))
    founds = dict(iter(detections.groupby("class_name")))
    values = {}
    for name in classes["class_name"]:
        truth, found = truths.get(name, boxes.iloc[:0]), founds.get(name, detections.iloc[:0])
        count = int((~(truth["difficult"] | truth["iscrowd"])).sum())
        if not count:
            values[name] = float("nan")
            continue
        right, wrong = match(truth, found, iou=iou)
        values[name] = 100 * precision_of(*_curve(right, wrong, count))
    there = [value for value in values.values() if not np.isnan(value)]
    if not there:
        logger.warning("data set '%s': no ground truth, so there is no %s", dataset, metric)
    mean = float(np.mean(there)) if there else float("nan")
    return SCORES.make(
        {"dataset": dataset, "task": TASK, "metric": metric, "class_name": name, "value": value}
        for name, value in {"": mean, **values}.items()
    )


def match(
    boxes: pd.DataFrame, detections: pd.DataFrame, *, iou: float
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """VOC's matching of one class.

    Returns:
        right ``[N]`` and wrong ``[N]``, detections best first; neither for ignored ones.
    """
    order = np.argsort(-detections["score"].to_numpy(), kind="stable")
    corners = detections[BOX_COLUMNS].to_numpy(dtype=np.float64)[order]
    image_ids = detections["image_id"].to_numpy()[order]
    ignored = (boxes["difficult"] | boxes["iscrowd"]).to_numpy()
    truth = boxes[BOX_COLUMNS].to_numpy(dtype=np.float64)
    places = boxes.reset_index(drop=True).groupby("image_id").indices
    taken = np.zeros(len(boxes), dtype=bool)
    right, wrong = np.zeros((2, len(order)), dtype=bool)
    for i, image_id in enumerate(image_ids):
        mine = places.get(image_id)
        if mine is None:
            wrong[i] = True
            continue
        overlaps = ious(corners[i], truth[mine])
        best = int(np.argmax(overlaps))
        place = mine[best]
        if overlaps[best] < iou:
            wrong[i] = True
        elif not ignored[place]:
            right[i], wrong[i] = not taken[place], taken[place]
            taken[place] = True
    return right, wrong


def ious(box: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """IoU of ``box`` ``[4]`` with each of ``others`` ``[N, 4]``; x1 y1 x2 y2."""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    shared = sides.clip(0).prod(axis=1)
    union = (box[2:] - box[:2]).prod() + (others[:, 2:] - others[:, :2]).prod(axis=1) - shared
    overlaps: NDArray[np.float64] = np.zeros_like(shared)
    np.divide(shared, union, out=overlaps, where=union > 0)
    return overlaps


def _curve(
    right: NDArray[np.bool_], wrong: NDArray[np.bool_], count: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """(recall, precision) after each detection; precision 0 while all so far were ignored."""
    found, missed = np.cumsum(right), np.cumsum(wrong)
    return found / count, found / np.maximum(found + missed, 1)


def _area(recall: NDArray[Any], precision: NDArray[Any]) -> float:
    """The area under the curve, made monotone from the right."""
    edges = np.concatenate([[0.0], recall])
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    return float(np.sum(np.diff(edges) * envelope))


def _eleven_points(recall: NDArray[Any], precision: NDArray[Any]) -> float:
    """The mean of the best precision at a recall of 0, 0.1, …, 1 or more."""
    points = np.arange(11) / 10  # exact where linspace is not: 3 of 10 boxes reach 0.3
    return float(np.mean([precision[recall >= point].max(initial=0.0) for point in points]))
