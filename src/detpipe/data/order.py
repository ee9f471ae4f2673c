"""Orders of images, addressed by position; :mod:`detpipe.data.sampler` makes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Sampler(Protocol):
    """Which image comes at which position."""

    def index(self, position: int) -> int:
        """The store's index of the image at ``position`` (0 is the run's first image)."""
        ...


class _Shuffled:
    """Stretches of ``size`` places, each with an order of its own.

    Args:
        size: places of a stretch.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._number = -1
        self._order: Ints | npt.NDArray[np.int32] = np.empty(0, np.int64)

    def index(self, position: int) -> int:
        """See :class:`Sampler`."""
        number, place = divmod(position, self._size)
        if number != self._number:  # only a cache: what it holds is a function of the number
            self._order, self._number = self._order_of(number), number
        return int(self._order[place])

    def _order_of(self, number: int) -> Ints | npt.NDArray[np.int32]:
        """``[size]``, the images of stretch ``number`` (0 is the first)."""
        raise NotImplementedError


class Permuted(_Shuffled):
    """Every image once in each cycle of ``length`` places.

    :class:`Cycle` gives the same for equal weights, with ten times the memory; and each process
    that reads has an order of its own.
    """

    def __init__(self, *, length: int, seed: int) -> None:
        super().__init__(length)
        self._seed = seed

    def _order_of(self, number: int) -> npt.NDArray[np.int32]:
        order = np.arange(self._size, dtype=np.int32)
        np.random.Generator(np.random.PCG64([self._seed, number])).shuffle(order)
        return order


class Cycle(_Shuffled):
    """Images in proportion to their weights, in cycles of ``length`` places.

    An image's share of a cycle is ``weight * length / sum(weights)``. In each cycle it has that
    many places, rounded down or up by systematic sampling: the shares are laid end to end, and an
    image gets the marks that fall on its share, which are 1 apart and begin at a random place.
    So the number of places is exact, and each image's number is its share in expectation.
    """

    def __init__(self, weights: Floats, *, length: int, seed: int) -> None:
        super().__init__(length)
        self._images = np.flatnonzero(weights)
        ends = np.cumsum(weights[self._images]) * (length / weights.sum())
        ends[-1] = length  # whatever rounding says
        self._ends, self._seed = ends, seed

    def _order_of(self, number: int) -> Ints:
        generator = np.random.Generator(np.random.PCG64([self._seed, number]))
        places = generator.permutation(self._size)
        marks = np.floor(self._ends + generator.random()).clip(max=self._size)
        counts = np.diff(marks, prepend=0).astype(np.int64)
        return np.repeat(self._images, counts)[places]


class Grouped(_Shuffled):
    """What another sampler gives, regrouped within windows.

    See :func:`detpipe.data.sampler.aspect_ratio_grouped`.
    """

    def __init__(
        self, inner: Sampler, ratios: Floats, *, edges: Floats, batch_size: int, seed: int
    ) -> None:
        super().__init__(-(-len(ratios) // batch_size) * batch_size)
        self._inner, self._ratios, self._seed = inner, ratios, seed
        self._bins = np.searchsorted(edges, ratios, side="right")
        self._batch_size = batch_size

    def _order_of(self, number: int) -> Ints:
        first = number * self._size
        images = np.fromiter(
            (self._inner.index(p) for p in range(first, first + self._size)), np.int64, self._size
        )
        bins = self._bins[images]
        groups = [images[bins == number] for number in np.unique(bins)]
        whole = [len(group) // self._batch_size * self._batch_size for group in groups]
        left = np.concatenate([group[size:] for group, size in zip(groups, whole, strict=True)])
        left = left[np.argsort(self._ratios[left], kind="stable")]
        kept = [group[:size] for group, size in zip(groups, whole, strict=True)]
        batches = np.concatenate([*kept, left]).reshape(-1, self._batch_size)
        # The 1 parts these numbers from those of a cycle with the same seed.
        generator = np.random.Generator(np.random.PCG64([self._seed, number, 1]))
        return generator.permutation(batches).ravel()


class Sequential:
    """The images in the order of the store, again and again."""

    def __init__(self, length: int) -> None:
        self._length = length

    def index(self, position: int) -> int:
        """See :class:`Sampler`."""
        return position % self._length


class Listed:
    """Chosen images in their order, once."""

    def __init__(self, images: Sequence[int]) -> None:
        self._images = images

    def index(self, position: int) -> int:
        """See :class:`Sampler`."""
        return self._images[position]
