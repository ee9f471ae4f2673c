"""Reader of COCO annotation files (the original, Roboflow's, CVAT's, hand-made ones).

Boxes are read as ``x y width height``; segmentations are skipped while parsing. Classes are
matched by name across files and category numbers go no further than this module.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from detpipe.core.errors import DataError
from detpipe.core.tables import BOXES
from detpipe.data.formats.base import (
    Annotations,
    IssueLog,
    clean_name,
    existing_folder,
    make_tables,
    relative,
    sample,
    unique_ids,
)
from detpipe.data.formats.coco_json import Annotation, File, find_files, key_of, matching, parse
from detpipe.data.formats.locate import ImageFinder, locate_images


@dataclass
class _Part:
    """One annotation file on its way to the tables."""

    split: str
    path: Path
    source: str
    content: File
    names: dict[str, str]


def read(
    root: Path,
    *,
    annotations: str | Mapping[str, str] | None = None,
    images: str | None = None,
) -> Annotations:
    """Reads a COCO data set.

    Args:
        root: the data set's folder; ``images.path`` is relative to it.
        annotations: the JSON file, or split → JSON file, relative to ``root``. Without it:
            ``annotations/instances_*.json``, ``annotations/{train,val,test}.json``,
            ``{train,valid,test}/_annotations.coco.json`` or ``_annotations.coco.json``; then the
            split comes from the file's or folder's name ('' if there is only one file, and its
            name tells none).
        images: the folder of the images, relative to ``root``. Without it they are looked for in
            ``images``, ``<split>``, ``train2017``-like folders, and beside the JSON.

    Image ids stay as they are if they are unique over all files, else they get the split in front
    (``train-17``); likewise annotation ids, which are numbered anew where even that is not unique.

    Raises:
        DataError: no annotation file or no image found, or a file that is no COCO file. What is
            wrong with single records goes to ``issues``.
    """
    root = existing_folder(root)
    log = IssueLog()
    parts = [
        _Part(split, path, relative(path, root), parse(path), {})
        for split, path in find_files(root, annotations)
    ]
    classes = _class_names(parts, log)
    frames = [
        _images(part, root, images, log).assign(part=number) for number, part in enumerate(parts)
    ]
    table = pd.concat(frames, ignore_index=True)
    table["image_id"] = unique_ids(
        [
            table["key"].tolist(),
            [f"{s}-{k}" for s, k in zip(table["split"], table["key"], strict=True)],
            [f"{p}-{k}" for p, k in zip(table["part"], table["key"], strict=True)],
        ]
    )
    if (table["image_id"] != table["key"]).any():
        log.add(
            "info", "image_ids", value=f"first '{table['key'].iloc[0]}'",
            action=f"the files use the same ids: they are now '{table['image_id'].iloc[0]}' etc.",
        )  # fmt: skip
    boxes = pd.concat(
        [
            _boxes(part, table[table["part"] == number], log)
            for number, part in enumerate(parts)
        ],
        ignore_index=True,
    )  # fmt: skip
    boxes["annotation_id"] = _annotation_ids(boxes, parts, log)
    return make_tables(table, boxes, classes, log)


# --- classes -----------------------------------------------------------------------------------


def _class_names(parts: Sequence[_Part], log: IssueLog) -> list[str]:
    """Class names in label order; fills each part's category key → name."""
    everything: dict[str, str] = {}
    for part in parts:
        part.names = _categories(part, log)
        for key, name in part.names.items():
            everything.setdefault(key, name)
    for part in parts:
        if not part.names:
            used = sorted({key_of(a.category_id) for a in part.content.annotations or []})
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


def _categories(part: _Part, log: IssueLog) -> dict[str, str]:
    listed = part.content.categories or []
    # Names as written: make_tables cleans them, and says so.
    named = [(key_of(c.id), c.name if isinstance(c.name, str) else key_of(c.name)) for c in listed]
    records = [(key, name if name.strip() else key) for key, name in named]
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


# --- images and boxes --------------------------------------------------------------------------


def _images(part: _Part, root: Path, given: str | None, log: IssueLog) -> pd.DataFrame:
    if part.content.images is None:
        raise DataError(f"{part.path} has no 'images' list, so it is no COCO annotation file")
    records = []
    for record in part.content.images:
        if not record.file_name:
            log.add(
                "error", "no_file_name", file=part.source, image_id=key_of(record.id),
                action="give every image a 'file_name'",
            )  # fmt: skip
        else:
            records.append(record)
    names = [str(record.file_name) for record in records]
    finder = ImageFinder(_folders(part, root, given))
    paths = locate_images(names, finder, source=part.source, root=root, log=log)
    frame = pd.DataFrame(
        {
            "key": [key_of(r.id) or str(r.file_name) for r in records],
            "path": paths,
            "width": [int(r.width or 0) for r in records],
            "height": [int(r.height or 0) for r in records],
            "split": part.split,
        },
    )
    return _without_doubles(frame, part, log)


