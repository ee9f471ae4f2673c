"""YOLO's label files: one line of shares an object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from detpipe.data.formats.base import IssueLog, relative, sample


class Labels:
    """Reads label files and remembers what there is to say about all of them."""

    def __init__(self, names: Mapping[int, str], root: Path, log: IssueLog) -> None:
        self.names, self.root, self.log = names, root, log
        self.without_file: list[Path] = []
        self.with_file: set[Path] = set()
        self.polygons = 0
        self.beyond = 0

    def boxes(self, image: Path, image_id: str, width: int, height: int) -> list[dict[str, object]]:
        """Rows of the ``boxes`` table for one image."""
        path = label_file(image)
        if path is None:
            self.without_file.append(image)
            return []
        self.with_file.add(image.parent)
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
            self._say_without_file()
        if self.polygons:
            self.log.add("info", "polygons", value=self.polygons, action="their boxes are used")
        if boxes and self.beyond > len(boxes) / 2:
            self.log.add(
                "error", "labels_in_pixels", value=f"{self.beyond} of {len(boxes)} boxes",
                action="coordinates must be shares of the image (0..1): divide x and width by the "
                "image's width, y and height by its height",
            )  # fmt: skip

    def _say_without_file(self) -> None:
        names = [relative(image, self.root) for image in self.without_file]
        whole = {p.parent: p for p in self.without_file if p.parent not in self.with_file}
        for folder, image in whole.items():
            places = ", ".join(relative(place, self.root) for place in label_places(image))
            self.log.add(
                "warning" if self.with_file else "error", "no_labels",
                file=relative(folder, self.root),
                value=f"not one of its images has a label file; looked for {places}",
                action="taken as images without objects" if self.with_file
                else "put the label files there",
            )  # fmt: skip
        self.log.add(
            "info", "no_label_file", value=f"{len(names)} image(s): {sample(names)}",
            action="taken as images without objects",
        )  # fmt: skip


def label_file(image: Path) -> Path | None:
    """The text file of an image, or None."""
    return next((place for place in label_places(image) if place.is_file()), None)


def label_places(image: Path) -> list[Path]:
    """Where the text file of an image may lie, best first."""
    parts = list(image.parts)
    places = [image.with_suffix(".txt")]
    for at in range(len(parts) - 2, -1, -1):
        if parts[at] == "images":
            moved = [*parts[:at], "labels", *parts[at + 1 :]]
            places.insert(0, Path(*moved).with_suffix(".txt"))
            break
    return places
