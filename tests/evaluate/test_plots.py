"""Figures show the numbers they claim to show."""

from __future__ import annotations

import io

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from detpipe.evaluate import calibration, coco, plots
from detpipe.evaluate.curves import best_thresholds, curves
from detpipe.evaluate.slices import slices


def drawn(figure):
    """The picture's pixels; drawing is when matplotlib finds its mistakes."""
    assert isinstance(figure, Figure)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=50)
    return len(file.getvalue())


def lines(axes):
    return {line.get_label().strip(): line for line in axes.get_lines()}


def texts(axes):
    return [text.get_text() for text in axes.texts]


def widths(axes, container=0):
    return [bar.get_width() for bar in axes.containers[container]]


def test_the_area_under_each_curve_is_its_ap50(coco100):
    images, boxes, detections, classes = coco100.tables
    some = classes.head(8)
    boxes, detections = (t[t["class_name"].isin(some["class_name"])] for t in (boxes, detections))
    scores = coco.score(images, boxes, detections, some, dataset="test")
    expected = scores[scores["metric"] == "AP50"].set_index("class_name")["value"].dropna()
    figure = plots.precision_recall(images, boxes, detections, some)
    axes = figure.axes[0]
    curves = lines(axes)
    assert len(curves) == len(expected)
    for name, value in expected.items():
        label = f"{name or 'mean'} (AP50 {value:.1f})"
        assert np.mean(curves[label].get_ydata()) == pytest.approx(value)
    assert axes.get_xlim() == (0, 100) and axes.get_ylim()[0] == 0
    assert drawn(figure)


def test_at_another_overlap_the_area_is_its_ap(coco100):
    figure = plots.precision_recall(*coco100.tables, iou=0.75)
    [legend] = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert legend == f"mean (AP75 {100 * coco100.published['AP75']:.1f})"


def test_many_classes_have_one_grey_and_the_mean(coco100):
    figure = plots.precision_recall(*coco100.tables)
    [legend] = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert legend == "mean (AP50 69.7)"
    classes = coco100.tables.boxes["class_name"].nunique()
    assert len(figure.axes[0].get_lines()) == classes + 1
    assert drawn(figure)


def test_without_truth_the_figure_says_so(make):
    nothing = (make.images(["1"]), make.boxes(), make.detections(), make.classes("a"))
    figure = plots.precision_recall(*nothing)
    assert texts(figure.axes[0]) == ["no ground truth"] and drawn(figure)


@pytest.fixture
def three(make):
    """Two cats; right at 0.9, wrong at 0.6, right at 0.3."""
    return make.tables(
        make.images(["1"]),
        make.boxes(("1", "cat", 0, 0, 10, 10), ("1", "cat", 20, 0, 30, 10)),
        make.detections(
            ("1", "cat", 0, 0, 10, 10, 0.9), ("1", "cat", 60, 0, 70, 10, 0.6),
            ("1", "cat", 20, 0, 30, 10, 0.3),
        ),
        make.classes("cat"),
    )  # fmt: skip


def score_curves(tables):
    options = {"iou": 0.5, "max_detections": 100}
    steps = curves(*tables, **options)
    return plots.score_curves(steps, best_thresholds(*tables, dataset="test", **options), iou=0.5)


def at(line, score):
    """What a line of steps shows at a score: the value of the least score that is not below."""
    x, y = line.get_xdata(), line.get_ydata()
    return y[np.flatnonzero(x >= score)[-1]]


def test_curves_over_the_score_by_hand(three):
    left, right = score_curves(three).axes
    found = lines(left)
    for score, precision, recall, f1 in (
        (20, 200 / 3, 100, 80), (30, 200 / 3, 100, 80), (50, 50, 50, 50), (80, 100, 50, 200 / 3),
    ):  # fmt: skip
        values = [at(found[name], score) for name in ("precision", "recall", "F1")]
        assert values == pytest.approx([precision, recall, f1])
    assert {line.get_drawstyle() for line in found.values()} >= {"steps-post"}
    assert left.get_xlim() == (0, 100) and left.get_ylim() == (0, 101)
    assert texts(left) == [" best F1 80.0 at 0.30 "]
    dots = [line.get_xydata().tolist() for line in right.get_lines() if line.get_marker() == "o"]
    assert dots == [[[30, pytest.approx(80)]]]
    assert drawn(left.figure)


def test_a_curve_over_the_score_of_nothing_says_so(three):
    images, boxes, detections, classes = three
    for tables, words in (
        ((images, boxes, detections.iloc[:0], classes), "no detections"),
        ((images, boxes.iloc[:0], detections, classes), "no ground truth"),
        ((images.iloc[:0], boxes.iloc[:0], detections.iloc[:0], classes.iloc[:0]), "no detections"),
    ):
        figure = score_curves(tables)
        assert texts(figure.axes[0]) == texts(figure.axes[1]) == [words] and drawn(figure)


def matrix(names, counts):
    return pd.DataFrame(counts, index=names, columns=names)


