from __future__ import annotations

import colorsys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as reference

from detpipe.core.config import Spec
from detpipe.core.errors import ConfigError
from detpipe.core.types import Target
from detpipe.data import augment, colour
from detpipe.data.geometry import select, to_image, to_pixels

OURS = "detpipe.data.augment"
THEIRS = "torchvision.transforms.v2"


@pytest.fixture
def image() -> Tensor:
    ramp = np.mgrid[0:48, 0:64].sum(0)[..., None] * 1.5 + np.array([0, 30, 70])
    noise = np.random.default_rng(0).integers(0, 40, (48, 64, 3))
    return to_image((ramp + noise).clip(0, 255).astype(np.uint8))


@pytest.fixture
def target() -> Target:
    return Target(
        image_id="1",
        boxes=torch.tensor([[2.0, 3, 20, 30], [30, 10, 64, 48], [0, 0, 5.5, 4]]),
        labels=torch.tensor([1, 2, 3]),
        area=torch.tensor([400.0, 1000, 22]),
        iscrowd=torch.tensor([False, True, False]),
        difficult=torch.tensor([True, False, False]),
        original_size=(480, 640),
    )


def marked(boxes: Tensor) -> tuple[Tensor, Target]:
    """An image whose objects are filled with a colour of their own, to find them again."""
    image = torch.zeros(3, 90, 120, dtype=torch.uint8)
    for number, (x1, y1, x2, y2) in enumerate(boxes.int().tolist(), start=1):
        image[:, y1:y2, x1:x2] = 60 * number
    count = len(boxes)
    sides = boxes[:, 2:] - boxes[:, :2]
    return image, Target(
        image_id="m",
        boxes=boxes,
        labels=torch.arange(1, count + 1),
        area=sides.prod(dim=1),
        iscrowd=torch.arange(count) % 2 == 0,
        difficult=torch.arange(count) % 2 == 1,
        original_size=(90, 120),
    )


def extent(image: Tensor, label: int) -> list[int]:
    ys, xs = torch.nonzero(image[0] == 60 * label, as_tuple=True)
    return [int(xs.min()), int(ys.min()), int(xs.max()) + 1, int(ys.max()) + 1]


# --- flip ----------------------------------------------------------------------------------------


def test_flip_equals_torchvisions(image: Tensor, target: Target) -> None:
    found, flipped = augment.HorizontalFlip(p=1)(image, target)
    boxes = tv_tensors.BoundingBoxes(target.boxes, format="XYXY", canvas_size=(48, 64))
    assert torch.equal(found, reference.horizontal_flip(image))
    assert torch.equal(flipped.boxes, reference.horizontal_flip(boxes).as_subclass(Tensor))
    assert flipped.labels is target.labels


def test_flip_twice_is_the_identity(image: Tensor, target: Target) -> None:
    flip = augment.HorizontalFlip(p=1)
    found, again = flip(*flip(image, target))
    assert torch.equal(found, image)
    assert torch.equal(again.boxes, target.boxes)


def test_flip_leaves_its_input_alone(image: Tensor, target: Target) -> None:
    before = image.clone(), target.boxes.clone()
    augment.HorizontalFlip(p=1)(image, target)
    assert torch.equal(image, before[0])
    assert torch.equal(target.boxes, before[1])


def test_flip_happens_as_often_as_said(image: Tensor, target: Target) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        flip = augment.HorizontalFlip(p=0.3)
        flips = sum(flip(image, target)[0] is not image for _ in range(2000))
    assert 500 < flips < 700  # 600 expected, standard deviation 20


# --- colours: torchvision is the referee ---------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs", "factors"),
    [
        (colour.adjust_brightness, reference.adjust_brightness, (0.5, 0.9, 1.0, 1.6)),
        (colour.adjust_contrast, reference.adjust_contrast, (0.0, 0.5, 1.0, 1.5)),
        (colour.adjust_saturation, reference.adjust_saturation, (0.0, 0.5, 1.0, 1.5)),
        (colour.adjust_hue, reference.adjust_hue, (-0.4, -0.05, 0.0, 0.05, 0.5)),
    ],
)
def test_colours_equal_torchvisions(
    image: Tensor,
    ours: Callable[[np.ndarray, float], np.ndarray],
    theirs: Callable[[Tensor, float], Tensor],
    factors: tuple[float, ...],
) -> None:
    for factor in factors:
        found = to_image(ours(to_pixels(image), factor)).int()
        difference = (found - theirs(image, factor).int()).abs()
        assert difference.max() <= 4, factor
        assert difference.float().mean() <= 1, factor


