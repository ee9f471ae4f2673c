"""Many texts as one run of bytes, and the integers that say where each one lies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from detpipe.core.tables import arrow_binary

Places = npt.NDArray[np.int32] | npt.NDArray[np.int64]
"""Where each thing of a run begins, and where the last ends; ``int32`` where that suffices."""


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """Texts as one run of UTF-8 bytes.

    Attributes:
        data: ``uint8``, all texts one after the other.
        ends: ``int [N + 1]``; text i lies in ``data[ends[i]:ends[i + 1]]``.
    """

    data: npt.NDArray[np.uint8]
    ends: Places

    @classmethod
    def of(cls, texts: Iterable[str]) -> Self:
        """Packs ``texts``; names that are not UTF-8 on disk survive (surrogate escapes)."""
        packed = arrow_binary(texts)
        if not len(packed):  # Arrow may leave out what an array without elements would say
            return cls(np.empty(0, np.uint8), np.zeros(1, np.int32))
        _, places, data = packed.buffers()
        ends = np.frombuffer(places, np.int64, len(packed) + 1, 8 * packed.offset)
        used = np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]]
        return cls(used, small(ends - ends[0]))

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, index: int) -> str:
        part = self.data[self.ends[index] : self.ends[index + 1]]
        return part.tobytes().decode("utf-8", "surrogateescape")

    def part(self, start: int, stop: int) -> Self:
        """Texts ``start`` to ``stop``."""
        ends = self.ends[start : stop + 1]
        return type(self)(self.data[ends[0] : ends[-1]], from_zero(ends))


def small(places: npt.NDArray[np.int64]) -> Places:
    """``int32`` if the last, and so each, fits."""
    return places.astype(np.int32) if places[-1] <= np.iinfo(np.int32).max else places


def from_zero(places: Places) -> Places:
    """Counted from the first; the same array if that is 0."""
    return places - places[0] if places[0] else places
