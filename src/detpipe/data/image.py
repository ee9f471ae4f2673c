"""From a picture file of any common kind to upright RGB pixels.

Plain JPEGs take the fast way (simplejpeg, scaled while decoding when they are to be shrunk);
everything else goes through Pillow. Without a size, both give Pillow's pixels.
"""

from __future__ import annotations

import io
import logging
import struct
from collections.abc import Callable
from pathlib import Path
from typing import IO, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image, ImageFile, UnidentifiedImageError

from detpipe.core.errors import DataError

logger = logging.getLogger(__name__)

Pixels = npt.NDArray[np.uint8]
SizeRule = Callable[[int, int], tuple[int, int]]
"""(height, width) of the upright picture → (height, width) wanted."""

_EXIF_ORIENTATION = 0x0112
_TIFF_WIDTH, _TIFF_LENGTH, _TIFF_BITS_PER_SAMPLE = 256, 257, 258
_DEEP_MODES = ("I", "F")
"""First letters of Pillow's modes with more than 8 bits a pixel (I, I;16, I;16B, F)."""


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


def read_info(path: Path) -> ImageInfo:
    """Reads a picture's header, not its pixels (a truncated file may pass).

    Raises:
        DataError: the file is missing, empty, or no picture.
    """
    try:
        with Image.open(path) as picture:
            orientation, bits = _orientation(picture), _bits(picture)
            width, height = _stored_size(picture)
            if orientation >= 5:
                width, height = height, width
            return ImageInfo(height, width, orientation, picture.format or "", picture.mode, bits)
    except Exception as error:  # Pillow's plugins raise nearly anything
        raise _unreadable(path, error) from error


def upright_size(path: Path) -> tuple[int, int]:
    """(height, width) of a picture in pixels, EXIF orientation applied; reads only the header.

    Raises:
        DataError: the file is missing, empty, or no picture.
    """
    info = read_info(path)
    return info.height, info.width


def load_image(path: Path, *, size: tuple[int, int] | SizeRule | None = None) -> Pixels:
    """The picture's pixels, upright.

    Args:
        path: JPEG, PNG, WebP, TIFF, BMP, GIF (first frame), MPO, … in any colour mode: grey,
            palette and CMYK are converted, alpha is laid over white, more than 8 bits a channel
            are scaled to 8 by the picture's own range.
        size: (height, width) to resize to, or a function that gives it for the upright height
            and width; without it the pixels equal Pillow's.

    Returns:
        ``uint8 [H, W, 3]``, RGB, contiguous, writable.

    Raises:
        DataError: the file is missing, empty, truncated, or no picture.
    """
    return load_sized(path, size=size)[0]


def load_sized(
    path: Path, *, size: tuple[int, int] | SizeRule | None = None
) -> tuple[Pixels, tuple[int, int]]:
    """:func:`load_image`, and the (height, width) of the upright picture on disk."""
    try:
        data = path.read_bytes()
        found = _decode_jpeg(data, size) if data[:3] == b"\xff\xd8\xff" else None
        if found is None:
            pixels = _decode_any(data)
            found = pixels, (pixels.shape[0], pixels.shape[1])
    except Exception as error:  # Pillow's plugins raise nearly anything
        raise _unreadable(path, error) from error
    pixels, original = found
    if size is None:
        return found
    return _resize(pixels, size if isinstance(size, tuple) else size(*original)), original


def _unreadable(path: Path, error: Exception) -> DataError:
    if isinstance(error, FileNotFoundError):
        return DataError(f"{path}: there is no such file; check the path in the annotations")
    if path.is_dir():
        return DataError(f"{path}: this is a folder, not a picture")
    if path.is_file() and path.stat().st_size == 0:
        return DataError(f"{path}: the file is empty (0 bytes); get it again or take it out")
    if isinstance(error, UnidentifiedImageError):
        return DataError(f"{path}: this is no picture, or of an unknown format")
    return DataError(
        f"{path}: the picture cannot be read ({error}); it may be truncated: get it again or "
        f"take it out of the data set"
    )


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
        orientation = _jpeg_orientation(data)
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


