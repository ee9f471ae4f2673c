"""Settings of a rehearsal: a run that only shows whether the real one would work.

Imports no torch, as the configuration it changes.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from detpipe.core.config import Duration, Spec, locate
from detpipe.core.errors import TrainingError
from detpipe.train.config import BEST, CHECKPOINT, EARLY_STOP, EMA, EVALUATE, TrainConfig
from detpipe.train.plan import Plan

DRY_STEPS = 2
MOST_STEPS = 500
"""Of learning by heart: longer runs are cut to this."""
NEAR_ZERO = 0.1
"""What is left of the loss at the end, as a share of its first value, when all is well."""


class Rehearsal(NamedTuple):
    """What a rehearsal needs.

    Attributes:
        config: the ``train`` section to run with.
        images: how many training images it needs.
    """

    config: TrainConfig
    images: int


def dry_run(config: TrainConfig) -> Rehearsal:
    """Two steps; everything that happens every so often happens after each."""
    step = config.batch_size * config.accumulate
    one = Duration(images=step)  # not in steps: those would be scaled by reference_batch
    hooks = {name: _each_step(spec, one) for name, spec in config.hooks.items()}
    changed = {
        "duration": Duration(images=DRY_STEPS * step),
        "log_every": one,
        "hooks": hooks,
        "resume": False,
    }
    return Rehearsal(config.model_copy(update=changed), DRY_STEPS * step)


def overfit(config: TrainConfig, *, images_per_epoch: int) -> Rehearsal:
    """``config.overfit`` batches, again and again, as they are.

    Augmentation, evaluation, averages and early stopping are left out; the schedule is a short
    warm-up and a straight fall to zero, whatever the run's own is: it depends on a length that
    this run does not have.

    Args:
        config: of the real run.
        images_per_epoch: of the real run.
    """
    images = config.overfit * config.batch_size
    real = Plan.of(config, images_per_epoch=max(images_per_epoch, config.batch_size))
    seen = min(real.total_steps, MOST_STEPS) * real.images_per_step
    unneeded = {EVALUATE, BEST, EARLY_STOP, EMA, CHECKPOINT}
    changed = {
        "duration": Duration(images=seen),
        "warmup": config.warmup.model_copy(update={"duration": Duration(images=seen // 10)}),
        "schedule": Spec(use="detpipe.train.schedule.linear"),
        "schedule_by": "step",
        "sampler": Spec(use="detpipe.data.sampler.sequential"),
        "augment": {},
        "hooks": {n: s for n, s in config.hooks.items() if s and s.use not in unneeded},
        "log_every": Duration(images=max(seen // 20, real.images_per_step)),
        "publish": "final",
        "resume": False,
    }
    return Rehearsal(config.model_copy(update=changed), images)


def require_learned(losses: list[float], *, batches: int, steps: int) -> str:
    """What to say when the batches are known by heart.

    Args:
        losses: ``train/loss`` of each written row, the first and the last among them.
        batches: that were to be learnt.
        steps: it took.

    Raises:
        TrainingError: they are not.
    """
    if not losses or not all(map(math.isfinite, losses)) or losses[0] <= 0:
        raise TrainingError(
            f"overfit: failed. Whether anything was learnt cannot be told: the losses are "
            f"{losses or 'not there'}; their first must be above 0"
        )
    first, last = losses[0], losses[-1]
    share = last / first
    told = (
        f"{steps} steps on {batches} batch(es): the loss went from {first:.4g} to {last:.4g}, "
        f"{share:.1%} of it"
    )
    if share <= NEAR_ZERO:
        return f"overfit: passed. {told}"
    raise TrainingError(
        f"overfit: failed. {told}; a model that can learn gets below {NEAR_ZERO:.0%}. Look at what "
        f"the model gets (kedro run --pipeline preview), at the learning rate (kedro run "
        f"--pipeline lr_range), at what is frozen, and whether the run of {steps} steps is long "
        f"enough for its learning rate"
    )


def _each_step(spec: Spec | None, one: Duration) -> Spec | None:
    if spec is None or "every" not in _parameters(locate(spec.use)):
        return spec
    return Spec(use=spec.use, **{**spec.options, "every": one})


def _parameters(target: Callable[..., Any]) -> set[str]:
    return set(inspect.signature(target).parameters)
