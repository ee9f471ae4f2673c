"""The search for the image files that annotation files name."""

from __future__ import annotations

import itertools
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PureWindowsPath
from typing import NamedTuple
from urllib.parse import unquote

from detpipe.core.errors import DataError
from detpipe.data.formats.base import IMAGE_SUFFIXES, IssueLog, relative, sample


class Match(NamedTuple):
    """Where an image was found, and how.

    ``how`` is ``exact``, ``moved`` (leading folders of the written path left out), ``spelling``
    (other case or Unicode form), ``stem`` (other ending), ``url`` (an address, quoted like one, or
    with Label Studio's mark of an upload in front), ``ambiguous`` (several candidates, ``path`` is
    None) or ``missing``.
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
        # os.path: a name that is too long is no error.
        self.folders = [folder for folder in self.tried if os.path.isdir(folder)]  # noqa: PTH112
        self._names: dict[tuple[Path, tuple[str, ...]], frozenset[str]] = {}
        self._loose: dict[tuple[Path, bool], dict[str, list[Path]]] = {}

    def find(self, name: str) -> Match:
        """The file meant by ``name`` (a base name, a path, somebody's absolute one, or a URL)."""
        return self.find_all([name])[name]

    def find_all(self, names: Iterable[str]) -> dict[str, Match]:
        """:meth:`find` for many names, much faster than one by one."""
        names = dict.fromkeys(names)
        found = {name: match for name, match in self._all(names).items() if match.how != "missing"}
        for reading in (_path_of_url, _without_upload_mark):
            read = {name: reading(name) for name in names if name not in found}
            read = {name: other for name, other in read.items() if other != name}
            matches = self._all(dict.fromkeys(read.values()))
            for name, other in read.items():
                match = matches[other]
                if match.how != "missing":
                    found[name] = match._replace(how="url") if match.path else match
        return {name: found.get(name, Match(None, "missing")) for name in names}

    def exact(self, names: Sequence[str], root: Path) -> list[str | None]:
        """Paths relative to ``root`` of the files that are there just as they are named, else None.

        Whole folders at a time: there may be millions of names.
        """
        for folder in self.folders:
            if self._listed(folder).issuperset(names):  # mostly all of them are in one
                below = _below(folder, root)
                return [below + name for name in names]
        found: dict[str, str] = {}
        for head, wanted in _by_folder(names).items():
            written = f"{head}/" if head.strip("/") else head
            for folder in self.folders:
                there = wanted & self._listed(folder, head)
                below = _below(folder / head, root) if there else ""
                found.update({written + base: below + base for base in there})
                wanted.difference_update(there)
                if not wanted:
                    break
        return [found.get(name) for name in names]

    def _all(self, names: Iterable[str]) -> dict[str, Match]:
        """name → match, each name read as it stands."""
        found: dict[str, Match] = {}
        inside: dict[tuple[str, ...], dict[str, list[str]]] = {}
        for name in names:
            head, slash, base = name.rpartition("/")
            home = next((f for f in self.folders if base in self._listed(f, head or slash)), None)
            if home is not None:
                found[name] = Match(home / name, "exact")
            elif parts := PureWindowsPath(name).parts:  # splits at both / and \
                inside.setdefault(parts[:-1], {}).setdefault(parts[-1], []).append(name)
        for parts, wanted in inside.items():
            for start, folder in itertools.product(range(len(parts) + 1), self.folders):
                below = folder.joinpath(*parts[start:])
                for base in wanted.keys() & self._listed(folder, *parts[start:]):
                    match = Match(below / base, "exact" if start == 0 else "moved")
                    found.update(dict.fromkeys(wanted.pop(base), match))
            for base, written in wanted.items():
                found.update(dict.fromkeys(written, self._like(base)))
        return {name: found.get(name, Match(None, "missing")) for name in names}

    def _like(self, base: str) -> Match:
        """The file of another spelling, or ending, than ``base``."""
        for stem in (False, True):
            for folder in self.folders:
                found = self._loosely(folder, stem=stem).get(_loose_key(base, stem=stem), [])
                if len(found) == 1:
                    return Match(found[0], "stem" if stem else "spelling")
                if found:
                    return Match(None, "ambiguous", tuple(found))
        return Match(None, "missing")

    def _listed(self, folder: Path, *below: str) -> frozenset[str]:
        # One listing a folder instead of one stat a file: sets have 100,000 files.
        key = folder, tuple(filter(None, below))
        if key not in self._names:
            try:
                with os.scandir(folder.joinpath(*below)) as entries:
                    self._names[key] = frozenset([e.name for e in entries if _is_file(e)])
            except (OSError, ValueError):  # ValueError: a null character
                self._names[key] = frozenset()
        return self._names[key]

    def _loosely(self, folder: Path, *, stem: bool) -> dict[str, list[Path]]:
        if (folder, stem) not in self._loose:
            table: dict[str, list[Path]] = {}
            for name in sorted(self._listed(folder)):
                if Path(name).suffix.lower() in IMAGE_SUFFIXES:
                    table.setdefault(_loose_key(name, stem=stem), []).append(folder / name)
            self._loose[folder, stem] = table
        return self._loose[folder, stem]


def _is_file(entry: os.DirEntry[str]) -> bool:
    # is_file raises for a link to itself.
    return os.path.isfile(entry.path) if entry.is_symlink() else entry.is_file()  # noqa: PTH113


def _below(folder: Path, root: Path) -> str:
    """What stands before the names of a folder's files in paths relative to ``root``."""
    place = relative(folder, root)
    return "" if place == "." else f"{place.rstrip('/')}/"


def _by_folder(names: Iterable[str]) -> dict[str, set[str]]:
    """Folder as written ('' for none) → the names in it."""
    bare = set(names)
    inside = {"": bare}
    for name in [name for name in bare if "/" in name]:
        head, slash, base = name.rpartition("/")
        inside.setdefault(head or slash, set()).add(base)
        bare.discard(name)
    return inside


def _loose_key(name: str, *, stem: bool) -> str:
    if stem and Path(name).suffix.lower() in IMAGE_SUFFIXES:
        name = Path(name).stem
    return unicodedata.normalize("NFC", name).casefold()


def _path_of_url(name: str) -> str:
    """The path that a URL, or a name quoted like one, speaks of.

    ``/data/local-files/?d=a/b%20c.jpg`` (Label Studio) is ``a/b c.jpg``, and
    ``https://host/a.jpg?token=x`` is ``https://host/a.jpg``, whose leading folders do not count.
    """
    address, question, query = name.partition("?")
    if question and query.startswith("d="):
        address = query[2:].partition("&")[0]
    return unquote(address)


_UPLOAD_MARK = re.compile(r"(?<![^/\\])[0-9a-f]{8}-(?=[^/\\]+$)")


def _without_upload_mark(name: str) -> str:
    """``a.jpg`` of Label Studio's ``1a2b3c4d-a.jpg``."""
    return _UPLOAD_MARK.sub("", _path_of_url(name))


def locate_images(
    names: Sequence[str],
    finder: ImageFinder,
    *,
    source: str,
    root: Path,
    log: IssueLog,
    way_out: str = "Say where they are with the reader's option 'images'",
) -> list[str | None]:
    """Paths (relative to ``root``) of the images that ``source`` names; what was assumed is logged.

    A missing file gets the path where it was expected, so that the check can name it; a name that
    fits several files gets None, and an error in ``log``.

    Raises:
        DataError: not one of them was found; the message lists the folders tried.
    """
    paths = finder.exact(names, root)
    if None not in paths:
        return paths
    loose = [name for name, path in zip(names, paths, strict=True) if path is None]
    found = finder.find_all(loose)
    if len(loose) == len(names) and all(match.how == "missing" for match in found.values()):
        tried = "\n".join(
            f"- {folder}" + ("" if folder in finder.folders else " (no such folder)")
            for folder in finder.tried
        )
        raise DataError(
            f"none of the {len(names)} image(s) that {source} names was found, first "
            f"'{names[0]}'. Looked in:\n{tried}\n{way_out}"
        )
    homes = Counter(path.rpartition("/")[0] for path in paths if path is not None)
    below: dict[str, str] = {}  # a folder's, since there may be millions of files
    for match in found.values():
        if match.path:
            folder = os.path.dirname(match.path)  # noqa: PTH120 - pathlib takes ten times as long
            if folder not in below:
                below[folder] = _below(Path(folder), root)
            homes[below[folder].rstrip("/")] += 1
    home = root / (homes.most_common(1)[0][0] if homes else "")
    places: dict[str, str | None] = {}
    for name, match in found.items():
        if match.how == "ambiguous":
            log.add(
                "error", "ambiguous_image", file=source, value=f"'{name}': "
                + sample(relative(path, root) for path in match.candidates),
                action="several files fit this name: write the full name or remove one",
            )  # fmt: skip
            places[name] = None
        elif match.path:
            folder, base = os.path.split(match.path)
            places[name] = below[folder] + base
        else:
            expected = home / PureWindowsPath(name).name
            if os.path.exists(expected):  # noqa: PTH110 - another image's, or it would be found
                expected = finder.tried[0] / name
            places[name] = relative(expected, root)
    _refuse_shared(found, places, [path for path in paths if path], source=source, log=log)
    say_how(found, source=source, root=root, log=log)
    return [places[n] if path is None else path for n, path in zip(names, paths, strict=True)]


def _refuse_shared(
    found: Mapping[str, Match],
    places: dict[str, str | None],
    exact: Iterable[str],
    *,
    source: str,
    log: IssueLog,
) -> None:
    """Takes the place from names whose leading folders were left out, if another has it, too.

    ``cam1/1.jpg`` and ``cam2/1.jpg`` are two pictures, even if only ``images/1.jpg`` is there.
    """
    there = [places[name] for name, match in found.items() if match.how != "missing"]
    claims = Counter([*there, *set(exact)])
    shared = [n for n, match in found.items() if match.how == "moved" and claims[places[n]] > 1]
    for name in shared:
        log.add(
            "error", "ambiguous_image", file=source, value=f"'{name}': {places[name]}",
            action="the file is there without these folders only, and another image that is listed "
            "has it, too: restore the file in its folder, or list it once",
        )  # fmt: skip
        places[name] = None


_HOW = {
    "moved": ("image_path", "looked up without the leading folders of the path"),
    "spelling": ("image_spelling", "matched in spite of other case or Unicode form"),
    "stem": ("image_ending", "matched by name without ending"),
    "url": ("image_url", "the name was read as a URL, or without the mark of an upload"),
}


def say_how(found: Mapping[str, Match], *, source: str, root: Path, log: IssueLog) -> None:
    """Logs which images were found otherwise than as they are named (name → match)."""
    for how, (rule, action) in _HOW.items():
        matches = [(name, match.path) for name, match in found.items() if match.how == how]
        if matches and (path := matches[0][1]):
            value = f"{len(matches)} image(s), first '{matches[0][0]}' -> {relative(path, root)}"
            log.add("info", rule, file=source, value=value, action=action)
