"""A plain folder of pictures, without any boxes."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import Literal

from detpipe.core.errors import DataError, one_message
from detpipe.data.formats.base import (
    IMAGE_SUFFIXES,
    Annotations,
    IssueLog,
    existing_folder,
    make_tables,
)
from detpipe.data.formats.walk import files_below, require_utf8
from detpipe.data.image import load_image

logger = logging.getLogger(__name__)


def read(
    root: Path, *, split: str = "", bad_image: Literal["error", "drop"] = "error"
) -> Annotations:
    """Every picture below ``root`` (a folder, or one picture), in the order of their paths.

    As ``data.reader`` it gives a data set without boxes and classes: to be looked at and checked,
    not to train on.

    Args:
        root: the folder; its sub-folders are searched too.
        split: what the ``split`` column holds.
        bad_image: what happens with pictures that do not decode: ``error``, or ``drop``.

    Returns:
        Tables with ``image_id`` = the path without its suffix, or with it where two pictures
        differ in the suffix only; no boxes, no classes.

    Raises:
        DataError: there is no such folder, no picture in it, or some do not decode (all are named).
    """
    if bad_image not in ("error", "drop"):
        raise DataError(f"option 'bad_image' must be error or drop, not '{bad_image}'")
    root = Path(root)
    base = root.parent if root.is_file() else existing_folder(root)
    log = IssueLog()
    files = [Path(root.name)] if root.is_file() else [Path(path) for path in files_below(root)]
    pictures = [path for path in files if path.suffix.lower() in IMAGE_SUFFIXES]
    require_utf8(pictures)
    if not pictures:
        raise DataError(
            f"no pictures in '{root}': looked for {', '.join(sorted(IMAGE_SUFFIXES))} in it and "
            f"the folders below, found {len(files)} other file(s)"
        )
    stems = [path.with_suffix("").as_posix() for path in pictures]
    named = Counter(stems)
    rows, unreadable = [], []
    for path, stem in zip(pictures, stems, strict=True):
        try:
            height, width = load_image(base / path).shape[:2]
        except DataError as error:
            unreadable.append(str(error))
            continue
        rows.append(
            {
                "image_id": stem if named[stem] == 1 else path.as_posix(),
                "path": path.as_posix(), "width": width, "height": height, "split": split,
            }
        )  # fmt: skip
    if unreadable:
        message = one_message(f"{len(unreadable)} picture(s) cannot be read:", unreadable)
        if bad_image == "error" or not rows:
            raise DataError(message)
        logger.warning("left out: %s", message)
        for text in unreadable:
            log.add("warning", "undecodable_image", value=text, action="dropped")
    return make_tables(rows, [], [], log)
