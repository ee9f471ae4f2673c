"""Several data sets read as one."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pandas as pd
from pydantic import Field, model_validator

from detpipe.core.config import Spec, check_spec
from detpipe.core.errors import DataError
from detpipe.core.tables import BOXES, IMAGES
from detpipe.data.config import ClassesConfig, full_reader
from detpipe.data.formats.base import (
    Annotations,
    IssueLog,
    class_table,
    existing_folder,
    relative,
    sample,
    unique_ids,
)
from detpipe.data.formats.classes import choose_classes
from detpipe.data.formats.federated import frequencies_in, frequency_of
from detpipe.data.remote import is_url, resolve


class JoinedSet(Spec):
    """One of the data sets: its folder, its reader (``use``) with options, and its classes."""

    path: str
    """Its folder: relative to the data set's root, such as ``../other``, or absolute."""
    name: str | None = None
    """What messages and ids call it; the last part of ``path`` unless two are alike."""
    split: str | None = None
    """All of its images belong to this split; without it, to those that its reader gives."""
    rename: dict[str, str] = Field(default_factory=dict)
    """Its name of a class → the joined set's."""
    keep: list[str] = Field(default_factory=list)
    """Only these of its classes, by their new names."""
    drop: list[str] = Field(default_factory=list)
    """All of its classes but these, by their new names."""

    @model_validator(mode="before")
    @classmethod
    def _short_name(cls, data: Any) -> Any:
        return full_reader(data)

    @model_validator(mode="after")
    def _checked(self) -> Self:
        check_spec(self, where=self.path, args=1)
        _ = self.classes
        return self

    @property
    def classes(self) -> ClassesConfig:
        """``rename``, ``keep`` and ``drop``."""
        return ClassesConfig(rename=self.rename, keep=self.keep, drop=self.drop)


def read(root: Path, *, sets: list[JoinedSet], extra: bool = False) -> Annotations:
    """Reads several data sets as one.

    Args:
        root: the folder that ``images.path`` is relative to; it must exist.
        sets: one mapping for each data set: ``path`` (relative to ``root``, absolute, or a
            URL), ``use`` (its reader, such as ``coco``) with that reader's options, and where
            wanted ``name``, ``split`` (of all its images), ``rename``, ``keep`` and ``drop`` for
            its classes.
        extra: as the sets' readers' option of that name, where they have one.

    Classes are merged by name: the first set's in their order, then what the next ones add. Ids
    get the set's name in front (``name/id``) where two sets use the same.

    Raises:
        DataError: no set, a folder that is not there, or what the sets' readers raise.
    """
    root = existing_folder(root)
    if not sets:
        raise DataError("join: 'sets' is empty; list the data sets, each with 'path' and 'use'")
    homes = [resolve(root, one.path) for one in sets]
    absent = [
        f"{one.path} ({home})" for one, home in zip(sets, homes, strict=True) if not home.is_dir()
    ]
    if absent:
        raise DataError(
            f"join: no such folder: {', '.join(absent)}; each 'path' is a URL, absolute, or "
            f"relative to the data set's folder {root}"
        )
    log = IssueLog()
    places = [
        _place(str(home) if is_url(one.path) else one.path, root)
        for one, home in zip(sets, homes, strict=True)
    ]
    parts = [_part(*three, extra=extra) for three in zip(sets, homes, places, strict=True)]
    classes = list(dict.fromkeys(n for part in parts for n in part.classes["class_name"]))
    for place, part in zip(places, parts, strict=True):
        own = set(part.classes["class_name"])
        if missing := [name for name in classes if name not in own]:
            log.add(
                "warning", "class_not_in_set", file=place, value=sample(missing, at_most=10),
                action="kept; such objects in this set's pictures are unlabelled, if there are "
                "any, and learned as background: label them, or drop the class",
            )  # fmt: skip
    parts = _with_own_ids(parts, _names(sets), log)
    images, boxes, issues = (
        pd.concat(tables, ignore_index=True)
        for tables in zip(*((p.images, p.boxes, p.issues) for p in parts), strict=True)
    )
    return Annotations(
        IMAGES.make(images),
        BOXES.make(boxes),
        class_table(
            classes, frequency_of(pair for part in parts for pair in frequencies_in(part.classes))
        ),
        pd.concat([issues, log.table()], ignore_index=True),
    )


