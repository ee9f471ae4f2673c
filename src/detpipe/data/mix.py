"""Transforms that make one training image of several: mosaic, mixup and copy-paste.

They are of the kind :class:`detpipe.data.transform.Mixing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import cv2
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from detpipe.core.errors import ConfigError
from detpipe.core.types import Target
from detpipe.data.draws import between, colour, interval, probability, share
from detpipe.data.geometry import select, to_image, to_pixels
from detpipe.data.image import Pixels
from detpipe.data.transform import Draw, Sample

_Rectangle = tuple[int, int, int, int]
"""x1 y1 x2 y2 in whole pixels, x2/y2 exclusive."""


class Mosaic:
    """Puts four images around a point: each shows the corner that lies there.

    The result has the size of the image that came in; the three others are first fitted into that
    size, aspect ratio kept. (YOLOv4 and YOLOX do the same on a canvas of twice the side, which they
    scale and crop afterwards.)

    Args:
        p: how often.
        scale: range of the factor on each of the four images.
        centre: range of the point where they meet, as a share of the width and of the height.
        min_visible: a box that keeps a smaller share of its area is taken out.
        fill: grey value or RGB where no image reaches, 0..255.
    """

    mixes = True

    def __init__(
        self,
        *,
        p: float = 1.0,
        scale: tuple[float, float] = (0.5, 1.5),
        centre: tuple[float, float] = (0.25, 0.75),
        min_visible: float = 0.1,
        fill: int | tuple[int, int, int] = (124, 116, 104),
    ) -> None:
        self._p = probability(p, "Mosaic")
        self._scale = _scales(scale, "Mosaic: scale")
        self._centre = interval(centre, "Mosaic: centre", 0, 1)
        self._min_visible = share(min_visible, "Mosaic: min_visible")
        self._fill = colour(fill, "Mosaic: fill")

    def __call__(self, image: Tensor, target: Target, draw: Draw) -> Sample:
        """The four as one image, or the first as it is."""
        chance = torch.rand(7).tolist()
        if chance[0] >= self._p:
            return image, target
        height, width = image.shape[-2:]
        x = round(width * between(self._centre, chance[1]))
        y = round(height * between(self._centre, chance[2]))
        canvas = np.empty((height, width, 3), np.uint8)
        cv2.rectangle(canvas, (0, 0), (width, height), self._fill, cv2.FILLED)
        seen = []
        for number in range(4):
            picture, objects = draw() if number else (image, target)
            rows, columns = picture.shape[-2:]
            factor = min(height / rows, width / columns) * between(self._scale, chance[3 + number])
            into_x, from_x = _span(x, width, columns, factor, before=number % 2 == 0)
            into_y, from_y = _span(y, height, rows, factor, before=number < 2)
            into = into_x[0], into_y[0], into_x[1], into_y[1]
            part = from_x[0], from_y[0], from_x[1], from_y[1]
            seen.append(_put(canvas, into, picture, objects, part, self._min_visible))
        return to_image(canvas), _joined(target, seen)


class MixUp:
    """Blends two images; the boxes of both stay.

    The second image is fitted into the first one's size, aspect ratio kept, in the upper left
    corner; where it does not reach, the first one stays as it is. The first one's share is drawn
    from a Beta(alpha, alpha) distribution. The losses know no shares, hence a default around one
    half: 0.5 ± 0.06.

    Args:
        p: how often.
        alpha: of the Beta distribution; the larger, the closer to one half.
    """

    mixes = True

    def __init__(self, *, p: float = 1.0, alpha: float = 32.0) -> None:
        if not 0 < alpha < float("inf"):
            raise ConfigError(f"MixUp: alpha must be above 0, got {alpha}")
        self._p, self._alpha = probability(p, "MixUp"), float(alpha)

    def __call__(self, image: Tensor, target: Target, draw: Draw) -> Sample:
        """Both as one image, or the first as it is."""
        if torch.rand(()).item() >= self._p:
            return image, target
        alpha = torch.tensor([self._alpha, self._alpha])
        first = torch.distributions.Dirichlet(alpha, validate_args=False).sample()[0].item()
        other, objects = draw()
        height, width = image.shape[-2:]
        rows, columns = other.shape[-2:]
        factor = min(height / rows, width / columns)
        into = 0, 0, max(1, round(columns * factor)), max(1, round(rows * factor))
        pixels = to_pixels(image)
        layer = pixels.copy()
        added = _put(layer, into, other, objects, (0, 0, columns, rows), 0.0)
        # Equal outside the second image, so that blending all of it changes only the inside.
        blended = cv2.addWeighted(pixels, first, layer, 1 - first, 0)
        return to_image(np.asarray(blended, dtype=np.uint8)), _joined(target, [target, added])


class CopyPaste:
    """Pastes objects of another image, cut out as their boxes, at random places.

    What else lies in such a rectangle comes along with its box. Crowd regions, and objects that
    overlap one, are never pasted.

    Args:
        p: how often.
        count: at most so many objects; the number is drawn from 1..count.
        scale: range of the factor on a pasted rectangle's sides; one that would not fit into the
            image is pasted as large as fits.
        min_visible: a box of which a smaller share is left, because of what was pasted on it or cut
            from it, is taken out.
    """

    mixes = True

    def __init__(
        self,
        *,
        p: float = 0.5,
        count: int = 3,
        scale: tuple[float, float] = (0.75, 1.25),
        min_visible: float = 0.3,
    ) -> None:
        if count < 1:
            raise ConfigError(f"CopyPaste: count must be 1 or more, got {count}")
        self._p, self._count = probability(p, "CopyPaste"), count
        self._scale = _scales(scale, "CopyPaste: scale")
        self._min_visible = share(min_visible, "CopyPaste: min_visible")

    def __call__(self, image: Tensor, target: Target, draw: Draw) -> Sample:
        """The image with what was pasted, or as it is."""
        if torch.rand(()).item() >= self._p:
            return image, target
        other, objects = draw()
        rectangles = _without_crowd(objects, *other.shape[-2:])
        number = int(torch.randint(1, self._count + 1, ()).item())
        chosen = torch.randperm(len(rectangles))[:number].tolist()
        if not chosen:
            return image, target
        height, width = image.shape[-2:]
        canvas = to_pixels(image).copy()
        layer = np.zeros((height, width), np.int16)  # which paste each pixel is from; 0 is none
        seen = [target]
        for place, chance in zip(chosen, torch.rand(len(chosen), 3).tolist(), strict=True):
            part = rectangles[place]
            columns, rows = part[2] - part[0], part[3] - part[1]
            factor = min(between(self._scale, chance[0]), width / columns, height / rows)
            columns, rows = max(1, round(columns * factor)), max(1, round(rows * factor))
            x, y = int((width - columns + 1) * chance[1]), int((height - rows + 1) * chance[2])
            into = x, y, x + columns, y + rows
            layer[y : y + rows, x : x + columns] = len(seen)
            seen.append(_put(canvas, into, other, objects, part, self._min_visible))
        left = [_left(its, layer, number, self._min_visible) for number, its in enumerate(seen)]
        return to_image(canvas), _joined(target, left)


def _span(
    centre: int, size: int, length: int, factor: float, *, before: bool
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Along one side: where on the canvas an image next to ``centre`` is seen, and what of it.

    Args:
        centre: where the images meet.
        size: of the canvas.
        length: of the image.
        factor: it is scaled by, about: by whole pixels over whole pixels.
        before: it ends at the centre; otherwise it begins there.
    """
    room, whole = (centre if before else size - centre), max(1, round(length * factor))
    seen = min(room, whole)
    part = length if seen == whole else min(length, max(1, round(seen / factor)))
    if before:
        return (centre - seen, centre), (length - part, length)
    return (centre, centre + seen), (0, part)


