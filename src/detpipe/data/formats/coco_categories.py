"""Classes of COCO files: categories by name, over all files of a data set."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from detpipe.data.formats.base import IssueLog, clean_name, sample
from detpipe.data.formats.coco_ids import key_of, texts
from detpipe.data.formats.coco_json import Category, Content
from detpipe.data.formats.federated import frequency_of


@dataclass
class Part:
    """One annotation file on its way to the tables.

    Attributes:
        split: the split of its images.
        path: the file.
        source: the same relative to the data set's root, for messages.
        content: what is in it.
        names: category key → name, as :func:`class_names` finds them.
    """

    split: str
    path: Path
    source: str
    content: Content
    names: dict[str, str] = field(default_factory=dict)


def class_names(parts: Sequence[Part], log: IssueLog) -> list[str]:
    """Class names in label order; fills each part's category key → name."""
    everything: dict[str, str] = {}
    for part in parts:
        part.names = _categories(part, log)
        for key, name in part.names.items():
            everything.setdefault(key, name)
    for part in parts:
        if not part.names and part.content.boxes is not None:
            used = sorted(texts(part.content.boxes.category_keys).unique())
            part.names = {key: everything.get(key, key) for key in used}
            if used:
                log.add(
                    "warning", "no_categories", file=part.source, value=sample(used),
                    action="'categories' is missing: names taken from the other files, or the "
                    "number is the name",
                )  # fmt: skip
    classes = list(dict.fromkeys(name for part in parts for name in part.names.values()))
    for part in parts:
        own = {clean_name(name) for name in part.names.values()}
        absent = [name for name in classes if clean_name(name) not in own]
        if absent and part.content.categories:
            log.add(
                "warning", "class_not_in_file", file=part.source, value=sample(absent),
                action="these classes are in other files of the data set only; kept",
            )  # fmt: skip
    return classes


def frequencies(parts: Sequence[Part]) -> dict[str, str]:
    """Class → LVIS's ``frequency``, of the classes that have one."""
    return frequency_of(
        (_record(category)[1], category.frequency)
        for part in parts
        for category in part.content.categories or []
    )


def _record(category: Category) -> tuple[str, str]:
    """Id and name, which is as written: make_tables cleans it, and says so."""
    key = key_of(category.id)
    name = category.name if isinstance(category.name, str) else key_of(category.name)
    return key, name if name.strip() else key


def _categories(part: Part, log: IssueLog) -> dict[str, str]:
    records = [_record(category) for category in part.content.categories or []]
    with contextlib.suppress(ValueError):  # ids that are no numbers: the order of the file
        records.sort(key=lambda record: float(record[0]))
    names: dict[str, str] = {}
    for key, name in records:
        if key in names and names[key] != name:
            log.add(
                "error", "duplicate_category_id", file=part.source,
                value=f"{key}: '{names[key]}' and '{name}'", action="give each category its own id",
            )  # fmt: skip
        elif key not in names and clean_name(name) in map(clean_name, names.values()):
            log.add(
                "warning", "duplicate_category_name", file=part.source, value=name,
                action="categories of the same name become one class",
            )  # fmt: skip
        names.setdefault(key, name)
    return names
