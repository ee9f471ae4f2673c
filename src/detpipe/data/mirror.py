"""A folder that mirrors another one: its index, its update, its lock.

Below ``home``: ``files/<name>`` is the mirror (a folder or one file), ``index.jsonl`` says which
version of each file it holds. The index is one JSON list a file, and as its last line the time at
which the mirror was whole; without that line an update was broken off, and the next goes on.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from detpipe.core.errors import DataError

logger = logging.getLogger(__name__)

_BATCH_FILES, _BATCH_BYTES = 256, 256 << 20
"""What is fetched at once, and lost at most when an update is broken off."""
_PART = "part-"


class _Known(NamedTuple):
    """A file as it was copied; size and time (ns) are those of the copy."""

    version: str
    size: int
    mtime: int


@dataclass(frozen=True)
class Mirror:
    """A mirror of many files (or of one, whose name is '') on this disk.

    Attributes:
        home: its folder, with nothing else in it.
        name: the last part of its path.
    """

    home: Path
    name: str

    @property
    def root(self) -> Path:
        """The mirrored folder or file."""
        return self.home / "files" / self.name

    def whole_since(self) -> str | None:
        """When the last update was done; None if it was not, or its copy is not there."""
        return self._index()[1] if self.root.exists() else None

    def clean(self) -> None:
        """Removes what a killed update left; only for who has the lock."""
        for folder in self.home.glob(f"{_PART}*"):
            shutil.rmtree(folder)

    def update(
        self,
        versions: Mapping[str, str],
        *,
        sizes: Mapping[str, int | None],
        fetch: Callable[[Sequence[str], Sequence[str]], None],
        source: str,
    ) -> None:
        """Makes the mirror hold just these files, each in this version.

        Args:
            versions: path relative to the root, with ``/`` → version; '' is unknown, and fetched.
            sizes: path → bytes, None for unknown.
            fetch: copies files (their paths) to local ones (absolute paths).
            source: what is mirrored, for messages.

        Raises:
            DataError: a name that would lie outside the mirror, or too little room on the disk.
            OSError: the disk, or ``fetch``, failed.
        """
        _require_safe(versions, source)
        known, whole_since = self._index()
        here = _scan(self.root)
        kept = {
            name: file for name, file in known.items()
            if file.version and versions.get(name) == file.version and here.get(name) == file[1:]
        }  # fmt: skip
        wanted = [name for name in versions if name not in kept]
        gone = here.keys() - versions.keys()
        if wanted or gone or whole_since is None or len(known) != len(kept):
            _require_room(self.home, wanted, sizes, here, source)
            self._begin(kept)
            self._remove(gone)
            copied = self._fetch(wanted, versions, sizes, fetch)
        else:
            copied = 0
        self._append([time.strftime("%Y-%m-%d %H:%M:%S")])
        logger.info(
            "mirror of %s: %d files copied (%.1f MB), %d unchanged, %d removed; it is in '%s'",
            source, len(wanted), copied / 1e6, len(kept), len(gone), self.root,
        )  # fmt: skip

    def _index(self) -> tuple[dict[str, _Known], str | None]:
        """Path → what was copied, and the time if the last line tells one."""
        known: dict[str, _Known] = {}
        whole_since = None
        try:  # a damaged line is no reason to copy nothing
            lines = self._file.read_text("utf-8", "replace").split("\n")
        except FileNotFoundError:
            lines = []
        for line in filter(None, lines):
            try:
                name, *rest = json.loads(line)
                whole_since = None if rest else name
                if rest:
                    known[name] = _Known(*rest)
            except (ValueError, TypeError):  # cut short by a kill: it is copied again
                whole_since = None
        return known, whole_since

    @property
    def _file(self) -> Path:
        return self.home / "index.jsonl"

    def _begin(self, kept: Mapping[str, _Known]) -> None:
        """From here on the mirror is not whole."""
        new = self._file.with_suffix(".new")
        with new.open("w", encoding="utf-8") as index:
            index.writelines(json.dumps([name, *file]) + "\n" for name, file in kept.items())
        new.replace(self._file)

    def _append(self, *lines: Sequence[str | int]) -> None:
        with self._file.open("a", encoding="utf-8") as index:
            index.writelines(json.dumps(line) + "\n" for line in lines)

    def _remove(self, names: Collection[str]) -> None:
        """Removes files of the mirror, and folders that are left empty."""
        folders = {""} if names else set()  # the root may have to become a file
        for name in names:
            self._path(name).unlink(missing_ok=True)
            folders.update(_folders(name, folders))
        for folder in sorted(folders, key=len, reverse=True):
            with contextlib.suppress(OSError):  # it is not empty
                self._path(folder).rmdir()

    def _fetch(
        self,
        names: Sequence[str],
        versions: Mapping[str, str],
        sizes: Mapping[str, int | None],
        fetch: Callable[[Sequence[str], Sequence[str]], None],
    ) -> int:
        """Fetches files batch by batch under other names, then renames them; their bytes."""
        done = 0
        with (
            tempfile.TemporaryDirectory(prefix=_PART, dir=self.home) as folder,
            _progress([sizes[name] for name in names]) as advance,
        ):
            for batch in _batches(names, sizes):
                parts = [f"{folder}/{number}" for number in range(len(batch))]
                fetch(batch, parts)
                lines: list[Sequence[str | int]] = []
                for name, part in zip(batch, parts, strict=True):
                    file = self._path(name)
                    file.parent.mkdir(parents=True, exist_ok=True)
                    Path(part).replace(file)
                    status = file.stat()
                    lines.append([name, versions[name], status.st_size, status.st_mtime_ns])
                    done += status.st_size
                    advance(status.st_size)
                self._append(*lines)
        return done

    def _path(self, name: str) -> Path:
        return self.root / name if name else self.root


@contextlib.contextmanager
def locked(folder: Path, *, waits_for: str) -> Iterator[bool]:
    """One process (and thread) at a time works in a folder; False where there are no locks."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a") as file:
        try:
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                logger.info("another process copies %s; waiting for it", waits_for)
                fcntl.flock(file, fcntl.LOCK_EX)
        except (ImportError, OSError):  # Windows, some network drives
            yield False
            return
        try:
            yield True
        finally:  # closing would not do where a process was forked meanwhile
            fcntl.flock(file, fcntl.LOCK_UN)


