"""Scores as tables for people: csv files, copy-paste lines, a table for the log."""

from __future__ import annotations

import csv
import io
import logging
import math
from collections.abc import Iterable

import pandas as pd

logger = logging.getLogger(__name__)

_RUN = ["dataset", "task"]


def overview(scores: pd.DataFrame) -> pd.DataFrame:
    """One row a data set and task, one column a metric over all classes; percent.

    Rows and columns keep the order of the scores table.
    """
    return _wide(scores[scores["class_name"] == ""], _RUN)


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
    """The overview as aligned text, two decimals; a dash where there is no number."""
    frame = overview(scores)
    if frame.empty:
        return "no scores"
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


def _wide(rows: pd.DataFrame, index: list[str]) -> pd.DataFrame:
    """One row an ``index``, one column a metric, both in the order of their first appearance."""
    metrics = rows["metric"].drop_duplicates().tolist()
    cells = rows.set_index([*index, "metric"])["value"].unstack("metric")
    wanted = pd.MultiIndex.from_frame(rows[index].drop_duplicates())
    return cells.reindex(index=wanted, columns=metrics).rename_axis(columns=None).reset_index()
