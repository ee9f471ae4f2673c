"""Files that are whole or not there, sums to see damage by, and room for a new run."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from detpipe.core.errors import CheckpointError


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that gets its name only when it is complete and on the disk."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
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


def make_folder(path: Path) -> None:
    """Makes the folder, if it is not there, and tries whether it takes a file.

    Raises:
        CheckpointError: it cannot be made, or written in.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        what = str(error)
        if path.is_symlink() and not path.exists():
            what = f"it is a link to '{path.readlink()}', which is not there"
        elif path.exists() and not path.is_dir():
            what = "there is a file of that name"
        raise CheckpointError(
            f"'{path}' cannot hold checkpoints: {what}. Mend that, or give them another folder"
        ) from error


def move_aside(folder: Path, *, name: str | None) -> Path | None:
    """Moves what is in ``folder`` to a new folder beside it; None if there is nothing.

    What a link leads to is moved, and the link stays. A folder that cannot be renamed (a mount
    point, a folder in one that must not be written in) keeps its place: what is in it moves into
    a folder within. However it ends, nothing that was in it is lost.

    Args:
        folder: a folder, or a link to one.
        name: what is added to its name, in place of an older one of that name; None for the time,
            which replaces nothing.

    Raises:
        OSError: it, or some of it, could not be moved.
    """
    folder = folder.resolve() if folder.is_symlink() else folder
    if not _contents(folder):
        return None
    try:
        aside = _free_name(folder)
        folder.rename(aside)
        folder.mkdir()
    except OSError:
        if not folder.is_dir():
            raise
        aside = _moved_within(folder)
    return aside if name is None else _replacing(aside.with_name(f"{folder.name}{name}"), aside)


def _contents(folder: Path) -> list[Path]:
    """What a run wrote there: not what was put aside within, nor the disk's own folder."""
    return [
        item
        for item in folder.iterdir()
        if not (item.is_dir() and item.name.startswith(f"{folder.name}_"))
        and item.name != "lost+found"
    ]


def _moved_within(folder: Path) -> Path:
    aside = _free_name(folder / folder.name)
    aside.mkdir()
    # Checkpoints last: as long as one is there, a run that begins after a crash in between
    # sees that the folder is not free.
    for item in sorted(_contents(folder), key=lambda item: item.suffix == ".pt"):
        shutil.move(item, aside / item.name)  # across disks too: one may be mounted within
    return aside


def _free_name(folder: Path) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    aside = folder.with_name(f"{folder.name}_{stamp}")
    count = 1
    while os.path.lexists(aside):
        count += 1
        aside = folder.with_name(f"{folder.name}_{stamp}_{count}")
    return aside


def _replacing(old: Path, new: Path) -> Path:
    """Where ``new`` is now: at ``old``, or where it was if what is there cannot be removed."""
    try:
        if old.is_symlink() or old.is_file():
            old.unlink()
        elif old.exists():
            shutil.rmtree(old)
        return new.rename(old)
    except OSError:
        return new
