"""Boxes with their names, drawn onto a picture."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from detpipe.core.fonts import font_of_size

if TYPE_CHECKING:
    from PIL import Image, ImageDraw

Colour = tuple[int, int, int]


class Mark(NamedTuple):
    """A box to draw.

    Attributes:
        box: x1, y1, x2, y2 in pixels of the picture, x2/y2 exclusive.
        text: stands above it; '' for none.
        colour: RGB.
        dashed: as a crowd region's line.
        width: of the line, pixels.
    """

    box: tuple[float, float, float, float]
    text: str
    colour: Colour
    dashed: bool = False
    width: int = 2


def draw_marks(picture: Image.Image, marks: Sequence[Mark]) -> None:
    """Draws ``marks`` onto ``picture``: all the names, then the lines above them."""
    from PIL import ImageDraw

    canvas = ImageDraw.Draw(picture)
    font = font_of_size(12)
    for mark in marks:
        if mark.text:
            _name(canvas, mark.box, mark.text, mark.colour, font, picture.size)
    for (x1, y1, x2, y2), _, colour, dashed, width in marks:
        corners = (x1, y1, max(x1, x2 - 1), max(y1, y2 - 1))  # Pillow's are inclusive
        if dashed:
            _dashed(canvas, corners, colour)
        else:
            canvas.rectangle(corners, outline=colour, width=width)


def colour_of(index: int, count: int) -> Colour:
    """A strong colour, as far from those of the other classes as their number lets it be."""
    red, green, blue = colorsys.hsv_to_rgb(index / max(1, count), 1.0, 0.75)
    return round(red * 255), round(green * 255), round(blue * 255)


def _dashed(
    canvas: ImageDraw.ImageDraw,
    corners: tuple[float, float, float, float],
    colour: Colour,
    *,
    dash: int = 6,
) -> None:
    x1, y1, x2, y2 = corners
    for start in range(round(x1), round(x2) + 1, 2 * dash):
        for y in (y1, y2):
            canvas.line((start, y, min(start + dash, x2), y), fill=colour, width=2)
    for start in range(round(y1), round(y2) + 1, 2 * dash):
        for x in (x1, x2):
            canvas.line((x, start, x, min(start + dash, y2)), fill=colour, width=2)


def _name(
    canvas: ImageDraw.ImageDraw,
    box: Sequence[float],
    text: str,
    colour: Colour,
    font: Any,
    limits: tuple[int, int],
) -> None:
    """The label above its box, moved into the picture where it sticks out."""
    left, top, right, bottom = canvas.textbbox((0, 0), text, font=font)
    width, height = right - left + 2, bottom - top + 2
    x = min(max(0, box[0]), max(0, limits[0] - width))
    y = min(max(0, box[1] - height), max(0, limits[1] - height))
    canvas.rectangle((x, y, x + width, y + height), fill=colour)
    canvas.text((x + 1 - left, y + 1 - top), text, fill="white", font=font)
