from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from detpipe.core.types import Batch, Target
from detpipe.data.geometry import select
from detpipe.data.preview import draw_batch

NAMES = ["cat", "dog", "猫"]


def target(*boxes: list[float], labels: list[int] | None = None) -> Target:
    count = len(boxes)
    return Target(
        image_id="a picture",
        boxes=torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
        labels=torch.tensor(labels or [1] * count, dtype=torch.int64),
        area=torch.ones(count),
        iscrowd=torch.zeros(count, dtype=torch.bool),
        difficult=torch.zeros(count, dtype=torch.bool),
        original_size=(1, 1),
    )


def grey(height: int = 500, width: int = 400) -> Tensor:
    return torch.full((3, height, width), 90, dtype=torch.uint8)


def drawn(image: Tensor, objects: Target) -> np.ndarray:
    """The sheet's part with the picture."""
    sheet = np.asarray(draw_batch(Batch((image,), (objects,)), NAMES)).astype(int)
    rows, columns = image.shape[1:]
    return sheet[-8 - rows : -8, 8 : 8 + columns]


def test_pixels_are_those_the_model_gets() -> None:
    generator = torch.Generator().manual_seed(0)
    large = torch.randint(0, 256, (3, 410, 430), generator=generator, dtype=torch.uint8)
    small = torch.randint(0, 256, (3, 30, 50), generator=generator, dtype=torch.uint8)
    nothing = target()
    assert np.array_equal(drawn(large, nothing), large.permute(1, 2, 0).numpy())
    sheet = np.asarray(draw_batch(Batch((small,), (nothing,)), NAMES))
    enlarged = small.repeat_interleave(8, 1).repeat_interleave(8, 2).permute(1, 2, 0).numpy()
    assert np.array_equal(sheet[-8 - 240 : -8, 8 : 8 + 400], enlarged)


def test_boxes_lie_on_the_first_and_last_pixels_of_their_objects() -> None:
    picture = drawn(grey(), target([100, 200, 150, 260]))
    ys, xs = np.nonzero((picture[150:, :, :] != 90).any(2)[:, :])
    inside = picture[202:258, 102:148]
    assert (inside == 90).all()
    assert (ys.max() + 150, xs.min(), xs.max()) == (259, 100, 149)
    edge = picture[200:260, 100]
    assert (edge == edge[0]).all()
    assert (edge[0] != 90).any()


def test_classes_have_colours_of_their_own() -> None:
    boxes = [[10.0, 300, 100, 400], [150, 300, 240, 400], [290, 300, 380, 400]]
    picture = drawn(grey(), target(*boxes, labels=[1, 2, 3]))
    colours = {tuple(picture[350, x]) for x in (10, 150, 290)}
    assert len(colours) == 3
    assert (90, 90, 90) not in colours


@pytest.mark.parametrize("vertical", [False, True])
def test_crowd_regions_are_dashed(vertical: bool) -> None:
    objects = target([20, 200, 380, 480])
    crowd = replace(objects, iscrowd=torch.tensor([True]))
    shares = []
    for one in (objects, crowd):
        picture = drawn(grey(), one)
        line = picture[200:480, 20] if vertical else picture[479, 20:380]
        shares.append((line != 90).any(1).mean())
    assert shares[0] == 1
    assert 0.4 < shares[1] < 0.7


def test_difficult_objects_are_thin_and_both_kinds_are_named() -> None:
    objects = target([100, 200, 300, 400])
    difficult = drawn(grey(), replace(objects, difficult=torch.tensor([True])))
    plain = drawn(grey(), objects)
    crowd = drawn(grey(), replace(objects, iscrowd=torch.tensor([True])))
    assert (plain[300, 101] != 90).any()
    assert (difficult[300, 100] != 90).any()
    assert (difficult[300, 101] == 90).all()
    labels = [int((p[180:199] != 90).any(2).sum()) for p in (plain, crowd, difficult)]
    assert labels[0] < labels[1] < labels[2]  # "cat", "cat, crowd", "cat, difficult"


def test_labels_stay_in_the_picture() -> None:
    picture = drawn(grey(), target([0, 0, 30, 30], [390, 490, 400, 500], labels=[1, 2]))
    assert (picture[2:6, 2:6] != 90).any()
    assert (picture[470:488, 375:399] != 90).any()


def test_sheets_of_any_batch() -> None:
    whole = target([1, 2, 3, 4])
    pictures = [grey(20, 30), grey(700, 30), grey(30, 500), grey(1, 1), grey(40, 40)]
    batch = Batch(tuple(pictures), (select(whole, torch.tensor([False])), *[whole] * 4))
    sheet = draw_batch(batch, NAMES)
    assert isinstance(sheet, Image.Image)
    assert sheet.size == (3 * (500 + 8) + 8, 2 * (700 + 18 + 8) + 8)
    assert draw_batch(Batch((), ()), NAMES).size[0] > 0
