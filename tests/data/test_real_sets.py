"""Seven real data sets, from their folders through the check: what their READMEs tell is found.

Numbers are the READMEs' (counted there without detpipe) or are worked out here from the files. A
finding that no README speaks of would fail these tests as well: the rules are compared whole.
"""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from detpipe.core.errors import DataError
from detpipe.core.tables import BOX_COLUMNS
from detpipe.data.check import inspect
from detpipe.data.config import DataConfig
from detpipe.data.formats.base import Annotations
from detpipe.data.split import split
from detpipe.evaluate.self_test import self_test
from tests.data.writers.sets import FORMATS, write

EXIF_ORIENTATION = 274
TREES = "2018_SJER_3_252000_4107000_image_477"
TREE_FILES = (
    "OSBS_029.csv", "example.csv", "testfile_multi.csv", f"{TREES}_truth.csv",
    "2019_BLAN_3_751000_4330000_image_crop_bbox.csv",
)  # fmt: skip
"""One for each picture of trees."""


def configured(reader: object, **data: object) -> DataConfig:
    check = {"workers": 0} | dict(data.pop("check", {}))
    return DataConfig.model_validate({"reader": reader, "check": check, **data})


def read_and_checked(root: Path, reader: object, **data: object) -> tuple[Annotations, Annotations]:
    """What the reader gives, and what is left of it by the default rules."""
    config = configured(reader, **data)
    found = config.reader.build(root)
    return found, inspect(found, root, config.check, max_detections=100)


def rules(found: Annotations) -> dict[str, int]:
    """severity rule → number of findings."""
    return (found.issues["severity"] + " " + found.issues["rule"]).value_counts().to_dict()


def values(found: Annotations, rule: str) -> list[str]:
    return found.issues.loc[found.issues["rule"] == rule, "value"].tolist()


def counts(found: Annotations) -> dict[str, int]:
    return found.boxes["class_name"].value_counts().to_dict()


def per_image(found: Annotations) -> pd.Series:
    return found.boxes.groupby("image_id").size()


def perfect(found: Annotations, *, max_detections: int = 100) -> dict[str, float]:
    """split → AP of the truth as detections."""
    table = self_test(found.images, found.boxes, found.classes, max_detections=max_detections)
    whole = table[table["class_name"] == ""]
    return dict(zip(whole["dataset"], whole["AP"].round(6), strict=True))


# --- Pascal VOC --------------------------------------------------------------------------------


def test_bccd(shared_data):
    root = shared_data / "bccd_voc"
    found, checked = read_and_checked(root, "voc")
    assert (len(found.images), len(found.boxes)) == (364, 4888)
    assert counts(found) == {"RBC": 4155, "WBC": 372, "Platelets": 361}
    assert found.images["split"].value_counts().to_dict() == {"train": 205, "val": 87, "test": 72}
    # The lists are disjoint and complete, and train + val is trainval: no rule speaks of them. An
    # absolute <path> is of no consequence. Two fields of cells that touch look alike.
    listed = (root / "BCCD/ImageSets/Main/trainval.txt").read_text().split()
    assert set(listed) == set(found.images["image_id"][found.images["split"] != "test"])
    text = (root / "BCCD/Annotations/BloodImage_00000.xml").read_text()
    assert re.search("<path>/", text)
    assert rules(checked) == {
        "warning box_without_area": 2, "info truncated_objects": 1,
        "warning near_duplicate_in_two_splits": 1,
    }  # fmt: skip
    assert values(checked, "box_without_area") == [
        "RBC (504, 337, 504, 337)", "RBC (181, 329, 181, 329)",
    ]  # fmt: skip
    assert values(checked, "truncated_objects") == ["1131 of 4888 objects"]
    assert (len(checked.images), len(checked.boxes)) == (364, 4886)
    assert per_image(found).max() == 30


def test_bccd_by_its_csv(shared_data):
    """``test.csv`` holds all splits, and is called after one: what it is taken for is said."""
    root = shared_data / "bccd_voc"
    reader = {"use": "csv", "images": "BCCD/JPEGImages"}
    found, checked = read_and_checked(root, reader)
    assert (len(found.images), len(found.boxes), len(checked.boxes)) == (364, 4888, 4886)
    assert rules(checked) == {"warning box_without_area": 2, "info columns": 1}
    assert "class_name = cell_type" in values(checked, "columns")[0]
    voc = configured("voc").reader.build(root).boxes
    corners = [  # the csv's columns are xmin, xmax, ymin, ymax
        sorted(map(tuple, boxes[["class_name", *BOX_COLUMNS]].to_numpy().tolist()))
        for boxes in (voc, found.boxes)
    ]
    assert corners[0] == corners[1]
    assert set(found.images["split"]) == {"test"}
    drawn = split(checked.images, checked.boxes, configured(reader, split={"by": "ratio"}).split)
    assert set(drawn["split"]) == {"train", "val", "test"}


