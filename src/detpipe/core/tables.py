"""The tables that pass between the stages, their columns and their checks.

Boxes are absolute pixels of the upright image, 0-based, x2/y2 exclusive. Classes go by name; ids
are strings. See ``docs/tables.md``.

Each :class:`Table` is also a Kedro ``validator:`` (it has ``validate``), so the catalog checks a
table whenever it is loaded or saved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from detpipe.core.errors import TableError, one_message

Kind = Literal["str", "int", "float", "bool"]

_DTYPES: Mapping[Kind, str] = {"str": "str", "int": "int64", "float": "float64", "bool": "bool"}


@dataclass(frozen=True)
class Table:
    """A DataFrame's columns, in order, with their kinds and the rules their values obey.

    Attributes:
        name: what messages call it.
        columns: column → kind.
        rules: (sentence, function that gives a boolean Series: True where the rule holds).
        unique: columns that together must not repeat; empty for none.
        optional: columns, with their kinds, that are kept where they are and not asked for.
    """

    name: str
    columns: Mapping[str, Kind]
    rules: tuple[tuple[str, Callable[[pd.DataFrame], pd.Series]], ...] = ()
    unique: tuple[str, ...] = ()
    optional: Mapping[str, Kind] = field(default_factory=dict)

    def empty(self) -> pd.DataFrame:
        """The table without rows, dtypes set."""
        return pd.DataFrame({c: pd.Series(dtype=_DTYPES[k]) for c, k in self.columns.items()})

    def make(self, rows: Iterable[Mapping[str, Any]] | pd.DataFrame) -> pd.DataFrame:
        """A checked table from rows or from a frame; columns ordered, kinds converted.

        Raises:
            TableError: a column is missing, a value does not convert or breaks a rule.
        """
        frame = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(list(rows))
        if frame.empty and not len(frame.columns):
            return self.empty()
        missing = [column for column in self.columns if column not in frame]
        if missing:
            raise TableError(
                f"table '{self.name}' lacks the column(s) {', '.join(missing)}; "
                f"it has {', '.join(map(str, frame.columns))}"
            )
        mistakes, columns = [], {}
        there = {column: kind for column, kind in self.optional.items() if column in frame}
        given = {column: frame[column] for column in [*self.columns, *there]}
        for column, kind in {**self.columns, **there}.items():
            try:
                columns[column] = _convert(given[column], kind)
            except (TypeError, ValueError) as error:
                mistakes.append(f"column '{column}' must be {kind}: {error}")
        if not mistakes:
            # What is right already is not copied: tables may be large.
            same = all(columns[column] is given[column] for column in given)
            fits = same and list(frame.columns) == list(columns)
            checked = (frame if fits else pd.DataFrame(columns)).reset_index(drop=True)
            mistakes = self._broken_rules(checked)
        if mistakes:
            raise TableError(one_message(f"table '{self.name}' is not valid:", mistakes))
        return checked

    def validate(self, data: pd.DataFrame) -> pd.DataFrame:
        """:meth:`make` under the name Kedro's catalog calls."""
        return self.make(data)

    def _broken_rules(self, frame: pd.DataFrame) -> list[str]:
        mistakes = []
        for sentence, holds in self.rules:
            bad = frame[~holds(frame).astype(bool)]
            if len(bad):
                mistakes.append(f"{sentence}: {len(bad)} row(s) break it, first {_row(bad)}")
        if self.unique:
            bad = frame[frame.duplicated(list(self.unique), keep="first")]
            if len(bad):
                mistakes.append(
                    f"{' + '.join(self.unique)} must be unique: {len(bad)} row(s) repeat, "
                    f"first {_row(bad)}"
                )
        return mistakes


def _convert(column: pd.Series, kind: Kind) -> pd.Series:
    if column.dtype == _DTYPES[kind] and not (kind == "str" and column.hasnans):
        return column  # the rule in a large table, and much faster than to look at each value
    if kind == "str":
        return column.fillna("").astype(str).astype("str")
    if kind == "float":
        return pd.to_numeric(column).astype("float64")
    if kind == "bool":
        if column.isna().any():
            raise ValueError(f"{int(column.isna().sum())} value(s) are missing")
        if not column.isin([0, 1]).all():
            raise ValueError(f"got {column[~column.isin([0, 1])].iloc[0]!r}")
        return column.astype("bool")
    numbers = pd.to_numeric(column)
    if numbers.isna().any():
        raise ValueError(f"{int(numbers.isna().sum())} value(s) are missing")
    if (numbers != numbers.round()).any():
        raise ValueError("it holds fractions")
    return numbers.astype("int64")


