"""What people look at: scores as tables and log lines, what they are made of, and its figures."""

from __future__ import annotations

import csv
import io
import logging
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from detpipe.core.tables import BOXES, DETECTIONS, IMAGES, positions
from detpipe.evaluate.config import ReportConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

_RUN = ["dataset", "task"]
_WIDE = 14
"""More metrics than these do not fit beside each other in a log."""
_THRESHOLD = 0.5
"""Where no score is better than another: nothing right was found."""


class Part(NamedTuple):
    """One data set: its images, the truth in them and what was found in them."""

    dataset: str
    images: pd.DataFrame
    boxes: pd.DataFrame
    detections: pd.DataFrame


class Diagnosis(NamedTuple):
    """What the scores are made of: tables whose first column is the data set."""

    thresholds: pd.DataFrame
    errors: pd.DataFrame
    slices: pd.DataFrame
    calibration: pd.DataFrame
    intervals: pd.DataFrame
    per_image: pd.DataFrame


def parts(
    images: pd.DataFrame,
    boxes: pd.DataFrame,
    detections: Iterable[tuple[Sequence[str], pd.DataFrame]],
) -> list[Part]:
    """The data sets that have images.

    Args:
        images: the images table of all splits.
        boxes: the truth in them.
        detections: (splits, what was found in their images); a split counts where it is first.
    """
    found = {}
    for splits, table in detections:
        for split in splits:
            own = images[images["split"] == split]
            if split not in found and len(own):
                mine = (t[positions(t["image_id"], own["image_id"]) >= 0] for t in (boxes, table))
                found[split] = Part(split, own, *mine)
    return list(found.values())


def diagnose(
    parts: Sequence[Part], classes: pd.DataFrame, config: ReportConfig, *, max_detections: int
) -> Diagnosis:
    """Everything that is known of the data sets beyond their scores; no rows without any."""
    nothing = Part("", IMAGES.empty(), BOXES.empty(), DETECTIONS.empty())
    made = [_diagnose(part, classes, config, max_detections) for part in parts]
    made = made or [
        Diagnosis(*(t.iloc[:0] for t in _diagnose(nothing, classes, config, max_detections)))
    ]
    return Diagnosis(*(pd.concat(tables, ignore_index=True) for tables in zip(*made, strict=True)))


def _diagnose(
    part: Part, classes: pd.DataFrame, config: ReportConfig, max_detections: int
) -> Diagnosis:
    from detpipe.evaluate.bootstrap import intervals
    from detpipe.evaluate.calibration import calibration
    from detpipe.evaluate.curves import best_thresholds
    from detpipe.evaluate.errors import breakdown
    from detpipe.evaluate.per_image import per_image
    from detpipe.evaluate.slices import slices

    dataset, *rest = part
    tables = (*rest, classes)
    limit, iou = max_detections, config.iou
    thresholds = best_thresholds(*tables, dataset=dataset, iou=iou, max_detections=limit)
    return Diagnosis(
        thresholds,
        breakdown(*tables, dataset=dataset, iou=iou, max_detections=limit),
        slices(*tables, dataset=dataset, max_detections=limit),
        calibration(*tables, dataset=dataset, bins=config.bins, iou=iou, max_detections=limit),
        intervals(
            *tables, dataset=dataset, max_detections=limit,
            samples=config.samples, confidence=config.confidence, seed=config.seed,
        ),
        per_image(
            *tables, dataset=dataset, iou=iou, max_detections=limit,
            score_threshold=threshold(thresholds, dataset, config),
        ),
    )  # fmt: skip


def threshold(thresholds: pd.DataFrame, dataset: str, config: ReportConfig) -> float:
    """From which score detections count in the pictures of a data set.

    Args:
        thresholds: of :class:`Diagnosis`.
        dataset: the name.
        config: its ``score_threshold``; ``best_f1`` is that of all classes together.
    """
    if config.score_threshold != "best_f1":
        return config.score_threshold
    rows = thresholds[(thresholds["dataset"] == dataset) & (thresholds["class_name"] == "")]
    best = rows["score_threshold"].dropna()
    return float(best.iloc[0]) if len(best) else _THRESHOLD


class Figures(NamedTuple):
    """Pictures by name: ``<dataset>_<what>`` among the curves, else by the data set alone."""

    curves: dict[str, Figure]
    confusion: dict[str, Figure]
    errors: dict[str, Figure]


