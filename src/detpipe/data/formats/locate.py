"""The search for the image files that annotation files name."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path, PureWindowsPath
from typing import NamedTuple

from detpipe.core.errors import DataError
from detpipe.data.formats.base import IMAGE_SUFFIXES, IssueLog, relative, sample


class Match(NamedTuple):
    """Where an image was found, and how.

    ``how`` is ``exact``, ``moved`` (leading folders of the written path left out), ``spelling``
    (other case or Unicode form), ``stem`` (other ending), ``ambiguous`` (several candidates,
    ``path`` is None) or ``missing``.
    """

    path: Path | None
    how: str
    candidates: tuple[Path, ...] = ()


class ImageFinder:
    """Finds image files by the names that annotation files give them.

    Args:
        folders: where to look, best first; those that do not exist are skipped.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self.tried = list(dict.fromkeys(Path(folder) for folder in folders))
        self.folders = [folder for folder in self.tried if folder.is_dir()]
        self._names: dict[Path, frozenset[str]] = {}
        self._loose: dict[tuple[Path, bool], dict[str, list[Path]]] = {}

    def find(self, name: str) -> Match:
        """The file meant by ``name`` (a base name, a relative path, or somebody's absolute one)."""
        for folder in self.folders:
            if self._has(folder / name):
                return Match(folder / name, "exact")
        parts = PureWindowsPath(name).parts  # splits at both / and \
        for start in range(len(parts)):
            for folder in self.folders:
                path = folder.joinpath(*parts[start:])
                if self._has(path):
                    return Match(path, "exact" if start == 0 else "moved")
        for stem in (False, True):
            for folder in self.folders:
                found = self._loosely(folder, stem=stem).get(_loose_key(parts[-1], stem=stem), [])
                if len(found) == 1:
                    return Match(found[0], "stem" if stem else "spelling")
                if found:
                    return Match(None, "ambiguous", tuple(found))
        return Match(None, "missing")

    def _has(self, path: Path) -> bool:
        # One listing a folder instead of one stat a file: sets have 100,000 files.
        if path.parent not in self._names:
            try:
                with os.scandir(path.parent) as entries:
                    self._names[path.parent] = frozenset(e.name for e in entries if e.is_file())
            except OSError:
                self._names[path.parent] = frozenset()
        return path.name in self._names[path.parent]

    def _loosely(self, folder: Path, *, stem: bool) -> dict[str, list[Path]]:
        if (folder, stem) not in self._loose:
            self._has(folder / "")
            self._has(folder / "x")  # lists the folder
            table: dict[str, list[Path]] = {}
            for name in sorted(self._names[folder]):
                if Path(name).suffix.lower() in IMAGE_SUFFIXES:
                    table.setdefault(_loose_key(name, stem=stem), []).append(folder / name)
            self._loose[folder, stem] = table
        return self._loose[folder, stem]


def _loose_key(name: str, *, stem: bool) -> str:
    if stem and Path(name).suffix.lower() in IMAGE_SUFFIXES:
        name = Path(name).stem
    return unicodedata.normalize("NFC", name).casefold()


def locate_images(
    names: Sequence[str], finder: ImageFinder, *, source: str, root: Path, log: IssueLog
) -> list[str | None]:
    """Paths (relative to ``root``) of the images that ``source`` names; what was assumed is logged.

    A missing file gets the path where it was expected, so that the check can name it; a name that
    fits several files gets None, and an error in ``log``.

    Raises:
        DataError: not one of them was found; the message lists the folders tried.
    """
    matches = [finder.find(name) for name in names]
    if names and all(match.how == "missing" for match in matches):
        tried = "\n".join(
            f"- {folder}" + ("" if folder.is_dir() else " (no such folder)")
            for folder in finder.tried
        )
        raise DataError(
            f"none of the {len(names)} image(s) that {source} names was found, first "
            f"'{names[0]}'. Looked in:\n{tried}\n"
            f"Say where they are with the reader's option 'images'"
        )
    homes = [match.path.parent for match in matches if match.path]
    home = max(set(homes), key=homes.count) if homes else root
    paths: list[str | None] = []
    for name, match in zip(names, matches, strict=True):
        if match.how == "ambiguous":
            log.add(
                "error", "ambiguous_image", file=source, value=f"'{name}': "
                + sample(relative(path, root) for path in match.candidates),
                action="several files fit this name: write the full name or remove one",
            )  # fmt: skip
            paths.append(None)
        else:
            paths.append(relative(match.path or home / PureWindowsPath(name).name, root))
    _say_how(names, matches, source=source, root=root, log=log)
    return paths


_HOW = {
    "moved": ("image_path", "looked up without the leading folders of the path"),
    "spelling": ("image_spelling", "matched in spite of other case or Unicode form"),
    "stem": ("image_ending", "matched by name without ending"),
}


def _say_how(
    names: Sequence[str], matches: Sequence[Match], *, source: str, root: Path, log: IssueLog
) -> None:
    for how, (rule, action) in _HOW.items():
        found = [(n, m.path) for n, m in zip(names, matches, strict=True) if m.how == how]
        if found and (path := found[0][1]):
            value = f"{len(found)} image(s), first '{found[0][0]}' -> {relative(path, root)}"
            log.add("info", rule, file=source, value=value, action=action)
