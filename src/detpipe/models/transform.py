"""From uint8 images to the normalised batch a torchvision detector works on, and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.detection.image_list import ImageList

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class BatchTransform(nn.Module):
    """Stands in for torchvision's ``GeneralizedRCNNTransform``, without its resize per image.

    Images come at the size the stream gave them; they are normalised in one pass over the batch
    and padded with zeros at the right and the bottom. With ``fixed_size`` (the SSD family) they
    are stretched to it first. The result equals torchvision's for images already at model size.

    Args:
        mean: of RGB in 0..1.
        std: of RGB in 0..1.
        size_divisible: height and width of the batch are padded to a multiple of this.
        fixed_size: (height, width) every image is stretched to.
    """

    def __init__(
        self,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
        *,
        size_divisible: int = 32,
        fixed_size: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        self.size_divisible, self.fixed_size = size_divisible, fixed_size
        self.image_mean, self.image_std = list(mean), list(std)
        # Not part of the weights: torchvision's files do not hold them.
        self.register_buffer("scale", 1 / (255 * torch.tensor(std).view(3, 1, 1)), persistent=False)
        self.register_buffer(
            "shift", -torch.tensor(mean).view(3, 1, 1) / torch.tensor(std).view(3, 1, 1),
            persistent=False,
        )  # fmt: skip
        self.scale: Tensor
        self.shift: Tensor

    def forward(
        self, images: Sequence[Tensor], targets: list[dict[str, Tensor]] | None = None
    ) -> tuple[ImageList, list[dict[str, Tensor]] | None]:
        """The batch, and the targets with their boxes in its pixels.

        Args:
            images: ``uint8 [3, H, W]`` RGB each (or float in 0..255).
            targets: ``boxes`` float [N, 4] and ``labels`` int64 [N] of each image.

        Raises:
            ValueError: an image has another shape (a grey one would broadcast silently).
        """
        for image in images:
            if image.ndim != 3 or image.shape[0] != 3:
                raise ValueError(f"images must be [3, H, W], got {list(image.shape)}")
        # As plain numbers: an exported graph has one fixed size.
        sizes = [(int(image.shape[-2]), int(image.shape[-1])) for image in images]
        if self.fixed_size is not None:
            images = self._stretch(images)
            if targets is not None:
                targets = [
                    {**target, "boxes": _scaled(target["boxes"], size, self.fixed_size)}
                    for target, size in zip(targets, sizes, strict=True)
                ]
            sizes = [self.fixed_size] * len(sizes)
        return ImageList(self._batch(images, sizes), sizes), targets

    def postprocess(
        self,
        result: list[dict[str, Tensor]],
        image_shapes: list[tuple[int, int]],
        original_image_sizes: list[tuple[int, int]],
    ) -> list[dict[str, Tensor]]:
        """The results with their boxes in pixels of the images that were given."""
        if self.fixed_size is None or self.training:
            return result
        return [
            {**found, "boxes": _scaled(found["boxes"], self.fixed_size, original)}
            for found, original in zip(result, original_image_sizes, strict=True)
        ]

    def _stretch(self, images: Sequence[Tensor]) -> list[Tensor]:
        return [
            image
            if image.shape[-2:] == self.fixed_size
            else F.interpolate(
                image[None].to(self.scale.dtype),
                size=self.fixed_size,
                mode="bilinear",
                align_corners=False,
            )[0]
            for image in images
        ]

    def _batch(self, images: Sequence[Tensor], sizes: list[tuple[int, int]]) -> Tensor:
        # SSD's feature maps are laid out for its exact size: no padding there.
        divisor = 1 if self.fixed_size else self.size_divisible
        height = math.ceil(max(size[0] for size in sizes) / divisor) * divisor
        width = math.ceil(max(size[1] for size in sizes) / divisor) * divisor
        if len(set(sizes)) == 1:
            batch = torch.stack(list(images)).to(self.scale.dtype)
            batch = torch.addcmul(self.shift, batch, self.scale)
            return F.pad(batch, (0, width - sizes[0][1], 0, height - sizes[0][0]))
        batch = self.scale.new_zeros(len(images), 3, height, width)
        for i, image in enumerate(images):
            batch[i, :, : sizes[i][0], : sizes[i][1]] = torch.addcmul(
                self.shift, image.to(self.scale.dtype), self.scale
            )
        return batch


class ResizingTransform(nn.Module):
    """torchvision's own transform (short side to ``min_size``) for uint8 images.

    Args:
        inner: the transform the builder made.
    """

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner: Any = inner

    def forward(
        self, images: Sequence[Tensor], targets: list[dict[str, Tensor]] | None = None
    ) -> Any:
        """As :meth:`BatchTransform.forward`."""
        return self.inner([image.to(torch.float32) / 255 for image in images], targets)

    def postprocess(self, *args: Any) -> Any:
        """As :meth:`BatchTransform.postprocess`."""
        if self.training:
            return args[0]
        return self.inner.postprocess(*args)


def _scaled(boxes: Tensor, source: tuple[int, int], goal: tuple[int, int]) -> Tensor:
    """Boxes in pixels of an image of ``source`` (height, width) in those of ``goal``."""
    y, x = goal[0] / source[0], goal[1] / source[1]
    return boxes * boxes.new_tensor([x, y, x, y])
