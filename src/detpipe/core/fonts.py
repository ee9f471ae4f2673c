"""The font of drawn names: one that has more than English letters."""

from __future__ import annotations

import functools
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont, ImageFont


@functools.cache
def font_of_size(size: float) -> FreeTypeFont | ImageFont:
    """DejaVu Sans, which comes with matplotlib: Latin, Greek, Cyrillic, Arabic and many signs.

    Pillow's own font has only English letters; Chinese, Japanese and Korean are in neither.

    Args:
        size: of the letters, pixels.
    """
    from PIL import ImageFont

    found = find_spec("matplotlib")
    folders = found.submodule_search_locations if found else None
    file = Path(folders[0], "mpl-data/fonts/ttf/DejaVuSans.ttf") if folders else Path()
    return ImageFont.truetype(file, size) if file.is_file() else ImageFont.load_default(size)
