"""Which image and which class of the data set a row of somebody's detections means."""

from __future__ import annotations

import json
import logging
import re
import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import pandas as pd

from detpipe.core.errors import DataError
from detpipe.evaluate.common import did_you_mean, listed

logger = logging.getLogger(__name__)

_Key = Callable[[str], str | None]


def as_text(values: pd.Series) -> pd.Series:
    """Ids as text; 7.0, as a column with gaps would hold it, is 7."""

    def one(value: Any) -> str:
        return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)

    return values.map(one).str.strip()


# --- images ------------------------------------------------------------------------------------


def match_images(
    values: pd.Series, images: pd.DataFrame, path: Path
) -> tuple[pd.Series, list[str]]:
    """The table's image ids, by the first way that finds all; and what is unknown.

    The ways: the id; the id without the split that a reader has put in front (``test-17`` is 17);
    the id as a number (``000343`` is 343); path, file name, file name without ending. Whole numbers
    are never taken for file names: numbers of another list would hit other pictures.
    """
    texts, ids = as_text(values), images["image_id"]
    least: list[str] | None = None
    for way, known, key in _ways(images):
        keys = known.map(key)
        keys = keys[keys.notna() & ~keys.duplicated(keep=False)]
        to_id = dict(zip(keys, ids.loc[keys.index], strict=True))
        found = texts.map(lambda v, key=key, to_id=to_id: to_id.get(key(v)))
        unknown = texts[found.isna()].unique().tolist()
        if not unknown:
            if way != "id":
                logger.info("%s: images were found by their %s", path.name, way)
            return found.astype("str"), []
        if least is None or len(unknown) < len(least):
            least = unknown
    if least is None:
        raise DataError(f"{path}: the data set has no images")
    hint = ""
    if any(_number(value) is not None for value in least):
        hint = "; whole numbers are ids, never file names: write those with their ending"
    return texts, [
        f"{len(least)} image(s) are not in the data set: {listed(least)}; its ids look like "
        f"{listed(ids.head(3).tolist())}{hint}"
    ]


def match_own_images(
    values: pd.Series, images: pd.DataFrame, path: Path, *, own: Mapping[str, str]
) -> tuple[pd.Series, list[str]]:
    """:func:`match_images` for a file that lists its own images (id → file name).

    Where its numbers mean other pictures here than by its list, the list decides.
    """
    found, unknown = match_images(values, images, path)
    names = as_text(values).map(own)
    stems = images.set_index("image_id")["path"].map(_stem)
    named = names.dropna().map(_stem)
    if not named.isin(stems).any():
        return found, unknown  # the list is of other files, or there is none
    if unknown or (found.loc[named.index].map(stems) != named).any():
        logger.info("%s: its image ids are read by its own list of images", path.name)
        return match_images(names.fillna(as_text(values)), images, path)
    return found, unknown


def _stem(name: str) -> str:
    return PurePosixPath(_slashes(str(name))).stem


def _ways(images: pd.DataFrame) -> list[tuple[str, pd.Series, _Key]]:
    """(name, what each image is called, what of a name counts; None: nothing)."""
    ids, paths = images["image_id"], images["path"].map(lambda p: _slashes(str(p)))
    ways: list[tuple[str, pd.Series, _Key]] = [("id", ids, str)]
    bare = [ids.str.slice(len(prefix) + 1) for prefix in _prefixes(ids, paths)]
    ways += [("id without its split", known, str) for known in bare]
    ways += [("id as a number", known, _number) for known in (ids, *bare)]
    for way, part in (
        ("path", str),
        ("file name", lambda v: PurePosixPath(v).name),
        ("file name without ending", lambda v: PurePosixPath(v).stem),
    ):
        ways.append((way, paths, _no_number(part)))
    return ways


def _prefixes(ids: pd.Series, paths: pd.Series) -> list[str]:
    """What stands before a ``-`` in all ids, the shortest first; none where ids are file names.

    In names such as ``card-1`` the number is part of the name and no id.
    """
    names = paths.map(lambda p: {PurePosixPath(p).stem, PurePosixPath(p).name, p})
    if all(i in n for i, n in zip(ids, names, strict=True)):
        return []
    first = str(ids.iloc[0])
    prefixes = [first[: found.start()] for found in re.finditer("-", first) if found.start()]
    return [prefix for prefix in prefixes if ids.str.startswith(f"{prefix}-").all()]


