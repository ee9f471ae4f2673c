"""YOLO's label files: which belongs to which image, and what is in them."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from detpipe.core.errors import DataError
from detpipe.core.tables import BOX_COLUMNS
from detpipe.data.formats.base import IMAGE_SUFFIXES, IssueLog, sample
from detpipe.data.formats.shares import in_pixels
from detpipe.data.formats.walk import files_in, read_bytes
from detpipe.data.formats.yolo_config import Keypoints
from detpipe.data.formats.yolo_lines import Parsed, extra_of, parse

_FILES_AT_ONCE = 4096
_BEYOND = 1e-6
"""Shares may leave 0..1 by this without a word: they are rounded."""


class Labels:
    """Reads label files and says what there is to say about all of them.

    Args:
        names: class number → name.
        keypoints: how many an object has, in pose data sets.
        root: the data set's folder.
        log: gets the findings.
        extra: whether polygons and keypoints are kept.
    """

    def __init__(
        self,
        names: Mapping[int, str],
        keypoints: Keypoints | None,
        root: Path,
        log: IssueLog,
        *,
        extra: bool = False,
    ) -> None:
        self.names, self.keypoints, self.root, self.log = names, keypoints, root, log
        self.extra = extra
        self.polygons = self.poses = self.beyond = 0
        self.wide: list[str] = []
        self._listings: dict[str, frozenset[str]] = {}
        self._loose: dict[str, dict[str, str]] = {}
        self._folders: dict[str, list[str]] = {}

    def read(self, images: pd.DataFrame) -> pd.DataFrame:
        """Rows of the ``boxes`` table, but for ``area`` and the flags.

        ``images`` has ``image_id``, ``path``, ``width`` and ``height``.
        """
        files = [self._label_file(path) for path in images["path"]]
        self._say_without_file(images["path"].tolist(), files)
        self._say_without_image(files)
        starts = range(0, len(files), _FILES_AT_ONCE)
        parts = [
            self._part(images.iloc[at : at + _FILES_AT_ONCE], files[at : at + _FILES_AT_ONCE])
            for at in starts
        ]
        boxes = pd.concat(parts, ignore_index=True)
        self._say_of_all(len(boxes))
        return boxes

    def _part(self, images: pd.DataFrame, files: Sequence[str | None]) -> pd.DataFrame:
        owner, number, texts = [], [], []
        for row, file in enumerate(files):
            for line, text in enumerate(self._lines(file) if file else (), 1):
                if text and not text.isspace():
                    owner.append(row)
                    number.append(line)
                    texts.append(text)
        parsed = parse(texts, self.keypoints)
        rows = images.iloc[owner]
        sizes = rows[["width", "height"]].to_numpy(np.int64)
        frame = pd.DataFrame(in_pixels(parsed.corners, sizes), columns=BOX_COLUMNS)
        ids = rows["image_id"].tolist()
        frame["image_id"] = pd.Series(ids, dtype="str")
        frame["annotation_id"] = pd.Series(
            [f"{image}-{line}" for image, line in zip(ids, number, strict=True)], dtype="str"
        )
        frame["class_name"] = self._names(parsed)
        if self.extra:
            frame["extra"] = self._extra(parsed, sizes)
        frame["file"] = [f"{files[row]}:{line}" for row, line in zip(owner, number, strict=True)]
        frame["value"] = [text.strip() for text in texts]
        return self._checked(frame, parsed)

    def _names(self, parsed: Parsed) -> pd.Series:
        numbers = pd.Series(parsed.numbers)
        known = {n: self.names.get(n, f"unknown class number {n}") for n in numbers.unique()}
        return numbers.map(known).astype("str")

    def _extra(self, parsed: Parsed, sizes: np.ndarray) -> pd.Series:
        extra = [""] * len(sizes)
        for at in [*parsed.polygons, *parsed.poses]:
            width, height = sizes[at].tolist()
            extra[at] = extra_of(parsed, at, width, height, self.keypoints)
        return pd.Series(extra, dtype="str")

    def _checked(self, frame: pd.DataFrame, parsed: Parsed) -> pd.DataFrame:
        """The rows that could be read; the others, and shares beyond 0..1, are findings."""
        self.polygons += len(parsed.polygons)
        self.poses += len(parsed.poses)
        reasons: dict[str, list[int]] = {}
        for at, reason in parsed.mistakes.items():
            reasons.setdefault(reason, []).append(at)
        for reason, rows in reasons.items():
            found = frame.iloc[rows][["file", "image_id", "value"]]
            self.log.add_rows("error", "malformed_line", found, action=reason)
        low, high = parsed.corners.min(axis=1), parsed.corners.max(axis=1)
        beyond = (low < -_BEYOND) | (high > 1 + _BEYOND)
        self.beyond += int(beyond.sum())
        self.log.add_rows(
            "warning", "share_beyond_0_1",
            frame[beyond][["file", "image_id", "annotation_id", "value"]],
            action="the box is treated as one that lies outside its image",
        )  # fmt: skip
        return frame.drop(index=list(parsed.mistakes)).drop(columns=["file", "value"])

    # --- files ---------------------------------------------------------------------------------

    def _lines(self, file: str) -> list[str]:
        try:
            data = read_bytes(self.root / file)
        except DataError as error:
            self.log.add(
                "error", "malformed_line", file=file, value=error,
                action="make the file readable, or take it away: then the image has no objects",
            )  # fmt: skip
            return []
        try:
            if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
                self.wide.append(file)
                return data.decode("utf-16").splitlines()
            return data.decode("utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            self.log.add(
                "error", "malformed_line", file=file, value=repr(data[:40]),
                action=f"the file is no text in UTF-8 ({error.reason}): write it anew",
            )  # fmt: skip
            return []

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

    # --- findings ------------------------------------------------------------------------------

    def _say_of_all(self, boxes: int) -> None:
        if self.wide:
            self.log.add(
                "info", "label_encoding", value=f"{len(self.wide)} file(s): {sample(self.wide)}",
                action="written in UTF-16, and read so",
            )  # fmt: skip
        if self.polygons:
            self.log.add("info", "polygons", value=self.polygons, action="their boxes are used")
        if self.poses:
            self.log.add("info", "keypoints", value=self.poses, action="their boxes are used")
        if boxes and self.beyond > boxes / 2:
            self.log.add(
                "error", "labels_in_pixels", value=f"{self.beyond} of {boxes} boxes",
                action="coordinates must be shares of the image (0..1): divide x and width by the "
                "image's width, y and height by its height",
            )  # fmt: skip

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