def test_hue_turns_the_colour_circle() -> None:
    pure = np.array([[[255, 0, 0], [0, 255, 0], [20, 60, 200]]], np.uint8)
    turned = colour.adjust_hue(pure, 1 / 3)
    for before, after in zip(pure[0], turned[0], strict=True):
        hue, saturation, value = colorsys.rgb_to_hsv(*(before / 255))
        expected = np.array(colorsys.hsv_to_rgb((hue + 1 / 3) % 1, saturation, value)) * 255
        np.testing.assert_allclose(after, expected, atol=4)


def test_photometric_distort_changes_colours_only(image: Tensor, target: Target) -> None:
    distort = augment.PhotometricDistort(p=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        found, same = distort(image, target)
        other, _ = distort(image, target)
    assert same is target
    assert found.shape == image.shape
    assert found.dtype == torch.uint8
    assert not torch.equal(found, image)
    assert not torch.equal(found, other)


def test_photometric_distort_with_p_0_is_the_identity(image: Tensor, target: Target) -> None:
    found, _ = augment.PhotometricDistort(p=0)(image, target)
    assert torch.equal(found, image)


def test_photometric_distort_spreads_like_torchvisions(image: Tensor, target: Target) -> None:
    """Mean and spread of the mean grey over many draws agree with torchvision's transform."""
    ours, theirs = augment.PhotometricDistort(), v2.RandomPhotometricDistort()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        mine = torch.stack([ours(image, target)[0].float().std() for _ in range(300)])
        other = torch.stack([theirs(image).float().std() for _ in range(300)])
    error = (mine.var() / 300 + other.var() / 300).sqrt()
    assert abs(mine.mean() - other.mean()) < 4 * error
    assert 0.7 < mine.std() / other.std() < 1.4


# --- torchvision's transforms --------------------------------------------------------------------


def test_wrapped_flip_equals_ours(image: Tensor, target: Target) -> None:
    wrapped = augment.build(Spec(use=f"{THEIRS}.RandomHorizontalFlip", p=1.0))
    found, flipped = wrapped(image, target)
    expected, by_us = augment.HorizontalFlip(p=1)(image, target)
    assert torch.equal(found, expected)
    assert torch.equal(flipped.boxes, by_us.boxes)
    assert torch.equal(flipped.area, target.area)
    assert type(found) is Tensor
    assert type(flipped.boxes) is Tensor


def test_wrapped_crop_keeps_every_field_in_step() -> None:
    boxes = torch.tensor([[0.0, 0, 10, 10], [50, 40, 70, 60], [100, 80, 120, 90]])
    image, target = marked(boxes)
    found, left = augment.Torchvision(v2.CenterCrop((50, 60)))(image, target)
    assert found.shape == (3, 50, 60)
    assert left.labels.tolist() == [2]
    assert left.boxes.tolist() == [[20, 20, 40, 40]]
    assert left.boxes.int().tolist() == [extent(found, 2)]
    assert left.iscrowd.tolist() == [False]
    assert left.difficult.tolist() == [True]
    assert left.area.tolist() == [400]


def test_area_follows_a_cut_box() -> None:
    image, target = marked(torch.tensor([[20.0, 10, 40, 30]]))
    target = replace(target, area=torch.tensor([200.0]))  # the object fills half of its box
    _, left = augment.Torchvision(v2.CenterCrop((90, 60)))(image, target)
    assert left.boxes.tolist() == [[0, 10, 10, 30]]
    assert left.area.tolist() == [100]


def test_a_users_own_sanitizing_is_understood() -> None:
    image, target = marked(torch.tensor([[0.0, 0, 3, 3], [50, 40, 70, 60]]))
    chain = v2.Compose([v2.RandomVerticalFlip(p=1), v2.SanitizeBoundingBoxes(min_size=5)])
    _, left = augment.Torchvision(chain)(image, target)
    assert left.labels.tolist() == [2]
    assert left.boxes.tolist() == [[50, 30, 70, 50]]


def test_small_boxes_are_not_lost_without_reason(image: Tensor, target: Target) -> None:
    tiny = replace(target, boxes=torch.tensor([[1.0, 1, 1.5, 1.5]] * 3))
    _, left = augment.Torchvision(v2.RandomHorizontalFlip(p=1))(image, tiny)
    assert len(left.boxes) == 3


def test_normalising_in_the_stream_is_refused(image: Tensor, target: Target) -> None:
    transform = augment.Torchvision(v2.ToDtype(torch.float32, scale=True))
    with pytest.raises(ConfigError, match="take ToDtype and Normalize out"):
        transform(image, target)


@pytest.mark.parametrize("name", ["ZoomOut", "IoUCrop"])
def test_zoom_and_crop_move_boxes_with_their_pixels(name: str) -> None:
    image, target = marked(torch.tensor([[10.0, 10, 40, 50], [60, 30, 110, 80]]))
    transform = augment.build(
        Spec(use=f"{OURS}.{name}", **({"p": 1.0, "fill": 7} if name == "ZoomOut" else {}))
    )
    sizes = set()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        for _ in range(30):
            found, left = transform(image, target)
            sizes.add(tuple(found.shape))
            for label, box in zip(left.labels.tolist(), left.boxes.tolist(), strict=True):
                assert extent(found, label) == box
    assert len(sizes) > 5


@pytest.mark.parametrize(
    "transform",
    [augment.HorizontalFlip(p=1), augment.PhotometricDistort(p=1), augment.ZoomOut(p=1),
     augment.IoUCrop(), augment.RandomSize(short_sides=(24,)),
     augment.Torchvision(v2.RandomRotation(30))],
    ids=lambda t: type(t).__name__,
)  # fmt: skip
def test_image_without_boxes(image: Tensor, target: Target, transform: augment.Transform) -> None:
    empty = select(target, torch.zeros(3, dtype=torch.bool))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        found, left = transform(image, empty)
    assert found.dtype == torch.uint8
    assert left.boxes.shape == (0, 4)
    assert left.labels.shape == left.area.shape == left.iscrowd.shape == (0,)


def test_random_size(image: Tensor, target: Target) -> None:
    transform = augment.build(Spec(use=f"{OURS}.RandomSize", short_sides=[24, 96], long_side=100))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        results = [transform(image, target) for _ in range(20)]
    assert {tuple(i.shape) for i, _ in results} == {(3, 24, 32), (3, 75, 100)}
    for found, scaled in results:
        factor = found.shape[1] / 48
        torch.testing.assert_close(scaled.boxes, target.boxes * factor)
        torch.testing.assert_close(scaled.area, target.area * factor * (found.shape[2] / 64))


def test_crop_overlaps_as_drawn_and_spreads_like_torchvisions() -> None:
    image, target = marked(torch.tensor([[10.0, 10, 40, 50], [60, 30, 110, 80]]))
    ours = augment.IoUCrop(overlaps=(0.5, 1.0))
    theirs = v2.RandomIoUCrop(sampler_options=[0.5, 1.0])
    shares: list[list[float]] = [[], []]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for _ in range(150):
            found, left = ours(image, target)
            if found.shape != image.shape:
                size = found.shape[1] * found.shape[2]
                shares[0].append(size / (90 * 120))
                assert (left.area / size).max() >= 0.45  # IoU, but for boxes that are clipped
            other = theirs(
                tv_tensors.Image(image),
                tv_tensors.BoundingBoxes(target.boxes, format="XYXY", canvas_size=(90, 120)),
            )[0]
            if other.shape != image.shape:
                shares[1].append(other.shape[1] * other.shape[2] / (90 * 120))
    mine, other_mean = np.mean(shares[0]), np.mean(shares[1])
    error = np.sqrt(np.var(shares[0]) / len(shares[0]) + np.var(shares[1]) / len(shares[1]))
    assert abs(mine - other_mean) < 4 * error + 0.005


# --- building ------------------------------------------------------------------------------------


def test_what_is_no_transform_is_refused() -> None:
    with pytest.raises(ConfigError, match="no transform"):
        augment.build(Spec(use="torch.nn.Identity"))


@pytest.mark.parametrize(
    "make",
    [lambda: augment.HorizontalFlip(p=1.5), lambda: augment.PhotometricDistort(hue=(-1, 1)),
     lambda: augment.PhotometricDistort(contrast=(2, 1)),
     lambda: augment.ZoomOut(side_range=(0.5, 1)),
     lambda: augment.RandomSize(short_sides=()),
     lambda: augment.IoUCrop(min_scale=0.9, max_scale=0.5),
     lambda: augment.IoUCrop(overlaps=(0.5,))],
)  # fmt: skip
def test_impossible_options_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError):
        make()


