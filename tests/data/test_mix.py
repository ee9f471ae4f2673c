"""Mosaic, mixup and copy-paste on pictures whose objects can be found again by their colour."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from torch.nn.functional import interpolate

from detpipe.core.errors import ConfigError
from detpipe.core.types import Target
from detpipe.data.geometry import to_image, to_pixels
from detpipe.data.mix import CopyPaste, MixUp, Mosaic
from detpipe.data.transform import Mixing, Sample

COLOURS = ((0, 0, 0), (250, 0, 0), (0, 250, 0), (0, 0, 250), (250, 250, 0), (0, 250, 250))
"""Of the background and of the labels 1..5."""
CROWD, DIFFICULT = 5, (2, 4)
"""Labels whose objects are crowd regions, or difficult: so a flag that strays is noticed."""
FILL = 77


def sample(size: tuple[int, int], boxes: Sequence[Sequence[float]], labels: list[int]) -> Sample:
    """A picture with each box filled with its label's colour; later ones lie on top.

    The area is label/10 of the box.
    """
    image = torch.zeros(3, *size, dtype=torch.uint8)
    for (x1, y1, x2, y2), label in zip(boxes, labels, strict=True):
        colour = torch.tensor(COLOURS[label], dtype=torch.uint8)
        image[:, int(y1) : int(y2), int(x1) : int(x2)] = colour[:, None, None]
    corners = torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4)
    kinds = torch.tensor(labels, dtype=torch.int64)
    return image, Target(
        image_id="coded",
        boxes=corners,
        labels=kinds,
        area=(corners[:, 2:] - corners[:, :2]).prod(1) * kinds / 10,
        iscrowd=kinds == CROWD,
        difficult=(kinds == DIFFICULT[0]) | (kinds == DIFFICULT[1]),
        original_size=(480, 640),
    )


@st.composite
def tidy(draw: st.DrawFn) -> Sample:
    """Up to four objects in whole pixels that lie apart, one in each quarter of the picture."""
    height, width = draw(st.integers(24, 60)), draw(st.integers(24, 60))
    boxes, labels = [], []
    for row in range(2):
        for column in range(2):
            if not draw(st.booleans()):
                continue
            x = column * (width // 2) + draw(st.integers(1, 4))
            y = row * (height // 2) + draw(st.integers(1, 4))
            boxes.append([x, y, x + draw(st.integers(2, 7)), y + draw(st.integers(2, 7))])
            labels.append(draw(st.integers(1, 5)))
    return sample((height, width), boxes, labels)


@st.composite
def untidy(draw: st.DrawFn) -> Sample:
    """Objects anywhere, of any size, in fractions of pixels."""
    height, width = draw(st.integers(1, 50)), draw(st.integers(1, 50))
    count = draw(st.integers(0, 5))
    shares = st.floats(0, 1, width=32)
    boxes = []
    for _ in range(count):
        x1, y1 = draw(shares) * (width - 0.5), draw(shares) * (height - 0.5)
        x2, y2 = x1 + 0.1 + draw(shares) * 60, y1 + 0.1 + draw(shares) * 60
        boxes.append([x1, y1, min(x2, width), min(y2, height)])
    labels = draw(st.lists(st.integers(1, 5), min_size=count, max_size=count))
    return sample((height, width), boxes, labels)


def mixed(transform: Mixing, samples: Sequence[Sample], seed: int = 0) -> Sample:
    """The first sample mixed with the others, which come round and round."""
    # Channels innermost, as the stream gives them: so they are no copies by chance.
    samples = [(to_image(to_pixels(image)), target) for image, target in samples]
    others = iter([*samples[1:]] * 4)
    before = [(image.clone(), target.boxes.clone()) for image, target in samples]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        result = transform(*samples[0], lambda: next(others))
    for (image, target), (pixels, boxes) in zip(samples, before, strict=True):
        assert torch.equal(image, pixels)  # what comes in is left alone
        assert torch.equal(target.boxes, boxes)
    return result


def assert_in_step(image: Tensor, target: Target) -> None:
    """Every field follows its box, and the boxes lie in the image."""
    height, width = image.shape[1:]
    boxes, labels = target.boxes, target.labels
    assert image.dtype == torch.uint8
    assert boxes.shape == (len(labels), 4)
    assert boxes.dtype == target.area.dtype == torch.float32
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 2:] <= torch.tensor([width, height])).all()
    assert (boxes[:, 2:] > boxes[:, :2]).all()
    assert torch.equal(target.iscrowd, labels == CROWD)
    assert torch.equal(target.difficult, (labels == DIFFICULT[0]) | (labels == DIFFICULT[1]))
    area = (boxes[:, 2:] - boxes[:, :2]).prod(1) * labels / 10
    torch.testing.assert_close(target.area, area, rtol=1e-3, atol=1e-3)


def pixels_of(image: Tensor, label: int) -> Tensor:
    colour = torch.tensor(COLOURS[label], dtype=torch.uint8)
    return (image == colour[:, None, None]).all(0)


def inside(box: Tensor, mask: Tensor, *, slack: float = 0.0) -> Tensor:
    """Those of the mask's pixels whose centres lie in the box."""
    y, x = torch.nonzero(mask, as_tuple=True)
    x1, y1, x2, y2 = box.tolist()
    return (
        (x + 0.5 > x1 - slack) & (x + 0.5 < x2 + slack)
        & (y + 0.5 > y1 - slack) & (y + 0.5 < y2 + slack)
    )  # fmt: skip


