"""One pass of inference over a data set: a detector and a stream in, a detections table out.

For a pass shared by several processes see :mod:`detpipe.evaluate.processes`.
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import nn

from detpipe.core.errors import DataError
from detpipe.core.tables import BOX_COLUMNS, DETECTIONS
from detpipe.core.types import Batch, Detections, Detector, Target

logger = logging.getLogger(__name__)

_PROGRESS_SECONDS = 10.0


_PARTS = ("data", "model", "post")


class Prediction(NamedTuple):
    """What :func:`predict` found, and what it cost.

    Attributes:
        detections: a detections table.
        timing: ``part`` (``data``: waiting for the stream; ``model``: from the images to boxes on
            the device, their way there included; ``post``: scaling, sorting, table),
            ``ms_per_image`` (milliseconds of wall time, divided by the images of a batch) and
            ``images`` (how many were timed). No rows without images.
        image_ids: the images that the stream gave, in its order, also those without detections.
    """

    detections: pd.DataFrame
    timing: pd.DataFrame
    image_ids: tuple[str, ...]


def predict(
    model: Detector,
    stream: Iterable[Batch],
    *,
    class_names: Sequence[str],
    device: torch.device | str,
    score_threshold: float = 0.0,
    max_detections: int = 100,
    warmup: int = 2,
) -> Prediction:
    """Runs the detector over every batch of the stream, once.

    The model is moved to ``device`` and put into eval mode; afterwards each of its modules is in
    the mode it was in before. No gradient is recorded and the global random state stays as it is.
    Boxes are scaled from the image in the batch to the upright image on disk
    (``target.original_size``) and clipped to it; those with no area left are dropped, and so are
    NaN and infinite ones, with a warning.

    Args:
        model: the detector.
        stream: batches; each image once.
        class_names: names of the labels 1..C.
        device: where to run; ``auto`` is a GPU if there is one.
        score_threshold: detections below it are dropped.
        max_detections: how many of an image's best detections are kept.
        warmup: first batches that the timing leaves out; where there are no more than these, it
            is of all of them, and the log says so.

    Returns:
        Detections in the order of the stream, best first within an image, and the timing.

    Raises:
        DataError: an image comes twice, or the detector returns labels outside 1..C or another
            number of results than images.
    """
    where = device_of(device)
    collected = _Collected(tuple(class_names), score_threshold, max_detections)
    laps: list[_Lap] = []
    total, told = _images_of(stream), perf_counter()
    with evaluating(model, where), global_rng_kept(where), torch.inference_mode():
        before = perf_counter()
        for batch in stream:
            arrived = perf_counter()
            found = model.detect(batch.to(where).images)
            if where.type == "cuda":
                torch.cuda.synchronize(where)
            detected = perf_counter()
            collected.add(batch, found)
            after = perf_counter()
            laps.append(_Lap(len(batch), arrived - before, detected - arrived, after - detected))
            before = after
            if after - told > _PROGRESS_SECONDS:
                told = after
                logger.info(
                    "detect: %d%s images", len(collected.seen), f" of {total}" if total else ""
                )
    start = perf_counter()
    table = collected.table()
    timing = _timing(laps, warmup=warmup, table=perf_counter() - start)
    _log(len(collected.seen), len(table), timing, batches=len(laps), warmup=warmup)
    return Prediction(table, timing, tuple(collected.seen))


class _Lap(NamedTuple):
    """One batch: its images and the seconds of each part."""

    images: int
    data: float
    model: float
    post: float


def no_timing() -> pd.DataFrame:
    """The timing of no images: the frame of :class:`Prediction` without rows."""
    return timing_frame([], 0)


def _timing(laps: Sequence[_Lap], *, warmup: int, table: float) -> pd.DataFrame:
    """The frame of :class:`Prediction`; ``table`` is seconds spent once for all images."""
    counted = np.array(laps[warmup:] or laps, dtype=float).reshape(-1, len(_Lap._fields))
    images, *seconds = counted.sum(axis=0).tolist()
    if not images:
        return no_timing()
    seconds[-1] += table * images / sum(lap.images for lap in laps)
    return timing_frame([1000 * each / images for each in seconds], int(images))


def timing_frame(ms_per_image: Sequence[float], images: int) -> pd.DataFrame:
    """The frame of :class:`Prediction`; no rows without numbers."""
    parts = _PARTS[: len(ms_per_image)]
    frame = pd.DataFrame({"part": parts, "ms_per_image": ms_per_image, "images": images})
    return frame.astype({"part": "str", "ms_per_image": "float64", "images": "int64"})


def _log(images: int, detections: int, timing: pd.DataFrame, *, batches: int, warmup: int) -> None:
    if timing.empty:
        logger.info("detect: no images")
        return
    costs = ", ".join(
        f"{part} {ms:.1f}" for part, ms in zip(timing["part"], timing["ms_per_image"], strict=True)
    )
    per_second = 1000 / max(timing["ms_per_image"].sum(), 1e-9)
    left_out = f", without the first {warmup} batch(es)" if warmup else ""
    if warmup and batches <= warmup:
        left_out = f", warm-up included: there are only {batches} batch(es)"
    logger.info(
        "detect: %d images, %d detections; ms an image: %s (%.1f images a second%s)",
        images, detections, costs, per_second, left_out,
    )  # fmt: skip


@dataclass
class _Collected:
    """Detections so far, as arrays; one table is made at the end."""

    class_names: tuple[str, ...]
    score_threshold: float
    max_detections: int
    seen: dict[str, int] = field(default_factory=dict)
    """image_id → number of its detections, in the order of the stream."""
    boxes: list[np.ndarray] = field(default_factory=list)
    scores: list[np.ndarray] = field(default_factory=list)
    labels: list[np.ndarray] = field(default_factory=list)
    not_finite: int = 0

    def add(self, batch: Batch, found: Sequence[Detections]) -> None:
        if len(found) != len(batch):
            raise DataError(
                f"the detector returned {len(found)} results for {len(batch)} images; detect() "
                "must return one Detections per image, empty ones too"
            )
        for image, target, result in zip(batch.images, batch.targets, found, strict=True):
            if target.image_id in self.seen:
                raise DataError(
                    f"image '{target.image_id}' came twice: the stream of an evaluation must give "
                    "every image exactly once (no padding, no repeating sampler)"
                )
            self._add(tuple(image.shape[-2:]), target, result)

    def _add(self, size: tuple[int, ...], target: Target, result: Detections) -> None:
        boxes = result.boxes.detach().cpu().numpy().astype(np.float64).reshape(-1, 4)
        scores = result.scores.detach().cpu().float().numpy().astype(np.float64)
        labels = result.labels.detach().cpu().numpy()
        outside = (labels < 1) | (labels > len(self.class_names))
        if outside.any():
            raise DataError(
                f"the detector gave image '{target.image_id}' the label {labels[outside][0]}, but "
                f"there are {len(self.class_names)} classes (labels 1..{len(self.class_names)}); "
                "were its weights trained on other classes?"
            )
        finite = np.isfinite(boxes).all(axis=1) & np.isfinite(scores)
        self.not_finite += int((~finite).sum())
        height, width = target.original_size
        boxes *= np.array([width / size[1], height / size[0]] * 2)
        boxes = boxes.clip(0, [width, height, width, height])
        keep = finite & (scores >= self.score_threshold) & (boxes[:, 2:] > boxes[:, :2]).all(axis=1)
        best = np.flatnonzero(keep)
        best = best[np.argsort(-scores[best], kind="stable")][: self.max_detections]
        self.seen[target.image_id] = len(best)
        self.boxes.append(boxes[best])
        self.scores.append(scores[best])
        self.labels.append(labels[best])

    def table(self) -> pd.DataFrame:
        if self.not_finite:
            logger.warning(
                "detect: %d detections were NaN or infinite and are left out; the weights are "
                "probably damaged or the training diverged", self.not_finite,
            )  # fmt: skip
        if not self.seen:
            logger.warning("detect: the stream gave no images")
            return DETECTIONS.empty()
        names = np.array(["", *self.class_names], dtype=object)
        ids = np.array(list(self.seen), dtype=object)
        frame = pd.DataFrame(np.concatenate(self.boxes), columns=BOX_COLUMNS)
        frame["image_id"] = np.repeat(ids, list(self.seen.values()))
        frame["class_name"] = names[np.concatenate(self.labels)]
        frame["score"] = np.concatenate(self.scores)
        return DETECTIONS.make(frame)


def device_of(device: torch.device | str) -> torch.device:
    """The device; ``auto`` is a GPU if there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(device)


def _images_of(stream: Iterable[Batch]) -> int | None:
    """How many images the stream has, if it says so (a DataLoader does)."""
    dataset = getattr(stream, "dataset", None)
    return len(dataset) if isinstance(dataset, Sized) else None


@contextlib.contextmanager
def evaluating(model: Detector, device: torch.device) -> Iterator[None]:
    """Eval mode on the device inside; each module's own mode again outside, whatever happens."""
    if not isinstance(model, nn.Module):  # a detector may be built around something else
        yield
        return
    modes = [(module, module.training) for module in model.modules()]
    model.to(device)
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextlib.contextmanager
def global_rng_kept(device: torch.device) -> Iterator[None]:
    """Random states of Python, numpy and torch as before (starting a DataLoader draws a seed)."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
