"""Which csv files of a folder hold the boxes."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import NamedTuple

from detpipe.core.errors import DataError
from detpipe.data.formats.base import IssueLog, relative, sample, split_in_name
from detpipe.data.formats.csv_columns import SCORES, columns
from detpipe.data.formats.csv_text import first_line
from detpipe.data.formats.walk import exists, visible
from detpipe.data.remote import resolve


class Candidate(NamedTuple):
    """A csv file, the split its path speaks of, and what its first line tells."""

    split: str
    path: Path
    boxes: bool
    scores: bool


def find_files(
    root: Path,
    given: str | Sequence[str] | Mapping[str, str] | None,
    known: Mapping[str, str] | None,
    encoding: str,
    log: IssueLog,
    *,
    classless: bool,
) -> list[tuple[str, Path]]:
    """(split, file) of the files that are asked for, or else of those that hold boxes.

    Args:
        root: the data set's folder; two levels below are looked through, too.
        given: the reader's option ``annotations``.
        known: its option ``columns``; None where that holds numbers: then any file may do.
        encoding: of the files.
        log: gets what was left out.
        classless: whether the class is known without a column.

    Raises:
        DataError: a file is not there, or it cannot be told which files hold the boxes.
    """
    if given is not None:
        if isinstance(given, Mapping):
            files = [(split, resolve(root, name)) for split, name in given.items()]
        else:
            names = [given] if isinstance(given, str) else list(given)
            paths = [resolve(root, name) for name in names]
            files = [(split_of(path, root), path) for path in paths]
        absent = [str(path) for _, path in files if not exists(path)]
        if absent or not files:
            raise DataError(f"no such annotation file: {', '.join(absent) or 'none given'}")
        return files
    there = visible(root, "*.csv", "*/*.csv", "*/*/*.csv")
    paths = sorted(path for path in there if not path.is_dir())
    found = [
        _look_at(path, split_of(path, root), known, encoding, classless=classless) for path in paths
    ]
    with_boxes = [file for file in found if file.boxes] or found
    truth = [file for file in with_boxes if not file.scores] or with_boxes
    named = [file for file in truth if file.split]
    chosen = named or (truth if len(truth) == 1 else [])
    if not chosen:
        texts = [f"{relative(f.path, root)}{_note(f)}" for f in [*truth, *found]]
        raise DataError(
            f"cannot tell which csv file of {root} holds the boxes: found "
            f"{sample(dict.fromkeys(texts), at_most=12) or 'none'}; name it with the reader's "
            f"option 'annotations'"
        )
    if left_out := [relative(f.path, root) for f in with_boxes if f.scores and f not in chosen]:
        log.add(
            "warning", "score_column", value=sample(left_out),
            action="taken for predictions and left out: others have no scores",
        )  # fmt: skip
    if len(found) > 1:
        log.add(
            "info", "annotation_files",
            value=sample(relative(file.path, root) for file in chosen),
            action="read: " + ("their names speak of a split" if named else
                               "the only one that holds boxes"),
        )  # fmt: skip
    return [(file.split, file.path) for file in chosen]


def split_of(path: Path, root: Path) -> str:
    """The split that a file's name speaks of, else the nearest folder's below the root, else ''."""
    parts = path.relative_to(root).parts if path.is_relative_to(root) else (path.name,)
    return next((word for part in reversed(parts) if (word := split_in_name(part))), "")


def _note(file: Candidate) -> str:
    return " (predictions: it has scores)" if file.scores else "" if file.boxes else " (no boxes)"


def _look_at(
    path: Path, split: str, known: Mapping[str, str] | None, encoding: str, *, classless: bool
) -> Candidate:
    try:
        names = fields(first_line(path, encoding))
    except DataError:
        return Candidate(split, path, boxes=True, scores=False)  # reading it says what is wrong
    boxes = True
    if known is not None and not without_header(names):
        try:
            columns(names, known, file="", log=IssueLog(), classless=classless)
        except DataError:
            boxes = False
    return Candidate(split, path, boxes, scores=any(name.lower() in SCORES for name in names))


def separator(line: str) -> str:
    """What stands between two values of a file with this first line."""
    return max(",;\t", key=line.count)


def fields(line: str) -> list[str]:
    """The values of a line."""
    return next(csv.reader([line], delimiter=separator(line)), [])


def without_header(names: Sequence[str]) -> bool:
    """Whether these are values of path, x1, y1, x2, y2, class rather than names of columns."""
    return len(names) == 6 and all(not word or _is_number(word) for word in names[1:5])


def _is_number(text: str) -> bool:
    try:
        return isfinite(float(text))
    except ValueError:
        return False
