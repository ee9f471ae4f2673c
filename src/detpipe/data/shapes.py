"""The shapes of the sample set and the paint on them."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Callable

import cv2
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


# Distance from the shape's edge, negative inside, at x, y from its centre. r: radius around it.


def _circle(x: Doubles, y: Doubles, r: float) -> Doubles:
    return np.hypot(x, y) - r


def _ring(x: Doubles, y: Doubles, r: float) -> Doubles:
    return np.abs(np.hypot(x, y) - 0.72 * r) - 0.28 * r


def _square(x: Doubles, y: Doubles, r: float) -> Doubles:
    return np.maximum(np.abs(x), np.abs(y)) - 0.8 * r


def _cross(x: Doubles, y: Doubles, r: float) -> Doubles:
    x, y = np.abs(x), np.abs(y)
    return np.minimum(np.maximum(x - r, y - 0.35 * r), np.maximum(x - 0.35 * r, y - r))


def _triangle(x: Doubles, y: Doubles, r: float) -> Doubles:
    return np.maximum(np.abs(x) * math.cos(math.pi / 6) - y / 2, y) - r / 2


SHAPES: dict[str, Callable[[Doubles, Doubles, float], Doubles]] = {
    "circle": _circle, "cross": _cross, "ring": _ring, "square": _square, "triangle": _triangle,
}  # fmt: skip
AREAS = {
    "circle": math.pi, "cross": 2.31, "ring": math.pi * (1 - 0.44**2), "square": 2.56,
    "triangle": 3 * math.sqrt(3) / 4,
}  # fmt: skip
"""Area of each shape of radius 1."""


def background(size: int, paint: np.random.Generator) -> Floats:
    """A gradient with clouds, and now and then faint lines."""
    first, second = (paint.uniform(50, 205) + _uniform(paint, -25, 25) for _ in range(2))
    slope = _slope((size, size), paint)[..., None] * np.float32(paint.uniform(0.2, 0.8))
    canvas: Floats = first + (second - first) * slope
    cells = int(paint.integers(3, 12))
    clouds = paint.standard_normal((cells, cells, 3), np.float32) * np.float32(paint.uniform(4, 14))
    canvas += cv2.resize(clouds, (size, size), interpolation=cv2.INTER_CUBIC)
    for _ in range(paint.integers(0, 4)):
        ends = paint.integers(0, size, (2, 2)).tolist()
        shade = canvas.mean((0, 1)) + paint.normal(0, 25, 3)
        cv2.line(canvas, ends[0], ends[1], shade.tolist(), int(paint.integers(1, 4)), cv2.LINE_AA)
    return canvas


def texture(
    shape: tuple[int, int], paint: np.random.Generator, *, hue: float, behind: Floats
) -> Floats:
    """Paint for one object.

    Args:
        shape: (height, width) of the paint.
        paint: where chance comes from.
        hue: 0..1, around which its colour lies.
        behind: mean colour behind it, from which it stands out.
    """
    colour = _colour(paint, hue)
    while np.abs(colour - behind).max() < 80:
        colour = _colour(paint, hue)
    kind, slope = int(paint.integers(0, 4)), _slope(shape, paint)
    waves = np.float32(2 * np.pi * max(shape) / paint.uniform(5, 12))
    if kind == 0:
        pattern = np.zeros_like(slope)
    elif kind == 1:
        pattern = slope - 0.5
    elif kind == 2:
        pattern = np.sin(slope * waves) / 2
    else:
        pattern = np.sign(np.sin(slope * waves) * np.sin(_slope(shape, paint) * waves)) / 2
    away = np.where(colour > behind, 1, -1) * paint.uniform(10, 30)
    return colour + pattern[..., None] * away.astype(np.float32)


def _slope(shape: tuple[int, int], paint: np.random.Generator) -> Floats:
    """0..1 across ``shape`` in a direction of its own."""
    angle = paint.uniform(0, 2 * np.pi)
    down, across = (np.arange(side, dtype=np.float32) for side in shape)
    ramp = across[None] * np.float32(np.cos(angle)) + down[:, None] * np.float32(np.sin(angle))
    slope: Floats = (ramp - ramp.min()) / np.ptp(ramp)
    return slope


def _colour(paint: np.random.Generator, hue: float) -> Floats:
    """A colour within 40 degrees of ``hue``, from pale to strong and from dark to bright."""
    hue = (hue + paint.uniform(-0.11, 0.11)) % 1
    parts = colorsys.hsv_to_rgb(hue, paint.uniform(0.5, 1), paint.uniform(0.45, 1))
    return np.array(parts, np.float32) * 255


def _uniform(paint: np.random.Generator, low: float, high: float) -> Floats:
    """A colour."""
    return paint.uniform(low, high, 3).astype(np.float32)
