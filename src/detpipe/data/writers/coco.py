"""Writer of COCO's annotation files, one a split."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import pandas as pd

from detpipe.core.tables import BOX_COLUMNS
from detpipe.data.formats.base import Annotations
from detpipe.data.formats.federated import frequencies_in
from detpipe.data.writers.base import (
    Pictures,
    below_common_folder,
    extras,
    folder_names,
    groups_of,
    new_folder,
    place_pictures,
    plain_numbers,
    say_lost,
    unique_names,
    where_they_are,
    writable,
)
from detpipe.data.writers.federated import FIELDS, with_category_ids

_CHUNK = 50_000
"""Records that are Python objects at a time."""


def write(found: Annotations, root: Path, folder: Path, *, pictures: Pictures = "copy") -> None:
    """Writes ``annotations/instances_<split>.json`` and ``images/<split>/…``.

    Args:
        found: the tables.
        root: the folder that ``images.path`` is relative to.
        folder: where to write; empty, or not there yet.
        pictures: ``copy``, ``link``, or ``none``: then ``file_name`` is relative to ``folder``.

    Every file lists all classes, numbered from 1 in label order. Ids of images and objects are
    kept if they are whole numbers and unique in the whole set (those of objects from 1: 0 is none
    to pycocotools), else numbered anew. What ``boxes.extra`` holds (segmentation, attributes, …)
    goes back into the records value by value. Difficult objects are marked by a field of our own,
    ``difficult``, groups of images by ``group``. LVIS's lists of classes and frequencies, where
    there are any, are written as LVIS has them. The split '' is called ``all``.

    Raises:
        DataError: the folder is not empty or cannot be written; ``extra`` is no JSON object, or a
            list of classes no JSON list.
    """
    with new_folder(folder, root) as new:
        found = writable(found, root)
        images, boxes, classes, _ = found
        names = folder_names(sorted(images["split"].unique()), unnamed="all")
        images = images.assign(
            key=plain_numbers(images["image_id"], at_least=0),
            file_name=_file_names(images, names, root=root, folder=folder, pictures=pictures),
        )
        if not groups_of(images):
            images = images.drop(columns="group", errors="ignore")
        category = {name: number for number, name in enumerate(classes["class_name"], 1)}
        images, strangers = with_category_ids(images, category)
        at = pd.Index(images["image_id"]).get_indexer(boxes["image_id"])
        boxes = boxes.assign(
            id=plain_numbers(boxes["annotation_id"], at_least=1),
            image_key=images["key"].to_numpy()[at],
            category=boxes["class_name"].map(category).astype("int64"),
        )
        splits = images["split"].to_numpy()[at]
        (new / "annotations").mkdir()
        for split, name in names.items():
            with (new / "annotations" / f"instances_{name}.json").open("wb") as file:
                _write_file(file, images[images["split"] == split], boxes[splits == split], classes)
        folders = images["split"].map(names)
        targets = ("images/" + folders + "/" + images["file_name"]).tolist()
        place_pictures(
            images["path"].tolist(), targets, root=root, new=new, pictures=pictures
        )  # fmt: skip
    say_lost(
        "COCO",
        {
            "difficult object(s), marked by a field of our own": int(boxes["difficult"].sum()),
            "name(s) in LVIS's lists that are no class, left out": strangers,
        },
    )


def _file_names(
    images: pd.DataFrame, names: dict[str, str], *, root: Path, folder: Path, pictures: Pictures
) -> pd.Series:
    """``file_name`` of each image: relative to its split's folder."""
    if pictures == "none":
        paths = where_they_are(images["path"].tolist(), root=root, folder=folder)
        return pd.Series(paths, index=images.index)
    own = np.full(len(images), "", dtype=object)
    for split in names:
        here = (images["split"] == split).to_numpy()
        paths = images["path"][here].tolist()
        own[here] = unique_names(below_common_folder(paths), paths)
    return pd.Series(own, index=images.index, dtype="str")


def _write_file(
    file: BinaryIO, images: pd.DataFrame, boxes: pd.DataFrame, classes: pd.DataFrame
) -> None:
    frequency = dict(frequencies_in(classes))
    categories = [
        {"id": number, "name": name, "supercategory": ""}
        | ({"frequency": frequency[name]} if frequency.get(name) else {})
        for number, name in enumerate(classes["class_name"], 1)
    ]
    head = {"info": {"description": "written by detpipe"}, "licenses": [], "categories": categories}
    file.write(msgspec.json.encode(head)[:-1])
    file.write(b',"images":[')
    _write_records(file, _image_records(images), len(images))
    file.write(b'],"annotations":[')
    _write_records(file, _annotation_records(boxes), len(boxes))
    file.write(b"]}")


def _write_records(file: BinaryIO, chunks: Iterable[list[dict[str, Any]]], count: int) -> None:
    for number, chunk in enumerate(chunks):
        file.write(b",\n" if number else b"\n")
        file.write(msgspec.json.encode(chunk)[1:-1])
    file.write(b"\n" if count else b"")


def _image_records(images: pd.DataFrame) -> Iterator[list[dict[str, Any]]]:
    columns = {"key": "id", "file_name": "file_name", "width": "width", "height": "height"}
    columns |= {
        ours: name for ours, name in ({"group": "group"} | FIELDS).items() if ours in images
    }
    for start in range(0, len(images), _CHUNK):
        rows = images.iloc[start : start + _CHUNK]
        values = zip(*(rows[column].tolist() for column in columns), strict=True)
        yield [
            {name: v for name, v in zip(columns.values(), row, strict=True) if v is not None}
            for row in values
        ]


def _annotation_records(boxes: pd.DataFrame) -> Iterator[list[dict[str, Any]]]:
    for start in range(0, len(boxes), _CHUNK):
        rows = boxes.iloc[start : start + _CHUNK]
        columns = (
            rows["id"], rows["image_key"], rows["category"], _corner_and_size(rows),
            rows["area"], rows["iscrowd"].astype(int), rows["difficult"],
        )  # fmt: skip
        records = []
        for (key, image, category, bbox, area, crowd, difficult), more in zip(
            zip(*(column.tolist() for column in columns), strict=True),
            extras(rows, raw=True),
            strict=True,
        ):
            own = {
                "id": key, "image_id": image, "category_id": category, "bbox": bbox, "area": area,
                "iscrowd": crowd,
            }  # fmt: skip
            if difficult:
                own["difficult"] = 1
            records.append(own | more | own if more else own)
        yield records


def _corner_and_size(boxes: pd.DataFrame) -> np.ndarray:
    """``float64 [N, 4]`` x y w h of which x + w and y + h give the corners again.

    A corner is mostly a sum of short decimals, of which the difference is a long one.
    """
    corners = boxes[BOX_COLUMNS].to_numpy()
    first, second = corners[:, :2], corners[:, 2:]
    size = second - first
    short = np.round(size, 9)
    size = np.where(first + short == second, short, size)
    return np.concatenate([first, size], axis=1)
