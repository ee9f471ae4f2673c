"""Which column of a csv file is which, and its boxes as corners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from detpipe.core.errors import DataError
from detpipe.core.tables import BOX_COLUMNS
from detpipe.data.formats.base import IssueLog, sample

GUESSES: Mapping[str, tuple[str, ...]] = {
    "path": ("filename", "file_name", "image_path", "image", "img", "path", "file", "imageid",
             "image_id", "image_name", "img_path"),
    "class_name": ("class", "label", "class_name", "classname", "category", "category_name",
                   "name", "labels", "type", "labelname", "cell_type"),
    "x1": ("xmin", "x1", "x_min", "left", "bbox_x1"),
    "y1": ("ymin", "y1", "y_min", "top", "bbox_y1"),
    "x2": ("xmax", "x2", "x_max", "right", "bbox_x2"),
    "y2": ("ymax", "y2", "y_max", "bottom", "bbox_y2"),
}  # fmt: skip
"""Our column → names it has elsewhere, the likeliest first."""
SIDES: Mapping[str, tuple[str, ...]] = {
    "x": ("x", "bbox_x", "xmin", "x1", "x_min", "left", "bbox_x1"),
    "y": ("y", "bbox_y", "ymin", "y1", "y_min", "top", "bbox_y1"),
    "w": ("w", "bbox_width", "bbox_w", "box_width", "width"),
    "h": ("h", "bbox_height", "bbox_h", "box_height", "height"),
}
"""Instead of the four corners: left upper corner and size of the box."""
OPTIONAL: Mapping[str, tuple[str, ...]] = {
    "width": ("width", "image_width", "img_width"),
    "height": ("height", "image_height", "img_height"),
    "split": ("split", "subset", "set"),
}
WITHOUT_HEADER = ("path", "x1", "y1", "x2", "y2", "class_name")


def columns(
    there: Sequence[str], given: Mapping[str, str], *, file: str, log: IssueLog
) -> dict[str, str]:
    """Our name → the file's column; boxes are ``x1 y1 x2 y2`` or else ``x y w h``.

    Args:
        there: the file's columns.
        given: what the user says about them.
        file: its name, for messages.
        log: gets what was guessed.

    Raises:
        DataError: ``given`` names a column that is not there, or one is missing.
    """
    ours = (*GUESSES, *SIDES, *OPTIONAL)
    wrong = [name for name in given if name not in ours]
    absent = [name for name in given.values() if name not in there]
    if wrong or absent:
        raise DataError(
            f"{file}: option 'columns' has {sample([*wrong, *absent])}; it maps our names "
            f"({', '.join(ours)}) to the file's ({', '.join(there)})"
        )
    mapping = _guess({**GUESSES, **OPTIONAL}, there, given)
    missing = [name for name in GUESSES if name not in mapping]
    if set(missing) & set(BOX_COLUMNS):
        plain = {name: GUESSES[name] for name in GUESSES if name not in BOX_COLUMNS}
        by_size = _guess({**plain, **SIDES, **OPTIONAL}, there, given)
        if set(by_size) >= {*plain, *SIDES} and not set(given) & set(BOX_COLUMNS):
            mapping, missing = by_size, []
    if missing:
        raise DataError(
            f"{file}: cannot tell which column is {', '.join(missing)}; it has {', '.join(there)}. "
            f"Say so with the reader's option 'columns', such as {{{missing[0]}: {there[0]}}}; a "
            f"box is x1, y1, x2, y2, or x, y, w, h (left upper corner and size)"
        )
    guessed = [f"{name} = {theirs}" for name, theirs in mapping.items() if name not in given]
    if guessed and list(there) != list(WITHOUT_HEADER):
        log.add(
            "info", "columns", file=file, value=", ".join(guessed),
            action="guessed from the column names"
            + ("; x, y is the left upper corner" if "w" in mapping else ""),
        )  # fmt: skip
    return mapping


def _guess(
    names: Mapping[str, Sequence[str]], there: Sequence[str], given: Mapping[str, str]
) -> dict[str, str]:
    mapping = {name: theirs for name, theirs in given.items() if name in names}
    free = {column.strip().lower(): column for column in there if column not in given.values()}
    for ours, aliases in names.items():
        key = next((name for name in (ours, *aliases) if name in free), None)
        if ours not in mapping and key is not None:
            mapping[ours] = free.pop(key)
    return mapping


def corners(rows: pd.DataFrame, *, file: str, log: IssueLog) -> pd.DataFrame:
    """The rows with float ``x1 y1 x2 y2``, NaN for what is no number; ``blank``: all four empty.

    Numbers with a decimal comma are an error in ``log``.
    """
    sides = [c for c in ("x", "y", "w", "h") if "w" in rows] or BOX_COLUMNS
    texts = rows[sides].apply(lambda column: column.str.strip())
    commas = texts.apply(lambda column: column.str.fullmatch(r"[+-]?\d+,\d+"))
    if commas.to_numpy().any():
        row = int(commas.any(axis=1).to_numpy().argmax())
        log.add(
            "error", "decimal_comma", file=file,
            value=f"{int(commas.any(axis=1).sum())} row(s), the first: "
            + "; ".join(texts.iloc[row]),
            action="write numbers with a decimal point (1.5, not 1,5)",
        )  # fmt: skip
    numbers = texts.apply(pd.to_numeric, errors="coerce").astype("float64")
    if "w" in rows:
        x, y = numbers["x"], numbers["y"]
        numbers = numbers.assign(x1=x, y1=y, x2=x + numbers["w"], y2=y + numbers["h"])
    return rows.assign(
        blank=(texts == "").all(axis=1), **{column: numbers[column] for column in BOX_COLUMNS}
    )
