"""LVIS's thirteen numbers and the AP of each class, by the rule of lvis-api.

LVIS is federated: in each image only some of the classes were looked for. A detection of a class
that is neither in the image nor known not to be is left out; one without an object, of a class of
which not every object in the image has its box, is neither right nor wrong (Gupta et al. 2019,
"LVIS: A Dataset for Large Vocabulary Instance Segmentation", section 2). The engine is hotcoco.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import pandas as pd
from pydantic import Field

from detpipe.core.errors import DataError
from detpipe.core.tables import SCORES, positions
from detpipe.evaluate.coco import TASK, xywh
from detpipe.evaluate.common import check_known, image_order

if TYPE_CHECKING:
    import hotcoco
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

_LIMIT = 300
"""LVIS's own limit of detections in an image."""
_IOU_50, _IOU_75 = 0, 5
"""Places of 0.5 and 0.75 among the IoU thresholds 0.5, 0.55, …, 0.95."""
_AREAS = ("", "s", "m", "l")
"""The engine's sizes: all, up to 32², to 96², above."""


def score(
    images: pd.DataFrame,
    boxes: pd.DataFrame,
    detections: pd.DataFrame,
    classes: pd.DataFrame,
    *,
    dataset: str,
    max_detections: Annotated[int, Field(gt=0)] = _LIMIT,
    area: Literal["annotation", "box"] = "annotation",
    per_class: bool = True,
    suffix: str = "",
) -> pd.DataFrame:
    """Scores boxes as LVIS does.

    Rows, in percent: AP, AP50, AP75, APs, APm, APl, APr, APc, APf (rare, common and frequent
    classes), AR<limit>, ARs, ARm, ARl, and AP of each class. The limit is that of an image over
    all classes, before anything is left out; LVIS's own is 300.

    An image whose ``negative`` is '' counts as one in which all classes were looked for, as every
    image does for COCO; classes whose ``frequency`` is '' are in none of APr, APc, APf. Both are
    said. Crowd regions, which LVIS does not have, follow pycocotools.

    A class without ground truth is NaN and not part of the mean, as is a size that no object has.
    Without any ground truth every number is NaN; without detections those with ground truth are 0.

    Args:
        images: the images table, as best with ``negative`` and ``not_exhaustive``.
        boxes: the truth. An area that is NaN is width × height.
        detections: what was found, as best the order in which equal scores shall rank.
        classes: the classes table, as best with ``frequency``.
        dataset: the name for the rows.
        max_detections: see above.
        area: what the size of an object is: the truth's ``area`` column, or its box's.
        per_class: whether to add the rows of each class.
        suffix: what every metric's name ends in, so that COCO's fit in the same scores table.

    Returns:
        A scores table; task ``bbox``.

    Raises:
        DataError: boxes or detections name images or classes that are not in their tables, or a
            list is no JSON list of names.
    """
    check_known(images, classes, boxes=boxes, detections=detections)
    names = classes["class_name"].tolist()
    groups = classes["frequency"] if "frequency" in classes else pd.Series([""] * len(names))
    _say_what_lacks(images, groups, dataset)
    if max_detections < _LIMIT:
        logger.warning(
            "data set '%s': LVIS's own limit is %d detections in an image, not %d, so its numbers "
            "do not compare with others': set evaluate.max_detections to %d",
            dataset, _LIMIT, max_detections, _LIMIT,
        )  # fmt: skip
    if boxes["iscrowd"].all():  # true of an empty table too
        logger.warning("data set '%s': no ground truth, so there are no LVIS numbers", dataset)
        precision = np.full((10, 1, len(names), len(_AREAS)), -1.0)
        recall = precision[:, 0]
    else:
        engine = _evaluator(images, boxes, detections, classes, limit=max_detections, area=area)
        engine.evaluate()
        engine.accumulate()
        result = engine.eval
        assert result is not None  # noqa: S101 - accumulate() has just filled it
        precision, recall = result["precision"][..., 0], result["recall"][..., 0]
    rows = [("", *row) for row in _summary(precision, recall, groups.to_numpy(), max_detections)]
    if per_class:
        rows += [(name, "AP", _mean(precision[:, :, k, 0])) for k, name in enumerate(names)]
    return SCORES.make(
        {
            "dataset": dataset, "task": TASK, "metric": metric + suffix, "class_name": name,
            "value": value,
        }
        for name, metric, value in rows
    )  # fmt: skip


def _say_what_lacks(images: pd.DataFrame, groups: pd.Series, dataset: str) -> None:
    plain = int((images["negative"] == "").sum()) if "negative" in images else len(images)
    if plain:
        logger.warning(
            "data set '%s': %d of %d image(s) have no list of the classes that were looked for "
            "(column 'negative'): every class counts as looked for, as for COCO",
            dataset, plain, len(images),
        )  # fmt: skip
    if len(groups) and (groups == "").all():
        logger.warning(
            "data set '%s': the classes have no 'frequency', so there are no APr, APc, APf", dataset
        )