def darken(image, target, *, factor: float = 0.5):
    return (image * factor).to(image.dtype), target


def test_a_function_of_image_and_target_is_a_transform():
    transform = augment.build(Spec(use=f"{__name__}.darken", factor=0.25))
    image, _ = transform(torch.full((3, 2, 2), 200, dtype=torch.uint8), None)
    assert image.unique().tolist() == [50]


# --- fixed size ----------------------------------------------------------------------------------


def test_fixed_size_crop_pads_right_and_below() -> None:
    image, target = marked(torch.tensor([[10.0, 10, 40, 50], [60, 30, 110, 80]]))
    crop = augment.build(Spec(use=f"{OURS}.FixedSizeCrop", size=[100, 150], fill=[1, 2, 3]))
    found, same = crop(image, target)
    expected = reference.pad(image, [0, 0, 30, 10], fill=[1, 2, 3])
    assert torch.equal(found, expected)
    assert torch.equal(same.boxes, target.boxes)
    assert torch.equal(same.area, target.area)


def test_fixed_size_crop_cuts_at_random_places() -> None:
    image, target = marked(torch.tensor([[10.0, 10, 40, 50], [60, 30, 110, 80]]))
    crop = augment.FixedSizeCrop(size=(35, 100))
    corners, counts = set(), set()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for _ in range(200):
            found, left = crop(image, target)
            assert found.shape == (3, 35, 100)
            for label, box in zip(left.labels.tolist(), left.boxes.tolist(), strict=True):
                assert extent(found, label) == box
            counts.add(len(left.boxes))
            if 1 in left.labels:
                assert left.area[0] == (left.boxes[0, 2:] - left.boxes[0, :2]).prod()
            corners.add(tuple(int(v) for v in torch.nonzero(found[0] == 120)[0]))
    assert counts == {1, 2}  # from 50 rows down the first object is outside
    assert len(corners) > 100


