"""The reader that looks what a folder holds, and leaves the reading to the one that fits."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from detpipe.core.config import Spec
from detpipe.core.errors import DataError, one_message
from detpipe.data.config import READERS
from detpipe.data.formats.base import Annotations, IssueLog, existing_folder, sample
from detpipe.data.formats.beginnings import header
from detpipe.data.formats.foreign import Foreign, foreign
from detpipe.data.formats.join import below
from detpipe.data.formats.recognise import Found, recognise
from detpipe.data.formats.survey import DEPTH, Survey

logger = logging.getLogger(__name__)

_ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar")
_ANNOTATION_LIKE = (".json", ".jsonl", ".xml", ".csv", ".tsv", ".yaml", ".yml", ".parquet")


def read(root: Path, *, extra: bool = False) -> Annotations:
    """Reads a data set in whatever format it is, judged by names and by what the files hold.

    It understands what the readers ``coco``, ``voc``, ``yolo``, ``csv``, ``openimages``,
    ``crowdhuman`` and ``parquet`` read, in ``root`` or in a folder below it, and pictures without
    any annotations. What it took the folder for, and why, is in the log and in ``issues``.

    Where several ways fit, it asks. Only one thing decides by itself: a Pascal VOC tree whose lists
    of splits name all of its files comes before csv files. A folder's ``data.yaml`` comes before
    its other YAML files, and ``instances_*.json`` before COCO's captions and keypoints. Formats
    that no reader reads are left aside if there is one way to read the rest.

    Args:
        root: the data set's folder; ``images.path`` is relative to it, however deep the data set
            lies.
        extra: as the chosen reader's option of that name, where it has one.

    Raises:
        DataError: several ways to read it, each listed with the line of configuration that chooses
            it; or none. Also what the chosen reader raises.
    """
    root = existing_folder(root)
    survey = Survey(root)
    ways = recognise(survey)
    others = foreign(survey, labels=all(way.reader != "yolo" for way in ways))
    chosen = _choose(ways, others, survey)
    line = _line(chosen, root)
    aside = [w.why for w in ways if w is not chosen]
    aside += [f"{f.name} ({f.file})" for f in others]
    left = f"; left aside: {sample(aside)}" if aside else ""
    # Square brackets would be taken for markup by rich's log handler.
    logger.info(
        "%s is taken for %s: %s; the same as %s%s",
        *(t.replace("[", "(").replace("]", ")")
          for t in (str(root), chosen.reader, chosen.why, line, left)),
    )  # fmt: skip
    log = IssueLog()
    log.add("info", "format", value=f"{chosen.reader}: {chosen.why}", action=f"{line}{left}")
    try:
        found: Annotations = _spec(chosen).build(root / chosen.base, extra=extra)
    except DataError as error:
        raise DataError(
            f"{error}\n(reader: auto took the folder for {chosen.reader}: {chosen.why}. To read it "
            f"with other options, set {line})"
        ) from error
    base = chosen.base or "."
    issues = found.issues.assign(file=below(base, found.issues["file"]))
    return Annotations(
        found.images.assign(path=below(base, found.images["path"])),
        found.boxes,
        found.classes,
        pd.concat([log.table(), issues], ignore_index=True),
    )


def _choose(ways: Sequence[Found], others: Sequence[Foreign], survey: Survey) -> Found:
    if len(ways) == 1:
        return ways[0]
    if not ways:
        return _pictures_alone(others, survey)
    listed = [way for way in ways if way.lists]
    if len(listed) == 1 and all(way is listed[0] or way.reader == "csv" for way in ways):
        return listed[0]
    root = survey.root
    lines = [f"{way.why}: {_line(way, root)}{_params(way, root)}" for way in ways]
    lines += [f"{other.name} in {other.file}: {other.advice}" for other in others]
    raise DataError(
        one_message(f"{root} can be read in {len(ways)} ways; choose one:", _at_most(lines))
        + "\nSeveral data sets that belong together are read by the reader join"
    )


def _at_most(lines: list[str], *, shown: int = 30) -> list[str]:
    more = len(lines) - shown
    return [*lines[:shown], f"and {more} more"] if more > 0 else lines


def _pictures_alone(others: Sequence[Foreign], survey: Survey) -> Found:
    """Pictures without annotations, if that is clear.

    Raises:
        DataError: it is not, or there are no pictures.
    """
    root, pictures = survey.root, survey.pictures()
    folder = Found("folder", "", {}, f"{pictures} picture(s) without annotations")
    way_out = f"To use the pictures without annotations: {_line(folder, root)}"
    if others:
        raise DataError(
            one_message(
                f"{root} holds annotations in a format that detpipe does not read:",
                [f"{other.name} ({other.file}): {other.advice}" for other in others],
            )
            + (f"\n{way_out}" if pictures else "")
        )
    files = [f.path(n) for f in survey.folders.values() for n in f.files(*_ANNOTATION_LIKE)]
    if pictures and not files:
        return folder
    if files:
        more = f" ({len(survey.unopened)} were not opened)" if survey.unopened else ""
        raise DataError(
            one_message(
                f"{root} holds {pictures} picture(s) and files that may be annotations{more}, but "
                f"in no form that is known; set data.reader yourself, with options:",
                _at_most([_what_it_is(file, survey) for file in files], shown=10),
            )
            + (f"\n{way_out}" if pictures else "")
        )
    raise DataError(_nothing(survey))


def _what_it_is(file: str, survey: Survey) -> str:
    if file.endswith((".csv", ".tsv")):
        columns = ", ".join(header(survey.head(file))[:12])
        return f"{file}: a csv with the columns {columns}; say which is which with 'columns'"
    return file


def _nothing(survey: Survey) -> str:
    root = survey.root
    archives = [f.path(n) for f in survey.folders.values() for n in f.files(*_ARCHIVES)]
    if archives:
        return f"{root} holds only packed files ({sample(archives)}): unpack them there first"
    names = [f.path(name) for f in survey.folders.values() for name in f.files(*f.names)]
    empty = f"nothing in {DEPTH} levels of folders" if survey.deeper else "it is empty"
    there = sample(names) if names else empty
    return (
        f"no data set was found in {root}: no pictures and no annotations ({there}); name its "
        f"folder with --params raw=<folder>"
    )


# --- the chosen reader -------------------------------------------------------------------------


def _spec(way: Found) -> Spec:
    options: dict[str, Any] = dict(way.options)
    return Spec(use=READERS[way.reader], **options)


def _line(way: Found, root: Path) -> str:
    """The configuration that chooses this way, ready to paste."""
    import yaml

    options = {"use": way.reader, **way.options}
    text = yaml.safe_dump(options, default_flow_style=True, sort_keys=False, allow_unicode=True,
                          width=1_000_000).strip()  # fmt: skip
    where = f" with --params raw={root / way.base}" if way.base else ""
    return f"data.reader: {text}{where}"


def _params(way: Found, root: Path) -> str:
    """The same for the command line, where it can be said there."""
    flat = {"use": way.reader}
    for name, value in way.options.items():
        inner = value if isinstance(value, dict) else {"": value}
        flat |= {f"{name}.{key}".rstrip("."): text for key, text in inner.items()}
    if any(not isinstance(text, str) or set(text) & set(",= ") for text in flat.values()):
        return ""
    parts = [f"raw={root / way.base}", *(f"data.reader.{k}={v}" for k, v in flat.items())]
    return f"; or --params {','.join(parts)}"
