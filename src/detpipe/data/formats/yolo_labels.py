"""YOLO's label files: what is in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from detpipe.core.errors import DataError
from detpipe.core.tables import BOX_COLUMNS
from detpipe.data.formats.base import IssueLog, sample
from detpipe.data.formats.shares import in_pixels
from detpipe.data.formats.walk import read_bytes
from detpipe.data.formats.yolo_config import Keypoints
from detpipe.data.formats.yolo_files import LabelFiles
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

    def read(self, images: pd.DataFrame) -> pd.DataFrame:
        """Rows of the ``boxes`` table, but for ``area`` and the flags.

        ``images`` has ``image_id``, ``path``, ``width`` and ``height``.
        """
        files = LabelFiles(self.root, self.log).find(images["path"].tolist())
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
