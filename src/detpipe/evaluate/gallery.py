"""Pictures with their boxes drawn, and sheets of the best, the worst or any of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
from PIL import Image, ImageDraw

from detpipe.core.fonts import font_of_size
from detpipe.evaluate.coco import evaluator
from detpipe.evaluate.common import image_order, records
from detpipe.evaluate.voc import ious

if TYPE_CHECKING:
    from numpy.typing import NDArray

TRUTH_COLOUR = (0, 200, 83)
DETECTION_COLOUR = (255, 61, 0)
SHOWN_FROM = 0.5
"""Fainter detections are not what a person would act on: neither drawn nor ranked."""
_TILE = 400
"""Longest side of a picture on a sheet, pixels."""


def draw(
    image: NDArray[np.uint8] | Image.Image,
    truth: pd.DataFrame | None,
    detections: pd.DataFrame | None,
    *,
    longest_side: int | None = None,
) -> Image.Image:
    """A copy of the image with boxes: truth green, detections orange with name and score.

    A box of the truth bears its name only if no detection of its class overlaps it by half.

    Args:
        image: RGB ``[H, W, 3]``, upright, or a Pillow image.
        truth: rows of the boxes table in this image, or None.
        detections: rows of the detections table in this image, or None; the best is on
            top.
        longest_side: scale the picture to this before drawing, so that lines and text stay
            readable.
    """
    picture = image if isinstance(image, Image.Image) else Image.fromarray(image)
    picture = picture.convert("RGB")
    scale = longest_side / max(picture.size) if longest_side else 1.0
    if scale != 1:
        size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
        picture = picture.resize(size)
    elif picture is image:
        picture = picture.copy()
    line = max(1, round(max(picture.size) / 320))
    font = font_of_size(max(10, round(max(picture.size) / 40)))
    canvas = ImageDraw.Draw(picture)
    boxes = [] if truth is None else list(records(truth))
    found = [] if detections is None else list(records(detections.sort_values("score")))
    for box in boxes:
        if not _is_found(box, found):
            label = f"{box.class_name} (crowd)" if box.iscrowd else str(box.class_name)
            _label(canvas, _scaled(box, scale), TRUTH_COLOUR, label, font, below=True)
    for box in found:
        label = f"{box.class_name} {box.score:.2f}"
        _label(canvas, _scaled(box, scale), DETECTION_COLOUR, label, font, below=False)
    # The truth is thicker, so that it shows below a detection that fits.
    lines = [(b, TRUTH_COLOUR, line + 2) for b in boxes]
    lines += [(b, DETECTION_COLOUR, line) for b in found]
    for box, colour, width in lines:
        x1, y1, x2, y2 = _scaled(box, scale)  # x2, y2 exclusive here, inclusive in Pillow
        canvas.rectangle((x1, y1, max(x1, x2 - 1), max(y1, y2 - 1)), outline=colour, width=width)
    return picture


def rank(
    images: pd.DataFrame,
    boxes: pd.DataFrame,
    detections: pd.DataFrame,
    *,
    score_threshold: float = SHOWN_FROM,
    iou: float = 0.5,
) -> pd.DataFrame:
    """Images from worst to best by F1 = 2·right / (2·right + wrong + missed).

    Right is a detection that overlaps a box of its class by ``iou``, as COCO matches; wrong are
    the other detections with at least ``score_threshold``, missed the boxes left. Equal F1: more
    wrong and missed first. An image without boxes and detections has F1 1.

    Returns:
        One row an image: image_id, path, f1, right, wrong, missed.
    """
    found = detections[detections["score"] >= score_threshold]
    names = pd.unique(pd.concat([boxes["class_name"], found["class_name"]]))
    counts: dict[int, dict[str, Any]] = {}
    if len(names):
        classes = pd.DataFrame({"class_name": names})
        engine = evaluator(images, boxes, found, classes, limits=[max(1, len(found))])
        engine.evaluate()
        counts = engine.image_diagnostics(iou_thr=iou)["img_summary"]
    paths = images.set_index("image_id")["path"]
    rows = []
    for number, image_id in enumerate(image_order(images), start=1):
        count = counts.get(number, {"tp": 0, "fp": 0, "fn": 0})
        right, wrong, missed = count["tp"], count["fp"], count["fn"]
        all_of_them = 2 * right + wrong + missed
        f1 = 2 * right / all_of_them if all_of_them else 1.0
        rows.append((image_id, paths[image_id], f1, right, wrong, missed))
    table = pd.DataFrame(rows, columns=["image_id", "path", "f1", "right", "wrong", "missed"])
    errors = table["wrong"] + table["missed"]
    order = np.lexsort((-errors.to_numpy(), table["f1"].to_numpy()))
    return table.iloc[order].reset_index(drop=True)


def gallery(
    images: pd.DataFrame,
    boxes: pd.DataFrame,
    detections: pd.DataFrame,
    root: Path,
    *,
    read: Callable[[Path], NDArray[np.uint8]],
    kind: Literal["worst", "best", "random"],
    count: int = 12,
    score_threshold: float = SHOWN_FROM,
    seed: int = 0,
) -> Image.Image:
    """A sheet of pictures with truth (green) and detections (orange) drawn.

    Args:
        images: the images table of one data set.
        boxes: the truth in it.
        detections: what was found in it.
        root: the folder that the table's paths are relative to.
        read: file → its upright pixels ``[H, W, 3]``, RGB, the way that the model sees them.
        kind: ``worst`` or ``best`` by :func:`rank`, or ``random`` by ``seed``.
        count: how many pictures at most.
        score_threshold: fainter detections are neither drawn nor counted.
        seed: for ``random``.

    Raises:
        DataError: what ``read`` raises for a picture that is missing or does not decode.
    """
    if kind == "random":
        places = np.random.default_rng(seed).permutation(len(images))[:count]
        chosen = images.iloc[np.sort(places)]
        captions = chosen["path"].tolist()
    else:
        ranking = rank(images, boxes, detections, score_threshold=score_threshold)
        chosen = (ranking if kind == "worst" else ranking[::-1]).head(count)
        captions = [
            f"{row.path}: F1 {row.f1:.2f}, {row.right} right, {row.wrong} wrong, "
            f"{row.missed} missed"
            for row in records(chosen)
        ]
    found = detections[detections["score"] >= score_threshold]
    tiles = [
        draw(
            read(root / row.path),
            boxes[boxes["image_id"] == row.image_id],
            found[found["image_id"] == row.image_id],
            longest_side=_TILE,
        )
        for row in records(chosen)
    ]
    return _sheet(tiles, captions, title="truth green, detections orange")


def _sheet(tiles: list[Image.Image], captions: list[str], *, title: str) -> Image.Image:
    columns = max(1, min(4, math.ceil(math.sqrt(len(tiles)))))
    caption, gap, head = 18, 8, 24
    rows = [tiles[i : i + columns] for i in range(0, len(tiles), columns)]
    heights = [caption + gap + max(tile.height for tile in row) for row in rows]
    font = font_of_size(12)
    sheet = Image.new("RGB", (columns * (_TILE + gap) + gap, head + sum(heights) + gap), "white")
    canvas = ImageDraw.Draw(sheet)
    canvas.text((gap, 4), title if tiles else "no images", fill="black", font=font)
    for i, (tile, text) in enumerate(zip(tiles, captions, strict=True)):
        x = gap + (i % columns) * (_TILE + gap)
        y = head + sum(heights[: i // columns])
        canvas.text((x, y + 1), _shortened(text, font), fill="black", font=font)
        sheet.paste(tile, (x, y + caption))
    return sheet


def _shortened(text: str, font: Any) -> str:
    """The end of a text that is too long for a tile: of a path, the file's name."""
    if font.getlength(text) <= _TILE:
        return text
    while font.getlength(f"…{text}") > _TILE:
        text = text[1:]
    return f"…{text}"


