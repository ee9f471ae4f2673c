"""Small batches, and a way to make an untrained detector's output non-degenerate."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from detpipe.core.types import Batch, Target


@pytest.fixture(autouse=True)
def _one_seed() -> None:
    torch.manual_seed(0)


def target(
    boxes: list[list[float]], labels: list[int], *, crowd: list[bool] | None = None
) -> Target:
    tensor = torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4)
    return Target(
        image_id="0",
        boxes=tensor,
        labels=torch.tensor(labels, dtype=torch.int64),
        area=(tensor[:, 2] - tensor[:, 0]) * (tensor[:, 3] - tensor[:, 1]),
        iscrowd=torch.tensor(crowd or [False] * len(labels), dtype=torch.bool),
        difficult=torch.zeros(len(labels), dtype=torch.bool),
        original_size=(64, 64),
    )


def image(height: int = 64, width: int = 64, *, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=generator)


def rectangles(boxes: list[list[int]], size: int = 64, *, seed: int = 0) -> Tensor:
    """Noise with a bright rectangle at every box."""
    pixels = image(size, size, seed=seed) // 4
    for x1, y1, x2, y2 in boxes:
        pixels[:, y1:y2, x1:x2] += 160
    return pixels


def batch(*, size: int = 64, label: int = 1) -> Batch:
    """Two images: one with one object, one without any."""
    boxes = [[size // 4, size // 4, size * 3 // 4, size * 3 // 4]]
    return Batch(
        (rectangles(boxes, size), image(size, size, seed=1)),
        (target([list(map(float, boxes[0]))], [label]), target([], [])),
    )


def roughen(model: nn.Module, gain: float = 1.5) -> nn.Module:
    """Makes scores differ from box to box, as after training: near ties prove nothing."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and ("head" in name or "predictor" in name):
                spread = 1 / parameter[0].numel() ** 0.5
                parameter.normal_(0, gain * spread, generator=generator)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = None  # the plain mean over the passes below
                module.reset_running_stats()
    return model
