"""Reader of csv files with one box a row, in any of the usual dialects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec
import pandas as pd

from detpipe.core.errors import DataError
from detpipe.core.tables import BOX_COLUMNS
from detpipe.data.formats.base import (
    Annotations,
    IssueLog,
    existing_folder,
    known_sizes,
    make_tables,
    relative,
    sample,
    unique_ids,
)
from detpipe.data.formats.csv_columns import SCORES, WITHOUT_HEADER, corners
from detpipe.data.formats.csv_columns import columns as columns_of
from detpipe.data.formats.csv_files import fields, find_files, separator, without_header
from detpipe.data.formats.csv_text import first_line, read_table
from detpipe.data.formats.locate import ImageFinder, locate_images
from detpipe.data.formats.shares import in_pixels, picture_sizes
from detpipe.data.formats.walk import exists, why
from detpipe.data.remote import resolve

_YES = ("1", "1.0", "true", "yes")


@dataclass(frozen=True)
class _Options:
    """What the user says of all files."""

    root: Path
    columns: Mapping[str, str]
    by_position: bool
    images: str | None
    class_name: str
    encoding: str
    extra: bool

    @classmethod
    def of(
        cls, root: Path, columns: Mapping[str, str | int], images: str | None, class_name: str,
        encoding: str, extra: bool,
    ) -> Self:  # fmt: skip
        """The options of :func:`read`.

        Raises:
            DataError: two of them contradict each other.
        """
        given = {ours: str(theirs) for ours, theirs in columns.items()}
        if class_name and "class_name" in given:
            raise DataError("options 'class_name' and 'columns: class_name' exclude each other")
        if encoding.lower() in ("utf-8", "utf8"):
            encoding = "utf-8-sig"  # the same, and without the mark that Excel puts in front
        return cls(root, given, _by_position(columns), images, class_name, encoding, extra)


def read(
    root: Path,
    *,
    annotations: str | Sequence[str] | Mapping[str, str] | None = None,
    columns: Mapping[str, str | int] | None = None,
    images: str | None = None,
    classes: str | None = None,
    class_name: str = "",
    shares: bool = False,
    encoding: str = "utf-8-sig",
    extra: bool = False,
) -> Annotations:
    """Reads csv files with one box a row.

    Args:
        root: the data set's folder.
        annotations: the file, several files, or split → file, relative to ``root``. Without it:
            every csv file in it, or one or two levels below, that has boxes and whose name or
            folder speaks of a split (``train_labels.csv``, ``val/boxes.csv``), or the only csv
            file with boxes; files with scores are taken for predictions where there are others.
            The split is a column, or comes from that name, or is ''.
        columns: our name → the file's, or, in files without header, the column's number from 0:
            ``path class_name x1 y1 x2 y2`` (for the last four also ``x y w h``, left upper corner
            and size, or one column of four numbers: ``bbox``, x y w h, or ``corners``) and, where
            there are any, ``width height split group`` of the image and ``iscrowd difficult area
            extra`` of the box. Those not given are guessed, and it is said how.
        images: folder of the images, relative to ``root``. Without it they are looked for in
            ``images``, beside the csv, in folders named like the split, and in ``root``.
        classes: a text file with one class a line, in label order. Without it: ``classes.txt``
            beside the csv if it has all classes of the boxes; else they are in alphabetical order.
        class_name: the class of every box, for files without such a column.
        shares: whether coordinates are shares of the image (0..1), not pixels.
        encoding: how the files are written: ``utf-8-sig`` (UTF-8 with or without BOM), ``latin-1``,
            ``cp1252``, ``utf-16``, …
        extra: whether the other columns are kept in ``boxes.extra``, by their names.

    Coordinates are pixels, x2/y2 exclusive. A row ``0,0,0,0``, or with four empty fields, stands
    for an image without objects. An image's id is its path.

    Raises:
        DataError: no file, columns that cannot be told, rows that cannot be read (each is named),
            no image found. What is wrong with single records goes to ``issues``.
    """
    root = existing_folder(root)
    log = IssueLog()
    options = _Options.of(root, columns or {}, images, class_name, encoding, extra)
    files = find_files(
        root, annotations, None if options.by_position else options.columns, options.encoding, log,
        classless=bool(class_name),
    )  # fmt: skip
    frames = [_rows(split, path, options, log) for split, path in files]
    rows = pd.concat(frames, ignore_index=True)
    empty = (rows[BOX_COLUMNS] == 0).all(axis=1) | rows["blank"]
    if empty.any():
        log.add(
            "info", "empty_image_row", value=f"{int(empty.sum())} row(s) of zeros or blanks",
            action="taken as images without objects",
        )  # fmt: skip
    pictures, image = _pictures(rows, log)
    if shares:
        sizes = picture_sizes(root, pictures["path"])
        rows[BOX_COLUMNS] = in_pixels(rows[BOX_COLUMNS].to_numpy(), sizes[image.to_numpy()])
    boxes = _boxes(rows[~empty], pictures["image_id"].take(image[~empty].to_numpy()))
    return make_tables(pictures, boxes, _classes(root, classes, files, boxes, log), log)


def _boxes(rows: pd.DataFrame, image_ids: pd.Series) -> pd.DataFrame:
    """The ``boxes`` table; ``image_ids`` has one for each row."""
    boxes = rows.assign(image_id=image_ids.to_numpy())
    boxes["annotation_id"] = [str(number) for number in range(1, len(boxes) + 1)]
    area = (boxes["x2"] - boxes["x1"]) * (boxes["y2"] - boxes["y1"])
    own = pd.to_numeric(boxes["area"], errors="coerce") if "area" in boxes else area
    boxes["area"] = own.fillna(area)
    for flag in ("iscrowd", "difficult"):
        words = boxes[flag].str.strip().str.lower() if flag in boxes else None
        boxes[flag] = False if words is None else words.isin(_YES)
    return boxes


def _by_position(columns: Mapping[str, str | int]) -> bool:
    numbers = [isinstance(theirs, int) for theirs in columns.values()]
    if any(numbers) and not all(numbers):
        raise DataError(
            "option 'columns' must hold the names of columns, or only their numbers (from 0) for "
            "files without header; it mixes the two"
        )
    return any(numbers)


def _rows(split: str, path: Path, options: _Options, log: IssueLog) -> pd.DataFrame:
    """The file's rows under our column names, with paths relative to the root and their split."""
    source = relative(path, options.root)
    rows = _load(path, source, options, log)
    if "split" not in rows:
        rows["split"] = split
    rows["path"] = rows["path"].str.strip()
    for column in ("width", "height"):
        sizes = pd.to_numeric(rows[column], errors="coerce") if column in rows else 0.0
        rows[column] = pd.Series(sizes, index=rows.index, dtype="float64")
    rows = known_sizes(rows, file=source, log=log)
    if options.class_name:
        rows["class_name"] = options.class_name
    rows = corners(rows, file=source, log=log)
    root, beside = options.root, path.parent
    given = options.images
    bases = [resolve(root, given)] if given is not None else [root / "images", beside, root]
    found = []
    for own, part in rows.groupby("split", sort=False):
        splits = [name for name in dict.fromkeys([str(own), split]) if name]
        folders = [*(base / name for base in bases for name in splits), *bases]
        names = part["path"].drop_duplicates()
        paths = locate_images(
            names.tolist(), ImageFinder(folders), source=source, root=root, log=log
        )
        found.append(part["path"].map(dict(zip(names, paths, strict=True))))
    rows["path"] = pd.concat(found) if found else ""
    return rows.dropna(subset=["path"])


