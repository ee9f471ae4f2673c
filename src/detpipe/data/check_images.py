"""The check of a data set's image files: are they there, do they decode, how large are they."""

from __future__ import annotations

import functools
import hashlib
import multiprocessing
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from detpipe.core.errors import DataError
from detpipe.data.config import CheckConfig
from detpipe.data.formats.base import IssueLog, sample
from detpipe.data.image import load_image, read_info

_PROCESSES_FROM_BYTES = 64 * 2**20
"""Below this, starting processes takes longer than decoding in this one."""


class _Look(NamedTuple):
    """What an image file says. ``error`` is empty if it can be used."""

    height: int = 0
    width: int = 0
    turned: bool = False
    bits: int = 8
    digest: bytes = b""
    error: str = ""


def check_images(
    images: pd.DataFrame, root: Path, config: CheckConfig, log: IssueLog
) -> tuple[pd.DataFrame, set[str]]:
    """The usable images with their files' sizes, and the ids of those whose listed size differed.

    Args:
        images: the ``images`` table; a width or height of 0 means that the reader did
            not know it.
        root: the folder that paths are relative to.
        config: whether to decode, in how many processes, and what to do about bad images.
        log: gets the findings.
    """
    paths = {path: root / path for path in images["path"].unique()}
    present = {path: file for path, file in paths.items() if file.is_file()}
    looks = dict(zip(present, _look_at_all(list(present.values()), config), strict=True))
    usable: list[bool] = []
    sizes: list[tuple[int, int]] = []
    mismatched: set[str] = set()
    columns = (images[c].tolist() for c in ("image_id", "path", "width", "height"))
    for image_id, path, width, height in zip(*columns, strict=True):
        look = looks.get(path)
        usable.append(look is not None and not look.error)
        sizes.append((look.width, look.height) if look else (0, 0))
        if look is None or look.error:
            _say_unusable(image_id, path, look, config, log)
        elif (listed := (width or look.width, height or look.height)) != (look.width, look.height):
            mismatched.add(image_id)
            _say_size(image_id, path, listed, look, log)
    _say_deep(looks, log)
    _check_copies(images, looks, log)
    images = images.assign(width=[w for w, _ in sizes], height=[h for _, h in sizes])
    return images[usable], mismatched


def _look(path: str, *, decode: bool) -> _Look:
    """Runs in a worker process, so it must stay a plain function of this module."""
    try:
        info = read_info(Path(path))
        digest = b""
        if decode:
            load_image(Path(path))
            digest = hashlib.blake2b(Path(path).read_bytes(), digest_size=16).digest()
    except DataError as error:
        return _Look(error=str(error))
    return _Look(info.height, info.width, info.orientation >= 5, info.bits, digest)


def _look_at_all(paths: Sequence[Path], config: CheckConfig) -> list[_Look]:
    look = functools.partial(_look, decode=config.decode)
    names = [str(path) for path in paths]
    volume = sum(path.stat().st_size for path in paths)
    if not (config.decode and config.workers and volume >= _PROCESSES_FROM_BYTES):
        return [look(name) for name in names]
    # spawn: forking a process that already runs threads (BLAS, MLflow) can hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(config.workers, mp_context=context) as pool:
        return list(pool.map(look, names, chunksize=16))


def _say_unusable(
    image_id: str, path: str, look: _Look | None, config: CheckConfig, log: IssueLog
) -> None:
    strict = config.bad_image == "error"
    log.add(
        "error" if strict else "warning",
        "missing_image" if look is None else "undecodable_image",
        file=path,
        image_id=image_id,
        value=look.error if look else "",
        action="restore the file, or set data.check.bad_image: drop"
        if strict
        else "image and its boxes dropped",
    )


def _say_deep(looks: Mapping[str, _Look], log: IssueLog) -> None:
    deep = [path for path, look in looks.items() if look.bits > 8 and not look.error]
    if deep:
        log.add(
            "info", "more_than_8_bits", file=deep[0], value=f"{len(deep)} image(s)",
            action="each one is scaled to 8 bits by its own range",
        )  # fmt: skip


def _say_size(
    image_id: str, path: str, listed: tuple[int, int], look: _Look, log: IssueLog
) -> None:
    swapped = listed == (look.height, look.width)
    rule, what = "size_mismatch", "the file's size decides"
    if swapped and look.turned:
        rule = "size_before_exif"
        what = "the listed size is that of the picture before its EXIF rotation; it is used upright"
    elif swapped:
        rule, what = "size_swapped", "width and height are swapped; the file's size decides"
    log.add(
        "warning", rule, file=path, image_id=image_id,
        value=f"listed {listed[0]}x{listed[1]}, file {look.width}x{look.height}",
        action=f"{what}; look whether the boxes fit",
    )  # fmt: skip


def _check_copies(images: pd.DataFrame, looks: Mapping[str, _Look], log: IssueLog) -> None:
    """Names files that are listed twice, and (if they were decoded) files with equal content."""
    for path, rows in images[images["path"].duplicated(keep=False)].groupby("path"):
        splits = list(dict.fromkeys(rows["split"]))
        rule = "image_in_two_splits" if len(splits) > 1 else "image_listed_twice"
        log.add(
            "warning", rule, file=str(path), image_id=str(rows["image_id"].iloc[0]),
            value=sample(splits) if len(splits) > 1 else sample(rows["image_id"]),
            action="kept; results on images that were trained on say little",
        )  # fmt: skip
    split_of = dict(zip(images["path"], images["split"], strict=True))
    by_content: dict[bytes, list[str]] = {}
    for path, look in looks.items():
        if look.digest:
            by_content.setdefault(look.digest, []).append(path)
    for equal in (paths for paths in by_content.values() if len(paths) > 1):
        splits = list(dict.fromkeys(split_of[path] for path in equal))
        log.add(
            "warning" if len(splits) > 1 else "info",
            "same_picture_in_two_splits" if len(splits) > 1 else "same_picture",
            file=equal[0], value=f"also {sample(equal[1:])}", action="kept",
        )  # fmt: skip
