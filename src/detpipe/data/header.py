"""Opening a picture file: what its header says, and what to say where it cannot be read."""

from __future__ import annotations

import importlib
import io
import logging
import struct
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from PIL import Image, ImageFile, UnidentifiedImageError

from detpipe.core.errors import DataError

logger = logging.getLogger(__name__)

_EXIF_ORIENTATION = 0x0112
_TIFF_WIDTH, _TIFF_LENGTH, _TIFF_BITS_PER_SAMPLE = 256, 257, 258
DEEP_MODES = ("I", "F")
"""First letters of Pillow's modes with more than 8 bits a pixel (I, I;16, I;16B, F)."""
_PLUGINS = (
    ((b"ftypheic", b"ftypheix", b"ftyphevc", b"ftypheim", b"ftypheis", b"ftypmif1", b"ftypmsf1"),
     "HEIC", "pillow-heif", "pillow_heif", "register_heif_opener"),
    ((b"ftypavif", b"ftypavis"), "AVIF", "pillow-avif-plugin", "pillow_avif", ""),
    ((b"JXL \r\n\x87\n", b"\xff\x0a"), "JPEG XL", "pillow-jxl-plugin", "pillow_jxl", ""),
)  # fmt: skip
"""First bytes, format, package, its module, the function of it that makes Pillow read the format
(the others do so when they are imported)."""


def shown(name: object) -> str:
    """A file's name as text that every log and table can hold, also where it is not UTF-8."""
    return str(name).encode(errors="backslashreplace").decode()


@contextmanager
def open_picture(source: Path | io.BytesIO) -> Generator[ImageFile.ImageFile]:
    """Opens a picture; while it is open, Pillow's limit of pixels does not hold."""
    with _NoLimit():
        try:
            picture = Image.open(source)
        except UnidentifiedImageError:
            if not _add_plugin(source):
                raise
            picture = Image.open(source)
        with picture:
            yield picture


class _NoLimit:
    """Pillow's limit is one for all threads: the first one takes it off, the last one puts it back.

    Its plugins look at the limit when a file is opened, and some (TIFF's) when it is decoded.
    """

    _lock = threading.Lock()
    _inside = 0
    _limit: int | None = None

    def __enter__(self) -> None:
        with self._lock:
            if not _NoLimit._inside:
                _NoLimit._limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
            _NoLimit._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            _NoLimit._inside -= 1
            if not _NoLimit._inside:
                Image.MAX_IMAGE_PIXELS = _NoLimit._limit


def _add_plugin(source: Path | io.BytesIO) -> bool:
    """Makes Pillow read HEIC, AVIF or JPEG XL by another package; whether one was added."""
    start = source.getvalue()[:12] if isinstance(source, io.BytesIO) else _start(source)
    for signatures, kind, package, module, function in _PLUGINS:
        if start[4:].startswith(signatures) or start.startswith(signatures):
            try:
                plugin = importlib.import_module(module)
            except ImportError as error:
                raise MissingPlugin(
                    f"a {kind} picture, which this Pillow cannot read: install the package "
                    f"{package}, or convert the file to JPEG or PNG"
                ) from error
            if function:
                getattr(plugin, function)()
            return True
    return False


def _start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(12)


class MissingPlugin(Exception):
    """A format that Pillow reads with the help of a package."""


def unreadable(path: Path, error: Exception) -> DataError:
    """What to tell the user about a picture that could not be opened or decoded."""
    return DataError(f"{shown(path)}: {_reason(path, error)}")


def _reason(path: Path, error: Exception) -> str:
    if path.is_dir():
        return "this is a folder, not a picture"
    if path.is_file() and path.stat().st_size == 0:
        return "the file is empty (0 bytes); get it again or take it out"
    if isinstance(error, UnidentifiedImageError) and _start(path)[:4] in (b"II*\0", b"MM\0*"):
        return "a TIFF of a kind that Pillow cannot read; convert it to 8 or 16 bits a channel"
    reasons: dict[type[Exception], str] = {
        FileNotFoundError: "there is no such file; check the path in the annotations",
        PermissionError: "there is no permission to read it",
        UnidentifiedImageError: "this is no picture, or of an unknown format",
        MemoryError: "the picture is too large for the memory that is free",
        MissingPlugin: str(error),
    }
    return reasons.get(
        type(error),
        f"the picture cannot be read ({error}); it may be truncated: get it again or take it out "
        f"of the data set",
    )


def jpeg_orientation(data: bytes) -> int:
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


def orientation(picture: ImageFile.ImageFile) -> int:
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


def stored_size(picture: ImageFile.ImageFile) -> tuple[int, int]:
    """(width, height) before any turning; Pillow's ``size`` of a TIFF is the turned one."""
    if picture.format == "TIFF":
        tags = picture.tag_v2  # type: ignore[attr-defined]
        return int(tags[_TIFF_WIDTH]), int(tags[_TIFF_LENGTH])
    return picture.size


def bits(picture: ImageFile.ImageFile) -> int:
    """Bits of one channel in the file."""
    if picture.mode in ("I", "F"):
        return 32
    if picture.mode[0] in DEEP_MODES:
        return 16
    if picture.format == "PNG":
        # Pillow names the raw mode in its tiles: "RGB;16B" for 16 bits a channel.
        return 16 if any("16" in str(tile[3]) for tile in picture.tile) else 8
    if picture.format == "TIFF":
        bits = picture.tag_v2.get(_TIFF_BITS_PER_SAMPLE, (8,))  # type: ignore[attr-defined]
        return int(max(8, *bits))
    return 8