def test_confusion_shades_are_shares_of_the_row():
    figure = plots.confusion(
        matrix(["a", "background"], [[3, 1], [0, 0]]), iou=0.5, score_threshold=0.25
    )
    axes = figure.axes[0]
    assert axes.images[0].get_array().tolist() == [[75, 25], [0, 0]]
    assert axes.images[0].get_clim() == (0, 100)
    assert texts(axes) == ["3", "1"]
    assert axes.get_title() == "4 objects, 3 detections\nIoU 0.5, score 0.25 and above"
    assert drawn(figure)


@pytest.mark.parametrize("size, named", [(30, True), (200, False)])
def test_a_large_confusion_is_not_filled_with_text(size, named):
    names = [f"class {i}" for i in range(size)]
    figure = plots.confusion(matrix(names, np.eye(size, dtype=int)), iou=0.5, score_threshold=0.5)
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert texts(figure.axes[0]) == [] and (labels == names) == named


def test_error_bars_are_as_long_as_the_numbers_and_begin_at_0():
    names = ["localisation", "missed", "false_positive"]
    table = pd.DataFrame({"error": names, "count": [3, 1, 12], "AP_gain": [1.25, np.nan, 40.0]})
    figure = plots.errors(table, iou=0.5)
    left, right = figure.axes
    assert widths(left) == [1.25, 0, 40] and widths(right) == [3, 1, 12]
    assert texts(left) == ["1.2", "–", "40.0"] and texts(right) == ["3", "1", "12"]
    assert left.get_xlim()[0] == right.get_xlim()[0] == 0
    assert left.get_xlabel() == "points of AP50 won without them"
    assert drawn(figure)


@pytest.fixture
def bins():
    """Of three faint detections none is right, of one sure one that one."""
    rows = [("", 0.0, 0.5, 3, 30.0, 0.0), ("", 0.5, 1.0, 1, 90.0, 100.0)]
    columns = ["class_name", "lower", "upper", "detections", "confidence", "precision"]
    return pd.DataFrame(rows, columns=columns)


def test_calibration_bars_are_the_precision_of_their_bin(bins):
    figure = plots.reliability(bins)
    upper, lower = figure.axes
    bars = [(bar.get_x(), bar.get_width(), bar.get_height()) for bar in upper.containers[0]]
    assert bars == [(0, 50, 0), (50, 50, 100)]
    assert [bar.get_height() for bar in lower.containers[0]] == [3, 1]
    assert upper.get_xlim() == (0, 100) and upper.get_ylim() == (0, 101)
    assert lower.get_ylim()[0] == 0 and texts(lower) == ["3", "1"]
    assert drawn(figure)


def test_ece_by_hand(bins):
    assert plots.ece(bins) == pytest.approx((3 * 30 + 10) / 4)
    assert plots.reliability(bins).axes[0].get_title() == "Calibration: ECE 25.0 points"
    empty = bins.assign(detections=0, confidence=np.nan, precision=np.nan)
    assert np.isnan(plots.ece(empty)) and texts(plots.reliability(empty).axes[0]) == [
        "no detections"
    ]


def test_the_ece_of_real_data_is_the_metric(coco100):
    table = calibration.calibration(
        *coco100.tables, dataset="test", bins=10, iou=0.5, max_detections=100
    )
    scores = calibration.score(*coco100.tables, dataset="test").set_index(["metric", "class_name"])
    for name in ("", "person"):
        own = table[table["class_name"] == name]
        assert plots.ece(own) == pytest.approx(scores.loc[("ECE", name), "value"])


def test_slices_have_bars_from_0_to_100(coco100):
    table = slices(*coco100.tables, dataset="test")
    figure = plots.slices(table)
    axes = figure.axes[0]
    assert axes.get_xlim() == (0, 100)
    assert widths(axes, 1) == table["AP"].fillna(0).tolist()
    names = [label.get_text() for label in axes.get_yticklabels()]
    small = int(table["objects"].iloc[0])
    assert names[0] == f"size: small  ({small} objects)" and len(names) == len(table)
    assert drawn(figure)


def test_names_that_matplotlib_would_read_are_drawn_as_they_are(make):
    names = ["$a$_{", "_hidden", "100%", "Ünï"]
    boxes = make.boxes(*(("1", n, 20 * i, 0, 20 * i + 9, 9) for i, n in enumerate(names)))
    tables = (make.images(["1"]), boxes, boxes.assign(score=0.5), make.classes(*names))
    figure = plots.precision_recall(*tables)
    assert len(figure.axes[0].get_legend().get_texts()) == len(names) + 1
    over_score = score_curves(tables)
    assert len(over_score.axes[1].get_legend().get_texts()) == len(names)
    table = plots.confusion(matrix(names, np.eye(4, dtype=int)), iou=0.5, score_threshold=0.5)
    assert drawn(figure) and drawn(over_score) and drawn(table)


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


def test_losses_below_0_are_not_cut_off():
    history = pd.DataFrame({"step": [1, 2], "train/loss": [1.0, -3.0]})
    assert plots.loss_curves(history).axes[0].get_ylim()[0] < -3
