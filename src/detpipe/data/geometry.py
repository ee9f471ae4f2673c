"""What transforms do to an image and its target together."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import torch
from torch import Tensor

from detpipe.core.types import Target
from detpipe.data.image import Pixels


def select(target: Target, keep: Tensor) -> Target:
    """The target with only the boxes that ``keep`` (bool or int64 ``[K]``) chooses."""
    return replace(
        target,
        boxes=target.boxes[keep],
        labels=target.labels[keep],
        area=target.area[keep],
        iscrowd=target.iscrowd[keep],
        difficult=target.difficult[keep],
    )


def resized(image: Tensor, target: Target, size: tuple[int, int]) -> tuple[Tensor, Target]:
    """Image and target at ``size`` (height, width)."""
    height, width = image.shape[-2:]
    if (height, width) == size:
        return image, target
    pixels = to_pixels(image)
    shrinks = size[0] <= height and size[1] <= width
    how = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    pixels = np.asarray(cv2.resize(pixels, size[::-1], interpolation=how), dtype=np.uint8)
    return to_image(pixels), scaled(target, size[0] / height, size[1] / width)


def scaled(target: Target, vertical: float, horizontal: float) -> Target:
    """The target with boxes and area in pixels of an image scaled by these factors."""
    if vertical == 1 and horizontal == 1:
        return target
    factors = torch.tensor([horizontal, vertical, horizontal, vertical])
    return replace(target, boxes=target.boxes * factors, area=target.area * (vertical * horizontal))


def to_pixels(image: Tensor) -> Pixels:
    """``uint8 [3, H, W]`` → contiguous ``uint8 [H, W, 3]``; no copy where it was laid out so."""
    return np.ascontiguousarray(image.permute(1, 2, 0).numpy())


def to_image(pixels: Pixels) -> Tensor:
    """``uint8 [H, W, 3]`` → a view ``uint8 [3, H, W]`` with the channels innermost in memory."""
    return torch.from_numpy(pixels).permute(2, 0, 1)


def with_boxes(target: Target, boxes: Tensor) -> Target:
    """New boxes; the area shrinks or grows as the box does."""
    old, new = _areas(target.boxes), _areas(boxes)
    return replace(target, boxes=boxes, area=target.area * new / old.clamp(min=1e-6))


def _areas(boxes: Tensor) -> Tensor:
    return (boxes[:, 2] - boxes[:, 0]).clamp(min=0) * (boxes[:, 3] - boxes[:, 1]).clamp(min=0)


def clipped(boxes: Tensor, height: int, width: int) -> Tensor:
    """Boxes cut off at the edges of an image of this size."""
    return torch.stack(
        [boxes[:, 0].clamp(0, width), boxes[:, 1].clamp(0, height),
         boxes[:, 2].clamp(0, width), boxes[:, 3].clamp(0, height)], dim=1,
    )  # fmt: skip
