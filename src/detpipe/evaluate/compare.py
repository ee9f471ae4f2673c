"""Models side by side on the same images: what differs, and whether more than by chance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from detpipe.evaluate.bootstrap import Samples, interval, mean_over_classes, resample
from detpipe.evaluate.coco import TASK, evaluator
from detpipe.evaluate.common import check_known

if TYPE_CHECKING:
    from numpy.typing import NDArray

COLUMNS = (
    "run", "task", "metric", "class_name", "value", "baseline", "difference", "low", "high",
    "differs",
)  # fmt: skip

_Row = tuple[str, str, str, str, float, float, float, float, float, bool]


def compare(
    images: pd.DataFrame,
    boxes: pd.DataFrame,
    classes: pd.DataFrame,
    runs: Mapping[str, pd.DataFrame],
    *,
    max_detections: int = 100,
    samples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """Compares runs with the first of them, by a paired bootstrap.

    All are scored on the same samples of images, so that what makes a sample easy or hard for all
    of them is no difference. The intervals are :func:`detpipe.evaluate.bootstrap.interval`'s. Of
    many of them some leave out 0 by chance: at a confidence of 0.95 one in twenty.

    Args:
        images: the images table of one data set.
        boxes: the truth in them.
        classes: the classes table.
        runs: name → the detections table; the first is the baseline.
        max_detections: best detections that count, per image and class.
        samples: how many samples.
        confidence: how often an interval should hold the true difference, 0..1.
        seed: of the draws; no other random numbers are touched.

    Returns:
        run, task, metric, class_name ('' = all), value, baseline, difference, low, high, differs.
        AP, AP50, AP75, AR<limit> over all classes and the AP of each class; percent, and points of
        it for ``difference`` and its interval. ``differs``: the interval leaves out 0. The rows of
        the baseline have difference 0 and no interval (NaN); nothing has one with fewer than two
        images or without truth.

    Raises:
        DataError: tables name images or classes that are not there.
    """
    tables = {f"detections of '{name}'": found for name, found in runs.items()}
    check_known(images, classes, boxes=boxes, **tables)
    scored = resample(
        images, boxes, list(runs.values()), classes,
        max_detections=max_detections, samples=samples, seed=seed,
    )  # fmt: skip
    names = classes["class_name"].tolist()
    rows = [
        row
        for run, own in zip(runs, scored, strict=True)
        for row in _rows(run, own, scored[0], names, confidence)
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _rows(
    run: str, own: Samples, baseline: Samples, names: list[str], confidence: float
) -> Iterator[_Row]:
    """The rows of one run: of each metric, and of each class."""
    for metric in own:
        pair = mean_over_classes(own[metric]), mean_over_classes(baseline[metric])
        yield _row(run, metric, "", *pair, own is baseline, confidence)
    for k, name in enumerate(names):
        pair = own["AP"][k], baseline["AP"][k]
        yield _row(run, "AP", name, *pair, own is baseline, confidence)


def _row(
    run: str,
    metric: str,
    class_name: str,
    own: NDArray[np.float64],
    baseline: NDArray[np.float64],
    same: bool,
    confidence: float,
) -> _Row:
    """One row from ``[1 + S]`` values of a run and of the baseline."""
    differences = own - baseline
    low = high = float("nan")
    if not same:
        low, high = interval(differences[0], differences[1:], confidence=confidence)
    return (
        run, TASK, metric, class_name, float(own[0]), float(baseline[0]), float(differences[0]),
        low, high, low > 0 or high < 0,
    )  # fmt: skip


def precision_recall(
    images: pd.DataFrame,
    boxes: pd.DataFrame,
    classes: pd.DataFrame,
    runs: Mapping[str, pd.DataFrame],
    *,
    max_detections: int = 100,
) -> pd.DataFrame:
    """Precision of each run over recall at IoU 0.5: the mean of COCO's curves of the classes.

    Args:
        images: the images table of one data set.
        boxes: the truth in them.
        classes: the classes table.
        runs: name → the detections table.
        max_detections: best detections that count, per image and class.

    Returns:
        One column a run, its mean being AP50; percent. Indexed by recall: 0, 1, …, 100 percent.
        No rows without truth.
    """
    if boxes["iscrowd"].all():
        return pd.DataFrame(columns=list(runs), dtype="float64")
    columns = {}
    for run, found in runs.items():
        engine = evaluator(images, boxes, found, classes, limits=[max_detections])
        engine.params.iou_thrs = [0.5]
        engine.evaluate()
        engine.accumulate()
        assert engine.eval is not None  # noqa: S101 - accumulate() has just filled it
        precision = engine.eval["precision"][0, :, :, 0, -1]
        columns[run] = 100 * precision[:, (precision >= 0).all(axis=0)].mean(axis=1)
    return pd.DataFrame(columns, index=pd.Index(range(101), name="recall"))