# --- csv ---------------------------------------------------------------------------------------


def test_cards(shared_data):
    root = shared_data / "cards_csv"
    found, checked = read_and_checked(root, "csv")
    assert found.images["split"].value_counts().to_dict() == {"test": 67, "train": 50}
    assert counts(checked) == {
        "nine": 43, "queen": 41, "jack": 40, "king": 37, "ace": 36, "ten": 34,
    }  # fmt: skip
    # Base names are found in the folder named like the csv; no ending had to be guessed.
    assert found.images["path"].str.endswith(".JPG").sum() == 102
    assert found.images["path"].str.endswith(".jpg").sum() == 117 - 102
    assert rules(checked) == {"info annotation_files": 1, "info columns": 2}
    sizes = set(zip(checked.images["width"], checked.images["height"], strict=True))
    assert {(378, 504), (960, 540)} <= sizes
    pd.testing.assert_frame_equal(checked.boxes, found.boxes)


def test_cards_by_their_xml(shared_data):
    root = shared_data / "cards_csv"
    found, checked = read_and_checked(root, {"use": "voc", "annotations": "images"})
    assert (len(checked.images), len(checked.boxes)) == (117, 231)
    assert rules(checked) == {"info truncated_objects": 1}  # paths of Windows do no harm
    assert "C:\\" in next((root / "images/train").glob("*.xml")).read_text()
    assert values(found, "truncated_objects") == ["5 of 231 objects"]