def _evaluator(
    images: pd.DataFrame,
    boxes: pd.DataFrame,
    detections: pd.DataFrame,
    classes: pd.DataFrame,
    *,
    limit: int,
    area: str,
) -> hotcoco.COCOeval:
    """hotcoco's evaluator in LVIS mode, images and classes numbered from 1."""
    import hotcoco

    order, names = pd.Series(image_order(images), dtype="str"), classes["class_name"]
    images = images.iloc[positions(order, images["image_id"])]
    found = np.empty((len(detections), 7))
    found[:, 0] = positions(detections["image_id"], order) + 1
    xywh(detections, out=found[:, 1:5])
    found[:, 5], found[:, 6] = detections["score"], positions(detections["class_name"], names) + 1
    label = {name: number for number, name in enumerate(names, start=1)}
    negative, partly = (_lists(images, column, label) for column in ("negative", "not_exhaustive"))
    for place, labels in _detected(found, negative).items():
        negative[place] = labels
    sides = xywh(boxes)
    of_box, given = sides[:, 2] * sides[:, 3], boxes["area"].to_numpy()
    truth = hotcoco.COCO.from_arrays(
        [
            {
                "id": i, "file_name": str(i), "width": width, "height": height,
                "neg_category_ids": absent or [], "not_exhaustive_category_ids": torn or [],
            }
            for i, (width, height, absent, torn) in enumerate(
                zip(
                    images["width"].tolist(), images["height"].tolist(), negative, partly,
                    strict=True,
                ),
                start=1,
            )
        ],
        [{"id": number, "name": name} for name, number in label.items()],
        positions(boxes["image_id"], order) + 1,
        positions(boxes["class_name"], names) + 1,
        sides,
        ids=np.arange(1, len(boxes) + 1),
        area=of_box if area == "box" else np.where(np.isnan(given), of_box, given),
        iscrowd=boxes["iscrowd"].to_numpy(),
    )  # fmt: skip
    best = truth.load_res(found).cap_detections_per_image(limit)
    engine = hotcoco.COCOeval(truth, best, TASK, lvis_style=True)
    engine.params.max_dets = [limit]
    return engine


def _lists(images: pd.DataFrame, column: str, label: dict[str, int]) -> list[list[int] | None]:
    """The labels of each image's list, of the classes there are; None for an image without."""
    if column not in images:
        return [None] * len(images)
    lists: list[list[int] | None] = []
    for image_id, text in zip(images["image_id"].tolist(), images[column].tolist(), strict=True):
        try:
            names = json.loads(text) if text else None
            if names is not None and not isinstance(names, list):
                raise ValueError(f"a {type(names).__name__}")
            lists.append(None if names is None else [label[n] for n in names if n in label])
        except (ValueError, TypeError) as error:
            raise DataError(
                f"images.{column} of image '{image_id}' must be a JSON list of class names, or "
                f"'': {text!r} ({error})"
            ) from error
    return lists


def _detected(found: NDArray[np.float64], negative: list[list[int] | None]) -> dict[int, list[int]]:
    """The labels detected in each image that has no list: to look for these alone is enough."""
    plain = np.array([labels is None for labels in negative], bool)
    pairs = found[:, [0, 6]].astype(np.int64)
    pairs = np.unique(pairs[plain[pairs[:, 0] - 1]], axis=0)
    places, starts = np.unique(pairs[:, 0] - 1, return_index=True)
    labels = np.split(pairs[:, 1], starts[1:])
    return {int(p): of.tolist() for p, of in zip(places, labels, strict=False)}


def _summary(
    precision: NDArray[Any], recall: NDArray[Any], groups: NDArray[Any], limit: int
) -> Iterator[tuple[str, float]]:
    """The thirteen (name, percent) from precision ``[T, R, K, A]`` and recall ``[T, K, A]``.

    Args:
        precision: -1 where there is no ground truth.
        recall: likewise.
        groups: ``[K]`` r, c, f or ''.
        limit: of detections in an image.
    """
    yield "AP", _mean(precision[:, :, :, 0])
    yield "AP50", _mean(precision[_IOU_50, :, :, 0])
    yield "AP75", _mean(precision[_IOU_75, :, :, 0])
    for a, name in enumerate(_AREAS[1:], start=1):
        yield f"AP{name}", _mean(precision[:, :, :, a])
    for group in ("r", "c", "f"):
        yield f"AP{group}", _mean(precision[:, :, groups == group, 0])
    yield f"AR{limit}", _mean(recall[:, :, 0])
    for a, name in enumerate(_AREAS[1:], start=1):
        yield f"AR{name}", _mean(recall[:, :, a])


def _mean(values: NDArray[Any]) -> float:
    """Mean in percent of what there is: the engine marks "no ground truth" by -1."""
    there = values[values > -1]
    return 100 * float(np.mean(there)) if there.size else float("nan")