def _require_safe(names: Collection[str], source: str) -> None:
    """Refuses names that would lie elsewhere, or where a file would have to be a folder too.

    Raises:
        DataError: with the names.
    """
    folders: set[str] = set()
    for name in names:
        folders.update(_folders(name, folders))
    wrong = [
        name for name in names
        if name in folders
        or (name and not {"", ".", ".."}.isdisjoint(name.split("/")))
        or "\0" in name
        or (os.name == "nt" and not {"\\", ":"}.isdisjoint(name))
    ]  # fmt: skip
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise DataError(
            f"{source} has files whose names cannot be copied to this disk (parts '..' or '', or a "
            f"file that is a folder too): {', '.join(map(repr, wrong[:5]))}{more}. Rename or "
            f"remove them there"
        )


def _folders(name: str, known: Collection[str]) -> Iterator[str]:
    """The folders above a file that are not known yet, innermost first."""
    while (name := name.rpartition("/")[0]) and name not in known:
        yield name


def _scan(root: Path) -> dict[str, tuple[int, int]]:
    """Path relative to ``root`` → size and time (ns) of every file; links are files."""
    if root.is_file():
        status = root.stat()
        return {"": (status.st_size, status.st_mtime_ns)}
    found = {}
    folders = [""] if root.is_dir() else []
    while folders:
        folder = folders.pop()
        with os.scandir(root / folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(f"{folder}{entry.name}/")
                else:
                    status = entry.stat(follow_symlinks=False)
                    found[f"{folder}{entry.name}"] = status.st_size, status.st_mtime_ns
    return found


def _require_room(
    home: Path,
    wanted: Sequence[str],
    sizes: Mapping[str, int | None],
    here: Mapping[str, tuple[int, int]],
    source: str,
) -> None:
    """Looks whether what is to be copied has room, beyond the files it takes the place of.

    Raises:
        DataError: it has not.
    """
    needed = sum(sizes[name] or 0 for name in wanted)
    needed -= sum(here[name][0] for name in wanted if name in here)
    free = shutil.disk_usage(home).free
    if needed > free:
        raise DataError(
            f"{source} needs {needed / 1e6:,.1f} MB more on this disk, and {free / 1e6:,.1f} MB "
            f"are free at '{home}'. Make room there, or set DETPIPE_CACHE to a folder on a larger "
            f"disk"
        )


def _batches(names: Sequence[str], sizes: Mapping[str, int | None]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for name in names:
        batch.append(name)
        size += sizes[name] or 0
        if len(batch) == _BATCH_FILES or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


@contextlib.contextmanager
def _progress(sizes: Sequence[int | None]) -> Iterator[Callable[[int], object]]:
    """A bar of bytes on a terminal, if there is anything to copy; gives what moves it on."""
    if not sizes or not sys.stdout.isatty():
        yield lambda _: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    known = [size for size in sizes if size is not None]
    total = sum(known) if len(known) == len(sizes) else None
    with Progress(
        "copying", BarColumn(), DownloadColumn(), TimeRemainingColumn(), transient=True
    ) as bar:
        task = bar.add_task("", total=total)
        yield lambda size: bar.advance(task, size)
