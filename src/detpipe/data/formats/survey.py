"""What lies below a folder: one pass over its names, and the beginnings of single files."""

from __future__ import annotations

import os
import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath, PurePosixPath

from detpipe.core.errors import DataError
from detpipe.data.formats.base import IMAGE_SUFFIXES, sample, split_in_name
from detpipe.data.formats.walk import is_hidden

DEPTH = 6
"""Levels below the folder that are looked at."""
MOST_FILES = 5_000_000
"""More files than that are not listed: a home folder, say."""
MOST_BYTES = 2**26
"""Bytes read of files of one ending, all in all."""
HEAD = 65_536
"""Bytes read of a file."""

_OPENING = 4096
"""Bytes that can be read in the time that opening a file takes."""
_PER_FOLDER = 100
"""JSON, csv and YAML files of one folder that are opened."""
_TELLING = re.compile(r"(instances_|_annot|result\.json|data(set)?\.ya?ml)")
"""What names of files begin with that describe a data set."""
_BESIDE = frozenset(("annotations", "annotation", "labels", "label"))
"""Folders that hold annotations of pictures elsewhere."""


@dataclass
class Folder:
    """The names in one folder.

    Attributes:
        place: relative to the surveyed folder, with ``/``; '' for itself.
        folders: names of the folders in it, sorted.
        names: ending (lower case, with its dot) → names of the files.
    """

    place: str
    folders: list[str] = field(default_factory=list)
    names: dict[str, list[str]] = field(default_factory=dict)

    def files(self, *suffixes: str) -> list[str]:
        """Names of the files with one of these endings, sorted."""
        return sorted(name for suffix in suffixes for name in self.names.get(suffix, ()))

    def pictures(self) -> int:
        """How many picture files there are."""
        return sum(len(self.names.get(suffix, ())) for suffix in IMAGE_SUFFIXES)

    def path(self, name: str) -> str:
        """The place of something in this folder."""
        return f"{self.place}/{name}" if self.place else name


