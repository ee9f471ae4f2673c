"""Pictures: boxes where they belong, worst first, upright."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from detpipe.core.errors import DataError
from detpipe.evaluate.errors import ERRORS, kinds
from detpipe.evaluate.gallery import (
    DETECTION_COLOUR,
    EMPHASIS_COLOUR,
    TILE,
    TRUTH_COLOUR,
    Tile,
    draw,
    sheet,
    tiles,
)
from detpipe.evaluate.per_image import per_image


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


def test_what_is_emphasised_is_magenta_and_alone_bears_a_name(make, black):
    truth = make.boxes(("1", "cat", 20, 50, 60, 90), ("1", "dog", 120, 50, 160, 90))
    found = make.detections(("1", "dog", 20, 50, 60, 90, 0.9), ("1", "dog", 120, 50, 160, 90, 0.8))
    table = kinds(make.images(["1"]), truth, found, make.classes("cat", "dog"))
    wrong = table[table["kind"] == "classification"]
    picture = draw(black, truth, found[1:], emphasised=wrong)
    x1, y1, x2, y2 = where(picture, EMPHASIS_COLOUR)
    assert (x1, x2, y2) == (20, x2, 90) and y1 < 50  # the name above it
    orange = where(picture, DETECTION_COLOUR)
    assert orange == (120, 50, 160, 90)


@pytest.fixture
def folder(make, tmp_path):
    """Four images: all found, one of two found, wrong and missed, nothing there."""
    images = make.images(["good", "half", "bad", "empty"])
    for i, path in enumerate(images["path"]):
        Image.new("RGB", (200, 100), (0, 0, 40 * i)).save(tmp_path / path)
    boxes = make.boxes(
        ("good", "cat", 0, 0, 50, 50), ("half", "cat", 0, 0, 50, 50),
        ("half", "dog", 60, 0, 99, 50), ("bad", "cat", 0, 0, 50, 50),
        ("bad", "cat", 150, 50, 200, 100),
    )  # fmt: skip
    detections = make.detections(
        ("good", "cat", 0, 0, 50, 50, 0.9), ("half", "cat", 0, 0, 50, 50, 0.9),
        ("bad", "dog", 0, 0, 50, 50, 0.9), ("good", "dog", 0, 0, 9, 9, 0.29),
    )  # fmt: skip
    return images, boxes, detections, tmp_path


def read(path):
    return np.asarray(Image.open(path).convert("RGB"))


def made(folder, *, reader=read, **options):
    images, boxes, detections, root = folder
    classes = boxes[["class_name"]].drop_duplicates().reset_index(drop=True)
    tables = (images, boxes, detections, classes)
    found = kinds(*tables, score_threshold=0.5)
    ranking = per_image(*tables, dataset="test", score_threshold=0.5)
    return tiles(images, boxes, found, ranking, root, read=reader, **options)


def captions(tiles):
    return [tile.caption for tile in tiles]


def test_each_kind_has_the_pictures_it_says(folder):
    found = made(folder, count=2)
    assert list(found) == ["worst", "best", "random", *ERRORS]
    assert captions(found["worst"]) == [
        "bad.jpg: F1 0.0, 0 right, 1 wrong, 2 missed",
        "half.jpg: F1 66.7, 1 right, 0 wrong, 1 missed",
    ]
    assert sorted(text.split(":")[0] for text in captions(found["best"])) == [
        "empty.jpg", "good.jpg"
    ]  # fmt: skip
    assert captions(found["classification"]) == ["bad.jpg: 1 × classification"]
    assert captions(found["missed"]) == ["half.jpg: 1 × missed", "bad.jpg: 1 × missed"]
    assert [kind for kind in ERRORS if not found[kind]] == [
        "localisation", "both", "duplicate", "background"
    ]  # fmt: skip


def test_boxes_are_where_they_belong_in_a_tile(folder):
    [half, bad] = made(folder)["missed"]
    assert half.picture.size == bad.picture.size == (TILE, TILE // 2)  # 2.4 times as large
    assert where(half.picture, EMPHASIS_COLOUR)[::2] == pytest.approx((144, 237.6), abs=1)
    x1, _, x2, y2 = where(bad.picture, EMPHASIS_COLOUR)
    assert (x1, x2, y2) == pytest.approx((360, 480, 240), abs=1)


def test_of_an_error_the_images_with_most_come_first(make, tmp_path):
    images = make.images(["1", "2", "3"])
    for path in images["path"]:
        Image.new("RGB", (200, 100)).save(tmp_path / path)
    found = make.detections(
        ("1", "cat", 0, 0, 9, 9, 0.6), ("2", "cat", 0, 0, 9, 9, 0.9),
        ("3", "cat", 0, 0, 9, 9, 0.6), ("3", "cat", 50, 0, 59, 9, 0.6),
    )  # fmt: skip
    boxes = make.boxes(("1", "cat", 100, 0, 109, 9))
    shown = made((images, boxes, found, tmp_path), count=2)["background"]
    assert captions(shown) == ["3.jpg: 2 × background", "2.jpg: 1 × background"]


def test_random_pictures_follow_the_seed_alone(folder):
    first = captions(made(folder, count=3)["random"])
    assert len(set(first)) == 3 and first == captions(made(folder, count=3)["random"])
    others = [captions(made(folder, count=3, seed=seed)["random"]) for seed in range(1, 9)]
    assert any(other != first for other in others)


def test_a_picture_is_decoded_once_however_often_it_is_shown(folder):
    decoded = []

    def counting(path):
        decoded.append(path.name)
        return read(path)

    assert sum(map(len, made(folder, reader=counting).values())) > 4
    assert sorted(decoded) == ["bad.jpg", "empty.jpg", "good.jpg", "half.jpg"]


def test_a_picture_that_cannot_be_read_is_grey_and_says_why(folder):
    def failing(path):
        if path.name == "bad.jpg":
            raise DataError("bad.jpg: the file is empty")
        return read(path)

    worst, second = made(folder, reader=failing, count=2)["worst"]
    assert worst.caption == "bad.jpg: the file is empty"
    assert worst.picture.getextrema() == ((128, 128),) * 3
    assert second.caption.startswith("half.jpg: F1")


def test_no_images_and_no_pictures_wanted_give_no_tiles(folder):
    images, boxes, detections, root = folder
    for shown in (
        made((images.iloc[:0], boxes.iloc[:0], detections.iloc[:0], root)),
        made(folder, count=0),
    ):
        assert not any(shown.values())


def test_a_sheet_holds_its_tiles():
    colours = [(250, 0, 0), (0, 250, 0), (0, 0, 250)]
    picture = sheet([Tile(Image.new("RGB", (TILE, 100), c), "x" * 500) for c in colours])
    areas = [where(picture, colour) for colour in colours]
    assert all((x2 - x1, y2 - y1) == (TILE, 100) for x1, y1, x2, y2 in areas)
    assert len(set(areas)) == 3
    assert sheet([]).width > 0
