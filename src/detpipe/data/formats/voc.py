"""Reader of Pascal VOC annotations: one XML file an image."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd

from detpipe.core.errors import DataError, one_message
from detpipe.core.tables import BOX_COLUMNS
from detpipe.data.formats.base import (
    IMAGE_SUFFIXES,
    Annotations,
    IssueLog,
    existing_folder,
    make_tables,
    relative,
    sample,
    split_in_name,
    unique_ids,
)
from detpipe.data.formats.locate import ImageFinder
from detpipe.data.formats.voc_xml import Record, Thing, parse


@dataclass
class _File:
    """One XML file."""

    path: Path
    record: Record
    split: str = ""
    image: Path | None = field(default=None)


def read(
    root: Path,
    *,
    annotations: str = "Annotations",
    images: str = "JPEGImages",
    splits: str = "ImageSets/Main",
    one_based: bool = False,
    suffix: str = ".xml",
    encoding: str | None = None,
    extra: bool = False,
) -> Annotations:
    """Reads a Pascal VOC data set.

    Args:
        root: the data set's folder, or one that holds it one or two levels below (``VOCdevkit``).
        annotations: folder of the XML files. Where it is missing, ``{train,valid,test}`` folders
            with XML beside the images are read, and the split is the folder's name.
        images: folder of the images. They may lie beside their XML, too.
        splits: folder of the lists ``train.txt``, ``val.txt``, ``test.txt``. With lists, XML files
            in none of them are left out; without lists every split is ''. ``trainval`` counts only
            where ``train`` and ``val`` are missing: it is their union.
        one_based: whether pixel 1 is the first, as in the original VOC. Then 1 is taken off x1 and
            y1, and x2, y2, inclusive there, become exclusive as they stand.
        suffix: ending of the annotation files.
        encoding: of XML files that do not declare theirs and are not UTF-8.
        extra: whether ``pose``, ``truncated``, ``occluded`` and all else that an ``<object>`` says
            is kept in ``boxes.extra``.

    An object without ``<bndbox>`` gets the upright box around its ``<robndbox>`` (roLabelImg) or
    ``<polygon>``. Images are found by file name, else by name without ending. Image ids are the
    names of the XML files without ending. Classes are in alphabetical order, since VOC lists none.

    Raises:
        DataError: no such folder, no XML file, malformed XML. What is wrong with single records
            goes to ``issues``.
    """
    if not suffix.startswith("."):
        raise DataError(f"option 'suffix' must begin with a dot, such as .txt, not '{suffix}'")
    root = existing_folder(root)
    log = IssueLog()
    base, found = _xml_files(root, annotations, suffix, log)
    files = _parse_all(found, encoding, extra=extra)
    stems = {file.path.stem for file in files}
    files = _with_lists(files, _lists(base / splits, stems), base / splits, root, log)
    _find_images(files, base / images, base, root, log)
    files = [file for file in files if file.image is not None]
    names = [file.path.stem for file in files]
    ids = unique_ids([names, [relative(file.path.with_suffix(""), root) for file in files]])
    image_rows = [
        {
            "image_id": image_id, "path": relative(file.image or file.path, root),
            "width": file.record.width, "height": file.record.height, "split": file.split,
        }
        for image_id, file in zip(ids, files, strict=True)
    ]  # fmt: skip
    things = [thing for file in files for thing in file.record.things]
    boxes = _boxes(things, 1.0 if one_based else 0.0, extra=extra)
    counts = [len(file.record.things) for file in files]
    boxes["image_id"] = pd.Series(np.repeat(np.array(ids, object), counts), dtype="str")
    boxes["annotation_id"] = pd.Series(
        [f"{i}-{n}" for i, count in zip(ids, counts, strict=True) for n in range(1, count + 1)],
        dtype="str",
    )
    _say_what_they_are(things, log)
    return make_tables(image_rows, boxes, None, log)


def _boxes(things: Sequence[Thing], base: float, *, extra: bool) -> pd.DataFrame:
    """The ``boxes`` table but for the ids."""
    corners = np.array([thing.box for thing in things], np.float64).reshape(-1, 4)
    corners[:, :2] -= base
    frame = pd.DataFrame(corners, columns=BOX_COLUMNS)
    frame["area"] = (frame["x2"] - frame["x1"]) * (frame["y2"] - frame["y1"])
    frame["class_name"] = pd.Series([thing.name for thing in things], dtype="str")
    frame["difficult"] = np.array([thing.difficult for thing in things], bool)
    frame["iscrowd"] = False
    if extra:
        texts = [msgspec.json.encode(t.extra).decode() if t.extra else "" for t in things]
        frame["extra"] = pd.Series(texts, dtype="str")
    return frame


def _say_what_they_are(things: Sequence[Thing], log: IssueLog) -> None:
    found = [
        ("truncated_objects", sum(t.truncated for t in things), "used like the others"),
        ("polygons", sum(t.polygon for t in things), "their boxes are used"),
        ("rotated_boxes", sum(t.rotated for t in things),
         "an upright box is used: of <robndbox> the one around it, else <bndbox> as written"),
    ]  # fmt: skip
    for rule, count, action in found:
        if count:
            log.add("info", rule, value=f"{count} of {len(things)} objects", action=action)


# --- files -------------------------------------------------------------------------------------


def _xml_files(
    root: Path, annotations: str, suffix: str, log: IssueLog
) -> tuple[Path, list[tuple[Path, str]]]:
    """The folder that the other names are relative to, and (XML file, split) of every image."""
    bases = [path for path in [root, *sorted(root.glob("*")), *sorted(root.glob("*/*"))]
             if (path / annotations).is_dir()]  # fmt: skip
    if bases and bases[0] == root:
        bases = [root]
    if len(bases) > 1:
        raise DataError(
            f"{root} holds several VOC data sets: {sample(relative(b, root) for b in bases)}; "
            f"set the path to one of them"
        )
    if bases:
        base, folders = bases[0], [(bases[0] / annotations, "")]
    else:
        inside = [p for p in sorted(root.glob("*")) if p.is_dir() and split_in_name(p.name)]
        base, folders = root, [(folder, split_in_name(folder.name)) for folder in inside]
    there = [(path, split) for folder, split in folders for path in sorted(folder.rglob("*"))]
    files = [(path, split) for path, split in there if path.suffix.lower() == suffix.lower()]
    others = [relative(path, root) for path, _ in there if _is_other(path, suffix)]
    if others:
        log.add(
            "warning", "xml_other_ending", value=f"{len(others)} file(s): {sample(others)}",
            action=f"VOC annotations that do not end in {suffix} are not read: the reader's option "
            f"'suffix' names another ending",
        )  # fmt: skip
    if not files:
        raise DataError(
            f"no VOC annotations in {root}: there is no '*{suffix}' in a folder '{annotations}' in "
            f"it or up to two levels below, nor in a train, val or test folder. Name the folder "
            f"with the reader's option 'annotations'"
            + (f"; {sample(others)} can be read with the option 'suffix'" if others else "")
        )
    return base, files


def _is_other(path: Path, suffix: str) -> bool:
    """Whether this is VOC's XML under another ending."""
    ending = path.suffix.lower()
    if ending == suffix.lower() or ending in IMAGE_SUFFIXES or not path.is_file():
        return False
    with path.open("rb") as file:
        return re.search(rb"<annotation[\s>]", file.read(500)) is not None


