"""Named arrays in one file that is mapped into memory, not read.

The file is ``detpipe``, the format's number (uint8), the header's length and its CRC-32 (uint32,
little-endian each), the header (JSON: what the writer says of the whole, and each column's dtype,
shape and place), and the columns, each at a multiple of 64 bytes. Pages are read when they are
first touched, and every process that maps the file shares them.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import secrets
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from detpipe.core.errors import DataError

FORMAT = 1
_MAGIC = b"detpipe"
_START = struct.Struct("<7sBII")
_ALIGN = 64
_AGAIN = "run the data pipeline again (kedro run --pipeline data)"


class ColumnFile(NamedTuple):
    """What :func:`read` gives.

    Attributes:
        about: what the writer said of the whole.
        columns: name → read-only array on the file's pages.
        key: changes with the header.
    """

    about: dict[str, Any]
    columns: dict[str, npt.NDArray[Any]]
    key: str


def write(path: Path, columns: Mapping[str, npt.NDArray[Any]], about: Mapping[str, Any]) -> None:
    """Writes the file whole or not at all; the same input gives the same bytes.

    Args:
        path: the file; an existing one is replaced, and who has it mapped keeps the old one.
        columns: the arrays by name.
        about: what JSON can hold of the whole.
    """
    places, end = {}, 0
    for name, array in columns.items():
        places[name] = {"dtype": array.dtype.str, "shape": array.shape, "offset": end}
        end = _aligned(end + array.nbytes)
    header = json.dumps({"about": about, "columns": places, "bytes": end}).encode()
    header += b" " * (_aligned(_START.size + len(header)) - _START.size - len(header))
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(_START.pack(_MAGIC, FORMAT, len(header), zlib.crc32(header)) + header)
            for array in columns.values():
                file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
                file.write(b"\0" * (_aligned(array.nbytes) - array.nbytes))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read(path: Path) -> ColumnFile:
    """Maps the file of ``path``; nothing but its header is read.

    Raises:
        DataError: it cannot be read, is none of ours, is cut short, or was written by a newer
            version.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(_START.size)
            if len(start) < _START.size or not start.startswith(_MAGIC):
                raise DataError(
                    f"'{path}' was not written by detpipe; give another file, or {_AGAIN}"
                )
            _, version, length, crc = _START.unpack(start)
            if version != FORMAT:
                age = "a newer" if version > FORMAT else "an older"
                raise DataError(
                    f"'{path}' was written by {age} detpipe (format {version}, this one reads "
                    f"{FORMAT}); {_AGAIN}"
                )
            header = file.read(min(length, size))
            if len(header) < length or zlib.crc32(header) != crc:
                raise DataError(
                    f"'{path}' is cut short or damaged: its header is not whole; {_AGAIN}"
                )
            found = json.loads(header)
            expected = _START.size + length + found["bytes"]
            if size != expected:
                raise DataError(
                    f"'{path}' is cut short or damaged: it has {size} bytes and should have "
                    f"{expected}; {_AGAIN}"
                )
            pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise DataError(f"'{path}' cannot be read ({error.strerror or error}); {_AGAIN}") from error
    columns = {
        name: np.frombuffer(
            pages,
            np.dtype(place["dtype"]),
            count=int(np.prod(place["shape"], dtype=np.int64)),
            offset=_START.size + length + place["offset"],
        ).reshape(place["shape"])
        for name, place in found["columns"].items()
    }
    return ColumnFile(found["about"], columns, hashlib.sha256(header).hexdigest()[:16])


def _aligned(count: int) -> int:
    return -(-count // _ALIGN) * _ALIGN