def _jpeg_orientation(data: bytes) -> int:
    """EXIF orientation of a JPEG; looks at the segments before the pixels only."""
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if marker == 0xFF:  # fill byte
            at += 1
            continue
        if marker in (0xDA, 0xD9):
            break
        if marker == 0xE1 and data[at + 4 : at + 10] == b"Exif\0\0":
            return _tiff_orientation(data[at + 10 : at + 2 + length])
        at += 2 + length
    return 1


def _tiff_orientation(data: bytes) -> int:
    """The orientation tag of the first directory of an EXIF block; 1 where there is none."""
    order = "<" if data[:2] == b"II" else ">"
    try:
        (start,) = struct.unpack_from(order + "I", data, 4)
        (count,) = struct.unpack_from(order + "H", data, start)
        for entry in range(start + 2, start + 2 + 12 * count, 12):
            tag, kind = struct.unpack_from(order + "HH", data, entry)
            if tag == _EXIF_ORIENTATION and kind == 3:
                (value,) = struct.unpack_from(order + "H", data, entry + 8)
                return value if 1 <= value <= 8 else 1
    except struct.error:
        logger.debug("damaged EXIF block: taken as upright")
    return 1


def _decode_any(data: bytes) -> Pixels:
    with Image.open(io.BytesIO(data)) as picture:
        bits, orientation = _bits(picture), _orientation(picture)
        picture.load()
        if picture.format == "TIFF":
            orientation = 1  # Pillow turned it while loading
        if picture.mode[0] in _DEEP_MODES:
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


def _orientation(picture: ImageFile.ImageFile) -> int:
    """EXIF orientation as the header says, the same on every way through this module.

    Not ``picture.getexif()``: of a PNG it decodes all pixels, and it would believe XMP too.
    """
    if picture.format == "TIFF":
        value = picture.tag_v2.get(_EXIF_ORIENTATION, 1)  # type: ignore[attr-defined]
        return int(value) if value in range(1, 9) else 1
    exif = picture.info.get("exif", b"")
    if not exif and picture.format == "PNG" and picture.fp is not None:
        exif = _png_exif(picture.fp)
    return _tiff_orientation(exif.removeprefix(b"Exif\0\0"))


def _png_exif(file: IO[bytes]) -> bytes:
    """The EXIF block of a PNG that has it after its pixels; leaves the file where it was."""
    here = file.tell()
    file.seek(8)
    try:
        while len(head := file.read(8)) == 8:
            length, name = struct.unpack(">I4s", head)
            if name == b"eXIf":
                return file.read(length)
            file.seek(length + 4, 1)
    finally:
        file.seek(here)
    return b""


def _stored_size(picture: ImageFile.ImageFile) -> tuple[int, int]:
    """(width, height) before any turning; Pillow's ``size`` of a TIFF is the turned one."""
    if picture.format == "TIFF":
        tags = picture.tag_v2  # type: ignore[attr-defined]
        return int(tags[_TIFF_WIDTH]), int(tags[_TIFF_LENGTH])
    return picture.size


def _bits(picture: ImageFile.ImageFile) -> int:
    """Bits of one channel in the file."""
    if picture.mode in ("I", "F"):
        return 32
    if picture.mode[0] in _DEEP_MODES:
        return 16
    if picture.format == "PNG":
        # Pillow names the raw mode in its tiles: "RGB;16B" for 16 bits a channel.
        return 16 if any("16" in str(tile[3]) for tile in picture.tile) else 8
    if picture.format == "TIFF":
        bits = picture.tag_v2.get(_TIFF_BITS_PER_SAMPLE, (8,))  # type: ignore[attr-defined]
        return int(max(8, *bits))
    return 8


def _turn(pixels: Pixels, orientation: int) -> Pixels:
    """Applies an EXIF orientation."""
    if orientation == 1:
        return pixels
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


def _resize(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    height, width = size
    if pixels.shape[:2] == (height, width):
        return pixels
    shrinks = height <= pixels.shape[0] and width <= pixels.shape[1]
    how = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(pixels, (width, height), interpolation=how), dtype=np.uint8)
