"""Detections from and to files of any framework: COCO results, csv, Parquet."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from detpipe.core.errors import DataError, TableError, one_message
from detpipe.core.tables import BOX_COLUMNS, DETECTIONS
from detpipe.evaluate.common import listed, records
from detpipe.evaluate.match import match_classes, match_own_images, own_categories, own_file_names

logger = logging.getLogger(__name__)

_ALIASES: Mapping[str, tuple[str, ...]] = {
    "image_id": ("image", "img_id", "file_name", "filename", "file", "path", "image_path"),
    "class_name": ("category_name", "class", "label", "category", "name"),
    "category_id": ("class_id", "label_id"),
    "score": ("confidence", "conf", "probability", "prob"),
    "x1": ("xmin", "x_min", "left"),
    "y1": ("ymin", "y_min", "top"),
    "x2": ("xmax", "x_max", "right"),
    "y2": ("ymax", "y_max", "bottom"),
    "x": ("bbox_x",),
    "y": ("bbox_y",),
    "w": ("bbox_width", "bbox_w", "width"),
    "h": ("bbox_height", "bbox_h", "height"),
}
"""Our column → other frameworks' names for it, the likeliest first; case does not matter."""


def read_detections(
    path: Path,
    images: pd.DataFrame,
    classes: pd.DataFrame,
    *,
    categories: Mapping[str, str] | str | None = None,
    columns: Mapping[str, str] | None = None,
    section: str = "evaluate_files",
) -> pd.DataFrame:
    """Reads the detections of any framework for a data set.

    * ``.json``: COCO results, a list of ``{image_id, category_id, bbox: [x, y, w, h], score}``,
      or a whole COCO file whose annotations have scores;
    * ``.csv``, ``.parquet``: columns of the detections table or their usual names elsewhere
      (``xmin``, ``confidence``, ``label``, …); boxes as corners, or as ``x, y, w, h``.

    Images are found by id, else by the id without the split that a reader put in front
    (``test-17``), else by the id as a number, else by path, file name or its stem, whichever finds
    all; whole numbers are never file names. Classes go by name (``class_name``, ``category_name``,
    …); where the file has ids only, by ``categories``, else by the file's own ``categories`` list.
    Ids are never taken for an order.

    Args:
        path: the file.
        images: the images table.
        classes: the classes table.
        categories: category id → class name, or a COCO file whose ``categories`` tell.
        columns: our column → the file's, where the guess is wrong.
        section: the section of the configuration that messages name.

    Returns:
        A detections table, rows in the order of the file.

    Raises:
        DataError: the file is missing or unreadable, lacks a column, has category ids without
            names, or names images or classes that are not there; all of one kind together. Or
            ``images`` is empty.
    """
    if images.empty:
        raise DataError(
            f"{path}: there is nothing to compare it with, the split has no images; choose another "
            f"one with {section}.dataset"
        )
    frame, own, own_images = _read(path)
    frame = _named(frame, columns or {}, path)
    if frame.empty:
        logger.warning("%s: there are no detections in it", path.name)
        return DETECTIONS.empty()
    frame, mistakes = _corners(frame, path), []
    if "class_name" not in frame and "category_id" not in frame:
        mistakes.append("there is neither a class_name nor a category_id")
    mistakes += [
        f"there is no {column}"
        for column in ("image_id", "score", *BOX_COLUMNS)
        if column not in frame
    ]
    if mistakes:
        raise DataError(
            one_message(
                f"{path}: these are not detections (columns: {', '.join(map(str, frame))}); rename "
                "the columns, or say which is which:", mistakes
            )
        )  # fmt: skip
    frame["image_id"], unknown_images = match_own_images(
        frame["image_id"], images, path, own=own_images
    )
    frame["class_name"], unknown_classes = match_classes(
        frame, classes, path, categories=categories, own=own, section=section
    )
    mistakes = unknown_images + unknown_classes + _bad_boxes(frame) + _shares(frame, images)
    if mistakes:
        raise DataError(one_message(f"{path}: it does not fit the data set:", mistakes))
    try:
        return DETECTIONS.make(frame)
    except TableError as error:
        raise DataError(f"{path}: {error}") from error


def coco_results(detections: pd.DataFrame, classes: pd.DataFrame) -> list[dict[str, Any]]:
    """Detections as a COCO result list, ready for JSON.

    ``category_id`` is 1..C in the order of ``classes`` and ``category_name`` goes with it;
    ``image_id`` is a number where the id reads as one, else text; ``bbox`` is x, y, w, h.
    """
    numbers = {name: i for i, name in enumerate(classes["class_name"], start=1)}
    return [
        {
            "image_id": _id(row.image_id),
            "category_id": numbers[row.class_name],
            "category_name": row.class_name,
            "bbox": [row.x1, row.y1, row.x2 - row.x1, row.y2 - row.y1],
            "score": row.score,
        }
        for row in records(detections)
    ]


def _id(text: str) -> int | str:
    """A number only if it would be written the same way: "0001" stays text."""
    return int(text) if text.isdecimal() and str(int(text)) == text else text


