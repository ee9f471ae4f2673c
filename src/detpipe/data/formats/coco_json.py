"""COCO annotation files: where they are, how they are parsed, and how their ids are compared."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from detpipe.core.errors import DataError
from detpipe.data.formats.base import relative, sample, split_in_name

Id = str | int | float | None
_ROBOFLOW = "_annotations.coco.json"


class Image(msgspec.Struct, gc=False):
    """A record of ``images``; what it lacks is None."""

    id: Id = None
    file_name: str | None = None
    width: float | None = None
    height: float | None = None


class Annotation(msgspec.Struct):
    """A record of ``annotations``; segmentations are not even parsed."""

    id: Id = None
    image_id: Id = None
    category_id: Id = None
    bbox: list[float | None] | None = None
    area: float | None = None
    iscrowd: float | bool | None = None


class Category(msgspec.Struct, gc=False):
    """A record of ``categories``."""

    id: Id = None
    name: Id = None


class File(msgspec.Struct):
    """What is read of an annotation file."""

    images: list[Image] | None = None
    annotations: list[Annotation] | None = None
    categories: list[Category] | None = None


# --- files -------------------------------------------------------------------------------------


def find_files(root: Path, given: str | Mapping[str, str] | None) -> list[tuple[str, Path]]:
    """(split, JSON file) of each part of the data set, train first."""
    if isinstance(given, str):
        given = {split_in_name(Path(given).stem) or split_in_name(Path(given).parent.name): given}
    if given is not None:
        files = [(split, root / name) for split, name in given.items()]
        absent = [str(path) for _, path in files if not path.is_file()]
        if absent:
            raise DataError(f"no such annotation file: {', '.join(absent)}; {_jsons(root)}")
        return files
    folder = root / "annotations"
    found = sorted(folder.glob("instances_*.json")) or [
        path for path in sorted(folder.glob("*.json")) if split_in_name(path.stem)
    ]
    found = found or sorted(root.glob(f"*/{_ROBOFLOW}"))
    found = found or [path for path in [root / _ROBOFLOW] if path.is_file()]
    found = found or [
        path for path in sorted(root.glob("*.json")) if split_in_name(path.stem)
    ]  # fmt: skip
    if not found:
        raise DataError(
            f"no COCO annotation file in {root}: tried annotations/instances_*.json, "
            f"annotations/train.json (val, test), */{_ROBOFLOW}, {_ROBOFLOW} and train.json (val, "
            f"test); {_jsons(root)}. Name it with the reader's option 'annotations'"
        )
    files = [(_split(path, root, alone=len(found) == 1), path) for path in found]
    return sorted(files, key=lambda file: (not file[0].startswith("train"), file[1]))


def _split(path: Path, root: Path, *, alone: bool) -> str:
    own = "" if path.name == _ROBOFLOW else re.sub(r"^instances_", "", path.stem)
    folder = path.parent.name if path.parent != root else ""  # the root's name says nothing
    named = split_in_name(own or folder)
    return named or ("" if alone else own or folder)


def _jsons(root: Path) -> str:
    found = [relative(path, root) for path in sorted(root.rglob("*.json"))]
    return f"JSON files there: {sample(found)}" if found else "there is no JSON file at all"


def parse(path: Path) -> File:
    """The content of an annotation file.

    Raises:
        DataError: it is no JSON, or no COCO annotation file.
    """
    data = path.read_bytes()
    try:
        return msgspec.json.decode(data, type=File)
    except msgspec.MsgspecError:
        pass  # the slow way forgives more: a BOM, NaN, numbers written as text
    try:
        content = json.loads(data.decode("utf-8-sig"))
    except ValueError as error:
        raise DataError(f"{path} is not valid JSON: {error}") from error
    try:
        return msgspec.convert(_plain(content), type=File, strict=False)
    except msgspec.ValidationError as error:
        raise DataError(f"{path} is no COCO annotation file: {error}") from error


def _plain(content: Any) -> Any:
    """Without what the parser need not see; null for NaN and text that is no number in a box."""
    if isinstance(content, dict) and isinstance(content.get("annotations"), list):
        for record in content["annotations"]:
            if isinstance(record, dict) and isinstance(record.get("bbox"), list):
                record["bbox"] = [_number(value) for value in record["bbox"]]
            if isinstance(record, dict) and "area" in record:
                record["area"] = _number(record["area"])
            if isinstance(record, dict) and isinstance(record.get("iscrowd"), str):
                record["iscrowd"] = _number(record["iscrowd"])
    return content


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if np.isfinite(number) else None


# --- ids ---------------------------------------------------------------------------------------


def key_of(value: Id) -> str:
    """An id as text: 1, 1.0 and "1" are the same, "0001" is another; None is ''."""
    if type(value) is int:  # nearly all of them, and there are millions
        return str(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "" if value is None else str(value).strip()


def _canonical(key: str) -> str:
    """``0001`` and ``1.0`` as ``1``."""
    try:
        number = float(key)
    except ValueError:
        return key
    return str(int(number)) if number.is_integer() else key


def matching(keys: Sequence[str], wanted: Iterable[str]) -> dict[str, str]:
    """wanted → the key it means; equal text first, then equal number if only one key has it."""
    known = set(keys)
    by_number: dict[str, list[str]] = {}
    for key in dict.fromkeys(keys):
        by_number.setdefault(_canonical(key), []).append(key)
    found = {}
    for reference in set(wanted):
        if reference in known:
            found[reference] = reference
        elif len(near := by_number.get(_canonical(reference), [])) == 1:
            found[reference] = near[0]
    return found
