"""Reader of YOLO data sets: ``data.yaml``, images, and one text file of shares an image."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from detpipe.core.errors import DataError
from detpipe.data.formats.base import (
    IMAGE_SUFFIXES,
    Annotations,
    IssueLog,
    existing_folder,
    make_tables,
    relative,
    unique_ids,
)
from detpipe.data.formats.locate import ImageFinder, locate_images
from detpipe.data.formats.shares import picture_sizes
from detpipe.data.formats.walk import exists, files_below, read_lines, require_utf8
from detpipe.data.formats.yolo_config import Config, load, place
from detpipe.data.formats.yolo_labels import Labels


def read(root: Path, *, data: str | None = None, extra: bool = False) -> Annotations:
    """Reads a YOLO data set (Ultralytics' layout v5 to v11, Roboflow, CVAT, Darknet, LabelImg).

    Args:
        root: the data set's folder.
        data: the file that describes the set: a YAML file with ``names`` (a list or a mapping),
            ``train``, ``val``, ``test`` (a folder, a text file of image paths, or a list of these)
            and perhaps ``path``, the folder they are relative to; Darknet's ``*.data``; or a
            ``classes.txt`` with one class a line, whose images lie in ``images`` or beside it.
            Without it: ``data.yaml``, ``dataset.yaml``, the only YAML file of that kind,
            ``*.data``, ``classes.txt``. A path that does not exist, as Roboflow's
            ``../train/images``, is looked up in that file's folder without its leading folders,
            and so is every line of a text file.
        extra: whether polygons are kept in ``boxes.extra`` as ``segmentation``, and keypoints as
            ``keypoints`` and ``num_keypoints``, both in pixels and in COCO's form.

    Labels lie where ``images`` in an image's path becomes ``labels``, or beside the image. An image
    without label file has no objects. Of polygons, corners of rotated boxes, and objects with
    keypoints (where the YAML has ``kpt_shape``) the upright box is used. Coordinates are shares of
    the upright image.

    Raises:
        DataError: nothing that describes the set, no names, no images. Label lines that cannot be
            read are errors in ``issues``.
    """
    root = existing_folder(root)
    log = IssueLog()
    config = load(root, data, log)
    files = [
        (split, path)
        for split, entries in config.entries
        for path in _split_images(config, split, entries, root, log)
    ]
    if not files:
        raise DataError(f"{config.path} names no folder or list that holds an image")
    require_utf8(path for _, path in files)
    images = pd.DataFrame(files, columns=["split", "path"])
    places = [str(Path(path).with_suffix("")) for path in images["path"]]
    ids = [
        [Path(path).stem for path in images["path"]],
        places,
        [f"{s}-{p}" for s, p in zip(images["split"], places, strict=True)],
        [f"{s}-{p}" for s, p in zip(images["split"], images["path"], strict=True)],
    ]
    images["image_id"] = unique_ids(ids)
    images[["width", "height"]] = picture_sizes(root, images["path"])
    labels = Labels(config.names, config.keypoints, root, log, extra=extra)
    boxes = labels.read(images)
    boxes["area"] = (boxes["x2"] - boxes["x1"]) * (boxes["y2"] - boxes["y1"])
    boxes["iscrowd"] = boxes["difficult"] = False
    return make_tables(images, boxes, list(config.names.values()), log)


def _split_images(
    config: Config, split: str, entries: Sequence[str], root: Path, log: IssueLog
) -> list[str]:
    """The images of one split, relative to ``root``, sorted."""
    images: list[str] = []
    for entry in entries:
        where, tried = place(entry, config.base, config.path.parent)
        if where is None:
            raise DataError(
                f"{config.path}: '{split}: {entry}' was not found; tried "
                f"{', '.join(map(str, tried))}"
            )
        if where != tried[0]:
            log.add(
                "info", "path_assumed", file=relative(config.path, root), value=f"{split}: {entry}",
                action=f"read from {relative(where, root)}",
            )  # fmt: skip
        images += _listed(where, config, root, log) if where.is_file() else _folder(where, root)
    if not images:
        log.add("warning", "split_without_images", file=config.path.name, value=split)
    return sorted(dict.fromkeys(images))


def _folder(folder: Path, root: Path) -> list[str]:
    """The pictures below a folder, also those that are links to nothing: the check names them."""
    place = relative(folder, root)
    start = "" if place == "." else f"{place.rstrip('/')}/"
    return [
        start + path for path in files_below(folder) if path.lower().endswith(tuple(IMAGE_SUFFIXES))
    ]


def _listed(file: Path, config: Config, root: Path, log: IssueLog) -> list[str]:
    """The images that a text file lists, one a line."""
    if file.suffix.lower() in IMAGE_SUFFIXES:
        raise DataError(
            f"{config.path} names the picture {relative(file, root)}: name a folder of pictures, "
            f"or a text file with one path a line"
        )
    bases = [file.parent, config.path.parent / config.base, config.path.parent, root]
    finder = ImageFinder(
        place for base in bases for place in (base, base / "images") if exists(place)
    )
    source = relative(file, root)
    found = locate_images(
        read_lines(file), finder, source=source, root=root, log=log,
        way_out=f"Correct the paths in {source}, or 'path' in {config.path.name}",
    )  # fmt: skip
    return [path for path in found if path is not None]
