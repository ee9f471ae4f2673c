"""Which of the readers' formats lie in a folder, judged by what the files hold."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from detpipe.data.formats.base import IMAGE_SUFFIXES
from detpipe.data.formats.beginnings import (
    OPEN_IMAGES,
    header,
    is_coco,
    is_csv,
    is_darknet,
    is_voc,
    is_yolo,
    is_yolo_label,
)
from detpipe.data.formats.csv_files import without_header
from detpipe.data.formats.survey import (
    Survey,
    by_home,
    by_split,
    files_of,
    is_split,
    split_of,
    spread,
    under,
)


class Found(NamedTuple):
    """A way to read the folder.

    Attributes:
        reader: the reader's short name.
        base: the folder to read, relative to the one surveyed; '' for itself.
        options: the reader's.
        why: which files speak for it.
        lists: whether it comes with complete lists of its splits, which a stray copy never has.
    """

    reader: str
    base: str
    options: Mapping[str, str | dict[str, str]]
    why: str
    lists: bool = False


def recognise(survey: Survey) -> list[Found]:
    """Every way to read what was surveyed, pictures without annotations left out."""
    ways: Sequence[Callable[[Survey], list[Found]]] = (
        _coco, _voc, _yolo, _csv, _openimages, _crowdhuman, _parquet,
    )  # fmt: skip
    return [found for way in ways for found in way(survey)]


# --- COCO --------------------------------------------------------------------------------------


def _coco(survey: Survey) -> list[Found]:
    files = [file for file in files_of(survey, ".json") if is_coco(survey.head(file))]
    found = []
    for base, group in by_home(survey, files).items():
        for files_of_one in _coco_sets(group):
            options: str | dict[str, str]
            options = files_of_one if len(files_of_one) > 1 else next(iter(files_of_one.values()))
            why = f"COCO JSON in {under(base, *files_of_one.values())}"
            found.append(Found("coco", base, {"annotations": options}, why))
    return found


def _coco_sets(files: Sequence[str]) -> list[dict[str, str]]:
    """split → file of each data set that these may be.

    COCO's lists of captions, keypoints and the like do not count beside its ``instances_*.json``.
    """
    beside = {posixpath.dirname(file) for file in files if _is_instances(file)}
    files = [f for f in files if posixpath.dirname(f) not in beside or not _COMPANION.search(f)]
    own = [f for f in files if _is_instances(f)] or [f for f in files if split_of(f)]
    together = by_split(own)
    if together is None and own and _is_instances(own[0]):
        together = {posixpath.basename(f)[len("instances_") : -len(".json")]: f for f in own}
    if together is None:
        return [{"": file} for file in files]
    return [together, *({"": file} for file in files if file not in own)]


_COMPANION = re.compile(r"(^|/)(captions|person_keypoints|image_info|stuff|panoptic)_[^/]*$")


def _is_instances(file: str) -> bool:
    return posixpath.basename(file).startswith("instances_")


# --- VOC ---------------------------------------------------------------------------------------


def _voc(survey: Survey) -> list[Found]:
    counts: dict[tuple[str, str], int] = {}
    for folder in survey.folders.values():
        names = folder.files(".xml")
        if any(is_voc(survey.head(folder.path(name))) for name in spread(names, at_most=3)):
            where = _voc_place(folder.place)
            counts[where] = counts.get(where, 0) + len(names)
    return [_voc_found(survey, *where, count) for where, count in counts.items()]


def _voc_place(place: str) -> tuple[str, str]:
    """Of a folder with XML files: the data set's, and the reader's option ``annotations``."""
    parts = place.split("/") if place else []
    if "Annotations" in parts:
        return "/".join(parts[: parts.index("Annotations")]), "Annotations"
    of_split = [at for at, part in enumerate(parts) if is_split(part)]
    small = [at for at, part in enumerate(parts) if part.lower() == "annotations"]
    if small and small[0] < min(of_split, default=len(parts)):  # annotations/train/a.xml
        return "/".join(parts[: small[0]]), parts[small[0]]
    if of_split:
        return "/".join(parts[: of_split[0]]), ""
    return ("/".join(parts[:-1]), parts[-1]) if parts else ("", ".")


def _voc_found(survey: Survey, base: str, annotations: str, count: int) -> Found:
    default = annotations in ("Annotations", "")
    lists = survey.folders.get(posixpath.join(base, "ImageSets/Main"))
    names = [n for n in (lists.files(".txt") if lists else []) if n in _LISTS]
    if "train.txt" in names or "val.txt" in names:
        names = [name for name in names if name != "trainval.txt"]
    listed = {
        line.split()[0]
        for name in names
        for line in _lines(survey, posixpath.join(base, "ImageSets/Main", name))
    }
    where = posixpath.join(base, annotations) if annotations else f"{base or '.'}/<split>"
    why = f"{count} Pascal VOC XML file(s) in {where}"
    why += f", lists of splits: {', '.join(names)}" if names else ""
    options = {} if default else {"annotations": annotations}
    return Found("voc", base, options, why, lists=default and len(listed) >= count)


_LISTS = ("train.txt", "val.txt", "test.txt", "trainval.txt")


def _lines(survey: Survey, file: str) -> list[str]:
    try:
        text = (survey.root / file).read_text("utf-8-sig", "replace")
    except OSError:  # the reader says so
        return []
    return [line for line in text.splitlines() if line.strip()]


# --- YOLO --------------------------------------------------------------------------------------


def _yolo(survey: Survey) -> list[Found]:
    files = [file for file in files_of(survey, ".yaml", ".yml") if is_yolo(survey.head(file))]
    files += [f for f in files_of(survey, ".data") if is_darknet(survey.head(f))]
    files += _class_lists(survey)
    found = []
    for base, group in by_home(survey, files).items():
        # As the reader itself prefers them.
        best = next((name for name in _YOLO_NAMES if name in group), None)
        for file in [best] if best else _without_lists(group):
            options = {} if file == "data.yaml" else {"data": file}
            why = f"YOLO's names and pictures as {under(base, file)} has them"
            found.append(Found("yolo", base, options, why))
    return found


_YOLO_NAMES = ("data.yaml", "data.yml", "dataset.yaml", "dataset.yml")


def _without_lists(files: Sequence[str]) -> Sequence[str]:
    """The YAML files, else Darknet's, else the lists of classes."""
    for ending in (("yaml", "yml"), ("data",)):
        if chosen := [file for file in files if file.endswith(ending)]:
            return chosen
    return files