def test_fixed_size_crop_cuts_one_side_and_pads_the_other() -> None:
    image, target = marked(torch.tensor([[10.0, 10, 40, 50]]))
    found, left = augment.FixedSizeCrop(size=(200, 30), fill=9)(image, target)
    assert found.shape == (3, 200, 30)
    assert (found[:, 90:] == 9).all()
    assert (found[:, :90] != 9).all()
    assert left.boxes[:, [1, 3]].tolist() in ([[10, 50]], [])


@pytest.mark.parametrize(
    "make",
    [lambda: augment.FixedSizeCrop(size=(0, 5)),
     lambda: augment.FixedSizeCrop(size=(5, 5), fill=-1), lambda: augment.ZoomOut(fill=256)],
)  # fmt: skip
def test_impossible_sizes_and_colours_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError):
        make()


# --- which of torchvision's set a size -----------------------------------------------------------


class Halved(v2.Transform):
    """A user's own."""

    sets_size = True


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        (v2.RandomHorizontalFlip(), False),
        (v2.RandomIoUCrop(), False),
        (v2.Resize(5), True),
        (v2.Compose([v2.RandomHorizontalFlip(), v2.CenterCrop(5)]), True),
        (v2.RandomApply([v2.Compose([v2.RandomChoice([v2.Identity(), v2.Resize(5)])])]), True),
        (v2.RandomOrder([v2.RandomHorizontalFlip(), v2.RandomZoomOut()]), False),
        (Halved(), True),
    ],
)
def test_what_is_told_a_size_is_known(transform: v2.Transform, expected: bool) -> None:
    assert augment.Torchvision(transform).sets_size is expected


@pytest.mark.parametrize(
    ("name", "options", "instead"),
    [("MixUp", {"num_classes": 3}, "detpipe.data.mix.MixUp"),
     ("CutMix", {"num_classes": 3}, "detpipe.data.mix.Mosaic"),
     ("FiveCrop", {"size": 5}, "RandomCrop"), ("TenCrop", {"size": 5}, "RandomCrop")],
)  # fmt: skip
def test_what_is_none_of_one_image_is_refused(
    name: str, options: dict[str, object], instead: str
) -> None:
    with pytest.raises(ConfigError, match=rf"{name} .*{instead}"):
        augment.build(Spec(use=f"{THEIRS}.{name}", **options))
