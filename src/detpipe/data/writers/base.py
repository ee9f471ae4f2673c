"""What every writer shares: whole folders, names of files, what the target cannot hold."""

from __future__ import annotations

import contextlib
import itertools
import logging
import operator
import os
import re
import shutil
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import pandas as pd

from detpipe.core.errors import DataError, one_message
from detpipe.core.tables import BOXES, IMAGES, ISSUES
from detpipe.data.formats.base import Annotations, class_table, sample
from detpipe.data.formats.federated import frequencies_in
from detpipe.data.image import upright_size

logger = logging.getLogger(__name__)

Pictures = Literal["copy", "link", "none"]
"""Whether pictures are copied byte for byte, linked to (symbolic links), or left where they are."""

_LONGEST = 200
"""Bytes of a file's name that is put together of folders; file systems take 255."""


# --- the folder --------------------------------------------------------------------------------


def require_free(folder: Path, root: Path) -> None:
    """Refuses a folder that a data set cannot be written to.

    Raises:
        DataError: ``folder`` holds something, or lies in ``root``, the data set that is read.
    """
    if folder.resolve().is_relative_to(root.resolve()):
        raise DataError(
            f"{folder} lies in the data set that is read, {root}, which is never changed: "
            f"choose another folder"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder} is there already: remove it, or choose another folder")


@contextlib.contextmanager
def new_folder(folder: Path, root: Path) -> Iterator[Path]:
    """A folder to write into, which becomes ``folder`` when all is written.

    It lies beside ``folder``, so nothing half-written ever has the final name; what a killed run
    left there is removed.

    Raises:
        DataError: as :func:`require_free`, or ``folder`` cannot be written.
    """
    require_free(folder, root)
    folder = folder.resolve()
    unfinished = folder.with_name(f".{folder.name}.detpipe-unfinished")
    try:
        if unfinished.exists():
            shutil.rmtree(unfinished)
        unfinished.mkdir(parents=True)
        try:
            yield unfinished
            if folder.exists():
                folder.rmdir()
            unfinished.rename(folder)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
    except OSError as error:
        raise DataError(f"{folder} cannot be written: {error}") from error


# --- tables ------------------------------------------------------------------------------------


def writable(found: Annotations, root: Path) -> Annotations:
    """The tables without what no format can hold, and with the sizes of files where they lack.

    Boxes of images that are not listed, or without a class, are left out and counted; classes that
    are not listed come last.
    """
    images, boxes, classes = IMAGES.make(found.images), BOXES.make(found.boxes), found.classes
    usable = boxes["image_id"].isin(images["image_id"]) & (boxes["class_name"] != "")
    if not usable.all():
        logger.warning("left out: %d box(es) without an image or a class", int((~usable).sum()))
        boxes = boxes[usable].reset_index(drop=True)
    names = list(dict.fromkeys([*classes["class_name"], *boxes["class_name"].unique()]))
    classes = class_table(names, dict(frequencies_in(classes)))
    unknown = (images["width"] == 0) | (images["height"] == 0)
    if unknown.any():
        sizes = {p: _size(Path(root) / p) for p in images["path"][unknown].unique()}
        for at, column in enumerate(("height", "width")):
            listed = images["path"].map({path: size[at] for path, size in sizes.items()})
            images[column] = images[column].where(~unknown, listed).astype("int64")
    return Annotations(images, boxes, classes, ISSUES.empty())


def _size(file: Path) -> tuple[int, int]:
    try:
        return upright_size(file)
    except DataError:
        return 0, 0  # as the data set has it


def extras(boxes: pd.DataFrame, *, raw: bool = False) -> Iterator[dict[str, Any]]:
    """``boxes.extra`` of each row as a dict, empty where there is nothing.

    Args:
        boxes: the table, with the column or without.
        raw: values stay the JSON text they are (``msgspec.Raw``).

    Raises:
        DataError: a value is no JSON object.
    """
    texts = boxes["extra"].tolist() if "extra" in boxes else [""] * len(boxes)
    decoder = msgspec.json.Decoder(dict[str, msgspec.Raw] if raw else dict[str, Any])
    for row, text in enumerate(texts):
        try:
            yield decoder.decode(text) if text else {}
        except msgspec.MsgspecError as error:
            annotation = boxes["annotation_id"].iloc[row]
            raise DataError(
                f"boxes.extra of annotation '{annotation}' is no JSON object ({error}): {text:.80}"
            ) from error


def plain_numbers(ids: pd.Series, *, at_least: int) -> list[int]:
    """The ids as whole numbers where all are such and none repeats; else numbered from 1."""
    if ids.is_unique and ids.str.fullmatch(r"0|[1-9]\d{0,14}").all():
        numbers = [int(text) for text in ids.tolist()]
        if min(numbers, default=at_least) >= at_least:
            return numbers
    return list(range(1, len(ids) + 1))


def require_printable(classes: pd.DataFrame, target: str) -> None:
    """Refuses class names that a text file cannot hold.

    Raises:
        DataError: names with control characters; all are listed.
    """
    wrong = [f"{name!a}" for name in classes["class_name"] if _CONTROL.search(name)]
    if wrong:
        raise DataError(
            one_message(
                f"{target} cannot hold class names with line breaks or control characters; rename "
                f"them in the data set, or write coco, yolo or parquet:", wrong,
            )
        )  # fmt: skip


