"""Whether the annotation files are still those that the tables were made from."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from detpipe.core.errors import DataError, one_message
from detpipe.data.remote import is_url, mirror_path

_ANNOTATIONS = frozenset((".json", ".xml", ".txt", ".csv", ".yaml", ".yml", ".odgt", ".parquet"))
_SHOWN = 5
_OUTSIDE = "outside the data set's folder"
"""Key of the places that the reader's options name elsewhere."""


def signature(root: Path, outside: Iterable[Path] = ()) -> dict[str, str]:
    """Relative path → digest of the content, for every annotation file below ``root``.

    Files named README or LICENSE are no annotations. With many files the digests of a folder are
    joined, so that the result stays small.

    Args:
        root: the data set's folder.
        outside: further files and folders that belong to it, see :func:`places_outside`.
    """
    elsewhere = [os.path.relpath(place, root) for place in outside]
    by_folder: dict[str, list[str]] = {}
    for place in (root, *(root / name for name in elsewhere)):
        for file in _annotation_files(place):
            with file.open("rb") as content:
                digest = hashlib.file_digest(content, "sha256").hexdigest()
            folder = Path(os.path.relpath(file.parent, root)).as_posix()
            by_folder.setdefault(folder, []).append(f"{file.name} {digest}")
    found = {
        folder: hashlib.sha256("\n".join(sorted(set(lines))).encode("utf-8", "surrogateescape"))
        .hexdigest()[:16]
        for folder, lines in by_folder.items()
    }  # fmt: skip
    return found | ({_OUTSIDE: "\n".join(elsewhere)} if elsewhere else {})


def _annotation_files(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
    for folder, _, names in os.walk(place):
        for name in names:
            ending = name[name.rfind(".") :].lower()  # Path costs ten times this, for every picture
            if ending in _ANNOTATIONS and name.upper().split(".")[0] not in ("README", "LICENSE"):
                yield Path(folder, name)


def places_outside(root: Path, options: Any) -> list[Path]:
    """Files and folders outside of ``root`` that a reader's options name, nested ones too.

    Those of a URL are looked for in its local copy.
    """
    if isinstance(options, Mapping):
        return places_outside(root, list(options.values()))
    if isinstance(options, list | tuple):
        return list(dict.fromkeys(p for value in options for p in places_outside(root, value)))
    if not isinstance(options, str) or not options:
        return []
    place = mirror_path(options) if is_url(options) else root / options
    try:
        inside = place.resolve().is_relative_to(root.resolve())
        return [place] if not inside and place.exists() else []
    except (OSError, ValueError):  # too long to be a name, or a NUL in it
        return []


def require_same(root: Path, known: Mapping[str, str]) -> None:
    """Refuses tables whose annotation files have changed since; content decides, not time.

    A data set that is not there (only its tables are) is not looked at.

    Raises:
        DataError: files were edited, added or removed; their folders are named.
    """
    if not root.is_dir():
        return
    now = signature(root, (root / name for name in known.get(_OUTSIDE, "").split("\n") if name))
    changed = [
        folder for folder in sorted(now.keys() | known) if now.get(folder) != known.get(folder)
    ]
    if changed:
        names = [str(root / folder) for folder in changed[:_SHOWN]]
        raise DataError(
            one_message(
                "annotation files have changed since the tables were made from them; run "
                "'kedro run --pipeline data' (or train) first. Changed in:",
                names,
            )
        )
