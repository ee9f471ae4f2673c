"""The box around a segmentation of COCO: polygons, or runs of pixels (RLE) plain or packed."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Box = tuple[float, float, float, float]
_MOST = 2**31 - 1
"""Pixels of a picture's side, or of a run: with more, the file is damaged."""


def box_of(segmentation: Any) -> Box | None:
    """x y width height (pixels) around a segmentation.

    Args:
        segmentation: as JSON has it: a list of polygons ``[x, y, x, y, …]``, one such polygon, or
            ``{"size": [height, width], "counts": …}`` with a list or a packed text.

    Returns:
        None where there is no segmentation, or one that cannot be read.
    """
    if isinstance(segmentation, dict):
        return _box_of_runs(segmentation)
    if not isinstance(segmentation, list) or not segmentation:
        return None
    polygons = segmentation if isinstance(segmentation[0], list) else [segmentation]
    try:
        numbers = np.concatenate([np.asarray(p, np.float64).reshape(-1, 2) for p in polygons])
    except (TypeError, ValueError, OverflowError):
        return None
    if not len(numbers) or not np.isfinite(numbers).all():
        return None
    (x1, y1), (x2, y2) = numbers.min(axis=0).tolist(), numbers.max(axis=0).tolist()
    return x1, y1, x2 - x1, y2 - y1


def _box_of_runs(rle: dict[str, Any]) -> Box | None:
    """The box of a mask that is written column by column as lengths of runs, zeros first."""
    try:
        height = int(rle["size"][0])
        counts = rle["counts"]
        runs = _unpacked(counts) if isinstance(counts, str) else np.asarray(counts, np.int64)
    except (KeyError, IndexError, TypeError, ValueError, OverflowError):
        return None
    if not 1 <= height <= _MOST or runs.ndim != 1 or ((runs < 0) | (runs > _MOST)).any():
        return None
    ends = np.cumsum(runs)
    first, last = ends[:-1:2], ends[1::2] - 1  # of the runs of ones, both inclusive
    first, last = first[last >= first], last[last >= first]
    if not len(first):
        return None
    left, right = first // height, last // height
    # A run that goes on in the next column touches both the bottom and the top.
    wraps = bool((left != right).any())
    top = 0 if wraps else int((first % height).min())
    bottom = height - 1 if wraps else int((last % height).max())
    x, width = int(left.min()), int(right.max() - left.min()) + 1
    return float(x), float(top), float(width), float(bottom - top + 1)


def _unpacked(text: str) -> npt.NDArray[np.int64]:
    """Lengths of runs from COCO's text.

    Five bits a character from ``0`` on, least first; the sixth says that more follow, the fifth of
    the last one is the sign; from the fourth on, a run is the difference to the one but last
    (``rleFrString`` of cocoapi's ``maskApi.c``).
    """
    runs: list[int] = []
    value = shift = 0
    for code in text.encode("ascii"):
        bits = code - 48
        value |= (bits & 0x1F) << shift
        shift += 5
        if bits & 0x20:
            continue
        if bits & 0x10:
            value -= 1 << shift
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
        value = shift = 0
    return np.array(runs, np.int64)
