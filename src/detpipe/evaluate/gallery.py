"""Pictures with their boxes drawn: the worst, the best, any, and those with errors of a kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from PIL import Image, ImageDraw

from detpipe.core.errors import DataError
from detpipe.core.fonts import font_of_size
from detpipe.core.tables import BOX_COLUMNS
from detpipe.evaluate.common import records
from detpipe.evaluate.errors import ERRORS
from detpipe.evaluate.voc import ious

if TYPE_CHECKING:
    from numpy.typing import NDArray

TRUTH_COLOUR = (0, 200, 83)
DETECTION_COLOUR = (255, 61, 0)
EMPHASIS_COLOUR = (213, 0, 249)
TILE = 480
"""Longest side of a picture on a sheet and on the page, pixels."""
LEGEND = "truth green, detections orange, what an error is about magenta"


def draw(
    image: NDArray[np.uint8] | Image.Image,
    truth: pd.DataFrame | None,
    detections: pd.DataFrame | None,
    *,
    longest_side: int | None = None,
    emphasised: pd.DataFrame | None = None,
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
        emphasised: rows of :func:`detpipe.evaluate.errors.kinds` that the picture is about: in
            magenta, and only these bear names.
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
    meant = [] if emphasised is None else list(records(emphasised))
    for box in boxes if emphasised is None else ():
        if not _is_found(box, found):
            label = f"{box.class_name} (crowd)" if box.iscrowd else str(box.class_name)
            _label(canvas, _scaled(box, scale), TRUTH_COLOUR, label, font, below=True)
    for box in found if emphasised is None else ():
        label = f"{box.class_name} {box.score:.2f}"
        _label(canvas, _scaled(box, scale), DETECTION_COLOUR, label, font, below=False)
    # The truth is thicker, so that it shows below a detection that fits.
    lines = [(b, TRUTH_COLOUR, line + 2) for b in boxes]
    lines += [(b, DETECTION_COLOUR, line) for b in found]
    lines += [(b, EMPHASIS_COLOUR, line + 2) for b in meant]
    for box, colour, width in lines:
        x1, y1, x2, y2 = _scaled(box, scale)  # x2, y2 exclusive here, inclusive in Pillow
        canvas.rectangle((x1, y1, max(x1, x2 - 1), max(y1, y2 - 1)), outline=colour, width=width)
    for box in meant:
        _label(canvas, _scaled(box, scale), EMPHASIS_COLOUR, _meaning(box), font, below=False)
    return picture


def _meaning(box: Any) -> str:
    """What is written at a box that is emphasised."""
    if box.kind == "missed":
        return f"{box.class_name} missed"
    is_other = box.truth_class and box.truth_class != box.class_name
    return f"{box.class_name} {box.score:.2f}" + (f", is {box.truth_class}" if is_other else "")


class Tile(NamedTuple):
    """A picture with what is to be said of it."""

    picture: Image.Image
    caption: str


def tiles(
    images: pd.DataFrame,
    boxes: pd.DataFrame,
    found: pd.DataFrame,
    ranking: pd.DataFrame,
    root: Path,
    *,
    read: Callable[[Path], NDArray[np.uint8]],
    count: int = 8,
    seed: int = 0,
) -> dict[str, list[Tile]]:
    """The worst and the best images, some at random, and those with most of each kind of error.

    Truth is green, detections orange; what an error kind is about is magenta. A picture is decoded
    once, however often it is shown. One that cannot be read is a grey tile that says so.

    Args:
        images: the images table of one data set.
        boxes: the truth in it.
        found: of :func:`detpipe.evaluate.errors.kinds`.
        ranking: of :func:`detpipe.evaluate.per_image.per_image`.
        root: the folder that the table's paths are relative to.
        read: file → its upright pixels ``[H, W, 3]``, RGB, the way that the model sees them.
        count: how many pictures of each kind at most.
        seed: for those at random.

    Returns:
        ``worst``, ``best``, ``random`` and the kinds of :data:`~detpipe.evaluate.errors.ERRORS`;
        a kind without any picture is an empty list. Longest side :data:`TILE`.
    """
    places = np.random.default_rng(seed).permutation(len(ranking))[:count]
    chosen = {
        "worst": ranking.head(count)["image_id"].tolist(),
        "best": ranking[::-1].head(count)["image_id"].tolist(),
        "random": ranking["image_id"].iloc[places].tolist(),
    }
    numbers = {row.image_id: _numbers(row) for row in records(ranking)}
    captions = {(kind, i): numbers[i] for kind, ids in chosen.items() for i in ids}
    for kind in ERRORS:
        counts = _most(found[found["kind"] == kind], count)
        chosen[kind] = list(counts)
        captions |= {(kind, i): f"{number} × {kind}" for i, number in counts.items()}
    shown = list(dict.fromkeys(i for ids in chosen.values() for i in ids))
    paths = images.set_index("image_id")["path"]
    truth, detected = (_by_image(table, shown) for table in (boxes, found))
    made: dict[tuple[str, str], Tile] = {}
    for image_id in shown:
        path = str(paths[image_id])
        picture, scale, problem = _read_small(root / path, read)
        own, theirs = (_scaled_rows(t[image_id], scale) for t in (truth, detected))
        for kind in (kind for kind, ids in chosen.items() if image_id in ids):
            caption = f"{path}: {captions[kind, image_id]}"
            tile = _draw_kind(picture, own, theirs, kind) if not problem else picture
            made[kind, image_id] = Tile(tile, problem or caption)
    return {kind: [made[kind, i] for i in ids] for kind, ids in chosen.items()}


def sheet(tiles: Sequence[Tile]) -> Image.Image:
    """Tiles of one kind as one picture, with their captions above them."""
    columns = max(1, min(4, math.ceil(math.sqrt(len(tiles)))))
    caption, gap, head = 18, 8, 24
    rows = [tiles[i : i + columns] for i in range(0, len(tiles), columns)]
    heights = [caption + gap + max(tile.picture.height for tile in row) for row in rows]
    font = font_of_size(12)
    sheet = Image.new("RGB", (columns * (TILE + gap) + gap, head + sum(heights) + gap), "white")
    canvas = ImageDraw.Draw(sheet)
    canvas.text((gap, 4), LEGEND if tiles else "no images", fill="black", font=font)
    for i, tile in enumerate(tiles):
        x = gap + (i % columns) * (TILE + gap)
        y = head + sum(heights[: i // columns])
        canvas.text((x, y + 1), _shortened(tile.caption, font), fill="black", font=font)
        sheet.paste(tile.picture, (x, y + caption))
    return sheet


def _numbers(row: Any) -> str:
    return f"F1 {row.f1:.1f}, {row.right} right, {row.wrong} wrong, {row.missed} missed"


def _most(errors: pd.DataFrame, count: int) -> dict[str, int]:
    """Image → number of errors, the most first; of equal ones those with the highest score."""
    by_image = errors.groupby("image_id", sort=False)["score"].agg(["size", "max"])
    order = np.lexsort((-by_image["max"].fillna(0).to_numpy(), -by_image["size"].to_numpy()))
    return {str(i): int(n) for i, n in by_image["size"].iloc[order[:count]].items()}


def _by_image(table: pd.DataFrame, image_ids: list[str]) -> dict[str, pd.DataFrame]:
    near = table[table["image_id"].isin(image_ids)]
    groups = {str(i): rows for i, rows in near.groupby("image_id")}
    return {i: groups.get(i, table.iloc[:0]) for i in image_ids}


def _read_small(
    file: Path, read: Callable[[Path], NDArray[np.uint8]]
) -> tuple[Image.Image, float, str]:
    """The picture as large as a tile, its scale, and what is wrong with it ('' for nothing)."""
    try:
        picture = Image.fromarray(read(file))
    except DataError as error:
        return Image.new("RGB", (TILE, TILE // 2), (128, 128, 128)), 1.0, str(error)
    scale = TILE / max(picture.size)
    size = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
    return picture.resize(size), scale, ""


def _scaled_rows(table: pd.DataFrame, scale: float) -> pd.DataFrame:
    return table.assign(**{column: table[column] * scale for column in BOX_COLUMNS})


def _draw_kind(
    picture: Image.Image, truth: pd.DataFrame, found: pd.DataFrame, kind: str
) -> Image.Image:
    if kind not in ERRORS:
        return draw(picture, truth, found[found["score"].notna()])
    meant = found["kind"] == kind
    others = found[~meant & found["score"].notna()]
    return draw(picture, truth, others, emphasised=found[meant])


def _shortened(text: str, font: Any) -> str:
    """The end of a text that is too long for a tile: of a path, the file's name."""
    if font.getlength(text) <= TILE:
        return text
    while font.getlength(f"…{text}") > TILE:
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