def _lists(folder: Path, stems: Collection[str]) -> dict[str, list[str]]:
    """Split → the names in its list; lists of single classes (``cat_train.txt``) are not read."""
    names = ("train", "val", "test", "trainval")
    found = {name: folder / f"{name}.txt" for name in names if (folder / f"{name}.txt").is_file()}
    if "train" in found or "val" in found:
        found.pop("trainval", None)
    return {
        split: [_listed(line, stems) for line in path.read_text("utf-8-sig").splitlines()
                if line.strip()]
        for split, path in found.items()
    }  # fmt: skip


def _listed(line: str, stems: Collection[str]) -> str:
    """The name that a line of a list gives, without the 1, 0 or -1 of VOC's lists of classes."""
    name = line.strip()
    return name if name in stems else re.sub(r"\s+-?[01]$", "", name)


def _with_lists(
    files: list[_File], lists: Mapping[str, Sequence[str]], folder: Path, root: Path,
    log: IssueLog,
) -> list[_File]:  # fmt: skip
    """The files that are in a list, with their split."""
    if not lists:
        return files
    splits: dict[str, str] = {}
    for split, names in lists.items():
        for name in names:
            if splits.setdefault(name, split) != split:
                log.add(
                    "error", "image_in_two_splits", file=relative(folder / f"{split}.txt", root),
                    image_id=name, value=f"also in {splits[name]}.txt",
                    action="take it out of one of the lists",
                )  # fmt: skip
    known = {file.path.stem: file for file in files}
    for name, split in splits.items():
        if name in known:
            known[name].split = split
        else:
            log.add(
                "error", "no_annotation_file", file=relative(folder / f"{split}.txt", root),
                image_id=name, action="write its XML, or take it out of the list",
            )  # fmt: skip
    left_out = [file.path.name for file in files if file.path.stem not in splits]
    if left_out:
        log.add(
            "info", "not_in_a_list", file=relative(folder, root),
            value=f"{len(left_out)} XML file(s): {sample(left_out)}", action="left out",
        )  # fmt: skip
    return [file for file in files if file.path.stem in splits]


