"""Transforms of training images and their boxes.

A transform is any callable ``(image, target) -> (image, target)``, see
:mod:`detpipe.data.transform`. Those of ``torchvision.transforms.v2`` can be named in the
configuration as they are.
"""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import torch
from torch import Tensor
from torchvision.ops import box_iou
from torchvision.transforms import v2

from detpipe.core.config import Spec, locate, transform_args
from detpipe.core.errors import ConfigError
from detpipe.core.types import Target
from detpipe.data.colour import (
    adjust_brightness,
    adjust_contrast,
    adjust_hue,
    adjust_saturation,
)
from detpipe.data.draws import between, interval, probability
from detpipe.data.draws import colour as checked_colour
from detpipe.data.geometry import clipped, resized, select, to_image, to_pixels, with_boxes
from detpipe.data.transform import Transform
from detpipe.data.wrapped import Torchvision, refuse


def build(spec: Spec) -> Transform:
    """The transform a spec names.

    It is a function of ``(image, target)``, or a class or factory that makes one; one of
    torchvision's is wrapped in :class:`Torchvision`.

    Raises:
        ConfigError: the spec does not fit, or what it builds cannot be called.
    """
    if args := transform_args(spec):
        return spec.partial(args=args)
    refuse(locate(spec.use))
    try:
        transform = spec.build()
    except ConfigError:
        raise
    except (TypeError, ValueError) as error:  # torchvision's own words about its options
        raise ConfigError(f"{spec.use}: {error}") from error
    if isinstance(transform, v2.Transform):
        return Torchvision(transform)
    if not callable(transform) or isinstance(transform, torch.nn.Module):
        raise ConfigError(
            f"use: '{spec.use}' gives a {type(transform).__name__}, which is no transform of "
            f"(image, target); write a function of both, or name one of torchvision.transforms.v2"
        )
    return transform  # type: ignore[no-any-return]


class HorizontalFlip:
    """Mirrors left and right.

    Args:
        p: how often, 0..1.
    """

    def __init__(self, *, p: float = 0.5) -> None:
        self._p = probability(p, "HorizontalFlip")

    def __call__(self, image: Tensor, target: Target) -> tuple[Tensor, Target]:
        """Mirrors the image and its boxes, or leaves both."""
        if torch.rand(()).item() >= self._p:
            return image, target
        width = image.shape[-1]
        boxes = target.boxes.clone()
        boxes[:, 0], boxes[:, 2] = width - target.boxes[:, 2], width - target.boxes[:, 0]
        return image.flip(-1), replace(target, boxes=boxes)


class PhotometricDistort:
    """Changes brightness, contrast, saturation and hue, and swaps channels (SSD's recipe).

    The same five steps, ranges and order as torchvision's ``RandomPhotometricDistort``, on bytes
    by look-up tables: equal to within rounding, and a small part of its time.

    Args:
        brightness: range of the factor on all values.
        contrast: range of the factor on the distance from the mean grey.
        saturation: range of the factor on the distance from grey.
        hue: range of the turn of the colour circle, -0.5..0.5.
        p: how often each step happens.
    """

    def __init__(
        self,
        *,
        brightness: tuple[float, float] = (0.875, 1.125),
        contrast: tuple[float, float] = (0.5, 1.5),
        saturation: tuple[float, float] = (0.5, 1.5),
        hue: tuple[float, float] = (-0.05, 0.05),
        p: float = 0.5,
    ) -> None:
        self._brightness = interval(brightness, "brightness", 0, float("inf"))
        self._contrast = interval(contrast, "contrast", 0, float("inf"))
        self._saturation = interval(saturation, "saturation", 0, float("inf"))
        self._hue = interval(hue, "hue", -0.5, 0.5)
        self._p = probability(p, "PhotometricDistort")

    def __call__(self, image: Tensor, target: Target) -> tuple[Tensor, Target]:
        """Distorts the image's colours; the target stays."""
        chance = torch.rand(7).tolist()  # one draw for everything, as each draw costs
        happens = [c < self._p for c in chance[:5]]
        contrast_first = chance[5] < 0.5
        amount = torch.rand(4).tolist()
        pixels = to_pixels(image)
        if happens[0]:
            pixels = adjust_brightness(pixels, between(self._brightness, amount[0]))
        if happens[1] and contrast_first:
            pixels = adjust_contrast(pixels, between(self._contrast, amount[1]))
        if happens[2]:
            pixels = adjust_saturation(pixels, between(self._saturation, amount[2]))
        if happens[3]:
            pixels = adjust_hue(pixels, between(self._hue, amount[3]))
        if happens[1] and not contrast_first:
            pixels = adjust_contrast(pixels, between(self._contrast, amount[1]))
        if happens[4]:
            pixels = np.ascontiguousarray(pixels[..., torch.randperm(3).tolist()])
        return to_image(pixels), target


