"""Reader of Pascal VOC annotations: one XML file an image."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd

from detpipe.core.errors import DataError, one_message
from detpipe.core.tables import BOX_COLUMNS
from detpipe.data.formats.base import (
    Annotations,
    IssueLog,
    existing_folder,
    make_tables,
    relative,
    unique_ids,
)
from detpipe.data.formats.voc_files import File, find_images, lists, with_lists, xml_files
from detpipe.data.formats.voc_xml import Thing, parse
from detpipe.data.formats.walk import why


def read(
    root: Path,
    *,
    annotations: str = "Annotations",
    images: str = "JPEGImages",
    splits: str = "ImageSets/Main",
    one_based: bool = False,
    suffix: str = ".xml",
    encoding: str | None = None,
    extra: bool = False,
) -> Annotations:
    """Reads a Pascal VOC data set.

    Args:
        root: the data set's folder, or one that holds it one or two levels below (``VOCdevkit``).
        annotations: folder of the XML files. Where it is missing, ``{train,valid,test}`` folders
            with XML beside the images are read, and the split is the folder's name.
        images: folder of the images, or of sub-folders like those of ``annotations``. They may lie
            in ``images`` or beside their XML, too.
        splits: folder of the lists ``train.txt``, ``val.txt`` (``valid.txt``, …), ``test.txt``.
            With lists, XML files in none of them are left out; without, the split is the
            sub-folder ``train``, ``val``, … of ``annotations``, or ''. ``trainval`` counts only
            where ``train`` and ``val`` are missing: it is their union.
        one_based: whether pixel 1 is the first, as in the original VOC. Then 1 is taken off x1 and
            y1, and x2, y2, inclusive there, become exclusive as they stand.
        suffix: ending of the annotation files.
        encoding: of XML files that do not declare theirs and are not UTF-8.
        extra: whether ``pose``, ``truncated``, ``occluded`` and all else that an ``<object>`` says
            is kept in ``boxes.extra``.

    An object without ``<bndbox>`` gets the upright box around its ``<robndbox>`` (roLabelImg) or
    ``<polygon>``. Images are found by ``<filename>``, unless that is another picture than the one
    beside it which is named like the XML, else by name without ending. Image ids are the names of
    the XML files without ending. Classes are in alphabetical order, since VOC lists none.

    Raises:
        DataError: no such folder, no XML file, malformed XML. What is wrong with single records
            goes to ``issues``.
    """
    if not suffix.startswith("."):
        raise DataError(f"option 'suffix' must begin with a dot, such as .txt, not '{suffix}'")
    root = existing_folder(root)
    log = IssueLog()
    base, found = xml_files(root, annotations, suffix, log)
    files = _parse_all(found, encoding, extra=extra)
    files = with_lists(files, lists(base / splits), base / splits, root, log)
    find_images(files, base / images, base, root, log)
    files = [file for file in files if file.image is not None]
    names = [file.path.stem for file in files]
    ids = unique_ids([names, [relative(file.path.with_suffix(""), root) for file in files]])
    things = [thing for file in files for thing in file.record.things]
    boxes = _boxes(things, 1.0 if one_based else 0.0, extra=extra)
    counts = [len(file.record.things) for file in files]
    boxes["image_id"] = pd.Series(np.repeat(np.array(ids, object), counts), dtype="str")
    boxes["annotation_id"] = pd.Series(
        [f"{i}-{n}" for i, count in zip(ids, counts, strict=True) for n in range(1, count + 1)],
        dtype="str",
    )
    _say_what_they_are(things, log)
    boxes = _without_odd(boxes, files, root, log)
    return make_tables(_image_rows(files, ids, root), boxes, None, log)


def _image_rows(files: Sequence[File], ids: Sequence[str], root: Path) -> list[dict[str, object]]:
    return [
        {
            "image_id": image_id, "path": relative(file.image or file.path, root),
            "width": file.record.width, "height": file.record.height, "split": file.split,
        }
        for image_id, file in zip(ids, files, strict=True)
    ]  # fmt: skip


def _without_odd(
    boxes: pd.DataFrame, files: Sequence[File], root: Path, log: IssueLog
) -> pd.DataFrame:
    """The boxes, in the order of the files' objects, without those that are no four numbers."""
    objects = [(file, thing) for file in files for thing in file.record.things]
    odd = np.array([bool(thing.odd) for _, thing in objects], bool)
    if odd.any():
        rows = boxes[odd].assign(
            file=[relative(file.path, root) for file, thing in objects if thing.odd],
            value=[thing.odd for _, thing in objects if thing.odd],
        )
        _say_what_is_odd(rows, log)
    kept: pd.DataFrame = boxes[np.logical_not(odd)]
    return kept


def _boxes(things: Sequence[Thing], base: float, *, extra: bool) -> pd.DataFrame:
    """The ``boxes`` table but for the ids."""
    corners = np.array([thing.box for thing in things], np.float64).reshape(-1, 4)
    corners[:, :2] -= base
    frame = pd.DataFrame(corners, columns=BOX_COLUMNS)
    frame["area"] = (frame["x2"] - frame["x1"]) * (frame["y2"] - frame["y1"])
    frame["class_name"] = pd.Series([thing.name for thing in things], dtype="str")
    frame["difficult"] = np.array([thing.difficult for thing in things], bool)
    frame["iscrowd"] = False
    if extra:
        texts = [msgspec.json.encode(t.extra).decode() if t.extra else "" for t in things]
        frame["extra"] = pd.Series(texts, dtype="str")
    return frame


def _say_what_they_are(things: Sequence[Thing], log: IssueLog) -> None:
    found = [
        ("truncated_objects", sum(t.truncated for t in things), "used like the others"),
        ("polygons", sum(t.polygon for t in things), "their boxes are used"),
        ("rotated_boxes", sum(t.rotated for t in things),
         "an upright box is used: of <robndbox> the one around it, else <bndbox> as written"),
    ]  # fmt: skip
    for rule, count, action in found:
        if count:
            log.add("info", rule, value=f"{count} of {len(things)} objects", action=action)


def _say_what_is_odd(rows: pd.DataFrame, log: IssueLog) -> None:
    """``rows`` are boxes without four numbers, with ``file`` and ``value``, what is written."""
    commas = rows["value"].str.contains(r"=-?\d+,\d+(?: |$)")
    columns = ["file", "image_id", "annotation_id", "value"]
    log.add_rows(
        "error", "decimal_comma", rows[commas][columns],
        action="write numbers with a decimal point",
    )  # fmt: skip
    log.add_rows(
        "warning", "box_not_a_number", rows[np.logical_not(commas)][columns],
        action="dropped: a box has four numbers",
    )  # fmt: skip


def _parse_all(
    found: Sequence[tuple[Path, Path, str]], encoding: str | None, *, extra: bool
) -> list[File]:
    files, mistakes = [], []
    for path, folder, split in found:
        try:
            files.append(File(path, folder, parse(path, encoding, extra=extra), split))
        except ValueError as error:
            mistakes.append(f"{path}: {error}")
        except OSError as error:
            mistakes.append(f"{path}: {why(path, error)}")
    if mistakes:
        shown = mistakes[:20] + ([f"and {len(mistakes) - 20} more"] if len(mistakes) > 20 else [])
        raise DataError(one_message("these XML files cannot be read:", shown))
    return files