SCORES = "warning score_column"
DIALECTS = {  # file → classes, what is said besides the guessed columns
    "data/OSBS_029.csv": ({"Tree": 61}, {}),
    "data/testfile_deepforest.csv": ({"Tree": 61}, {}),
    "data/testfile_multi.csv": ({"Dead": 28, "Alive": 9}, {}),
    f"data/{TREES}.csv": ({"0": 7}, {SCORES: 1}),  # the label is the number 0
    f"data/{TREES}_truth.csv": ({"0": 7}, {}),
    "data/example.csv": ({"Tree": 79}, {}),
    "data/2019_BLAN_3_751000_4330000_image_crop_bbox.csv": ({"Tree": 4}, {SCORES: 1}),
    "tests/blank_annotations.csv": (
        {}, {"info empty_image_row": 1, "warning split_without_boxes": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("file", DIALECTS)
def test_trees_by_each_csv(shared_data, file):
    classes, said = DIALECTS[file]
    root = shared_data / "trees_csv"
    found, checked = read_and_checked(root, {"use": "csv", "annotations": file, "images": "data"})
    assert counts(checked) == classes
    assert rules(checked) == {"info columns": 1, "info unlisted_picture": 1, **said}
    assert len(found.images) == 1
    raw = pd.read_csv(root / file)
    assert set(raw["image_path"]) == {Path(checked.images["path"][0]).name}  # .tif beside .png
    if classes:  # corners go by the names of the columns, whatever their order
        corners = raw[["xmin", "ymin", "xmax", "ymax"]].to_numpy(dtype=float)
        np.testing.assert_array_equal(checked.boxes[BOX_COLUMNS].to_numpy(), corners)
    # Pictures with blanks and .JPG in their name, or without boxes, are named, not lost.
    pictures = {p.name for p in (root / "data").iterdir()} - {checked.images["path"][0][5:]}
    pictures = {name for name in pictures if name[-4:].lower() in (".png", ".tif", ".jpg")}
    assert values(checked, "unlisted_picture")[0].startswith(f"{len(pictures)}: ")


def test_trees_polygons_agree_with_their_boxes(shared_data):
    """A quoted geometry with commas in it does not shift columns."""
    root = shared_data / "trees_csv"
    file = "data/2019_BLAN_3_751000_4330000_image_crop_bbox.csv"
    found = configured({"use": "csv", "annotations": file, "extra": True}).reader.build(root)
    for row in found.boxes.to_dict("records"):
        points = re.findall(r"(\d+) (\d+)", json.loads(row["extra"])["geometry"])
        corners = np.array(points, dtype=float)
        assert [*corners.min(axis=0), *corners.max(axis=0)] == [row[c] for c in BOX_COLUMNS]


def test_trees_as_one_set(shared_data):
    root = shared_data / "trees_csv"
    files = [f"data/{name}" for name in TREE_FILES]
    found, checked = read_and_checked(root, {"use": "csv", "annotations": files})
    assert len(found.images) == len(TREE_FILES)
    assert counts(checked) == {"Tree": 61 + 79 + 4, "Dead": 28, "Alive": 9, "0": 7}
    pd.testing.assert_frame_equal(checked.boxes, found.boxes)
    with pytest.raises(DataError, match="cannot tell which column"):  # it has no header
        read_and_checked(root, {"use": "csv", "annotations": "data/classes.csv"})
    for reader in ("csv", "auto"):  # several sets in one folder: which is asked for
        with pytest.raises(DataError, match="testfile_multi"):
            read_and_checked(root, reader)


def test_trees_by_their_xml(shared_data, caplog):
    root = shared_data / "trees_csv"
    found, checked = read_and_checked(root, {"use": "voc", "annotations": "data"})
    assert len(found.boxes) == len(checked.boxes) == 61 + 37 + 279
    assert (checked.boxes["area"] < 32 * 32).sum() == 124
    assert "data/OSBS_029.tif" in set(found.images["path"])  # as written, though .png is there too
    assert values(checked, "many_boxes") == ["279 objects"]
    assert rules(checked) == {"warning many_boxes": 1, "info unlisted_picture": 1}
    assert perfect(checked)[""] < 100
    assert "1 image(s) hold more than evaluate.max_detections = 100" in caplog.text
    assert perfect(checked, max_detections=279) == {"": 100}


def test_a_picture_with_blanks_in_its_name_and_no_boxes(shared_data):
    root = shared_data / "trees_csv/data"
    _, checked = read_and_checked(root, "folder")
    assert "AWPE Pigeon Lake 2020 DJI_0005.JPG" in set(checked.images["path"])
    assert len(checked.images) == 8
    assert checked.boxes.empty


def test_voc_that_is_called_txt_is_named(shared_data):
    root = shared_data / "trees_csv"
    with pytest.raises(DataError, match=r"float_annotations|\.txt"):
        read_and_checked(root, {"use": "voc", "annotations": "tests"})


# --- COCO --------------------------------------------------------------------------------------


def test_chess(shared_data, capsys):
    root = shared_data / "chess_coco_roboflow"
    found, checked = read_and_checked(root, "coco")
    assert (len(checked.images), len(checked.boxes), len(found.classes)) == (29, 376, 14)
    assert rules(checked) == {"info class_without_boxes": 2, "info images_without_boxes": 1}
    assert values(checked, "class_without_boxes") == ["pieces", "bishop"]
    assert values(checked, "images_without_boxes") == ["1 of 29 in test"]
    assert len(counts(checked)) == 12
    assert per_image(checked).max() == 32
    assert not (checked.boxes[BOX_COLUMNS] % 1).any(axis=None)
    # The truth has an annotation 0: pycocotools counts its match as a miss, here it is found.
    assert perfect(checked) == {"test": 100}
    assert referee(root / "test/_annotations.coco.json") < 99.99
    capsys.readouterr()


def referee(file: Path) -> float:
    """AP of a file's truth as detections, in percent, as pycocotools reads and scores it."""
    pycocotools = pytest.importorskip("pycocotools.coco")
    from pycocotools.cocoeval import COCOeval

    truth = pycocotools.COCO(str(file))
    results = [
        {"image_id": a["image_id"], "category_id": a["category_id"], "bbox": a["bbox"], "score": 1}
        for a in truth.anns.values()
    ]
    engine = COCOeval(truth, truth.loadRes(results), "bbox")
    for step in (engine.evaluate, engine.accumulate, engine.summarize):
        step()
    return 100 * engine.stats[0]


def test_screws(shared_data):
    root = shared_data / "screws_coco_cvat"
    found, checked = read_and_checked(root, "coco")
    assert rules(checked) == {"error missing_image": 1}
    missing = checked.issues["file"].tolist()
    assert missing == ["images/screw_045.jpg"]
    assert (len(found.images), len(checked.images), len(checked.boxes)) == (5, 4, 4)
    # Upright sizes stand in the file, so three pictures that are stored on their side need no rule.
    turned = []
    for row in checked.images.to_dict("records"):
        with Image.open(root / row["path"]) as picture:
            assert picture.format == "MPO"
            stored, orientation = picture.size, picture.getexif().get(EXIF_ORIENTATION, 1)
        if orientation == 6:
            turned.append(row["path"])
            assert stored == (row["height"], row["width"]) == (4032, 3024)
    assert len(turned) == 3
    assert "images/screw_054.jpg" not in turned
    # Fractional boxes and the polygons' areas arrive as they are written.
    content = json.loads((root / "annotations/instances_test.json").read_text())
    written = {str(a["id"]): a for a in content["annotations"]}
    for row in checked.boxes.to_dict("records"):
        x, y, w, h = written[row["annotation_id"]]["bbox"]
        np.testing.assert_allclose([row[c] for c in BOX_COLUMNS], [x, y, x + w, y + h], rtol=1e-12)
        assert row["area"] == written[row["annotation_id"]]["area"] < w * h
    assert (checked.boxes[BOX_COLUMNS] % 1).any(axis=None)
    assert content["licenses"][0]["id"] == 0
    dropped = {"check": {"rules": {"missing_image": "drop"}}}
    assert rules(read_and_checked(root, "coco", **dropped)[1]) == {"warning missing_image": 1}


def test_coco_truth_without_its_pictures(shared_data, tmp_path):
    root = shared_data / "eval_truth_coco100"
    for file, (_, images, *_) in COCO_FILES.items():
        with pytest.raises(DataError, match=rf"none of the {images} image\(s\).*(?s:.*)'images'"):
            read_and_checked(root, {"use": "coco", "annotations": file})
    # One of its pictures is enough for the rest to be missing by name.
    with_one = coco_truth(root, tmp_path / "one", pictures=1)
    reader = {"use": "coco", "annotations": "instances_val2014_100.json"}
    _, checked = read_and_checked(with_one, reader)
    assert rules(checked)["error missing_image"] == 99
    assert len(checked.images) == 1


@functools.cache
def _colours(count: int) -> list[tuple[int, int, int]]:
    return [(n % 5 * 60, n // 5 % 5 * 60, n // 25 * 60) for n in range(count)]


COCO_FILES = {  # file → split in its name, images, boxes, classes, crowd regions
    "instances_val2014_100.json": ("val", 100, 839, 80, 9),
    "gt_dataset.json": ("", 3, 9, 4, 0),
}


def coco_truth(
    source: Path, folder: Path, *, file: str = "instances_val2014_100.json", pictures: int = 100
) -> Path:
    """One of the annotation files beside pictures of one colour, of the listed sizes."""
    text = (source / file).read_text()
    (folder / "images").mkdir(parents=True)
    (folder / file).write_text(text)
    listed = json.loads(text)["images"][:pictures]
    for image, colour in zip(listed, _colours(len(listed)), strict=True):
        picture = Image.new("RGB", (image["width"], image["height"]), colour)
        picture.save(folder / "images" / image["file_name"])
    return folder


@pytest.mark.parametrize("file", COCO_FILES)
def test_coco_truth(shared_data, tmp_path, file):
    part, *expected = COCO_FILES[file]
    root = coco_truth(shared_data / "eval_truth_coco100", tmp_path, file=file)
    found, checked = read_and_checked(root, {"use": "coco", "annotations": file})
    sizes = len(checked.images), len(checked.boxes), len(checked.classes)
    assert [*sizes, checked.boxes["iscrowd"].sum()] == expected
    assert not {rule for rule in rules(checked) if rule.startswith("error")}
    unused = set(found.classes["class_name"]) - set(found.boxes["class_name"])
    assert set(values(checked, "class_without_boxes")) == unused
    assert perfect(checked) == {part: 100}


# --- YOLO --------------------------------------------------------------------------------------


def test_cones(shared_data):
    root = shared_data / "cones_yolo"
    found, checked = read_and_checked(root, "yolo")
    assert found.images["split"].value_counts().to_dict() == {"train": 182, "val": 101, "test": 48}
    assert counts(checked) == {"cone": 466, "cube": 277}
    assert found.classes["class_name"].tolist() == ["cone", "cube"]
    assert set(checked.images["width"]) == set(checked.images["height"]) == {640}
    # Paths one level too high; frames of one clip in several splits. Names of Roboflow's form and
    # label files without a last newline do no harm.
    assert set(rules(checked)) == {"info path_assumed", "warning near_duplicate_in_two_splits"}
    assert values(checked, "path_assumed") == [
        "train: ../train/images", "val: ../valid/images", "test: ../test/images",
    ]  # fmt: skip
    leaks = values(checked, "near_duplicate_in_two_splits")
    assert all(re.search(r"files \((\w+ \d+, )+\w+ \d+\)", leak) for leak in leaks)
    labels = [file.read_text() for file in root.glob("*/labels/*.txt")]
    assert not any(text.endswith("\n") for text in labels)
    assert sum(len(text.splitlines()) for text in labels) == len(found.boxes)
    pd.testing.assert_frame_equal(checked.boxes, found.boxes)


# --- all of them -------------------------------------------------------------------------------

RATIO = {"by": "ratio", "train": 0.6, "val": 0.2, "test": 0.2}
SETS = {
    "bccd": ("bccd_voc", "voc", {}),
    "cards": ("cards_csv", "csv", {"split": {"keep": ["test"], **RATIO}}),
    "chess": ("chess_coco_roboflow", "coco", {"split": RATIO}),
    "cones": ("cones_yolo", "yolo", {}),
    "screws": (
        "screws_coco_cvat", "coco",
        {"split": RATIO, "check": {"rules": {"missing_image": "drop"}}},
    ),
    "trees": (
        "trees_csv",
        {"use": "csv", "annotations": [f"data/{name}" for name in TREE_FILES]},
        {"split": RATIO},
    ),
    "coco": (
        "", {"use": "coco", "annotations": "instances_val2014_100.json"}, {"split": RATIO}
    ),
}  # fmt: skip


OWN = {
    "bccd": {"train": 205, "val": 87, "test": 72}, "cones": {"train": 182, "val": 101, "test": 48},
}  # fmt: skip
"""Images by use, of the sets that are divided already."""


@pytest.fixture(scope="module")
def divided(shared_data, tmp_path_factory):
    """name → root, and the checked tables with their use: train, val or test; each made once."""

    @functools.cache
    def make(name: str) -> tuple[Path, Annotations]:
        folder, reader, data = SETS[name]
        root = shared_data / folder if folder else tmp_path_factory.mktemp("coco") / "set"
        if not folder:
            coco_truth(shared_data / "eval_truth_coco100", root)
        _, checked = read_and_checked(root, reader, **data)
        config = configured(reader, **data).split
        return root, checked._replace(images=split(checked.images, checked.boxes, config))

    return make


@pytest.mark.parametrize("name", SETS)
def test_each_is_divided_and_a_perfect_detector_scores_100(divided, name):
    _, found = divided(name)
    sizes = found.images["split"].value_counts()
    assert set(sizes.index) <= {"train", "val", "test"}
    assert sizes.to_dict() == OWN.get(name, sizes.to_dict())
    assert sizes["train"] == sizes.drop(SETS[name][2].get("split", {}).get("keep", [])).max()
    for part, ap in perfect(found).items():
        mine = found.images["image_id"][found.images["split"] == part]
        assert ap == 100 if found.boxes["image_id"].isin(mine).any() else np.isnan(ap)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("target", FORMATS)
def test_each_is_written_in_every_format_and_recognised(divided, name, target, tmp_path):
    """The written folder is read by ``auto``, checked anew, and has the same boxes by use."""
    root, found = divided(name)
    write(target, found, root, tmp_path / "out", pictures="link")
    _, back = read_and_checked(tmp_path / "out", "auto")
    assert not back.issues["severity"].eq("error").any()
    mine, theirs = by_use(found), by_use(back)
    if target == "yolo":  # has no word for a region of a crowd
        mine = by_use(found._replace(boxes=found.boxes[~found.boxes["iscrowd"]]))
    assert theirs == mine
    assert sum(mine["boxes"].values()) > 0


def by_use(found: Annotations) -> dict[str, dict]:
    """Images by use, and boxes by use and class."""
    boxes = found.boxes.merge(found.images, on="image_id")
    return {
        "images": found.images["split"].value_counts().to_dict(),
        "boxes": boxes.groupby(["split", "class_name"]).size().to_dict(),
    }
