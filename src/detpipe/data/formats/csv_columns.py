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
TEXTS: Mapping[str, tuple[str, ...]] = {"bbox": ("bbox",), "corners": ()}
"""Instead of four columns: one text of four numbers, ``x y w h`` or ``x1 y1 x2 y2``."""
OPTIONAL: Mapping[str, tuple[str, ...]] = {
    "width": ("width", "image_width", "img_width"),
    "height": ("height", "image_height", "img_height"),
    "split": ("split", "subset", "set"),
    "group": ("group",),
    "iscrowd": ("iscrowd", "is_crowd"),
    "difficult": ("difficult",),
    "area": ("area",),
    "extra": ("extra",),
}
_FOUR_POINTS = frozenset(("x1", "y1", "x2", "y2", "x3", "y3", "x4", "y4"))
_NOTHING = ("", "nan", "none", "null")
"""How programs write that there is no number."""
WITHOUT_HEADER = ("path", "x1", "y1", "x2", "y2", "class_name")
SCORES = ("score", "scores", "confidence")
"""Columns that only predictions have."""


def columns(
    there: Sequence[str],
    given: Mapping[str, str],
    *,
    file: str,
    log: IssueLog,
    classless: bool = False,
) -> dict[str, str]:
    """Our name → the file's column; a box is ``x1 y1 x2 y2``, ``x y w h``, ``bbox`` or ``corners``.

    Args:
        there: the file's columns.
        given: what the user says about them.
        file: its name, for messages.
        log: gets what was guessed.
        classless: whether the class is known without a column.

    Raises:
        DataError: ``given`` names a column that is not there, or one is missing.
    """
    ours = (*GUESSES, *SIDES, *TEXTS, *OPTIONAL)
    wrong = [name for name in given if name not in ours]
    absent = [name for name in given.values() if name not in there]
    if wrong or absent:
        raise DataError(
            f"{file}: option 'columns' has {sample([*wrong, *absent])}; it maps our names "
            f"({', '.join(ours)}) to the file's ({', '.join(there)})"
        )
    if (
        not set(given) & {*BOX_COLUMNS, *SIDES, *TEXTS}
        and {name.strip().lower() for name in there} >= _FOUR_POINTS
    ):
        raise DataError(
            f"{file}: a box has four points ({', '.join(there)}), but boxes must be upright: add "
            f"columns of the smallest and the largest x and y, and name them with the reader's "
            f"option 'columns': {{x1: xmin, y1: ymin, x2: xmax, y2: ymax}}"
        )
    plain = {n: a for n, a in GUESSES.items() if n not in BOX_COLUMNS}
    if classless:
        del plain["class_name"]
    ways = [{name: GUESSES[name] for name in BOX_COLUMNS}, SIDES]
    ways += [{name: aliases} for name, aliases in TEXTS.items()]
    # What the user names says which way it is.
    ways = [way for way in ways if set(given) & set(way)] or ways
    mappings = [_guess({**plain, **way, **OPTIONAL}, there, given) for way in ways]
    for way, mapping in zip(ways, mappings, strict=True):
        if set(mapping) >= {*plain, *way}:
            _say_what_was_guessed(mapping, there, given, file, log)
            return mapping
    missing = [name for name in (*plain, *ways[0]) if name not in mappings[0]]
    example = f"{{{missing[0]}: {there[0] if there else '…'}}}"
    raise DataError(
        f"{file}: cannot tell which column is {', '.join(missing)}; it has {', '.join(there)}. "
        f"Say so with the reader's option 'columns', such as {example}; a box is "
        f"x1, y1, x2, y2, or x, y, w, h (left upper corner and size), or one column with "
        f"four numbers: bbox (x y w h) or corners (x1 y1 x2 y2)"
        + ("; without a column of classes: option 'class_name'" if "class_name" in missing else "")
    )


def _say_what_was_guessed(
    mapping: Mapping[str, str], there: Sequence[str], given: Mapping[str, str], file: str,
    log: IssueLog,
) -> None:  # fmt: skip
    guessed = [f"{name} = {theirs}" for name, theirs in mapping.items() if name not in given]
    corner = "; x, y is the left upper corner" if {"w", "bbox"} & set(mapping) else ""
    if guessed and list(there) != list(WITHOUT_HEADER):
        log.add(
            "info", "columns", file=file, value=", ".join(guessed),
            action=f"guessed from the column names{corner}",
        )  # fmt: skip


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

    Numbers with a decimal comma are an error in ``log``, which shows what is no number, too.
    """
    text = next((name for name in TEXTS if name in rows), None)
    sides = ["x", "y", "w", "h"] if text == "bbox" or "w" in rows else BOX_COLUMNS
    texts = rows[sides] if text is None else _parts(rows[text], sides)
    numbers = texts.apply(pd.to_numeric, errors="coerce").astype("float64")
    odd = texts[numbers.isna().any(axis=1)].apply(lambda column: column.str.strip())
    commas = odd.apply(lambda column: column.str.fullmatch(r"[+-]?\d+,\d+")).any(axis=1)
    if len(odd) and commas.any():
        log.add(
            "error", "decimal_comma", file=file,
            value=f"{int(commas.sum())} row(s), the first: " + "; ".join(odd[commas].iloc[0]),
            action="write numbers with a decimal point (1.5, not 1,5)",
        )  # fmt: skip
    if sides != BOX_COLUMNS:
        x, y = numbers["x"], numbers["y"]
        numbers = numbers.assign(x1=x, y1=y, x2=x + numbers["w"], y2=y + numbers["h"])
    blank = pd.Series(False, index=rows.index)
    blank[odd.index] = odd.apply(lambda column: column.str.lower().isin(_NOTHING)).all(axis=1)
    wrong = odd.index[~blank[odd.index]]
    if len(wrong):
        written = rows[sides if text is None else [text]].loc[wrong].head(6).itertuples(index=False)
        log.add(
            "info", "box_as_written", file=file,
            value=f"{len(wrong)} row(s): {sample(map('; '.join, written))}",
            action="a box must be four numbers",
        )  # fmt: skip
    return rows.assign(blank=blank, **{column: numbers[column] for column in BOX_COLUMNS})


def _parts(texts: pd.Series, sides: Sequence[str]) -> pd.DataFrame:
    """Four texts of ``[1, 2, 3, 4]``, ``1 2 3 4`` and the like; ``?`` where they are not four."""
    value, between = r"([^\s,;()\[\]{}]+)", r"[\s,;]+"
    pattern = rf"^[\s(\[{{]*{between.join([value] * 4)}[\s)\]}}]*$"
    pieces = texts.str.extract(pattern).set_axis(list(sides), axis=1)
    blank = texts.str.strip("()[]{} ").str.lower().isin(_NOTHING)
    return pieces.astype("str").fillna("?").mask(blank, "")
