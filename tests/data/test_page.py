from __future__ import annotations

import base64
import io
import re

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from detpipe.core.tables import BOXES, CLASSES, IMAGES, ISSUES
from detpipe.data import page as module
from detpipe.data.check_config import CheckConfig
from detpipe.data.describe import draw
from detpipe.data.formats.base import IssueLog, box_rows
from detpipe.data.page import sample_images

RED = (213, 0, 0)


@pytest.fixture
def tables(tmp_path):
    """Two grey pictures: the first with a cat, the second with a box that has no area."""
    for name in ("a", "b"):
        Image.new("RGB", (96, 64), (128, 128, 128)).save(tmp_path / f"{name}.png")
    images = IMAGES.make(
        {"image_id": n, "path": f"{n}.png", "width": 96, "height": 64, "split": "train"}
        for n in ("a", "b")
    )
    boxes = BOXES.make(
        [{"image_id": "a", "annotation_id": "1", "class_name": "<cat>", "x1": 8, "y1": 8,
          "x2": 40, "y2": 48, "area": 1280, "iscrowd": False, "difficult": False}]
    )  # fmt: skip
    return images, boxes, CLASSES.make([{"class_name": "<cat>"}])


def page(images, boxes, classes, issues, root, *, name="", plots=None) -> str:
    return module.page(images, boxes, classes, issues, root, plots=plots or {}, name=name)


def pictures(text: str) -> dict[str, np.ndarray]:
    """Caption → pixels of every picture on a page."""
    found = re.findall(r'base64,([^"]+)" alt="([^"]*)"', text)
    return {
        alt: np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"))
        for data, alt in found
    }


def near(pixels: np.ndarray, colour: tuple[int, int, int]) -> np.ndarray:
    return (np.abs(pixels.astype(int) - colour) < 40).all(axis=-1)


def test_a_wrong_box_is_drawn_red_where_the_finding_says_it_is(tables, tmp_path):
    images, boxes, classes = tables
    log = IssueLog()
    wrong = boxes.assign(image_id="b", x1=60.0, x2=80.0, y1=10.0, y2=30.0)
    log.add_rows("warning", "box_inverted", box_rows(wrong, {"b": "b.png"}), action="dropped")
    shown = pictures(page(images, boxes, classes, log.table(), tmp_path))
    pixels = shown["b.png: box_inverted ×1"]
    assert pixels.shape == (320, 480, 3)  # 5 times as large
    rows, columns = np.nonzero(near(pixels, RED))
    assert (columns.min(), columns.max()) == pytest.approx((300, 399), abs=2)
    assert rows.max() == pytest.approx(149, abs=2)
    assert not near(shown["a.png: 96 × 64, 1 box(es)"], RED).all(axis=None)


def test_it_holds_every_rule_with_its_count_gravest_first_and_escapes_names(tables, tmp_path):
    images, boxes, classes = tables
    log = IssueLog()
    log.add("info", "columns", file="x.csv", value="guessed")
    for n in range(3):
        log.add("error", "missing_image", file=f"<{n}>.jpg", action="restore")
    text = page(images, boxes, classes, log.table(), tmp_path, name="<set>")
    cells = re.findall(r"<tr class=(\w+)><td>\w+<td>(\w+)<td>(\d+)<td>([^<]*)", text)
    assert cells == [
        ("error", "missing_image", "3", "&lt;0&gt;.jpg"), ("info", "columns", "1", "x.csv guessed")
    ]  # fmt: skip
    assert "3 error(s): not usable yet" in text
    assert "<set>" not in text
    assert "<cat>" not in text


def test_a_picture_that_cannot_be_read_is_named_and_the_rest_is_there(tables, tmp_path):
    images, boxes, classes = tables
    (tmp_path / "b.png").write_bytes(b"")
    text = page(images, boxes, classes, ISSUES.empty(), tmp_path)
    assert "b.png: the file is empty" in text
    assert "a.png: 96 × 64, 1 box(es)" in pictures(text)


def test_a_set_without_anything_has_a_page(tmp_path):
    text = page(IMAGES.empty(), BOXES.empty(), CLASSES.empty(), ISSUES.empty(), tmp_path)
    assert "0 images, 0 boxes, 0 classes" in text


def test_samples_show_every_class_the_rarest_first_and_the_same_each_time():
    images = IMAGES.make(
        {"image_id": str(n), "path": f"{n}.jpg", "width": 9, "height": 9, "split": ""}
        for n in range(200)
    )
    pairs = [(str(n), "common") for n in range(190)] + [
        ("77", "some"),
        ("78", "some"),
        ("5", "rare"),
    ]
    boxes = pd.DataFrame(pairs, columns=["image_id", "class_name"])
    np.random.seed(3)
    before = np.random.get_state()[1].tolist()
    chosen = sample_images(images, boxes)
    assert np.random.get_state()[1].tolist() == before
    assert chosen == sample_images(images, boxes)
    assert chosen[0] == "5"
    assert chosen[1] in ("77", "78")
    assert len(set(chosen)) == len(chosen) == 12


def test_a_real_set(shared_data):
    from detpipe.data.check import inspect
    from detpipe.data.formats import voc

    root = shared_data / "bccd_voc"
    found = inspect(voc.read(root), root, CheckConfig(decode=False))
    plots = draw(found.images, found.boxes, found.classes)
    text = page(found.images, found.boxes, found.classes, found.issues, root, plots=plots)
    shown = pictures(text)
    flat = [c for c in shown if "box_without_area ×1" in c]
    assert sorted(re.findall(r"BloodImage_00\d+", " ".join(flat))) == [
        "BloodImage_00338", "BloodImage_00343"
    ]  # fmt: skip
    assert {"class counts", "aspect ratios", "positions"} <= set(shown)
