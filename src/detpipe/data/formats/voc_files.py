"""Where the files of a Pascal VOC data set lie, and which split each belongs to."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

from detpipe.core.errors import DataError
from detpipe.data.formats.base import IMAGE_SUFFIXES, IssueLog, relative, sample, split_in_name
from detpipe.data.formats.locate import ImageFinder, Match, say_how
from detpipe.data.formats.voc_xml import Record
from detpipe.data.formats.walk import files_below, files_in, read_lines, require_utf8, visible


@dataclass
class File:
    """One XML file.

    Attributes:
        path: where it is.
        below: the folder of annotations that it was found in or below.
        record: what it says.
        split: '' for none.
        image: its picture; None where several fit.
    """

    path: Path
    below: Path
    record: Record
    split: str = ""
    image: Path | None = None

    def names(self) -> tuple[str, str]:
        """How lists may name it: without ending, with and without its folder."""
        return self.path.stem, self.path.relative_to(self.below).with_suffix("").as_posix()


def xml_files(
    root: Path, annotations: str, suffix: str, log: IssueLog
) -> tuple[Path, list[tuple[Path, Path, str]]]:
    """The folder that the other names are relative to, and path, folder and split of every XML.

    Raises:
        DataError: there are several data sets, or none.
    """
    bases = [path for path in [root, *visible(root, "*", "*/*")] if (path / annotations).is_dir()]
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
        inside = [p for p in visible(root, "*") if p.is_dir() and split_in_name(p.name)]
        base, folders = root, [(folder, split_in_name(folder.name)) for folder in inside]
    there = [
        (folder / name, folder, split or _split_of(name))
        for folder, split in folders
        for name in files_below(folder)
    ]
    files = [one for one in there if one[0].suffix.lower() == suffix.lower()]
    require_utf8(path for path, _, _ in files)
    others = [relative(path, root) for path, _, _ in there if _is_other(path, suffix)]
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


def _split_of(name: str) -> str:
    """The folder that the path begins with, if it is called like a split."""
    first, slash, _ = name.partition("/")
    return first.lower() if slash and split_in_name(first) == first.lower() else ""


def _is_other(path: Path, suffix: str) -> bool:
    """Whether this is VOC's XML under another ending."""
    ending = path.suffix.lower()
    if ending == suffix.lower() or ending in IMAGE_SUFFIXES or not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return re.search(rb"<annotation[\s>]", file.read(500)) is not None
    except OSError:
        return False


# --- lists -------------------------------------------------------------------------------------


def lists(folder: Path) -> dict[str, list[Path]]:
    """Split → its lists; lists of single classes (``cat_train.txt``) do not count."""
    found: dict[str, list[Path]] = {}
    for name in files_in(folder):
        split = PurePosixPath(name).stem.lower()
        if name.lower().endswith(".txt") and split_in_name(split) == split:
            found.setdefault(split, []).append(folder / name)
    if found.keys() - {"trainval", "test", "testing"}:
        found.pop("trainval", None)
    return dict(sorted(found.items(), key=lambda one: (one[0].startswith("test"), one[0])))


