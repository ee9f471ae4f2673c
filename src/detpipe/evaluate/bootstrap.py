"""How sure a number is: bootstrap over the images of a data set.

As many images as there are get drawn, with replacement, and each such sample is scored anew. One
that was drawn three times counts three times: detections are matched once, and a sample is a weight
for each image. An interval is Efron's bias-corrected percentile one (B. Efron, R. Tibshirani, An
Introduction to the Bootstrap, 1993, chapters 13 and 14). AP of few objects is too high on average,
because the best precision to the right is taken at each recall; a sample holds fewer different
objects, so it is higher still, and plain percentiles lie too high.

``hotcoco.compare`` also draws images, but counts each drawn one once: what remains is 63% of the
images without repetition, and its intervals are too narrow by a fifth.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from detpipe.core.tables import positions
from detpipe.evaluate.coco import TASK
from detpipe.evaluate.common import image_order
from detpipe.evaluate.matches import matches

if TYPE_CHECKING:
    from numpy.typing import NDArray

_IOUS = np.linspace(0.5, 0.95, 10)
_RECALLS = np.linspace(0, 1, 101)
_AT_ONCE = 2**20
"""Numbers of one array, about: samples are taken in groups."""

Samples = Mapping[str, "NDArray[np.float64]"]
"""Name of a metric → ``[C, 1 + S]`` its percent for each class, first of the data set itself, then
of each sample; NaN where there is no truth of the class."""


class _Class(NamedTuple):
    """One class: its N detections, best first, and its truth."""

    image: NDArray[np.intp]
    """``[N]`` places of their images."""
    right: list[NDArray[np.intp]]
    """For each IoU which of them are right, ascending."""
    ignored: list[NDArray[np.intp]]
    """For each IoU which of them do not count, ascending."""
    truth: NDArray[np.intp]
    """``[M]`` places of the images of its objects, crowd regions left out."""


def intervals(
    images: pd.DataFrame,
    boxes: pd.DataFrame,
    detections: pd.DataFrame,
    classes: pd.DataFrame,
    *,
    dataset: str,
    max_detections: int = 100,
    samples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """Confidence intervals of COCO's AP, AP50, AP75 and AR<limit>, all classes.

    They say how far a number may be from that of very many images of this kind; not how it varies
    from training to training. Images are drawn one by one: where they belong together, as the
    frames of a video do, the intervals are too narrow; with few images and numbers near 0 or 100
    too.

    Args:
        images: the images table.
        boxes: the truth.
        detections: what was found.
        classes: the classes table.
        dataset: the name for the rows.
        max_detections: best detections that count, per image and class.
        samples: how many; 0 gives no intervals.
        confidence: how often an interval should hold the true number, 0..1.
        seed: of the draws; no other random numbers are touched.

    Returns:
        dataset, task, metric, value, low, high, samples: a row a metric, in percent. ``low`` and
        ``high`` are NaN with fewer than two images, without truth or without samples.
    """
    (scored,) = resample(
        images, boxes, [detections], classes,
        max_detections=max_detections, samples=samples, seed=seed,
    )  # fmt: skip
    rows = []
    for metric, by_class in scored.items():
        value, *sampled = mean_over_classes(by_class)
        low, high = interval(value, np.array(sampled), confidence=confidence)
        rows.append((dataset, TASK, metric, value, low, high, samples))
    columns = ["dataset", "task", "metric", "value", "low", "high", "samples"]
    return pd.DataFrame(rows, columns=columns)


def resample(
    images: pd.DataFrame,
    boxes: pd.DataFrame,
    detections: Sequence[pd.DataFrame],
    classes: pd.DataFrame,
    *,
    max_detections: int,
    samples: int,
    seed: int,
) -> list[Samples]:
    """Scores tables of detections on the same samples of images: AP, AP50, AP75, AR<limit>.

    Args:
        images: the images table.
        boxes: the truth.
        detections: what each model found.
        classes: the classes table.
        max_detections: best detections that count, per image and class.
        samples: how many; from fewer than two images none are drawn.
        seed: of the draws.

    Returns:
        The samples of each model.
    """
    order = pd.Series(image_order(images), dtype="str")
    models = [_prepare(order, images, boxes, found, classes, max_detections)
              for found in detections]  # fmt: skip
    parts: list[list[NDArray[np.float64]]] = [[] for _ in models]
    largest = max((len(one.image) for model in models for one in model), default=0)
    at_once = max(_AT_ONCE // max(largest, len(order), 1), 1)
    for weights in _draws(len(order), samples if len(order) > 1 else 0, seed, at_once):
        for part, model in zip(parts, models, strict=True):
            part.append(_score(model, weights))
    names = ["AP", "AP50", "AP75", f"AR{max_detections}"]
    return [dict(zip(names, np.concatenate(part, axis=2), strict=True)) for part in parts]


def mean_over_classes(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """``[S]`` means of ``[C, S]`` without NaN, as COCO's; NaN where there is nothing else."""
    there = ~np.isnan(values)
    count = there.sum(axis=0)
    total = np.where(there, values, 0).sum(axis=0)
    means: NDArray[np.float64] = np.full(len(count), np.nan)
    np.divide(total, count, out=means, where=count > 0)
    return means


