"""Ids of COCO records: as whole numbers where all of them are, as text where one is not.

A column of ids is a ``pandas.Series`` of dtype int64 or str: a number costs a tenth of a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

Id = str | int | float | None


def key_of(value: Id) -> str:
    """An id as text: 1, 1.0 and "1" are the same, "0001" is another; None is ''."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "" if value is None else str(value).strip()


Keys = npt.NDArray[np.int64] | list[str]
"""A piece of a column of ids."""


def keys_of(values: Sequence[Id]) -> Keys:
    """Ids as numbers if all of them are whole ones, else as text."""
    if set(map(type, values)) <= {int}:
        try:
            return np.array(values, np.int64)
        except OverflowError:
            pass
    return [key_of(value) for value in values]


def texts(keys: pd.Series) -> pd.Series:
    """A column of ids as text."""
    if keys.dtype != np.int64:
        return keys
    return text_column(pa.array(keys.to_numpy()).cast(pa.large_string()))


def text_column(array: pa.Array) -> pd.Series:
    """A column of dtype str."""
    return pd.Series(pd.array(array, dtype="str"))


def all_different(keys: pd.Series) -> bool:
    """Whether each of a column of ids is there, and differs from all others."""
    if keys.dtype != np.int64:
        return keys.is_unique and not bool((keys == "").any())
    ascending = bool((np.diff(keys.to_numpy()) > 0).all())
    return ascending or keys.is_unique


def column_of(pieces: Sequence[Keys]) -> pd.Series:
    """A column of ids from its pieces."""
    numbers = [piece for piece in pieces if not isinstance(piece, list)]
    if len(numbers) == len(pieces):
        return pd.Series(np.concatenate([np.zeros(0, np.int64), *numbers]))
    parts = [p if isinstance(p, list) else texts(pd.Series(p)).tolist() for p in pieces]
    return pd.Series(list(chain.from_iterable(parts)), dtype="str")


def joined(columns: Sequence[pd.Series]) -> pd.Series:
    """Columns of ids as one."""
    if len({column.dtype for column in columns}) > 1:
        columns = [texts(column) for column in columns]
    return pd.concat(columns, ignore_index=True) if columns else column_of([])


def rows_of(keys: pd.Series, wanted: pd.Series) -> tuple[npt.NDArray[np.intp], list[str]]:
    """Where each wanted id is.

    Args:
        keys: ``[N]`` ids, all different.
        wanted: ``[M]`` ids.

    Returns:
        ``intp [M]``: row of ``keys``, -1 where there is none; and the pairs ``'01' = '1'`` that
        are equal as numbers only.
    """
    if keys.dtype == wanted.dtype == np.int64:
        return pd.Index(keys).get_indexer(wanted), []
    known = texts(keys).tolist()
    codes, different = pd.factorize(texts(wanted))
    means = matching(known, different)
    row = {key: number for number, key in enumerate(known)}
    rows = np.array([row[means[text]] if text in means else -1 for text in different], np.intp)
    loose = [f"'{text}' = '{key}'" for text, key in means.items() if text != key]
    return (rows[codes] if len(codes) else rows), sorted(loose)


def matching(keys: Sequence[str], wanted: Iterable[str]) -> dict[str, str]:
    """wanted → the key it means; equal text first, then equal number if only one key has it."""
    known = set(keys)
    found = {reference: reference for reference in wanted if reference in known}
    by_number: dict[str, list[str]] = {}
    unknown = [reference for reference in dict.fromkeys(wanted) if reference not in known]
    for key in dict.fromkeys(keys) if unknown else ():
        by_number.setdefault(_canonical(key), []).append(key)
    for reference in unknown:
        if len(near := by_number.get(_canonical(reference), [])) == 1:
            found[reference] = near[0]
    return found


def _canonical(key: str) -> str:
    """``0001`` and ``1.0`` as ``1``; digit by digit, since a float has only 15."""
    whole = re.fullmatch(r"([+-]?)0*(\d+)(\.0*)?", key, re.ASCII)
    return f"{whole[1].strip('+')}{whole[2]}" if whole else key
