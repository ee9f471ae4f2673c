"""Changes of colour on bytes: ``uint8 [H, W, 3]`` RGB in, a new array of the same kind out.

The formulas are those of ``torchvision.transforms.v2.functional``; look-up tables make them a
small part of its time, at the price of rounding to 256 values after each.
"""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from detpipe.data.image import Pixels


def adjust_brightness(pixels: Pixels, factor: float) -> Pixels:
    """Every value times ``factor``, clipped."""
    return _look_up(pixels, np.arange(256) * factor)


def adjust_contrast(pixels: Pixels, factor: float) -> Pixels:
    """The distance of every value from the image's mean grey times ``factor``, clipped."""
    mean = cv2.mean(cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY))[0]
    return _look_up(pixels, mean + (np.arange(256) - mean) * factor)


def adjust_saturation(pixels: Pixels, factor: float) -> Pixels:
    """The distance of every pixel from its grey times ``factor``, clipped."""
    grey = cv2.cvtColor(cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    return np.asarray(cv2.addWeighted(pixels, factor, grey, 1 - factor, 0), dtype=np.uint8)


def adjust_hue(pixels: Pixels, turn: float) -> Pixels:
    """Every pixel's hue moved by ``turn`` of the colour circle."""
    hsv = cv2.cvtColor(pixels, cv2.COLOR_RGB2HSV_FULL)
    table = np.tile(np.arange(256)[:, None], (1, 3))
    table[:, 0] = np.rint(table[:, 0] + turn * 256) % 256
    moved = cv2.LUT(hsv, table.astype(np.uint8)[None])
    return np.asarray(cv2.cvtColor(moved, cv2.COLOR_HSV2RGB_FULL), dtype=np.uint8)


def _look_up(pixels: Pixels, table: npt.NDArray[np.floating]) -> Pixels:
    values = np.clip(table, 0, 255).astype(np.uint8)
    return np.asarray(cv2.LUT(pixels, values), dtype=np.uint8)
