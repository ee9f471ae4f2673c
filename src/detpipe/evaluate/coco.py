"""COCO's twelve numbers and those of each class, by pycocotools' rule.

The engine is hotcoco: the same numbers as pycocotools to the last bit, at about a hundredth of
the cost. What it is given is re-numbered here from 1, so ids of 0, ids that restart in each image
and ids that are text cannot change a result.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from pydantic import AfterValidator, Field

from detpipe.core.options import fitting_options
from detpipe.core.tables import BOX_COLUMNS, SCORES, positions
from detpipe.evaluate.common import check_known, image_order

if TYPE_CHECKING:
    import hotcoco
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

TASK = "bbox"

Range = tuple[float, float]
"""The least and the greatest area of a size, pixels²; both belong to it."""
_ALL: Range = (0.0, 1e10)
_AREAS: dict[str, Range] = {
    "s": (0.0, 32.0**2), "m": (32.0**2, 96.0**2), "l": (96.0**2, 1e10),
}  # fmt: skip
_THRESHOLDS = np.linspace(0.5, 0.95, 10).tolist()


def _distinct(thresholds: list[float]) -> list[float]:
    names = [_percent(threshold) for threshold in thresholds]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{', '.join(twice)} percent is there twice")
    return thresholds


def _sizes(areas: Mapping[str, Range]) -> Mapping[str, Range]:
    for name, (low, high) in areas.items():
        if not name[:1].isalpha():  # AP50 and AR100 are something else
            raise ValueError(f"the name '{name}' must begin with a letter")
        if not 0 <= low < high:
            raise ValueError(f"'{name}' must go from 0 or more to more than that")
    return areas


Thresholds = Annotated[
    list[Annotated[float, Field(gt=0, le=1)]], Field(min_length=1), AfterValidator(_distinct)
]
"""The overlaps (IoU) from which a detection can be right."""
Areas = Annotated[Mapping[str, Range], AfterValidator(_sizes)]
"""Names of sizes and their areas."""


def score(
    images: pd.DataFrame,
    boxes: pd.DataFrame,
    detections: pd.DataFrame,
    classes: pd.DataFrame,
    *,
    dataset: str,
    max_detections: Annotated[int, Field(gt=0)] = 100,
    iou_thresholds: Thresholds | None = None,
    areas: Areas | None = None,
    area: Literal["annotation", "box"] = "annotation",
    per_class: bool = True,
    suffix: str = "",
) -> pd.DataFrame:
    """Scores boxes as COCO does.

    Rows: AP, AP50, AP75, APs, APm, APl, AR1, AR10, AR100, ARs, ARm, ARl, in percent, and for each
    class AP, AP50 and AR100. With another ``max_detections`` than 100 (the best detections
    counted per image and class), every number is the true one at that limit, and AR100 is
    AR<limit>; limits of AR above it are left out.

    Crowd regions follow pycocotools: a detection on one is neither right nor wrong. COCO knows no
    ``difficult``: such boxes count as any other.

    A class without ground truth is NaN and not part of the mean, as is a size that no object has.
    Without any ground truth every number is NaN; without detections those with ground truth are 0.

    Args:
        images: the images table; images without boxes count (detections in them are wrong).
        boxes: the truth.
        detections: what was found, as best the order in which equal scores shall rank.
        classes: the classes table.
        dataset: the name for the rows.
        max_detections: see above.
        iou_thresholds: overlaps over which AP and AR are means; each has a row of its own,
            AP<percent>. Default 0.50, 0.55, …, 0.95, with rows for 0.5 and 0.75.
        areas: name → (low, high) in pixels², both included, for the rows AP<name> and AR<name>.
            Default COCO's s, m and l: up to 32², to 96², above.
        area: what the size of an object is: the truth's ``area`` column as for COCO, whose areas
            are those of masks, or its box's width × height.
        per_class: whether to add the rows of each class.
        suffix: what every metric's name ends in, so that two settings fit in one scores table.

    Returns:
        A scores table; task ``bbox``.

    Raises:
        ConfigError: an option cannot be used; all mistakes are listed.
        DataError: boxes or detections name images or classes that are not in their tables.
    """
    _check_options(max_detections, iou_thresholds, areas, area)
    layout = _Layout.of(max_detections, iou_thresholds, areas)
    names = classes["class_name"].tolist()
    if boxes["iscrowd"].all():  # true of an empty table too
        logger.warning("data set '%s': no ground truth, so there are no COCO numbers", dataset)
        precision, recall = layout.nothing(len(names))
    else:
        engine = evaluator(
            images, boxes, detections, classes,
            limits=layout.limits, iou_thresholds=iou_thresholds, areas=areas, area=area,
        )  # fmt: skip
        engine.evaluate()
        engine.accumulate()
        result = engine.eval
        assert result is not None  # noqa: S101 - accumulate() has just filled it
        precision, recall = result["precision"], result["recall"]
    rows = [("", *row) for row in _summary(precision, recall, layout)]
    if per_class:
        for k, name in enumerate(names):
            rows += [(name, *row) for row in _of_class(precision[:, :, k], recall[:, k], layout)]
    return SCORES.make(
        {
            "dataset": dataset, "task": TASK, "metric": metric + suffix, "class_name": name,
            "value": value,
        }
        for name, metric, value in rows
    )  # fmt: skip


def evaluator(
    images: pd.DataFrame,
    boxes: pd.DataFrame,
    detections: pd.DataFrame,
    classes: pd.DataFrame,
    *,
    limits: list[int],
    iou_thresholds: list[float] | None = None,
    areas: Mapping[str, Range] | None = None,
    area: Literal["annotation", "box"] = "annotation",
) -> hotcoco.COCOeval:
    """hotcoco's evaluator over the tables, nothing computed yet.

    Images are numbered from 1 in :func:`~detpipe.evaluate.common.image_order`, classes from 1 in
    the order of their table, truth from 1 in the order of its rows.

    Args:
        images: the images table.
        boxes: the truth. An area that is NaN is width × height.
        detections: what was found.
        classes: the classes table.
        limits: ascending limits of detections per image and class; AP uses the last.
        iou_thresholds: as in :func:`score`.
        areas: as in :func:`score`. Those of the evaluator are without repetition, after that of
            all objects: it would leave out all but the last of equal ones.
        area: as in :func:`score`.

    Raises:
        ConfigError: an option cannot be used; all mistakes are listed.
        DataError: boxes or detections name images or classes that are not in their tables.
    """
    import hotcoco

    _check_options(limits[-1], iou_thresholds, areas, area)
    order, names = pd.Series(image_order(images), dtype="str"), classes["class_name"]
    places = [
        positions(table[column], known)
        for table in (boxes, detections)
        for column, known in (("image_id", order), ("class_name", names))
    ]
    if any((place < 0).any() for place in places):
        # The engine would leave these rows out, and print a line.
        check_known(images, classes, boxes=boxes, detections=detections)
    sizes = images[["width", "height"]].to_numpy()[positions(order, images["image_id"])].tolist()
    sides = xywh(boxes)
    truth = hotcoco.COCO.from_arrays(
        [
            {"id": i, "file_name": str(i), "width": width, "height": height}
            for i, (width, height) in enumerate(sizes, start=1)
        ],
        [{"id": i, "name": name} for i, name in enumerate(names, start=1)],
        places[0] + 1,
        places[1] + 1,
        sides,
        ids=np.arange(1, len(boxes) + 1),
        area=_areas_of(boxes, sides, area),
        iscrowd=boxes["iscrowd"].to_numpy(),
    )
    found = np.empty((len(detections), 7))
    found[:, 0], found[:, 5], found[:, 6] = places[2] + 1, detections["score"], places[3] + 1
    xywh(detections, out=found[:, 1:5])
    engine = hotcoco.COCOeval(truth, truth.load_res(found), TASK)
    # Lists are set whole: what is read of the parameters is a copy.
    engine.params.max_dets = limits
    if iou_thresholds is not None:
        engine.params.iou_thrs = iou_thresholds
    if areas is not None:
        ranges = _ranges(areas)
        engine.params.area_rng = [list(bounds) for bounds in ranges]
        engine.params.area_rng_lbl = list(ranges.values())
    return engine


def xywh(table: pd.DataFrame, *, out: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """The boxes of a table as COCO writes them: ``[N, 4]`` x, y, width, height in pixels.

    Args:
        table: with columns x1, y1, x2, y2.
        out: where to write them, rather than into a new array.
    """
    sides = np.empty((len(table), 4)) if out is None else out
    for column, name in enumerate(BOX_COLUMNS):
        sides[:, column] = table[name]
    sides[:, 2:] -= sides[:, :2]
    return sides


def _check_options(max_detections: int, iou_thresholds: Any, areas: Any, area: Any) -> None:
    """The check of the configuration, for those who call from Python."""
    given = {
        "max_detections": max_detections, "iou_thresholds": iou_thresholds, "areas": areas,
        "area": area,
    }  # fmt: skip
    fitting_options("coco", given, target=score, args=4, provided=["dataset"])


def _areas_of(boxes: pd.DataFrame, sides: NDArray[np.float64], area: str) -> NDArray[np.float64]:
    """``[N]`` what goes for the size of each object, pixels²."""
    of_box = sides[:, 2] * sides[:, 3]
    if area == "box":
        return of_box
    given = boxes["area"].to_numpy()
    return np.where(np.isnan(given), of_box, given)


def _percent(threshold: float) -> str:
    return f"{100 * threshold:g}"


def _ranges(areas: Mapping[str, Range]) -> dict[Range, str]:
    """The areas of all objects and of these sizes, each once, with a name."""
    ranges = {_ALL: "all"}
    for name, (low, high) in areas.items():
        ranges.setdefault((low, high), name)
    return ranges


class _Layout(NamedTuple):
    """Names along the axes of precision ``[T, R, K, A, M]`` and recall ``[T, K, A, M]``.

    Attributes:
        overlaps: each threshold in percent.
        shown: the place along T of each that has a row of its own.
        sizes: the place along A of each size; the first is all objects.
        limits: of detections, ascending.
    """

    overlaps: list[str]
    shown: dict[str, int]
    sizes: dict[str, int]
    limits: list[int]

    @classmethod
    def of(
        cls, limit: int, thresholds: list[float] | None, areas: Mapping[str, Range] | None
    ) -> _Layout:
        """That of the options of :func:`score`."""
        overlaps = [_percent(threshold) for threshold in thresholds or _THRESHOLDS]
        areas = _AREAS if areas is None else areas
        ranges = list(_ranges(areas))
        return cls(
            overlaps,
            {name: overlaps.index(name) for name in (overlaps if thresholds else ("50", "75"))},
            {name: ranges.index((low, high)) for name, (low, high) in areas.items()},
            [lower for lower in (1, 10) if lower < limit] + [limit],
        )

    def nothing(self, classes: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Precision and recall where there is no truth."""
        rest = (classes, 1 + max(self.sizes.values(), default=0), len(self.limits))
        return np.full((len(self.overlaps), 1, *rest), -1.0), np.full(
            (len(self.overlaps), *rest), -1.0
        )


