"""The files below a folder, walked the same way by every reader, and what single ones hold."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from detpipe.core.errors import DataError, one_message
from detpipe.data.header import shown

_SHOWN = 20


def is_hidden(name: str) -> bool:
    """Whether a name is a system's or an editor's: ``.DS_Store``, ``._a.jpg``, ``__MACOSX``."""
    return name.startswith(".") or name == "__MACOSX"


def exists(path: Path) -> bool:
    """Whether something is there; False, too, for a path that cannot be (300 letters, a NUL)."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def files_in(folder: Path) -> list[str]:
    """Names of all that is no folder in ``folder``, dangling links too, sorted; no hidden ones.

    There are none where there is no such folder.

    Raises:
        DataError: the folder cannot be listed.
    """
    return [e.name for e in _entries(folder) if not _is_folder(e)] if exists(folder) else []


def files_below(folder: Path) -> Iterator[str]:
    """Paths relative to ``folder``, with ``/``, of all that is no folder, in order of their parts.

    Hidden names are left out. Links to folders are followed, but not to one that holds a folder on
    the way to the link. Dangling links are there, so that a missing file has a name.

    Raises:
        DataError: a folder cannot be listed.
    """
    walks = [("", _real(folder), iter(_entries(folder)))]
    while walks:
        place, _, entries = walks[-1]
        entry = next(entries, None)
        if entry is None:
            walks.pop()
        elif not _is_folder(entry):
            yield place + entry.name
        else:
            real = _real(entry.path)
            if not (entry.is_symlink() and any(r.is_relative_to(real) for _, r, _ in walks)):
                walks.append((f"{place}{entry.name}/", real, iter(_entries(Path(entry.path)))))


def visible(folder: Path, *patterns: str) -> list[Path]:
    """What fits the patterns of :meth:`pathlib.Path.glob`, sorted for each; no hidden names."""
    return [
        path
        for pattern in patterns
        for path in sorted(folder.glob(pattern))
        if not any(map(is_hidden, path.relative_to(folder).parts))
    ]


def require_utf8(paths: Iterable[object]) -> None:
    """Refuses names that are no text: no table, and no log, can hold them.

    Raises:
        DataError: there are such names; the message shows the first ones.
    """
    # Python reads such bytes as lone surrogates.
    wrong = [path for path in map(str, paths) if not path.isascii() and path != shown(path)]
    if wrong:
        more = [f"and {len(wrong) - _SHOWN} more"] if len(wrong) > _SHOWN else []
        raise DataError(
            one_message(
                "these file names are not in UTF-8: rename the files (convmv does many at once):",
                [*map(shown, wrong[:_SHOWN]), *more],
            )
        )


def read_bytes(path: Path) -> bytes:
    """What a file holds.

    Raises:
        DataError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{shown(path)} cannot be read: {why(path, error)}") from error


def why(path: Path, error: OSError) -> str:
    """Why a file cannot be read, for messages."""
    if path.is_symlink() and not exists(path):
        return f"it is a link to {shown(os.readlink(path))}, which is not there"  # noqa: PTH115
    return error.strerror or str(error)


def read_lines(path: Path) -> list[str]:
    """The lines of a text that are not empty, without blanks around them.

    Raises:
        DataError: the file cannot be read, or is neither UTF-8 nor UTF-16 with its mark.
    """
    data = read_bytes(path)
    wide = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    try:
        text = data.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not written in UTF-8: {error}; save it in UTF-8") from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            seen = [entry for entry in entries if not is_hidden(entry.name)]
    except OSError as error:
        raise DataError(f"the folder {shown(folder)} cannot be listed: {why(folder, error)}") from (
            error
        )
    return sorted(seen, key=lambda entry: entry.name)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _real(path: str | Path) -> Path:
    return Path(os.path.realpath(path))
