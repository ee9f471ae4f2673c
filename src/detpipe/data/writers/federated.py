"""LVIS's lists of classes by image and its frequencies of classes, on their way into files."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pandas as pd

from detpipe.core.errors import DataError
from detpipe.data.formats.federated import LISTS

FIELDS = dict(zip(LISTS, ("neg_category_ids", "not_exhaustive_category_ids"), strict=True))
"""Column of ``images`` → LVIS's field of an image record."""


def with_category_ids(
    images: pd.DataFrame, category: Mapping[str, int]
) -> tuple[pd.DataFrame, int]:
    """The images with lists of category ids instead of texts, and how many names have no id.

    Args:
        images: the images table, with the columns or without.
        category: class name → id; other names are left out.

    Returns:
        The table, None where an image has no list; and the count of what was left out.

    Raises:
        DataError: a text is no JSON list of names.
    """
    decoder = msgspec.json.Decoder(list[str])
    columns, strangers = {}, 0
    for column in [c for c in FIELDS if c in images]:
        lists: list[list[int] | None] = []
        for image_id, text in zip(
            images["image_id"].tolist(), images[column].tolist(), strict=True
        ):
            try:
                names = decoder.decode(text) if text else None
            except msgspec.MsgspecError as error:
                raise DataError(
                    f"images.{column} of image '{image_id}' is no JSON list of class names "
                    f"({error}): {text:.80}"
                ) from error
            known = None if names is None else [category[n] for n in names if n in category]
            lists.append(known)
            strangers += len(names or ()) - len(known or ())
        columns[column] = pd.Series(lists, dtype="object", index=images.index)
    return images.assign(**columns), strangers


def losses(images: pd.DataFrame, classes: pd.DataFrame) -> dict[str, int]:
    """What a format without LVIS's fields cannot hold, as ``say_lost`` takes it."""
    listed = pd.Series(False, index=images.index)
    for column in [c for c in FIELDS if c in images]:
        listed |= images[column] != ""
    rated = classes["frequency"] != "" if "frequency" in classes else pd.Series(dtype=bool)
    return {
        "image(s) with LVIS's lists of classes (negative, not_exhaustive)": int(listed.sum()),
        "class(es) with LVIS's frequency": int(rated.sum()),
    }