def with_lists(
    files: list[File], found: Mapping[str, Sequence[Path]], folder: Path, root: Path, log: IssueLog
) -> list[File]:
    """The files that are in a list, with their split."""
    if not found:
        return files
    known: dict[str, list[File]] = {}
    for file in files:
        for name in dict.fromkeys(file.names()):
            known.setdefault(name, []).append(file)
    listed: dict[Path, str] = {}
    unclear: set[Path] = set()
    for split, path in ((split, path) for split, paths in found.items() for path in paths):
        source = relative(path, root)
        for line in read_lines(path):
            name = _listed(line, known)
            meant = known.get(name, [])
            if not meant:
                log.add(
                    "error", "no_annotation_file", file=source, image_id=name,
                    action="write its XML, or take it out of the list",
                )  # fmt: skip
            elif len(meant) > 1:
                unclear.update(file.path for file in meant)
                log.add(
                    "error", "ambiguous_image", file=source, image_id=name,
                    value=sample(relative(file.path, root) for file in meant),
                    action=f"several XML files have this name: write {meant[0].names()[1]}",
                )  # fmt: skip
            elif listed.setdefault(meant[0].path, split) == split:
                meant[0].split = split
            else:
                log.add(
                    "error", "image_in_two_splits", file=source, image_id=name,
                    value=f"also in {found[meant[0].split][0].name}",
                    action="take it out of one of the lists",
                )  # fmt: skip
    left_out = [f.path.name for f in files if f.path not in listed and f.path not in unclear]
    if left_out:
        log.add(
            "info", "not_in_a_list", file=relative(folder, root),
            value=f"{len(left_out)} XML file(s): {sample(left_out)}", action="left out",
        )  # fmt: skip
    return [file for file in files if file.path in listed]


def _listed(line: str, known: Collection[str]) -> str:
    """The name that a line of a list gives.

    That is without the 1, 0 or -1 of VOC's lists of classes, and without the ending of a picture.
    """
    bare = re.sub(r"\s+-?[01]$", "", line)
    for name in (line, bare):
        if name in known:
            return name
    stem, dot, ending = bare.rpartition(".")
    return stem if f"{dot}{ending}".lower() in (*IMAGE_SUFFIXES, ".xml") else bare


# --- images ------------------------------------------------------------------------------------


def find_images(files: Sequence[File], images: Path, base: Path, root: Path, log: IssueLog) -> None:
    """Sets ``file.image``; where it is missing, to the place where it was expected.

    Raises:
        DataError: not one was found.
    """
    finders: dict[Path, ImageFinder] = {}
    how: dict[str, Match] = {}
    stale, nowhere = [], []
    for file in files:
        beside, stem, written = file.path.parent, file.path.stem, file.record.filename
        if beside not in finders:
            finders[beside] = ImageFinder(_places(file, images, base))
        match = finders[beside].find(written or stem)
        if match.how == "missing":  # the file may have been renamed together with its XML
            match = finders[beside].find(stem)
        elif match.path and PureWindowsPath(written or stem).stem != stem:
            own = finders[beside].find(stem).path
            if own and own != match.path and own.parent == match.path.parent:
                stale.append(f"{relative(file.path, root)}: '{written}' -> {own.name}")
                match = Match(own, "exact")
        if match.how == "ambiguous":
            log.add(
                "error", "ambiguous_image", file=relative(file.path, root), image_id=stem,
                value=sample(relative(path, root) for path in match.candidates),
                action="write the full file name into <filename>, or remove one of them",
            )  # fmt: skip
        elif match.path is None:
            nowhere.append(file)
            file.image = images / PureWindowsPath(written or f"{stem}.jpg").name
        else:
            file.image = match.path
            if match.path.name != written:
                how[written or stem] = match
    say_how(how, source="", root=root, log=log)
    if stale:
        log.add(
            "warning", "other_file_name", value=f"{len(stale)} file(s): {sample(stale)}",
            action="<filename> names another picture than the one that is named like the XML; both "
            "are there: the one named like the XML is used",
        )  # fmt: skip
    if files and len(nowhere) == len(files):
        tried = finders[nowhere[0].path.parent].tried
        raise DataError(
            f"none of the {len(files)} images was found, first '{nowhere[0].record.filename}' of "
            f"{nowhere[0].path}. Looked in {', '.join(map(str, tried))}; name their folder with "
            f"the reader's option 'images'"
        )


def _places(file: File, images: Path, base: Path) -> list[Path]:
    """Where a picture may lie, best first."""
    beside = file.path.parent
    below = beside.relative_to(file.below)
    up = beside.parent if base in beside.parents else base  # train/annotations and train/images
    return [
        images / below, images, beside, base / "images" / below, base / "images",
        up / images.name, up / "images", base,
    ]  # fmt: skip
