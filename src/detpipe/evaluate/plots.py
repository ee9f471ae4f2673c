"""Figures of a run: curves, confusion matrix, errors, calibration, slices, losses.

Percent go from 0 to 100 and bars begin at 0, whatever the numbers are.
They are ``matplotlib.figure.Figure`` objects made without pyplot: no window, no global state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from detpipe.evaluate.coco import evaluator
from detpipe.evaluate.curves import thin
from detpipe.evaluate.errors import SPECIAL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LABELLED = 10
"""More curves than this are drawn in one grey, with only the mean named."""
_NUMBERED, _NAMED = 25, 120
"""Cells of larger confusion matrices hold no numbers; still larger ones have no names."""
_STEPS = 400
"""Points of a curve over the score."""


def precision_recall(
    images: pd.DataFrame,
    boxes: pd.DataFrame,
    detections: pd.DataFrame,
    classes: pd.DataFrame,
    *,
    iou: float = 0.5,
    max_detections: int = 100,
) -> Figure:
    """Precision over recall, a curve a class; the area under it is COCO's AP at this IoU.

    Args:
        images: the images table of one data set.
        boxes: the truth in it.
        detections: what was found in it.
        classes: the classes table; those without ground truth have no curve.
        iou: the least overlap of a right detection.
        max_detections: the limit of detections per image and class.
    """
    figure, axes = _figure(6.5, 5)
    axes.set_title(f"Precision and recall at IoU {iou:g}: {_objects(boxes)}")
    _percent(axes, xlabel="recall, %", ylabel="precision, %")
    if boxes["iscrowd"].all():
        _say(axes, "no ground truth")
        return figure
    engine = evaluator(
        images, boxes, detections, classes, limits=[max_detections], iou_thresholds=[iou]
    )
    engine.evaluate()
    engine.accumulate()
    assert engine.eval is not None  # noqa: S101 - accumulate() has just filled it
    precision = 100 * engine.eval["precision"][0, :, :, 0, -1]
    recalls = np.linspace(0, 100, len(precision))
    there = (precision >= 0).all(axis=0)  # -1 without ground truth
    few = there.sum() <= _LABELLED
    name = f"AP{100 * iou:g}"
    for k in np.flatnonzero(there):
        style: dict[str, Any] = {} if few else {"color": "0.8", "linewidth": 0.8}
        text = f"{classes['class_name'].iloc[k]} ({name} {precision[:, k].mean():.1f})"
        axes.plot(recalls, precision[:, k], label=_plain(text) if few else None, **style)
    mean = precision[:, there].mean(axis=1)
    text = f"mean ({name} {mean.mean():.1f})"
    axes.plot(recalls, mean, color="black", linewidth=2, label=text)
    axes.legend(loc="lower left", fontsize="small")
    return figure


def score_curves(curves: pd.DataFrame, thresholds: pd.DataFrame, *, iou: float) -> Figure:
    """Precision, recall and F1 over the score from which detections count; F1 of each class.

    Args:
        curves: of :func:`detpipe.evaluate.curves.curves`.
        thresholds: of :func:`detpipe.evaluate.curves.best_thresholds`, one data set.
        iou: at which they were made, for the title.
    """
    figure, (left, right) = _figure(11, 4.5, columns=2)
    left.set_title(f"All classes together, IoU {iou:g}")
    right.set_title("F1 by class; a dot is the best")
    for axes in (left, right):
        _percent(axes, xlabel="score threshold, %", ylabel="%")
    best = thresholds.set_index("class_name")
    if curves.dropna(subset="f1").empty:
        for axes in (left, right):
            _say(axes, "no detections" if curves.empty else "no ground truth")
        return figure
    few = curves["class_name"].nunique() - 1 <= _LABELLED
    for name, steps in thin(curves, _STEPS).groupby("class_name", sort=False):
        score = 100 * np.append(steps["score"], 0)  # below the faintest nothing changes
        columns = ["precision", "recall", "f1"] if name == "" else ["f1"]
        for column in columns:
            value = np.append(steps[column], steps[column].iloc[-1])
            axes = left if name == "" else right
            label = str(name) or {"f1": "F1"}.get(column, column)
            style: dict[str, Any] = {"label": _plain(label)}
            if name and not few:
                style = {"color": "0.75", "linewidth": 0.8}
            axes.plot(score, value, drawstyle="steps-post", **style)
        at = best.loc[name]
        if pd.notna(at["score_threshold"]):
            axes = left if name == "" else right
            axes.plot(100 * at["score_threshold"], at["f1"], "o", color="black", markersize=4)
            if name == "":
                axes.axvline(100 * at["score_threshold"], color="black", linestyle=":")
                label = f" best F1 {at['f1']:.1f} at {at['score_threshold']:.2f} "
                side = "right" if at["score_threshold"] > 0.5 else "left"
                axes.text(100 * at["score_threshold"], 3, label, ha=side, fontsize="small")
    left.legend(fontsize="small", loc="lower left")
    if few and right.get_legend_handles_labels()[1]:
        right.legend(fontsize="small", loc="lower left")
    return figure


def confusion(table: pd.DataFrame, *, iou: float, score_threshold: float) -> Figure:
    """How often a true class was taken for which: shade is the share of the row, text the count.

    Args:
        table: of :func:`detpipe.evaluate.confusion.confusion_table`.
        iou: at which it was made, for the title.
        score_threshold: likewise.
    """
    counts = table.to_numpy()
    sums = counts.sum(axis=1, keepdims=True)
    shares = np.divide(100 * counts, sums, out=np.zeros(counts.shape), where=sums > 0)
    side = min(4 + 0.35 * len(table), 24)
    figure, axes = _figure(side + 1, side)
    shade = axes.imshow(shares, vmin=0, vmax=100, cmap="Blues")
    figure.colorbar(shade, ax=axes, label="share of the row, %", fraction=0.046)
    names = [_plain(name) for name in table.index]
    if len(names) <= _NAMED:
        axes.set_xticks(range(len(names)), names, rotation=90, fontsize="small")
        axes.set_yticks(range(len(names)), names, fontsize="small")
    axes.set(xlabel="detected as", ylabel="truth")
    axes.set_title(
        f"{counts[:-1].sum()} objects, {counts[:, :-1].sum()} detections\n"
        f"IoU {iou:g}, score {score_threshold:.2f} and above"
    )
    if len(names) <= _NUMBERED:
        for (row, column), count in np.ndenumerate(counts):
            if count:
                colour = "white" if shares[row, column] > 50 else "black"
                axes.text(
                    column, row, str(count), ha="center", va="center", color=colour, fontsize=8
                )
    return figure


def errors(table: pd.DataFrame, *, iou: float) -> Figure:
    """What each kind of error costs, in points of AP, and how many there are.

    Args:
        table: of :func:`detpipe.evaluate.errors.breakdown`, one data set.
        iou: at which it was made, for the title.
    """
    figure, (left, right) = _figure(11, 3.8, columns=2, sharey=True)
    colours = ["tab:grey" if error in SPECIAL else "tab:red" for error in table["error"]]
    for axes, column, words in (
        (left, "AP_gain", f"points of AP{100 * iou:g} won without them"),
        (right, "count", "how many"),
    ):
        values = table[column].fillna(0)
        bars = axes.barh([_words(error) for error in table["error"]], values, color=colours)
        texts = _numbers(table[column], 0 if column == "count" else 1)
        axes.bar_label(bars, texts, padding=3, fontsize="small")
        axes.set(xlabel=words, xlim=(0, max(1.15 * values.max(), 1)))
    left.invert_yaxis()
    figure.suptitle(f"Errors at IoU {iou:g}; grey: all wrong detections, all objects not found")
    return figure


def reliability(table: pd.DataFrame) -> Figure:
    """Precision in bins of the score: on the diagonal, scores are probabilities to be right.

    Args:
        table: of :func:`detpipe.evaluate.calibration.calibration`, one data set and class.
    """
    figure, (upper, lower) = _figure(6, 6, rows=2, ratios=[3, 1])
    left, width = 100 * table["lower"], 100 * (table["upper"] - table["lower"])
    upper.set_title(f"Calibration: ECE {ece(table):.1f} points")
    _percent(upper, xlabel="", ylabel="precision, %")
    upper.bar(left, table["precision"].fillna(0), width, align="edge", edgecolor="white",
              label="precision in a bin")  # fmt: skip
    upper.plot([0, 100], [0, 100], "--", color="black", label="score = precision")
    upper.plot(table["confidence"], table["precision"], "o", color="tab:orange", markersize=4,
               label="at the mean score of a bin")  # fmt: skip
    upper.legend(fontsize="small", loc="upper left")
    counts = table["detections"]
    bars = lower.bar(left, counts, width, align="edge", color="tab:grey", edgecolor="white")
    lower.bar_label(bars, _numbers(counts, 0), fontsize="small", rotation=45)
    lower.set(xlabel="score, %", ylabel="detections", ylim=(0, max(1.5 * counts.max(), 1)))
    if not counts.sum():
        _say(upper, "no detections")
    return figure


def ece(table: pd.DataFrame) -> float:
    """Expected calibration error, points of percent; NaN without detections.

    Args:
        table: as in :func:`reliability`.
    """
    there = table[table["detections"] > 0]
    if there.empty:
        return float("nan")
    gap = (there["confidence"] - there["precision"]).abs()
    return float(np.average(gap, weights=there["detections"]))


def slices(table: pd.DataFrame) -> Figure:
    """AP of each slice as bars.

    Args:
        table: of :func:`detpipe.evaluate.slices.slices`, one data set.
    """
    figure, axes = _figure(8, 1 + 0.38 * max(len(table), 3))
    names = [
        f"{_words(row['slice_by'])}: {_words(row['slice'])}  ({row['objects']} objects)"
        for row in table.to_dict("records")
    ]
    axes.barh(names, table["AP50"].fillna(0), color="0.85", label="AP50")
    bars = axes.barh(names, table["AP"].fillna(0), height=0.5, color="tab:blue", label="AP")
    axes.bar_label(bars, _numbers(table["AP"], 1), padding=3, fontsize="small")
    axes.set(xlabel="AP, %", xlim=(0, 100), title="AP of parts of the data set")
    axes.invert_yaxis()
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def loss_curves(history: pd.DataFrame) -> Figure:
    """Losses over training steps, and the evaluation's AP below if the run evaluated.

    Args:
        history: one row a logged step: ``step``, and columns that are named as the scalars
            (``train/loss``, ``train/loss_classifier``, …, ``val/bbox/AP``); gaps are NaN.
    """
    steps = history["step"] if "step" in history else pd.Series(dtype="float64")
    numbers = history.select_dtypes("number").drop(columns="step", errors="ignore")
    numbers = numbers.dropna(axis="columns", how="all")
    losses = [name for name in numbers if "loss" in str(name).rpartition("/")[2]]
    scores = [name for name in numbers if str(name).rpartition("/")[2] in ("AP", "AP50", "AP75")]
    figure, axes = _figure(7, 8 if scores else 4, rows=2 if scores else 1)
    upper = axes[0] if scores else axes
    upper.set(xlabel="step", ylabel="loss", title="Training losses")
    if not losses:
        _say(upper, "no losses were logged")
    _lines(upper, steps, numbers[losses])
    if not (numbers[losses] < 0).any(axis=None):
        upper.set_ylim(bottom=0)
    if scores:
        axes[1].set(xlabel="step", ylabel="percent", title="Evaluation", ylim=(0, 100))
        _lines(axes[1], steps, numbers[scores], marker="o")
    return figure


def _lines(axes: Axes, steps: pd.Series, columns: pd.DataFrame, **style: Any) -> None:
    for name, values in columns.items():
        there = values.notna()
        axes.plot(steps[there], values[there], label=_plain(str(name)), **style)
    axes.grid(alpha=0.3)
    if len(columns.columns):
        axes.legend(fontsize="small")


def _figure(
    width: float,
    height: float,
    *,
    rows: int = 1,
    columns: int = 1,
    sharey: bool = False,
    ratios: Sequence[float] | None = None,
) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, sharex=columns == 1, sharey=sharey, height_ratios=ratios)
    return figure, axes


def _percent(axes: Axes, *, xlabel: str, ylabel: str) -> None:
    """Both axes from 0 to 100, with room for a line that runs along the top."""
    axes.set(xlabel=xlabel, ylabel=ylabel, xlim=(0, 100), ylim=(0, 101))
    axes.grid(alpha=0.3)


def _objects(boxes: pd.DataFrame) -> str:
    return f"{int((~boxes['iscrowd']).sum())} objects"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _numbers(values: pd.Series, decimals: int) -> list[str]:
    return ["–" if pd.isna(value) else f"{value:.{decimals}f}" for value in values]


def _say(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes)


def _plain(text: str | None) -> str | None:
    """A name as it is: matplotlib would read ``$`` as mathematics and hide a leading ``_``."""
    if text is None:
        return None
    text = text.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text
