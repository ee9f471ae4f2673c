"""What a data set looks like, in numbers and in pictures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from detpipe.core.tables import positions

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL.Image import Image

TINY, SMALL, MEDIUM = 8, 32, 96
"""Sides in pixels: a square of less than ``TINY`` is hard to see for any detector; COCO calls a
square of less than ``SMALL`` small, of less than ``MEDIUM`` medium."""


def describe(images: pd.DataFrame, boxes: pd.DataFrame, classes: pd.DataFrame) -> pd.DataFrame:
    """Statistics of a data set in long form.

    Args:
        images: the ``images`` table.
        boxes: the ``boxes`` table.
        classes: the ``classes`` table.

    Returns:
        Columns ``split`` ('' for all), ``class_name`` ('' for all), ``statistic``, ``value``.
        For every split and class: ``images`` (that hold the class), ``boxes``, ``crowd``,
        ``difficult``, ``box_side_min``, ``_median``, ``_max`` (square root of width times height,
        pixels), ``tiny_boxes`` (side below 8), ``small_boxes``, ``medium_boxes``, ``large_boxes``
        (by ``area``, as COCO does), ``boxes_per_image_median`` and ``_max`` (over the images that
        hold the class). For all classes together also ``images_without_boxes``, ``image_width_*``
        and ``image_height_*`` (min, median, max), and the last two count all images. What has no
        number (the median of nothing) is NaN.
    """
    owner = _split_of(images, boxes)
    # Numbers instead of texts: there are as many selections as splits times classes.
    numbers = boxes[["area", "iscrowd", "difficult"]].assign(
        image=positions(boxes["image_id"], images["image_id"]),
        label=positions(boxes["class_name"], classes["class_name"]),
        side=_sides(boxes),
    )
    rows: list[tuple[str, str, str, float]] = []
    for split in ["", *(split for split in _ordered(images["split"]) if split)]:
        pictures = images if split == "" else images[images["split"] == split]
        inside = numbers if split == "" else numbers[owner == split]
        of_class = dict(iter(inside.groupby("label")))
        rows += [(split, "", *pair) for pair in _statistics(inside, pictures)]
        for label, name in enumerate(classes["class_name"]):
            chosen = of_class.get(label, inside.iloc[:0])
            rows += [(split, name, *pair) for pair in _statistics(chosen)]
    return pd.DataFrame(rows, columns=["split", "class_name", "statistic", "value"])


def _split_of(images: pd.DataFrame, boxes: pd.DataFrame) -> pd.Series:
    """The split of each box's image."""
    rows = positions(boxes["image_id"], images["image_id"])
    return pd.Series(images["split"].array.take(rows, allow_fill=True), index=boxes.index)


def _ordered(splits: pd.Series) -> list[str]:
    """The splits there are: train, val, test first, others by name."""
    usual = ["train", "val", "test"]
    there = sorted(map(str, splits.unique()))
    return [s for s in usual if s in there] + [s for s in there if s not in usual]


def _statistics(
    boxes: pd.DataFrame, images: pd.DataFrame | None = None
) -> Iterator[tuple[str, float]]:
    """Statistics of some boxes, all in ``images`` if these are given, or of one class."""
    image, side, area = (boxes[column].to_numpy() for column in ("image", "side", "area"))
    per_image = np.unique(image, return_counts=True)[1]
    yield "images", float(len(per_image) if images is None else len(images))
    if images is not None:
        without = len(images) - len(per_image)
        yield "images_without_boxes", float(without)
        per_image = np.concatenate([per_image, np.zeros(without, int)])
    yield "boxes", float(len(boxes))
    yield "crowd", float(boxes["iscrowd"].to_numpy().sum())
    yield "difficult", float(boxes["difficult"].to_numpy().sum())
    for what, value in _spread(side):
        yield f"box_side_{what}", value
    yield "tiny_boxes", float((side < TINY).sum())
    yield "small_boxes", float((area < SMALL**2).sum())
    yield "medium_boxes", float(((area >= SMALL**2) & (area < MEDIUM**2)).sum())
    yield "large_boxes", float((area >= MEDIUM**2).sum())
    for what, value in _spread(per_image)[1:]:
        yield f"boxes_per_image_{what}", value
    if images is not None:
        for column in ("width", "height"):
            for what, value in _spread(images[column].to_numpy()):
                yield f"image_{column}_{what}", value


