"""Pictures: boxes where they belong, worst first, upright."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from detpipe.evaluate.gallery import (
    DETECTION_COLOUR,
    TRUTH_COLOUR,
    draw,
    gallery,
    rank,
)


def where(picture, colour, tolerance=0):
    """Bounding box x1 y1 x2 y2 (exclusive) of the pixels of a colour."""
    off = np.abs(np.asarray(picture).astype(int) - colour).max(axis=-1)
    y, x = np.nonzero(off <= tolerance)
    return (x.min(), y.min(), x.max() + 1, y.max() + 1) if len(x) else None


@pytest.fixture
def black():
    return np.zeros((100, 200, 3), dtype=np.uint8)


def test_boxes_are_drawn_where_they_are(make, black):
    truth = make.boxes(("1", "cat", 50, 40, 150, 80))
    found = make.detections(("1", "cat", 52, 41, 152, 82, 0.9))
    # the truth is found, so it bears no label: its pixels are its rectangle, under the detection's
    picture = draw(black, truth, None)
    assert where(draw(black, truth, found.iloc[:0]), TRUTH_COLOUR) == where(picture, TRUTH_COLOUR)
    assert where(picture, TRUTH_COLOUR)[:3] == (50, 40, 150)
    assert where(draw(black, truth, found), TRUTH_COLOUR) == (50, 40, 150, 80)
    assert where(draw(black, None, found), DETECTION_COLOUR)[2:] == (152, 82)
    assert black.sum() == 0 and picture.size == (200, 100) and picture.mode == "RGB"


def test_only_missed_truth_bears_its_name(make, black):
    truth = make.boxes(("1", "cat", 50, 20, 150, 60))
    for class_name, box, labelled in (
        ("cat", (50, 20, 150, 60), False),
        ("dog", (50, 20, 150, 60), True),
        ("cat", (100, 20, 200, 60), True),
    ):
        found = make.detections(("1", class_name, *box, 0.9))
        green = (np.asarray(draw(black, truth, found)) == TRUTH_COLOUR).all(axis=-1)
        assert green[60:].any() == labelled  # the name would stand below the box


def test_shrinking_keeps_boxes_in_place_and_the_image_untouched(make, black):
    image = Image.fromarray(black)
    found = make.detections(("1", "cat", 50, 40, 150, 80, 0.9))
    truth = make.boxes(("1", "cat", 50, 40, 150, 80))
    picture = draw(image, truth, None, longest_side=100)
    assert picture.size == (100, 50)
    assert where(picture, TRUTH_COLOUR)[:3] == (25, 20, 75)
    draw(image, truth, found)
    assert image.getextrema() == ((0, 0), (0, 0), (0, 0))


def test_labels_stay_inside_the_picture(make, black):
    found = make.detections(("1", "a rather long class name", 180, 0, 200, 10, 0.9))
    x1, y1, x2, _ = where(draw(black, None, found), DETECTION_COLOUR)
    assert x1 < 150 and (y1, x2) == (0, 200)


@pytest.fixture
def folder(make, tmp_path):
    """Four images: all found, one of two found, wrong and missed, nothing there."""
    images = make.images(["good", "half", "bad", "empty"])
    for i, path in enumerate(images["path"]):
        Image.new("RGB", (200, 100), (0, 0, 40 * i)).save(tmp_path / path)
    boxes = make.boxes(
        ("good", "cat", 0, 0, 50, 50), ("half", "cat", 0, 0, 50, 50),
        ("half", "dog", 60, 0, 99, 50), ("bad", "cat", 0, 0, 50, 50),
    )  # fmt: skip
    detections = make.detections(
        ("good", "cat", 0, 0, 50, 50, 0.9), ("half", "cat", 0, 0, 50, 50, 0.9),
        ("bad", "dog", 0, 0, 50, 50, 0.9), ("good", "dog", 0, 0, 9, 9, 0.29),
    )  # fmt: skip
    return images, boxes, detections, tmp_path


def test_rank_counts_by_hand(folder):
    table = rank(*folder[:3])
    assert table["image_id"].tolist() == ["bad", "half", "empty", "good"]
    assert table[["right", "wrong", "missed"]].to_numpy().tolist() == [
        [0, 1, 1], [1, 0, 1], [0, 0, 0], [1, 0, 0]
    ]  # fmt: skip
    assert table["f1"].tolist() == pytest.approx([0, 2 / 3, 1, 1])
    assert table["path"].tolist() == ["bad.jpg", "half.jpg", "empty.jpg", "good.jpg"]
    faint = rank(*folder[:3], score_threshold=0.2).set_index("image_id")
    assert faint.loc["good", "f1"] == pytest.approx(2 / 3)


def test_of_equal_f1_more_mistakes_are_worse(make):
    boxes = make.boxes(("1", "cat", 0, 0, 9, 9), *[("2", "cat", x, 0, x + 9, 9) for x in (0, 20)])
    table = rank(make.images(["1", "2"]), boxes, make.detections())
    assert table["image_id"].tolist() == ["2", "1"] and table["f1"].tolist() == [0, 0]


def test_rank_without_anything(make):
    images = make.images(["1", "2"])
    assert rank(images, make.boxes(), make.detections())["f1"].tolist() == [1, 1]
    assert rank(images.iloc[:0], make.boxes(), make.detections()).empty


def test_rank_leaves_crowds_out(make):
    boxes = make.boxes(("1", "cat", 0, 0, 50, 50), iscrowd=True)
    found = make.detections(("1", "cat", 0, 0, 40, 40, 0.9))
    assert rank(make.images(["1"]), boxes, found).iloc[0].tolist()[2:] == [1, 0, 0, 0]


def test_ranking_of_real_data_adds_up(coco100):
    images, boxes, detections, _ = coco100.tables
    table = rank(images, boxes, detections, score_threshold=0)
    assert sorted(table["image_id"]) == sorted(images["image_id"])
    assert table["f1"].is_monotonic_increasing
    assert (table["right"] + table["missed"]).sum() == (~boxes["iscrowd"]).sum()


def read(path):
    return np.asarray(Image.open(path).convert("RGB"))


def blues(sheet):
    """Which of the fixture's images a sheet shows, from their shades of blue."""
    pixels = np.asarray(sheet).astype(int)
    plain = pixels[..., :2].max(axis=-1) < 12  # JPEG is not exact
    shades = np.round(pixels[..., 2][plain] / 40)
    return {int(s) for s in np.unique(shades) if (shades == s).sum() > 2000}


@pytest.mark.parametrize("kind, expected", [("worst", {1, 2}), ("best", {0, 3}), ("random", None)])
def test_a_sheet_shows_the_pictures_it_says(folder, kind, expected):
    sheet = gallery(*folder, read=read, kind=kind, count=2)
    assert expected is None or blues(sheet) == expected
    assert len(blues(sheet)) == 2
    again = gallery(*folder, read=read, kind=kind, count=2)
    assert sheet.tobytes() == again.tobytes()


def test_a_sheet_of_no_images_is_a_picture(folder):
    images, boxes, detections, root = folder
    sheet = gallery(
        images.iloc[:0], boxes.iloc[:0], detections.iloc[:0], root, read=read, kind="worst"
    )
    assert sheet.width > 0 and sheet.height > 0
