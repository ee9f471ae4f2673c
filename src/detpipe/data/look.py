"""One look at a picture file, and what earlier looks found, kept by the file's content."""

from __future__ import annotations

import functools
import hashlib
import logging
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from detpipe.core.errors import DataError
from detpipe.data.hashes import NO_HASH, perceptual_hash
from detpipe.data.header import unreadable
from detpipe.data.image import load_grey, read_info

logger = logging.getLogger(__name__)

_VERSION = 1
"""Of what a look finds: another one makes stored looks worthless."""
_HASHED_FROM = 72
"""Pixels, at least, of either side of what the perceptual hash is made from."""
_FILE = "pictures.sqlite"
_COLUMNS = "digest BLOB PRIMARY KEY, height INT, width INT, turned INT, bits INT, hash INT, damage"


class Look(NamedTuple):
    """What an image file says.

    Attributes:
        height: rows of the upright picture.
        width: columns of the upright picture.
        turned: its EXIF orientation exchanges the two sides.
        bits: bits of a channel.
        hash: :func:`detpipe.data.hashes.perceptual_hash`.
        damage: what the decoder said of data that it could not use; it went on all the same.
        digest: of the file's bytes; empty if it was not decoded.
        error: why the picture cannot be used; empty if it can.
        known: an earlier look at the same bytes was used.
    """

    height: int = 0
    width: int = 0
    turned: bool = False
    bits: int = 8
    hash: int = NO_HASH
    damage: str = ""
    digest: bytes = b""
    error: str = ""
    known: bool = False


def look(path: str, *, decode: bool, max_pixels: int, cache: str) -> Look:
    """Looks at a file; a plain function of this module, since worker processes run it.

    Args:
        path: the file.
        decode: decode all of it, and hash it; else only its header is read.
        max_pixels: a picture with more is an error, and is not decoded.
        cache: file of earlier looks; empty for none.
    """
    file = Path(path)
    try:
        if decode:
            return _decode(file, max_pixels, cache)
        return _judge(_head(file, None), max_pixels)
    except DataError as error:
        return Look(error=str(error))
    except (OSError, MemoryError) as error:
        return Look(error=str(unreadable(file, error)))


def _decode(file: Path, max_pixels: int, cache: str) -> Look:
    data = file.read_bytes()
    digest = hashlib.blake2b(data, digest_size=16).digest()
    if cache and (known := _stored(cache, digest)):
        return _judge(known, max_pixels)
    found = _judge(_head(file, data)._replace(digest=digest), max_pixels)
    if found.error:
        return found
    grey = load_grey(file, at_least=_HASHED_FROM, data=data)
    return found._replace(hash=perceptual_hash(grey.pixels), damage=grey.damage)


def _head(file: Path, data: bytes | None) -> Look:
    info = read_info(file, data=data)
    return Look(info.height, info.width, info.orientation >= 5, info.bits)


def _judge(found: Look, max_pixels: int) -> Look:
    pixels = found.height * found.width
    if pixels <= max_pixels:
        return found
    return found._replace(
        error=f"{found.width}x{found.height} are {pixels} pixels, more than {max_pixels}: it may "
        f"be a decompression bomb; if it is not, raise data.check.max_pixels"
    )


# --- earlier looks -----------------------------------------------------------------------------


class Looks:
    """Stores looks in one SQLite file, a little at a time: an interrupted check loses little.

    A look at a picture that cannot be used is not stored: whether it can depends on ``max_pixels``
    and on the Pillow that is installed, and such files are few.

    Args:
        folder: where the file lies; None to store nothing. A file that is damaged, or that another
            version wrote, is begun anew; where it cannot be written, a warning says so.
    """

    def __init__(self, folder: Path | None) -> None:
        self.file = ""
        self._base: sqlite3.Connection | None = None
        if folder is None:
            return
        path = folder / _FILE
        try:
            folder.mkdir(parents=True, exist_ok=True)
            try:
                self._base = _begin(path)
            except sqlite3.OperationalError:
                raise
            except sqlite3.DatabaseError as error:
                logger.warning("data check: %s is damaged (%s) and is begun anew", path, error)
                path.unlink()
                self._base = _begin(path)
        except (OSError, sqlite3.Error) as error:
            logger.warning("data check: nothing is kept for the next time: %s: %s", path, error)
        else:
            self.file = str(path)

    def store(self, looks: Sequence[Look]) -> None:
        """Keeps those of usable pictures that are not kept yet."""
        rows = [
            (one.digest, one.height, one.width, one.turned, one.bits, one.hash, one.damage)
            for one in looks
            if one.digest and not one.error and not one.known
        ]
        if self._base is None or not rows:
            return
        try:
            with self._base:
                self._base.executemany("INSERT OR REPLACE INTO looks VALUES (?,?,?,?,?,?,?)", rows)
        except sqlite3.Error as error:
            logger.warning("data check: nothing more is kept for the next time: %s", error)
            self.close()

    def close(self) -> None:
        """Closes the file."""
        if self._base is not None:
            self._base.close()
        self._base = None
        _reader.cache_clear()


def _begin(path: Path) -> sqlite3.Connection:
    base = sqlite3.connect(path)
    try:
        (state,) = base.execute("PRAGMA quick_check(1)").fetchone()
        if state != "ok":
            raise sqlite3.DatabaseError(state)
        (version,) = base.execute("PRAGMA user_version").fetchone()
        with base:
            if version != _VERSION:
                base.execute("DROP TABLE IF EXISTS looks")
            base.execute(f"CREATE TABLE IF NOT EXISTS looks ({_COLUMNS}) WITHOUT ROWID")
            base.execute(f"PRAGMA user_version = {_VERSION}")
    except sqlite3.Error:
        base.close()
        raise
    return base


def _stored(cache: str, digest: bytes) -> Look | None:
    try:
        row = _reader(cache).execute("SELECT * FROM looks WHERE digest = ?", (digest,)).fetchone()
    except sqlite3.Error:
        return None  # decoding again is always right
    if row is None:
        return None
    _, height, width, turned, bits, hashed, damage = row
    return Look(height, width, bool(turned), bits, hashed, damage, digest, known=True)


@functools.lru_cache(maxsize=1)
def _reader(cache: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{Path(cache).absolute().as_uri()}?mode=ro", uri=True)