def _row(frame: pd.DataFrame) -> str:
    (row,) = frame.head(1).to_dict("records")  # Python's numbers, not numpy's
    return ", ".join(f"{column}={value!r}" for column, value in row.items())


def positions(values: pd.Series, among: pd.Series) -> npt.NDArray[np.int32]:
    """Where each of the texts ``values`` stands in ``among``; -1 for one that does not.

    Ten to twenty times as fast as pandas' ``isin``, ``map`` or ``get_indexer`` on texts.
    """
    import pyarrow.compute as pc

    found = pc.index_in(arrow_binary(values), value_set=arrow_binary(among))
    places: npt.NDArray[np.int32] = found.fill_null(-1).to_numpy(zero_copy_only=False)
    return places


def arrow_binary(texts: Iterable[str]) -> Any:
    """A ``pyarrow.LargeBinaryArray`` of the texts; no copy of a column that Arrow holds.

    Names that are not UTF-8 on disk survive (surrogate escapes).
    """
    import pyarrow as pa

    dtype = getattr(texts, "dtype", None)
    if not isinstance(dtype, pd.StringDtype) or dtype.storage != "pyarrow":
        return pa.array([text.encode("utf-8", "surrogateescape") for text in texts],
                        pa.large_binary())  # fmt: skip
    array = pa.array(texts)
    whole = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    return whole.cast(pa.large_binary())


BOX_COLUMNS = ["x1", "y1", "x2", "y2"]

IMAGES = Table(
    "images",
    {"image_id": "str", "path": "str", "width": "int", "height": "int", "split": "str"},
    rules=(
        (
            "width and height must be 0 (not yet known) or more",
            lambda t: (t["width"] >= 0) & (t["height"] >= 0),
        ),
    ),
    unique=("image_id",),
    optional={"group": "str", "twin": "str", "negative": "str", "not_exhaustive": "str"},
)
"""One row an image, those without boxes too. ``path`` is relative to the data set's root;
``width`` and ``height`` are those of the upright image (EXIF applied). ``group`` is the video,
patient or scene it belongs to, ``twin`` the first of the files of its content, '' for none: a split
that is drawn keeps either together. ``negative`` and ``not_exhaustive`` are LVIS's: JSON lists of
classes, those looked for and not there, and those of which not every object has a box; '' where the
source has no such list: all classes were looked for, every object has its box."""

BOXES = Table(
    "boxes",
    {
        "image_id": "str", "annotation_id": "str", "class_name": "str",
        "x1": "float", "y1": "float", "x2": "float", "y2": "float",
        "area": "float", "iscrowd": "bool", "difficult": "bool",
    },
    optional={"extra": "str"},
)  # fmt: skip
"""One row an object. ``extra`` is a JSON object of what else its source says of it, by the source's
names (``segmentation``, ``truncated``, …), '' for nothing."""

CLASSES = Table(
    "classes", {"class_name": "str"}, unique=("class_name",), optional={"frequency": "str"}
)
"""The classes in the order of the model's labels 1..C (0 is background). ``frequency`` is LVIS's:
``r`` (rare, in 1 to 10 training images), ``c`` (common, 11 to 100) or ``f`` (frequent), '' where it
is not known."""

DETECTIONS = Table(
    "detections",
    {
        "image_id": "str", "class_name": "str",
        "x1": "float", "y1": "float", "x2": "float", "y2": "float", "score": "float",
    },
    rules=(("score must lie in 0..1", lambda t: t["score"].between(0, 1)),),
)  # fmt: skip
"""One row a detection, in pixels of the upright image on disk."""

SCORES = Table(
    "scores",
    {"dataset": "str", "task": "str", "metric": "str", "class_name": "str", "value": "float"},
    unique=("dataset", "task", "metric", "class_name"),
)
"""AP and AR in percent; an empty class_name means all classes; NaN means there is no number."""

ISSUES = Table(
    "issues",
    {
        "severity": "str", "rule": "str", "file": "str", "image_id": "str",
        "annotation_id": "str", "value": "str", "action": "str",
    },
    rules=(("severity must be error, warning or info",
            lambda t: t["severity"].isin(["error", "warning", "info"])),),
)  # fmt: skip
"""What the check found: one row a finding, with what was done about it."""

VERDICT = Table(
    "verdict",
    {
        "dataset": "str", "task": "str", "metric": "str", "class_name": "str", "baseline": "str",
        "expected": "float", "tolerance": "float", "min": "float", "max": "float",
        "actual": "float", "ok": "bool", "reason": "str",
    },
)  # fmt: skip
"""One row an expectation. ``expected`` is the value that was given, or the result of the
``baseline`` ('' for none), NaN where only bounds are; ``min`` and ``max`` are the least and the
most that pass, NaN where there is no bound. ``reason`` is '' where it is ok."""
