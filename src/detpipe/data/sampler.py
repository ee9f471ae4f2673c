"""The order of training images, as functions of the position in the run.

A sampler holds no state that moves: position 12,345 is the same image whether the run got there
without a break or was resumed there, and with any number of workers.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from detpipe.core.errors import DataError


class Sampler(Protocol):
    """Which image comes at which position."""

    def index(self, position: int) -> int:
        """The store's index of the image at ``position`` (0 is the run's first image)."""
        ...


def shuffle(*, length: int, seed: int) -> Sampler:
    """Every image once an epoch, each epoch in an order of its own.

    Args:
        length: images in the store.
        seed: same seed, same order.

    Raises:
        DataError: ``length`` is 0.
    """
    return _Shuffle(_checked(length), seed)


def sequential(*, length: int) -> Sampler:
    """The images in the order of the store, again and again.

    Args:
        length: images in the store.

    Raises:
        DataError: ``length`` is 0.
    """
    return _Sequential(_checked(length))


class _Shuffle:
    def __init__(self, length: int, seed: int) -> None:
        self._length, self._seed = length, seed
        self._epoch = -1
        self._order: npt.NDArray[np.int64] = np.empty(0, np.int64)

    def index(self, position: int) -> int:
        epoch, place = divmod(position, self._length)
        if epoch != self._epoch:  # only a cache: what it holds is a function of the epoch
            generator = np.random.Generator(np.random.PCG64([self._seed, epoch]))
            self._order, self._epoch = generator.permutation(self._length), epoch
        return int(self._order[place])


class _Sequential:
    def __init__(self, length: int) -> None:
        self._length = length

    def index(self, position: int) -> int:
        return position % self._length


def _checked(length: int) -> int:
    if length <= 0:
        raise DataError("there is no image to train on: the train split is empty")
    return length
