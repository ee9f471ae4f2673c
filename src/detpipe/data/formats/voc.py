"""Reader of Pascal VOC annotations: one XML file an image."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from detpipe.core.errors import DataError, one_message
from detpipe.data.formats.base import (
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


@dataclass
class _Object:
    name: str
    box: tuple[float, float, float, float]
    difficult: bool


@dataclass
class _Record:
    """One XML file."""

    path: Path
    filename: str
    width: int
    height: int
    objects: list[_Object]
    split: str = ""
    image: Path | None = field(default=None)


def read(
    root: Path,
    *,
    annotations: str = "Annotations",
    images: str = "JPEGImages",
    splits: str = "ImageSets/Main",
    one_based: bool = False,
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

    Images are found by file name, else by name without ending. Image ids are the names of the XML
    files without ending. Classes are in alphabetical order, since VOC lists none.

    Raises:
        DataError: no such folder, no XML file, malformed XML. What is wrong with single records
            goes to ``issues``.
    """
    root = existing_folder(root)
    log = IssueLog()
    base, files = _xml_files(root, annotations)
    records = _parse_all([path for path, _ in files])
    for record, (_, split) in zip(records, files, strict=True):
        record.split = split
    records = _with_lists(records, _lists(base / splits), base / splits, root, log)
    _find_images(records, base / images, base, root, log)
    found = [record for record in records if record.image is not None]
    stems = [record.path.stem for record in found]
    paths = [record.path.relative_to(root).with_suffix("").as_posix() for record in found]
    ids = unique_ids([stems, paths])
    image_rows = [
        {
            "image_id": image_id, "path": relative(record.image or record.path, root),
            "width": record.width, "height": record.height, "split": record.split,
        }
        for image_id, record in zip(ids, found, strict=True)
    ]  # fmt: skip
    box_rows = [
        _box_row(thing, image_id, f"{image_id}-{number}", 1.0 if one_based else 0.0)
        for image_id, record in zip(ids, found, strict=True)
        for number, thing in enumerate(record.objects, 1)
    ]
    return make_tables(image_rows, box_rows, None, log)


def _box_row(thing: _Object, image_id: str, annotation_id: str, base: float) -> dict[str, object]:
    x1, y1, x2, y2 = thing.box
    x1, y1 = x1 - base, y1 - base
    return {
        "image_id": image_id, "annotation_id": annotation_id, "class_name": thing.name,
        "x1": x1, "y1": y1, "x2": x2, "y2": y2, "area": (x2 - x1) * (y2 - y1),
        "iscrowd": False, "difficult": thing.difficult,
    }  # fmt: skip


# --- files -------------------------------------------------------------------------------------


def _xml_files(root: Path, annotations: str) -> tuple[Path, list[tuple[Path, str]]]:
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
        files = [(path, "") for path in sorted((bases[0] / annotations).rglob("*.xml"))]
        if not files:
            raise DataError(f"there is no XML file in {bases[0] / annotations}")
        return bases[0], files
    folders = [p for p in sorted(root.glob("*")) if p.is_dir() and split_in_name(p.name)]
    files = [(p, split_in_name(f.name)) for f in folders for p in sorted(f.rglob("*.xml"))]
    if not files:
        raise DataError(
            f"no VOC annotations in {root}: there is no folder '{annotations}' in it or up to two "
            f"levels below, and no train, val or test folder with XML files. Name the folder with "
            f"the reader's option 'annotations'"
        )
    return root, files


def _lists(folder: Path) -> dict[str, list[str]]:
    """Split → the names in its list; lists of single classes (``cat_train.txt``) are not read."""
    names = ("train", "val", "test", "trainval")
    found = {name: folder / f"{name}.txt" for name in names if (folder / f"{name}.txt").is_file()}
    if "train" in found or "val" in found:
        found.pop("trainval", None)
    return {
        name: [line.split()[0] for line in path.read_text("utf-8-sig").splitlines() if line.strip()]
        for name, path in found.items()
    }


