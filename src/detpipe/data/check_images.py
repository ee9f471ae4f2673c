"""The check of a data set's image files: are they there, do they decode, how large are they."""

from __future__ import annotations

import functools
import os
import stat
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from pathlib import Path, PurePath

import pandas as pd

from detpipe.data.check_config import CheckConfig
from detpipe.data.copies import drop_copies, twins
from detpipe.data.findings import Findings
from detpipe.data.formats.base import IMAGE_SUFFIXES, IssueLog, sample
from detpipe.data.formats.walk import is_hidden
from detpipe.data.header import shown
from detpipe.data.look import Look, Looks, look
from detpipe.data.progress import follow
from detpipe.data.spread import Died, spread

_PROCESSES_FROM_BYTES = 64 * 2**20
"""Below this, starting processes takes longer than decoding in this one."""
_STORED_AT_ONCE = 1000
_MISSING = "missing"
_DIED = "decoding it ended the process: {}"


def check_images(
    images: pd.DataFrame,
    root: Path,
    config: CheckConfig,
    log: IssueLog,
    *,
    cache: Path | None = None,
) -> tuple[pd.DataFrame, set[str]]:
    """The usable images with their files' sizes, and the ids of those whose listed size differed.

    Where some have no split yet, the column ``twin`` says which files are the same.

    Args:
        images: the ``images`` table; a width or height of 0 means that the reader did
            not know it.
        root: the folder that paths are relative to.
        config: whether to decode, in how many processes, and what to do about findings.
        log: gets the findings.
        cache: folder in which to keep what decoding a picture found, by its content: the next check
            decodes only what is new or changed, whatever its name and time. None keeps nothing.
    """
    findings = Findings(config, log)
    looks = _look_at_all(images["path"].unique().tolist(), Path(root), config, cache)
    seen = pd.DataFrame(looks.values(), index=list(looks), columns=Look._fields).add_prefix("file_")
    rows = images.join(seen, on="path")
    usable = _check_files(rows, findings)
    mismatched = _check_sizes(rows[usable], findings)
    _say_unlisted(looks, Path(root), findings)
    if len(deep := rows[usable & (rows["file_bits"] > 8)]):
        findings.add_one(
            "more_than_8_bits", f"{len(deep)} image(s)", file=shown(deep["path"].iloc[0]),
            way_out="convert them to 8 bits", done="each one is scaled to 8 bits by its own range",
        )  # fmt: skip
    sized = images.assign(width=rows["file_width"], height=rows["file_height"])[usable]
    files = rows.loc[usable, ["path", "split", "file_digest", "file_hash"]]
    stays = drop_copies(sized, files, findings)
    sized = sized[stays]
    if (sized["split"] == "").any():  # a split is still to be drawn, and shall not tear them apart
        sized = sized.assign(twin=twins(files[stays]))
    return sized, mismatched


def _look_at_all(
    paths: Sequence[str], root: Path, config: CheckConfig, cache: Path | None
) -> dict[str, Look]:
    """Path → what its file says, in the order given."""
    sizes = {path: _size(root / path) for path in paths}
    present = [path for path, size in sizes.items() if size is not None]
    volume = sum(size or 0 for size in sizes.values())
    stored = Looks(cache if config.decode else None)
    work = functools.partial(
        look, decode=config.decode, max_pixels=config.max_pixels, cache=stored.file
    )
    found, fresh = dict.fromkeys(paths, Look(error=_MISSING)), []
    try:
        with (
            closing(_results(work, [str(root / p) for p in present], config, volume)) as results,
            closing(follow(results, total=len(present), what="looking at pictures")) as steps,
        ):
            for index, result in steps:
                found[present[index]] = result
                fresh.append(result)
                if len(fresh) >= _STORED_AT_ONCE:
                    stored.store(fresh)
                    fresh = []
    finally:
        stored.store(fresh)
        stored.close()
    return found


