"""The values that pass between the stream, the detector and the loop.

Images are ``uint8`` RGB ``[3, H, W]``, upright, until a detector normalises them. Boxes are
``float32 [N, 4]`` as ``x1 y1 x2 y2`` in pixels of the image they come with, 0-based, x2/y2
exclusive; an image without objects has ``N = 0``. Labels are ``int64 [N]`` in ``1..C``; 0 is
background.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is to be found in one image.

    Attributes:
        image_id: the image's id in the ``images`` table.
        boxes: ``float32 [N, 4]`` x1 y1 x2 y2, pixels of the image in the batch.
        labels: ``int64 [N]``, 1..C.
        area: ``float32 [N]``, square pixels of the image in the batch.
        iscrowd: ``bool [N]``; crowd regions are left out of the loss.
        difficult: ``bool [N]`` (Pascal VOC).
        original_size: (height, width) of the upright image on disk; detections are scaled to it.
    """

    image_id: str
    boxes: Tensor
    labels: Tensor
    area: Tensor
    iscrowd: Tensor
    difficult: Tensor
    original_size: tuple[int, int]

    def to(self, device: torch.device | str) -> Target:
        """The same target with its tensors on ``device``."""
        return replace(
            self,
            boxes=self.boxes.to(device, non_blocking=True),
            labels=self.labels.to(device, non_blocking=True),
            area=self.area.to(device, non_blocking=True),
            iscrowd=self.iscrowd.to(device, non_blocking=True),
            difficult=self.difficult.to(device, non_blocking=True),
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch: images and what is in them, index by index.

    Attributes:
        images: ``uint8 [3, H, W]`` RGB each; heights and widths may differ.
        targets: one per image.
        paths: one per image, for messages.
    """

    images: tuple[Tensor, ...]
    targets: tuple[Target, ...]
    paths: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.images)

    def to(self, device: torch.device | str) -> Batch:
        """The same batch with its tensors on ``device``."""
        return Batch(
            tuple(image.to(device, non_blocking=True) for image in self.images),
            tuple(target.to(device) for target in self.targets),
            self.paths,
        )

    def pin_memory(self) -> Batch:
        """The same batch with its images in page-locked memory (called by the DataLoader)."""
        return Batch(tuple(image.pin_memory() for image in self.images), self.targets, self.paths)


@dataclass(frozen=True, slots=True)
class Detections:
    """What a detector found in one image, best first.

    Attributes:
        boxes: ``float32 [N, 4]`` x1 y1 x2 y2, pixels of the image given to ``detect``.
        scores: ``float32 [N]``, 0..1.
        labels: ``int64 [N]``, 1..C.
    """

    boxes: Tensor
    scores: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return int(self.scores.shape[0])


@runtime_checkable
class Detector(Protocol):
    """An ``nn.Module`` with two methods; neither depends on ``train()`` / ``eval()`` for its type.

    Calling it gives the training losses, so DDP and compile wrap it unchanged; ``detect`` gives
    detections. The caller switches ``train()`` and ``eval()``.
    """

    def __call__(self, batch: Batch) -> Mapping[str, Tensor]:
        """Named losses, each a scalar tensor with gradient; their sum is what training lowers."""
        ...

    def detect(self, images: Sequence[Tensor]) -> list[Detections]:
        """What is in each of ``images`` (``uint8 [3, H, W]``), in their order."""
        ...


class Weights(NamedTuple):
    """A trained model as it passes between pipelines.

    ``metadata`` holds plain values: ``classes`` (names in label order), ``model`` (the spec it was
    built from), ``resize``, ``step``, ``published`` (final or best), ``versions``.
    """

    state: dict[str, Tensor]
    metadata: dict[str, Any]
