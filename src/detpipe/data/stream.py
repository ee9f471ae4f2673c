"""Batches of images and targets, for training and for evaluation.

Training batches are addressed by position: what comes at image 1,600 of a run depends on the
seed and on 1,600, not on how the run got there nor on how many processes read.
"""

from __future__ import annotations

import itertools
import multiprocessing
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import torch
from torch.utils.data import DataLoader, Dataset

from detpipe.core.errors import DataError, DetpipeError
from detpipe.core.types import Batch
from detpipe.data.config import Resize
from detpipe.data.order import Listed, Sampler
from detpipe.data.reader import Reader
from detpipe.data.store import Store
from detpipe.data.transform import Step
from detpipe.data.transport import FlatBatch


class TrainStream:
    """Training batches without end.

    Args:
        store: the training images.
        batch_size: images of one batch.
        sampler: which image comes at which position.
        resize: the size at which images reach the model; None keeps theirs.
        augment: transforms, applied in this order after the resize; see
            :mod:`detpipe.data.transform`. The result is brought to the size of ``resize`` again,
            unless one of them has ``sets_size = True``.
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
        augment: Sequence[Step] = (),
        seed: int = 0,
        workers: int = 0,
        pin_memory: bool = False,
    ) -> None:
        if len(store) == 0:
            raise DataError(
                "there is no image to train on: the train split is empty; draw one with "
                "data.split.by: ratio, or say what the data set's own are with data.split.rename"
            )
        if batch_size > len(store):
            raise DataError(
                f"train.batch_size is {batch_size}, but there are only {len(store)} training "
                f"image(s); set it to {len(store)} or less"
            )
        self._batches = _Batches(
            reader=Reader.training(store, sampler, augment=augment, resize=resize, seed=seed),
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
        indices: only these of them, in this order.
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
        indices: Sequence[int] | None = None,
        resize: Resize | None = None,
        workers: int = 0,
        pin_memory: bool = False,
    ) -> None:
        if len(store) == 0:
            raise DataError("there is no image to evaluate on: this split is empty")
        chosen = range(len(store)) if indices is None else indices
        self._batches = _Batches(
            reader=Reader(store=store, sampler=Listed(chosen), resize=resize),
            batch_size=batch_size,
            end=len(chosen),
        )
        self._positions = range(0, len(chosen), batch_size)
        self._workers, self._pin_memory = workers, pin_memory

    def __len__(self) -> int:
        """Batches in one pass."""
        return len(self._positions)

    def __iter__(self) -> Iterator[Batch]:
        """One pass; see :meth:`TrainStream.batches` for errors."""
        return _load(self._batches, self._positions, self._workers, self._pin_memory)


@dataclass(frozen=True, kw_only=True)
class _Batches(Dataset[Any]):
    """A DataLoader's data set whose items are whole batches, by the position of their first image.

    Workers hand over a batch as a few flat arrays: a shared-memory segment for each tensor of
    each image would cost more than decoding them.
    """

    reader: Reader
    batch_size: int
    end: int | None = None

    def __getitem__(self, start: int) -> FlatBatch | DataError:
        stop = (
            start + self.batch_size if self.end is None else min(start + self.batch_size, self.end)
        )
        images, targets, paths = [], [], []
        for position in range(start, stop):
            try:
                image, target, path = self.reader.read(position)
            except DataError as error:
                return error  # raised in the main process, without a worker's traceback
            except Exception as error:
                first = self.reader.store.path(self.reader.sampler.index(position))
                error.add_note(f"while reading {first} (position {position} of the run)")
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
