"""Losses and detections do not depend on train() / eval(); crowds and empty boxes are left out."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from detpipe.core.types import Batch, Detector
from detpipe.models import tiny

from .conftest import batch, image, target


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return tiny.build(3, width=16, channels=16, score_thresh=0.0)


def test_is_a_detector(model: nn.Module) -> None:
    assert isinstance(model, Detector)


@pytest.mark.parametrize("training", [True, False])
def test_both_methods_work_in_both_modes(model: nn.Module, training: bool) -> None:
    model.train(training)
    losses = model(batch())
    assert losses and all(loss.ndim == 0 and loss.requires_grad for loss in losses.values())
    with torch.inference_mode():
        found = model.detect([image()])[0]
    assert len(found) > 0
    assert all(module.training is training for module in model.modules()), "modes restored"


def test_loss_in_evaluation_mode_leaves_batch_norm_alone(model: nn.Module) -> None:
    model.eval()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model(batch())
    model.train()
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


def test_modes_are_restored_after_an_error(model: nn.Module) -> None:
    model.eval()
    with pytest.raises(ValueError, match=r"must be \[3, H, W\]"):
        model(Batch((image()[:1],), (target([], []),)))
    assert not any(module.training for module in model.modules())


def test_crowds_and_boxes_without_area_are_left_out(model: nn.Module) -> None:
    model.eval()
    box, other = [8.0, 8.0, 40.0, 40.0], [20.0, 4.0, 60.0, 60.0]
    plain = Batch((image(),), (target([box], [1]),))
    busy = Batch(
        (image(),),
        (target([other, box, [5.0, 5.0, 5.0, 9.0]], [2, 1, 3], crowd=[True, False, False]),),
    )
    torch.manual_seed(1)
    expected = model(plain)
    torch.manual_seed(1)
    actual = model(busy)
    assert {n: v.item() for n, v in actual.items()} == {n: v.item() for n, v in expected.items()}
    torch.manual_seed(1)
    with_both = model(Batch((image(),), (target([other, box], [2, 1]),)))
    assert with_both["loss_objectness"].item() != expected["loss_objectness"].item()


def test_detections_of_several_sizes_stay_in_their_images(model: nn.Module) -> None:
    model.eval()
    images = [image(64, 96), image(80, 40, seed=1)]
    with torch.inference_mode():
        found = model.detect(images)
    for picture, detections in zip(images, found, strict=True):
        height, width = picture.shape[-2:]
        assert len(detections) > 0
        assert detections.boxes.min() >= 0
        assert detections.boxes[:, [0, 2]].max() <= width
        assert detections.boxes[:, [1, 3]].max() <= height
        assert (detections.scores.diff() <= 0).all(), "best first"
