"""What every reader shares: its result, a log of findings, names of splits and ids."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import pandas as pd

from detpipe.core.errors import DataError
from detpipe.core.tables import BOX_COLUMNS, BOXES, CLASSES, IMAGES, ISSUES

Severity = Literal["error", "warning", "info"]

IMAGE_SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".jpe", ".png", ".bmp", ".tif", ".tiff", ".webp", ".gif", ".mpo", ".ppm",
     ".pgm", ".avif", ".heic", ".heif", ".jp2", ".jxl")
)  # fmt: skip
"""File endings (lower case) that are taken for images."""

_SPLIT = re.compile(
    r"(?<![a-z])(trainval|training|train|validation|valid|val|dev|testing|test)(?![a-z])",
    re.IGNORECASE,
)


_LARGEST = 2**31 - 1
"""No picture has more pixels in a row."""


class Annotations(NamedTuple):
    """A data set as four tables of :mod:`detpipe.core.tables`.

    ``images.path`` is relative to the data set's root, with ``/``. As a reader gives it, boxes may
    still be wrong, sizes 0 (not yet known), and ``issues`` may hold errors;
    :func:`detpipe.data.check.check` deals with all three. ``classes`` is in label order.
    """

    images: pd.DataFrame
    boxes: pd.DataFrame
    classes: pd.DataFrame
    issues: pd.DataFrame


@dataclass
class IssueLog:
    """Collects rows of the ``issues`` table."""

    rows: list[dict[str, str]] = field(default_factory=list)
    _frames: list[pd.DataFrame] = field(default_factory=list)
    """What was logged before ``rows``."""

    def add(
        self,
        severity: Severity,
        rule: str,
        *,
        file: str = "",
        image_id: str = "",
        annotation_id: str = "",
        value: object = "",
        action: str = "",
    ) -> None:
        """Adds one finding.

        ``rule`` is its kind, ``value`` what was found, ``action`` what is done about it (or, for an
        error, what the user can do).
        """
        self.rows.append(
            {
                "severity": severity, "rule": rule, "file": file, "image_id": image_id,
                "annotation_id": annotation_id, "value": str(value), "action": action,
            }
        )  # fmt: skip

    def add_rows(self, severity: Severity, rule: str, rows: pd.DataFrame, *, action: str) -> None:
        """Adds many findings of one kind at once.

        ``rows`` has the columns ``file``, ``image_id``, ``annotation_id`` and ``value``, or some of
        them.
        """
        if rows.empty:
            return
        self._frames.append(ISSUES.make(self.rows) if self.rows else ISSUES.empty())
        self.rows = []
        rows = rows.assign(severity=severity, rule=rule, action=action)
        self._frames.append(rows.reindex(columns=list(ISSUES.columns), fill_value=""))

    def table(self) -> pd.DataFrame:
        """The ``issues`` table."""
        rows = ISSUES.make(self.rows) if self.rows else ISSUES.empty()
        return pd.concat([*self._frames, rows], ignore_index=True) if self._frames else rows


def box_rows(boxes: pd.DataFrame, files: Mapping[str, str]) -> pd.DataFrame:
    """Boxes as :meth:`IssueLog.add_rows` takes findings; ``files`` gives image_id → file."""
    parts = (boxes[column].tolist() for column in ("class_name", *BOX_COLUMNS))
    return boxes[["image_id", "annotation_id"]].assign(
        file=[files.get(image_id, "") for image_id in boxes["image_id"].tolist()],
        value=["%s (%g, %g, %g, %g)" % row for row in zip(*parts, strict=True)],  # noqa: UP031
    )


def make_tables(
    images: Iterable[Mapping[str, object]] | pd.DataFrame,
    boxes: Iterable[Mapping[str, object]] | pd.DataFrame,
    classes: Sequence[str] | None,
    log: IssueLog,
    *,
    frequency: Mapping[str, str] | None = None,
) -> Annotations:
    """The four tables, checked for columns and kinds.

    Names of classes are cleaned with :func:`clean_name`, so that names which look the same are one
    class; what changed is an issue. ``classes`` None means those of the boxes, in alphabetical
    order; a name of blanks is no class. ``frequency`` gives the clean names' ``classes.frequency``;
    without any there is no such column.

    Raises:
        TableError: as :meth:`detpipe.core.tables.Table.make`.
    """
    box_table = BOXES.make(boxes)
    used = box_table["class_name"].unique().tolist()
    written = list(dict.fromkeys([*(used if classes is None else classes), *used]))
    clean = {name: clean_name(name) for name in written}
    # ascii: two Unicode forms of a name look the same.
    changed = [f"{name!a} -> {new!a}" for name, new in clean.items() if name != new]
    if changed:
        log.add(
            "info", "class_name_cleaned", value=sample(changed),
            action="blanks around the name taken off, letters in Unicode form NFC",
        )  # fmt: skip
        box_table = box_table.assign(class_name=box_table["class_name"].map(clean))
        box_table = BOXES.make(box_table)
    names = sorted({clean[name] for name in used}) if classes is None else [
        clean[name] for name in classes
    ]  # fmt: skip
    return Annotations(
        IMAGES.make(images),
        box_table,
        class_table([name for name in dict.fromkeys(names) if name], frequency or {}),
        log.table(),
    )


def class_table(names: Sequence[str], frequency: Mapping[str, str]) -> pd.DataFrame:
    """The ``classes`` table; the column ``frequency`` is there if a class has one."""
    rows = [{"class_name": name} for name in names]
    if frequency.keys() & set(names):
        rows = [row | {"frequency": frequency.get(row["class_name"], "")} for row in rows]
    return CLASSES.make(rows)


def known_sizes(images: pd.DataFrame, *, file: str, log: IssueLog) -> pd.DataFrame:
    """The images with whole ``width`` and ``height``; 0 for what is no size of a picture.

    Args:
        images: ``path``, and ``width`` and ``height`` as numbers; NaN is unknown, too.
        file: which file lists them.
        log: gets the sizes that cannot be.
    """
    sizes = images[["width", "height"]].fillna(0)
    odd = ~sizes.apply(lambda column: column.between(0, _LARGEST)).all(axis=1)
    if odd.any():
        first = images[odd].iloc[0]
        log.add(
            "warning", "size_impossible", file=file,
            value=f"{int(odd.sum())} image(s), the first {first['path']}: "
            f"{first['width']:g}x{first['height']:g}",
            action="taken as unknown: the file's size decides",
        )  # fmt: skip
        sizes = sizes.mask(odd, 0)
    return images.assign(**sizes.astype("int64"))


def clean_name(name: str) -> str:
    """A class's name without blanks around it, its letters composed (NFC)."""
    return unicodedata.normalize("NFC", name.strip())


