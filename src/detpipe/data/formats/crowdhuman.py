"""Reader of CrowdHuman: one JSON object a line (odgt), three boxes a person."""

from __future__ import annotations

import codecs
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pandas as pd

from detpipe.core.errors import DataError, one_message
from detpipe.core.tables import BOX_COLUMNS
from detpipe.data.formats.base import (
    Annotations,
    IssueLog,
    existing_folder,
    known_sizes,
    make_tables,
    relative,
    sample,
    unique_ids,
)
from detpipe.data.formats.csv_files import split_of
from detpipe.data.formats.locate import ImageFinder, locate_images
from detpipe.data.formats.shares import YES
from detpipe.data.formats.walk import read_bytes, visible
from detpipe.data.remote import resolve

Kind = Literal["fbox", "vbox", "hbox"]


class _Box(msgspec.Struct):
    tag: str
    fbox: list[float] | None = None
    vbox: list[float] | None = None
    hbox: list[float] | None = None
    head_attr: dict[str, Any] = {}
    extra: dict[str, Any] = {}


class _Image(msgspec.Struct):
    ID: str
    gtboxes: list[_Box] = []
    width: float = 0
    height: float = 0


def read(
    root: Path,
    *,
    annotations: str | Sequence[str] | Mapping[str, str] | None = None,
    images: str | None = None,
    box: Kind = "fbox",
    extra: bool = False,
) -> Annotations:
    """Reads CrowdHuman, and other sets in its form.

    Args:
        root: the data set's folder; ``images.path`` is relative to it.
        annotations: the odgt file, several files, or split → file, relative to ``root``. Without
            it: every ``*.odgt`` in ``root`` or one level below. The split comes from its name.
        images: folder of the images ``<ID>.jpg``. Without it they are looked for in folders called
            ``Images`` or ``images`` in ``root`` and one level below, and in ``root``.
        box: which of the three boxes of a person is the object: ``fbox`` (the whole body, guessed
            where it is hidden), ``vbox`` (what is seen of it) or ``hbox`` (the head).
        extra: whether ``tag``, ``head_attr``, ``extra`` and the other two boxes are kept in
            ``boxes.extra``.

    The class is ``person``, with ``hbox`` it is ``head``; other tags are classes of their own.
    Boxes of the tag ``mask`` (groups, reflections, statues), those with ``extra.ignore`` and, of
    heads, ``head_attr.ignore`` become crowd regions, which the set's own evaluation leaves out in
    the same way. A whole body often reaches beyond its image: the check clips such boxes to it,
    as the set's own evaluation does.

    Raises:
        DataError: no annotation file, lines that are no such JSON, no image found.
    """
    if box not in ("fbox", "vbox", "hbox"):
        raise DataError(f"option 'box' must be fbox, vbox or hbox, not '{box}'")
    root = existing_folder(root)
    log = IssueLog()
    frames: list[pd.DataFrame] = []
    rows: list[pd.DataFrame] = []
    for split, path in _find_files(root, annotations):
        records = _records(path)
        source = relative(path, root)
        finder = ImageFinder(_folders(root, path, split, images))
        names = [record.ID if "." in record.ID[-5:] else f"{record.ID}.jpg" for record in records]
        paths = locate_images(names, finder, source=source, root=root, log=log)
        start = sum(len(frame) for frame in frames)
        frame = pd.DataFrame(
            {
                "key": [record.ID for record in records], "path": paths, "split": split,
                "width": np.array([record.width for record in records], np.float64),
                "height": np.array([record.height for record in records], np.float64),
            }
        )  # fmt: skip
        frames.append(known_sizes(frame, file=source, log=log))
        rows.append(_boxes(records, box, source, log, start=start, extra=extra))
    table = pd.concat(frames, ignore_index=True)
    keys, splits = table["key"], table["split"]
    numbered = keys + "-" + table.groupby(["split", "key"]).cumcount().astype("str")
    table["image_id"] = unique_ids(
        [keys.tolist(), (splits + "-" + keys).tolist(), (splits + "-" + numbered).tolist()]
    )
    boxes = pd.concat(rows, ignore_index=True)
    boxes["image_id"] = table["image_id"].to_numpy()[boxes["image"].to_numpy()]
    boxes["annotation_id"] = [str(number) for number in range(1, len(boxes) + 1)]
    there = table["path"].notna()
    boxes = boxes[boxes["image_id"].isin(table.loc[there, "image_id"])]
    return make_tables(table[there], boxes, None, log)


