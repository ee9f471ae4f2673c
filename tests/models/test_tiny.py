"""The small detector: it learns, in every part of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torchvision.ops import box_iou

from detpipe.core.errors import ConfigError, WeightsError
from detpipe.core.types import Batch
from detpipe.models import tiny

from .conftest import batch, image, rectangles, target


def test_every_parameter_gets_a_gradient() -> None:
    model = tiny.build(3, width=16, channels=16).train()
    sum(model(batch()).values()).backward()
    without = [n for n, p in model.named_parameters() if p.grad is None]
    assert not without


def test_batch_without_any_box() -> None:
    model = tiny.build(3, width=16, channels=16).train()
    losses = model(Batch((image(), image(seed=1)), (target([], []), target([], []))))
    assert all(torch.isfinite(loss) for loss in losses.values())
    sum(losses.values()).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_max_detections_and_score_threshold() -> None:
    model = tiny.build(3, width=16, channels=16, score_thresh=0.0, max_detections=7).eval()
    with torch.inference_mode():
        assert len(model.detect([image(128, 128)])[0]) == 7
    model = tiny.build(3, width=16, channels=16, score_thresh=0.99).eval()
    with torch.inference_mode():
        found = model.detect([image()])[0]
    assert len(found) == 0
    assert found.boxes.shape == (0, 4)


def test_size_of_the_default_model() -> None:
    """The size the README speaks of."""
    parameters = sum(p.numel() for p in tiny.build(6).parameters())
    assert 1.0e6 < parameters < 1.4e6


def test_weights_from_a_file(tmp_path: Path) -> None:
    model = tiny.build(3, width=16, channels=16)
    torch.save(model.state_dict(), tmp_path / "w.pth")
    again = tiny.build(3, width=16, channels=16, weights=str(tmp_path / "w.pth"))
    for name, value in again.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name
    with pytest.raises(WeightsError, match="there is no file"):
        tiny.build(3, weights=str(tmp_path / "absent.pth"))


def test_wrong_number_of_anchor_sizes() -> None:
    with pytest.raises(ConfigError, match="anchor_sizes"):
        tiny.build(3, anchor_sizes=[32, 64])


@pytest.mark.slow
def test_learns_one_batch_by_heart() -> None:
    model = tiny.build(2, width=32).train()
    boxes = [[[8, 8, 40, 40]], [[60, 20, 100, 90], [10, 70, 50, 110]]]
    images = tuple(rectangles(b, 128, seed=i) for i, b in enumerate(boxes))
    images[1][0, 70:110, 10:50] = 0  # the second class is not white
    targets = (
        target([[8.0, 8, 40, 40]], [1]),
        target([[60.0, 20, 100, 90], [10, 70, 50, 110]], [1, 2]),
    )
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(150):
        optimizer.zero_grad()
        sum(model(Batch(images, targets)).values()).backward()
        optimizer.step()
    model.eval()
    with torch.inference_mode():
        found = model.detect(list(images))
    for detections, truth in zip(found, targets, strict=True):
        sure = detections.scores > 0.5
        assert sorted(detections.labels[sure].tolist()) == sorted(truth.labels.tolist())
        overlap = box_iou(truth.boxes, detections.boxes[sure]).amax(dim=1)
        assert overlap.min() > 0.75
