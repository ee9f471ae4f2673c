"""The lists of a COCO file as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pandas as pd

from detpipe.data.formats.coco_ids import Id, Keys, column_of, key_of, keys_of
from detpipe.data.formats.coco_pieces import pieces
from detpipe.data.formats.coco_segments import box_of

Floats = npt.NDArray[np.float64]
_Whole = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Bools = npt.NDArray[np.bool_]
_Records = list[dict[str, msgspec.Raw]]
Lists = list[list[Id] | None]


class _Image(msgspec.Struct, gc=False):
    """A record of ``images``; what it lacks is None."""

    file_name: str | None = None
    coco_url: str | None = None
    height: float | None = None
    width: float | None = None
    id: Id = None
    neg_category_ids: list[Id] | None = None
    not_exhaustive_category_ids: list[Id] | None = None


class _Usual(msgspec.Struct, gc=False):
    """A record of ``annotations`` as most are, fields in the order of COCO's own files."""

    image_id: _Whole
    bbox: tuple[float, float, float, float]
    category_id: _Whole
    id: _Whole
    area: float = np.nan
    iscrowd: int = 0
    ignore: int = 0


class _Annotation(msgspec.Struct, gc=False):
    """A record of ``annotations``; what it lacks is None."""

    area: float | None = None
    iscrowd: float | bool | None = None
    image_id: Id = None
    bbox: list[Any] | None = None
    category_id: Id = None
    id: Id = None
    ignore: float | bool | None = None


class _Outline(msgspec.Struct):
    """An annotation's shape, of any form."""

    bbox: Any = msgspec.UNSET
    segmentation: Any = msgspec.UNSET


@dataclass(frozen=True)
class ImageColumns:
    """``images``, N records.

    Attributes:
        keys: N ids.
        names: N file names as written, '' for none; of LVIS's records the end of ``coco_url``.
        width: ``float64 [N]``, pixels as they are listed, 0 for none.
        height: ``float64 [N]``.
        groups: N names of groups, '' for none; None where no group is asked for, or none is there.
        negative: N of LVIS's lists of categories that are not in the image, None for none; None
            where no record has one.
        not_exhaustive: likewise, those of which not every object has a box.
    """

    keys: pd.Series
    names: list[str]
    width: Floats
    height: Floats
    groups: list[str] | None
    negative: Lists | None
    not_exhaustive: Lists | None


@dataclass(frozen=True)
class BoxColumns:
    """``annotations``, M records.

    Attributes:
        keys: M ids.
        image_keys: M ids of their images.
        category_keys: M ids of their categories.
        corners: ``float64 [4, M]`` x1 y1 x2 y2, pixels; NaN where there is no box of four numbers.
        area: ``float64 [M]``, pixels²; the box's where none is given.
        iscrowd: ``bool [M]``.
        traced: ``bool [M]``, the box is that of the segmentation.
        odd: id and ``bbox`` of the records whose ``bbox`` is not four numbers, as it is written.
        ignored: how many have the field ``ignore`` set.
        extra: M JSON objects of the other fields, '' for nothing; None where they are not asked
            for.
        without_shape: there are records, and not one with the field ``bbox`` or ``segmentation``.
    """

    keys: pd.Series
    image_keys: pd.Series
    category_keys: pd.Series
    corners: Floats
    area: Floats
    iscrowd: Bools
    traced: Bools
    odd: list[tuple[str, str]]
    ignored: int
    extra: pd.Series | None
    without_shape: bool


def image_columns(listed: memoryview, *, group: str | None, strict: bool) -> ImageColumns:
    """The columns of a JSON list of image records.

    Args:
        listed: the list's bytes.
        group: the field that names an image's group, nested by dots.
        strict: False takes numbers that are written as text.

    Raises:
        msgspec.MsgspecError: a record is not as it must be.
    """
    keys, names = [], []
    widths, heights = [np.zeros(0)], [np.zeros(0)]
    groups: list[str] = []
    negative: Lists = []
    partly: Lists = []
    for piece, records in pieces(listed, _Image, name="images", strict=strict):
        keys.append(keys_of([r.id for r in records]))
        widths.append(np.array([r.width or 0 for r in records], np.float64))
        heights.append(np.array([r.height or 0 for r in records], np.float64))
        names += [r.file_name or _end_of(r.coco_url) for r in records]
        negative += [r.neg_category_ids for r in records]
        partly += [r.not_exhaustive_category_ids for r in records]
        if group is not None:
            groups += _groups(piece, group)
    return ImageColumns(
        keys=column_of(keys), names=names,
        width=np.concatenate(widths), height=np.concatenate(heights),
        groups=groups if any(groups) else None,
        negative=None if negative.count(None) == len(negative) else negative,
        not_exhaustive=None if partly.count(None) == len(partly) else partly,
    )  # fmt: skip


def _end_of(url: str | None) -> str:
    """``train2017/1.jpg`` of LVIS's ``http://…/train2017/1.jpg``."""
    return "/".join(url.rsplit("/", 2)[-2:]) if url else ""


def _groups(piece: bytes, field: str) -> list[str]:
    first, *nested = field.split(".")
    only = msgspec.defstruct("Only", [("value", Any, None)], rename={"value": first})
    found = []
    for record in msgspec.json.decode(piece, type=list[only]):  # type: ignore[valid-type]
        value = record.value  # type: ignore[attr-defined]
        for name in nested:
            value = value.get(name) if isinstance(value, dict) else None
        if isinstance(value, dict | list):
            value = msgspec.json.encode(value, order="sorted").decode()
        found.append(key_of(value))
    return found


