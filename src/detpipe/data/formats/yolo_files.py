"""YOLO's label files: which belongs to which image."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path

from detpipe.core.errors import DataError
from detpipe.data.formats.base import IMAGE_SUFFIXES, IssueLog, sample
from detpipe.data.formats.walk import files_in, read_bytes
from detpipe.data.formats.yolo_lines import parse


class LabelFiles:
    """Finds the label file of each image.

    Args:
        root: the data set's folder.
        log: gets what has no counterpart.
    """

    def __init__(self, root: Path, log: IssueLog) -> None:
        self.root, self.log = root, log
        self._listings: dict[str, frozenset[str]] = {}
        self._loose: dict[str, dict[str, str]] = {}
        self._folders: dict[str, list[str]] = {}

    def find(self, images: Sequence[str]) -> list[str | None]:
        """The text file of each image, None where there is none; all relative to the root."""
        files = [self._label_file(path) for path in images]
        self._say_without_file(images, files)
        self._say_without_image(files)
        return files

    def _label_file(self, image: str) -> str | None:
        """The text file of an image, relative to the root."""
        home, _, base = image.rpartition("/")
        name = f"{_stem(base)}.txt"
        if home not in self._folders:
            self._folders[home] = label_folders(home)
        for folder in self._folders[home]:
            there = name if name in self._listing(folder) else self._alike(folder).get(_key(name))
            if there:
                return f"{folder}/{there}" if folder else there
        return None

    def _listing(self, folder: str) -> frozenset[str]:
        if folder not in self._listings:
            self._listings[folder] = frozenset(files_in(self.root / folder))
        return self._listings[folder]

    def _alike(self, folder: str) -> dict[str, str]:
        """Text files by their name in NFC, with a small ending: macOS and Windows write others."""
        if folder not in self._loose:
            texts = [name for name in self._listing(folder) if _is_text(name)]
            self._loose[folder] = {_key(name): name for name in sorted(texts)}
        return self._loose[folder]

    def _say_without_file(self, images: Sequence[str], files: Sequence[str | None]) -> None:
        homes = [image.rpartition("/")[0] for image in images]
        without = [at for at, file in enumerate(files) if file is None]
        if not without:
            return
        with_file = {home for home, file in zip(homes, files, strict=True) if file is not None}
        first = {homes[at]: images[at] for at in reversed(without)}
        for home in sorted(set(first) - with_file):
            name = f"{_stem(first[home].rpartition('/')[2])}.txt"
            places = [f"{folder}/{name}".removeprefix("/") for folder in label_folders(home)]
            self.log.add(
                "warning" if with_file else "error", "no_labels", file=home,
                value=f"not one of its images has a label file; looked for {', '.join(places)}",
                action="taken as images without objects" if with_file
                else "put the label files there",
            )  # fmt: skip
        self.log.add(
            "info", "no_label_file",
            value=f"{len(without)} image(s): {sample(images[at] for at in without)}",
            action="taken as images without objects",
        )  # fmt: skip

    def _say_without_image(self, files: Sequence[str | None]) -> None:
        """Label files for which there is no picture, listed or not."""
        homes: dict[str, set[str]] = {}
        for home, folders in self._folders.items():
            for folder in folders:
                homes.setdefault(folder, set()).add(home)
        used = set(files)
        for folder, around in sorted(homes.items()):
            pictures = {
                _key(_stem(name)) for home in around for name in self._listing(home)
                if name.lower().endswith(tuple(IMAGE_SUFFIXES))
            }  # fmt: skip
            strays = [
                name
                for name in sorted(self._listing(folder))
                if _is_text(name)
                and f"{folder}/{name}".removeprefix("/") not in used
                and _key(_stem(name)) not in pictures
                and self._holds_labels(folder, name, alone=folder not in around)
            ]
            if strays:
                self.log.add(
                    "warning", "label_without_image", file=folder,
                    value=f"{len(strays)} label file(s): {sample(strays)}",
                    action="there is no picture of that name: not used",
                )  # fmt: skip

    def _holds_labels(self, folder: str, name: str, *, alone: bool) -> bool:
        """Not ``classes.txt``, ``README.txt``, ``autosplit_train.txt`` …; empty counts if alone."""
        try:
            data = read_bytes(self.root / folder / name)
        except DataError:
            return True
        text = data[:1000].decode("utf-8", "replace").strip()
        if not text:
            return alone
        words = text.splitlines()[0].split()
        return len(words) >= 5 and not parse([" ".join(words[:5])], None).mistakes


def label_folders(folder: str) -> list[str]:
    """Where the text files of a folder's images may lie, best first; '' is the root."""
    parts = folder.split("/")
    for at in range(len(parts) - 1, -1, -1):
        if parts[at] == "images":
            return ["/".join([*parts[:at], "labels", *parts[at + 1 :]]), folder]
    return [folder]


def _stem(name: str) -> str:
    return name.rpartition(".")[0] or name


def _is_text(name: str) -> bool:
    return name.lower().endswith(".txt")


def _key(name: str) -> str:
    """Names of one key are one name: in Unicode form NFC, the ending in small letters."""
    if not name.isascii():
        name = unicodedata.normalize("NFC", name)
    return f"{name[:-4]}.txt" if _is_text(name) else name