def assert_colours_and_boxes_agree(image: Tensor, target: Target, *, blurred: float) -> None:
    """A large box shows its label's colour, and a colour lies in a box of its label."""
    for box, label in zip(target.boxes, target.labels.tolist(), strict=True):
        if ((box[2:] - box[:2]) >= 4).all():
            middle = (box[:2] + box[2:]).div(2).long()
            assert image[:, middle[1], middle[0]].tolist() == list(COLOURS[label])
    for label in range(1, 6):
        mask = pixels_of(image, label)
        found = torch.zeros(int(mask.sum()), dtype=torch.bool)
        for box in target.boxes[target.labels == label]:
            found |= inside(box, mask, slack=blurred)
        assert found.all()


# --- every one of them ---------------------------------------------------------------------------

EVERY: list[Callable[[], Mixing]] = [
    Mosaic,
    lambda: Mosaic(scale=(0.1, 3.0), centre=(0, 1), min_visible=0),
    MixUp,
    lambda: CopyPaste(p=1, count=5),
    lambda: CopyPaste(p=1, count=5, scale=(0.1, 9.0), min_visible=0),
]


@pytest.mark.parametrize("make", EVERY)
@settings(max_examples=25, deadline=None)
@given(samples=st.lists(untidy(), min_size=4, max_size=4), seed=st.integers(0, 999))
def test_fields_stay_in_step(make: Callable[[], Mixing], samples: list[Sample], seed: int) -> None:
    image, target = mixed(make(), samples, seed)
    assert image.shape == samples[0][0].shape
    assert (target.image_id, target.original_size) == ("coded", (480, 640))
    assert_in_step(image, target)


@pytest.mark.parametrize("make", [Mosaic, MixUp, CopyPaste])
def test_p_says_how_often_and_nothing_is_read_in_vain(make: type) -> None:
    start = sample((20, 30), [[2, 2, 9, 9]], [1])
    reads = 0

    def draw() -> Sample:
        nonlocal reads
        reads += 1
        return start

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for p, low, high in ((0.0, 0, 0), (0.3, 120, 180), (1.0, 500, 500)):
            transform, reads = make(p=p), 0
            same = sum(transform(*start, draw)[0] is start[0] for _ in range(500))
            assert low <= 500 - same <= high  # standard deviation 10.2
            assert reads == (500 - same) * (3 if make is Mosaic else 1)


@pytest.mark.parametrize(
    "make",
    [lambda: Mosaic(p=2), lambda: Mosaic(scale=(0, 1)), lambda: Mosaic(scale=(1, float("inf"))),
     lambda: Mosaic(centre=(0.5, 1.5)), lambda: Mosaic(min_visible=-1), lambda: Mosaic(fill=300),
     lambda: MixUp(alpha=0), lambda: MixUp(p=-1), lambda: CopyPaste(count=0),
     lambda: CopyPaste(min_visible=2), lambda: CopyPaste(scale=(2, 1))],
)  # fmt: skip
def test_impossible_options_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError, match=r"Mosaic|MixUp|CopyPaste"):
        make()


