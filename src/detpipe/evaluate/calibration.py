"""Whether scores mean what they say: of detections with a score of 0.8, are 80% right?"""

from __future__ import annotations

import logging

import numpy as np
import pandas as pd

from detpipe.core.errors import ConfigError
from detpipe.core.tables import SCORES
from detpipe.evaluate.matches import Matches, iou_suffix, matches

logger = logging.getLogger(__name__)

TASK = "bbox"


def calibration(
    images: pd.DataFrame,
    boxes: pd.DataFrame,
    detections: pd.DataFrame,
    classes: pd.DataFrame,
    *,
    dataset: str,
    bins: int,
    iou: float,
    max_detections: int,
) -> pd.DataFrame:
    """Mean score and precision of the detections in bins of the score: a reliability diagram.

    Bins are equally wide; as in Guo et al. 2017 each holds its upper edge and not its lower (the
    first holds 0). Matching is that of :func:`~detpipe.evaluate.matches.matches`; detections on
    crowd regions are left out. The detections of a class without ground truth are wrong ones.

    Args:
        images: the images table.
        boxes: the truth.
        detections: what was found.
        classes: the classes table.
        dataset: the name for the rows.
        bins: how many.
        iou: the least overlap of a right detection.
        max_detections: best detections that count, per image and class.

    Returns:
        dataset, class_name (``''``: the detections of all classes pooled, first; every class is
        there), lower, upper (0..1), detections (their number), confidence (mean score, percent),
        precision (percent; both NaN in an empty bin), mean_iou (of the right ones with what they
        found, percent; NaN without any). A row a bin, rising.

    Raises:
        ConfigError: ``bins`` or ``iou`` is out of range.
    """
    found = matches(images, boxes, detections, classes, iou=iou, max_detections=max_detections)
    return _bins(found, classes, dataset=dataset, bins=bins)


def score(
    images: pd.DataFrame,
    boxes: pd.DataFrame,
    detections: pd.DataFrame,
    classes: pd.DataFrame,
    *,
    dataset: str,
    max_detections: int = 100,
    bins: int = 10,
    iou: float = 0.5,
    per_class: bool = True,
) -> pd.DataFrame:
    """Calibration errors in percent: 0 where scores are the probability to be right.

    Rows, for all classes and for each:

    * ECE, expected calibration error: the mean over the detections of how far the confidence of
      their bin is from its precision (Guo et al. 2017; of all classes pooled).
    * MCE, maximum calibration error: the distance in the worst bin, be it of one detection.
    * LaECE, localisation-aware: the ECE of a class with precision × mean IoU of the right ones in
      place of the precision; for all classes the mean over classes (Oksuz et al. 2023, "Towards
      building self-aware object detectors via reliable uncertainty quantification and
      calibration"; they have 25 bins and an IoU of 0.1).

    At another IoU than 0.5 its percent follows the names: ``ECE_75``. What has no detections is
    NaN. LaECE is NaN too for a class without ground truth, and neither is part of its mean.

    Args:
        images: the images table.
        boxes: the truth.
        detections: what was found.
        classes: the classes table.
        dataset: the name for the rows.
        max_detections: best detections that count, per image and class.
        bins: equally wide bins of the score.
        iou: the least overlap of a right detection.
        per_class: whether to add the rows of each class.

    Returns:
        A scores table; task ``bbox``.

    Raises:
        ConfigError: ``bins`` or ``iou`` is out of range.
    """
    found = matches(images, boxes, detections, classes, iou=iou, max_detections=max_detections)
    if not len(found.row):
        logger.warning("data set '%s': no detections, so there is no calibration", dataset)
    table = _bins(found, classes, dataset=dataset, bins=bins)
    errors = _errors(table, bins=bins)
    errors.loc[1:, "LaECE"] = errors.loc[1:, "LaECE"].where(found.objects > 0)
    errors.loc[0, "LaECE"] = errors.loc[1:, "LaECE"].mean()
    suffix = iou_suffix(iou)
    return SCORES.make(
        {
            "dataset": dataset, "task": TASK, "metric": metric + suffix,
            "class_name": row["class_name"], "value": row[metric],
        }
        for row in (errors if per_class else errors.iloc[:1]).to_dict("records")
        for metric in ("ECE", "MCE", "LaECE")
    )  # fmt: skip


def _bins(found: Matches, classes: pd.DataFrame, *, dataset: str, bins: int) -> pd.DataFrame:
    """The table of :func:`calibration`."""
    if bins < 1:
        raise ConfigError(f"bins must be 1 or more, got {bins}")
    edges = np.arange(bins + 1) / bins  # k / bins is the number that a score of it is
    counts = ~found.ignored
    score, right, iou = found.score[counts], found.right[counts], found.iou[counts]
    place = np.searchsorted(edges[1:], score)  # the first bin whose upper edge is not below
    names, group = len(classes) + 1, found.label[counts] + 1

    def sums(chosen: np.ndarray, values: np.ndarray) -> np.ndarray:
        """``[1 + C, bins]`` sum of values in each bin: of all, then of each class."""
        cells = np.bincount(
            (group * bins + place)[chosen], weights=values[chosen], minlength=names * bins
        ).reshape(names, bins)
        cells[0] = cells.sum(axis=0)
        return cells

    every = np.ones(len(score), dtype=bool)
    number, rights = sums(every, every), sums(right, right)
    with np.errstate(invalid="ignore"):  # 0 / 0 is NaN: what an empty bin has
        confidence, precision = sums(every, score) / number, rights / number
        mean_iou = sums(right, iou) / rights
    return pd.DataFrame(
        {
            "dataset": pd.Series(dataset, index=range(names * bins), dtype="str"),
            "class_name": pd.Series(np.repeat(["", *classes["class_name"]], bins), dtype="str"),
            "lower": np.tile(edges[:-1], names),
            "upper": np.tile(edges[1:], names),
            "detections": number.ravel().astype(np.int64),
            "confidence": 100 * confidence.ravel(),
            "precision": 100 * precision.ravel(),
            "mean_iou": 100 * mean_iou.ravel(),
        }
    )


def _errors(table: pd.DataFrame, *, bins: int) -> pd.DataFrame:
    """class_name, ECE, MCE, LaECE in percent, of the detections of each row alone."""
    number = table["detections"].to_numpy().reshape(-1, bins)
    with np.errstate(invalid="ignore"):
        weight = number / number.sum(axis=1, keepdims=True)
    localised = table["precision"] * table["mean_iou"].fillna(0.0) / 100  # no right one: 0
    gap, localised_gap = (
        (table["confidence"] - goal).abs().to_numpy().reshape(-1, bins)
        for goal in (table["precision"], localised)
    )
    there = number.any(axis=1)
    return pd.DataFrame(
        {
            "class_name": table["class_name"].iloc[::bins].tolist(),
            "ECE": np.where(there, np.nansum(weight * gap, axis=1), np.nan),
            "MCE": np.where(there, np.nan_to_num(gap).max(axis=1), np.nan),
            "LaECE": np.where(there, np.nansum(weight * localised_gap, axis=1), np.nan),
        }
    )
