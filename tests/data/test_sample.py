from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO

from detpipe.core.errors import ConfigError, DataError
from detpipe.data import sample
from detpipe.data.formats.base import Annotations


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Annotations]:
    root = tmp_path_factory.mktemp("raw") / "sample"
    return root, sample.read(root, images=80)


def contents(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def test_is_a_coco_data_set_without_faults(made: tuple[Path, Annotations]) -> None:
    root, tables = made
    assert tables.issues.empty
    assert tables.images["split"].value_counts().to_dict() == {"train": 56, "val": 12, "test": 12}
    assert tables.classes["class_name"].tolist() == list(sample.CLASSES)
    truth = [COCO(str(file)) for file in sorted((root / "annotations").glob("*.json"))]
    assert sum(len(coco.anns) for coco in truth) == len(tables.boxes)
    assert sum(len(coco.imgs) for coco in truth) == len(tables.images)
    ids = [number for coco in truth for number in coco.anns]
    assert len(set(ids)) == len(ids)


def test_every_class_many_sizes_and_some_empty_pictures(made: tuple[Path, Annotations]) -> None:
    _, (images, boxes, _, _) = made
    assert boxes["class_name"].value_counts().min() >= 10
    empty = set(images["image_id"]) - set(boxes["image_id"])
    assert 2 <= len(empty) < 20
    sides = np.sqrt((boxes["x2"] - boxes["x1"]) * (boxes["y2"] - boxes["y1"]))
    assert sides.min() < 25
    assert sides.max() > 70


def test_boxes_are_tight_and_inside(made: tuple[Path, Annotations]) -> None:
    root, (images, boxes, _, _) = made
    assert (boxes[["x1", "y1"]] >= 0).all(axis=None)
    assert (boxes[["x2", "y2"]] <= 192).all(axis=None)
    sides = (boxes["x2"] - boxes["x1"]) * (boxes["y2"] - boxes["y1"])
    assert (boxes["area"] <= sides).all()
    assert (boxes["area"] >= 0.2 * sides).all()
    for row in images.itertuples():
        assert Image.open(root / row.path).size == (192, 192) == (row.width, row.height)


def test_the_visible_edge_lies_at_the_box(made: tuple[Path, Annotations]) -> None:
    """Across a box's border the picture changes more than it does a few pixels further out."""
    root, (images, boxes, _, _) = made
    paths = images.set_index("image_id")["path"]
    at_border, outside = [], []
    for row in boxes[boxes["class_name"] == "square"].itertuples():
        pixels = np.asarray(Image.open(root / paths[row.image_id])).astype(float)
        middle, x = int((row.y1 + row.y2) / 2), int(row.x1)
        if x < 12 or row.x2 - row.x1 < 20:
            continue
        rows = pixels[middle - 2 : middle + 3].mean(0)
        at_border.append(np.abs(rows[x - 2] - rows[min(x + 6, 191)]).max())
        outside.append(np.abs(rows[x - 10] - rows[x - 2]).max())
    assert len(at_border) > 10
    assert np.median(at_border) > 2 * np.median(outside)


def test_same_seed_same_set(tmp_path: Path) -> None:
    for name, seed in (("first", 0), ("again", 0), ("other", 1)):
        sample.read(tmp_path / name, images=20, seed=seed)
    first, again, other = (contents(tmp_path / name) for name in ("first", "again", "other"))
    assert first == again
    assert first.keys() == other.keys()
    assert not set(first.values()) & set(other.values())


def test_annotations_are_the_same_on_every_machine(made: tuple[Path, Annotations]) -> None:
    """The first picture's boxes, worked out once; another result means other data for everybody."""
    _, (_, boxes, _, _) = made
    first = boxes[boxes["image_id"] == "1"]
    found = first[["class_name", "x1", "y1", "x2", "y2", "area"]].to_numpy().tolist()
    assert found == FIRST_PICTURE


FIRST_PICTURE = [
    ["ring", 53.0, 118.0, 108.0, 173.0, 1946.0],
    ["ring", 16.0, 0.0, 73.0, 58.0, 2078.0],
    ["triangle", 20.0, 161.0, 44.0, 183.0, 274.0],
    ["ring", 128.0, 59.0, 164.0, 96.0, 847.0],
    ["square", 45.0, 65.0, 68.0, 88.0, 453.0],
    ["ring", 113.0, 141.0, 168.0, 192.0, 1826.0],
]


def test_second_read_changes_nothing(made: tuple[Path, Annotations]) -> None:
    root, tables = made
    before = {p: p.stat().st_mtime_ns for p in root.rglob("*")}
    again = sample.read(root, images=80)
    assert {p: p.stat().st_mtime_ns for p in root.rglob("*")} == before
    assert again.boxes.equals(tables.boxes)
    assert sorted(p.name for p in root.parent.iterdir()) == [root.name]  # no workshop left


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    assert len(sample.read(tmp_path, images=20).images) == 20
    assert "bbox [x, y, width, height]" in (tmp_path / "README.txt").read_text()


def test_somebody_elses_folder_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(DataError, match="not the sample set"):
        sample.read(tmp_path)
    assert contents(tmp_path).keys() == {"mine.txt"}
    with pytest.raises(DataError, match="not the sample set"):
        sample.read(tmp_path / "mine.txt")


def test_other_settings_are_refused(made: tuple[Path, Annotations]) -> None:
    root, _ = made
    before = contents(root)
    with pytest.raises(DataError, match="other settings"):
        sample.read(root, images=80, seed=5)
    assert contents(root) == before


def test_nothing_is_left_of_a_set_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(json, "dumps", full)
    with pytest.raises(OSError, match="no space"):
        sample.read(tmp_path / "sample", images=20)
    assert list(tmp_path.iterdir()) == []


def test_impossible_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="20 or more"):
        sample.read(tmp_path / "s", images=3)
