"""The batch-size search: its steps without a GPU, and a thin twin on one."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from detpipe.core.errors import ConfigError, DetpipeError
from detpipe.core.types import Batch
from detpipe.train.batch_size import (
    Try,
    fullest,
    is_out_of_memory,
    largest,
    search_batch_size,
    try_batch,
)
from detpipe.train.config import TrainConfig

from .toys import ToyDetector, detector, image_at, same

CPU = torch.device("cpu")


def settings(**changes) -> TrainConfig:
    return TrainConfig.model_validate(
        {
            "duration": "50 steps",
            "batch_size": 4,
            "optimizer": {"use": "torch.optim.AdamW", "lr": 0.01},
            "device": "cpu",
            **changes,
        }
    )


def images(number: int = 2) -> Batch:
    pixels, targets = zip(*(image_at(i) for i in range(number)), strict=True)
    return Batch(pixels, targets)


def tried(capacity: int, limit: int) -> list[Try]:
    return largest(lambda size: Try(size, fits=size <= capacity), limit=limit)


def test_it_doubles_until_one_does_not_fit_and_halves_in_between():
    assert [t.batch_size for t in tried(11, 100)] == [1, 2, 4, 8, 16, 12, 10, 11]


@pytest.mark.parametrize("limit", [1, 2, 7, 8, 9, 100])
def test_it_finds_the_largest_that_fits_whatever_it_is(limit):
    for capacity in range(1, 2 * limit + 2):
        tries = tried(capacity, limit)
        sizes = [t.batch_size for t in tries]
        assert max(t.batch_size for t in tries if t.fits) == min(capacity, limit)
        assert len(set(sizes)) == len(sizes)
        assert max(sizes) <= limit
        assert len(sizes) <= 2 * math.ceil(math.log2(limit + 1)) + 1


def test_not_even_one_image_fits():
    with pytest.raises(DetpipeError, match="not even one image fits"):
        tried(0, 100)


def test_the_limit_is_checked():
    with pytest.raises(ConfigError, match="is 0; it must be 1 or more"):
        tried(5, 0)


def test_without_a_gpu_it_says_so():
    with pytest.raises(ConfigError, match="needs a CUDA GPU, the device is cpu"):
        search_batch_size(detector(), images(), config=settings(), limit=8)


class Watched(ToyDetector):
    """Notes the batches it gets; above a size it fails as the GPU does."""

    seen: list[int]

    def __init__(self, most: int = 100, error: Exception | None = None) -> None:
        super().__init__(norm=True)
        self.most, self.error = most, error or torch.OutOfMemoryError("CUDA out of memory.")

    def __deepcopy__(self, memo):
        twin = copy.copy(self)
        twin._modules = copy.deepcopy(self._modules, memo)
        return twin  # with the very same list

    def forward(self, batch):
        self.seen.append(len(batch))
        if len(batch) > self.most:
            raise self.error
        return super().forward(batch)


def watched(**options) -> Watched:
    model = Watched(**options)
    model.seen = []
    return model


def test_a_try_is_whole_updates_of_that_size():
    model = watched()
    result = try_batch(model, images(), 5, config=settings(accumulate=2), device=CPU)
    assert result.fits
    assert model.seen == [5] * 2 * 3
    assert result.images_per_second > 0
    assert result.peak_mib is None  # of a CPU


def test_a_failed_allocation_is_an_answer_and_any_other_error_is_not():
    assert try_batch(watched(most=4), images(), 4, config=settings(), device=CPU).fits
    result = try_batch(watched(most=4), images(), 5, config=settings(), device=CPU)
    assert (result.fits, result.images_per_second) == (False, None)
    broken = watched(most=4, error=RuntimeError("shapes do not fit"))
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        try_batch(broken, images(), 5, config=settings(), device=CPU)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (MemoryError("out of memory"), False),
    ],
)
def test_which_errors_mean_out_of_memory(error, expected):
    assert is_out_of_memory(error) is expected


def test_the_model_and_the_random_numbers_stay_as_they_are():
    model = detector(norm=True)
    before = copy.deepcopy(model.state_dict())
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    try_batch(model, images(), 3, config=settings(), device=CPU)
    assert torch.equal(torch.rand(1), expected)
    assert same(model.state_dict(), before)
    assert all(p.grad is None for p in model.parameters())


def test_a_loss_that_is_not_finite_says_nothing_about_memory():
    result = try_batch(detector(fail_at=1), images(), 2, config=settings(), device=CPU)
    assert result.fits


def test_an_average_of_the_weights_takes_its_memory(monkeypatch):
    from detpipe.hooks.update import EMA

    started = []
    real = EMA.on_start
    monkeypatch.setattr(EMA, "on_start", lambda s, ctx: started.append(real(s, ctx)))
    config = settings(hooks={"ema": {"use": "detpipe.hooks.update.EMA"}})
    try_batch(detector(), images(), 2, config=config, device=CPU)
    assert len(started) == 1


def sized(height: int, width: int, boxes: int = 0):
    _, target = image_at(0)
    target = type(target)(
        **{
            **{name: getattr(target, name) for name in target.__slots__},
            "boxes": torch.zeros(boxes, 4),
        }
    )
    return torch.zeros(3, height, width, dtype=torch.uint8), target


def test_the_images_that_take_most_memory_are_chosen_largest_first():
    samples = [sized(10, 10), sized(40, 5), sized(5, 50), sized(30, 30), sized(9, 9, boxes=7)]
    batches = [Batch(*map(tuple, zip(*part, strict=True))) for part in (samples[:2], samples[2:])]
    chosen = fullest(batches)
    assert [tuple(i.shape[-2:]) for i in chosen.images] == [(30, 30), (40, 5), (5, 50), (9, 9)]
    assert [len(t.boxes) for t in chosen.targets] == [0, 0, 0, 7]


def test_an_image_that_is_all_of_it_is_there_once():
    assert len(fullest([images(1)])) == 1
    with pytest.raises(ConfigError, match="no images"):
        fullest([])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_with_a_lid_on_its_memory():
    """This process may take 2 % of the memory: large pictures soon do not fit."""

    class Wide(ToyDetector):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(
                nn.Conv2d(3, 64, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 2)
            )

    picture = torch.zeros(3, 2000, 2000, dtype=torch.uint8)
    one = Batch((picture,), (image_at(0)[1],))
    device = torch.device("cuda", 0)
    torch.cuda.set_per_process_memory_fraction(0.02, device)
    try:
        table = search_batch_size(Wide(), one, config=settings(device="cuda:0"), limit=512)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
    best = table.loc[table["fits"], "batch_size"].max()
    assert 1 <= best < 512
    assert list(table.loc[table["batch_size"] > best, "fits"].unique()) == [False]
    assert best + 1 in set(table["batch_size"])
    lid = 0.02 * torch.cuda.get_device_properties(device).total_memory / 2**20
    assert (table["peak_mib"] <= lid).all()
    fitting = table[table["fits"]]
    assert fitting["peak_mib"].is_monotonic_increasing
    assert torch.cuda.memory_allocated(device) < 2**20
