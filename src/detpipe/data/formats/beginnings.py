"""What the beginning of a file shows of its format."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence

from detpipe.core.errors import DataError
from detpipe.data.formats.base import IssueLog
from detpipe.data.formats.csv_columns import columns as columns_of
from detpipe.data.formats.csv_files import fields, without_header
from detpipe.data.formats.csv_text import is_idle

OPEN_IMAGES = frozenset(("ImageID", "LabelName", "XMin", "XMax", "YMin", "YMax"))
"""Columns of Open Images' boxes."""

_TOKEN = re.compile(r'"((?:[^"\\]|\\.)*)"(\s*:)?|([{}\[\]])')


def json_shape(text: str, *, deepest: int = 4) -> frozenset[str]:
    """Paths of the keys in the beginning of a JSON text: ``.images``, ``.images[].id``, ``[].x``.

    Args:
        text: the beginning; it may break off anywhere.
        deepest: objects and lists within each other that are looked into.

    Returns:
        The paths, and ``[]`` alone where the whole is a list; nothing for what is no JSON.
    """
    if not text.lstrip().startswith(("{", "[")):
        return frozenset()
    stack: list[str] = []  # how each open object or list is reached
    key = ""
    found = set()
    for match in _TOKEN.finditer(text):
        name, colon, bracket = match.groups()
        if bracket in ("{", "["):
            here = (stack[-1] if stack else "") + key
            stack.append(here + ("[]" if bracket == "[" else ""))
            key = ""
            if bracket == "[" and len(stack) == 1:
                found.add("[]")
        elif bracket:
            if stack:
                stack.pop()
            key = ""
        elif colon and stack:
            key = f".{name}"
            if len(stack) <= deepest:
                found.add(stack[-1] + key)
    return frozenset(found)


def has(shape: Iterable[str], *paths: str) -> bool:
    """Whether all these paths are there."""
    return set(paths) <= set(shape)


def is_coco(text: str) -> bool:
    """Whether a JSON file that begins so is COCO's."""
    shape = json_shape(text)
    return (
        has(shape, ".images[].file_name")
        or has(shape, ".annotations[].image_id", ".annotations[].category_id")
        or has(shape, ".annotations[].segmentation")  # the first may fill the whole beginning
        or (has(shape, ".images") and bool(shape & {".annotations", ".categories"}))
        or has(shape, ".categories[].id", ".categories[].name")
        or _in_front(shape, text)
    )


def _in_front(shape: frozenset[str], text: str) -> bool:
    """Whether what COCO's files have before their lists is so long that no list is to be seen."""
    keys = {path for path in shape if path.rfind(".") == 0}
    return ".info" in keys and keys <= {".info", ".licenses"} and not text.rstrip().endswith("}")


def first_tag(text: str) -> str:
    """The name of an XML file's outermost element, '' for what is no XML."""
    tag = re.match(r"\s*(<\?.*?\?>\s*|<!--.*?-->\s*|<!DOCTYPE[^>]*>\s*)*<([\w.:-]+)", text, re.S)
    return tag[2] if tag else ""


def is_voc(text: str) -> bool:
    """Whether an XML file that begins so is VOC's."""
    polygons_only = "<polygon" in text and "<bndbox" not in text  # LabelMe's former XML
    return first_tag(text) == "annotation" and not polygons_only


def is_yolo(text: str) -> bool:
    """Whether a YAML file that begins so describes a YOLO data set."""
    # In flow style keys may stand anywhere; in block style only those without blanks in front.
    before = r"[{,]\s*" if text.lstrip().startswith("{") else "^"
    keys = set(re.findall(before + r"""["']?([\w-]+)["']?\s*:""", text, re.M))
    return bool(keys & {"names", "nc"}) and bool(keys & {"train", "val", "valid", "test"})


_SHARE = r"\s+-?(?:[01](?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
_YOLO_LINE = re.compile(rf"\d+({_SHARE}){{4}}({_SHARE}{_SHARE})*\s*")


def is_darknet(text: str) -> bool:
    """Whether a ``.data`` file that begins so describes a data set of Darknet's."""
    return {"names", "train"} <= set(re.findall(r"^\s*(\w+)\s*=", text, re.M))


def is_yolo_label(text: str) -> bool:
    """Whether a text file that begins so holds YOLO's lines: a number, and shares."""
    lines = text.split("\n")
    lines = [line for line in (lines[:-1] if len(lines) > 1 else lines)[:20] if line.strip()]
    return bool(lines) and all(_YOLO_LINE.fullmatch(line) for line in lines)


def header(text: str) -> list[str]:
    """The fields of a csv file's first line."""
    line = next((line for line in text.split("\n") if not is_idle([line])), "")
    try:
        return fields(line)
    except csv.Error:  # it is no text
        return []


def is_csv(names: Sequence[str]) -> bool:
    """Whether the csv reader can tell the columns of a file with these."""
    if set(names) >= OPEN_IMAGES:
        return False
    if without_header(names):
        return True
    try:
        columns_of(names, {}, file="", log=IssueLog())
    except DataError:
        return False
    return True