class ZoomOut:
    """Puts the image somewhere on a larger canvas of one colour (SSD's expansion).

    Args:
        fill: grey value or RGB of the canvas, 0..255.
        side_range: range of canvas side / image side, 1 or more.
        p: how often.
    """

    def __init__(
        self,
        *,
        fill: int | tuple[int, int, int] = (124, 116, 104),
        side_range: tuple[float, float] = (1.0, 4.0),
        p: float = 0.5,
    ) -> None:
        self._fill = checked_colour(fill, "ZoomOut: fill")
        self._side_range = interval(side_range, "side_range", 1, float("inf"))
        self._p = probability(p, "ZoomOut")

    def __call__(self, image: Tensor, target: Target) -> tuple[Tensor, Target]:
        """The larger image with its boxes moved, or both as they are."""
        chance = torch.rand(4).tolist()
        if chance[0] >= self._p:
            return image, target
        height, width = image.shape[-2:]
        ratio = between(self._side_range, chance[1])
        down, right = int(height * ratio) - height, int(width * ratio) - width
        top, left = int(down * chance[2]), int(right * chance[3])
        canvas = cv2.copyMakeBorder(
            to_pixels(image), top, down - top, left, right - left, cv2.BORDER_CONSTANT,
            value=self._fill,
        )  # fmt: skip
        boxes = target.boxes + torch.tensor([left, top, left, top], dtype=torch.float32)
        return to_image(np.asarray(canvas, dtype=np.uint8)), replace(target, boxes=boxes)


class IoUCrop:
    """Cuts out a part that overlaps an object by at least a drawn amount (SSD's crop).

    As torchvision's ``RandomIoUCrop``: boxes whose centre lies in the part stay, clipped. An
    image without boxes stays as it is.

    Args:
        min_scale: smallest side of the part as a share of the image's.
        max_scale: largest.
        min_aspect_ratio: smallest width / height of the part.
        max_aspect_ratio: largest.
        overlaps: the least IoU of part and some object, drawn from these; 1 keeps the image whole.
        trials: how many parts are tried before another overlap is drawn.
    """

    def __init__(
        self,
        *,
        min_scale: float = 0.3,
        max_scale: float = 1.0,
        min_aspect_ratio: float = 0.5,
        max_aspect_ratio: float = 2.0,
        overlaps: tuple[float, ...] = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0),
        trials: int = 40,
    ) -> None:
        self._scale = interval((min_scale, max_scale), "min_scale, max_scale", 0, 1)
        aspect = min_aspect_ratio, max_aspect_ratio
        self._aspect = interval(aspect, "min_aspect_ratio, max_aspect_ratio", 0, float("inf"))
        if not overlaps or max(overlaps) < 1:
            raise ConfigError(f"IoUCrop: overlaps must contain 1 (no crop), got {overlaps}")
        self._overlaps, self._trials = overlaps, trials

    def __call__(self, image: Tensor, target: Target) -> tuple[Tensor, Target]:
        """The part and what is in it, or both as they are."""
        height, width = image.shape[-2:]
        while len(target.boxes):
            least = self._overlaps[int(torch.randint(len(self._overlaps), ()).item())]
            if least >= 1:
                break
            parts = self._draw(height, width)
            centres = (target.boxes[:, :2] + target.boxes[:, 2:]) / 2
            inside = (centres > parts[:, None, :2]).all(-1) & (centres < parts[:, None, 2:]).all(-1)
            overlap = box_iou(parts, target.boxes).where(inside, -1).max(dim=1).values
            good = torch.nonzero(overlap >= least)
            if len(good):
                chosen = int(good[0])
                left, top, right, bottom = (int(v) for v in parts[chosen].tolist())
                kept = select(target, inside[chosen])
                boxes = kept.boxes - torch.tensor([left, top, left, top], dtype=torch.float32)
                boxes = clipped(boxes, bottom - top, right - left)
                return image[:, top:bottom, left:right], with_boxes(kept, boxes)
        return image, target

    def _draw(self, height: int, width: int) -> Tensor:
        """Parts ``[K, 4]`` in whole pixels, those of the wrong shape left out."""
        chance = torch.rand(self._trials, 4)
        low, high = self._scale
        sides = ((low + (high - low) * chance[:, :2]) * torch.tensor([width, height])).floor()
        corner = ((torch.tensor([width, height]) - sides) * chance[:, 2:]).floor()
        aspect = sides[:, 0] / sides[:, 1]
        fits = (aspect >= self._aspect[0]) & (aspect <= self._aspect[1]) & (sides >= 1).all(1)
        return torch.cat([corner, corner + sides], dim=1)[fits]


