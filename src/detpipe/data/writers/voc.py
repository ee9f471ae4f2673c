"""Writer of Pascal VOC annotations: one XML file an image, and lists of the splits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pandas as pd

from detpipe.core.tables import BOX_COLUMNS
from detpipe.data.formats.base import Annotations
from detpipe.data.writers.base import (
    Pictures,
    extras,
    flat_names,
    folder_names,
    groups_of,
    new_folder,
    own_areas,
    place_pictures,
    require_printable,
    say_lost,
    where_they_are,
    without_ending,
    writable,
)
from detpipe.data.writers.federated import losses as losses_of_lvis

_OWN = frozenset(("name", "difficult", "bndbox"))
_TAG = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)


def write(found: Annotations, root: Path, folder: Path, *, pictures: Pictures = "copy") -> None:
    """Writes ``Annotations/*.xml``, ``JPEGImages`` and ``ImageSets/Main/<split>.txt``.

    Args:
        found: the tables.
        root: the folder that ``images.path`` is relative to.
        folder: where to write; empty, or not there yet.
        pictures: ``copy``, ``link``, or ``none``: then ``filename`` is relative to ``folder``.

    Coordinates are 0-based with x2, y2 exclusive, whole numbers without decimals, others with all
    of theirs. Pictures lie in one folder; where two would have the same name (without ending), it
    is preceded by their folders. Values of ``boxes.extra`` (pose, truncated, occluded, …) become
    elements of the object. VOC has no crowd regions: they are written as difficult objects, which
    do not count either. It has no list of classes and no list of images without a split.

    Raises:
        DataError: the folder is not empty or cannot be written; a class has control characters in
            its name; ``extra`` is no JSON object.
    """
    with new_folder(folder, root) as new:
        found = writable(found, root)
        images, boxes, classes, _ = found
        require_printable(classes, "VOC")
        paths = images["path"].tolist()
        names = flat_names(paths)
        files = names
        if pictures == "none":
            files = where_they_are(paths, root=root, folder=folder)
        for place in ("Annotations", "JPEGImages", "ImageSets/Main"):
            (new / place).mkdir(parents=True)
        stems = [without_ending(name)[0] for name in names]
        things, formless = _things(boxes)
        for stem, text in zip(stems, _documents(images, files, things), strict=True):
            (new / "Annotations" / f"{stem}.xml").write_text(text, "utf-8")
        splits = images["split"]
        for split, name in folder_names(sorted(splits[splits != ""].unique()), unnamed="").items():
            lines = [stem for stem, own in zip(stems, splits, strict=True) if own == split]
            (new / "ImageSets/Main" / f"{name}.txt").write_text(
                "".join(f"{line}\n" for line in lines), "utf-8"
            )
        targets = [f"JPEGImages/{name}" for name in names]
        place_pictures(paths, targets, root=root, new=new, pictures=pictures)
    lost = _losses(images, boxes, classes["class_name"].tolist(), formless)
    say_lost("VOC", lost | losses_of_lvis(images, classes))


def _losses(
    images: pd.DataFrame, boxes: pd.DataFrame, classes: Sequence[str], formless: int
) -> dict[str, int]:
    used = set(boxes["class_name"].unique())
    without = int((images["split"] == "").sum())
    return {
        "crowd region(s), written as difficult objects": int(boxes["iscrowd"].sum()),
        "area(s) other than width × height": own_areas(boxes),
        "value(s) of boxes.extra that XML has no form for (lists of lists, …)": formless,
        "image(s) with a group": groups_of(images),
        "image(s) of no split, in none of the lists": without if without < len(images) else 0,
        "class(es) without objects": len(set(classes) - used),
        "class(es) whose order is not the alphabet's": len(classes)
        if list(classes) != sorted(classes)
        else 0,
    }


def _documents(
    images: pd.DataFrame, files: Sequence[str], things: Mapping[str, list[str]]
) -> Iterator[str]:
    """The XML of every image."""
    columns = (images[column].tolist() for column in ("image_id", "width", "height"))
    for file, image_id, width, height in zip(files, *columns, strict=True):
        yield (
            f"<annotation>\n  <filename>{_text(file)}</filename>\n"
            f"  <size><width>{width}</width><height>{height}</height><depth>3</depth></size>\n"
            f"  <segmented>0</segmented>\n{''.join(things.get(image_id, []))}</annotation>\n"
        )


def _things(boxes: pd.DataFrame) -> tuple[dict[str, list[str]], int]:
    """Image id → the XML of its objects, and how many values it cannot hold."""
    names = {name: _text(name) for name in boxes["class_name"].unique()}
    things: dict[str, list[str]] = {}
    lost = 0
    for image_id, name, difficult, corners, more in zip(
        boxes["image_id"].tolist(),
        boxes["class_name"].tolist(),
        (boxes["difficult"] | boxes["iscrowd"]).tolist(),
        boxes[BOX_COLUMNS].to_numpy().tolist(),
        extras(boxes),
        strict=True,
    ):
        elements, formless = _elements(more)
        lost += formless
        x1, y1, x2, y2 = map(_number, corners)
        things.setdefault(image_id, []).append(
            f"  <object>\n    <name>{names[name]}</name>\n{elements}"
            f"    <difficult>{int(difficult)}</difficult>\n"
            f"    <bndbox><xmin>{x1}</xmin><ymin>{y1}</ymin><xmax>{x2}</xmax><ymax>{y2}</ymax>"
            f"</bndbox>\n  </object>\n"
        )
    return things, lost


def _elements(more: Mapping[str, Any]) -> tuple[str, int]:
    """Elements of an object for the values of ``extra``, and how many there cannot be."""
    elements = [_element(name, value) for name, value in more.items() if name not in _OWN]
    lines = [f"    {element}\n" for element in elements if element]
    return "".join(lines), sum(element is None for element in elements)


def _element(name: str, value: Any) -> str | None:
    """The element(s) of a plain value, of a mapping, or of a list of them; None: it has no form."""
    if not _TAG.fullmatch(name):
        return None
    if isinstance(value, list):
        plain = len(value) > 1 and not any(isinstance(member, list) for member in value)
        members = [_element(name, member) for member in value]
        return "".join(m or "" for m in members) if plain and None not in members else None
    if isinstance(value, dict):
        inside = [_element(key, below) for key, below in value.items()]
        if not inside or None in inside:
            return None
        return f"<{name}>{''.join(part or '' for part in inside)}</{name}>"
    if value is None:
        return ""
    text = str(int(value)) if isinstance(value, bool) else str(value)
    return f"<{name}>{_text(text)}</{name}>"


_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


def _text(text: str) -> str:
    return escape(_UNPRINTABLE.sub("", text), {"\r": "&#13;"})


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)
