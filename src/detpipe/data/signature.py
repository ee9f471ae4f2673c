"""Whether the annotation files are still those that the tables were made from."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from detpipe.core.errors import DataError, one_message

_ANNOTATIONS = frozenset((".json", ".xml", ".txt", ".csv", ".yaml", ".yml", ".odgt"))
_SHOWN = 5


def signature(root: Path) -> dict[str, str]:
    """Relative path → digest of the content, for every annotation file below ``root``.

    Files named README or LICENSE are no annotations. With many files the digests of a folder are
    joined, so that the result stays small.
    """
    by_folder: dict[str, list[str]] = {}
    files = sorted(p for p in root.rglob("*") if p.suffix.lower() in _ANNOTATIONS and p.is_file())
    for file in files:
        if file.stem.upper().split(".")[0] in ("README", "LICENSE"):
            continue
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        folder = file.parent.relative_to(root).as_posix()
        by_folder.setdefault(folder, []).append(f"{file.name} {digest}")
    return {
        folder: hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
        for folder, lines in by_folder.items()
    }


def require_same(root: Path, known: Mapping[str, str]) -> None:
    """Refuses tables whose annotation files have changed since; content decides, not time.

    A data set that is not there (only its tables are) is not looked at.

    Raises:
        DataError: files were edited, added or removed; their folders are named.
    """
    if not root.is_dir():
        return
    now = signature(root)
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