def _without_doubles(frame: pd.DataFrame, part: _Part, log: IssueLog) -> pd.DataFrame:
    for key, rows in frame[frame["key"].duplicated(keep=False)].groupby("key"):
        same = rows["path"].nunique() == 1
        log.add(
            "warning" if same else "error", "duplicate_image_id", file=part.source,
            image_id=str(key), value=sample(rows["path"]),
            action="listed once" if same else "give each image its own id",
        )  # fmt: skip
    return frame.drop_duplicates("key").dropna(subset="path")


def _folders(part: _Part, root: Path, given: str | None) -> list[Path]:
    beside = part.path.parent
    stem = re.sub(r"^instances_", "", part.path.stem)
    years = [name for name in (stem, f"{part.split}2017", f"{part.split}2014") if name]
    if given is not None:
        base = root / given
        return [base, *(base / name for name in (part.split, *years) if name)]
    splits = [name for name in (part.split, *years) if name]
    bases = [root / "images", root, beside, beside / "images"]
    return [
        *(base / name for base in bases for name in splits),
        *bases,
        root / part.split / "images",
    ]  # fmt: skip


def _boxes(part: _Part, images: pd.DataFrame, log: IssueLog) -> pd.DataFrame:
    if part.content.annotations is None:
        log.add(
            "warning", "no_annotations", file=part.source,
            action="'annotations' is missing: its images are taken as images without objects",
        )  # fmt: skip
    records = part.content.annotations or []
    ids = dict(zip(images["key"], images["image_id"], strict=True))
    wanted = [key_of(record.image_id) for record in records]
    image_of = matching(images["key"].tolist(), wanted)
    category_keys = [key_of(record.category_id) for record in records]
    category_of = matching(list(part.names), category_keys)
    corners = _corners(records)
    sides = corners[:, 2:] - corners[:, :2]
    area = np.array([np.nan if r.area is None else r.area for r in records], dtype=float)
    area = np.where(np.nan_to_num(area) > 0, area, sides.prod(axis=1)) if len(records) else area
    _say_matched(part, image_of, category_of, log)
    frame = pd.DataFrame(
        {
            "image_id": [ids[image_of[k]] if k in image_of else k for k in wanted],
            "annotation_id": "",
            "class_name": [
                part.names[category_of[k]] if k in category_of else f"unknown category {k}"
                for k in category_keys
            ],
            "x1": corners[:, 0], "y1": corners[:, 1], "x2": corners[:, 2], "y2": corners[:, 3],
            "area": area,
            "iscrowd": [bool(record.iscrowd) for record in records],
            "difficult": False,
            "key": [key_of(record.id) for record in records],
            "split": part.split,
        }
    )  # fmt: skip
    return frame if records else BOXES.empty().assign(key="", split="")


def _corners(records: Sequence[Annotation]) -> np.ndarray:
    """``float64 [N, 4]`` x1 y1 x2 y2; NaN where there is no box of four numbers."""
    nothing = [None] * 4
    corners = np.array(
        [r.bbox if r.bbox is not None and len(r.bbox) == 4 else nothing for r in records],
        dtype=float,
    ).reshape(-1, 4)
    corners[:, 2:] += corners[:, :2]
    return corners


def _say_matched(
    part: _Part, image_of: Mapping[str, str], category_of: Mapping[str, str], log: IssueLog
) -> None:
    for what, matched in (("image_id", image_of), ("category_id", category_of)):
        loose = [f"'{wanted}' = '{key}'" for wanted, key in matched.items() if wanted != key]
        if loose:
            log.add(
                "info", "id_spelling", file=part.source, value=f"{what} {sample(sorted(loose))}",
                action="matched as numbers",
            )  # fmt: skip


def _annotation_ids(boxes: pd.DataFrame, parts: Sequence[_Part], log: IssueLog) -> list[str]:
    keys = boxes["key"].tolist()
    split = [f"{s}-{k}" if k else "" for s, k in zip(boxes["split"], keys, strict=True)]
    anew = [str(number) for number in range(1, len(keys) + 1)]
    ids = unique_ids([keys, split, anew] if len(parts) > 1 else [keys, anew])
    if ids != keys:
        how = "numbered anew over all files" if ids == anew else "the split was put in front"
        repeated = boxes["key"][boxes["key"].duplicated() & (boxes["key"] != "")].nunique()
        log.add(
            "info", "annotation_ids",
            value=f"{repeated} id(s) used more than once, {keys.count('')} missing",
            action=f"{how}, first '{ids[0]}'",
        )  # fmt: skip
    return ids
