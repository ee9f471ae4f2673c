"""Where the files of an Open Images download lie."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from detpipe.core.errors import DataError
from detpipe.data.formats.base import IssueLog, relative, sample
from detpipe.data.formats.csv_files import split_of
from detpipe.data.formats.csv_text import read_table
from detpipe.data.formats.walk import visible
from detpipe.data.remote import resolve

_BOXES = ("*annotations-bbox*.csv", "*detection-bbox*.csv", "labels/detections.csv")
_CLASSES = ("*class-descriptions-boxable*.csv", "classes.csv", "*classes-description*.csv")
_MORE_CLASSES = ("*class-descriptions*.csv",)
_OTHERS = (
    "*imagelabels*.csv", "*object-segmentation*.csv", "*annotations-vrd*.csv",
    "labels/classifications.csv", "labels/segmentations.csv", "labels/relationships.csv",
)  # fmt: skip


def find_files(
    root: Path, given: str | Sequence[str] | Mapping[str, str] | None
) -> list[tuple[str, Path]]:
    """(split, csv file of boxes).

    Raises:
        DataError: there is none, or not the one that is asked for.
    """
    if isinstance(given, Mapping):
        files = [(split, resolve(root, name)) for split, name in given.items()]
    else:
        names = [given] if isinstance(given, str) else given
        paths = _find(root, _BOXES) if names is None else [resolve(root, name) for name in names]
        files = [(split_of(path, root), path) for path in paths]
    absent = [str(path) for _, path in files if not os.path.lexists(path)]
    if absent:
        raise DataError(f"no such annotation file: {', '.join(absent)}")
    if not files:
        there = [relative(path, root) for path in _find(root, ("*.csv",))]
        raise DataError(
            f"no boxes of Open Images in {root}: looked for {', '.join(_BOXES)} up to two levels "
            f"below, csv files there: {sample(there) or 'none'}; name the file with the reader's "
            f"option 'annotations'"
        )
    return files


def _find(root: Path, patterns: Iterable[str]) -> list[Path]:
    """Files that fit, each once, in ``root`` and up to two levels below, the nearest first."""
    return list(
        dict.fromkeys(
            path
            for pattern in patterns
            for level in ("", "*/", "*/*/")
            for path in visible(root, level + pattern)
        )
    )


def other_files(root: Path) -> list[str]:
    """Annotation files of other kinds than boxes, relative to ``root``."""
    return [relative(path, root) for path in _find(root, _OTHERS)]


def folders(root: Path, csv: Path, split: str, given: str | None) -> list[Path]:
    """Where the pictures of a split may lie, best first."""
    beside = csv.parent
    bases = [root / "images", root / "data", root, beside]
    if given is not None:
        bases = [resolve(root, given)]
    # FiftyOne: <split>/labels/detections.csv and <split>/data/<ImageID>.jpg
    home = [beside.parent / "data"] if given is None and beside.name == "labels" else []
    split_bases = [base / split for base in bases] if split else []
    inside = [base / name for base in split_bases for name in ("data", "images")]
    return [*split_bases, *inside, *home, *bases]


def class_names(
    root: Path, given: str | None, log: IssueLog, *, encoding: str
) -> tuple[dict[str, str], bool]:
    """MID → name in the file's order, and whether all of them are classes of the boxes.

    Raises:
        DataError: the file that is asked for is not there, or has not two columns.
    """
    if given is not None:
        found, every = [resolve(root, given)], True
    else:
        found = _find(root, _CLASSES)
        every = bool(found)
        found = found or _find(root, _MORE_CLASSES)
    if not found:
        log.add(
            "warning", "no_class_names",
            action="there is no class-descriptions-boxable.csv: labels serve as names",
        )  # fmt: skip
        return {}, True
    names: dict[str, str] = {}
    for path in found:  # FiftyOne has one beside each split
        if not os.path.lexists(path):
            raise DataError(f"no such file of class names: {path}")
        table = read_table(path, header=False, encoding=encoding)
        if len(table.columns) != 2:
            raise DataError(f"{path} must have two columns: the label (/m/01g317) and its name")
        for label, name in table.itertuples(index=False, name=None):
            if (label, name) != ("LabelName", "DisplayName"):
                names.setdefault(label.strip(), name)
    double = sorted(name for name, count in Counter(names.values()).items() if count > 1)
    if double and every:
        log.add(
            "warning", "duplicate_category_name", file=relative(found[0], root),
            value=sample(double), action="labels of the same name become one class",
        )  # fmt: skip
    return names, every