def _sides(boxes: pd.DataFrame) -> pd.Series:
    """Square root of each box's width times height, pixels."""
    area = (boxes["x2"] - boxes["x1"]) * (boxes["y2"] - boxes["y1"])
    return area.clip(lower=0).pow(0.5)


def _spread(values: npt.NDArray[Any]) -> list[tuple[str, float]]:
    """Smallest, median and largest of some numbers; NaN of none."""
    found = (values.min(), np.median(values), values.max()) if len(values) else (np.nan,) * 3
    return list(zip(("min", "median", "max"), map(float, found), strict=True))


def plots(images: pd.DataFrame, boxes: pd.DataFrame, classes: pd.DataFrame) -> dict[str, Figure]:
    """Pictures of a data set, by name.

    ``class_counts``, ``image_sizes``, ``box_sizes``, ``aspect_ratios``, ``boxes_per_image`` and
    ``positions``. They need no display, and matplotlib's global state (pyplot) is left alone.
    """
    splits = _ordered(images["split"])
    owner = _split_of(images, boxes)
    return {
        "class_counts": _class_counts(boxes, owner, classes, splits),
        "image_sizes": _image_sizes(images, splits),
        "box_sizes": _box_sizes(boxes, owner, splits),
        "aspect_ratios": _aspect_ratios(boxes, owner, splits),
        "boxes_per_image": _boxes_per_image(images, boxes, splits),
        "positions": _positions(images, boxes),
    }


def draw(images: pd.DataFrame, boxes: pd.DataFrame, classes: pd.DataFrame) -> dict[str, Image]:
    """:func:`plots` as pictures, by name."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    drawn = {}
    for name, figure in plots(images, boxes, classes).items():
        canvas: Any = FigureCanvasAgg(figure)
        canvas.draw()
        drawn[name] = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    return drawn


def _figure(title: str, *, height: float = 4.0) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, height), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title)
    return figure, axes


def _plain(name: str) -> str:
    """The name with matplotlib's mathematics switched off."""
    return name.replace("$", r"\$")


def _class_counts(
    boxes: pd.DataFrame, owner: pd.Series, classes: pd.DataFrame, splits: list[str]
) -> Figure:
    names = classes["class_name"].tolist()
    figure, axes = _figure("Boxes of each class", height=1.5 + 0.22 * max(len(names), 5))
    places = np.arange(len(names), dtype=float)
    start = np.zeros(len(names))
    for split in splits:
        counts = boxes[owner == split]["class_name"].value_counts().reindex(names, fill_value=0)
        axes.barh(places, counts, left=start, label=_plain(split) or "all")
        start += counts.to_numpy()
    for place, total in zip(places, start, strict=True):
        axes.text(total, place, f" {total:.0f}", va="center", fontsize=8)
    axes.set_yticks(places, [_plain(name) for name in names])
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_xlabel("boxes")
    if splits:
        axes.legend()
    return figure