def _scaled(box: Any, scale: float) -> tuple[float, float, float, float]:
    return box.x1 * scale, box.y1 * scale, box.x2 * scale, box.y2 * scale


def _is_found(box: Any, detections: list[Any]) -> bool:
    """Whether a detection of the same class overlaps the box by half."""
    same = [[d.x1, d.y1, d.x2, d.y2] for d in detections if d.class_name == box.class_name]
    if not same:
        return False
    corners = np.array([box.x1, box.y1, box.x2, box.y2], dtype=np.float64)
    return bool((ious(corners, np.array(same, dtype=np.float64)) >= 0.5).any())


def _label(
    canvas: ImageDraw.ImageDraw,
    box: tuple[float, float, float, float],
    colour: tuple[int, int, int],
    text: str,
    font: Any,
    *,
    below: bool,
) -> None:
    """The label above its box, or below for truth, moved into the picture where it sticks out."""
    x1, y1, _, y2 = box
    left, top, right, bottom = canvas.textbbox((0, 0), text, font=font)
    width, height = right - left + 2, bottom - top + 2
    picture = canvas.im.size
    x = min(max(0, x1), max(0, picture[0] - width))
    y = min(max(0, y2 if below else y1 - height), max(0, picture[1] - height))
    canvas.rectangle((x, y, x + width, y + height), fill=colour)
    canvas.text((x + 1 - left, y + 1 - top), text, fill="white", font=font)
