"""A page to look at before training: what is in a data set, and what is wrong with it."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from detpipe.core.errors import DataError
from detpipe.core.page import grid, html, picture, section, text
from detpipe.core.tables import positions
from detpipe.data.marks import Mark, colour_of, draw_marks

if TYPE_CHECKING:
    from PIL.Image import Image

logger = logging.getLogger(__name__)

SAMPLES, OFFENDERS = 12, 8
"""Pictures shown: as they should be, and with the worst findings."""
_SIDE = 480
"""Longest side of a picture on the page, pixels."""
_BAD = (213, 0, 0)
_WEIGHT = {"error": 10_000, "warning": 100, "info": 1}
_COORDINATES = re.compile(r"\(([^()]*)\)$")


def page(
    images: pd.DataFrame,
    boxes: pd.DataFrame,
    classes: pd.DataFrame,
    issues: pd.DataFrame,
    root: Path,
    *,
    plots: Mapping[str, Image],
    name: str = "",
) -> str:
    """One HTML file with everything in it, made also where the data set is refused.

    Args:
        images: the ``images`` table after the check.
        boxes: the ``boxes`` table after the check.
        classes: the classes the data set lists.
        issues: everything the check found.
        root: the folder that ``images.path`` is relative to.
        plots: pictures of :func:`detpipe.data.describe.draw`.
        name: of the data set, for the title.

    Returns:
        Counts, findings by rule, plots, the pictures with the worst findings (what is wrong in
        red), and pictures with their boxes: of every class one, the rarest first, as far as there
        is room.
    """
    errors = int((issues["severity"] == "error").sum())
    title = f"Data set {name}".strip()
    counts = (
        f"{len(images)} images, {len(boxes)} boxes, {len(classes)} classes; "
        + (f"<span class=error>{errors} error(s): not usable yet</span>" if errors else "usable")
    )  # fmt: skip
    drawn = [picture(plot, name.replace("_", " "), "png") for name, plot in plots.items()]
    parts = [
        f"<p>{counts}</p>",
        section("What the check found", [_findings(issues)]),
        *_section("Pictures with the worst findings", _offenders(images, issues, root)),
        *_section("Pictures", _samples(images, boxes, classes, root)),
        *_section("In numbers", drawn),
    ]
    return html(title, parts)


def _section(title: str, tiles: Sequence[str]) -> list[str]:
    return [section(title, [grid(tiles)])] if tiles else []


def _findings(issues: pd.DataFrame) -> str:
    if issues.empty:
        return "<p>Nothing.</p>"
    rows = []
    for (severity, rule), found in sorted(
        issues.groupby(["severity", "rule"], sort=False), key=lambda g: -_WEIGHT[str(g[0][0])]
    ):
        first = found.iloc[0]
        where = " ".join(filter(None, (first["file"], first["value"])))
        cells = (severity, rule, len(found), where, first["action"])
        rows.append(f"<tr class={severity}>{''.join(f'<td>{text(cell)}' for cell in cells)}")
    head = "<tr><th>severity<th>rule<th>times<th>the first<th>what is done"
    return f"<table>{head}{''.join(rows)}</table>"


# --- pictures ----------------------------------------------------------------------------------


def _offenders(images: pd.DataFrame, issues: pd.DataFrame, root: Path) -> list[str]:
    """The pictures with the gravest and most findings; the boxes concerned are red."""
    there = issues.assign(weight=issues["severity"].map(_WEIGHT).astype("float64"))
    there = there[there["weight"] > _WEIGHT["info"]]
    there = there[positions(there["image_id"], images["image_id"]) >= 0]
    worst = there.groupby("image_id", sort=False)["weight"].sum().nlargest(OFFENDERS)
    by_id = images.set_index("image_id")
    tiles = []
    for image_id in worst.index:
        rows = there[there["image_id"] == image_id]
        marks = [
            Mark(box, str(rule), _BAD)
            for value, rule in zip(rows["value"], rows["rule"], strict=True)
            if (box := _box_in(value))
        ]
        caption = f"{by_id.loc[image_id, 'path']}: " + ", ".join(
            f"{rule} ×{count}" for rule, count in rows["rule"].value_counts().items()
        )
        tiles.append(_tile(root / str(by_id.loc[image_id, "path"]), marks, caption))
    return tiles


def _box_in(value: str) -> tuple[float, float, float, float] | None:
    """The four coordinates at the end of a finding's value, where there are some."""
    found = _COORDINATES.search(value)
    try:
        numbers = [float(word) for word in found[1].split(",")] if found else []
    except ValueError:
        return None
    if len(numbers) != 4 or not np.isfinite(numbers).all():
        return None
    x1, y1, x2, y2 = numbers
    return min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)


def _samples(
    images: pd.DataFrame, boxes: pd.DataFrame, classes: pd.DataFrame, root: Path
) -> list[str]:
    names = classes["class_name"].tolist()
    by_id = images.set_index("image_id")
    tiles = []
    for image_id in sample_images(images, boxes):
        inside = boxes[boxes["image_id"] == image_id]
        columns = (inside[c] for c in ("x1", "y1", "x2", "y2", "class_name", "iscrowd"))
        marks = [
            Mark(
                (x1, y1, x2, y2), name, colour_of(names.index(name), len(names)), dashed=bool(crowd)
            )
            for x1, y1, x2, y2, name, crowd in zip(*columns, strict=True)
            if name in names
        ]
        row = by_id.loc[image_id]
        caption = f"{row['path']}: {row['width']} × {row['height']}, {len(inside)} box(es)"
        tiles.append(_tile(root / str(row["path"]), marks, caption))
    return tiles


def sample_images(images: pd.DataFrame, boxes: pd.DataFrame, count: int = SAMPLES) -> list[str]:
    """Ids of ``count`` images: one of every class, the rarest first, then some of all.

    The same for the same tables; the global random state is not moved.
    """
    known = boxes.loc[
        positions(boxes["image_id"], images["image_id"]) >= 0, ["image_id", "class_name"]
    ]
    shuffled = known.sample(frac=1, random_state=0)
    first = shuffled.drop_duplicates("class_name").set_index("class_name")["image_id"]
    rarest_first = known["class_name"].value_counts(ascending=True, sort=True).index
    chosen = first.reindex(rarest_first).tolist()
    others = images["image_id"].sample(frac=1, random_state=0).tolist()
    return list(dict.fromkeys([*chosen, *others]))[:count]


def _tile(path: Path, marks: Iterable[Mark], caption: str) -> str:
    """A figure with the picture scaled to the page and ``marks`` (in its own pixels) on it."""
    from PIL import Image

    from detpipe.data.image import load_sized

    def fitting(height: int, width: int) -> tuple[int, int]:
        scale = _SIDE / max(height, width)
        return max(1, round(height * scale)), max(1, round(width * scale))

    try:
        pixels, (height, width) = load_sized(path, size=fitting)
    except DataError as error:
        return f"<figure><figcaption>{text(error)}</figcaption></figure>"
    tile = Image.fromarray(pixels)
    x, y = tile.width / width, tile.height / height
    draw_marks(
        tile,
        [m._replace(box=(m.box[0] * x, m.box[1] * y, m.box[2] * x, m.box[3] * y)) for m in marks],
    )
    return picture(tile, caption)
