"""All metrics of a data set: functions of tables, joined into one scores table."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping
from typing import Any

import pandas as pd

from detpipe.core.config import Spec
from detpipe.core.errors import ConfigError, DetpipeError, TableError
from detpipe.core.tables import SCORES
from detpipe.evaluate.common import check_known, records

logger = logging.getLogger(__name__)

_ROW = ["dataset", "task", "metric", "class_name"]


def score(
    images: pd.DataFrame,
    boxes: pd.DataFrame,
    detections: pd.DataFrame,
    classes: pd.DataFrame,
    *,
    dataset: str,
    metrics: Mapping[str, Spec | None],
    max_detections: int,
) -> pd.DataFrame:
    """Calls every metric on one data set's tables and joins what they return.

    A metric is any function that takes some of ``images``, ``boxes``, ``detections``, ``classes``
    (tables), ``dataset`` and ``max_detections`` by name, and returns rows of the scores table.

    Args:
        images: the images that were looked at.
        boxes: the truth in them.
        detections: what was found in them.
        classes: the classes table.
        dataset: name of the data set (``val``, ``test``), for the rows.
        metrics: name → spec; ``None`` is left out.
        max_detections: the limit of detections per image.

    Returns:
        A scores table, metrics in their order.

    Raises:
        DataError: a table names images or classes that are not there; all are listed.
        ConfigError: two metrics give the same row.
        TableError: a metric returns something else than rows of the scores table.
        DetpipeError: a metric raises another error than these; it says which and where.
    """
    check_known(images, classes, boxes=boxes, detections=detections)
    _warn_about_limit(boxes, dataset=dataset, max_detections=max_detections)
    given = {
        "images": images, "boxes": boxes, "detections": detections, "classes": classes,
        "dataset": dataset, "max_detections": max_detections,
    }  # fmt: skip
    parts = {name: _rows(name, spec, given) for name, spec in metrics.items() if spec is not None}
    if not parts:
        return SCORES.empty()
    joined = pd.concat([part.assign(_by=name) for name, part in parts.items()])
    twice = joined[joined.duplicated(_ROW, keep=False)]
    if len(twice):
        first = twice.iloc[0]
        raise ConfigError(
            f"evaluate.metrics: {', '.join(twice['_by'].unique())} give the same row "
            f"(metric '{first['metric']}', task '{first['task']}'); set one of them to null"
        )
    return SCORES.make(joined)


def _rows(name: str, spec: Spec, given: Mapping[str, Any]) -> pd.DataFrame:
    """The rows of one metric."""
    try:
        rows = spec.build(**given)
    except DetpipeError:
        raise
    except Exception as error:
        raise DetpipeError(
            f"metric '{name}' ({spec.use}) failed on data set '{given['dataset']}': "
            f"{type(error).__name__}: {error} ({_place(error)}); mend it, or set "
            f"evaluate.metrics.{name} to null to go without"
        ) from error
    try:
        return SCORES.make(rows)
    except (TableError, TypeError) as error:
        what = (
            error
            if isinstance(error, TableError)
            else f"it returns {type(rows).__name__}, not rows of the scores table (dataset, task, "
            "metric, class_name, value)"
        )
        raise TableError(f"metric '{name}' ({spec.use}): {what}") from error


def _place(error: Exception) -> str:
    """Where in the file of a metric, called by :meth:`Spec.build`, it was raised."""
    every = list(traceback.extract_tb(error.__traceback__))
    frames = every[2:] or every
    last = [frame for frame in frames if frame.filename == frames[0].filename][-1]
    return f"{last.filename}, line {last.lineno}"


def as_metrics(scores: pd.DataFrame) -> dict[str, float]:
    """A scores table as named scalars: ``val/bbox/AP``, and by class ``val/bbox/AP/person``.

    A row without a number stays, as NaN: that there is nothing to count (no large objects) is
    something else than that there is no such metric.
    """
    metrics = {}
    for row in records(scores):
        by_class = [row.class_name] if row.class_name else []
        metrics["/".join([row.dataset, row.task, row.metric, *by_class])] = float(row.value)
    return metrics


def _warn_about_limit(boxes: pd.DataFrame, *, dataset: str, max_detections: int) -> None:
    counts = boxes.loc[~boxes["iscrowd"], "image_id"].value_counts()
    crowded = counts[counts > max_detections]
    if len(crowded):
        logger.warning(
            "data set '%s': %d image(s) hold more than max_detections=%d objects (most: %d in "
            "image '%s'); what is above the limit counts as missed: raise evaluate.max_detections",
            dataset, len(crowded), max_detections, crowded.iloc[0], crowded.index[0],
        )  # fmt: skip