def figures(
    parts: Sequence[Part],
    classes: pd.DataFrame,
    diagnosis: Diagnosis,
    config: ReportConfig,
    *,
    max_detections: int,
    history: pd.DataFrame | None = None,
) -> Figures:
    """All drawings: ``loss`` if there is a history, and those of each data set."""
    from detpipe.evaluate import plots
    from detpipe.evaluate.confusion import confusion_table
    from detpipe.evaluate.curves import curves

    made = Figures({}, {}, {})
    if history is not None:
        made.curves["loss"] = plots.loss_curves(history)
    iou, limit = config.iou, max_detections
    for part in parts:
        dataset, *rest = part
        tables = (*rest, classes)
        own = Diagnosis(*(t[t["dataset"] == dataset] for t in diagnosis))
        score = threshold(diagnosis.thresholds, dataset, config)
        whole = own.calibration[own.calibration["class_name"] == ""]
        steps = curves(*tables, iou=iou, max_detections=limit)
        matrix = confusion_table(*tables, iou=iou, score_threshold=score, max_detections=limit)
        made.curves[f"{dataset}_precision_recall"] = plots.precision_recall(
            *tables, iou=iou, max_detections=limit
        )
        made.curves[f"{dataset}_scores"] = plots.score_curves(steps, own.thresholds, iou=iou)
        made.curves[f"{dataset}_calibration"] = plots.reliability(whole)
        made.curves[f"{dataset}_slices"] = plots.slices(own.slices)
        made.confusion[dataset] = plots.confusion(matrix, iou=iou, score_threshold=score)
        made.errors[dataset] = plots.errors(own.errors, iou=iou)
    return made


def overview(scores: pd.DataFrame) -> pd.DataFrame:
    """One row a data set and task, one column a metric over all classes; percent.

    Rows and columns keep the order of the scores table.
    """
    return _wide(scores[scores["class_name"] == ""], _RUN)


def by_metric(scores: pd.DataFrame) -> pd.DataFrame:
    """The overview for reading: one row a metric, one column a data set; percent.

    The task is a column where there are several. Order is that of the scores table.
    """
    frame = _wide(scores[scores["class_name"] == ""], ["task", "metric"], "dataset")
    return frame if frame["task"].nunique() > 1 else frame.iloc[:, 1:]


def per_class(scores: pd.DataFrame) -> pd.DataFrame:
    """One row a data set, task and class, one column a metric that has values by class; percent.

    Every class of the scores table has its row, those without ground truth too (NaN).
    """
    return _wide(scores[scores["class_name"] != ""], [*_RUN, "class_name"])


def copypaste(scores: pd.DataFrame) -> list[str]:
    """Lines for the log whose part after ``copypaste: `` pastes into a spreadsheet.

    For each data set and task: what it is, the names, the values with four digits; then the same
    for the first metric that has values by class. Names are quoted as csv asks for.
    """
    lines = []
    for run, rows in scores.groupby(_RUN, sort=False):
        dataset, task = map(str, run)
        lines.append(f"Evaluation results for {dataset} in csv format:")
        whole = rows[rows["class_name"] == ""]
        lines += _copypaste(task, whole["metric"], whole["value"])
        single = rows[rows["class_name"] != ""]
        if len(single):
            metric = single["metric"].iloc[0]
            single = single[single["metric"] == metric]
            lines += _copypaste(f"{task} {metric} by class", single["class_name"], single["value"])
    return lines


def table(scores: pd.DataFrame) -> str:
    """The overview as aligned text, two decimals; a dash where there is no number.

    More metrics than fit beside each other are rows.
    """
    frame = overview(scores)
    if frame.empty:
        return "no scores"
    if frame.shape[1] - len(_RUN) > _WIDE:
        frame = by_metric(scores)
    return frame.to_string(index=False, float_format=_two_decimals, na_rep="-")


def log(scores: pd.DataFrame) -> None:
    """Writes :func:`table` and the lines of :func:`copypaste` to the log."""
    logger.info("scores in percent:\n%s", table(scores))
    for line in copypaste(scores):
        logger.info("%s", line)


def _two_decimals(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


def _copypaste(title: str, names: Iterable[str], values: Iterable[float]) -> list[str]:
    texts = (f"Task: {title}", _csv(names), _csv(f"{value:.4f}" for value in values))
    return [f"copypaste: {text}" for text in texts]


def _csv(values: Iterable[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(values)
    return line.getvalue()


def _wide(rows: pd.DataFrame, index: list[str], across: str = "metric") -> pd.DataFrame:
    """One row an ``index``, one column a metric, both in the order of their first appearance."""
    names = rows[across].drop_duplicates().tolist()
    cells = rows.set_index([*index, across])["value"].unstack(across)
    wanted = pd.MultiIndex.from_frame(rows[index].drop_duplicates())
    cells = cells.reindex(index=wanted, columns=names).rename_axis(columns=None)
    return cells.reset_index(allow_duplicates=True)  # a split may be called task
