"""COCO annotation files: where they are, how they are parsed, what a file is that is none."""

from __future__ import annotations

import gc
import json
import mmap
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from detpipe.core.errors import DataError
from detpipe.data.formats.base import relative, sample, split_in_name
from detpipe.data.formats.coco_columns import (
    BoxColumns,
    ImageColumns,
    box_columns,
    image_columns,
    number,
)
from detpipe.data.formats.coco_ids import Id
from detpipe.data.formats.walk import exists, visible, why
from detpipe.data.remote import resolve

_ROBOFLOW = "_annotations.coco.json"
_LABEL_STUDIO = "result.json"


class Category(msgspec.Struct, gc=False):
    """A record of ``categories``."""

    id: Id = None
    name: Id = None
    frequency: Any = None


@dataclass(frozen=True)
class Content:
    """What is read of an annotation file; a list that it lacks is None."""

    images: ImageColumns
    boxes: BoxColumns | None
    categories: list[Category] | None

    def without_boxes(self) -> Content:
        """The same, the memory of the boxes free."""
        return replace(self, boxes=None)


class _File(msgspec.Struct):
    """The lists as they are written: they are parsed piece by piece, see ``coco_columns``."""

    images: msgspec.Raw = msgspec.Raw()
    annotations: msgspec.Raw = msgspec.Raw()
    categories: list[Category] | None = None


# --- files -------------------------------------------------------------------------------------


def find_files(root: Path, given: str | Mapping[str, str] | None) -> list[tuple[str, Path]]:
    """(split, JSON file) of each part of the data set, train first."""
    if isinstance(given, str):
        given = {split_in_name(Path(given).stem) or split_in_name(Path(given).parent.name): given}
    if given is not None:
        files = [(s, resolve(root, name, what="the annotations")) for s, name in given.items()]
        absent = [str(path) for _, path in files if not exists(path)]
        if absent or not files:
            absent = absent or ["the option 'annotations' is empty"]
            raise DataError(f"no such annotation file: {', '.join(absent)}; {_jsons(root)}")
        return files
    found = _candidates(root)
    if not found:
        raise DataError(
            f"no COCO annotation file in {root}: tried annotations/instances_*.json, "
            f"annotations/train.json (val, test), */{_ROBOFLOW}, {_ROBOFLOW}, train.json (val, "
            f"test), {_LABEL_STUDIO} and a JSON file that is the only one in the folder; "
            f"{_jsons(root)}. Name it with the reader's option 'annotations'"
        )
    files = [(_split(path, root, alone=len(found) == 1), path) for path in found]
    return sorted(files, key=lambda file: (not file[0].startswith("train"), file[1]))


def _candidates(root: Path) -> list[Path]:
    inside, beside = visible(root, "annotations/*.json"), visible(root, "*.json")
    ways = (
        [path for path in inside if path.name.startswith("instances_")],
        [path for path in inside if split_in_name(path.stem)],
        visible(root, f"*/{_ROBOFLOW}"),
        [path for path in beside if path.name == _ROBOFLOW],
        [path for path in beside if split_in_name(path.stem)],
        [path for path in beside if path.name == _LABEL_STUDIO],
        inside if len(inside) == 1 else [],
        beside if len(beside) == 1 else [],
    )
    return next((found for found in ways if found), [])


def _split(path: Path, root: Path, *, alone: bool) -> str:
    own = "" if path.name == _ROBOFLOW else re.sub(r"^instances_", "", path.stem)
    folder = path.parent.name if path.parent != root else ""  # the root's name says nothing
    named = split_in_name(own or folder)
    return named or ("" if alone else own or folder)


def _jsons(root: Path) -> str:
    found = [relative(path, root) for path in visible(root, "**/*.json")]
    return f"JSON files there: {sample(found)}" if found else "there is no JSON file at all"


# --- content -----------------------------------------------------------------------------------


def parse(path: Path, *, extra: bool = False, group: str | None = None) -> Content:
    """The content of an annotation file.

    Args:
        path: the file.
        extra: take the fields that no table has, as text.
        group: the field of image records that names their group, nested by dots.

    Raises:
        DataError: it cannot be read, is no JSON, or no COCO annotation file: the message says what
            it looks like.
    """
    data = _bytes(path)
    try:
        try:
            return _content(data, path, extra=extra, group=group, strict=True)
        except msgspec.MsgspecError:  # the slow way forgives more: NaN, UTF-16, numbers as text
            return _forgiving(data, path, extra=extra, group=group)
    except RecursionError as error:
        raise DataError(f"{path} holds lists that are nested too deep to be read") from error


