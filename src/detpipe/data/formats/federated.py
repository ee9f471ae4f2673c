"""What LVIS says beside boxes: which classes were looked for in which image, how rare each is.

In ``images`` these are the columns ``negative`` and ``not_exhaustive``, in ``classes`` it is
``frequency``; see :mod:`detpipe.core.tables`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import chain

import msgspec
import pandas as pd

from detpipe.data.formats.base import clean_name
from detpipe.data.formats.coco_ids import Id, key_of, matching

LISTS = ("negative", "not_exhaustive")
"""The columns of ``images``."""


def list_columns(
    negative: Sequence[Sequence[Id] | None] | None,
    not_exhaustive: Sequence[Sequence[Id] | None] | None,
    names: Mapping[str, str],
) -> dict[str, list[str]]:
    """The columns' texts from lists of category ids.

    Args:
        negative: a list an image, None where it has none; None where no image has one.
        not_exhaustive: likewise.
        names: category id → class name; an id that is not there is left out.

    Returns:
        Column → a JSON list of class names an image, '' for None. Empty where both are None.
    """
    given = negative or not_exhaustive or []
    nothing = [None] * len(given)
    both = (negative or nothing, not_exhaustive or nothing)
    return {c: _texts(of, names) for c, of in zip(LISTS, both, strict=True)} if given else {}


def _texts(lists: Sequence[Sequence[Id] | None], names: Mapping[str, str]) -> list[str]:
    keys = {value: key_of(value) for value in set(chain.from_iterable(filter(None, lists)))}
    means = matching(list(names), keys.values())
    name_of = {
        value: clean_name(names[means[key]]) for value, key in keys.items() if key in means
    }  # fmt: skip
    return [
        "" if ids is None else _text(name_of[value] for value in ids if value in name_of)
        for ids in lists
    ]


def frequency_of(classes: Iterable[tuple[str, object]]) -> dict[str, str]:
    """Class → ``r``, ``c`` or ``f``, of (class, frequency) pairs.

    A class of several frequencies has none, nor has one that says something else.
    """
    found: dict[str, set[str]] = {}
    for name, frequency in classes:
        if isinstance(frequency, str) and frequency in ("r", "c", "f"):
            found.setdefault(clean_name(name), set()).add(frequency)
    return {name: next(iter(of)) for name, of in found.items() if len(of) == 1}


def frequencies_in(classes: pd.DataFrame) -> Iterable[tuple[str, str]]:
    """(class, frequency) of the rows of a classes table; nothing where it has no such column."""
    if "frequency" not in classes:
        return ()
    return zip(classes["class_name"].tolist(), classes["frequency"].tolist(), strict=True)


def with_new_names(
    images: pd.DataFrame, boxes: pd.DataFrame, new: Mapping[str, str], kept: Set[str]
) -> pd.DataFrame:
    """The images with their lists in the new names of classes.

    Of classes that become one, all must have been looked for: it is not in the image where none
    of them is, and not every object of it has its box where one of them was not looked for.

    Args:
        images: the images table.
        boxes: the boxes, by their old names.
        new: every old name → the new one.
        kept: the new names of the classes that stay.
    """
    if not any(column in images for column in LISTS):
        return images
    parts: dict[str, set[str]] = {}
    for old, name in new.items():
        parts.setdefault(name, set()).add(old)
    pairs = boxes[["image_id", "class_name"]].drop_duplicates()
    present = pairs.groupby("image_id")["class_name"].agg(set).to_dict()
    texts: dict[str, list[str]] = {column: [] for column in LISTS}
    columns = [images[c].tolist() if c in images else [""] * len(images) for c in LISTS]
    for image, *written in zip(images["image_id"].tolist(), *columns, strict=True):
        negative, partly = ([] if not t else msgspec.json.decode(t) for t in written)
        seen = present.get(image, set())
        looked = seen.union(negative) if written[0] else new.keys()
        absent = [new[o] for o in negative if parts[new[o]] <= set(negative)]
        torn = [new[o] for o in sorted(seen) if not parts[new[o]] <= looked]
        partial = chain((new[o] for o in partly), torn)
        texts["negative"].append(_text(n for n in absent if n in kept) if written[0] else "")
        texts["not_exhaustive"].append(
            _text(n for n in partial if n in kept) if written[1] or torn else ""
        )
    return images.assign(
        **{c: pd.Series(of, dtype="str", index=images.index) for c, of in texts.items()}
    )


def _text(names: Iterable[str]) -> str:
    return msgspec.json.encode(list(dict.fromkeys(names))).decode()