def _find_files(
    root: Path, given: str | Sequence[str] | Mapping[str, str] | None
) -> list[tuple[str, Path]]:
    if isinstance(given, Mapping):
        files = [(split, resolve(root, name)) for split, name in given.items()]
    else:
        names = [given] if isinstance(given, str) else given
        found = sorted(visible(root, "*.odgt", "*/*.odgt"))
        paths = found if names is None else [resolve(root, name) for name in names]
        files = [(split_of(path, root), path) for path in paths]
    absent = [str(path) for _, path in files if not os.path.lexists(path)]
    if absent:
        raise DataError(f"no such annotation file: {', '.join(absent)}")
    if not files:
        raise DataError(
            f"no odgt file in {root} or one level below; name it with the reader's option "
            f"'annotations'"
        )
    return files


def _folders(root: Path, path: Path, split: str, given: str | None) -> list[Path]:
    if given is not None:
        return [resolve(root, given) / split, resolve(root, given)]
    inside = [p for p in visible(root, "*") if p.is_dir()]
    bases = [root, path.parent, *inside]
    named = [base / name for base in bases for name in ("Images", "images")]
    return [*(place / split for place in named if split), *named, *bases]


def _records(path: Path) -> list[_Image]:
    """One record a line.

    Raises:
        DataError: there is none, or there are lines that are no such record; all are named.
    """
    decoder = msgspec.json.Decoder(_Image)
    records, mistakes = [], []
    lines = read_bytes(path).removeprefix(codecs.BOM_UTF8).split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            records.append(decoder.decode(line))
        except RecursionError:
            mistakes.append(f"line {number}: nested too deeply")
        except (msgspec.MsgspecError, UnicodeError) as error:
            mistakes.append(f"line {number}: {error}")
    if mistakes:
        shown = mistakes[:20] + ([f"and {len(mistakes) - 20} more"] if len(mistakes) > 20 else [])
        raise DataError(one_message(f"{path} has lines that are no odgt records:", shown))
    if not records:
        raise DataError(f"{path} has no odgt record: it is empty")
    return records


def _boxes(
    records: Sequence[_Image], kind: Kind, source: str, log: IssueLog, *, start: int, extra: bool
) -> pd.DataFrame:
    """The ``boxes`` table; ``image`` is the row of the image, counted from ``start``."""
    pairs = [(at, thing) for at, record in enumerate(records, start) for thing in record.gtboxes]
    drawn = [(at, thing, getattr(thing, kind)) for at, thing in pairs]
    without = [records[at - start].ID for at, _, box in drawn if not box or len(box) != 4]
    if without:
        log.add(
            "warning", "object_without_box", file=source,
            value=f"{len(without)} of {len(pairs)}, in {sample(dict.fromkeys(without))}",
            action=f"they have no {kind} of four numbers: left out",
        )  # fmt: skip
    drawn = [(at, thing, box) for at, thing, box in drawn if box and len(box) == 4]
    corners = np.array([box for _, _, box in drawn], np.float64).reshape(-1, 4)
    corners[:, 2:] += corners[:, :2]
    ignored = [_ignored(thing, kind) for _, thing, _ in drawn]
    frame = pd.DataFrame(corners, columns=BOX_COLUMNS)
    frame["image"] = np.array([at for at, _, _ in drawn], np.int64)
    frame["class_name"] = pd.Series([_class(thing, kind) for _, thing, _ in drawn], dtype="str")
    frame["area"] = (frame["x2"] - frame["x1"]) * (frame["y2"] - frame["y1"])
    frame["iscrowd"] = np.array(ignored, bool)
    frame["difficult"] = False
    if extra:
        frame["extra"] = pd.Series([_more(thing, kind) for _, thing, _ in drawn], dtype="str")
    if any(ignored):
        log.add(
            "info", "ignore_regions", file=source, value=f"{sum(ignored)} of {len(drawn)} boxes",
            action="tag mask or ignore=1: taken as crowd regions (iscrowd)",
        )  # fmt: skip
    return frame


def _ignored(thing: _Box, kind: Kind) -> bool:
    flags = [thing.extra, thing.head_attr] if kind == "hbox" else [thing.extra]
    return thing.tag == "mask" or any(_is_set(flag.get("ignore")) for flag in flags)


def _is_set(flag: object) -> bool:
    return flag.strip().lower() in YES if isinstance(flag, str) else bool(flag)


def _class(thing: _Box, kind: Kind) -> str:
    if kind == "hbox":
        return "head"
    return "person" if thing.tag == "mask" else thing.tag


def _more(thing: _Box, kind: Kind) -> str:
    fields = {name: getattr(thing, name) for name in thing.__struct_fields__ if name != kind}
    return msgspec.json.encode({k: v for k, v in fields.items() if v}).decode()