def split_in_name(name: str) -> str:
    """The split that a file's or folder's name speaks of (``instances_val2017`` → ``val``), or ''.

    The word is given as written, in lower case: ``valid`` stays ``valid``.
    """
    found = _SPLIT.search(name)
    return found[1].lower() if found else ""


def existing_folder(root: Path) -> Path:
    """``root`` if it is a folder.

    Raises:
        DataError: it is not.
    """
    root = Path(root)
    if root.is_file():
        raise DataError(
            f"{root} is a file: name the folder that holds the data set, pictures and all (of an "
            f"archive, zip://::{root})"
        )
    if not root.is_dir():
        raise DataError(
            f"the data set's folder {root} does not exist (working folder: {Path.cwd()}); "
            f"name it with --params raw=<folder>, DETPIPE_RAW=<folder>, or 'raw' in the catalog"
        )
    return root


def relative(path: Path, root: Path) -> str:
    """``path`` relative to ``root`` with ``/``; outside of it with ``..``."""
    return Path(os.path.relpath(path, root)).as_posix()


def sample(names: Iterable[object], *, at_most: int = 5) -> str:
    """The first few names and how many more there are, for messages."""
    texts = [str(name) for name in names]
    more = f" and {len(texts) - at_most} more" if len(texts) > at_most else ""
    return ", ".join(texts[:at_most]) + more


def unique_ids(candidates: Sequence[Sequence[str]]) -> list[str]:
    """The first of several ways to name things that names each differently.

    Args:
        candidates: one sequence of names for each way, most wished for first; the last one is
            taken as it is.
    """
    for names in candidates[:-1]:
        if len(set(names)) == len(names) and "" not in names:
            return list(names)
    return list(candidates[-1])
