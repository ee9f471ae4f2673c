"""Figures of a run: precision over recall, confusion matrix, losses.

They are ``matplotlib.figure.Figure`` objects made without pyplot: no window, no global state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from detpipe.evaluate.coco import evaluator

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BACKGROUND = "background"
_LABELLED = 10
"""More curves than this are drawn in one grey, with only the mean named."""
_NUMBERED = 25
"""Cells of larger confusion matrices hold no numbers."""


def precision_recall(
    boxes: pd.DataFrame,
    detections: pd.DataFrame,
    classes: pd.DataFrame,
    *,
    max_detections: int = 100,
) -> Figure:
    """Precision over recall at IoU 0.5, a curve a class; the area under it is COCO's AP50.

    Args:
        boxes: the truth of one data set.
        detections: what was found in its images.
        classes: the classes table; those without ground truth have no curve.
        max_detections: the limit of detections per image and class.
    """
    figure, axes = _figure(6, 5)
    axes.set(xlabel="recall", ylabel="precision", title="Precision and recall at IoU 0.5")
    axes.set(xlim=(0, 1), ylim=(0, 1.005))
    axes.grid(alpha=0.3)
    curves = _curves(boxes, detections, classes, max_detections=max_detections)
    if curves.empty:
        _say(axes, "no ground truth")
        return figure
    few = len(curves.columns) <= _LABELLED
    for name, precision in curves.items():
        label = f"{name} (AP50 {100 * precision.mean():.1f})" if few else None
        style: dict[str, Any] = {} if few else {"color": "0.8", "linewidth": 0.8}
        axes.plot(curves.index, precision, label=_plain(label), **style)
    mean = curves.mean(axis=1)
    axes.plot(
        curves.index, mean, color="black", linewidth=2, label=f"mean (AP50 {100 * mean.mean():.1f})"
    )
    axes.legend(loc="lower left", fontsize="small")
    return figure


def _curves(
    boxes: pd.DataFrame, detections: pd.DataFrame, classes: pd.DataFrame, *, max_detections: int
) -> pd.DataFrame:
    """Precision at 101 recalls (index), a column a class that has ground truth."""
    recalls = np.linspace(0, 1, 101)
    if boxes["iscrowd"].all():
        return pd.DataFrame(index=recalls)
    images = _images_of(boxes, detections)
    engine = evaluator(images, boxes, detections, classes, limits=[max_detections])
    engine.evaluate()
    engine.accumulate()
    assert engine.eval is not None  # noqa: S101 - accumulate() has just filled it
    precision = engine.eval["precision"][0, :, :, 0, -1]
    curves = pd.DataFrame(precision, index=recalls, columns=classes["class_name"].tolist())
    return curves.loc[:, (curves > -1).all()]


def confusion_table(
    boxes: pd.DataFrame,
    detections: pd.DataFrame,
    classes: pd.DataFrame,
    *,
    iou: float = 0.5,
    min_score: float = 0.25,
    max_detections: int = 100,
) -> pd.DataFrame:
    """How often a true class (row) was taken for which class (column), as counts.

    Boxes and detections are matched whatever their class. The row ``background`` counts
    detections of nothing, the column ``background`` missed boxes. Crowd regions are left out.

    Args:
        boxes: the truth of one data set.
        detections: what was found in its images.
        classes: the classes table.
        iou: the least overlap of a match.
        min_score: detections below it are left out: a detector's many faint guesses would fill
            the background row.
        max_detections: the limit of detections per image.
    """
    engine = evaluator(
        _images_of(boxes, detections), boxes, detections, classes, limits=[max_detections]
    )
    counts = engine.confusion_matrix(iou_thr=iou, min_score=min_score)["matrix"]
    names = [*classes["class_name"], BACKGROUND]
    if names.count(BACKGROUND) > 1:
        names[-1] = f"({BACKGROUND})"
    return pd.DataFrame(
        counts.astype(np.int64),
        index=pd.Index(names, name="truth"),
        columns=pd.Index(names, name="detected"),
    )


def confusion(
    boxes: pd.DataFrame,
    detections: pd.DataFrame,
    classes: pd.DataFrame,
    *,
    iou: float = 0.5,
    min_score: float = 0.25,
    max_detections: int = 100,
) -> Figure:
    """:func:`confusion_table` as a picture: shade is the share of the row, text the count."""
    table = confusion_table(
        boxes, detections, classes, iou=iou, min_score=min_score, max_detections=max_detections
    )
    counts = table.to_numpy()
    sums = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, sums, out=np.zeros(counts.shape), where=sums > 0)
    side = min(4 + 0.35 * len(table), 24)
    figure, axes = _figure(side + 1, side)
    shade = axes.imshow(shares, vmin=0, vmax=1, cmap="Blues")
    figure.colorbar(shade, ax=axes, label="share of the true class", fraction=0.046)
    names = [_plain(name) for name in table.index]
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize="small")
    axes.set_yticks(range(len(names)), names, fontsize="small")
    axes.set(xlabel="detected as", ylabel="truth")
    axes.set_title(f"Confusion at IoU {iou:g}, score {min_score:g} and above")
    if len(names) <= _NUMBERED:
        for (row, column), count in np.ndenumerate(counts):
            if count:
                colour = "white" if shares[row, column] > 0.5 else "black"
                axes.text(
                    column, row, str(count), ha="center", va="center", color=colour, fontsize=8
                )
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


def _figure(width: float, height: float, *, rows: int = 1) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, sharex=True)


def _say(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes)


def _plain(text: str | None) -> str | None:
    """A name as it is: matplotlib would read ``$`` as mathematics and hide a leading ``_``."""
    if text is None:
        return None
    text = text.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def _images_of(boxes: pd.DataFrame, detections: pd.DataFrame) -> pd.DataFrame:
    """The images that have boxes or detections: others change neither curve nor matrix."""
    ids = pd.concat([boxes["image_id"], detections["image_id"]]).drop_duplicates()
    return pd.DataFrame({"image_id": ids, "width": 0, "height": 0})
