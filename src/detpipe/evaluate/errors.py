"""What goes wrong, and what it costs: the errors of TIDE (Bolya et al., ECCV 2020)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from detpipe.core.tables import BOX_COLUMNS, SCORES, positions
from detpipe.evaluate.common import image_order
from detpipe.evaluate.matches import Matches, iou_suffix, matches
from detpipe.evaluate.overlaps import Pairs, average_precision, overlaps

if TYPE_CHECKING:
    from numpy.typing import NDArray

TASK = "bbox"
ERRORS = ("classification", "localisation", "both", "duplicate", "background", "missed")
SPECIAL = ("false_positive", "false_negative")


def breakdown(
    images: pd.DataFrame,
    boxes: pd.DataFrame,
    detections: pd.DataFrame,
    classes: pd.DataFrame,
    *,
    dataset: str,
    iou: float = 0.5,
    background_iou: float = 0.1,
    max_detections: int = 100,
) -> pd.DataFrame:
    """How many errors of each kind there are, and how much AP would gain without them.

    Of a wrong detection, the first that holds:

    - ``localisation``: a box of its class overlaps it by ``background_iou`` to ``iou``.
    - ``classification``: a box of another class overlaps it by ``iou``.
    - ``duplicate``: a box of its class overlaps it by more, but a better detection has it.
    - ``background``: no box overlaps it by more than ``background_iou``.
    - ``both``: only boxes of other classes overlap it, by less than ``iou``.

    ``missed`` are boxes that no detection took and that none of the first two kinds means.

    Each gain is that of one repair alone, on top of the AP as it is: the best wrong detection that
    means a free box gets its place or class and so is right, the others go; of ``both``,
    ``duplicate`` and ``background`` all go; missed boxes are no more asked for. ``false_positive``
    are all wrong detections, and the gain if none were left; ``false_negative`` all boxes that no
    detection took, and the gain if none of them were asked for. Gains do not add up.

    These are the definitions of tidecv 1.0.1, the authors' code, with COCO's AP and these
    differences: a detection on a crowd region is no error; classes without ground truth are not
    part of the mean; a class whose boxes are all missed has AP 100 when they are repaired.

    Args:
        images: the images table.
        boxes: the truth.
        detections: what was found.
        classes: the classes table.
        dataset: the name for the rows.
        iou: the least overlap of a right detection, and where AP is taken.
        background_iou: the overlap up to which a detection is of nothing.
        max_detections: best detections that count, per image and class.

    Returns:
        A row an error, those of :data:`ERRORS` and :data:`SPECIAL`: dataset, error, count, AP_gain
        in points of percent (NaN without ground truth).
    """
    judged = _judge(
        images, boxes, detections, classes,
        iou=iou, background_iou=background_iou, max_detections=max_detections,
    )  # fmt: skip
    counts = {kind: int((judged.kind == kind).sum()) for kind in ERRORS}
    counts["missed"] = int(judged.missed.sum())
    counts["false_positive"] = sum(counts[kind] for kind in ERRORS[:-1])
    counts["false_negative"] = int(judged.free.sum())
    gains = _gains(judged, boxes, classes, _ranking(images, detections, judged.found))
    return pd.DataFrame(
        {
            "dataset": dataset,
            "error": list(counts),
            "count": list(counts.values()),
            "AP_gain": [gains[error] for error in counts],
        }
    )


def score(
    images: pd.DataFrame,
    boxes: pd.DataFrame,
    detections: pd.DataFrame,
    classes: pd.DataFrame,
    *,
    dataset: str,
    iou: float = 0.5,
    background_iou: float = 0.1,
    max_detections: int = 100,
) -> pd.DataFrame:
    """The gains of :func:`breakdown` as a metric; its arguments.

    Returns:
        A scores table, task ``bbox``: ``AP_gain_classification``, … in points of percent; at
        another IoU than 0.5 the name ends in its percent: ``AP_gain_missed_75``.
    """
    table = breakdown(
        images, boxes, detections, classes, dataset=dataset,
        iou=iou, background_iou=background_iou, max_detections=max_detections,
    )  # fmt: skip
    names = "AP_gain_" + table["error"] + iou_suffix(iou)
    rows = {"dataset": dataset, "task": TASK, "metric": names, "class_name": ""}
    return SCORES.make(pd.DataFrame({**rows, "value": table["AP_gain"]}))


def kinds(
    images: pd.DataFrame,
    boxes: pd.DataFrame,
    detections: pd.DataFrame,
    classes: pd.DataFrame,
    *,
    iou: float = 0.5,
    background_iou: float = 0.1,
    score_threshold: float = 0.5,
    max_detections: int = 100,
) -> pd.DataFrame:
    """What each detection is and which boxes are missed, by the rules of :func:`breakdown`.

    Args:
        images: the images table.
        boxes: the truth.
        detections: what was found.
        classes: the classes table.
        iou: the least overlap of a right detection.
        background_iou: the overlap up to which a detection is of nothing.
        score_threshold: fainter detections are left out, as if they were not there.
        max_detections: best detections that count, per image and class.

    Returns:
        A row a detection, in their order, then a row a missed box: image_id, class_name, x1, y1,
        x2, y2, score (NaN for a missed box), kind (``right``, ``ignored`` for one on a crowd
        region, or one of :data:`ERRORS`) and truth_class: the class of the box that it took, or
        that it means (of ``both``, the one that it overlaps most); '' for none.
    """
    detections = detections[detections["score"] >= score_threshold]
    judged = _judge(
        images, boxes, detections, classes,
        iou=iou, background_iou=background_iou, max_detections=max_detections,
    )  # fmt: skip
    columns = ["image_id", "class_name", *BOX_COLUMNS]
    found = detections.iloc[judged.found.row][[*columns, "score"]]
    meant = boxes["class_name"].iloc[judged.box].to_numpy() if len(boxes) else ""
    found = found.assign(kind=judged.kind, truth_class=np.where(judged.box >= 0, meant, ""))
    missed = boxes[judged.missed][columns].assign(score=np.nan, kind="missed")
    missed["truth_class"] = missed["class_name"]
    table = pd.concat([part for part in (found, missed) if len(part)] or [found])
    texts = dict.fromkeys(["image_id", "class_name", "kind", "truth_class"], "str")
    return table.reset_index(drop=True).astype(texts)


class _Judged(NamedTuple):
    """What each of N detections and T boxes is."""

    found: Matches
    kind: NDArray[np.object_]
    """``[N]`` right, ignored or one of ERRORS."""
    box: NDArray[np.intp]
    """``[N]`` place of the box that it took or means, -1 for none."""
    free: NDArray[np.bool_]
    """``[T]`` whether no detection took it; crowd regions are not free."""
    missed: NDArray[np.bool_]
    """``[T]`` whether, besides, none means it."""


def _judge(
    images: pd.DataFrame,
    boxes: pd.DataFrame,
    detections: pd.DataFrame,
    classes: pd.DataFrame,
    *,
    iou: float,
    background_iou: float,
    max_detections: int,
) -> _Judged:
    found = matches(images, boxes, detections, classes, iou=iou, max_detections=max_detections)
    free = ~boxes["iscrowd"].to_numpy()
    free[found.truth[found.right]] = False

    near = overlaps(boxes, detections.iloc[found.row], least=min(iou, background_iou))
    label = positions(boxes["class_name"], classes["class_name"])
    same_class = label[near.box] == found.label[near.detection]
    same, same_box = _nearest(near.where(same_class), len(found.row))
    other, other_box = _nearest(near.where(~same_class), len(found.row))
    rules = {
        "right": found.right,
        "ignored": found.ignored,
        "localisation": (same_box >= 0) & (same >= background_iou) & (same <= iou),
        "classification": other >= iou,
        "duplicate": same > iou,
        "background": np.maximum(same, other) <= background_iou,
    }
    kind = np.select(list(rules.values()), [np.array(k, dtype=object) for k in rules], "both")
    places = {
        "right": found.truth, "localisation": same_box, "duplicate": same_box,
        "classification": other_box, "both": other_box,
    }  # fmt: skip
    box = np.select([kind == k for k in places], list(places.values()), -1)
    missed = free.copy()
    missed[box[_repairable(kind)]] = False
    return _Judged(found, kind, box, free, missed)


def _nearest(near: Pairs, count: int) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Of each detection ``[count]`` the largest overlap (0 for none) and its box (-1 for none)."""
    who, first = np.unique(near.detection, return_index=True)
    iou, box = np.zeros(count), np.full(count, -1)
    iou[who], box[who] = near.iou[first], near.box[first]
    return iou, box