def _box_sizes(boxes: pd.DataFrame, owner: pd.Series, splits: list[str]) -> Figure:
    figure, axes = _figure("Box sizes")
    sides = _sides(boxes)
    sides = sides[sides > 0]
    if len(sides):
        edges = np.geomspace(max(sides.min(), 0.5), max(sides.max(), 1.0) * 1.001, 41)
        parts = [sides[owner.loc[sides.index] == split] for split in splits]
        axes.hist(parts, edges, stacked=True, label=[_plain(s) or "all" for s in splits])
        axes.set_xscale("log")
        axes.legend()
    for side, name in ((SMALL, "small | medium"), (MEDIUM, "medium | large")):
        axes.axvline(side, color="grey", linewidth=0.8, linestyle="--")
        axes.annotate(name, (side, 0.99), xycoords=("data", "axes fraction"), rotation=90,
                      va="top", ha="right", fontsize=7, color="grey")  # fmt: skip
    axes.set_xlabel("square root of width times height, pixels")
    axes.set_ylabel("boxes")
    return figure


def _image_sizes(images: pd.DataFrame, splits: list[str]) -> Figure:
    figure, axes = _figure("Image sizes")
    for split in splits:
        rows = images[images["split"] == split]
        sizes = rows.groupby(["width", "height"]).size().reset_index(name="count")
        area = 12 + 200 * sizes["count"] / max(1, len(images))  # a bigger dot: more images
        axes.scatter(
            sizes["width"], sizes["height"], s=area, alpha=0.5, label=_plain(split) or "all"
        )
    if splits:
        axes.legend()
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("width, pixels (upright)")
    axes.set_ylabel("height, pixels")
    return figure


def _aspect_ratios(boxes: pd.DataFrame, owner: pd.Series, splits: list[str]) -> Figure:
    figure, axes = _figure("Aspect ratios of boxes")
    ratios = (boxes["x2"] - boxes["x1"]) / (boxes["y2"] - boxes["y1"])
    ratios = ratios[np.isfinite(ratios) & (ratios > 0)]
    if len(ratios):
        most = max(ratios.max(), 1 / ratios.min(), 2.0) * 1.001
        parts = [ratios[owner.loc[ratios.index] == split] for split in splits]
        edges = np.geomspace(1 / most, most, 41)
        axes.hist(parts, edges, stacked=True, label=[_plain(s) or "all" for s in splits])
        axes.set_xscale("log")
        axes.legend()
    axes.axvline(1, color="grey", linewidth=0.8, linestyle="--")
    axes.set_xlabel("width / height")
    axes.set_ylabel("boxes")
    return figure


def _boxes_per_image(images: pd.DataFrame, boxes: pd.DataFrame, splits: list[str]) -> Figure:
    figure, axes = _figure("Boxes in an image")
    rows = positions(boxes["image_id"], images["image_id"])
    counts = pd.Series(np.bincount(rows[rows >= 0], minlength=len(images)), index=images.index)
    most = int(counts.max()) if len(counts) else 0
    width = max(1, -(-(most + 1) // 40))  # whole numbers of boxes to a bar, 40 bars at most
    edges = np.arange(0, most + width + 1, width) - 0.5
    if len(counts):
        parts = [counts[images["split"] == split] for split in splits]
        axes.hist(parts, edges, stacked=True, label=[_plain(s) or "all" for s in splits])
        axes.legend()
    axes.set_xlabel("boxes")
    axes.set_ylabel("images")
    return figure


def _positions(images: pd.DataFrame, boxes: pd.DataFrame) -> Figure:
    figure, axes = _figure("Where box centres lie", height=5.0)
    rows = positions(boxes["image_id"], images["image_id"])
    width, height = (np.append(images[side], np.nan)[rows] for side in ("width", "height"))
    x = (boxes["x1"] + boxes["x2"]).to_numpy() / 2 / width
    y = (boxes["y1"] + boxes["y2"]).to_numpy() / 2 / height
    counts, _, _ = np.histogram2d(y, x, bins=32, range=((0, 1), (0, 1)))
    drawn = axes.imshow(counts, extent=(0, 1, 1, 0), cmap="viridis", interpolation="nearest")
    figure.colorbar(drawn, label="boxes")
    axes.set_xlabel("share of the image's width")
    axes.set_ylabel("share of the image's height")
    return figure