def _size(file: Path) -> int | None:
    """Bytes of a file; None if there is none."""
    try:
        status = file.stat()
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _results(
    work: functools.partial[Look], files: Sequence[str], config: CheckConfig, volume: int
) -> Generator[tuple[int, Look]]:
    processes = config.workers
    if processes == "auto":
        pays = config.decode and volume >= _PROCESSES_FROM_BYTES
        processes = _cores() if pays else 0
    if processes < 1 or not files:
        yield from enumerate(map(work, files))
        return
    with closing(spread(work, files, processes=processes)) as results:
        for index, result in results:
            if isinstance(result, Died):
                yield index, Look(error=_DIED.format(result.how))
            else:
                yield index, result


def _cores() -> int:
    """CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _check_files(rows: pd.DataFrame, findings: Findings) -> pd.Series:
    """Says which images cannot be used; True for those that can."""
    missing, error = rows["file_error"] == _MISSING, rows["file_error"]
    findings.add("missing_image", _as_rows(rows[missing], ""), way_out="restore the file",
                 done="image and its boxes dropped")  # fmt: skip
    bad = ~missing & (error != "")
    findings.add("undecodable_image", _as_rows(rows[bad], error[bad].map(shown)),
                 way_out="restore the file")  # fmt: skip
    usable = ~missing & ~bad
    damaged = usable & (rows["file_damage"] != "")
    action = findings.add(
        "damaged_image", _as_rows(rows[damaged], rows["file_damage"][damaged]),
        way_out="get the file again", done="kept; part of it may be grey or noise",
    )  # fmt: skip
    return usable & ~damaged if action == "drop" else usable


def _check_sizes(rows: pd.DataFrame, findings: Findings) -> set[str]:
    """Says where the listed size is not the file's; the ids of these images."""
    wide, high = rows["file_width"], rows["file_height"]
    width, height = rows["width"].where(rows["width"] > 0, wide), rows["height"]
    height = height.where(height > 0, high)
    differ = (width != wide) | (height != high)
    swapped = differ & (width == high) & (height == wide)
    said = [
        f"listed {a}x{b}, file {c}x{d}"
        for a, b, c, d in zip(width, height, wide, high, strict=True)
    ]
    values = pd.Series(said, index=rows.index)
    turned = rows["file_turned"].astype(bool)
    for rule, which, what in (
        ("size_before_exif", swapped & turned,
         "the listed size is that of the picture before its EXIF rotation; it is used upright"),
        ("size_swapped", swapped & ~turned,
         "width and height are swapped; the file's size decides"),
        ("size_mismatch", differ & ~swapped, "the file's size decides"),
    ):  # fmt: skip
        found = _as_rows(rows[which], values[which])
        findings.add(rule, found, way_out="correct the listed size",
                     done=f"{what}; look whether the boxes fit")  # fmt: skip
    return set(rows["image_id"][differ])


def _as_rows(rows: pd.DataFrame, value: pd.Series | str) -> pd.DataFrame:
    return rows[["image_id"]].assign(file=rows["path"].map(shown), value=value)


def _say_unlisted(looks: Mapping[str, Look], root: Path, findings: Findings) -> None:
    """Names picture files beside the listed ones that no record names: one row a folder."""
    if findings.config.setting("unlisted_picture")[0] == "ignore":
        return
    listed: dict[str, set[str]] = defaultdict(set)
    for path in looks:
        folder, name = os.path.split(os.path.normpath(root / path))
        listed[folder].add(name)
    for folder, names in sorted(listed.items()):
        try:
            with os.scandir(folder) as entries:
                others = sorted(
                    entry.name for entry in entries
                    if entry.name not in names
                    and not is_hidden(entry.name)
                    and PurePath(entry.name).suffix.lower() in IMAGE_SUFFIXES
                    and entry.is_file()
                )  # fmt: skip
        except (OSError, ValueError):  # no such folder, or one whose name cannot be
            continue
        if others:
            findings.add_one(
                "unlisted_picture", f"{len(others)}: {sample(map(shown, others))}",
                file=shown(os.path.relpath(folder, root)), way_out="list or remove them",
                done="not used",
            )  # fmt: skip
