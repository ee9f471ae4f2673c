"""From a picture file of any common kind to upright RGB pixels.

Plain JPEGs take the fast way (simplejpeg, scaled while decoding when they are to be shrunk);
everything else goes through Pillow. Without a size, both give Pillow's pixels.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image

from detpipe.data import header

Pixels = npt.NDArray[np.uint8]
SizeRule = Callable[[int, int], tuple[int, int]]
"""(height, width) of the upright picture → (height, width) wanted."""

_JPEG = b"\xff\xd8\xff"


class ImageInfo(NamedTuple):
    """What a picture's header says.

    Attributes:
        height: rows of the upright picture.
        width: columns of the upright picture.
        orientation: EXIF orientation, 1..8; 1 is upright as stored, 5..8 swap the two sides.
        format: Pillow's name of the file format (``JPEG``, ``PNG``, …).
        mode: Pillow's mode as stored (``RGB``, ``L``, ``P``, ``CMYK``, ``I;16``, …).
        bits: bits of one channel; above 8 the picture is scaled to 8 by its own range.
    """

    height: int
    width: int
    orientation: int
    format: str
    mode: str
    bits: int


def read_info(path: Path, *, data: bytes | None = None) -> ImageInfo:
    """Reads a picture's header, not its pixels (a truncated file may pass).

    Args:
        path: the file.
        data: its bytes, where they have been read already.

    Raises:
        DataError: the file is missing, empty, or no picture.
    """
    try:
        with header.open_picture(path if data is None else io.BytesIO(data)) as picture:
            orientation, bits = header.orientation(picture), header.bits(picture)
            width, height = header.stored_size(picture)
            if orientation >= 5:
                width, height = height, width
            return ImageInfo(height, width, orientation, picture.format or "", picture.mode, bits)
    except Exception as error:  # Pillow's plugins raise nearly anything
        raise header.unreadable(path, error) from error


def upright_size(path: Path) -> tuple[int, int]:
    """(height, width) of a picture in pixels, EXIF orientation applied; reads only the header.

    Raises:
        DataError: the file is missing, empty, or no picture.
    """
    info = read_info(path)
    return info.height, info.width


def load_image(path: Path, *, size: tuple[int, int] | SizeRule | None = None) -> Pixels:
    """The picture's pixels, upright.

    However large: Pillow's limit (a warning from 89 million pixels on) does not hold here, since
    aerial and microscope pictures exceed it. Compare :func:`read_info` with a limit of your own,
    as the data check does, before loading files that you do not trust.

    Args:
        path: JPEG, PNG, WebP, AVIF, TIFF, BMP, GIF, MPO, … in any colour mode (the first picture
            where there are several): grey, palette and CMYK are converted, alpha is laid over
            white, more than 8 bits a channel are scaled to 8 by the picture's own range.
        size: (height, width) to resize to, or a function that gives it for the upright height
            and width; without it the pixels equal Pillow's.

    Returns:
        ``uint8 [H, W, 3]``, RGB, contiguous, writable.

    Raises:
        DataError: the file is missing, empty, truncated, no picture, or too large for the memory.
    """
    return load_sized(path, size=size)[0]


def load_sized(
    path: Path, *, size: tuple[int, int] | SizeRule | None = None
) -> tuple[Pixels, tuple[int, int]]:
    """:func:`load_image`, and the (height, width) of the upright picture on disk."""
    try:
        data = path.read_bytes()
        found = _decode_jpeg(data, size) if data[:3] == _JPEG else None
        if found is None:
            pixels = _decode_any(data)
            found = pixels, (pixels.shape[0], pixels.shape[1])
        pixels, original = found
        if size is None:
            return found
        return _resize(pixels, size if isinstance(size, tuple) else size(*original)), original
    except Exception as error:  # Pillow's plugins raise nearly anything
        raise header.unreadable(path, error) from error


class Grey(NamedTuple):
    """A picture in shades of grey, upright, and maybe smaller than it is on disk.

    Attributes:
        pixels: ``uint8 [H, W]``.
        damage: what libjpeg says of data that it decoded all the same; empty for none.
    """

    pixels: Pixels
    damage: str


def load_grey(path: Path, *, at_least: int, data: bytes | None = None) -> Grey:
    """Decodes all of a picture, but keeps only what shows its coarse structure.

    A JPEG's data are all read, so what is found damaged is the same as by :func:`load_image`; the
    time that colours and full size would take is saved.

    Args:
        path: the file.
        at_least: pixels that neither side gets below by shrinking.
        data: the file's bytes, where they have been read already.

    Raises:
        DataError: as :func:`load_image`.
    """
    damage = ""
    try:
        data = path.read_bytes() if data is None else data
        if data[:3] == _JPEG:
            options = {"min_height": at_least, "min_width": at_least, "min_factor": 1.0}
            try:
                pixels = simplejpeg.decode_jpeg(data, "GRAY", **options)[..., 0]
            except ValueError as error:
                damage = str(error) if "orrupt" in str(error) else ""
            else:
                return Grey(_turn(pixels, header.jpeg_orientation(data)), "")
        return Grey(cv2.cvtColor(_decode_any(data), cv2.COLOR_RGB2GRAY), damage)
    except Exception as error:  # Pillow's plugins raise nearly anything
        raise header.unreadable(path, error) from error


def _decode_jpeg(
    data: bytes, size: tuple[int, int] | SizeRule | None
) -> tuple[Pixels, tuple[int, int]] | None:
    """Upright pixels, shrunk while decoding to no less than ``size``, and the size on disk.

    None where Pillow is to be asked: CMYK, truncated, or merely odd (it knows which).
    """
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data, strict=False)
        if colours in ("CMYK", "YCCK"):
            return None
        orientation = header.jpeg_orientation(data)
        original = (width, height) if orientation >= 5 else (height, width)
        wanted = size if size is None or isinstance(size, tuple) else size(*original)
        least = (0, 0) if wanted is None else wanted[::-1] if orientation >= 5 else wanted
        pixels: Pixels = simplejpeg.decode_jpeg(data, "RGB", **_scale(data, *least))
    except ValueError:
        return None
    return _turn(pixels, orientation), original


def _scale(data: bytes, height: int, width: int) -> dict[str, float]:
    """Options that make the decoder shrink to no less than ``height`` × ``width`` (0: not)."""
    if not (height and width):
        return {}
    options = {"min_height": height, "min_width": width, "min_factor": 1.0}
    # Odd factors such as 5/8 decode slower: they pay only where no resize is left to do.
    hits = simplejpeg.decode_jpeg_header(data, **options, strict=False)[:2] == (height, width)
    return options if hits else options | {"min_factor": 2.0}


def _decode_any(data: bytes) -> Pixels:
    with header.open_picture(io.BytesIO(data)) as picture:
        bits, orientation = header.bits(picture), header.orientation(picture)
        picture.load()
        if picture.format == "TIFF":
            orientation = 1  # Pillow turned it while loading
        if picture.mode[0] in header.DEEP_MODES:
            pixels = np.repeat(_to_8_bits(np.asarray(picture))[..., None], 3, axis=2)
        elif bits > 8 and (deep := _decode_deep_colour(data)) is not None:
            pixels = deep
        elif picture.has_transparency_data:
            layer = picture.convert("RGBA")
            white = Image.new("RGBA", layer.size, "white")
            pixels = np.array(Image.alpha_composite(white, layer).convert("RGB"))
        else:
            pixels = np.array(picture.convert("RGB"))
    return _turn(pixels, orientation)


def _decode_deep_colour(data: bytes) -> Pixels | None:
    """Colour pictures of 16 bits a channel, which Pillow would cut to their upper 8 bits."""
    flags = cv2.IMREAD_UNCHANGED  # keeps the depth, and does not turn the picture
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    if pixels is None or pixels.dtype != np.uint16 or pixels.ndim != 3 or pixels.shape[2] < 3:
        return None
    colours = _to_8_bits(np.ascontiguousarray(pixels[..., 2::-1]))
    if pixels.shape[2] == 4:
        alpha = pixels[..., 3:].astype(np.float32) / np.float32(65535)
        return np.asarray(np.rint(colours * alpha + 255 * (1 - alpha)), dtype=np.uint8)
    return colours


def _to_8_bits(values: npt.NDArray[np.generic]) -> Pixels:
    """Scales ``values`` so that the least becomes 0 and the largest 255."""
    numbers = np.nan_to_num(values.astype(np.float64), posinf=0.0, neginf=0.0)
    least, most = numbers.min(), numbers.max()
    if most == least:
        return np.full(values.shape, np.clip(most, 0, 255), dtype=np.uint8)
    return np.asarray(np.rint((numbers - least) * (255 / (most - least))), dtype=np.uint8)


def _turn(pixels: Pixels, orientation: int) -> Pixels:
    """Applies an EXIF orientation."""
    if orientation == 1:
        return pixels
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


def _resize(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    height, width = size
    if pixels.shape[:2] == (height, width):
        return pixels
    # Down to a half, bilinear is as near to an antialiased resize (0.3 grey levels) as the mean of
    # areas, in a quarter of its time; below, it leaves pixels out.
    far = 2 * height < pixels.shape[0] or 2 * width < pixels.shape[1]
    shrinks = height <= pixels.shape[0] and width <= pixels.shape[1]
    how = cv2.INTER_AREA if far and shrinks else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(pixels, (width, height), interpolation=how), dtype=np.uint8)
