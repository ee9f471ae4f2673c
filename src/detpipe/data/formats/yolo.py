"""Reader of YOLO data sets: ``data.yaml``, images, and one text file of shares an image."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PureWindowsPath
from typing import Any

from detpipe.core.errors import DataError
from detpipe.data.formats.base import (
    IMAGE_SUFFIXES,
    Annotations,
    IssueLog,
    clean_name,
    existing_folder,
    make_tables,
    relative,
    unique_ids,
)
from detpipe.data.formats.yolo_labels import Labels
from detpipe.data.image import upright_size

_SPLITS = ("train", "val", "valid", "validation", "test")


def read(root: Path, *, data: str = "data.yaml") -> Annotations:
    """Reads a YOLO data set (Ultralytics' layout, Roboflow's exports).

    Args:
        root: the data set's folder.
        data: the YAML file in it, with ``names`` (a list or a mapping), ``train``, ``val``,
            ``test`` (a folder, a text file of image paths, or a list of these) and perhaps
            ``path``, the folder they are relative to. A path that does not exist, as Roboflow's
            ``../train/images``, is looked up in the YAML's folder without its leading folders.

    Labels lie where ``images`` in an image's path becomes ``labels``, or beside the image. An image
    without label file has no objects. Polygons become their boxes. Coordinates are shares of the
    upright image.

    Raises:
        DataError: no YAML, no names, no images. Label lines that cannot be read are errors in
            ``issues``.
    """
    root = existing_folder(root)
    log = IssueLog()
    path = root / data
    if not path.is_file():
        near = sorted(p.name for p in root.glob("*.y*ml"))
        raise DataError(
            f"there is no {path} (YAML files there: {', '.join(near) or 'none'}); name it with the "
            f"reader's option 'data'"
        )
    content = _load(path)
    names = _class_names(content, path, log)
    files: list[tuple[str, Path]] = []
    for split in _SPLITS:
        if content.get(split):
            files += [(split, image) for image in _split_images(content, split, path, root, log)]
    if not files:
        raise DataError(f"{path} names no images: it needs train:, val: or test:")
    stems = [image.stem for _, image in files]
    places = [Path(relative(image, root)).with_suffix("").as_posix() for _, image in files]
    ids = unique_ids(
        [stems, places, [f"{s}-{p}" for (s, _), p in zip(files, places, strict=True)]]
    )  # fmt: skip
    reader = Labels(names, root, log)
    image_rows: list[dict[str, object]] = []
    box_rows: list[dict[str, object]] = []
    for image_id, (split, image) in zip(ids, files, strict=True):
        height, width = _size(image)
        image_rows.append(
            {
                "image_id": image_id, "path": relative(image, root),
                "width": width, "height": height, "split": split,
            }
        )  # fmt: skip
        box_rows += reader.boxes(image, image_id, width, height)
    reader.finish(box_rows)
    return make_tables(image_rows, box_rows, list(names.values()), log)


def _size(image: Path) -> tuple[int, int]:
    try:
        return upright_size(image)
    except DataError:
        return 0, 0  # the check names it


# --- data.yaml ---------------------------------------------------------------------------------


def _load(path: Path) -> dict[str, Any]:
    import yaml

    try:
        text = path.read_text("utf-8-sig")
        content = yaml.safe_load(text)
        # Once more without YAML's kinds: a class may be called NO, null or 1.0.
        words = yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506 - knows text only
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not valid YAML in UTF-8: {error}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} must hold keys and values (names:, train:, val:)")
    if content.get("names") is not None:
        content["names"] = words["names"]
    return content


def _class_names(content: Mapping[str, Any], path: Path, log: IssueLog) -> dict[int, str]:
    """Number in the label files → class name, in order of the numbers."""
    names, count = content.get("names"), content.get("nc")
    if names is None and count is None:
        raise DataError(f"{path} lacks 'names': a list, or a mapping of numbers to class names")
    if names is None:
        names = [str(number) for number in range(int(count or 0))]
        log.add("warning", "no_class_names", file=path.name, action="numbers serve as names")
    if not isinstance(names, (dict, list)):
        raise DataError(f"{path}: 'names' must be a list or a mapping, not '{names}'")
    pairs = names.items() if isinstance(names, dict) else enumerate(names)
    try:
        found = {int(number): str(name) for number, name in sorted(pairs, key=lambda p: int(p[0]))}
    except (TypeError, ValueError) as error:
        raise DataError(f"{path}: 'names' must map whole numbers to class names") from error
    nameless = [str(number) for number, name in found.items() if not clean_name(name)]
    if nameless:
        raise DataError(f"{path}: these class numbers have no name: {', '.join(nameless)}")
    double = sorted({name for name in found.values() if list(found.values()).count(name) > 1})
    if double:
        raise DataError(f"{path}: class names must differ, these repeat: {', '.join(double)}")
    if count is not None and int(count) != len(found):
        log.add(
            "warning", "class_count", file=path.name, value=f"nc: {count}, names: {len(found)}",
            action="names count",
        )  # fmt: skip
    return found


def _split_images(
    content: Mapping[str, Any], split: str, path: Path, root: Path, log: IssueLog
) -> list[Path]:
    """The images of one split, sorted."""
    entries = content[split] if isinstance(content[split], list) else [content[split]]
    images: list[Path] = []
    for entry in entries:
        place, tried = _place(str(entry), str(content.get("path") or ""), path.parent)
        if place is None:
            raise DataError(
                f"{path}: '{split}: {entry}' was not found; tried {', '.join(map(str, tried))}"
            )
        if place != tried[0]:
            log.add(
                "info", "path_assumed", file=relative(path, root), value=f"{split}: {entry}",
                action=f"read from {relative(place, root)}",
            )  # fmt: skip
        images += _list_file(place) if place.is_file() else _folder(place)
    if not images:
        log.add("warning", "split_without_images", file=path.name, value=split)
    return sorted(dict.fromkeys(images))


def _place(entry: str, base: str, folder: Path) -> tuple[Path | None, list[Path]]:
    """Where ``entry`` is, and every place tried, the one that the YAML means first."""
    candidates = [folder / base / entry, folder / entry]
    written = PureWindowsPath(entry)  # splits at both / and \
    parts = [part for part in written.parts if part not in ("..", ".", written.anchor)]
    candidates += [folder.joinpath(*parts[start:]) for start in range(len(parts))]
    # "train: train" may mean train/images; a plain folder of images comes first.
    candidates += [folder.joinpath(*parts, "images"), folder.joinpath("images", *parts)]
    tried = list(dict.fromkeys(candidates))
    return next((place for place in tried if place.exists()), None), tried


def _folder(place: Path) -> list[Path]:
    return [p for p in place.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES and p.is_file()]


def _list_file(place: Path) -> list[Path]:
    lines = [line.strip() for line in place.read_text("utf-8-sig").splitlines()]
    return [place.parent / line for line in lines if line]
