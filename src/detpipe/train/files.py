"""Files that are whole or not there, and sums to see damage by."""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that gets its name only when it is complete and on the disk."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if os.name == "posix":  # elsewhere a folder cannot be synced
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class Checksum:
    """A file for writing that sums up what goes through it.

    Attributes:
        value: zlib.crc32 so far.
        error: what the system said when it could not be written; ``torch.save`` hides that.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.value = 0
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        """Writes ``data`` and adds it to the sum."""
        self.value = zlib.crc32(data, self.value)
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = self.error or error
            raise

    def flush(self) -> None:
        """As of any file."""
        self._file.flush()


def crc_of(file: Path) -> int:
    """zlib.crc32 of what is in ``file``."""
    value = 0
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            value = zlib.crc32(block, value)
    return value
