"""Precision, recall and F1 over the score threshold, and the thresholds where F1 is best."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from detpipe.core.tables import SCORES
from detpipe.evaluate.matches import Matches, iou_suffix, matches

if TYPE_CHECKING:
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

TASK = "bbox"
_NUMBERS = ["precision", "recall", "f1"]


def curves(
    images: pd.DataFrame,
    boxes: pd.DataFrame,
    detections: pd.DataFrame,
    classes: pd.DataFrame,
    *,
    iou: float,
    max_detections: int,
) -> pd.DataFrame:
    """Precision, recall and F1 of the detections with a score of a threshold or more.

    A step at every score that occurs: detections of equal score come and go together. Matching is
    that of :func:`~detpipe.evaluate.matches.matches`; detections on crowd regions do not count.

    Args:
        images: the images table.
        boxes: the truth.
        detections: what was found.
        classes: the classes table.
        iou: the least overlap of a right detection.
        max_detections: best detections that count, per image and class.

    Returns:
        class_name, score (0..1), precision, recall, f1 (percent); scores fall within a class. First
        ``''``, the detections of all classes pooled, then the classes in their order. A class
        without detections has no rows; without ground truth recall and F1 are NaN. There may be as
        many rows as detections, twice: see :func:`thin`.
    """
    found = matches(images, boxes, detections, classes, iou=iou, max_detections=max_detections)
    steps = _with_numbers(_steps(found), found.objects)
    names = np.array(["", *classes["class_name"]], dtype=object)
    steps.insert(0, "class_name", pd.Series(names[steps.pop("label")], dtype="str"))
    return steps[["class_name", "score", *_NUMBERS]]


def thin(curves: pd.DataFrame, points: int) -> pd.DataFrame:
    """About ``points`` steps of each class, evenly picked, for a plot.

    The first and the last step and the first of the best F1 are always among them.

    Args:
        curves: of :func:`curves`.
        points: at least 2.

    Returns:
        Rows of ``curves``.
    """
    groups = curves.groupby("class_name", sort=False)
    place, count = groups.cumcount(), groups["score"].transform("size")
    # Of every stretch of count / points steps the first, and the last of all.
    stretch = place * (points - 1) // (count - 1).clip(lower=1)
    keep = (place == 0) | stretch.ne(stretch.shift())
    best = curves["f1"].dropna().groupby(curves["class_name"]).idxmax()
    keep |= curves.index.isin(best)
    return curves[keep].reset_index(drop=True)


def best_thresholds(
    images: pd.DataFrame,
    boxes: pd.DataFrame,
    detections: pd.DataFrame,
    classes: pd.DataFrame,
    *,
    dataset: str,
    iou: float,
    max_detections: int,
) -> pd.DataFrame:
    """The score threshold with the best F1, of each class and of all classes pooled.

    It is a score that occurs; of thresholds with equal F1 the highest. Where no detection is right
    no threshold is better than another: it is NaN, and precision, recall and F1 are 0. Without
    ground truth all four are NaN. Who filters by class takes the threshold of all for a NaN.

    Args:
        images: the images table.
        boxes: the truth.
        detections: what was found.
        classes: the classes table.
        dataset: the name for the rows.
        iou: the least overlap of a right detection.
        max_detections: best detections that count, per image and class.

    Returns:
        dataset, class_name (``''``: all classes pooled, first), score_threshold (0..1), precision,
        recall, f1 (percent, at that threshold).
    """
    found = matches(images, boxes, detections, classes, iou=iou, max_detections=max_detections)
    return _table(_best(found), classes, dataset=dataset)


def score(
    images: pd.DataFrame,
    boxes: pd.DataFrame,
    detections: pd.DataFrame,
    classes: pd.DataFrame,
    *,
    dataset: str,
    max_detections: int = 100,
    iou: float = 0.5,
    score_threshold: float | Literal["best_f1"] = "best_f1",
    per_class: bool = True,
) -> pd.DataFrame:
    """F1, precision and recall of the detections from a score threshold on.

    Rows: F1, precision, recall (percent) and score_threshold (0..1), for all classes pooled, at
    one threshold for all, and for each class. At another IoU than 0.5 its percent follows the
    names: ``F1_75``. NaN as in :func:`best_thresholds`; precision is 0 where nothing was found.

    Args:
        images: the images table.
        boxes: the truth.
        detections: what was found.
        classes: the classes table.
        dataset: the name for the rows.
        max_detections: best detections that count, per image and class.
        iou: the least overlap of a right detection.
        score_threshold: the threshold, or ``best_f1``: that of :func:`best_thresholds`, so each
            class has its own, chosen on the data that it is then measured on.
        per_class: whether to add the rows of each class.

    Returns:
        A scores table; task ``bbox``.
    """
    found = matches(images, boxes, detections, classes, iou=iou, max_detections=max_detections)
    if not found.objects.sum():
        logger.warning("data set '%s': no ground truth, so there is no F1", dataset)
    rows = _best(found) if score_threshold == "best_f1" else _from(found, float(score_threshold))
    table = _table(rows, classes, dataset=dataset)
    suffix = iou_suffix(iou)
    return SCORES.make(
        {
            "dataset": dataset, "task": TASK, "metric": metric + suffix,
            "class_name": row["class_name"], "value": row[column],
        }
        for row in (table if per_class else table.iloc[:1]).to_dict("records")
        for metric, column in (
            ("F1", "f1"), ("precision", "precision"), ("recall", "recall"),
            ("score_threshold", "score_threshold"),
        )
    )  # fmt: skip


def _labels(found: Matches) -> Iterator[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]]:
    """(label, score, right) of what counts: all as label 0, then each class from 1 in order."""
    counts = ~found.ignored
    score, right = found.score[counts], found.right[counts]
    yield np.zeros(len(score), dtype=np.intp), score, right
    yield found.label[counts] + 1, score, right


def _steps(found: Matches) -> pd.DataFrame:
    """label (as :func:`_labels`), score (falling), and how many are right and found from it on."""
    parts = []
    for labels, scores, rights in _labels(found):
        order = np.lexsort((-scores, labels))
        label, score = labels[order], scores[order]
        # The last of each run of equal scores of a class: there all of them are in.
        last = np.flatnonzero(
            np.append((np.diff(label) != 0) | (np.diff(score) != 0), [True] * bool(len(order)))
        )
        start = np.searchsorted(label, label[last])
        sums = np.concatenate([[0], np.cumsum(rights[order])])
        parts.append(
            pd.DataFrame(
                {
                    "label": label[last], "score": score[last],
                    "right": sums[last + 1] - sums[start], "found": last + 1 - start,
                }
            )
        )  # fmt: skip
    return pd.concat(parts, ignore_index=True)


def _with_numbers(steps: pd.DataFrame, objects: NDArray[np.intp]) -> pd.DataFrame:
    """Precision, recall and F1 in percent for rows of label, right, found."""
    wanted = np.concatenate([[objects.sum()], objects])[steps["label"]]
    right, found = steps["right"].to_numpy(), steps["found"].to_numpy()
    with np.errstate(invalid="ignore"):  # 0 of 0 objects is NaN
        return steps.assign(
            precision=np.where(found > 0, 100 * right / np.maximum(found, 1), 0.0),
            recall=100 * right / wanted,
            # = 2pr / (p + r), of whole numbers: equal fractions are equal
            f1=np.where(wanted > 0, 200 * right / (found + wanted), np.nan),
        )


def _best(found: Matches) -> pd.DataFrame:
    """label, score_threshold and the numbers of the first step of the best F1."""
    labels = pd.RangeIndex(len(found.objects) + 1, name="label")
    steps = _with_numbers(_steps(found), found.objects)
    hits = steps[steps["f1"] > 0]
    best = hits.loc[hits.groupby("label")["f1"].idxmax()]
    best = best.set_index("label").reindex(labels).reset_index()
    best.loc[:, _NUMBERS] = best[_NUMBERS].fillna(0.0)
    wanted = np.concatenate([[found.objects.sum()], found.objects])
    best.loc[wanted == 0, _NUMBERS] = np.nan
    return best.rename(columns={"score": "score_threshold"})


def _from(found: Matches, threshold: float) -> pd.DataFrame:
    """label, score_threshold and the numbers at one threshold."""
    count = len(found.objects) + 1
    right, all_found = np.zeros((2, count), dtype=np.intp)
    for label, score, rights in _labels(found):
        kept = score >= threshold
        right += np.bincount(label[kept & rights], minlength=count)
        all_found += np.bincount(label[kept], minlength=count)
    steps = pd.DataFrame({"label": range(count), "right": right, "found": all_found})
    numbers = _with_numbers(steps, found.objects)
    numbers.loc[numbers["f1"].isna(), _NUMBERS] = np.nan
    return numbers.assign(score_threshold=threshold)


def _table(numbers: pd.DataFrame, classes: pd.DataFrame, *, dataset: str) -> pd.DataFrame:
    """Rows of every label as the columns of :func:`best_thresholds`."""
    return pd.DataFrame(
        {
            "dataset": pd.Series(dataset, index=numbers.index, dtype="str"),
            "class_name": pd.Series(["", *classes["class_name"]], dtype="str"),
            "score_threshold": numbers["score_threshold"],
            **{name: numbers[name] for name in _NUMBERS},
        }
    )
