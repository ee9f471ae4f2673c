"""Reader of csv files with one box a row, in any of the usual dialects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from detpipe.core.errors import DataError
from detpipe.core.tables import BOX_COLUMNS
from detpipe.data.formats.base import (
    Annotations,
    IssueLog,
    existing_folder,
    make_tables,
    relative,
    sample,
    split_in_name,
)
from detpipe.data.formats.csv_columns import WITHOUT_HEADER, corners
from detpipe.data.formats.csv_columns import columns as columns_of
from detpipe.data.formats.locate import ImageFinder, locate_images


@dataclass
class _File:
    split: str
    path: Path
    source: str
    rows: pd.DataFrame


def read(
    root: Path,
    *,
    annotations: str | Sequence[str] | Mapping[str, str] | None = None,
    columns: Mapping[str, str] | None = None,
    images: str | None = None,
    encoding: str = "utf-8-sig",
) -> Annotations:
    """Reads csv files with one box a row.

    Args:
        root: the data set's folder.
        annotations: the file, several files, or split → file, relative to ``root``. Without it:
            every csv file in it, or one or two levels below, whose name speaks of a split
            (``train_labels.csv``), or the only csv file there is. The split is a column, or comes
            from the file's name, or is ''.
        columns: our name → the file's: ``path class_name x1 y1 x2 y2`` (or ``x y w h``, left upper
            corner and size, for the last four) and, where there are any, ``width height split``,
            size and split of the image. Those not given are guessed, and it is said how.
        images: folder of the images, relative to ``root``. Without it they are looked for in
            ``images``, beside the csv, in folders named like the split, and in ``root``.
        encoding: how the files are written: ``utf-8-sig`` (UTF-8 with or without BOM), ``latin-1``,
            ``cp1252``, ``utf-16``, …

    Coordinates are pixels, x2/y2 exclusive. A row ``0,0,0,0``, or with four empty fields, stands
    for an image without objects. An image's id is its path. Classes are in alphabetical order.

    Raises:
        DataError: no file, columns that cannot be told, no image found. What is wrong with single
            records goes to ``issues``.
    """
    root = existing_folder(root)
    log = IssueLog()
    files = [
        _File(split, path, relative(path, root), _load(path, columns or {}, encoding, root, log))
        for split, path in _find_files(root, annotations)
    ]
    frames = [_with_paths(file, root, images, log) for file in files]
    rows = pd.concat(frames, ignore_index=True)
    empty = (rows[BOX_COLUMNS] == 0).all(axis=1) | rows["blank"]
    if empty.any():
        log.add(
            "info", "empty_image_row", value=f"{int(empty.sum())} row(s) of zeros or blanks",
            action="taken as images without objects",
        )  # fmt: skip
    pictures = rows.drop_duplicates(["split", "path"]).copy()
    in_two = pictures["path"].duplicated(keep=False)
    ids = pictures["path"].where(~in_two, pictures["split"] + "-" + pictures["path"])
    id_of = dict(zip(zip(pictures["split"], pictures["path"], strict=True), ids, strict=True))
    pictures["image_id"] = ids
    boxes = rows[~empty].copy()
    boxes["image_id"] = [
        id_of[key] for key in zip(boxes["split"], boxes["path"], strict=True)
    ]  # fmt: skip
    boxes["annotation_id"] = [str(number) for number in range(1, len(boxes) + 1)]
    boxes["area"] = (boxes["x2"] - boxes["x1"]) * (boxes["y2"] - boxes["y1"])
    boxes["iscrowd"] = boxes["difficult"] = False
    return make_tables(pictures, boxes, None, log)


# --- files -------------------------------------------------------------------------------------


def _find_files(
    root: Path, given: str | Sequence[str] | Mapping[str, str] | None
) -> list[tuple[str, Path]]:
    if given is not None:
        if isinstance(given, Mapping):
            files = [(split, root / name) for split, name in given.items()]
        else:
            names = [given] if isinstance(given, str) else list(given)
            files = [(split_in_name(Path(name).stem), root / name) for name in names]
        absent = [str(path) for _, path in files if not path.is_file()]
        if absent or not files:
            raise DataError(f"no such annotation file: {', '.join(absent) or 'none given'}")
        return files
    found = sorted([*root.glob("*.csv"), *root.glob("*/*.csv"), *root.glob("*/*/*.csv")])
    named = [(split_in_name(path.stem), path) for path in found if split_in_name(path.stem)]
    if len(named) == 0 and len(found) == 1:
        named = [("", found[0])]
    if not named:
        raise DataError(
            f"cannot tell which csv file of {root} holds the boxes: found "
            f"{sample(relative(p, root) for p in found) or 'none'}; name it with the reader's "
            f"option 'annotations'"
        )
    return named


def _load(
    path: Path, columns: Mapping[str, str], encoding: str, root: Path, log: IssueLog
) -> pd.DataFrame:
    """The file's rows under our column names; boxes as float, all else as text."""
    file = relative(path, root)
    try:
        first = path.read_text(encoding).split("\n", 1)[0]
        separator = max(",;\t", key=first.count)
        options: dict[str, Any] = {
            "sep": separator, "dtype": str, "keep_default_na": False, "encoding": encoding,
        }  # fmt: skip
        frame = pd.read_csv(path, **options)
        if not columns and len(frame.columns) == 6 and _numbers(list(frame.columns)[1:5]):
            frame = pd.read_csv(path, header=None, names=list(WITHOUT_HEADER), **options)
            log.add(
                "info", "columns", file=file, value="no header",
                action=f"read as {', '.join(WITHOUT_HEADER)}",
            )  # fmt: skip
    except (UnicodeError, LookupError) as error:
        raise DataError(
            f"{path} is not written in '{encoding}' ({error}); name its encoding with the reader's "
            f"option 'encoding', such as 'latin-1', 'cp1252' or 'utf-16'"
        ) from error
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise DataError(f"{path} cannot be read as csv: {error}") from error
    there = [str(column) for column in frame.columns]
    mapping = columns_of(there, columns, file=file, log=log)
    scores = [name for name in there if name.lower() in ("score", "scores", "confidence")]
    if scores:
        log.add(
            "warning", "score_column", file=file, value=", ".join(scores),
            action="the file may hold predictions; its boxes are taken as the truth",
        )  # fmt: skip
    rows = pd.DataFrame({ours: frame[theirs] for ours, theirs in mapping.items()}).fillna("")
    rows = corners(rows, file=file, log=log)
    for column in ("width", "height"):
        sizes = pd.to_numeric(rows[column], errors="coerce") if column in rows else 0
        rows[column] = pd.Series(sizes, index=rows.index).fillna(0).astype("int64")
    return rows


def _numbers(words: Sequence[str]) -> bool:
    """Whether these are numbers, or nothing (pandas calls an empty header ``Unnamed: 1``)."""
    return all(str(w).replace(".", "").isdigit() or str(w).startswith("Unnamed") for w in words)


def _with_paths(file: _File, root: Path, images: str | None, log: IssueLog) -> pd.DataFrame:
    """The rows with paths relative to ``root``, and their split."""
    rows = file.rows
    if "split" not in rows:
        rows["split"] = file.split
    beside = file.path.parent
    splits = [name for name in (file.split, *rows["split"].unique()) if name]
    bases = [root / images] if images is not None else [root / "images", beside, root]
    folders = [*(base / name for base in bases for name in dict.fromkeys(splits)), *bases]
    names = list(dict.fromkeys(rows["path"]))
    found = locate_images(names, ImageFinder(folders), source=file.source, root=root, log=log)
    rows["path"] = rows["path"].map(dict(zip(names, found, strict=True)))
    return rows.dropna(subset=["path"])
