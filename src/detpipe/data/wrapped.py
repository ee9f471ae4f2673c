"""Transforms of ``torchvision.transforms.v2`` as transforms of (image, target)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torchvision import tv_tensors
from torchvision.transforms import v2

from detpipe.core.errors import ConfigError
from detpipe.core.types import Target
from detpipe.data.geometry import clipped, select, with_boxes

_SIZING = (
    v2.Resize, v2.RandomResize, v2.RandomShortestSize, v2.ScaleJitter,
    v2.RandomCrop, v2.CenterCrop, v2.RandomResizedCrop,
)  # fmt: skip
_NO_BOXES = "does not move boxes with the image; take the transforms it draws from one by one"
_NORMALISED = "gives no bytes; detectors take uint8 and normalise it themselves: take it out"
_NESTED = (
    "holds transforms of its own, which YAML cannot name; list them in train.augment, or write a "
    "function of (image, target) that calls it"
)
_NEVER: dict[type[nn.Module], str] = {
    v2.MixUp: "mixes batches of classification; for boxes there is detpipe.data.mix.MixUp",
    v2.CutMix: "mixes batches of classification; for boxes there is detpipe.data.mix.Mosaic",
    v2.FiveCrop: "makes five images of one; RandomCrop makes one",
    v2.TenCrop: "makes ten images of one; RandomCrop makes one",
    v2.AutoAugment: _NO_BOXES,
    v2.RandAugment: _NO_BOXES,
    v2.TrivialAugmentWide: _NO_BOXES,
    v2.AugMix: _NO_BOXES,
    v2.ConvertBoundingBoxFormat: "gives boxes that are not x1 y1 x2 y2",
}
"""Neither alone nor as a part of another."""
_NOT_ALONE: dict[type[nn.Module], str] = {
    v2.Normalize: _NORMALISED,
    v2.ToDtype: _NORMALISED,
    v2.ToPILImage: "gives no tensor, which everything after it needs",
    v2.LinearTransformation: _NORMALISED,
    v2.Compose: _NESTED,
    v2.RandomApply: _NESTED,
    v2.RandomChoice: _NESTED,
    v2.RandomOrder: _NESTED,
}


class Torchvision:
    """A ``torchvision.transforms.v2`` transform on (image, target).

    Whatever it does to the boxes, the other fields of the target stay in step: boxes cut away or
    left with less than a pixel are taken out with their labels.

    Args:
        transform: the transform.

    Attributes:
        sets_size: the transform, or one within it, is told an output size in pixels. Zooming out,
            rotating and cropping to a share of the image are not, nor is a border of ``Pad``.

    Raises:
        ConfigError: the transform cannot be used for detection; see :func:`refuse`.
    """

    def __init__(self, transform: v2.Transform) -> None:
        for part in transform.modules():
            refuse(type(part), alone=False)
        self._transform = transform
        self.sets_size = _sets_size(transform)

    def __call__(self, image: Tensor, target: Target) -> tuple[Tensor, Target]:
        """Transforms both.

        Raises:
            ConfigError: the transform does not leave a uint8 image of three channels.
        """
        sample = {
            "image": tv_tensors.Image(image),
            "boxes": tv_tensors.BoundingBoxes(
                target.boxes, format="XYXY", canvas_size=tuple(image.shape[-2:])
            ),
            "labels": torch.arange(len(target.boxes)),  # which boxes are left afterwards
        }
        result = self._transform(sample)
        changed = result["image"].as_subclass(Tensor)
        if changed.dtype != torch.uint8 or changed.ndim != 3 or changed.shape[0] != 3:
            raise ConfigError(
                f"transform {self._transform} gives an image of {changed.dtype} "
                f"{tuple(changed.shape)}; detectors take uint8 of 3 channels and normalise it "
                f"themselves: take ToDtype and Normalize out of the transforms"
            )
        height, width = changed.shape[-2:]
        boxes = result["boxes"].as_subclass(Tensor).to(torch.float32)
        boxes = clipped(boxes, height, width)
        before = select(target, result["labels"])
        target = with_boxes(before, boxes)
        sides, old = boxes[:, 2:] - boxes[:, :2], before.boxes[:, 2:] - before.boxes[:, :2]
        return changed, select(target, (sides >= old.clamp(max=1.0)).all(dim=1))


def refuse(kind: object, *, alone: bool = True) -> None:
    """Refuses those transforms of torchvision that cannot be used here.

    Args:
        kind: a class of ``torchvision.transforms.v2``; anything else is let through.
        alone: it is named by itself; false for what a user's own code has put together.

    Raises:
        ConfigError: with the reason and what to do instead.
    """
    reasons = {**_NEVER, **_NOT_ALONE} if alone else _NEVER
    why = reasons.get(kind) if isinstance(kind, type) else None
    if why:
        raise ConfigError(f"torchvision.transforms.v2.{kind.__name__} {why}")  # type: ignore[attr-defined]


def _sets_size(transform: nn.Module) -> bool:
    """Whether it, or one of those it chooses from, is told a size."""
    within = getattr(transform, "transforms", ())
    own = getattr(transform, "sets_size", isinstance(transform, _SIZING))
    return bool(own) or any(_sets_size(part) for part in within)
