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
_NOT_OF_ONE_IMAGE = {
    v2.MixUp: "mixes batches of classification; for boxes there is detpipe.data.mix.MixUp",
    v2.CutMix: "mixes batches of classification; for boxes there is detpipe.data.mix.Mosaic",
    v2.FiveCrop: "makes five images of one; RandomCrop makes one",
    v2.TenCrop: "makes ten images of one; RandomCrop makes one",
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
        ConfigError: the transform is none of one image.
    """

    def __init__(self, transform: v2.Transform) -> None:
        for kind, why in _NOT_OF_ONE_IMAGE.items():
            if isinstance(transform, kind):
                raise ConfigError(f"torchvision.transforms.v2.{kind.__name__} {why}")
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


def _sets_size(transform: nn.Module) -> bool:
    """Whether it, or one of those it chooses from, is told a size."""
    within = getattr(transform, "transforms", ())
    own = getattr(transform, "sets_size", isinstance(transform, _SIZING))
    return bool(own) or any(_sets_size(part) for part in within)