def _find_images(
    files: Sequence[_File], images: Path, base: Path, root: Path, log: IssueLog
) -> None:
    """Sets ``file.image``; where it is missing, to the place where it was expected."""
    finders: dict[Path, ImageFinder] = {}
    by_stem, nowhere = [], []
    for file in files:
        beside = file.path.parent
        if beside not in finders:
            finders[beside] = ImageFinder([images, beside, base / "images", base])
        match = finders[beside].find(file.record.filename or file.path.stem)
        if match.how == "missing":  # the file may have been renamed together with its XML
            match = finders[beside].find(file.path.stem)
        source = relative(file.path, root)
        if match.how == "ambiguous":
            log.add(
                "error", "ambiguous_image", file=source, image_id=file.path.stem,
                value=sample(relative(path, root) for path in match.candidates),
                action="write the full file name into <filename>, or remove one of them",
            )  # fmt: skip
        elif match.path is None:
            nowhere.append(file)
            file.image = images / (file.record.filename or f"{file.path.stem}.jpg")
        else:
            file.image = match.path
        if match.path and match.how != "exact" and match.path.name != file.record.filename:
            by_stem.append(f"'{file.record.filename}' -> {match.path.name}")
    if by_stem:
        log.add(
            "info", "image_ending", value=f"{len(by_stem)} image(s), first {by_stem[0]}",
            action="matched by name without ending",
        )  # fmt: skip
    if files and len(nowhere) == len(files):
        raise DataError(
            f"none of the {len(files)} images was found, first '{nowhere[0].record.filename}' of "
            f"{nowhere[0].path}. Looked in {images}, beside the XML, in {base / 'images'} and "
            f"{base}; name their folder with the reader's option 'images'"
        )


def _parse_all(
    found: Sequence[tuple[Path, str]], encoding: str | None, *, extra: bool
) -> list[_File]:
    files, mistakes = [], []
    for path, split in found:
        try:
            files.append(_File(path, parse(path, encoding, extra=extra), split))
        except ValueError as error:
            mistakes.append(f"{path}: {error}")
    if mistakes:
        shown = mistakes[:20] + ([f"and {len(mistakes) - 20} more"] if len(mistakes) > 20 else [])
        raise DataError(one_message("these XML files cannot be read:", shown))
    return files