def _put(
    canvas: Pixels,
    into: _Rectangle,
    image: Tensor,
    target: Target,
    part: _Rectangle,
    min_visible: float,
) -> Target:
    """Draws a part of an image into the canvas, scaled to fill ``into``.

    Returns:
        What of ``target`` is seen there, in pixels of the canvas.
    """
    left, top, right, bottom = into
    from_left, from_top, from_right, from_bottom = part
    columns, rows = right - left, bottom - top
    if not columns or not rows:
        return select(target, torch.zeros(len(target.boxes), dtype=torch.bool))
    across, down = columns / (from_right - from_left), rows / (from_bottom - from_top)
    pixels = to_pixels(image[:, from_top:from_bottom, from_left:from_right])
    if pixels.shape[:2] != (rows, columns):
        # Down to a half each pixel still counts in a linear one, at a fifth of the time.
        how = cv2.INTER_AREA if max(across, down) < 0.5 else cv2.INTER_LINEAR
        pixels = np.asarray(cv2.resize(pixels, (columns, rows), interpolation=how), dtype=np.uint8)
    canvas[top:bottom, left:right] = pixels
    # numpy: on so few numbers torch takes several times as long.
    factors = np.array([across, down, across, down], np.float32)
    whole = (target.boxes.numpy() - np.array(part[:2] * 2, np.float32)) * factors
    whole += np.array(into[:2] * 2, np.float32)
    boxes = np.clip(whole, np.array(into[:2] * 2), np.array(into[2:] * 2)).astype(np.float32)
    sides, full = boxes[:, 2:] - boxes[:, :2], whole[:, 2:] - whole[:, :2]
    seen, area = sides.prod(axis=1), full.prod(axis=1)
    large = (sides >= np.minimum(full, 1)).all(axis=1)
    keep = np.flatnonzero(large & (seen >= min_visible * area))
    share = seen[keep] / np.maximum(area[keep], 1e-6) * (across * down)
    kept = select(target, torch.from_numpy(keep))
    return replace(
        kept,
        boxes=torch.from_numpy(boxes[keep]),
        area=kept.area * torch.from_numpy(share.astype(np.float32)),
    )