# --- mosaic --------------------------------------------------------------------------------------


def noise(seed: int, size: tuple[int, int] = (40, 60)) -> Sample:
    generator = torch.Generator().manual_seed(seed)
    image = torch.randint(0, 256, (3, *size), generator=generator, dtype=torch.uint8)
    return image, sample(size, [], [])[1]


def test_mosaic_shows_the_corners_that_meet() -> None:
    four = [noise(number) for number in range(4)]
    image, _ = mixed(Mosaic(scale=(1, 1), centre=(0.5, 0.5)), four)
    a, b, c, d = (picture for picture, _ in four)
    assert torch.equal(image[:, :20, :30], a[:, 20:, 30:])
    assert torch.equal(image[:, :20, 30:], b[:, 20:, :30])
    assert torch.equal(image[:, 20:, :30], c[:, :20, 30:])
    assert torch.equal(image[:, 20:, 30:], d[:, :20, :30])


def test_mosaic_at_half_scale_shows_four_whole_images() -> None:
    four = [noise(0), noise(1), noise(2, (80, 120)), noise(3)]  # one is fitted first
    image, _ = mixed(Mosaic(scale=(0.5, 0.5), centre=(0.5, 0.5)), four)
    rows = [torch.cat([image[:, y : y + 20, x : x + 30] for x in (0, 30)], 2) for y in (0, 20)]
    small = [interpolate(picture[None].float(), (20, 30), mode="area")[0] for picture, _ in four]
    expected = [torch.cat(small[:2], 2), torch.cat(small[2:], 2)]
    assert (torch.cat(rows, 1).float() - torch.cat(expected, 1)).abs().max() <= 0.5


def test_mosaic_fits_other_aspect_ratios_and_fills_the_rest() -> None:
    wide, tall = noise(0), noise(1, (80, 20))  # fitted into 40 × 60: 40 × 10
    image, _ = mixed(Mosaic(scale=(0.5, 0.5), centre=(0.5, 0.5), fill=FILL), [wide, tall])
    filled = (image == FILL).all(0)
    assert filled[:20, 35:].all()
    assert filled[20:, :25].all()
    assert not filled[:20, :35].any()
    assert filled.sum() == 3 * 20 * 25


def test_mosaic_centre_and_scale_spread_as_said() -> None:
    """Where the four meet, from the number of pixels of each."""
    four = [sample((100, 100), [[0, 0, 100, 100]], [label]) for label in (1, 2, 3, 4)]
    transform = Mosaic(scale=(2, 2), centre=(0.2, 0.6))
    shares = []
    for seed in range(200):
        image, _ = mixed(transform, four, seed)
        x = int(pixels_of(image, 1)[0].sum())
        y = int(pixels_of(image, 1)[:, 0].sum())
        assert pixels_of(image, 4).sum() == (100 - x) * (100 - y)
        shares += [x, y]
    assert 20 <= min(shares) <= 22
    assert 58 <= max(shares) <= 60
    assert abs(np.mean(shares) - 40) < 2.5  # four standard errors: 4 * 40 / sqrt(12 * 400)


@pytest.mark.parametrize(("least", "kept"), [(0.0, 1), (0.49, 1), (0.51, 0)])
def test_mosaic_drops_what_is_hardly_seen(least: float, kept: int) -> None:
    half = sample((40, 60), [[20, 25, 40, 35]], [3])  # its left half lies outside at scale 1
    nothing = sample((40, 60), [], [])
    transform = Mosaic(scale=(1, 1), centre=(0.5, 0.5), min_visible=least)
    _, target = mixed(transform, [half, nothing])
    assert target.boxes.tolist() == [[0, 5, 10, 15]] * kept
    assert target.area.tolist() == pytest.approx([100 * 0.3] * kept)


@settings(max_examples=50, deadline=None)
@given(samples=st.lists(tidy(), min_size=4, max_size=4), seed=st.integers(0, 999))
def test_mosaic_moves_boxes_with_their_pixels(samples: list[Sample], seed: int) -> None:
    image, target = mixed(Mosaic(min_visible=0, fill=FILL), samples, seed)
    assert_in_step(image, target)
    assert_colours_and_boxes_agree(image, target, blurred=0.75)