def say_lost(target: str, losses: Mapping[str, int]) -> None:
    """One warning for what ``target`` cannot hold, with counts; none where nothing is lost."""
    lost = [f"{count} {what}" for what, count in losses.items() if count]
    if lost:
        logger.warning("%s cannot hold everything: %s", target, "; ".join(lost))


def own_areas(boxes: pd.DataFrame) -> int:
    """How many boxes have another area than width × height (that of a segment)."""
    product = (boxes["x2"] - boxes["x1"]) * (boxes["y2"] - boxes["y1"])
    return int(((boxes["area"] - product).abs() > 1e-6 * product.abs().clip(lower=1)).sum())


def groups_of(images: pd.DataFrame) -> int:
    """How many images belong to a group."""
    return int((images["group"] != "").sum()) if "group" in images else 0


# --- names of files ----------------------------------------------------------------------------

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def parts_of(path: str) -> list[str]:
    """Folders and name of a path, without what leads out of a folder and without line breaks."""
    parts = _CONTROL.sub("_", path).split("/")
    return [part for part in parts if part not in ("", ".", "..")] or ["_"]


def without_ending(name: str) -> tuple[str, str]:
    """What :class:`pathlib.Path` calls stem and suffix, the folders before them; in less time."""
    dot = name.rfind(".")
    has_one = name.rfind("/") + 1 < dot < len(name) - 1
    return (name[:dot], name[dot:]) if has_one else (name, "")


def below_common_folder(paths: Sequence[str]) -> list[str]:
    """The paths without the leading folders that all of them share."""
    every = [parts_of(path) for path in paths]
    first, last = (pick((parts[:-1] for parts in every), default=[]) for pick in (min, max))
    shared = sum(itertools.accumulate(map(operator.eq, first, last), operator.and_))
    return ["/".join(parts[shared:]) for parts in every]


def flat_names(paths: Sequence[str]) -> list[str]:
    """File names, one a path, that differ even without ending.

    Where two would be the same, their folders are put in front, then numbers behind.
    """
    parts = [parts_of(path) for path in paths]
    stems = pd.Series([_key(without_ending(p[-1])[0]) for p in parts], dtype="object")
    names = [
        "_".join(p) if double and len("_".join(p).encode()) <= _LONGEST else p[-1]
        for p, double in zip(parts, stems.duplicated(keep=False), strict=True)
    ]
    return unique_names(names, range(len(names)), stems=True)


def unique_names(
    names: Sequence[str], owners: Sequence[object], *, stems: bool = False
) -> list[str]:
    """The names, numbered where two owners would share one.

    Names that differ in case or Unicode form only count as the same: some file systems cannot
    tell them apart.

    Args:
        names: relative paths.
        owners: whom each is for; an owner may have a name several times.
        stems: names that differ in their ending only count as the same, too.
    """
    taken: dict[str, object] = {}
    numbers: dict[str, int] = {}
    unique = []
    for name, owner in zip(names, owners, strict=True):
        stem, ending = without_ending(name)
        candidate = stem
        key = first = _key(stem if stems else name)
        while taken.setdefault(key, owner) != owner:
            numbers[first] = numbers.get(first, 1) + 1
            candidate = f"{stem}_{numbers[first]}"
            key = _key(candidate if stems else candidate + ending)
        unique.append(candidate + ending)
    return unique


def folder_names(splits: Sequence[str], *, unnamed: str) -> dict[str, str]:
    """Split → a name for its folder or file; ``unnamed`` for the split ''."""
    names = ["_".join(parts_of(re.sub(r"[/\\]", "_", split))) or unnamed for split in splits]
    wanted = [name if split else unnamed for split, name in zip(splits, names, strict=True)]
    return dict(zip(splits, unique_names(wanted, splits), strict=True))


def _key(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


# --- pictures ----------------------------------------------------------------------------------


def place_pictures(
    paths: Sequence[str], targets: Sequence[str], *, root: Path, new: Path, pictures: Pictures
) -> None:
    """Copies or links each file ``root / path`` to ``new / target``; missing ones are counted."""
    if pictures == "none":
        return
    for parent in {(new / target).parent for target in targets}:
        parent.mkdir(parents=True, exist_ok=True)
    missing = []
    for target, path in dict(zip(targets, paths, strict=True)).items():
        source = Path(root) / path
        if not source.is_file():
            missing.append(path)
        elif pictures == "link":
            (new / target).symlink_to(source.resolve())
        else:
            shutil.copyfile(source, new / target)
    if missing:
        # Square brackets would be taken for markup by rich's log handler.
        names = sample(missing).replace("[", "(").replace("]", ")")
        logger.warning("%d picture(s) are missing: %s", len(missing), names)


def placed(
    images: pd.DataFrame, *, root: Path, folder: Path, new: Path, pictures: Pictures
) -> list[str]:
    """Places the pictures below ``images`` of ``new``; their paths relative to the folder."""
    paths = images["path"].tolist()
    if pictures == "none":
        return where_they_are(paths, root=root, folder=folder)
    targets = [f"images/{name}" for name in unique_names(below_common_folder(paths), paths)]
    place_pictures(paths, targets, root=root, new=new, pictures=pictures)
    return targets


def where_they_are(paths: Sequence[str], *, root: Path, folder: Path) -> list[str]:
    """The pictures' paths relative to the folder that is written, for ``pictures: none``."""
    base = os.path.relpath(Path(root).resolve(), Path(folder).resolve())
    joined = (os.path.normpath(os.path.join(base, path)) for path in paths)  # noqa: PTH118 - as above
    return [path.replace(os.sep, "/") for path in joined]