def _with_lists(
    records: list[_Record], lists: Mapping[str, Sequence[str]], folder: Path, root: Path,
    log: IssueLog,
) -> list[_Record]:  # fmt: skip
    """The records that are in a list, with their split."""
    if not lists:
        return records
    splits: dict[str, str] = {}
    for split, names in lists.items():
        for name in names:
            if splits.setdefault(name, split) != split:
                log.add(
                    "error", "image_in_two_splits", file=relative(folder / f"{split}.txt", root),
                    image_id=name, value=f"also in {splits[name]}.txt",
                    action="take it out of one of the lists",
                )  # fmt: skip
    known = {record.path.stem: record for record in records}
    for name, split in splits.items():
        if name in known:
            known[name].split = split
        else:
            log.add(
                "error", "no_annotation_file", file=relative(folder / f"{split}.txt", root),
                image_id=name, action="write its XML, or take it out of the list",
            )  # fmt: skip
    left_out = [record.path.name for record in records if record.path.stem not in splits]
    if left_out:
        log.add(
            "info", "not_in_a_list", file=relative(folder, root),
            value=f"{len(left_out)} XML file(s): {sample(left_out)}", action="left out",
        )  # fmt: skip
    return [record for record in records if record.path.stem in splits]


def _find_images(
    records: Sequence[_Record], images: Path, base: Path, root: Path, log: IssueLog
) -> None:
    """Sets ``record.image``; where it is missing, to the place where it was expected."""
    finders: dict[Path, ImageFinder] = {}
    by_stem, nowhere = [], []
    for record in records:
        beside = record.path.parent
        if beside not in finders:
            finders[beside] = ImageFinder([images, beside, base / "images", base])
        match = finders[beside].find(record.filename or record.path.stem)
        if match.how == "missing":  # the file may have been renamed together with its XML
            match = finders[beside].find(record.path.stem)
        source = relative(record.path, root)
        if match.how == "ambiguous":
            log.add(
                "error", "ambiguous_image", file=source, image_id=record.path.stem,
                value=sample(relative(path, root) for path in match.candidates),
                action="write the full file name into <filename>, or remove one of them",
            )  # fmt: skip
        elif match.path is None:
            nowhere.append(record)
            record.image = images / (record.filename or f"{record.path.stem}.jpg")
        else:
            record.image = match.path
        if match.path and match.how != "exact" and match.path.name != record.filename:
            by_stem.append(f"'{record.filename}' -> {match.path.name}")
    if by_stem:
        log.add(
            "info", "image_ending", value=f"{len(by_stem)} image(s), first {by_stem[0]}",
            action="matched by name without ending",
        )  # fmt: skip
    if records and len(nowhere) == len(records):
        raise DataError(
            f"none of the {len(records)} images was found, first '{nowhere[0].filename}' of "
            f"{nowhere[0].path}. Looked in {images}, beside the XML, in {base / 'images'} and "
            f"{base}; name their folder with the reader's option 'images'"
        )


# --- one XML file ------------------------------------------------------------------------------


def _parse_all(paths: Sequence[Path]) -> list[_Record]:
    records, mistakes = [], []
    for path in paths:
        try:
            records.append(_parse(path))
        except (ElementTree.ParseError, ValueError) as error:
            mistakes.append(f"{path}: {error}")
    if mistakes:
        shown = mistakes[:20] + ([f"and {len(mistakes) - 20} more"] if len(mistakes) > 20 else [])
        raise DataError(one_message("these XML files cannot be read:", shown))
    return records


def _parse(path: Path) -> _Record:
    tree = ElementTree.parse(path).getroot()  # noqa: S314 - the user's own files
    if tree.tag != "annotation":
        raise ValueError(f"its root is <{tree.tag}>, not <annotation>")
    return _Record(
        path=path,
        filename=_text(tree, "filename"),
        width=_size(tree, "size/width"),
        height=_size(tree, "size/height"),
        objects=[
            _Object(
                name=thing.findtext("name") or "",
                box=(
                    _coordinate(thing, "xmin"), _coordinate(thing, "ymin"),
                    _coordinate(thing, "xmax"), _coordinate(thing, "ymax"),
                ),
                # Anything but a clear yes ("Unspecified", "0.0597", nothing) is the default, no.
                difficult=_text(thing, "difficult").lower() in ("1", "true", "yes"),
            )
            for thing in tree.iterfind("object")
        ],
    )  # fmt: skip


def _text(element: ElementTree.Element, tag: str) -> str:
    return (element.findtext(tag) or "").strip()


def _size(element: ElementTree.Element, tag: str) -> int:
    value = _number(_text(element, tag))
    return int(value) if value > 0 else 0


def _coordinate(thing: ElementTree.Element, tag: str) -> float:
    return _number(_text(thing, f"bndbox/{tag}"))


def _number(text: str) -> float:
    """NaN for what is no number: the check reports it."""
    try:
        return float(text)
    except ValueError:
        return math.nan