# --- mixup ---------------------------------------------------------------------------------------


def in_channel(channel: int, coded: Sample) -> Tensor:
    """The picture with 40 * label in this channel in place of the colours."""
    image, target = torch.zeros_like(coded[0]), coded[1]
    for (x1, y1, x2, y2), label in zip(
        target.boxes.int().tolist(), target.labels.tolist(), strict=True
    ):
        image[channel, y1:y2, x1:x2] = 40 * label
    return image


@settings(max_examples=50, deadline=None)
@given(first=tidy(), second=tidy(), seed=st.integers(0, 999))
def test_mixup_blends_both_and_keeps_both_boxes(first: Sample, second: Sample, seed: int) -> None:
    """The first has its objects in red and a blue ground, the second has its objects in green.

    So the share can be read from the blue channel.
    """
    image, other = in_channel(0, first), in_channel(1, second)
    image[2] = 200
    result, target = mixed(MixUp(alpha=2), [(image, first[1]), (other, second[1])], seed)
    assert_in_step(result, target)
    count = len(first[1].boxes)
    assert torch.equal(target.boxes[:count], first[1].boxes)
    assert target.labels.tolist() == [*first[1].labels.tolist(), *second[1].labels.tolist()]
    share = result[2, 0, 0].item() / 200
    factor = min(image.shape[1] / other.shape[1], image.shape[2] / other.shape[2])
    rows, columns = round(other.shape[1] * factor), round(other.shape[2] * factor)
    assert (result[:, rows:] == image[:, rows:]).all()
    assert (result[:, :, columns:] == image[:, :, columns:]).all()
    for box, label in zip(target.boxes[:count], target.labels.tolist(), strict=False):
        x, y = (box[:2] + box[2:]).div(2).int().tolist()
        own = share if y < rows and x < columns else 1
        assert result[0, y, x].item() == pytest.approx(40 * label * own, abs=2)
    for box, label in zip(target.boxes[count:], target.labels[count:].tolist(), strict=True):
        if ((box[2:] - box[:2]) >= 4).all():
            x, y = (box[:2] + box[2:]).div(2).int().tolist()
            assert result[1, y, x].item() == pytest.approx(40 * label * (1 - share), abs=2)


def test_mixup_shares_are_spread_as_a_beta_distribution() -> None:
    first, second = noise(0, (1, 1)), noise(1, (1, 1))
    first[0][:], second[0][:] = 255, 0
    shares = np.array(
        [mixed(MixUp(alpha=2), [first, second], n)[0][0, 0, 0].item() / 255 for n in range(400)]
    )
    assert abs(shares.mean() - 0.5) < 4 * 0.2236 / 400**0.5
    assert abs(shares.std() - 0.2236) < 0.03  # Beta(a, a) has the variance 1 / (8a + 4)


# --- copy-paste ----------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(first=tidy(), second=tidy(), seed=st.integers(0, 999))
def test_copy_paste_moves_boxes_with_their_pixels(first: Sample, second: Sample, seed: int) -> None:
    transform = CopyPaste(p=1, count=4, min_visible=1e-6)
    image, target = mixed(transform, [first, second], seed)
    assert_in_step(image, target)
    for label in range(1, 6):
        mask = pixels_of(image, label)
        found = torch.zeros(int(mask.sum()), dtype=torch.bool)
        for box in target.boxes[target.labels == label]:
            within = inside(box, mask, slack=0.75)
            if ((box[2:] - box[:2]) >= 2).all():
                assert within.any()  # what is covered whole is no longer in the target
            found |= within
        assert found.all()
    assert (target.labels == CROWD).sum() <= (first[1].labels == CROWD).sum()


def test_copy_paste_pastes_rectangles_as_they_are() -> None:
    other = noise(1, (40, 60))
    boxes = torch.tensor([[10.0, 5, 22, 20]])
    other = other[0], sample((40, 60), boxes.tolist(), [2])[1]
    image, target = mixed(CopyPaste(p=1, scale=(1, 1)), [sample((50, 50), [], []), other], 3)
    x1, y1, x2, y2 = target.boxes[0].int().tolist()
    assert (x2 - x1, y2 - y1) == (12, 15)
    assert torch.equal(image[:, y1:y2, x1:x2], other[0][:, 5:20, 10:22])
    image[:, y1:y2, x1:x2] = 0
    assert not image.any()


