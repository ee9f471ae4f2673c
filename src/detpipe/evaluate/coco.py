"""COCO's twelve numbers and the AP of each class, by pycocotools' rule.

The engine is hotcoco: the same numbers as pycocotools to the last bit, at about a hundredth of
the cost. What it is given is re-numbered here from 1, so ids of 0, ids that restart in each image
and ids that are text cannot change a result.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from detpipe.core.tables import SCORES
from detpipe.evaluate.common import image_order

if TYPE_CHECKING:
    import hotcoco
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

TASK = "bbox"
_AREAS = ("", "s", "m", "l")
"""Names of hotcoco's (and pycocotools') area ranges: all, below 32², 32² to 96², above."""
_IOU_50, _IOU_75 = 0, 5
"""Places of 0.5 and 0.75 among the IoU thresholds 0.5, 0.55, …, 0.95."""


def score(
    images: pd.DataFrame,
    boxes: pd.DataFrame,
    detections: pd.DataFrame,
    classes: pd.DataFrame,
    *,
    dataset: str,
    max_detections: int = 100,
    per_class: bool = True,
) -> pd.DataFrame:
    """Scores boxes as COCO does.

    Rows: AP, AP50, AP75, APs, APm, APl, AR1, AR10, AR100, ARs, ARm, ARl, in percent, and for each
    class AP and AP50. With another ``max_detections`` than 100 (the best detections counted per
    image and class), every number is the true one at that limit, and AR100 is AR<limit>; limits
    of AR above it are left out.

    Sizes go by the truth's ``area`` column. Crowd regions follow pycocotools: a detection on one
    is neither right nor wrong. COCO knows no ``difficult``: such boxes count as any other.

    A class without ground truth is NaN and not part of the mean, as is a size that no object has.
    Without any ground truth every number is NaN; without detections those with ground truth are 0.

    Args:
        images: the images table; images without boxes count (detections in them are wrong).
        boxes: the truth.
        detections: what was found, as best the order in which equal scores shall rank.
        classes: the classes table.
        dataset: the name for the rows.
        max_detections: see above.
        per_class: whether to add the rows of each class.

    Returns:
        A scores table; task ``bbox``.
    """
    limits = [limit for limit in (1, 10) if limit < max_detections] + [max_detections]
    names = classes["class_name"].tolist()
    if boxes["iscrowd"].all():  # true of an empty table too
        logger.warning("data set '%s': no ground truth, so there are no COCO numbers", dataset)
        shape = (10, 101, len(names), len(_AREAS), len(limits))
        precision, recall = np.full(shape, -1.0), np.full((shape[0], *shape[2:]), -1.0)
    else:
        engine = evaluator(images, boxes, detections, classes, limits=limits)
        engine.evaluate()
        engine.accumulate()
        result = engine.eval
        assert result is not None  # noqa: S101 - accumulate() has just filled it
        precision, recall = result["precision"], result["recall"]
    rows = [("", *row) for row in _summary(precision, recall, limits)]
    if per_class:
        for k, name in enumerate(names):
            rows.append((name, "AP", _mean(precision[:, :, k, 0, -1])))
            rows.append((name, "AP50", _mean(precision[_IOU_50, :, k, 0, -1])))
    return SCORES.make(
        {"dataset": dataset, "task": TASK, "metric": metric, "class_name": name, "value": value}
        for name, metric, value in rows
    )


def evaluator(
    images: pd.DataFrame,
    boxes: pd.DataFrame,
    detections: pd.DataFrame,
    classes: pd.DataFrame,
    *,
    limits: list[int],
) -> hotcoco.COCOeval:
    """hotcoco's evaluator over the tables, nothing computed yet.

    Images are numbered from 1 in :func:`~detpipe.evaluate.common.image_order`, classes from 1 in
    the order of their table, truth from 1 in the order of its rows.

    Args:
        images: the images table.
        boxes: the truth.
        detections: what was found.
        classes: the classes table.
        limits: ascending limits of detections per image and class; AP uses the last.
    """
    import hotcoco

    order = image_order(images)
    numbers, labels = pd.Index(order), pd.Index(classes["class_name"])
    sizes = images.set_index("image_id")[["width", "height"]].loc[order].to_numpy()
    truth = hotcoco.COCO.from_arrays(
        [
            {"id": i, "file_name": str(i), "width": int(w), "height": int(h)}
            for i, (w, h) in enumerate(sizes, start=1)
        ],
        [{"id": i, "name": name} for i, name in enumerate(labels, start=1)],
        numbers.get_indexer(pd.Index(boxes["image_id"])) + 1,
        labels.get_indexer(pd.Index(boxes["class_name"])) + 1,
        xywh(boxes),
        ids=np.arange(1, len(boxes) + 1),
        area=boxes["area"].to_numpy(),
        iscrowd=boxes["iscrowd"].to_numpy(),
    )
    found = np.column_stack(
        [
            numbers.get_indexer(pd.Index(detections["image_id"])) + 1,
            xywh(detections),
            detections["score"].to_numpy(),
            labels.get_indexer(pd.Index(detections["class_name"])) + 1,
        ]
    )
    engine = hotcoco.COCOeval(truth, truth.load_res(found), TASK)
    engine.params.max_dets = limits
    return engine


def xywh(table: pd.DataFrame) -> NDArray[np.float64]:
    """The boxes of a table as COCO writes them: ``[N, 4]`` x, y, width, height in pixels."""
    corners = table[["x1", "y1", "x2", "y2"]].to_numpy(dtype=np.float64)
    return np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], axis=1)


def _summary(
    precision: NDArray[Any], recall: NDArray[Any], limits: list[int]
) -> Iterator[tuple[str, float]]:
    """The twelve (name, percent) from precision ``[T, R, K, A, M]`` and recall ``[T, K, A, M]``."""
    yield "AP", _mean(precision[:, :, :, 0, -1])
    yield "AP50", _mean(precision[_IOU_50, :, :, 0, -1])
    yield "AP75", _mean(precision[_IOU_75, :, :, 0, -1])
    for a, area in enumerate(_AREAS[1:], start=1):
        yield f"AP{area}", _mean(precision[:, :, :, a, -1])
    for m, limit in enumerate(limits):
        yield f"AR{limit}", _mean(recall[:, :, 0, m])
    for a, area in enumerate(_AREAS[1:], start=1):
        yield f"AR{area}", _mean(recall[:, :, a, -1])


def _mean(values: NDArray[Any]) -> float:
    """Mean in percent of what there is: the engine marks "no ground truth" by -1."""
    there = values[values > -1]
    return 100 * float(np.mean(there)) if there.size else float("nan")
