"""One Pascal VOC file: XML to plain values."""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

Corners = tuple[float, float, float, float]
_KNOWN = frozenset(("name", "bndbox", "robndbox", "difficult"))
_YES = ("1", "true", "yes")
_ENTITY = tuple("<!ENTITY".encode(name) for name in ("utf-8", "utf-16-le", "utf-16-be"))


@dataclass(slots=True)
class Thing:
    """One ``<object>``.

    Attributes:
        name: its class.
        box: xmin ymin xmax ymax as written, NaN where there is no number.
        difficult: as written; False for anything but a clear yes.
        truncated: likewise.
        shape: what the box was taken from: ``bndbox``, ``robndbox`` or ``polygon``.
        rotated: whether the object is turned, so that the box may not enclose it.
        polygon: whether it has an outline.
        extra: the other things that the XML says of it.
        odd: what is written for the box if that is not four numbers, else ''.
    """

    name: str
    box: Corners
    difficult: bool
    truncated: bool
    shape: str
    rotated: bool
    polygon: bool
    extra: dict[str, Any]
    odd: str = ""


@dataclass(slots=True)
class Record:
    """One XML file; ``width`` and ``height`` are 0 where it has none."""

    filename: str
    width: int
    height: int
    things: list[Thing]


def parse(path: Path, encoding: str | None = None, *, extra: bool = False) -> Record:
    """Reads one file; external entities are never loaded.

    Args:
        path: the file.
        encoding: of files that declare none or a wrong one.
        extra: whether ``Thing.extra`` is filled.

    Raises:
        ValueError: no XML, another root than ``<annotation>``, declared entities, an unknown
            encoding.
    """
    data = path.read_bytes()
    if any(mark in data for mark in _ENTITY):
        raise ValueError("it declares XML entities, which are not read: write their text instead")
    tree = _tree(data, encoding)
    if tree.tag != "annotation":
        raise ValueError(f"its root is <{tree.tag}>, not <annotation>")
    size = tree.find("size")
    return Record(
        filename=_text(tree, "filename"),
        width=_whole(size, "width"),
        height=_whole(size, "height"),
        things=_things(tree, extra=extra),
    )


def _things(tree: ElementTree.Element, *, extra: bool) -> list[Thing]:
    try:
        return [_thing(element, extra=extra) for element in tree.iterfind("object")]
    except RecursionError as error:
        raise ValueError("an <object> is nested too deeply") from error


def _tree(data: bytes, encoding: str | None) -> ElementTree.Element:
    try:
        if encoding is not None:
            return ElementTree.fromstring(_undeclared(data.decode(encoding)))  # noqa: S314
        return ElementTree.fromstring(data)  # noqa: S314 - no entities, no external files
    except ElementTree.ParseError as error:
        try:
            data.decode("utf-8")
        except UnicodeDecodeError:
            declared = _declared(data)
            if encoding is None and declared.lower() in ("", "utf-8", "utf8"):
                raise ValueError(
                    f"it is not UTF-8 {'as' if declared else 'and'} it declares"
                    f"{'' if declared else ' no encoding'}: name its encoding with the reader's "
                    f"option 'encoding', such as cp1252 or gb18030"
                ) from error
        raise ValueError(str(error)) from error
    except (ValueError, LookupError) as error:
        # Expat knows no encodings of several bytes a letter; Python does.
        declared = _declared(data)
        if encoding is None and declared and _known(declared):
            return _tree(data, declared)
        raise ValueError(str(error)) from error


def _declared(data: bytes) -> str:
    """The encoding that the XML says it has, or ''."""
    found = re.match(rb"""\s*<\?xml[^>]*encoding=["']([\w.-]+)["']""", data)
    return found[1].decode() if found else ""


def _undeclared(text: str) -> str:
    """Without the declaration, which would contradict text that is decoded already."""
    return re.sub(r"^\ufeff?\s*<\?xml[^>]*\?>", "", text)


def _known(encoding: str) -> bool:
    try:
        codecs.lookup(encoding)
    except LookupError:
        return False
    return True


