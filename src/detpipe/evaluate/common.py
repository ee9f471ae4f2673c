"""What the modules of this package share: order of images, checks and words for messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

import pandas as pd

from detpipe.core.errors import DataError, one_message
from detpipe.core.tables import positions

_SHOWN = 10


def image_order(images: pd.DataFrame) -> list[str]:
    """The ids of the images table, sorted: as numbers if all are, else as text.

    Scorers rank equal scores by the order of images. Sorting makes a score independent of the
    order of rows, and equal to that of a scorer that sorts the numbers of a COCO file.
    """
    ids = images["image_id"].tolist()
    if all(i.isdecimal() for i in ids):
        return sorted(ids, key=lambda i: (int(i), i))  # 1 and 01 may both be there
    return sorted(ids)


def check_known(images: pd.DataFrame, classes: pd.DataFrame, **tables: pd.DataFrame) -> None:
    """Checks that tables name only images and classes that exist.

    Args:
        images: the images table.
        classes: the classes table.
        tables: name → a table with ``image_id`` and ``class_name``.

    Raises:
        DataError: with everything that is unknown, of all tables.
    """
    mistakes = []
    for name, table in tables.items():
        mistakes += _unknown(name, "image", table["image_id"], images["image_id"])
        mistakes += _unknown(name, "class", table["class_name"], classes["class_name"])
    if mistakes:
        raise DataError(one_message("the tables do not belong together:", mistakes))


def records(table: pd.DataFrame) -> Iterator[Any]:
    """The rows of a table as named tuples."""
    return iter(table.itertuples(index=False))


def listed(values: list[str]) -> str:
    """The first few of ``values`` in quotes, and how many more there are."""
    rest = f" and {len(values) - _SHOWN} more" if len(values) > _SHOWN else ""
    return ", ".join(f"'{value}'" for value in values[:_SHOWN]) + rest


def did_you_mean(value: str, known: list[str]) -> str:
    """``; did you mean '…'?``, or nothing when no known value is near."""
    near = difflib.get_close_matches(value, known, 1)
    return f"; did you mean '{near[0]}'?" if near else ""


def _unknown(table: str, kind: str, values: pd.Series, known: pd.Series) -> list[str]:
    strangers = values[positions(values, known) < 0]
    if strangers.empty:
        return []
    names = strangers.unique().tolist()
    several, known_of = {"image": ("image(s)", "images"), "class": ("class(es)", "classes")}[kind]
    hint = did_you_mean(names[0], known.tolist()) if len(known) < 5000 else ""
    return [
        f"{table}: {len(strangers)} row(s) name {len(names)} {several} that the table of "
        f"{known_of} ({len(known)} rows) does not have: {listed(names)}{hint}"
    ]