def _read(path: Path) -> tuple[pd.DataFrame, dict[str, str], dict[str, str]]:
    """The rows of the file, and its own category id → name and image id → file name, if any."""
    kind = path.suffix.lower()
    if not path.is_file():
        raise DataError(f"{path}: there is no such file of detections")
    try:
        if kind == ".json":
            return _read_json(path)
        if kind == ".csv":
            text: dict[str, Any] = {"keep_default_na": False, "dtype": str, "encoding": "utf-8-sig"}
            frame = pd.read_csv(path, **text)
            if len(frame.columns) == 1 and ";" in str(frame.columns[0]):
                frame = pd.read_csv(path, sep=";", **text)
            return frame, {}, {}
        if kind in (".parquet", ".pq"):
            return pd.read_parquet(path), {}, {}
    except (ValueError, OSError) as error:
        raise DataError(f"{path}: it cannot be read: {error}") from error
    raise DataError(f"{path}: '{kind}' is none of .json, .csv, .parquet")


def _read_json(path: Path) -> tuple[pd.DataFrame, dict[str, str], dict[str, str]]:
    data = json.loads(path.read_bytes())
    own: dict[str, str] = {}
    own_images: dict[str, str] = {}
    if isinstance(data, dict):
        own, own_images = own_categories(data, path), own_file_names(data)
        data = data.get("annotations", data.get("predictions"))
    if not isinstance(data, list) or not all(isinstance(row, dict) for row in data):
        raise DataError(
            f"{path}: expected a list of detections, or an object with 'annotations'; see COCO's "
            "result format"
        )
    return pd.DataFrame(data), own, own_images


def _named(frame: pd.DataFrame, columns: Mapping[str, str], path: Path) -> pd.DataFrame:
    """The frame with our names for its columns."""
    absent = [theirs for theirs in columns.values() if theirs not in frame]
    if absent:
        raise DataError(
            f"{path}: there is no column {listed(absent)}; it has {', '.join(map(str, frame))}"
        )
    lower = {str(column).strip().lower(): column for column in frame}
    names: dict[Any, str] = {theirs: ours for ours, theirs in columns.items()}
    for ours, aliases in _ALIASES.items():
        if ours in columns:
            continue
        theirs = next((lower[a] for a in (ours, *aliases) if a in lower), None)
        if theirs is not None and theirs not in names:
            names[theirs] = ours
    renamed = {str(theirs): ours for theirs, ours in names.items() if theirs != ours}
    if renamed:
        guesses = ", ".join(f"{theirs} as {ours}" for theirs, ours in renamed.items())
        logger.info("%s: read %s", path.name, guesses)
    return frame.rename(columns=names)


def _corners(frame: pd.DataFrame, path: Path) -> pd.DataFrame:
    """The frame with float x1 y1 x2 y2 and score, whatever way its boxes are written."""
    if "bbox" in frame:
        frame = frame.assign(bbox=frame["bbox"].map(_four))
        bad = frame["bbox"].map(lambda b: not isinstance(b, (list, tuple)) or len(b) != 4)
        if bad.any():
            row = int(bad.to_numpy().argmax())
            raise DataError(
                f"{path}: {int(bad.sum())} bbox(es) are not four numbers x, y, width, height; "
                f"first: {frame['bbox'].iloc[row]!r} in row {row + 1}"
            )
        four = pd.DataFrame(frame["bbox"].tolist(), columns=["x", "y", "w", "h"], index=frame.index)
        frame = frame.drop(columns=["x", "y", "w", "h"], errors="ignore").join(four)
    numbers = [c for c in (*BOX_COLUMNS, "x", "y", "w", "h", "score") if c in frame]
    frame = frame.assign(**{c: pd.to_numeric(frame[c], errors="coerce") for c in numbers})
    if not set(BOX_COLUMNS) <= set(frame) and {"x", "y", "w", "h"} <= set(frame):
        x, y = frame["x"], frame["y"]
        frame = frame.assign(x1=x, y1=y, x2=x + frame["w"], y2=y + frame["h"])
    return frame


def _four(box: Any) -> Any:
    """A box as a list, where Parquet gives an array and csv a text."""
    if isinstance(box, np.ndarray):
        return box.tolist()
    if isinstance(box, str):
        with contextlib.suppress(ValueError):
            return json.loads(box)
    return box


def _shares(frame: pd.DataFrame, images: pd.DataFrame) -> list[str]:
    """Whether the boxes are shares of the image instead of pixels."""
    numbers = frame[BOX_COLUMNS]
    within = bool(((numbers >= 0) & (numbers <= 1)).all(axis=None))
    if not within or len(frame) < 3 or images[["width", "height"]].to_numpy().max() <= 8:
        return []
    return [
        f"all {len(frame)} boxes lie within 0..1, but coordinates must be pixels: multiply x and "
        "width by the image's width, y and height by its height"
    ]


def _bad_boxes(frame: pd.DataFrame) -> list[str]:
    """What is wrong with numbers, with the first such row."""
    numbers = frame[[*BOX_COLUMNS, "score"]]
    not_finite = numbers.isin([np.inf, -np.inf, np.nan])
    checks = {
        "have a box or score that is no number": not_finite.any(axis=1),
        "have x2 below x1 or y2 below y1 (are they x, y, width, height?)":
            (frame["x2"] < frame["x1"]) | (frame["y2"] < frame["y1"]),
        "have a score outside 0..1": (frame["score"] < 0) | (frame["score"] > 1),
    }  # fmt: skip
    return [
        f"{int(bad.sum())} row(s) {what}; first: row {int(bad.to_numpy().argmax()) + 1}, "
        f"{', '.join(f'{k} {v:g}' for k, v in numbers[bad].iloc[0].items())}"
        for what, bad in checks.items()
        if bad.any()
    ]