def box_columns(listed: memoryview, *, extra: bool, strict: bool) -> BoxColumns:
    """The columns of a JSON list of annotation records.

    Args:
        listed: the list's bytes.
        extra: take the fields that are no column, as text.
        strict: False takes numbers that are written as text.

    Raises:
        msgspec.MsgspecError: a record is not as it must be.
    """
    parts = []
    texts = [pd.Series([], dtype="str")]
    for piece, records in pieces(listed, _Usual, _Annotation, name="annotations", strict=strict):
        parts.append(_usual(records) if isinstance(records[0], _Usual) else _any(records, piece))
        if extra:
            texts.append(pd.Series(_extra(piece), dtype="str"))
    keys, image_keys, category_keys, sides, area, iscrowd, traced, odd, ignored, shaped = (
        zip(*parts, strict=True) if parts else [()] * len(_Part._fields)
    )
    corners = np.concatenate([np.zeros((0, 4)), *sides]).T.copy()
    width, height = corners[2:].copy()
    corners[2:] += corners[:2]
    areas = np.concatenate([np.zeros(0), *area])
    return BoxColumns(
        keys=column_of(keys), image_keys=column_of(image_keys),
        category_keys=column_of(category_keys),
        corners=corners,
        area=np.where(np.isnan(areas), width * height, areas),
        iscrowd=np.concatenate([np.zeros(0, bool), *iscrowd]),
        traced=np.concatenate([np.zeros(0, bool), *traced]),
        odd=[*chain.from_iterable(odd)],
        ignored=sum(ignored),
        extra=pd.concat(texts, ignore_index=True) if extra else None,
        without_shape=bool(parts) and not any(shaped),
    )  # fmt: skip


class _Part(NamedTuple):
    """The columns of a piece, see :class:`BoxColumns`.

    ``sides`` are x y width height; ``shaped`` says that a record has a box or a segmentation.
    """

    keys: Keys
    image_keys: Keys
    category_keys: Keys
    sides: Floats
    area: Floats
    iscrowd: Bools
    traced: Bools
    odd: Sequence[tuple[str, str]]
    ignored: int
    shaped: bool


def _usual(records: Sequence[_Usual]) -> _Part:
    count = len(records)
    numbers = chain.from_iterable([r.bbox for r in records])
    sides = np.fromiter(numbers, np.float64, 4 * count).reshape(-1, 4)
    return _Part(
        keys=np.fromiter([r.id for r in records], np.int64, count),
        image_keys=np.fromiter([r.image_id for r in records], np.int64, count),
        category_keys=np.fromiter([r.category_id for r in records], np.int64, count),
        sides=sides,
        area=np.fromiter([r.area for r in records], np.float64, count),
        iscrowd=np.fromiter([r.iscrowd for r in records], bool, count),
        traced=np.zeros(count, bool),
        odd=(),
        ignored=count - [r.ignore for r in records].count(0),
        shaped=True,
    )


def _any(records: Sequence[_Annotation], piece: bytes) -> _Part:
    boxes = [r.bbox if r.bbox and len(r.bbox) == 4 else [None] * 4 for r in records]
    try:
        sides = np.array(boxes, np.float64)  # NaN from None
    except (TypeError, ValueError, OverflowError):
        sides = np.array([[number(value) for value in box] for box in boxes], np.float64)
    traced = np.zeros(len(records), bool)
    shaped = any(r.bbox is not None for r in records)
    if not all(r.bbox for r in records):
        for row, outline in enumerate(msgspec.json.decode(piece, type=list[_Outline])):
            shaped |= outline.bbox is not msgspec.UNSET
            shaped |= outline.segmentation is not msgspec.UNSET
            if not records[row].bbox and (box := box_of(outline.segmentation)) is not None:
                sides[row], traced[row] = box, True
    odd = [
        (key_of(records[row].id), msgspec.json.encode(records[row].bbox).decode())
        for row in np.flatnonzero(~np.isfinite(sides).all(axis=1)).tolist()
        if records[row].bbox is not None
    ]
    return _Part(
        keys=keys_of([r.id for r in records]),
        image_keys=keys_of([r.image_id for r in records]),
        category_keys=keys_of([r.category_id for r in records]),
        sides=sides,
        area=np.array([r.area for r in records], np.float64),
        iscrowd=np.array([bool(r.iscrowd) for r in records]),
        traced=traced,
        odd=odd,
        ignored=sum(bool(r.ignore) for r in records),
        shaped=shaped,
    )


def number(value: Any) -> float | None:
    """A value as a finite number, None for what is none."""
    try:
        result = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return result if np.isfinite(result) else None


_COLUMNS = frozenset(_Annotation.__struct_fields__) - {"ignore"}


def _extra(piece: bytes) -> list[str]:
    """The other fields of each record as JSON, every value byte for byte as it is written."""
    found = []
    for record in msgspec.json.decode(piece, type=_Records):
        rest = {name: value for name, value in record.items() if name not in _COLUMNS}
        found.append(msgspec.json.encode(rest).decode() if rest else "")
    return found
