"""Batches of images and targets, for training and for evaluation.

Training batches are addressed by position: what comes at image 1,600 of a run depends on the
seed and on 1,600, not on how the run got there nor on how many processes read.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import multiprocessing
import random
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from detpipe.core.errors import DataError, DetpipeError
from detpipe.core.types import Batch, Target
from detpipe.data.augment import Transform
from detpipe.data.config import Resize
from detpipe.data.geometry import resized, scaled, to_image
from detpipe.data.image import load_sized
from detpipe.data.sampler import Sampler, sequential
from detpipe.data.store import Store
from detpipe.data.transport import FlatBatch


class TrainStream:
    """Training batches without end.

    Args:
        store: the training images.
        batch_size: images of one batch.
        sampler: which image comes at which position.
        resize: the size at which images reach the model; None keeps theirs.
        augment: transforms, applied in this order after the resize.
        seed: of the transforms' randomness.
        workers: processes that read; 0 reads in this one. The batches are the same.
        pin_memory: put images into page-locked memory (needs a CUDA device).

    Raises:
        DataError: the store is empty, or smaller than one batch.
    """

    def __init__(
        self,
        store: Store,
        *,
        batch_size: int,
        sampler: Sampler,
        resize: Resize | None = None,
        augment: Sequence[Transform] = (),
        seed: int = 0,
        workers: int = 0,
        pin_memory: bool = False,
    ) -> None:
        if len(store) == 0:
            raise DataError(
                "there is no image to train on: the train split is empty; look at the data "
                "summary and at data.split"
            )
        if batch_size > len(store):
            raise DataError(
                f"train.batch_size is {batch_size}, but there are only {len(store)} training "
                f"image(s); set it to {len(store)} or less"
            )
        self._batches = _Batches(
            reader=_Reader(store=store, resize=resize, augment=tuple(augment), seed=seed),
            sampler=sampler,
            batch_size=batch_size,
        )
        self._workers, self._pin_memory = workers, pin_memory

    @property
    def images_per_epoch(self) -> int:
        """Images in one pass over the store."""
        return len(self._batches.reader.store)

    def batches(self, start: int) -> Iterator[Batch]:
        """Batches of the positions ``start``, ``start + 1``, … without end, across epochs.

        Closing the iterator ends the worker processes.

        Raises:
            DataError: an image cannot be read, or is not of the size its table says.
            DetpipeError: a worker process died.
        """
        positions = itertools.count(start, self._batches.batch_size)
        return _load(self._batches, positions, self._workers, self._pin_memory)


class EvalStream:
    """Every image of the store once, in order; the last batch may be short.

    Args:
        store: the images.
        batch_size: images of one batch.
        resize: the size at which images reach the model; None keeps theirs.
        workers: processes that read; 0 reads in this one.
        pin_memory: put images into page-locked memory (needs a CUDA device).

    Raises:
        DataError: the store is empty.
    """

    def __init__(
        self,
        store: Store,
        *,
        batch_size: int,
        resize: Resize | None = None,
        workers: int = 0,
        pin_memory: bool = False,
    ) -> None:
        if len(store) == 0:
            raise DataError("there is no image to evaluate on: this split is empty")
        self._batches = _Batches(
            reader=_Reader(store=store, resize=resize),
            sampler=sequential(length=len(store)),
            batch_size=batch_size,
            end=len(store),
        )
        self._workers, self._pin_memory = workers, pin_memory

    def __len__(self) -> int:
        """Batches in one pass."""
        return math.ceil(len(self._batches.reader.store) / self._batches.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        """One pass; see :meth:`TrainStream.batches` for errors."""
        positions = range(0, len(self._batches.reader.store), self._batches.batch_size)
        return _load(self._batches, positions, self._workers, self._pin_memory)


@dataclass(frozen=True, kw_only=True)
class _Reader:
    """Reads one image and its target."""

    store: Store
    resize: Resize | None = None
    augment: tuple[Transform, ...] = ()
    seed: int = 0

    def read(self, index: int, position: int) -> tuple[Tensor, Target]:
        """Image ``index`` as it appears at ``position`` of the run."""
        path, target = self.store.path(index), self.store.target(index)
        rule = self.resize.target_size if self.resize else None
        pixels, original = load_sized(path, size=rule)
        if original != target.original_size and any(target.original_size):
            raise DataError(
                f"{path}: the picture is {original[1]} × {original[0]} pixels (width × height), "
                f"but its table says {target.original_size[1]} × {target.original_size[0]}: its "
                f"boxes may not fit. Run the data pipeline again"
            )
        height, width = pixels.shape[:2]
        target = scaled(
            replace(target, original_size=original), height / original[0], width / original[1]
        )
        image = to_image(pixels)
        if self.augment:
            with _own_randomness(self.seed, position):
                for transform in self.augment:
                    image, target = transform(image, target)
            if rule and not any(getattr(t, "sets_size", False) for t in self.augment):
                image, target = resized(image, target, self._final_size(image, height, width))
        return image, target

    def _final_size(self, image: Tensor, height: int, width: int) -> tuple[int, int]:
        """The size after transforms: some crop or enlarge the image."""
        now = (image.shape[-2], image.shape[-1])
        if now == (height, width) or self.resize is None:
            return now
        return self.resize.target_size(*now)


@contextlib.contextmanager
def _own_randomness(seed: int, position: int) -> Iterator[None]:
    """Seeds the global generators from (seed, position); afterwards they are as before."""
    torch_seed, numpy_seed, python_seed = np.random.SeedSequence([seed, position]).generate_state(3)
    python_state, numpy_state = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed: that would seed the accelerators' generators as well.
        torch.default_generator.manual_seed(int(torch_seed))
        random.seed(int(python_seed))
        np.random.seed(int(numpy_seed))
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)


@dataclass(frozen=True, kw_only=True)
class _Batches(Dataset[Any]):
    """A DataLoader's data set whose items are whole batches, by the position of their first image.

    Workers hand over a batch as a few flat arrays: a shared-memory segment for each tensor of
    each image would cost more than decoding them.
    """

    reader: _Reader
    sampler: Sampler
    batch_size: int
    end: int | None = None

    def __getitem__(self, start: int) -> FlatBatch | DataError:
        stop = (
            start + self.batch_size if self.end is None else min(start + self.batch_size, self.end)
        )
        images, targets, paths = [], [], []
        for position in range(start, stop):
            index = self.sampler.index(position)
            path = str(self.reader.store.path(index))
            try:
                image, target = self.reader.read(index, position)
            except DataError as error:
                return error  # raised in the main process, without a worker's traceback
            except Exception as error:
                error.add_note(f"while reading {path} (position {position} of the run)")
                raise
            images.append(image)
            targets.append(target)
            paths.append(path)
        return FlatBatch.of(images, targets, paths)


def _load(
    batches: _Batches, positions: Iterable[int], workers: int, pin_memory: bool
) -> Iterator[Batch]:
    """Batches in the order of ``positions``."""
    loader = DataLoader(
        batches,
        batch_size=None,
        sampler=positions,
        num_workers=workers,
        collate_fn=_as_it_is,
        pin_memory=pin_memory and torch.cuda.is_available(),
        worker_init_fn=_start_worker,
        multiprocessing_context=_start_method() if workers else None,
        generator=torch.Generator(),  # its own: starting a loader draws a seed
    )
    iterator = iter(loader)
    try:
        while True:
            try:
                item = next(iterator)
            except StopIteration:
                return
            except RuntimeError as error:
                if "worker" in str(error) and "exited unexpectedly" in str(error):
                    raise DetpipeError(
                        f"a process that reads images died ({error}). The usual cause is memory, "
                        f"or too small a /dev/shm in a container: lower stream.workers (0 reads "
                        f"in the main process) or train.batch_size"
                    ) from error
                raise
            if isinstance(item, DataError):
                raise item
            yield item.batch()
    finally:
        if workers:
            iterator._shutdown_workers()  # type: ignore[attr-defined]


def _as_it_is(item: Any) -> Any:
    return item


def _start_worker(_: int) -> None:
    cv2.setNumThreads(0)
    # A terminal or a scheduler sends them to every process of the group; when to end is the main
    # process's business, and it has a step to finish. It ends the workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _start_method() -> multiprocessing.context.BaseContext:
    """Fork where that is safe: it is at once there and shares the store's pages."""
    forks = sys.platform.startswith("linux") and not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return multiprocessing.get_context(
        "fork" if forks else "forkserver" if sys.platform != "win32" else "spawn"
    )
