"""Coordinates that are shares of an image, for the formats that write them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from detpipe.core.errors import DataError
from detpipe.data.image import upright_size

YES = ("1", "1.0", "true", "yes")
"""What a flag that is set looks like in text, in small letters."""
Sizes = npt.NDArray[np.int64]


def picture_sizes(root: Path, paths: Iterable[str]) -> Sizes:
    """Width and height of upright pictures, from their headers.

    Args:
        root: what the paths are relative to.
        paths: one a picture.

    Returns:
        ``int64 [N, 2]``; 0, 0 for a picture that is missing or unreadable: the check names it.
    """
    return np.array([_size(root / path) for path in paths], np.int64).reshape(-1, 2)


def _size(path: Path) -> tuple[int, int]:
    try:
        height, width = upright_size(path)
    except (DataError, OSError):  # OSError: a name that is too long
        return 0, 0
    return width, height


def in_pixels(corners: npt.NDArray[np.float64], sizes: Sizes) -> npt.NDArray[np.float64]:
    """``corners [N, 4]`` (x1 y1 x2 y2 as shares) times ``sizes [N, 2]`` (width, height)."""
    return corners * np.tile(sizes, 2)