def yolo_labels(survey: Survey, place: str = "") -> str:
    """The first folder at ``place`` or below with label files of YOLO; '' for none."""
    for folder in survey.within(place):
        texts = (survey.head(folder.path(n)) for n in spread(folder.files(".txt"), at_most=5))
        if any(is_yolo_label(text) for text in texts):
            return folder.place or "."
    return ""


def _class_lists(survey: Survey) -> list[str]:
    """``classes.txt`` with label files and pictures below its folder."""
    return [
        folder.path("classes.txt")
        for folder in survey.folders.values()
        if "classes.txt" in folder.files(".txt")
        and survey.pictures(folder.place)
        and yolo_labels(survey, folder.place)
    ]


# --- csv ---------------------------------------------------------------------------------------


def _csv(survey: Survey) -> list[Found]:
    files = files_of(survey, ".csv", ".tsv", ".txt")
    fields = {file: header(survey.head(file)) for file in files}
    with_boxes = [f for f in files if is_csv(fields[f]) and not _is_other_text(f, fields[f])]
    found = []
    for base, group in by_home(survey, with_boxes).items():
        named = [file for file in group if split_of(file)]
        together = by_split(named)
        alone = [file for file in group if together is None or file not in named]
        for one in [*([together] if together else []), *({split_of(f): f} for f in alone)]:
            (split, file), *more = one.items()
            by_name = not more and split_of(posixpath.basename(file)) == split
            scores = _SCORES & {c.lower() for c in fields[posixpath.join(base, file)]}
            scored = " (with scores: predictions?)" if scores else ""
            options: str | dict[str, str] = file if by_name else one
            why = f"a box a row in {under(base, *one.values())}{scored}"
            found.append(Found("csv", base, {"annotations": options}, why))
    return found


def _is_other_text(file: str, fields: Sequence[str]) -> bool:
    """Whether a .txt has six values that do not begin with a picture's name: tracks, say."""
    picture = PurePosixPath(fields[0].replace("\\", "/")).suffix.lower() in IMAGE_SUFFIXES
    return file.lower().endswith(".txt") and without_header(fields) and not picture


_SCORES = frozenset(("score", "scores", "confidence"))


# --- others ------------------------------------------------------------------------------------


def _openimages(survey: Survey) -> list[Found]:
    files = [
        file for file in files_of(survey, ".csv") if set(header(survey.head(file))) >= OPEN_IMAGES
    ]
    usual = re.compile(
        r"([^/]*/){0,2}[^/]*(annotations|detection)-bbox[^/]*|.*labels/detections.csv"
    )
    return [
        Found("openimages", base, _annotations(group, usual),
              f"Open Images' columns in {under(base, *group)}")
        for base, group in by_home(survey, files).items()
    ]  # fmt: skip


def _crowdhuman(survey: Survey) -> list[Found]:
    return [
        Found("crowdhuman", base, _annotations(group, re.compile(r"([^/]*/)?[^/]*")),
              f"CrowdHuman's lines in {under(base, *group)}")
        for base, group in by_home(survey, files_of(survey, ".odgt")).items()
    ]  # fmt: skip


def _annotations(files: Sequence[str], usual: re.Pattern[str]) -> dict[str, str | dict[str, str]]:
    """The reader's options: none where it finds the files by itself."""
    if all(usual.fullmatch(file) for file in files):
        return {}
    return {"annotations": by_split(files) or files[0]}


def _parquet(survey: Survey) -> list[Found]:
    return [
        Found("parquet", folder.place, {}, f"detpipe's own tables in {folder.place or '.'}")
        for folder in survey.folders.values()
        if {"images.parquet", "boxes.parquet", "classes.parquet"} <= set(folder.files(".parquet"))
    ]
