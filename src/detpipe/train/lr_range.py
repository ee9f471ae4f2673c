"""The learning-rate range test: which learning rates this model, data and batch can stand.

After L. N. Smith, "Cyclical Learning Rates for Training Neural Networks" (2015), section 3.3: the
learning rate rises from far too small to far too large within a short run, and the loss is looked
at over it. Here it rises exponentially, as most people who came after do.
"""

from __future__ import annotations

import copy
import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from detpipe.core.config import Duration, Spec, locate
from detpipe.core.errors import ConfigError, NonFiniteLoss
from detpipe.train.build import build_hooks, build_update
from detpipe.train.config import NonFinite, TrainConfig, Warmup
from detpipe.train.contract import Hook, LoopContext, Phase, Stream
from detpipe.train.launch import pick_device, seeded
from detpipe.train.loop import fit
from detpipe.train.plan import Plan

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

_FALL = 0.9
"""A smoothed loss that never gets below this share of its beginning has not fallen: batches differ
by as much."""


@dataclass(frozen=True)
class LrRange:
    """What the test found.

    Attributes:
        table: one row a step: ``step``, ``lr`` (as ``train.optimizer.lr`` would be written),
            ``loss``, ``smoothed``; the loss of a step is that before its update.
        suggestion: the learning rate at which the smoothed loss falls fastest; None if it never
            falls.
        tenth: a tenth of the learning rate at which the smoothed loss is least; a second opinion.
            None if the loss never falls.
        ending: why the test ended.
    """

    table: pd.DataFrame
    suggestion: float | None
    tenth: float | None
    ending: str

    def __str__(self) -> str:
        if self.suggestion is None or self.tenth is None:
            return (
                f"the loss never falls ({self.ending}): begin with a smaller learning rate "
                f"(start), take more steps, or look at the data and the model"
            )
        return (
            f"try train.optimizer.lr: {self.suggestion:.2g} (the loss falls fastest there), or "
            f"{self.tenth:.2g} (a tenth of where it is least); {self.ending}"
        )