def _summary(
    precision: NDArray[Any], recall: NDArray[Any], layout: _Layout
) -> Iterator[tuple[str, float]]:
    """Each (metric, percent) of all classes."""
    yield "AP", _mean(precision[:, :, :, 0, -1])
    for name, t in layout.shown.items():
        yield f"AP{name}", _mean(precision[t, :, :, 0, -1])
    for name, a in layout.sizes.items():
        yield f"AP{name}", _mean(precision[:, :, :, a, -1])
    for m, limit in enumerate(layout.limits):
        yield f"AR{limit}", _mean(recall[:, :, 0, m])
    for name, a in layout.sizes.items():
        yield f"AR{name}", _mean(recall[:, :, a, -1])


def _of_class(
    precision: NDArray[Any], recall: NDArray[Any], layout: _Layout
) -> Iterator[tuple[str, float]]:
    """Each (metric, percent) of one class, from its ``[T, R, A, M]`` and ``[T, A, M]``."""
    yield "AP", _mean(precision[:, :, 0, -1])
    if "50" in layout.shown:
        yield "AP50", _mean(precision[layout.shown["50"], :, 0, -1])
    yield f"AR{layout.limits[-1]}", _mean(recall[:, 0, -1])


def _mean(values: NDArray[Any]) -> float:
    """Mean in percent of what there is: the engine marks "no ground truth" by -1."""
    there = values[values > -1]
    return 100 * float(np.mean(there)) if there.size else float("nan")
