"""The batch must be what torchvision's own transform makes of the same images."""

from __future__ import annotations

import pytest
import torch
from torchvision.models.detection.transform import GeneralizedRCNNTransform

from detpipe.models.transform import BatchTransform, ResizingTransform

from .conftest import image

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def _theirs(**options: object) -> GeneralizedRCNNTransform:
    return GeneralizedRCNNTransform(64, 640, MEAN, STD, **options)


@pytest.mark.parametrize("sizes", [[(64, 96)] * 3, [(64, 70), (64, 96)], [(64, 65)]])
def test_batch_equals_torchvisions(sizes: list[tuple[int, int]]) -> None:
    images = [image(*size, seed=i) for i, size in enumerate(sizes)]
    ours, _ = BatchTransform(MEAN, STD)(images)
    theirs, _ = _theirs()([picture / 255 for picture in images])
    assert ours.image_sizes == theirs.image_sizes == sizes
    torch.testing.assert_close(ours.tensors, theirs.tensors, rtol=0, atol=2e-6)


def test_fixed_size_equals_torchvisions() -> None:
    images = [image(50, 70), image(96, 80, seed=1)]
    boxes = [torch.tensor([[5.0, 10.0, 35.0, 50.0]]), torch.zeros(0, 4)]
    targets = [{"boxes": b, "labels": torch.ones(len(b), dtype=torch.int64)} for b in boxes]
    ours, our_targets = BatchTransform(MEAN, STD, fixed_size=(100, 80))(images, targets)
    theirs, their_targets = _theirs(fixed_size=(80, 100), size_divisible=1)(
        [picture / 255 for picture in images], targets
    )
    assert ours.tensors.shape == (2, 3, 100, 80)
    torch.testing.assert_close(ours.tensors, theirs.tensors, rtol=0, atol=5e-6)
    for mine, other in zip(our_targets, their_targets, strict=True):
        torch.testing.assert_close(mine["boxes"], other["boxes"])
    assert torch.equal(targets[0]["boxes"], torch.tensor([[5.0, 10.0, 35.0, 50.0]])), "changed"


def test_detections_return_to_the_pixels_given() -> None:
    transform = BatchTransform(fixed_size=(100, 80)).eval()
    found = [{"boxes": torch.tensor([[8.0, 20.0, 80.0, 100.0]])}]
    back = transform.postprocess(found, [(100, 80)], [(50, 160)])
    assert back[0]["boxes"].tolist() == [[16.0, 10.0, 160.0, 50.0]]


def test_resizing_transform_is_torchvisions_for_uint8() -> None:
    picture = image(50, 70)
    ours, _ = ResizingTransform(_theirs())([picture])
    theirs, _ = _theirs()([picture / 255])
    assert torch.equal(ours.tensors, theirs.tensors)
