"""The largest batch that a GPU can train on, found by trying."""

from __future__ import annotations

import copy
import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import torch
from torch import nn

from detpipe.core.config import Duration
from detpipe.core.errors import ConfigError, DetpipeError, NonFiniteLoss
from detpipe.core.types import Batch
from detpipe.train.build import build_hooks, build_update
from detpipe.train.config import TrainConfig
from detpipe.train.contract import Hook, LoopContext, Phase
from detpipe.train.launch import pick_device, seeded
from detpipe.train.loop import fit
from detpipe.train.lr_range import changing_weights
from detpipe.train.plan import Plan

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)

_STEPS = 3
"""Updates of one try: the first makes the optimiser's state, the next ones work beside it."""


@dataclass(frozen=True)
class Try:
    """One batch size that was tried.

    Attributes:
        batch_size: images of a forward pass.
        fits: whether memory sufficed.
        peak_mib: the most memory that tensors took (MiB); None where it was not measured.
        images_per_second: of the last update, reading left out; None if it did not fit.
    """

    batch_size: int
    fits: bool
    peak_mib: float | None = None
    images_per_second: float | None = None


def search_batch_size(
    model: nn.Module, images: Batch, *, config: TrainConfig, limit: int
) -> pd.DataFrame:
    """Tries batch sizes on the GPU: 1, 2, 4, … until one does not fit, then halves in between.

    Each try is a few whole updates (forward, backward, optimiser) with the settings of ``config``
    on a fresh copy, after the memory of the one before has been freed. Leave a margin: other
    processes, fragmentation and rare images take memory too.

    Args:
        model: a :class:`~detpipe.core.types.Detector`; it stays as and where it is.
        images: what a batch is filled with, repeated in turn: the images that take most memory.
        config: the ``train`` section; its ``batch_size`` has no part in it.
        limit: the largest size to try.

    Returns:
        One row a try, by size: ``batch_size``, ``fits``, ``peak_mib``, ``images_per_second``.

    Raises:
        ConfigError: the device is no CUDA GPU, or an argument is out of its range.
        DetpipeError: not even one image fits.
    """
    import pandas as pd

    device = pick_device(config.device)
    if device.type != "cuda":
        raise ConfigError(
            f"the batch-size search needs a CUDA GPU, the device is {device}: memory of a CPU has "
            f"no limit to be found, only a machine that slows down and kills the process. Set "
            f"train.batch_size by hand, or run it on a machine with a GPU"
        )
    tries = largest(
        lambda size: try_batch(model, images, size, config=config, device=device), limit=limit
    )
    return pd.DataFrame([vars(each) for each in sorted(tries, key=lambda t: t.batch_size)])


def largest(attempt: Callable[[int], Try], *, limit: int) -> list[Try]:
    """Every try of the search for the largest size that fits, in their order.

    What fits is taken to be all up to a size and none above it.

    Raises:
        ConfigError: ``limit`` is below 1.
        DetpipeError: size 1 does not fit.
    """
    if limit < 1:
        raise ConfigError(f"the largest batch size to try is {limit}; it must be 1 or more")
    tries: list[Try] = []

    def fits(size: int) -> bool:
        tries.append(attempt(size))
        return tries[-1].fits

    if not fits(1):
        raise DetpipeError(
            "not even one image fits into the memory of the GPU: make images smaller "
            "(stream.resize), choose a smaller model or train.precision: bf16, or free the GPU"
        )
    good, bad = 1, limit + 1
    while good < bad - 1:
        size = min(2 * good, limit) if bad > limit else (good + bad) // 2
        if fits(size):
            good = size
        else:
            bad = size
    return tries


def try_batch(
    model: nn.Module, images: Batch, size: int, *, config: TrainConfig, device: torch.device
) -> Try:
    """A few updates of a copy of ``model`` with batches of ``size``; memory is freed afterwards.

    Only a failed allocation counts as "does not fit"; every other error is raised.
    """
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    watch = _Clock(device)
    fits = True
    try:
        _train(model, images, size, config=config, device=device, watch=watch)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        fits = False
    # Outside of the except clause: there, the error's traceback would keep every tensor alive.
    peak = torch.cuda.max_memory_allocated(device) / 2**20 if on_gpu else None
    gc.collect()
    if on_gpu:
        torch.cuda.empty_cache()
    speed = size * config.accumulate / watch.seconds if fits else None
    logger.info(
        "batch size %d %s%s", size, "fits" if fits else "does not fit",
        f": {peak:.0f} MiB, {speed:.3g} images a second" if fits and on_gpu else "",
    )  # fmt: skip
    return Try(size, fits, peak, speed)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation on the GPU failed: torch's own, or one of cuDNN's and cuBLAS's."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    said = ("CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
    return isinstance(error, RuntimeError) and any(words in str(error) for words in said)


def fullest(batches: Sequence[Batch]) -> Batch:
    """The images of ``batches`` that take most memory: most pixels, tallest, widest, most boxes.

    A batch is padded to its tallest and widest image, so a tall and a wide one together take more
    than the largest one twice. The one with most pixels comes first.
    """
    samples = [s for b in batches for s in zip(b.images, b.targets, strict=True)]
    if not samples:
        raise ConfigError("there are no images to try a batch with")
    measures: tuple[Callable[..., int], ...] = (
        lambda image, target: image.shape[-2] * image.shape[-1],
        lambda image, target: image.shape[-2],
        lambda image, target: image.shape[-1],
        lambda image, target: len(target.boxes),
    )
    chosen = {
        max(range(len(samples)), key=lambda i, m=measure: m(*samples[i])): None  # type: ignore[misc]
        for measure in measures
    }
    images, targets = zip(*(samples[i] for i in chosen), strict=True)
    return Batch(images, targets)


def _train(
    model: nn.Module,
    images: Batch,
    size: int,
    *,
    config: TrainConfig,
    device: torch.device,
    watch: _Clock,
) -> None:
    images_per_step = size * config.accumulate
    config = config.model_copy(
        update={
            "batch_size": size,
            "duration": Duration(images=_STEPS * images_per_step),
            "hooks": changing_weights(config),
            "dry_run": False,
            "overfit": 0,
        }
    )
    plan = Plan.of(config, images_per_epoch=max(size, len(images)))
    probe = copy.deepcopy(model).to(device)
    if config.channels_last:
        probe.to(memory_format=torch.channels_last)
    try:
        with seeded(config.seed):
            fit(
                probe,
                _Repeated(images, size),
                build_update(config, probe, plan=plan, device=device),
                total_steps=_STEPS,
                images_per_step=images_per_step,
                hooks={**build_hooks(config, folder=Path()), "batch size": watch},
                device=device,
            )
    except NonFiniteLoss:  # the same few images over and over; the memory is what counts
        logger.debug("batch size %d: the loss is not finite", size, exc_info=True)


class _Repeated:
    """One batch for ever: a few images, in turn."""

    def __init__(self, images: Batch, size: int) -> None:
        turn = cycle(zip(images.images, images.targets, strict=True))
        pixels, targets = zip(*islice(turn, size), strict=True)
        self._batch = Batch(pixels, targets)
        self.images_per_epoch = size

    def batches(self, start: int) -> Iterator[Batch]:
        """The batch, again and again."""
        while True:
            yield self._batch


class _Clock(Hook):
    """How long the last update took."""

    phase = Phase.SAVE

    def __init__(self, device: torch.device) -> None:
        self.seconds = float("nan")
        self._device, self._last = device, 0.0

    def on_step(self, ctx: LoopContext) -> None:
        """One lap; a GPU has to be waited for."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now = perf_counter()
        self.seconds, self._last = now - self._last, now
