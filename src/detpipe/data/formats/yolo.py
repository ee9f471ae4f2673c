"""Reader of YOLO data sets: ``data.yaml``, images, and one text file of shares an image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from detpipe.core.errors import DataError
from detpipe.data.formats.base import (
    IMAGE_SUFFIXES,
    Annotations,
    IssueLog,
    existing_folder,
    make_tables,
    relative,
    sample,
    unique_ids,
)
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
    reader = _Labels(names, root, log)
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
        content = yaml.safe_load(path.read_text("utf-8-sig"))
    except yaml.YAMLError as error:
        raise DataError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} must hold keys and values (names:, train:, val:)")
    return content


def _class_names(content: Mapping[str, Any], path: Path, log: IssueLog) -> dict[int, str]:
    """Number in the label files → class name, in order of the numbers."""
    names, count = content.get("names"), content.get("nc")
    if names is None and count is None:
        raise DataError(f"{path} lacks 'names': a list, or a mapping of numbers to class names")
    if names is None:
        names = [str(number) for number in range(int(count or 0))]
        log.add("warning", "no_class_names", file=path.name, action="numbers serve as names")
    pairs = names.items() if isinstance(names, dict) else enumerate(names)
    try:
        found = {int(number): str(name) for number, name in sorted(pairs, key=lambda p: int(p[0]))}
    except (TypeError, ValueError) as error:
        raise DataError(f"{path}: 'names' must map whole numbers to class names") from error
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
    parts = [part for part in Path(entry).parts if part not in ("..", ".", "/")]
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


# --- label files -------------------------------------------------------------------------------


class _Labels:
    """Reads label files and remembers what there is to say about all of them."""

    def __init__(self, names: Mapping[int, str], root: Path, log: IssueLog) -> None:
        self.names, self.root, self.log = names, root, log
        self.without_file: list[str] = []
        self.polygons = 0
        self.beyond = 0

    def boxes(self, image: Path, image_id: str, width: int, height: int) -> list[dict[str, object]]:
        """Rows of the ``boxes`` table for one image."""
        path = _label_file(image)
        if path is None:
            self.without_file.append(relative(image, self.root))
            return []
        rows = []
        for number, line in enumerate(path.read_text("utf-8-sig").splitlines(), 1):
            if not line.strip():
                continue
            source = f"{relative(path, self.root)}:{number}"
            try:
                index, shares = self._line(line.split())
            except ValueError as error:
                self.log.add(
                    "error", "malformed_line", file=source, image_id=image_id, value=line.strip(),
                    action=f"{error}",
                )  # fmt: skip
                continue
            if min(shares) < -1e-6 or max(shares) > 1 + 1e-6:
                self.beyond += 1
                self.log.add(
                    "warning", "share_beyond_0_1", file=source, image_id=image_id,
                    annotation_id=f"{image_id}-{number}", value=line.strip(),
                    action="the box is treated as one that lies outside its image",
                )  # fmt: skip
            x1, x2 = shares[0] * width, shares[2] * width
            y1, y2 = shares[1] * height, shares[3] * height
            rows.append(
                {
                    "image_id": image_id, "annotation_id": f"{image_id}-{number}",
                    "class_name": self.names.get(index, f"unknown class number {index}"),
                    "x1": x1, "y1": y1, "x2": x2, "y2": y2, "area": (x2 - x1) * (y2 - y1),
                    "iscrowd": False, "difficult": False,
                }
            )  # fmt: skip
        return rows

    def _line(self, words: Sequence[str]) -> tuple[int, tuple[float, float, float, float]]:
        """(class number, x1 y1 x2 y2 as shares of the image)."""
        values = [float(word) for word in words]
        if not values[0].is_integer():
            raise ValueError("the class number must be a whole number")
        index, numbers = int(values[0]), values[1:]
        if len(numbers) == 4:
            x, y, w, h = numbers
            return index, (x - w / 2, y - h / 2, x + w / 2, y + h / 2)
        if len(numbers) >= 6 and len(numbers) % 2 == 0:
            self.polygons += 1
            xs, ys = numbers[0::2], numbers[1::2]
            return index, (min(xs), min(ys), max(xs), max(ys))
        raise ValueError(
            "write 'class x y width height', or 'class' and three or more points of a polygon"
        )

    def finish(self, boxes: Sequence[object]) -> None:
        """Logs what concerns all files."""
        if self.without_file:
            self.log.add(
                "info", "no_label_file",
                value=f"{len(self.without_file)} image(s): {sample(self.without_file)}",
                action="taken as images without objects",
            )  # fmt: skip
        if self.polygons:
            self.log.add("info", "polygons", value=self.polygons, action="their boxes are used")
        if boxes and self.beyond > len(boxes) / 2:
            self.log.add(
                "error", "labels_in_pixels", value=f"{self.beyond} of {len(boxes)} boxes",
                action="coordinates must be shares of the image (0..1): divide x and width by the "
                "image's width, y and height by its height",
            )  # fmt: skip


def _label_file(image: Path) -> Path | None:
    """The text file of an image, or None."""
    parts = list(image.parts)
    places = [image.with_suffix(".txt")]
    for at in range(len(parts) - 2, -1, -1):
        if parts[at] == "images":
            moved = [*parts[:at], "labels", *parts[at + 1 :]]
            places.insert(0, Path(*moved).with_suffix(".txt"))
            break
    return next((place for place in places if place.is_file()), None)