def test_copy_paste_keeps_fractions_of_pixels() -> None:
    other = sample((40, 60), [[10.25, 5.5, 21.5, 19.75]], [2])
    _, target = mixed(CopyPaste(p=1, scale=(2, 2)), [sample((50, 50), [], []), other])
    corner = target.boxes[0, :2] - torch.tensor([0.5, 1.0])  # twice what lies beside the box
    assert torch.equal(corner, corner.round())
    assert (target.boxes[0, 2:] - target.boxes[0, :2]).tolist() == [22.5, 28.5]


@pytest.mark.parametrize(("least", "kept"), [(0.4, [1, 2]), (0.6, [2])])
def test_copy_paste_drops_what_it_covers(least: float, kept: list[int]) -> None:
    """The pasted object fills the whole height, and at most half of the width."""
    below = sample((20, 40), [[0, 0, 40, 20]], [1])
    other = sample((20, 40), [[0, 0, 20, 20]], [2])
    transform = CopyPaste(p=1, scale=(1, 1), min_visible=least)
    image, target = mixed(transform, [below, other])
    assert pixels_of(image, 2).sum() == 400
    assert target.labels.tolist() == kept


def test_copy_paste_counts_all_that_covers_together() -> None:
    """Two objects of a third each cover more than either, in whatever order they come."""
    below = sample((30, 10), [[0, 0, 10, 30]], [1])
    other = sample((30, 20), [[0, 0, 10, 10], [10, 20, 20, 30]], [2, 3])
    transform = CopyPaste(p=1, count=2, scale=(1, 1), min_visible=0.5)
    outcomes = set()
    for seed in range(60):
        image, target = mixed(transform, [below, other], seed)
        left = pixels_of(image, 1).sum().item() / 300
        assert (1 in target.labels) == (left >= 0.5)
        for label in (2, 3):
            share = pixels_of(image, label).sum().item() / 100
            assert (label in target.labels) == (share >= 0.5)
        outcomes.add(tuple(target.labels.tolist()))
    assert {(1, 2), (1, 3), (2, 3)} <= {tuple(sorted(o)) for o in outcomes}


def test_copy_paste_takes_neighbours_along() -> None:
    """The small object lies within the large one's rectangle and comes with it, label and all."""
    other = sample((40, 40), [[5, 5, 35, 35], [15, 15, 20, 25]], [1, 2])
    empty = sample((60, 60), [], [])
    seen = set()
    for seed in range(20):
        image, target = mixed(CopyPaste(p=1, count=1, scale=(1, 1)), [empty, other], seed)
        assert_colours_and_boxes_agree(image, target, blurred=0)
        seen.add(tuple(target.labels.tolist()))
    assert seen == {(1, 2), (2,)}  # of the large one too little is in the small one's


def test_copy_paste_never_touches_crowd_regions() -> None:
    other = sample((40, 40), [[0, 0, 20, 20], [15, 15, 30, 30], [31, 31, 39, 39]], [1, CROWD, 3])
    for seed in range(20):
        image, target = mixed(CopyPaste(p=1), [sample((60, 60), [], []), other], seed)
        assert target.labels.tolist() == [3]
        assert not pixels_of(image, CROWD).any()


def test_copy_paste_shrinks_what_does_not_fit() -> None:
    other = sample((90, 120), [[0, 0, 100, 50]], [4])
    image, target = mixed(CopyPaste(p=1, scale=(1, 1)), [sample((40, 40), [], []), other])
    sides = target.boxes[0, 2:] - target.boxes[0, :2]
    assert sides.tolist() == [40, 20]
    assert pixels_of(image, 4).sum() == 800


def test_copy_paste_from_an_image_without_objects() -> None:
    start = sample((20, 20), [[2, 2, 9, 9]], [1])
    image, target = mixed(CopyPaste(p=1), [start, sample((20, 20), [], [])])
    assert torch.equal(image, start[0])
    assert target.labels.tolist() == [1]
