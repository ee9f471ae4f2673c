"""A picture of a batch as it reaches the model: the way to see what the augmentation does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from detpipe.core.fonts import font_of_size
from detpipe.core.types import Batch, Target
from detpipe.data.geometry import to_pixels
from detpipe.data.marks import Mark, colour_of, draw_marks

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

_READABLE = 400
"""A picture whose longer side is below this is enlarged (each pixel n × n) for its labels' sake."""
_GAP = 8
_CAPTION = 18


def draw_batch(batch: Batch, class_names: Sequence[str]) -> Image.Image:
    """A sheet of the batch's images as the model gets them, with their boxes and class names.

    Each class has a colour of its own. The box of a crowd region is dashed, that of a difficult
    object thin, and their labels say so. Pixels are shown as they are: large images are not
    scaled, small ones are enlarged by a whole number. Above each image stand its id, its width and
    height, and the number of its boxes.

    Args:
        batch: images and targets.
        class_names: label ``c`` is ``class_names[c - 1]``.
    """
    from PIL import Image, ImageDraw

    font = font_of_size(12)
    tiles = [
        _tile(image, target, class_names)
        for image, target in zip(batch.images, batch.targets, strict=True)
    ]
    captions = [
        f"{target.image_id}: {image.shape[-1]} x {image.shape[-2]}, {len(target.boxes)} box(es)"
        for image, target in zip(batch.images, batch.targets, strict=True)
    ]
    columns = max(1, math.ceil(math.sqrt(len(tiles))))
    width = max((tile.width for tile in tiles), default=_READABLE) + _GAP
    height = max((tile.height for tile in tiles), default=0) + _CAPTION + _GAP
    rows = math.ceil(len(tiles) / columns)
    sheet = Image.new("RGB", (columns * width + _GAP, rows * height + _GAP), "white")
    canvas = ImageDraw.Draw(sheet)
    for i, (tile, caption) in enumerate(zip(tiles, captions, strict=True)):
        x, y = _GAP + i % columns * width, _GAP + i // columns * height
        canvas.text((x, y), _shortened(caption, font, width - _GAP), fill="black", font=font)
        sheet.paste(tile, (x, y + _CAPTION))
    return sheet


def _tile(image: Tensor, target: Target, class_names: Sequence[str]) -> Image.Image:
    """One image with its boxes."""
    from PIL import Image

    picture = Image.fromarray(to_pixels(image))
    scale = max(1, math.ceil(_READABLE / max(picture.size)))
    picture = picture.resize(
        (picture.width * scale, picture.height * scale), Image.Resampling.NEAREST
    )
    marks = [
        Mark(
            (x1, y1, x2, y2),
            ", ".join([class_names[label - 1], *(["crowd"] * crowd), *(["difficult"] * difficult)]),
            colour_of(label - 1, len(class_names)),
            dashed=crowd,
            width=1 if difficult else 2,
        )
        for label, (x1, y1, x2, y2), crowd, difficult in zip(
            target.labels.tolist(), (target.boxes * scale).tolist(),
            target.iscrowd.tolist(), target.difficult.tolist(), strict=True,
        )
    ]  # fmt: skip
    draw_marks(picture, marks)
    return picture


def _shortened(text: str, font: Any, width: int) -> str:
    """The end of a text that is too long: of an id, with size and count."""
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(f"…{text}") > width:
        text = text[1:]
    return f"…{text}"
