"""Every writer against the reader of its format, on made-up and on real data sets."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from detpipe.core.tables import BOX_COLUMNS
from detpipe.data.formats.base import Annotations
from tests.data.writers.sets import FORMATS, content, differences, on_disk, read, sets, write

ALL: tuple[str, ...] = (
    "size",
    "split",
    "group",
    "class_name",
    "boxes",
    "area",
    "iscrowd",
    "difficult",
    "extra",
)
HELD = {
    "coco": ("size", "split", "group", "class_name", "boxes", "area", "iscrowd", "extra"),
    "voc": ("size", "split", "class_name", "boxes", "area", "iscrowd", "difficult", "extra"),
    "yolo": ("size", "split", "class_name", "boxes", "area", "iscrowd", "difficult"),
    "csv": ALL,
    "parquet": ALL,
}
"""Of which each format holds all that :func:`as_held` leaves."""
PIXELS = {"coco": 1e-12, "voc": 0, "yolo": 1e-4, "csv": 1e-12, "parquet": 0}


def as_held(target: str, found: Annotations) -> Annotations:
    """What is left of a set, by hand: what the format has no word for."""
    boxes = found.boxes.copy()
    if target == "coco":
        boxes["extra"] = [
            json.dumps({**json.loads(extra or "{}"), **({"difficult": 1} if difficult else {})})
            for extra, difficult in zip(boxes["extra"], boxes["difficult"], strict=True)
        ]
    if target == "voc":
        boxes["difficult"] |= boxes["iscrowd"]
    if target == "yolo":
        boxes = boxes[~boxes["iscrowd"]].assign(difficult=False)
    if target in ("voc", "yolo"):
        boxes["iscrowd"] = False
        boxes["area"] = (boxes["x2"] - boxes["x1"]) * (boxes["y2"] - boxes["y1"])
    return found._replace(boxes=boxes)


def expected_classes(target: str, found: Annotations) -> list[str]:
    listed = found.classes["class_name"].tolist()
    return sorted(found.boxes["class_name"].unique()) if target == "voc" else listed


def round_trip(target: str, found: Annotations, root: Path, folder: Path, **options) -> list[str]:
    """What is not as it was."""
    write(target, found, root, folder, **options)
    grouped = target == "coco" and found.images["group"].any()
    back = read(target, folder, **({"group": "group"} if grouped else {}))
    held = as_held(target, found)
    assert back.classes["class_name"].tolist() == expected_classes(target, found)
    return differences(
        content(held, root), content(back, folder), keys=HELD[target], pixels=PIXELS[target]
    )


def written_and_read_back(target, made):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "deep" / "source"
        found = on_disk(made, root)
        assert round_trip(target, found, root, Path(folder) / "written") == []


@pytest.mark.parametrize("target", FORMATS)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(made=sets())
def test_what_is_written_is_read_back(target, made):
    written_and_read_back(target, made)


@pytest.mark.slow
@pytest.mark.parametrize("target", FORMATS)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(made=sets())
def test_what_is_written_is_read_back_many_times(target, made):
    written_and_read_back(target, made)


@pytest.mark.parametrize("target", ["csv", "parquet"])
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(made=sets(splits=("", "valid", "test-dev", "a/b", "train_2", "é")))
def test_tables_keep_splits_of_any_name(target, made):
    written_and_read_back(target, made)


@pytest.mark.parametrize("target", ["coco", "voc", "csv", "parquet"])
def test_a_set_without_splits_stays_one(target, tmp_path):
    made = (["a.jpg", "b.jpg"], [(9, 9), (8, 9)], ["", ""], ["", ""], [box(0)], ["cat"])
    found = on_disk(made, tmp_path / "source")
    assert round_trip(target, found, tmp_path / "source", tmp_path / "written") == []


def box(image: int, **more):
    corners = {"x1": 1.0, "y1": 2.0, "x2": 6.5, "y2": 7.0, "area": 27.5}
    flags = {"iscrowd": False, "difficult": False, "extra": ""}
    return {"image": image, "class_name": "cat", **corners, **flags, **more}


def test_coco_files_keep_splits_of_any_name_where_the_reader_is_told(tmp_path):
    splits = ["test-dev", "a/b", "", "test"]
    paths = [f"{n}/x.jpg" for n in range(4)]
    made = (paths, [(9, 9), (8, 9), (7, 9), (6, 9)], splits, [""] * 4, [box(1)], ["cat"])
    found = on_disk(made, tmp_path / "source")
    write("coco", found, tmp_path / "source", tmp_path / "out")
    names = {"test-dev": "test-dev", "a/b": "a_b", "": "all", "test": "test"}
    files = {split: f"annotations/instances_{name}.json" for split, name in names.items()}
    back = read("coco", tmp_path / "out", annotations=files)
    got, expected = content(back, tmp_path / "out"), content(found, tmp_path / "source")
    assert differences(expected, got, keys=("size", "split", "boxes"), pixels=0) == []


@pytest.mark.parametrize("target", ["coco", "voc", "csv", "parquet"])
def test_pictures_left_where_they_are_are_found_from_the_new_folder(target, tmp_path):
    paths = ["a/x y.jpg", "b/x y.png"]
    made = (paths, [(9, 9), (8, 9)], ["train", "val"], ["", ""], [box(1)], ["cat"])
    root = tmp_path / "source"
    found = on_disk(made, root)
    assert round_trip(target, found, root, tmp_path / "new/written", pictures="none") == []
    pictures = [p for p in (tmp_path / "new").rglob("*") if p.suffix in (".jpg", ".png")]
    assert pictures == []


@pytest.mark.parametrize("target", FORMATS)
def test_links_lead_to_the_pictures(target, tmp_path):
    made = (["a.jpg", "b/a.jpg"], [(9, 9), (8, 9)], ["train"] * 2, ["", ""], [box(1)], ["cat"])
    root = tmp_path / "source"
    found = on_disk(made, root)
    assert round_trip(target, found, root, tmp_path / "written", pictures="link") == []
    links = {p.resolve() for p in (tmp_path / "written").rglob("*") if p.is_symlink()}
    assert links == {(root / "a.jpg").resolve(), (root / "b/a.jpg").resolve()}


# --- real data sets ----------------------------------------------------------------------------

REAL = {
    "bccd": ("bccd_voc", "voc", {}),
    "cards": ("cards_csv", "csv", {}),
    "chess": ("chess_coco_roboflow", "coco", {}),
    "cones": ("cones_yolo", "yolo", {}),
    "screws": ("screws_coco_cvat", "coco", {}),
    "trees": (
        "trees_csv", "csv",
        {"annotations": ["data/OSBS_029.csv", "data/testfile_multi.csv"], "images": "data"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("target", FORMATS)
def test_real_sets_are_read_back(target, name, shared_data, tmp_path):
    folder, source, options = REAL[name]
    root = shared_data / folder
    found = present(read(source, root, **options), root)
    splits = found.images["split"]
    if target == "yolo":
        found = found._replace(images=found.images.assign(split=splits.replace("", "train")))
    write(target, found, root, tmp_path / "written", pictures="link")
    back = read(target, tmp_path / "written")
    mine, theirs = summary(as_held(target, found)), summary(back)
    assert mine["boxes"] > 0
    assert {k: v for k, v in mine.items() if k != "corners"} == {
        k: v for k, v in theirs.items() if k != "corners"
    }
    np.testing.assert_allclose(theirs["corners"], mine["corners"], atol=max(PIXELS[target], 1e-9))


def present(found: Annotations, root: Path) -> Annotations:
    """Without the images whose file is not there, and with the sizes of the files."""
    from detpipe.data.writers.base import writable

    images = found.images[[(root / path).is_file() for path in found.images["path"]]]
    boxes = found.boxes[found.boxes["image_id"].isin(images["image_id"])]
    return writable(found._replace(images=images.reset_index(drop=True), boxes=boxes), root)


def summary(found: Annotations) -> dict:
    """Counts by split and class, and all corners in order of their values."""
    table = found.boxes.merge(found.images, on="image_id")
    counts = table.groupby(["split", "class_name", "width", "height"]).size()
    corners = table[BOX_COLUMNS].to_numpy()
    order = np.lexsort(np.round(corners, 2).T)
    return {
        "images": found.images.groupby(["split", "width", "height"]).size().to_dict(),
        "by class": counts.to_dict(), "boxes": len(table), "corners": corners[order],
    }  # fmt: skip