class Survey:
    """The folders below ``root``, level by level, and what their files begin with.

    Hidden files, and ``__MACOSX``, are left out. Links are followed, but not to a folder above.

    Attributes:
        root: the folder.
        folders: place → what is in it.
        deeper: whether there are folders further down, which were not looked at.
        unopened: files that might have told more; too many of their ending had been opened.

    Raises:
        DataError: there are too many files.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folders: dict[str, Folder] = {}
        self.unopened: set[str] = set()
        self._heads: dict[str, str] = {}
        self._read: Counter[str] = Counter()
        self._pictures: Counter[str] = Counter()
        self._count = 0
        level = [""]
        for _ in range(DEPTH + 1):
            listed = [self._list(place) for place in level]
            self.folders.update((folder.place, folder) for folder in listed)
            level = [folder.path(name) for folder in listed for name in folder.folders]
        self.deeper = bool(level)
        for folder in self.folders.values():
            for place in (folder.place, *map(str, PurePosixPath(folder.place).parents)):
                self._pictures["" if place == "." else place] += folder.pictures()

    def _list(self, place: str) -> Folder:
        folder = Folder(place)
        try:
            with os.scandir(self.root / place) as entries:
                for entry in entries:
                    if is_hidden(entry.name):
                        continue
                    linked = entry.is_symlink()  # maybe to itself, which is_dir raises for
                    if os.path.isdir(entry.path) if linked else entry.is_dir():  # noqa: PTH112
                        if not (linked and _leads_up(entry.path)):
                            folder.folders.append(entry.name)
                    else:
                        folder.names.setdefault(suffix_of(entry.name), []).append(entry.name)
                        self._count += 1
        except PermissionError:
            pass  # what cannot be listed cannot be the data set; a reader that needs it says so
        if self._count > MOST_FILES:
            raise DataError(
                f"there are more than {MOST_FILES} files in {self.root}: set data.reader to the "
                f"data set's format instead of auto (coco, voc, yolo, …), or name a folder further "
                f"down"
            )
        folder.folders.sort()
        return folder

    def within(self, place: str) -> Iterator[Folder]:
        """The folder at ``place`` and all below it, level by level."""
        start = f"{place}/" if place else ""
        return (f for f in self.folders.values() if f.place == place or f.place.startswith(start))

    def head(self, file: str) -> str:
        """The beginning of a file as text; '' once too many of its ending have been opened.

        Bytes that are no UTF-8 become U+FFFD, those of UTF-16 with a mark are understood. Lines end
        with a line feed, whatever the file has.
        """
        if file not in self._heads:
            suffix = suffix_of(file)
            if self._read[suffix] >= MOST_BYTES:
                self.unopened.add(file)
                return ""
            try:
                with (self.root / file).open("rb") as stream:
                    data = stream.read(HEAD)
            except OSError:
                data = b""
            wide = data.startswith((b"\xff\xfe", b"\xfe\xff"))
            text = data.decode("utf-16" if wide else "utf-8-sig", "replace")
            self._heads[file] = text.replace("\r\n", "\n").replace("\r", "\n")
            self._read[suffix] += max(len(data), _OPENING)
        return self._heads[file]

    def pictures(self, place: str = "") -> int:
        """How many picture files there are at ``place`` and below."""
        return self._pictures[place]


def _leads_up(link: str) -> bool:
    return Path(link).parent.resolve().is_relative_to(Path(link).resolve())


def suffix_of(name: str) -> str:
    """The ending in lower case, ``.tfrecord`` of ``a.tfrecord-00000-of-00010`` too."""
    shard = re.search(r"(\.tfrecords?|\.record)(-\d+-of-\d+)?$", name.lower())
    return ".tfrecord" if shard else PurePath(name).suffix.lower()


def spread(names: list[str], *, at_most: int) -> list[str]:
    """Up to ``at_most`` names, evenly from the first to the last."""
    if len(names) <= at_most:
        return names
    return [names[i * (len(names) - 1) // (at_most - 1)] for i in range(at_most)]


# --- what belongs together --------------------------------------------------------------------


def home(survey: Survey, place: str) -> str:
    """The nearest folder at or above ``place`` that has pictures and is not one split's.

    A folder of annotations is passed over, too; where there are no pictures at all it is ''.
    """
    while place:
        name = posixpath.basename(place)
        if name.lower() not in _BESIDE and not is_split(name) and survey.pictures(place):
            return place
        place = posixpath.dirname(place)
    return place


def is_split(folder: str) -> bool:
    """Whether a folder of that name holds one split: ``valid``, ``train2017``; not ``my-test``."""
    words = re.sub(
        r"^(images?|imgs?|data)(?=[ _-])|[ _-](images?|imgs?|set|data)$|\d+$", "", folder
    )
    split = split_in_name(words)
    return bool(split) and words.strip(" _-").lower() == split


def by_home(survey: Survey, files: Iterable[str]) -> dict[str, list[str]]:
    """:func:`home` → the files that have it, relative to it."""
    groups: dict[str, list[str]] = {}
    for file in files:
        base = home(survey, posixpath.dirname(file))
        groups.setdefault(base, []).append(posixpath.relpath(file, base or "."))
    return groups


def by_split(files: Sequence[str]) -> dict[str, str] | None:
    """split → file, if each file speaks of another one in its name or its folder's."""
    splits = [split_of(file) for file in files]
    good = bool(splits) and all(splits) and len(set(splits)) == len(splits)
    return dict(zip(splits, files, strict=True)) if good else None


def split_of(file: str) -> str:
    """The split that a file's name speaks of, or its folder's, or ''."""
    return split_in_name(posixpath.basename(file)) or split_in_name(posixpath.dirname(file))


def _some(folder: Folder, *suffixes: str) -> list[str]:
    """Files of a folder to look into: those whose names speak of a data set come first."""
    names = folder.files(*suffixes)
    if len(names) > _PER_FOLDER:
        telling = [n for n in names if _TELLING.match(n) or split_in_name(n)]
        names = list(dict.fromkeys([*telling[:_PER_FOLDER], *spread(names, at_most=_PER_FOLDER)]))
    return [folder.path(name) for name in names[:_PER_FOLDER]]


def files_of(survey: Survey, *suffixes: str) -> list[str]:
    """Files with these endings, folder by folder; of many in one folder only some."""
    return [file for folder in survey.folders.values() for file in _some(folder, *suffixes)]


def under(base: str, *files: str) -> str:
    """The first few of the files, which are relative to ``base``, for messages."""
    return sample(posixpath.normpath(posixpath.join(base, file)) for file in files)
