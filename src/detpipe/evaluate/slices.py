"""AP of parts of a data set: by the size and the shape of objects, and by how many there are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from detpipe.core.tables import SCORES, positions
from detpipe.evaluate.coco import evaluator, xywh

if TYPE_CHECKING:
    import hotcoco
    from numpy.typing import NDArray

TASK = "bbox"
_MOST = 1e10
"""COCO's upper end of areas."""
_Borders = Mapping[str, tuple[float, float]]
SIZES: _Borders = {"small": (0, 32**2), "medium": (32**2, 96**2), "large": (96**2, _MOST)}
"""COCO's area ranges in square pixels; as there, both ends belong to a range."""
_TINY = 1e-9
ASPECTS: _Borders = {
    "tall": (0, 0.5 - _TINY), "medium": (0.5 - _TINY, 2 + _TINY), "wide": (2 + _TINY, _MOST),
}  # fmt: skip
"""Width / height. The borders are the ratios of the anchors of Faster R-CNN (Ren et al. 2015) and
its many followers: 1:2, 1:1, 2:1. Boxes of 1:2 and 2:1 are medium, however corners were rounded."""
CROWDING: Mapping[str, tuple[float, float]] = {
    "none": (0, 0), "1": (1, 1), "2-5": (2, 5), "6-20": (6, 20), "over_20": (21, math.inf),
}  # fmt: skip
"""Objects in an image."""
_COLUMNS = ["dataset", "slice_by", "slice", "images", "objects", "AP", "AP50"]


def slices(
    images: pd.DataFrame,
    boxes: pd.DataFrame,
    detections: pd.DataFrame,
    classes: pd.DataFrame,
    *,
    dataset: str,
    max_detections: int = 100,
) -> pd.DataFrame:
    """COCO's AP and AP50 of slices by :data:`SIZES`, :data:`ASPECTS` and :data:`CROWDING`.

    Size and aspect slice the truth by the rule of COCO's area ranges: boxes of other slices are
    ignored, as is a detection that matches one, or that matches none and lies outside of the slice
    by its own size or aspect. Size goes by the truth's ``area`` column (of a mask, if the source
    has masks) and by the box of a detection, so AP by size is COCO's APs, APm, APl; aspect goes by
    the boxes of both. A box without height is wide, one without width or either is tall.

    Crowding slices the images by their number of objects. Crowd regions are no objects.

    Args:
        images: the images table.
        boxes: the truth.
        detections: what was found.
        classes: the classes table.
        dataset: the name for the rows.
        max_detections: best detections that count, per image and class.

    Returns:
        A row a slice: dataset, slice_by (``size``, ``aspect``, ``crowding``), slice, images (by
        size and aspect: those with objects of the slice), objects, and AP and AP50 in percent, NaN
        without objects.
    """
    real = ~boxes["iscrowd"].to_numpy()
    rows: list[tuple[Any, ...]] = []
    for slice_by, borders in (("size", SIZES), ("aspect", ASPECTS)):
        value = _area(boxes) if slice_by == "size" else _aspect(boxes)
        precisions = dict.fromkeys(borders, (math.nan, math.nan))
        if real.any():
            engine = evaluator(images, boxes, detections, classes, limits=[max_detections])
            if slice_by == "aspect":
                engine = _with_areas(engine, value, _aspect(detections), max_detections)
            precisions = dict(zip(borders, _precisions(engine, borders), strict=True))
        for name, (low, high) in borders.items():
            mine = boxes["image_id"][real & (value >= low) & (value <= high)]
            rows.append((dataset, slice_by, name, mine.nunique(), len(mine), *precisions[name]))
    by_crowding = _by_crowding(images, boxes, detections, classes, max_detections=max_detections)
    rows += [(dataset, "crowding", *row) for row in by_crowding]
    return pd.DataFrame(rows, columns=_COLUMNS)