def _forgiving(
    data: bytes | mmap.mmap, path: Path, *, extra: bool, group: str | None
) -> Content:  # fmt: skip
    try:
        content = json.loads(bytes(data))  # UTF-8, UTF-16 or UTF-32, with a mark or without
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not written in UTF-8: {error}; save it in UTF-8") from error
    except ValueError as error:
        raise DataError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise DataError(
            f"{path} is no COCO annotation file, which is a JSON object with the lists 'images', "
            f"'annotations' and 'categories': {_looks_like(content)}"
        )
    try:
        data = msgspec.json.encode(_plain(content))  # null where NaN was
    except UnicodeEncodeError as error:
        raise DataError(
            f"{path}: the text {error.object!a} holds half of a letter (\\ud800 to \\udfff come in "
            f"pairs): write it anew"
        ) from error
    del content
    try:
        return _content(data, path, extra=extra, group=group, strict=False)
    except msgspec.MsgspecError as error:
        raise DataError(f"{path} is no COCO annotation file: {error}") from error


def _bytes(path: Path) -> bytes | mmap.mmap:
    """A file's bytes: mapped, so that they are neither copied nor held."""
    try:
        with path.open("rb") as file:
            try:
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError):  # a file system that cannot; an empty file
                return file.read()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {why(path, error)}") from error


def _content(
    data: bytes | mmap.mmap, path: Path, *, extra: bool, group: str | None, strict: bool
) -> Content:  # fmt: skip
    with _no_garbage_collection():
        file = msgspec.json.decode(data, type=_File, strict=strict)
        listed = _list(file.images, "images")
        if listed is None:
            raise DataError(
                f"{path} has no 'images' list, so it is no COCO annotation file: "
                f"{_looks_like(msgspec.json.decode(data))}"
            )
        images = image_columns(listed, group=group, strict=strict)
        records = _list(file.annotations, "annotations")
        boxes = None if records is None else box_columns(records, extra=extra, strict=strict)
    if group is not None and images.groups is None:
        raise DataError(
            f"{path}: no image record has the field '{group}' that the reader's option 'group' "
            f"names; {_fields(listed)}"
        )
    if records is not None and boxes is not None and boxes.without_shape:
        raise DataError(
            f"{path}: its annotations have neither 'bbox' nor 'segmentation', so it holds no "
            f"boxes: {_looks_like({'annotations': _first(records)})}; {_fields(records)}"
        )
    return Content(images, boxes, file.categories)


def _list(raw: msgspec.Raw, name: str) -> memoryview | None:
    """The bytes of a JSON list; None where there is none."""
    view = memoryview(raw)
    if len(view) == 0 or bytes(view[:4]) == b"null":
        return None
    if bytes(view[:1]) != b"[":
        raise msgspec.ValidationError(f"Expected `array` - at `$.{name}`")
    return view


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Millions of small lists are made: looking for cycles in them costs more than making them."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _plain(content: dict[str, Any]) -> dict[str, Any]:
    """Numbers for words, and null for what is no number, in areas and flags."""
    records = content.get("annotations")
    for record in records if isinstance(records, list) else []:
        if not isinstance(record, dict):
            continue
        if "area" in record:
            record["area"] = number(record["area"])
        for field in ("iscrowd", "ignore"):
            if isinstance(word := record.get(field), str):
                record[field] = word.strip().lower() in ("true", "yes") or number(word)
    return content


# --- other files -------------------------------------------------------------------------------

_SIGNS: Sequence[tuple[frozenset[str], str]] = [
    (frozenset(fields.split()), what)
    for fields, what in (
        ("image_id bbox score", "a list of detections (a results file): scores, no ground truth"),
        ("image_id segmentation score", "a list of masks found (a results file)"),
        ("shapes imagePath", "LabelMe's file of one image"),
        ("segments_info", "COCO's panoptic annotations"),
        ("caption", "COCO's captions"),
        ("keypoints", "keypoints without boxes"),
        ("_via_img_metadata", "a project of the VGG Image Annotator"),
        ("regions filename", "regions of the VGG Image Annotator"),
        ("data annotations", "Label Studio's own JSON: export the project as COCO"),
        ("image annotations", "Create ML's annotations"),
        ("name labels", "BDD100K's labels"),
        ("features type", "GeoJSON"),
        ("objects size", "Supervisely's file of one image"),
    )
]
"""Fields that tell what another kind of file is."""


def _looks_like(content: Any) -> str:
    """What a file looks like by the fields of its top and of its first record."""
    for record in (content, _first_record(content)):
        if not isinstance(record, dict):
            continue
        for fields, what in _SIGNS:
            if fields <= record.keys():
                return f"it looks like {what}"
    if isinstance(content, dict):
        return f"it has {sample(map(repr, content), at_most=8) or 'nothing'}"
    return f"it is a JSON {'list' if isinstance(content, list) else 'value'}"


def _first_record(content: Any) -> Any:
    """The first record of a list, of the annotations, or of an object of records."""
    if isinstance(content, dict):
        content = content.get("annotations", list(content.values()))
    return content[0] if isinstance(content, list) and content else None


def _first(records: memoryview) -> list[Any]:
    """The list of the first record alone."""
    found: list[Any] = msgspec.json.decode(records)
    return found[:1]


def _fields(records: memoryview) -> str:
    first = _first(records)
    fields = list(first[0]) if first and isinstance(first[0], dict) else []
    return f"the first record has {', '.join(fields) or 'none'}"
