"""Figures show the numbers they claim to show."""

from __future__ import annotations

import io

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from detpipe.evaluate import coco, plots


def drawn(figure):
    """The picture's pixels; drawing is when matplotlib finds its mistakes."""
    assert isinstance(figure, Figure)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=50)
    return len(file.getvalue())


def lines(axes):
    return {line.get_label().strip(): line for line in axes.get_lines()}


def test_the_area_under_each_curve_is_its_ap50(coco100):
    _, boxes, detections, classes = coco100.tables
    some = classes.head(8)
    boxes, detections = (t[t["class_name"].isin(some["class_name"])] for t in (boxes, detections))
    scores = coco.score(coco100.tables.images, boxes, detections, some, dataset="test")
    expected = scores[scores["metric"] == "AP50"].set_index("class_name")["value"].dropna()
    figure = plots.precision_recall(boxes, detections, some)
    axes = figure.axes[0]
    curves = lines(axes)
    assert len(curves) == len(expected)
    for name, value in expected.items():
        label = f"{name or 'mean'} (AP50 {value:.1f})"
        assert 100 * np.mean(curves[label].get_ydata()) == pytest.approx(value)
    assert axes.get_xlim() == (0, 1) and axes.get_ylim()[0] == 0
    assert drawn(figure)


def test_many_classes_have_one_grey_and_the_mean(coco100):
    _, boxes, detections, classes = coco100.tables
    figure = plots.precision_recall(boxes, detections, classes)
    [legend] = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert legend == "mean (AP50 69.7)"
    assert len(figure.axes[0].get_lines()) == boxes["class_name"].nunique() + 1
    assert drawn(figure)


def test_without_truth_the_figure_says_so(make):
    figure = plots.precision_recall(make.boxes(), make.detections(), make.classes("a"))
    assert [text.get_text() for text in figure.axes[0].texts] == ["no ground truth"]
    assert drawn(figure) and drawn(plots.confusion(make.boxes(), make.detections(), make.classes()))


def test_confusion_counts_by_hand(make):
    boxes = make.boxes(
        ("1", "cat", 0, 0, 10, 10), ("1", "dog", 20, 0, 30, 10), ("1", "dog", 40, 0, 50, 10),
        ("2", "cat", 0, 0, 10, 10),
    )  # fmt: skip
    detections = make.detections(
        ("1", "cat", 0, 0, 10, 10, 0.9),  # right
        ("1", "cat", 20, 0, 30, 10, 0.8),  # a dog taken for a cat
        ("1", "dog", 70, 0, 80, 10, 0.7),  # nothing there
        ("1", "dog", 40, 0, 50, 10, 0.1),  # too faint: this dog is missed
        ("3", "cat", 0, 0, 10, 10, 0.7),  # in an image without boxes
    )
    table = plots.confusion_table(boxes, detections, make.classes("cat", "dog"))
    assert list(table.index) == list(table.columns) == ["cat", "dog", "background"]
    assert table.to_numpy().tolist() == [[1, 0, 1], [1, 0, 1], [1, 1, 0]]
    faint = plots.confusion_table(boxes, detections, make.classes("cat", "dog"), min_score=0)
    assert faint.loc["dog"].tolist() == [1, 1, 0]


def test_confusion_of_real_data_counts_every_box_once(coco100):
    _, boxes, detections, classes = coco100.tables
    table = plots.confusion_table(boxes, detections, classes)
    truth = boxes[~boxes["iscrowd"]]["class_name"].value_counts()
    rows = table.drop("background").sum(axis=1)
    assert rows[rows > 0].to_dict() == truth.to_dict()
    figure = plots.confusion(boxes, detections, classes)
    assert len(figure.axes[0].get_xticklabels()) == 81 and drawn(figure)


def test_confusion_shades_are_shares_of_the_row(make):
    boxes = make.boxes(("1", "a", 0, 0, 10, 10), ("2", "a", 0, 0, 10, 10))
    detections = make.detections(("1", "a", 0, 0, 10, 10, 0.9))
    axes = plots.confusion(boxes, detections, make.classes("a")).axes[0]
    assert axes.images[0].get_array().tolist() == [[0.5, 0.5], [0, 0]]
    assert axes.images[0].get_clim() == (0, 1)
    assert [text.get_text() for text in axes.texts] == ["1", "1"]


def test_a_class_called_background_is_no_background(make):
    boxes = make.boxes(("1", "background", 0, 0, 10, 10))
    table = plots.confusion_table(boxes, make.detections(), make.classes("background"))
    assert list(table.index) == ["background", "(background)"]
    assert table.to_numpy().tolist() == [[0, 1], [0, 0]]


def test_names_that_matplotlib_would_read_are_drawn_as_they_are(make):
    names = ["$a$_{", "_hidden", "100%"]
    boxes = make.boxes(*(("1", n, 20 * i, 0, 20 * i + 9, 9) for i, n in enumerate(names)))
    found = boxes.assign(score=0.5)
    figure = plots.precision_recall(boxes, found, make.classes(*names))
    assert len(figure.axes[0].get_legend().get_texts()) == len(names) + 1
    assert drawn(figure) and drawn(plots.confusion(boxes, found, make.classes(*names)))


def test_loss_curves_show_the_history():
    history = pd.DataFrame(
        {
            "step": [10, 20, 30], "train/loss": [3.0, 2.0, 1.0], "train/loss_box": [1.0, 0.5, 0.2],
            "train/lr": [0.1, 0.1, 0.1], "val/bbox/AP": [np.nan, 20.0, np.nan],
            "val/bbox/AP/cat": [np.nan, 20.0, np.nan], "time/data": [1.0, 1.0, 1.0],
        }
    )  # fmt: skip
    figure = plots.loss_curves(history)
    upper, lower = figure.axes
    assert set(lines(upper)) == {"train/loss", "train/loss_box"}
    assert lines(upper)["train/loss"].get_ydata().tolist() == [3, 2, 1]
    assert upper.get_ylim()[0] == 0 and lower.get_ylim() == (0, 100)
    assert (
        lines(lower)["val/bbox/AP"].get_xydata().tolist() == [[20, 20]] and len(lines(lower)) == 1
    )
    assert drawn(figure)


@pytest.mark.parametrize("history", [pd.DataFrame(), pd.DataFrame({"step": [1], "lr": [0.1]})])
def test_a_history_without_losses_says_so(history):
    figure = plots.loss_curves(history)
    assert [text.get_text() for text in figure.axes[0].texts] == ["no losses were logged"]
    assert drawn(figure)