def _thing(element: ElementTree.Element, *, extra: bool) -> Thing:
    box, rotated_box = element.find("bndbox"), element.find("robndbox")
    polygon = element.find("polygon")
    if box is not None:
        shape, corners = "bndbox", _numbers(box, ("xmin", "ymin", "xmax", "ymax"))
    elif rotated_box is not None:
        shape, corners = "robndbox", _enclosing(rotated_box)
    else:
        shape, corners = "polygon", _outline(polygon)
    return Thing(
        name=element.findtext("name") or "",
        box=corners,
        difficult=_text(element, "difficult").lower() in _YES,
        truncated=_text(element, "truncated").lower() in _YES,
        shape=shape,
        rotated=shape == "robndbox" or _is_turned(element),
        polygon=polygon is not None,
        extra={k: v for k, v in _content(element).items() if k not in _KNOWN} if extra else {},
        odd="" if all(map(math.isfinite, corners)) else _written(element, shape),
    )


def _written(element: ElementTree.Element, shape: str) -> str:
    box = element.find(shape)
    leaves = [] if box is None else [leaf for leaf in box.iter() if leaf is not box]
    texts = [f"{leaf.tag}={(leaf.text or '').strip()}" for leaf in leaves if not len(leaf)]
    return " ".join([element.findtext("name") or "", *(texts or ["without a box"])]).strip()[:200]


def _enclosing(box: ElementTree.Element) -> Corners:
    """The upright box around roLabelImg's: centre, size, and angle in radians."""
    x, y, width, height, angle = _numbers(box, ("cx", "cy", "w", "h", "angle"))
    cosine, sine = abs(math.cos(angle)), abs(math.sin(angle))
    half_x = (width * cosine + height * sine) / 2
    half_y = (width * sine + height * cosine) / 2
    return x - half_x, y - half_y, x + half_x, y + half_y


def _outline(polygon: ElementTree.Element | None) -> Corners:
    """The box around ``<x1> <y1> …`` or LabelMe's ``<pt><x> <y>``; NaN where there is neither."""
    leaves = [] if polygon is None else list(polygon.iter())
    xs = [_number(leaf.text) for leaf in leaves if re.fullmatch(r"x\d*", leaf.tag)]
    ys = [_number(leaf.text) for leaf in leaves if re.fullmatch(r"y\d*", leaf.tag)]
    if not xs or not ys:
        return math.nan, math.nan, math.nan, math.nan
    return min(xs), min(ys), max(xs), max(ys)


def _is_turned(element: ElementTree.Element) -> bool:
    """CVAT: the box as it was before it was turned, and an attribute ``rotation`` in degrees."""
    for attribute in element.iterfind("attributes/attribute"):
        if _text(attribute, "name") == "rotation":
            return _number(attribute.findtext("value")) not in (0.0, 360.0)
    return False


def _content(element: ElementTree.Element) -> dict[str, Any]:
    """Tag → text, or the same of what is below; a list where a tag repeats."""
    found: dict[str, Any] = {}
    for tag, value in _children(element):
        if tag not in found:
            found[tag] = value
        elif isinstance(found[tag], list):
            found[tag].append(value)
        else:
            found[tag] = [found[tag], value]
    return found


def _children(element: ElementTree.Element) -> Iterator[tuple[str, Any]]:
    for child in element:
        yield child.tag, _content(child) if len(child) else (child.text or "").strip()


def _text(element: ElementTree.Element, tag: str) -> str:
    return (element.findtext(tag) or "").strip()


def _whole(size: ElementTree.Element | None, tag: str) -> int:
    value = math.nan if size is None else _number(size.findtext(tag))
    return int(value) if 0 < value < 2**31 else 0


def _numbers(element: ElementTree.Element, tags: tuple[str, ...]) -> Any:
    return tuple(_number(element.findtext(tag)) for tag in tags)


def _number(text: str | None) -> float:
    """NaN for what is no number: the check reports it."""
    try:
        return float(text or "")
    except ValueError:
        return math.nan
