"""A comparison of runs as one page to open in a browser."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from detpipe.core.page import MISSING, html, paragraph, picture, section, table
from detpipe.evaluate.common import records

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LINES = ("-", "--", "-.", ":")
"""Runs are told apart without colour too."""


def page(
    comparison: pd.DataFrame,
    curves: pd.DataFrame,
    *,
    sources: Mapping[str, str],
    dataset: str,
    images: int,
    samples: int,
    confidence: float,
) -> str:
    """One HTML file with everything in it: metrics, precision over recall, classes.

    Args:
        comparison: of :func:`detpipe.evaluate.compare.compare`.
        curves: of :func:`detpipe.evaluate.compare.precision_recall`.
        sources: run → what it is (an MLflow run, a file); the first is the baseline.
        dataset: the split they are compared on.
        images: how many images it has.
        samples: of the bootstrap.
        confidence: of the intervals.
    """
    baseline = ["what the others are compared with", *[""] * (len(sources) - 1)]
    runs = _frame([("run", sources), ("made by", sources.values()), ("", baseline)])
    whole = comparison[comparison["class_name"] == ""]
    by_class = comparison[comparison["class_name"] != ""]
    shown = [picture(_figure(curves), "precision over recall at IoU 0.5", kind="png")]
    parts = [
        paragraph(
            f"On the split {dataset} ({images} images). Numbers are percent, differences points of "
            f"it with their {100 * confidence:g}% interval, by a paired bootstrap over the images "
            f"({samples} samples). An interval that leaves out 0 is called better or worse: more "
            "than the choice of images explains. It does not know how much the same training "
            "varies with its seed."
        ),
        table(runs, sortable=False),
        section("All classes", [table(_metrics(whole), sortable=False)]),
        *([section("Precision and recall", shown)] if len(curves) else []),
        section(
            "By class",
            [
                paragraph(
                    "Average precision (AP). Among many classes some seem better or worse by "
                    f"chance: about one in {round(1 / (1 - confidence))}."
                ),
                _signed_cells(table(_classes(by_class)), runs=len(sources)),
            ],
        ),
    ]
    return html(f"Comparison on {dataset}", parts)


def log_text(comparison: pd.DataFrame) -> str:
    """The rows over all classes as aligned text: what each run has, and what differs."""
    rows = comparison[comparison["class_name"] == ""]
    columns: list[tuple[str, Any]] = [
        ("run", rows["run"]),
        ("metric", rows["metric"]),
        ("value", rows["value"]),
    ]
    columns.append(("difference", [_difference(row) for row in records(rows)]))
    columns.append(("", [_verdict(row) for row in records(rows)]))
    text = _frame(columns).to_string(index=False, float_format="{:.2f}".format, na_rep=MISSING)
    return text.replace("[", "(")  # the log's markup


def _verdict(row: Any) -> str:
    """What a row of the comparison says, in words; nothing for the baseline."""
    if math.isnan(row.low):
        return ""
    if not row.differs:
        return "no clear difference"
    return "better" if row.low > 0 else "worse"


def _difference(row: Any) -> str:
    """Such as ``+1.20 (−0.31 to +2.70)``; without an interval the difference alone."""
    if math.isnan(row.difference):
        return MISSING
    if math.isnan(row.low):
        return _signed(row.difference)
    return f"{_signed(row.difference)} ({_signed(row.low)} to {_signed(row.high)})"


def _signed(value: float) -> str:
    return f"{value:+z.2f}".replace("-", "−")


def _signed_cells(rows: str, *, runs: int) -> str:
    """The table of classes with differences written as elsewhere; it sorts by them as before."""
    difference = itertools.cycle([False] + [False, True, True, True] * (runs - 1))

    def written(cell: re.Match[str]) -> str:
        number = cell["number"] if next(difference) else ""
        return f"{cell['head']}{_signed(float(number))}</td>" if number else cell[0]

    head = '<td class="number" data-value="(?P<number>[^"]*)">'
    return re.sub(f"(?P<head>{head})[^<]*</td>", written, rows)


def _metrics(rows: pd.DataFrame) -> pd.DataFrame:
    """One row a metric: the value of each run, and what the others differ by."""
    columns: list[tuple[str, Any]] = [("metric", rows["metric"].unique())]
    for number, (run, own) in enumerate(rows.groupby("run", sort=False)):
        columns.append((str(run), own["value"]))
        if number:
            columns.append((f"{run}: difference", [_difference(row) for row in records(own)]))
            columns.append((f"{run} is", [_verdict(row) for row in records(own)]))
    return _frame(columns)


def _classes(rows: pd.DataFrame) -> pd.DataFrame:
    """One row a class, numbers as numbers, so that one can sort by them."""
    columns: list[tuple[str, Any]] = [("class", rows["class_name"].unique())]
    for number, (run, own) in enumerate(rows.groupby("run", sort=False)):
        columns.append((str(run), own["value"]))
        if number:
            columns += [(f"{run}: difference", own["difference"]), ("from", own["low"])]
            columns += [("to", own["high"])]
            columns.append((f"{run} is", [_verdict(row) for row in records(own)]))
    return _frame(columns)


def _frame(columns: Sequence[tuple[str, Any]]) -> pd.DataFrame:
    """Columns side by side, whatever they are called: runs have any name."""
    frame = pd.DataFrame({place: list(values) for place, (_, values) in enumerate(columns)})
    return frame.set_axis([name for name, _ in columns], axis=1)


def _figure(curves: pd.DataFrame) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 4.5), layout="constrained")
    axes = figure.subplots()
    for number, (run, precision) in enumerate(curves.items()):
        # matplotlib would read $ as mathematics, and leave out what begins with _.
        name = f" {run} (AP50 {precision.mean():.1f})".replace("$", r"\$")
        axes.plot(curves.index, precision, label=name, linestyle=_LINES[number % len(_LINES)])
    axes.set(xlabel="recall, %", ylabel="precision, %", xlim=(0, 100), ylim=(0, 101))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower left", fontsize="small")
    return figure