def _without_crowd(target: Target, height: int, width: int) -> list[_Rectangle]:
    """The whole pixels of each object that no crowd region overlaps."""
    crowd = target.iscrowd.numpy()
    whole = _outwards(target.boxes).clip(0, (width, height) * 2)
    regions = target.boxes.numpy()[crowd]
    meets = (whole[:, None, :2] < regions[:, 2:]) & (whole[:, None, 2:] > regions[:, :2])
    usable = ~meets.all(-1).any(1) & ~crowd & (whole[:, 2:] > whole[:, :2]).all(1)
    return [(x1, y1, x2, y2) for x1, y1, x2, y2 in whole[usable].tolist()]


def _left(target: Target, layer: npt.NDArray[np.int16], number: int, least: float) -> Target:
    """Those of paste ``number`` that later pastes have not covered by more than ``1 - least``."""
    keep = []
    for x1, y1, x2, y2 in _outwards(target.boxes).tolist():
        pixels = layer[y1:y2, x1:x2]
        keep.append(np.count_nonzero(pixels <= number) >= least * pixels.size)
    return target if all(keep) else select(target, torch.tensor(keep))


def _outwards(boxes: Tensor) -> npt.NDArray[np.int64]:
    """The whole pixels that boxes ``[N, 4]`` touch."""
    corners = boxes.numpy()
    return np.concatenate([np.floor(corners[:, :2]), np.ceil(corners[:, 2:])], 1).astype(np.int64)


def _joined(target: Target, parts: Sequence[Target]) -> Target:
    """``target`` with the boxes of all parts, in their order."""
    return replace(
        target,
        boxes=torch.cat([part.boxes for part in parts]),
        labels=torch.cat([part.labels for part in parts]),
        area=torch.cat([part.area for part in parts]),
        iscrowd=torch.cat([part.iscrowd for part in parts]),
        difficult=torch.cat([part.difficult for part in parts]),
    )


def _scales(limits: tuple[float, float], name: str) -> tuple[float, float]:
    """Factors above 0."""
    low, high = interval(limits, name, 0, float("inf"))
    if low <= 0 or high == float("inf"):
        raise ConfigError(f"{name}: must be [low, high] above 0, got {limits}")
    return low, high