def interval(
    value: float, samples: NDArray[np.float64], *, confidence: float
) -> tuple[float, float]:
    """The bias-corrected percentile interval: low, high.

    Args:
        value: the number of the data set itself.
        samples: ``[S]`` that of each sample; those without a number (NaN) are left out.
        confidence: how often the interval should hold the true number, 0..1.

    Returns:
        (NaN, NaN) if there is no value or no sample with one.
    """
    samples = samples[~np.isnan(samples)]
    if not samples.size or np.isnan(value):
        return float("nan"), float("nan")
    normal = NormalDist()
    below = np.count_nonzero(samples < value) + np.count_nonzero(samples == value) / 2
    bias = normal.inv_cdf((below + 0.5) / (len(samples) + 1))  # never of 0 or 1
    tail = normal.inv_cdf((1 - confidence) / 2)
    low, high = np.quantile(
        samples, [normal.cdf(2 * bias + tail), normal.cdf(2 * bias - tail)]
    ).tolist()
    return low, high


def _draws(images: int, samples: int, seed: int, at_once: int) -> Iterator[NDArray[np.int32]]:
    """``[I, ...]`` how often each image counts: all once, then in groups how often it is drawn."""
    yield np.ones((images, 1), dtype=np.int32)
    generator = np.random.default_rng(seed)
    for first in range(0, samples, at_once):
        group = range(first, min(first + at_once, samples))
        drawn = [np.bincount(generator.integers(0, images, images), minlength=images)
                 for _ in group]  # fmt: skip
        yield np.ascontiguousarray(np.array(drawn, dtype=np.int32).T)


def _prepare(
    order: pd.Series,
    images: pd.DataFrame,
    boxes: pd.DataFrame,
    detections: pd.DataFrame,
    classes: pd.DataFrame,
    max_detections: int,
) -> list[_Class]:
    """The detections of each class in COCO's order, matched at every IoU."""
    names = classes["class_name"]
    image = positions(detections["image_id"], order).astype(np.intp)
    label = positions(detections["class_name"], names).astype(np.intp)
    pair = image * len(names) + label
    score = detections["score"].to_numpy(dtype=np.float64)
    rank = pd.Series(score).groupby(pair).rank(method="first", ascending=False)
    counted = (rank <= max_detections).to_numpy()
    # Only where an image holds truth of the class is there something to match: often a tenth.
    truth = positions(boxes["image_id"], order).astype(np.intp)
    truth_label = positions(boxes["class_name"], names).astype(np.intp)
    rows = np.flatnonzero(counted & np.isin(pair, truth * len(names) + truth_label))
    right, ignored = (np.zeros((len(_IOUS), len(detections)), dtype=bool) for _ in range(2))
    if rows.size:
        near = detections.iloc[rows]
        for t, iou in enumerate(_IOUS):
            found = matches(
                images, boxes, near, classes, iou=float(iou), max_detections=max_detections
            )
            right[t, rows[found.row]], ignored[t, rows[found.row]] = found.right, found.ignored
    real = ~boxes["iscrowd"].to_numpy()
    # pycocotools: class by class; best first; equal scores by image, in an image by row.
    place = np.lexsort((image, -score, label))
    place = place[counted[place]]
    ends = np.searchsorted(label[place], np.arange(len(names) + 1))
    return [
        _Class(
            image[own],
            [np.flatnonzero(row) for row in right[:, own]],
            [np.flatnonzero(row) for row in ignored[:, own]],
            truth[real & (truth_label == k)],
        )
        for k in range(len(names))
        for own in (place[ends[k] : ends[k + 1]],)
    ]


def _score(model: list[_Class], weights: NDArray[np.int32]) -> NDArray[np.float64]:
    """``[4, C, S]`` AP, AP50, AP75, AR in percent of the samples ``weights`` ``[I, S]``."""
    result = np.full((4, len(model), weights.shape[1]), np.nan)
    for k, one in enumerate(model):
        objects = weights[one.truth].sum(axis=0)
        precision, recall = _averages(one, weights, np.maximum(objects, 1))
        result[0, k], result[3, k] = precision.mean(axis=0), recall.mean(axis=0)
        result[1, k], result[2, k] = precision[0], precision[5]
        result[:, k, objects == 0] = np.nan
    return 100 * result


def _averages(
    one: _Class, weights: NDArray[np.int32], objects: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Average precision and recall ``[T, S]`` of a class; 0..1.

    Precision is largest at right detections, so the 101 recalls are looked up among these only.
    """
    precisions, recalls = np.zeros((2, len(_IOUS), weights.shape[1]))
    own = weights[one.image]
    seen = np.cumsum(own, axis=0, dtype=np.int32)
    for t, (right, ignored) in enumerate(zip(one.right, one.ignored, strict=True)):
        if not right.size:
            continue
        true = np.cumsum(own[right], axis=0, dtype=np.int32)
        counted = seen[right]
        if ignored.size:
            before = np.searchsorted(ignored, right)
            left_out = np.cumsum(own[ignored], axis=0, dtype=np.int32)
            counted[before > 0] -= left_out[before[before > 0] - 1]
        precision = true / np.maximum(counted, 1)
        best_after = np.maximum.accumulate(precision[::-1], axis=0)[::-1]
        recall = true / objects
        reached = np.searchsorted(_RECALLS, recall, side="right")
        steps = np.diff(reached, axis=0, prepend=0)
        precisions[t] = np.einsum("ns,ns->s", best_after, steps) / len(_RECALLS)
        recalls[t] = recall[-1]
    return precisions, recalls
