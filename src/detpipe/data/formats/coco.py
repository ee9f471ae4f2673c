"""Reader of COCO annotation files: the original, LVIS, Roboflow's, CVAT's, Label Studio's exports.

Boxes are read as ``x y width height``; segmentations are passed over while parsing, unless a record
has no box. Classes are matched by name across files and category numbers go no further than this
module.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from detpipe.core.errors import DataError
from detpipe.core.tables import BOX_COLUMNS, BOXES
from detpipe.data.formats.base import (
    Annotations,
    IssueLog,
    existing_folder,
    known_sizes,
    make_tables,
    relative,
    sample,
)
from detpipe.data.formats.coco_categories import Part, class_names, frequencies
from detpipe.data.formats.coco_columns import BoxColumns
from detpipe.data.formats.coco_ids import all_different, column_of, joined, rows_of, texts
from detpipe.data.formats.coco_json import find_files, parse
from detpipe.data.formats.federated import list_columns
from detpipe.data.formats.locate import ImageFinder, locate_images
from detpipe.data.formats.walk import exists
from detpipe.data.remote import resolve


def read(
    root: Path,
    *,
    annotations: str | Mapping[str, str] | None = None,
    images: str | None = None,
    extra: bool = False,
    group: str | None = None,
) -> Annotations:
    """Reads a COCO data set.

    Args:
        root: the data set's folder; ``images.path`` is relative to it.
        annotations: the JSON file, or split → JSON file, relative to ``root``, absolute or a URL.
            Without it:
            ``annotations/instances_*.json``, ``annotations/{train,val,test}.json``,
            ``{train,valid,test}/_annotations.coco.json``, ``_annotations.coco.json``,
            ``result.json`` or the only JSON file; then the split comes from the file's or folder's
            name ('' if there is only one file, and its name tells none).
        images: the folder of the images, relative to ``root``, or absolute, or a URL. Without it
            they are looked for in ``images``, ``<split>``, ``train2017``-like folders, and beside
            the JSON.
        extra: keep every further field of an annotation record (``segmentation``, ``attributes``,
            …) in ``boxes.extra``, as it is written.
        group: the field of image records that names the video, patient or scene, such as
            ``video_id`` or, nested, ``extra.location``; it goes to ``images.group``.

    Image ids stay as they are if they are unique over all files, else they get the split in front
    (``train-17``); likewise annotation ids, which are numbered anew where even that is not unique.

    Raises:
        DataError: no annotation file or no image found, or a file that is no COCO file. What is
            wrong with single records goes to ``issues``.
    """
    root = existing_folder(root)
    log = IssueLog()
    folder = None if images is None else _folder(root, images)
    parts = [
        Part(split, path, relative(path, root), parse(path, extra=extra, group=group))
        for split, path in find_files(root, annotations)
    ]
    classes = class_names(parts, log)
    frames = [_images(part, root, folder, log) for part in parts]
    table = pd.concat(
        [frame.assign(key=texts(frame["key"]), part=n) for n, frame in enumerate(frames)],
        ignore_index=True,
    )
    own = joined([frame["key"] for frame in frames])
    table["image_id"] = table["key"] if all_different(own) else _new_image_ids(table, log)
    tables, keys = [], []
    for number, (part, frame) in enumerate(zip(parts, frames, strict=True)):
        ids = table["image_id"][table["part"] == number].reset_index(drop=True)
        tables.append(_boxes(part, frame["key"], ids, log))
        own = part.content.boxes.keys if part.content.boxes else column_of([])
        keys.append((part.split, own))
        part.content = part.content.without_boxes()
    boxes = pd.concat(tables, ignore_index=True) if len(tables) > 1 else tables[0]
    del tables
    boxes["annotation_id"] = _annotation_ids(keys, log)
    return make_tables(table, boxes, classes, log, frequency=frequencies(parts))


# --- images ------------------------------------------------------------------------------------


def _images(part: Part, root: Path, folder: Path | None, log: IssueLog) -> pd.DataFrame:
    """One row an image record that has a file: key, path, width, height, split (and more)."""
    found = part.content.images
    keys, named = found.keys, np.array([name != "" for name in found.names], bool)
    if keys.dtype != np.int64:
        keys = keys.where(keys != "", pd.Series(found.names, dtype="str"))
    for key in texts(found.keys[~named]):
        log.add(
            "error", "no_file_name", file=part.source, image_id=key,
            action="give every image a 'file_name'",
        )  # fmt: skip
    finder = ImageFinder(_folders(part, root, folder))
    names = [name for name in found.names if name]
    frame = pd.DataFrame(
        {
            "key": keys[named].reset_index(drop=True),
            "path": pd.Series(
                locate_images(names, finder, source=part.source, root=root, log=log), dtype="str"
            ),
            "width": found.width[named],
            "height": found.height[named],
            "split": part.split,
        }
    )
    if found.groups is not None:
        frame["group"] = [g for g, name in zip(found.groups, found.names, strict=True) if name]
    lists = list_columns(found.negative, found.not_exhaustive, part.names)
    for column, written in lists.items():
        frame[column] = [text for text, name in zip(written, found.names, strict=True) if name]
    if lists:
        log.add(
            "info", "lvis_federated", file=part.source,
            value=f"{sum(map(any, zip(*lists.values(), strict=True)))} image(s)",
            action="they list the classes that were looked for: detpipe.evaluate.lvis.score goes "
            "by it; to COCO's rule a detection of a class that was not looked for is wrong",
        )  # fmt: skip
    return _without_doubles(known_sizes(frame, file=part.source, log=log), part, log)


def _without_doubles(frame: pd.DataFrame, part: Part, log: IssueLog) -> pd.DataFrame:
    double = frame["key"].duplicated(keep=False)
    for key, rows in frame[double].groupby("key") if double.any() else ():
        same = rows["path"].nunique() == 1
        log.add(
            "warning" if same else "error", "duplicate_image_id", file=part.source,
            image_id=str(key), value=sample(rows["path"]),
            action="listed once" if same else "give each image its own id",
        )  # fmt: skip
    return frame[~frame["key"].duplicated() & frame["path"].notna()].reset_index(drop=True)


def _folder(root: Path, images: str) -> Path:
    folder = resolve(root, images, what="the images")
    if not exists(folder) or not folder.is_dir():
        raise DataError(f"no such folder: {folder} (the reader's option 'images': '{images}')")
    return folder


def _folders(part: Part, root: Path, given: Path | None) -> list[Path]:
    beside = part.path.parent
    stem = re.sub(r"^instances_", "", part.path.stem)
    years = [name for name in (stem, f"{part.split}2017", f"{part.split}2014") if name]
    if given is not None:
        return [given, *(given / name for name in (part.split, *years) if name)]
    splits = [name for name in (part.split, *years) if name]
    bases = [root / "images", root, beside, beside / "images"]
    return [
        *(base / name for base in bases for name in splits),
        *bases,
        root / part.split / "images",
    ]  # fmt: skip


# --- boxes -------------------------------------------------------------------------------------


def _boxes(part: Part, keys: pd.Series, ids: pd.Series, log: IssueLog) -> pd.DataFrame:
    """The ``boxes`` table of a file, but for ``annotation_id``; and ``split``.

    Args:
        part: the file.
        keys: the ids of its images as it writes them.
        ids: the same images' ``image_id``.
        log: gets what was assumed.
    """
    found = part.content.boxes
    if found is None:
        log.add(
            "warning", "no_annotations", file=part.source,
            action="'annotations' is missing: its images are taken as images without objects",
        )  # fmt: skip
        return BOXES.empty()
    rows, loose = rows_of(keys, found.image_keys)
    stray = rows < 0
    image_ids = texts(found.image_keys) if stray.all() else _taken(ids, rows)
    if stray.any():
        image_ids = image_ids.where(~stray, texts(found.image_keys))
    _say_matched(part, "image_id", loose, log)
    _say_assumed(part, found, log)
    frame = pd.DataFrame(
        {
            "image_id": image_ids,
            "annotation_id": None,
            "class_name": _class_column(part, found, log),
            **dict(zip(BOX_COLUMNS, found.corners, strict=True)),
            "area": found.area,
            "iscrowd": found.iscrowd,
            "difficult": np.zeros(len(rows), bool),
        },
        copy=False,
    )
    return frame if found.extra is None else frame.assign(extra=found.extra)


def _class_column(part: Part, found: BoxColumns, log: IssueLog) -> pd.Series:
    codes, different = pd.factorize(found.category_keys)
    used = pd.Series(different)
    rows, loose = rows_of(pd.Series(list(part.names), dtype="str"), used)
    _say_matched(part, "category_id", loose, log)
    names = list(part.names.values())
    meant = [
        names[row] if row >= 0 else f"unknown category {key}"
        for row, key in zip(rows, texts(used), strict=True)
    ]
    return _taken(pd.Series(meant, dtype="str"), codes)


def _taken(values: pd.Series, rows: npt.NDArray[np.intp]) -> pd.Series:
    """``values`` at ``rows``, 0 and more."""
    return pd.Series(values.array.take(rows))


def _say_matched(part: Part, what: str, loose: Sequence[str], log: IssueLog) -> None:
    if loose:
        log.add(
            "info", "id_spelling", file=part.source, value=f"{what} {sample(loose)}",
            action="matched as numbers",
        )  # fmt: skip


def _say_assumed(part: Part, found: BoxColumns, log: IssueLog) -> None:
    if found.traced.any():
        log.add(
            "info", "box_from_segmentation", file=part.source,
            value=f"{int(found.traced.sum())} of {len(found.traced)} record(s)",
            action="they have no 'bbox': the box around the segmentation is used",
        )  # fmt: skip
    if found.odd:
        commas = [box for _, box in found.odd if re.search(r'"\s*[+-]?\d+,\d+\s*"', box)]
        if commas:
            log.add(
                "error", "decimal_comma", file=part.source,
                value=f"{len(commas)} record(s), the first: {commas[0]}",
                action="write numbers with a decimal point (1.5, not 1,5)",
            )  # fmt: skip
        log.add(
            "info", "box_as_written", file=part.source, annotation_id=found.odd[0][0],
            value=f"{len(found.odd)} record(s): {sample(box for _, box in found.odd)}",
            action="'bbox' must be four numbers: x, y, width, height",
        )  # fmt: skip
    if found.ignored:
        log.add(
            "warning", "ignore_flag", file=part.source, value=f"{found.ignored} record(s)",
            action="'ignore' is set: taken as ordinary objects, as pycocotools does",
        )  # fmt: skip


# --- ids ---------------------------------------------------------------------------------------


def _new_image_ids(images: pd.DataFrame, log: IssueLog) -> pd.Series:
    ids = images["split"] + "-" + images["key"]
    if not all_different(ids):
        ids = images["part"].astype("str") + "-" + images["key"]
    log.add(
        "info", "image_ids", value=f"first '{images['key'].iloc[0]}'",
        action=f"the files use the same ids: they are now '{ids.iloc[0]}' etc.",
    )  # fmt: skip
    return ids


def _annotation_ids(files: Sequence[tuple[str, pd.Series]], log: IssueLog) -> pd.Series:
    """Ids of all boxes, of (split, own ids) of each file."""
    keys = joined([own for _, own in files])
    if all_different(keys):
        return texts(keys)
    own = texts(keys)
    splits = pd.Series([split for split, part in files for _ in range(len(part))], dtype="str")
    ids, how = (splits + "-" + own).where(own != "", ""), "the split was put in front"
    if len(files) == 1 or not all_different(ids):
        ids = texts(pd.Series(np.arange(1, len(own) + 1)))
        how = "numbered anew over all files"
    repeated = own[own.duplicated() & (own != "")].nunique()
    log.add(
        "info", "annotation_ids",
        value=f"{repeated} id(s) used more than once, {int((own == '').sum())} missing",
        action=f"{how}, first '{ids.iloc[0]}'",
    )  # fmt: skip
    return ids