def _load(path: Path, source: str, options: _Options, log: IssueLog) -> pd.DataFrame:
    """The columns that are used, under our names, all as text."""
    line = first_line(path, options.encoding)
    headless = options.by_position or (not options.columns and without_header(fields(line)))
    frame = read_table(
        path, header=not headless, separator=separator(line), encoding=options.encoding
    )
    frame.columns = [str(column) for column in frame.columns]
    if headless and not options.by_position:
        frame.columns = list(WITHOUT_HEADER)
        log.add(
            "info", "columns", file=source, value="no header",
            action=f"read as {', '.join(WITHOUT_HEADER)}",
        )  # fmt: skip
    there = list(frame.columns)
    mapping = columns_of(
        there, options.columns, file=source, log=log, classless=bool(options.class_name)
    )
    scores = [name for name in there if name.lower() in SCORES]
    if scores:
        log.add(
            "warning", "score_column", file=source, value=", ".join(scores),
            action="the file may hold predictions; its boxes are taken as the truth",
        )  # fmt: skip
    rows = pd.DataFrame({ours: frame[theirs] for ours, theirs in mapping.items()})
    if "extra" in rows and "extra" not in options.columns:
        is_json = rows["extra"].str.startswith("{") | (rows["extra"] == "")
        if not is_json.all():
            del rows["extra"], mapping["extra"]
    if not options.extra:
        return rows.drop(columns="extra", errors="ignore")
    if "extra" not in rows:
        others = frame[[name for name in there if name not in mapping.values()]]
        rows["extra"] = [
            msgspec.json.encode(row).decode() if row else "" for row in others.to_dict("records")
        ]
    return rows


def _pictures(rows: pd.DataFrame, log: IssueLog) -> tuple[pd.DataFrame, pd.Series]:
    """The images in order of appearance, and the number of its image for each row."""
    keys = ["split", "path"]
    image = rows.groupby(keys, sort=False, dropna=False).ngroup()
    pictures = rows.drop_duplicates(keys).reset_index(drop=True)
    paths, with_split = pictures["path"], pictures["split"] + "-" + pictures["path"]
    some = paths.where(~paths.duplicated(keep=False), with_split)
    numbered = [f"{number}-{path}" for number, path in enumerate(paths)]
    pictures["image_id"] = unique_ids([some.tolist(), with_split.tolist(), numbered])
    if "group" in rows:
        groups = rows.groupby(image)["group"].nunique()
        if (groups > 1).any():
            log.add(
                "warning", "image_in_two_groups",
                value=f"{int((groups > 1).sum())} image(s): "
                + sample(pictures["path"][groups > 1]),
                action="the group of the first row counts",
            )  # fmt: skip
    return pictures, image


def _classes(
    root: Path,
    given: str | None,
    files: Sequence[tuple[str, Path]],
    boxes: pd.DataFrame,
    log: IssueLog,
) -> list[str] | None:
    """The classes in label order; None where no file says."""
    path = resolve(root, given) if given is not None else files[0][1].parent / "classes.txt"
    if not exists(path):
        if given is not None:
            raise DataError(f"no such file of classes: {path}")
        return None
    try:
        names = [line.strip() for line in path.read_text("utf-8-sig").splitlines()]
    except UnicodeError as error:
        raise DataError(f"{path} is not written in UTF-8: {error}") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {why(path, error)}") from error
    names = [name for name in names if name]
    used = set(boxes["class_name"].str.strip().unique())
    if given is None and not used <= set(names):
        return None
    log.add(
        "info", "class_list", file=relative(path, root), value=f"{len(names)} classes",
        action="classes and their order are taken from it",
    )  # fmt: skip
    return names
