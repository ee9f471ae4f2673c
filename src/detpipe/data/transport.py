"""How a batch travels from a worker process.

A shared-memory segment for each tensor of each image would cost more than decoding the images.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from detpipe.core.types import Batch, Target


@dataclass(frozen=True, slots=True)
class FlatBatch:
    """A batch as one tensor of pixels and a few arrays.

    Attributes:
        pixels: ``uint8``, all images one after the other, each ``[H, W, 3]``.
        sizes: (height, width) of each image.
        counts: boxes of each image.
        numbers: ``float32 [N, 5]``, boxes and area of all images.
        flags: ``bool [2, N]``, iscrowd and difficult.
        labels: ``int64 [N]``.
        image_ids: one per image.
        original_sizes: one per image.
        paths: one per image.
    """

    pixels: Tensor
    sizes: list[tuple[int, int]]
    counts: list[int]
    numbers: npt.NDArray[np.float32]
    flags: npt.NDArray[np.bool_]
    labels: npt.NDArray[np.int64]
    image_ids: list[str]
    original_sizes: list[tuple[int, int]]
    paths: list[str]

    @classmethod
    def of(cls, images: list[Tensor], targets: list[Target], paths: list[str]) -> FlatBatch:
        """Packs images (``uint8 [3, H, W]``) and their targets."""
        numbers = [torch.cat([t.boxes, t.area[:, None]], dim=1) for t in targets]
        return cls(
            pixels=torch.cat([image.permute(1, 2, 0).reshape(-1) for image in images]),
            sizes=[(image.shape[-2], image.shape[-1]) for image in images],
            counts=[len(t.boxes) for t in targets],
            numbers=torch.cat(numbers).numpy(),
            flags=torch.cat([torch.stack([t.iscrowd, t.difficult]) for t in targets], 1).numpy(),
            labels=torch.cat([t.labels for t in targets]).numpy(),
            image_ids=[t.image_id for t in targets],
            original_sizes=[t.original_size for t in targets],
            paths=paths,
        )

    def pin_memory(self) -> FlatBatch:
        """The same with the pixels in page-locked memory (called by the DataLoader)."""
        return replace(self, pixels=self.pixels.pin_memory())

    def batch(self) -> Batch:
        """Unpacks; images are views with the channels innermost in memory."""
        lengths = [3 * height * width for height, width in self.sizes]
        images = [
            part.view(height, width, 3).permute(2, 0, 1)
            for part, (height, width) in zip(
                torch.split(self.pixels, lengths), self.sizes, strict=True
            )
        ]
        numbers = torch.split(torch.from_numpy(self.numbers), self.counts)
        flags = torch.split(torch.from_numpy(self.flags), self.counts, dim=1)
        labels = torch.split(torch.from_numpy(self.labels), self.counts)
        targets = [
            Target(
                image_id=self.image_ids[i],
                boxes=numbers[i][:, :4].contiguous(),
                labels=labels[i],
                area=numbers[i][:, 4].contiguous(),
                iscrowd=flags[i][0],
                difficult=flags[i][1],
                original_size=self.original_sizes[i],
            )
            for i in range(len(images))
        ]
        return Batch(tuple(images), tuple(targets), tuple(self.paths))