def _names(sets: Sequence[JoinedSet]) -> list[str]:
    """What to call the sets, each differently."""
    paths = [Path(os.path.normpath(one.path)) for one in sets]
    short = [one.name or path.name for one, path in zip(sets, paths, strict=True)]
    long = [one.name or path.as_posix() for one, path in zip(sets, paths, strict=True)]
    return unique_ids([short, long, [f"{n}-{name}" for n, name in enumerate(long, 1)]])


def _place(path: str, root: Path) -> str:
    """A set's folder relative to ``root``, with ``/``."""
    if Path(path).is_absolute():  # a '..' behind a link leads elsewhere than its spelling says
        return relative(Path(path).resolve(), root.resolve())
    return Path(os.path.normpath(path)).as_posix()


def _part(one: JoinedSet, home: Path, place: str, *, extra: bool) -> Annotations:
    """What one set's reader gives, its files relative to ``root``."""
    found: Annotations = one.build(home, extra=extra)
    found = choose_classes(found, one.classes, where=f"join: {one.path}")
    images = found.images.assign(path=below(place, found.images["path"]))
    if one.split is not None:
        images["split"] = one.split
    issues = found.issues.assign(file=below(place, found.issues["file"]))
    return Annotations(images, found.boxes, found.classes, issues)


def below(place: str, files: pd.Series) -> pd.Series:
    """Files relative to the folder ``place`` as files relative to where that is; '' stays ''."""
    if place == ".":
        return files
    return files.where((files == "") | files.str.startswith("/"), f"{place}/" + files).astype("str")


_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "image_id": ("images", "boxes"), "annotation_id": ("boxes",), "group": ("images",),
}  # fmt: skip
"""What must not mean two things → the tables that have it; ``issues`` speak of it, too."""


def _with_own_ids(
    parts: Sequence[Annotations], names: Sequence[str], log: IssueLog
) -> list[Annotations]:
    """The sets with ids, and groups, that no two of them share."""
    parts = list(parts)
    for column, tables in _COLUMNS.items():
        ids = [_values(part, tables, column) for part in parts]
        ways = [
            [""] * len(parts),
            [f"{name}/" for name in names],
            [f"{number}-{name}/" for number, name in enumerate(names, 1)],
        ]
        prefixes = next((way for way in ways if _all_differ(ids, way)), ways[-1])
        if prefixes == ways[0]:
            continue
        parts = [
            Annotations(
                *(_prefixed(table, column, prefix) for table in part)
            )
            for part, prefix in zip(parts, prefixes, strict=True)
        ]  # fmt: skip
        uses = Counter(name for own in ids for name in own)
        shared = min(name for name, count in uses.items() if count > 1)
        log.add(
            "info", "set_ids", value=f"{column}, such as '{shared}'",
            action=f"the sets use the same: {', '.join(prefixes)} was put in front",
        )  # fmt: skip
    return parts


def _values(part: Annotations, tables: Sequence[str], column: str) -> set[str]:
    frames = [getattr(part, table) for table in tables]
    values = {v for frame in frames if column in frame for v in frame[column].unique()}
    return values - {""}


def _all_differ(ids: Sequence[set[str]], prefixes: Sequence[str]) -> bool:
    seen: set[str] = set()
    for own, prefix in zip(ids, prefixes, strict=True):
        new = {prefix + name for name in own}
        if seen & new:
            return False
        seen |= new
    return True


def _prefixed(table: pd.DataFrame, column: str, prefix: str) -> pd.DataFrame:
    """The table with ``prefix`` before the column's values; an empty one stays empty."""
    if column not in table:
        return table
    values = table[column]
    return table.assign(**{column: values.where(values == "", prefix + values).astype("str")})