def _repairable(kind: NDArray[np.object_]) -> NDArray[np.bool_]:
    return np.isin(kind.astype(str), ["classification", "localisation"])


def _ranking(images: pd.DataFrame, detections: pd.DataFrame, found: Matches) -> NDArray[np.intp]:
    """``[N]`` the detections best first; equal scores in COCO's order."""
    order = pd.Series(image_order(images), dtype="str")
    image = positions(detections["image_id"].iloc[found.row], order)
    return np.lexsort((image, -found.score))


def _gains(
    judged: _Judged, boxes: pd.DataFrame, classes: pd.DataFrame, order: NDArray[np.intp]
) -> dict[str, float]:
    """Error → points of AP."""
    found, objects = judged.found, judged.found.objects
    label_of_box = positions(boxes["class_name"], classes["class_name"])
    there = objects > 0
    if not there.any():
        return dict.fromkeys([*ERRORS, *SPECIAL], float("nan"))

    def ap(
        keep: NDArray[np.bool_],
        label: NDArray[np.intp] = found.label,
        right: NDArray[np.bool_] = found.right,
        without: NDArray[np.bool_] | None = None,
    ) -> float:
        asked = objects
        if without is not None:
            asked = objects - np.bincount(label_of_box[without], minlength=len(objects))
        counted = order[keep[order]]
        values = average_precision(label[counted], right[counted], asked)
        return 100 * float(np.mean(np.nan_to_num(values[there], nan=1.0)))

    kind, everything = judged.kind, ~found.ignored
    base = ap(everything)
    repairs = _best_repairs(judged, order)
    gains = {}
    for error in ERRORS[:-1]:
        mine = kind == error
        fixed = mine & repairs
        label = found.label.copy()
        label[fixed] = label_of_box[judged.box[fixed]]
        gains[error] = ap(everything & (~mine | fixed), label, found.right | fixed) - base
    gains["missed"] = ap(everything, without=judged.missed) - base
    gains["false_positive"] = ap(found.right) - base
    gains["false_negative"] = ap(everything, without=judged.free) - base
    return {error: max(gain, 0.0) for error, gain in gains.items()}  # rounding


def _best_repairs(judged: _Judged, order: NDArray[np.intp]) -> NDArray[np.bool_]:
    """``[N]`` the best of those that mean one free box: a box can be found once only."""
    means = _repairable(judged.kind) & np.append(judged.free, False)[judged.box]
    best_first = order[means[order]]
    _, first = np.unique(judged.box[best_first], return_index=True)
    best = np.zeros(len(order), dtype=bool)
    best[best_first[first]] = True
    return best
