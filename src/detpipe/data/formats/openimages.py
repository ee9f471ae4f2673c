"""Reader of Open Images: csv files of boxes as shares of their image, classes by number (MID)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from detpipe.core.errors import DataError
from detpipe.core.tables import BOX_COLUMNS
from detpipe.data.formats.base import (
    IMAGE_SUFFIXES,
    Annotations,
    IssueLog,
    existing_folder,
    make_tables,
    relative,
    sample,
    unique_ids,
)
from detpipe.data.formats.csv_text import read_table
from detpipe.data.formats.locate import ImageFinder, locate_images
from detpipe.data.formats.openimages_files import class_names, find_files, folders, other_files
from detpipe.data.formats.shares import YES, in_pixels, picture_sizes
from detpipe.data.formats.walk import files_in, require_utf8

_CORNERS = ["XMin", "YMin", "XMax", "YMax"]
_NEEDED = ["ImageID", "LabelName", *_CORNERS]
_MORE = ["Source", "IsOccluded", "IsTruncated", "IsDepiction", "IsInside"]


def read(
    root: Path,
    *,
    annotations: str | Sequence[str] | Mapping[str, str] | None = None,
    classes: str | None = None,
    images: str | None = None,
    negatives: bool = True,
    partial: bool = False,
    encoding: str = "utf-8-sig",
    extra: bool = False,
) -> Annotations:
    """Reads Open Images (V4 to V7), as downloaded by hand, by FiftyOne, or exported by CVAT.

    Args:
        root: the data set's folder; ``images.path`` is relative to it.
        annotations: the csv file of boxes, several files, or split → file, relative to ``root``.
            Without it: ``*-annotations-bbox.csv`` (also the challenges' ``*-detection-bbox.csv``
            and FiftyOne's ``<split>/labels/detections.csv``) in ``root`` or up to two levels below.
            The split comes from the file's or folder's name.
        classes: the csv file that names the labels (``/m/01g317,Person``), with or without header.
            Without it: ``*class-descriptions-boxable*.csv``, ``classes.csv``, or another
            ``*class-descriptions*.csv``, from which only the classes that have boxes are taken.
        images: folder of the images ``<ImageID>.jpg``, or of a folder for each split. Without it
            they are looked for in ``<split>``, ``<split>/data``, ``images``, ``data``, beside the
            csv, and in ``root``.
        negatives: whether pictures of a split's folder that have no row are listed, as images
            without objects. True for validation and test, which are annotated whole; train has
            pictures that nobody has drawn boxes in.
        partial: whether only some of the pictures were downloaded: rows of the others are then
            left out and counted, else each of these images is an error.
        encoding: of the csv files.
        extra: whether ``Source``, ``IsOccluded``, ``IsTruncated``, ``IsDepiction`` and
            ``IsInside`` are kept in ``boxes.extra``.

    Coordinates are shares of the image as it is stored (its files have no EXIF rotation). A box
    with ``IsGroupOf`` is a crowd region: in both, detections inside it are no mistakes; Open Images
    asks for five and more touching objects, COCO for ten and more. Labels are as annotated, not
    extended along the hierarchy. Labels of whole images, masks and relations are not read.

    Raises:
        DataError: no annotation file, no columns of the format, no image found. What is wrong with
            single records goes to ``issues``.
    """
    root = existing_folder(root)
    log = IssueLog()
    rows = _rows(root, find_files(root, annotations), log, encoding=encoding)
    names, every = class_names(root, classes, log, encoding=encoding)
    pictures = _pictures(rows, root, images, log, partial=partial, negatives=negatives)
    pictures[["width", "height"]] = picture_sizes(root, pictures["path"])
    boxes = _boxes(rows, pictures, extra=extra)
    _label(boxes, names, log)
    if others := other_files(root):
        log.add(
            "info", "other_annotations", value=sample(others),
            action="labels of whole images, masks and relations are not read",
        )  # fmt: skip
    used = set(boxes["class_name"])
    listed = list(dict.fromkeys(name for name in names.values() if every or name in used))
    return make_tables(pictures, boxes, listed if names else None, log)


def _rows(
    root: Path, files: Sequence[tuple[str, Path]], log: IssueLog, *, encoding: str
) -> pd.DataFrame:
    """All files' rows; coordinates as float, NaN for what is no number."""
    frames = []
    for split, path in files:
        only = [*_NEEDED, "Confidence", "IsGroupOf", *_MORE]
        frame = read_table(path, only=only, encoding=encoding)
        absent = [column for column in _NEEDED if column not in frame]
        if absent:
            raise DataError(
                f"{path} lacks the column(s) {', '.join(absent)} of Open Images' boxes; it has "
                f"{', '.join(map(str, frame.columns))}"
            )
        for column in _CORNERS:
            frame[column] = pd.to_numeric(frame[column], errors="coerce")
        confidence = pd.to_numeric(frame.get("Confidence", pd.Series(["1"])), errors="coerce")
        if (confidence < 1).any():
            log.add(
                "warning", "score_column", file=relative(path, root), value="Confidence below 1",
                action="the file may hold predictions; its boxes are taken as the truth",
            )  # fmt: skip
        frames.append(frame.assign(split=split, source=relative(path, root)))
    rows = pd.concat(frames, ignore_index=True)
    if rows.empty:
        raise DataError(
            f"there is not one box in {sample(relative(path, root) for _, path in files)}: only "
            f"the line with the columns' names"
        )
    return rows


# --- images ------------------------------------------------------------------------------------


def _pictures(
    rows: pd.DataFrame, root: Path, given: str | None, log: IssueLog, *, partial: bool,
    negatives: bool,
) -> pd.DataFrame:  # fmt: skip
    """``images`` without sizes, with ``key``, the ImageID."""
    listed = rows.drop_duplicates(["split", "ImageID"])[["ImageID", "split", "source"]]
    frames = []
    for (split, source), every in listed.groupby(["split", "source"], sort=False):
        places = folders(root, root / str(source), str(split), given)
        part = _those_there(every, places, str(source), log) if partial else every
        # Sets that were made smaller have .png, too: those are found by their stem.
        names = (part["ImageID"] + ".jpg").tolist()
        found = locate_images(names, ImageFinder(places), source=str(source), root=root, log=log)
        frames.append(part.assign(path=pd.Series(found, index=part.index, dtype="str")))
    table = pd.concat(frames, ignore_index=True).dropna(subset="path")
    if table.empty:
        raise DataError(f"{root}: not one picture of the annotation files is there")
    if negatives:
        table = pd.concat([table, _without_rows(table, root, log)], ignore_index=True)
    table["image_id"] = unique_ids(
        [
            table["ImageID"].tolist(),
            (table["split"] + "-" + table["ImageID"]).tolist(),
            (table["split"] + "-" + table["path"]).tolist(),  # a.jpg and a.png in one folder
        ]
    )
    return table


def _those_there(
    listed: pd.DataFrame, places: Sequence[Path], source: str, log: IssueLog
) -> pd.DataFrame:
    """The images that have a picture in one of the folders."""
    stems = {Path(name).stem for place in dict.fromkeys(places) for name in _pictures_in(place)}
    there = listed["ImageID"].isin(stems)
    if not there.all():
        log.add(
            "info", "not_downloaded", file=source,
            value=f"{int((~there).sum())} of {len(listed)} image(s), first "
            f"{listed.loc[~there, 'ImageID'].iloc[0]}",
            action="left out with their boxes",
        )  # fmt: skip
    return listed[there]


def _without_rows(table: pd.DataFrame, root: Path, log: IssueLog) -> pd.DataFrame:
    """The pictures without row in folders that belong to one split only."""
    found: list[tuple[str, str, str]] = []
    for home, part in table.groupby(table["path"].str.rpartition("/")[0]):
        if part["split"].nunique() > 1:
            continue  # whose they are cannot be told: the check counts them as not listed
        listed, split = set(part["path"]), part["split"].iloc[0]
        paths = [(f"{home!s}/{name}" if home else name) for name in _pictures_in(root / str(home))]
        require_utf8(paths)
        found += [(Path(path).stem, split, path) for path in paths if path not in listed]
    if found:
        log.add(
            "info", "images_without_rows", value=f"{len(found)} picture(s), first {found[0][2]}",
            action="taken as images without objects; with the reader's option negatives=false "
            "they are left out",
        )  # fmt: skip
    return pd.DataFrame(found, columns=["ImageID", "split", "path"])


def _pictures_in(folder: Path) -> list[str]:
    return [name for name in files_in(folder) if name.lower().endswith(tuple(IMAGE_SUFFIXES))]


# --- boxes -------------------------------------------------------------------------------------


def _boxes(rows: pd.DataFrame, pictures: pd.DataFrame, *, extra: bool) -> pd.DataFrame:
    """The ``boxes`` table with the label's MID as ``class_name``."""
    keys = ["ImageID", "split"]
    sides = pictures[[*keys, "image_id", "width", "height"]]
    boxes = rows.merge(sides.drop_duplicates(keys), on=keys, how="inner")
    corners = in_pixels(boxes[_CORNERS].to_numpy(), boxes[["width", "height"]].to_numpy())
    boxes[BOX_COLUMNS] = corners
    boxes["area"] = (boxes["x2"] - boxes["x1"]) * (boxes["y2"] - boxes["y1"])
    boxes["annotation_id"] = [str(number) for number in range(1, len(boxes) + 1)]
    boxes["class_name"] = boxes["LabelName"].str.strip()
    boxes["iscrowd"] = False
    if "IsGroupOf" in boxes:
        boxes["iscrowd"] = boxes["IsGroupOf"].str.strip().str.lower().isin(YES)
    boxes["difficult"] = False
    if extra:
        boxes["extra"] = _extra(boxes[[column for column in _MORE if column in boxes]])
    return boxes


def _extra(columns: pd.DataFrame) -> pd.Series:
    """One JSON object a row; there are few different ones."""
    import msgspec

    if columns.empty:
        return pd.Series("", index=columns.index, dtype="str")
    number = columns.groupby(list(columns.columns), sort=False, dropna=False).ngroup()
    kinds = columns.assign(number=number).drop_duplicates("number").set_index("number")
    texts = {
        key: msgspec.json.encode({c: _value(v) for c, v in row.items()}).decode()
        for key, row in kinds.to_dict("index").items()
    }
    return number.map(texts)


def _value(text: str) -> int | str:
    return int(text) if text in ("0", "1", "-1") else text


def _label(boxes: pd.DataFrame, names: Mapping[str, str], log: IssueLog) -> None:
    """Names instead of MIDs, in place; says what is a crowd and what has no name."""
    mids = boxes["class_name"]
    unnamed = sorted(set(mids.unique()) - set(names) - {""})
    if unnamed and names:
        log.add(
            "warning", "unnamed_label", value=sample(unnamed),
            action="not in the file of class names: the label is the name",
        )  # fmt: skip
    boxes["class_name"] = mids.map(dict(names) | {mid: mid for mid in ("", *unnamed)})
    if crowds := int(boxes["iscrowd"].sum()):
        log.add(
            "info", "group_of", value=f"{crowds} of {len(boxes)} boxes",
            action="IsGroupOf: taken as crowd regions (iscrowd)",
        )  # fmt: skip