class RandomSize:
    """Multi-scale training: one of several shorter sides, aspect ratio kept.

    It decides the size at which the image reaches the model; ``stream.resize`` is not applied
    again after it.

    Args:
        short_sides: the sizes to draw from, pixels.
        long_side: the longer side stays within this; None for no limit.
    """

    sets_size = True

    def __init__(self, *, short_sides: tuple[int, ...], long_side: int | None = None) -> None:
        if not short_sides or min(short_sides) <= 0:
            raise ConfigError(f"RandomSize: short_sides must be sizes above 0, got {short_sides}")
        self._short_sides, self._long_side = short_sides, long_side

    def __call__(self, image: Tensor, target: Target) -> tuple[Tensor, Target]:
        """The image at the drawn size, boxes and area with it."""
        short = self._short_sides[int(torch.randint(len(self._short_sides), ()).item())]
        height, width = image.shape[-2:]
        scale = short / min(height, width)
        if self._long_side:
            scale = min(scale, self._long_side / max(height, width))
        return resized(image, target, (max(1, round(height * scale)), max(1, round(width * scale))))


class FixedSizeCrop:
    """Crops or pads to a fixed size, after ``ScaleJitter`` (large-scale jitter).

    A side that is too long is cut at a random place; one that is too short is filled up at the
    right or at the bottom. It decides the size at which the image reaches the model, as
    :class:`RandomSize` does.

    Args:
        size: (height, width) of the result, pixels.
        fill: grey value or RGB of what is added, 0..255.
    """

    sets_size = True

    def __init__(
        self, *, size: tuple[int, int], fill: int | tuple[int, int, int] = (124, 116, 104)
    ) -> None:
        if min(size) < 1:
            raise ConfigError(f"FixedSizeCrop: size must be [height, width] above 0, got {size}")
        self._size, self._fill = size, checked_colour(fill, "FixedSizeCrop: fill")

    def __call__(self, image: Tensor, target: Target) -> tuple[Tensor, Target]:
        """The image at the size, with the boxes that are left in it."""
        height, width = min(image.shape[-2], self._size[0]), min(image.shape[-1], self._size[1])
        chance = torch.rand(2).tolist()
        top = int((image.shape[-2] - height + 1) * chance[0])
        left = int((image.shape[-1] - width + 1) * chance[1])
        image = image[:, top : top + height, left : left + width]
        boxes = target.boxes - torch.tensor([left, top, left, top], dtype=torch.float32)
        cut = clipped(boxes, height, width)
        sides, full = cut[:, 2:] - cut[:, :2], boxes[:, 2:] - boxes[:, :2]
        target = select(with_boxes(target, cut), (sides >= full.clamp(max=1.0)).all(dim=1))
        below, beside = self._size[0] - height, self._size[1] - width
        if below or beside:
            padded = cv2.copyMakeBorder(
                to_pixels(image), 0, below, 0, beside, cv2.BORDER_CONSTANT, value=self._fill
            )
            image = to_image(np.asarray(padded, dtype=np.uint8))
        return image, target