def lr_range_test(
    model: nn.Module,
    stream: Stream,
    *,
    config: TrainConfig,
    start: float = 1e-6,
    end: float = 1.0,
    steps: int = 100,
    smoothing: float = 0.9,
    divergence: float = 4.0,
) -> LrRange:
    """Trains a copy of ``model`` for ``steps`` steps while the learning rate rises.

    Optimiser (with the ratios between its groups), accumulation, clipping, precision and those
    hooks that change weights are those of ``config``; its schedule, warm-up, other hooks and
    writers have no part in it. Nothing is written, and the model stays as it is.

    Args:
        model: a :class:`~detpipe.core.types.Detector`.
        stream: the training batches.
        config: the ``train`` section.
        start: the first learning rate, in the terms of ``train.optimizer.lr``.
        end: the learning rate of the last step.
        steps: optimiser updates.
        smoothing: share of the past in the running mean of the loss, 0..1; 0 is none.
        divergence: the test ends when the smoothed loss is above this times its least value.

    Raises:
        ConfigError: an option is out of its range, or ``config`` does not fit.
        NonFiniteLoss: the very first loss is not finite.
    """
    _check(start=start, end=end, steps=steps, smoothing=smoothing, divergence=divergence)
    config = _for_test(config, start=start, end=end, steps=steps)
    plan = Plan.of(config, images_per_epoch=stream.images_per_epoch)
    device = pick_device(config.device)
    probe = copy.deepcopy(model).to(device)
    if config.channels_last:
        probe.to(memory_format=torch.channels_last)
    watch = _Watch(smoothing=smoothing, divergence=divergence)
    ending = f"all {steps} steps were done without divergence"
    try:
        with seeded(config.seed):
            ctx = fit(
                probe,
                stream,
                build_update(config, probe, plan=plan, device=device),
                total_steps=plan.total_steps,
                images_per_step=plan.images_per_step,
                hooks={**build_hooks(config, folder=Path()), "learning rate range": watch},
                device=device,
            )
        ending = ctx.stop_reason or ending
    except NonFiniteLoss as error:  # the usual end of a rise without end
        if not watch.losses:
            raise
        ending = f"the loss or the weights were not finite any more at step {error.step}"
    rates = [
        exponential(step / steps, start=start, end=end, steps=steps)
        for step in range(len(watch.losses))
    ]
    return _evaluated(rates, watch.losses, watch.smoothed, ending=ending, skip=steps // 10)


def exponential(progress: float, *, start: float, end: float, steps: int) -> float:
    """From ``start`` at the first of ``steps`` steps to ``end`` at the last.

    Args:
        progress: 0..1.
        start: the first value.
        end: the last value.
        steps: of the run.
    """
    return float(start * (end / start) ** (progress * steps / (steps - 1)))


def changing_weights(config: TrainConfig) -> dict[str, Spec]:
    """Those of ``train.hooks`` that change the weights or which of them are trained, by name."""
    return {
        name: spec
        for name, spec in config.hooks.items()
        if spec is not None and getattr(locate(spec.use), "phase", None) == Phase.UPDATE
    }


def plot(result: LrRange) -> Figure:
    """Loss over learning rate (log axis), with the suggestion marked."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    table = result.table
    axes.plot(table["lr"], table["loss"], color="0.75", linewidth=0.8, label="loss")
    axes.plot(table["lr"], table["smoothed"], color="tab:blue", label="smoothed")
    marks = {"falls fastest": result.suggestion, "least ÷ 10": result.tenth}
    for (label, lr), style in zip(marks.items(), ("-", "--"), strict=True):
        if lr is not None:
            axes.axvline(lr, color="tab:red", linestyle=style, label=f"{label}: {lr:.2g}")
    axes.set(xscale="log", xlabel="train.optimizer.lr", ylabel="training loss")
    axes.set_title(f"Learning rate range test\n{result.ending}", fontsize="medium")
    # The last losses of a diverging run would flatten everything before them.
    highest = table["smoothed"].iloc[: max(1, len(table) * 9 // 10)].max()
    lowest = float(table["smoothed"].min())
    margin = 0.1 * (highest - lowest) or 0.1 * abs(highest) or 1.0
    axes.set_ylim(lowest - margin, highest + margin)
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize="small")
    return figure


class _Watch(Hook):
    """Keeps each step's loss and its running mean; stops the run when it diverges."""

    phase = Phase.DECIDE

    def __init__(self, *, smoothing: float, divergence: float) -> None:
        self.losses: list[float] = []
        self.smoothed: list[float] = []
        self._smoothing, self._divergence = smoothing, divergence
        self._mean = 0.0

    def on_step(self, ctx: LoopContext) -> None:
        """Waits for the loss: a test that must end in time has to look."""
        loss = ctx.scalars.take_interval()["train/loss"]  # the mean over an update's passes
        self.losses.append(loss)
        self._mean = self._smoothing * self._mean + (1 - self._smoothing) * loss
        # As Adam does: without it the first means would be drawn to 0.
        smoothed = self._mean / (1 - self._smoothing ** len(self.losses))
        self.smoothed.append(smoothed)
        least = min(self.smoothed)
        if smoothed > self._divergence * least > 0:
            ctx.stop(
                f"the loss diverged at step {ctx.state.step}: {smoothed:.3g} is more than "
                f"{self._divergence:g} × {least:.3g}"
            )


def _evaluated(
    rates: list[float], losses: list[float], smoothed: list[float], *, ending: str, skip: int
) -> LrRange:
    """The table and what it suggests.

    The first ``skip`` steps have a running mean of so few losses that their slope is noise; what
    comes after the least loss is the way to divergence. Neither counts.
    """
    import numpy as np
    import pandas as pd

    table = pd.DataFrame(
        {
            "step": range(1, len(rates) + 1),
            "lr": rates,
            "loss": losses,
            "smoothed": smoothed,
        }
    )
    least = int(np.argmin(smoothed))
    if least <= skip + 1 or smoothed[least] > _FALL * smoothed[skip]:
        return LrRange(table, None, None, ending)
    slope = np.gradient(np.array(smoothed), np.log(rates))
    steepest = skip + int(np.argmin(slope[skip:least]))
    if slope[steepest] >= 0:
        return LrRange(table, None, None, ending)
    return LrRange(table, rates[steepest], rates[least] / 10, ending)


def _for_test(config: TrainConfig, *, start: float, end: float, steps: int) -> TrainConfig:
    """The settings with another schedule and nothing beside the update.

    The optimiser gets 1 as its learning rate, so that the schedule's factor is the learning rate;
    factors of groups and of ``reference_batch`` come on top, as in training.
    """
    optimizer: dict[str, Any] = {**config.optimizer.options, "lr": 1.0}
    rise = {"start": start, "end": end, "steps": steps}
    schedule = Spec.model_validate({"use": f"{__name__}.{exponential.__name__}", **rise})
    return config.model_copy(
        update={
            # In images: steps would be counted in those of the reference batch.
            "duration": Duration(images=steps * config.batch_size * config.accumulate),
            "optimizer": Spec(use=config.optimizer.use, **optimizer),
            "schedule": schedule,
            "schedule_by": "step",
            "warmup": Warmup(),
            "non_finite": NonFinite(),
            "hooks": changing_weights(config),
            "writers": {},
            "resume": False,
            "dry_run": False,
            "overfit": 0,
        }
    )


def _check(*, start: float, end: float, steps: int, smoothing: float, divergence: float) -> None:
    mistakes = []
    if not 0 < start < end < math.inf:
        mistakes.append(f"start ({start:g}) must be above 0 and below end ({end:g})")
    if steps < 10:
        mistakes.append(f"steps ({steps}) must be 10 or more: fewer show no curve")
    if not 0 <= smoothing < 1:
        mistakes.append(f"smoothing ({smoothing:g}) must be at least 0 and below 1")
    if not divergence > 1:
        mistakes.append(f"divergence ({divergence:g}) must be above 1")
    if mistakes:
        raise ConfigError(f"learning rate range test: {'; '.join(mistakes)}")