def score(
    images: pd.DataFrame,
    boxes: pd.DataFrame,
    detections: pd.DataFrame,
    classes: pd.DataFrame,
    *,
    dataset: str,
    max_detections: int = 100,
) -> pd.DataFrame:
    """The numbers of :func:`slices` as a metric; its arguments.

    Returns:
        A scores table, task ``bbox``: ``AP_size_small``, ``AP50_size_small``, …, percent.
    """
    table = slices(
        images, boxes, detections, classes, dataset=dataset, max_detections=max_detections
    )
    long = table.melt(["slice_by", "slice"], ["AP", "AP50"], ignore_index=False)
    long = long.sort_index(kind="stable")
    names = long["variable"] + "_" + long["slice_by"] + "_" + long["slice"]
    rows = {"dataset": dataset, "task": TASK, "metric": names, "class_name": ""}
    return SCORES.make(pd.DataFrame({**rows, "value": long["value"]}))


def _by_crowding(
    images: pd.DataFrame,
    boxes: pd.DataFrame,
    detections: pd.DataFrame,
    classes: pd.DataFrame,
    *,
    max_detections: int,
) -> Iterator[tuple[str, int, int, float, float]]:
    """(slice, images, objects, AP, AP50)."""
    in_image, owner = (positions(t["image_id"], images["image_id"]) for t in (boxes, detections))
    real = ~boxes["iscrowd"].to_numpy()
    objects = np.bincount(in_image[real], minlength=len(images))
    for name, (low, high) in CROWDING.items():
        mine = (objects >= low) & (objects <= high)
        precisions = math.nan, math.nan
        if objects[mine].any():
            parts = images[mine], boxes[mine[in_image]], detections[mine[owner]], classes
            engine = evaluator(*parts, limits=[max_detections])
            precisions = next(_precisions(engine, {"all": (0, _MOST)}))
        yield name, int(mine.sum()), int(objects[mine].sum()), *precisions


def _with_areas(
    engine: hotcoco.COCOeval,
    truth: NDArray[np.float64],
    found: NDArray[np.float64],
    max_detections: int,
) -> hotcoco.COCOeval:
    """The evaluator with other values as areas; ids are rows from 1.

    The range of its area is all that decides on an unmatched detection, so that detections need
    the value as well.
    """
    import hotcoco

    boxes, detections = engine.coco_gt, engine.coco_dt
    boxes.update_anns(ids=np.arange(1, len(truth) + 1), area=truth)
    detections.update_anns(ids=np.arange(1, len(found) + 1), area=found)
    changed = hotcoco.COCOeval(boxes, detections, TASK)
    changed.params.max_dets = [max_detections]
    return changed


def _precisions(engine: hotcoco.COCOeval, borders: _Borders) -> Iterator[tuple[float, float]]:
    """(AP, AP50) in percent of each range of areas."""
    engine.params.area_rng_lbl = list(borders)
    engine.params.area_rng = [list(ends) for ends in borders.values()]
    engine.evaluate()
    engine.accumulate()
    assert engine.eval is not None  # noqa: S101 - accumulate() has just filled it
    precision = engine.eval["precision"]  # [T, R, K, A, M], -1 without ground truth
    for a in range(len(borders)):
        there = precision[:, :, (precision[0, 0, :, a, -1] > -1), a, -1]
        if there.size:
            yield 100 * float(there.mean()), 100 * float(there[0].mean())
        else:
            yield math.nan, math.nan


def _area(boxes: pd.DataFrame) -> NDArray[np.float64]:
    """``[N]`` the size of each object as the evaluator takes it: NaN is width × height."""
    area = boxes["area"].to_numpy(dtype=np.float64)
    return np.where(np.isnan(area), xywh(boxes)[:, 2:].prod(axis=1), area)


def _aspect(table: pd.DataFrame) -> NDArray[np.float64]:
    """``[N]`` width / height."""
    width, height = xywh(table)[:, 2:].T
    aspect: NDArray[np.float64] = np.where(width > 0, _MOST, 0.0)
    np.divide(width, height, out=aspect, where=height > 0)
    return aspect.clip(0, _MOST)