def _slashes(name: str) -> str:
    return str(PurePosixPath(name.replace("\\", "/")))


def _number(text: str) -> str | None:
    """A whole number without leading zeros, or None; a column with gaps writes 7 as 7.0."""
    return str(int(text.partition(".")[0])) if re.fullmatch(r"[+-]?[0-9]+(\.0+)?", text) else None


def _no_number(part: Callable[[str], str]) -> _Key:
    # A picture's path has an ending, so that only what detections say can be a bare number.
    return lambda text: None if _number(text) is not None else part(_slashes(text))


# --- classes -----------------------------------------------------------------------------------


def match_classes(
    frame: pd.DataFrame,
    classes: pd.DataFrame,
    path: Path,
    *,
    categories: Mapping[str, str] | str | None,
    own: Mapping[str, str],
    section: str = "evaluate_files",
) -> tuple[pd.Series, list[str]]:
    """Class names for the rows, and what is unknown. Ids are never taken for an order.

    ``section`` is the section of the configuration that messages name.
    """
    known, mapping = classes["class_name"].tolist(), categories
    if isinstance(mapping, str):
        mapping = read_categories(Path(mapping), section=section)
    ids = as_text(frame["category_id" if "category_id" in frame else "class_name"])
    if mapping and "category_id" not in frame and ids.isin(mapping).all():
        names = ids.map(dict(mapping))
    elif "class_name" in frame:
        names = as_text(frame["class_name"])
        if mapping and not _ours(names, known).notna().all():
            names = ids.map(dict(mapping))
    else:
        names = ids.map(dict(mapping or own))
    strangers = ids[names.isna()].unique().tolist()
    if strangers:
        return names, [_no_names(strangers, known, section)]
    found = _ours(names, known)
    unknown = names[found.isna()].unique().tolist()
    if unknown and all(_number(name) is not None for name in unknown):
        return names, [_no_names(unknown, known, section)]
    return found.fillna(names), [
        f"{len(unknown)} class(es) are not in the data set: {listed(unknown)}"
        f"{did_you_mean(unknown[0], known)} Its classes: {listed(known)}"
    ] if unknown else []


def read_categories(path: Path, *, section: str = "evaluate_files") -> dict[str, str]:
    """Category id → class name, from the ``categories`` of a COCO file.

    Raises:
        DataError: there is no such file, or it has no categories.
    """
    if not path.is_file():
        raise DataError(
            f"{section}.categories: there is no file '{path}' (working folder: {Path.cwd()})"
        )
    try:
        content = json.loads(path.read_bytes().decode("utf-8-sig"))
    except ValueError as error:
        raise DataError(f"{path} is not valid JSON: {error}") from error
    found = own_categories(content, path)
    if not found:
        raise DataError(f"{path} has no 'categories', so it tells no names of classes")
    return found


def own_categories(content: Any, path: Path) -> dict[str, str]:
    """Category id → class name of the content of a COCO file; empty if it has none.

    Raises:
        DataError: a category lacks id or name.
    """
    records = content.get("categories") or [] if isinstance(content, dict) else []
    try:
        return {str(record["id"]).strip(): str(record["name"]) for record in records}
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}: every category must have an 'id' and a 'name'") from error


def own_file_names(content: Mapping[str, Any]) -> dict[str, str]:
    """Image id → file name of the content of a COCO file; empty if it lists no images."""
    records = content.get("images")
    if not isinstance(records, list):
        return {}
    return {
        str(record["id"]).strip(): str(record["file_name"])
        for record in records
        if isinstance(record, dict) and "id" in record and "file_name" in record
    }


def _ours(names: pd.Series, known: list[str]) -> pd.Series:
    """The data set's spelling of each name, missing where it has none."""
    spelling = {_clean(name): name for name in known} | {name: name for name in known}
    return names.map(lambda name: spelling.get(name, spelling.get(_clean(name))))


def _clean(name: str) -> str:
    return unicodedata.normalize("NFC", str(name).strip())


def _no_names(ids: list[str], known: list[str], section: str) -> str:
    return (
        f"{len(ids)} category id(s) have no name: {listed(ids)}; the data set's classes are "
        f"{listed(known)}. Say which is which: in the parameters' YAML "
        f"'{section}: {{categories: {{{ids[0]}: <its class>, …}}}}' for "
        f"all ids of the file, or {section}.categories=<a COCO file whose 'categories' tell>"
    )
