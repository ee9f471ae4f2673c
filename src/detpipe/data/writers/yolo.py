"""Writer of YOLO data sets: ``data.yaml``, images, and one text file of shares an image."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from detpipe.core.tables import BOX_COLUMNS
from detpipe.data.formats.base import Annotations
from detpipe.data.writers.base import (
    extras,
    flat_names,
    folder_names,
    groups_of,
    new_folder,
    own_areas,
    place_pictures,
    say_lost,
    unique_names,
    without_ending,
    writable,
)
from detpipe.data.writers.federated import losses as losses_of_lvis

_KNOWN = ("train", "val", "test")


def write(
    found: Annotations,
    root: Path,
    folder: Path,
    *,
    pictures: Literal["copy", "link"] = "copy",
    polygons: bool = False,
) -> None:
    """Writes ``data.yaml`` and, for each split, ``<split>/images`` and ``<split>/labels``.

    Args:
        found: the tables.
        root: the folder that ``images.path`` is relative to.
        folder: where to write; empty, or not there yet.
        pictures: ``copy`` or ``link``; YOLO looks for labels beside the folder of the pictures, so
            these cannot stay where they are.
        polygons: each object as its outline (``segmentation`` in ``boxes.extra``) where that is one
            polygon, else as the four corners of its box; without it as a box.

    The split val lies in ``valid``, as usual. Pictures of a split lie in one folder; where two
    would have the same name (without ending), it is preceded by their folders. YOLO knows no crowd
    regions, which are left out, and no difficult objects, which become ordinary ones. It knows no
    set without splits: the split '' becomes train where it is the only one, else ``rest``.

    Raises:
        DataError: the folder is not empty or cannot be written; ``extra`` is no JSON object.
    """
    with new_folder(folder, root) as new:
        found = writable(found, root)
        images, boxes, classes, _ = found
        splits = sorted(images["split"].unique())
        keys = folder_names(splits, unnamed="train" if len(splits) == 1 else "rest")
        wanted = ["valid" if key == "val" else key for key in keys.values()]
        places = dict(zip(splits, unique_names(wanted, splits), strict=True))
        _write_yaml(new / "data.yaml", classes["class_name"], keys, places)
        losses = _losses(images, boxes, keys, polygons=polygons)
        lines, more = _lines(images, boxes, classes["class_name"], polygons=polygons)
        for split, place in places.items():
            rows = images[images["split"] == split]
            paths = rows["path"].tolist()
            names = flat_names(paths)
            _write_labels(new / place / "labels", rows["image_id"], names, lines)
            targets = [f"{place}/images/{name}" for name in names]
            place_pictures(paths, targets, root=root, new=new, pictures=pictures)
    say_lost("YOLO", losses | more | losses_of_lvis(images, classes))


def _write_yaml(
    file: Path, classes: Iterable[str], keys: Mapping[str, str], places: Mapping[str, str]
) -> None:
    import yaml

    content: dict[str, Any] = {keys[split]: f"{place}/images" for split, place in places.items()}
    names = list(classes)
    content |= {"nc": len(names), "names": dict(enumerate(names))}
    file.write_text(yaml.safe_dump(content, allow_unicode=True, sort_keys=False), "utf-8")


def _losses(
    images: pd.DataFrame, boxes: pd.DataFrame, keys: Mapping[str, str], *, polygons: bool
) -> dict[str, int]:
    unread = [split for split, key in keys.items() if key not in _KNOWN]
    renamed = images["split"].map(keys) != images["split"]
    extra = boxes["extra"] != "" if "extra" in boxes else pd.Series(dtype=bool)
    return {
        "crowd region(s), left out": int(boxes["iscrowd"].sum()),
        "difficult object(s), written as ordinary ones": int(
            (boxes["difficult"] & ~boxes["iscrowd"]).sum()
        ),
        "area(s) other than width × height": 0 if polygons else own_areas(boxes),
        f"value(s) of boxes.extra{' but for polygons' if polygons else ''}": int(extra.sum()),
        "image(s) with a group": groups_of(images),
        "image(s) of a split other than train, val and test": int(
            images["split"].isin(unread).sum()
        ),
        "image(s) whose split has another name": int(renamed.sum()),
    }


# --- labels ------------------------------------------------------------------------------------


def _lines(
    images: pd.DataFrame, boxes: pd.DataFrame, classes: Iterable[str], *, polygons: bool
) -> tuple[dict[str, list[str]], dict[str, int]]:
    """Image id → the lines of its label file, and what was lost on the way."""
    at = pd.Index(images["image_id"]).get_indexer(boxes["image_id"])
    sizes = images[["width", "height"]].to_numpy(dtype="float64")[at]
    known, ordinary = (sizes > 0).all(axis=1), ~boxes["iscrowd"].to_numpy()
    losses = {"box(es) of images of unknown size, left out": int((ordinary & ~known).sum())}
    boxes, sizes = boxes[ordinary & known], sizes[ordinary & known]
    number = {name: n for n, name in enumerate(classes)}
    corners = boxes[BOX_COLUMNS].to_numpy() / np.tile(sizes, 2)
    if polygons:
        shapes, boxed = _outlines(boxes, corners, sizes)
        losses["object(s) that are not one polygon, written as their boxes"] = boxed
    else:
        first, second = corners[:, :2], corners[:, 2:]
        shapes = np.concatenate([(first + second) / 2, second - first], axis=1).tolist()
    lines: dict[str, list[str]] = {}
    for image_id, name, shape in zip(
        boxes["image_id"].tolist(), boxes["class_name"].tolist(), shapes, strict=True
    ):
        words = [f"{share:.10f}".rstrip("0").rstrip(".") for share in shape]
        lines.setdefault(image_id, []).append(f"{number[name]} {' '.join(words)}")
    return lines, losses


def _outlines(
    boxes: pd.DataFrame, corners: np.ndarray, sizes: np.ndarray
) -> tuple[list[list[float]], int]:
    """Shares x y x y … of each object's outline, and how many are boxes for want of a polygon.

    A file that mixes lines of polygons with lines of boxes is read wrongly by some: a box is
    written by its four corners.
    """
    shapes = corners[:, [0, 1, 2, 1, 2, 3, 0, 3]].tolist()
    boxed = 0
    for row, more in enumerate(extras(boxes)):
        polygon = _polygon(more.get("segmentation"))
        if polygon is None:
            boxed += 1
        else:
            shapes[row] = np.clip(polygon / sizes[row], 0, 1).ravel().tolist()
    return shapes, boxed


def _polygon(segmentation: object) -> np.ndarray | None:
    """``float64 [N, 2]`` of a segmentation that is one polygon of at least three points."""
    parts = segmentation if isinstance(segmentation, list) else []
    if len(parts) != 1 or not isinstance(parts[0], list):
        return None
    if len(parts[0]) < 6 or len(parts[0]) % 2:
        return None
    return np.array(parts[0], dtype="float64").reshape(-1, 2)


def _write_labels(
    folder: Path, image_ids: Iterable[str], names: Sequence[str], lines: Mapping[str, list[str]]
) -> None:
    folder.mkdir(parents=True)
    for image_id, name in zip(image_ids, names, strict=True):
        text = "".join(f"{line}\n" for line in lines.get(image_id, []))
        (folder / f"{without_ending(name)[0]}.txt").write_text(text, "utf-8")
