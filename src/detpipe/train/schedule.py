"""Learning-rate schedules: functions of progress, which give the factor on the learning rate.

Step ``k`` of ``N`` (``k = 0 .. N-1``) uses ``progress = k / N``: the first update has progress 0,
and 1 would be the update after the last. A schedule has no state, so a resumed run needs nothing
but its position, and a run of another length is the same curve, stretched.

Any function ``f(progress, *, ...) -> float`` serves as ``train.schedule``; it may ask for
``to_progress``, which turns a duration (``8 epochs``) into progress.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Literal

from pydantic import Field

from detpipe.core.config import Duration
from detpipe.core.errors import ConfigError

Factor = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""On the learning rate."""
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]

Schedule = Callable[[float], float]
"""Progress 0..1 → factor on the learning rate."""

WarmupShape = Literal["linear", "constant", "burn_in"]


def constant(progress: float) -> float:
    """Always 1."""
    return 1.0


def linear(progress: float, *, final: Factor = 0.0) -> float:
    """A straight line from 1 to ``final``.

    Args:
        progress: 0..1.
        final: the factor at the end of the run.
    """
    return 1 + (final - 1) * progress


def cosine(progress: float, *, final: Factor = 0.0) -> float:
    """Half a cosine from 1 to ``final``.

    Args:
        progress: 0..1.
        final: the factor at the end of the run.
    """
    return final + (1 - final) * (1 + math.cos(math.pi * progress)) / 2


def polynomial(progress: float, *, power: Positive = 0.9, final: Factor = 0.0) -> float:
    """``(1 - progress) ** power``, from 1 to ``final``.

    Args:
        progress: 0..1.
        power: 1 is a straight line; below 1 it falls late, above 1 early.
        final: the factor at the end of the run.
    """
    return float(final + (1 - final) * (1 - progress) ** power)


def multi_step(
    progress: float,
    *,
    milestones: Annotated[
        Sequence[Annotated[float, Field(ge=0, le=1)] | Duration], Field(min_length=1)
    ],
    gamma: Factor = 0.1,
    to_progress: Callable[[Duration], float],
) -> float:
    """1, times ``gamma`` at each milestone.

    Args:
        progress: 0..1.
        milestones: shares of the run (``0.67``) or durations (``8 epochs``), in any order.
        gamma: the factor at each.
        to_progress: given by the program.
    """
    passed = sum(progress >= (to_progress(m) if isinstance(m, Duration) else m) for m in milestones)
    return float(gamma**passed)


def one_cycle(
    progress: float,
    *,
    pct_start: Annotated[float, Field(ge=0, le=1)] = 0.3,
    div_factor: Positive = 25.0,
    final_div_factor: Positive = 1e4,
    anneal_strategy: Literal["cos", "linear"] = "cos",
) -> float:
    """Up from ``1 / div_factor`` to 1, then down to ``1 / (div_factor * final_div_factor)``.

    The options are those of ``torch.optim.lr_scheduler.OneCycleLR``; the optimiser's learning
    rate is the peak. Momentum is left alone.

    Args:
        progress: 0..1.
        pct_start: the share of the run (0..1) that goes up.
        div_factor: peak over first learning rate.
        final_div_factor: first over last learning rate.
        anneal_strategy: ``cos`` (half a cosine each way) or ``linear``.
    """
    low, end = 1 / div_factor, 1 / (div_factor * final_div_factor)
    if progress < pct_start or pct_start == 1:
        return _between(low, 1.0, progress / pct_start, anneal_strategy)
    return _between(1.0, end, (progress - pct_start) / (1 - pct_start), anneal_strategy)


def wsd(
    progress: float,
    *,
    decay: Annotated[float, Field(gt=0, le=1)] = 0.2,
    final: Factor = 0.0,
    anneal_strategy: Literal["cos", "linear"] = "linear",
) -> float:
    """Warm-up, stable, decay: 1 until the last share ``decay`` of the run, then to ``final``.

    The warm-up is ``train.warmup``, as with every schedule.

    Args:
        progress: 0..1.
        decay: the share of the run (0..1), at its end, in which it falls.
        final: the factor at the end of the run.
        anneal_strategy: how it falls: ``linear``, or ``cos`` (half a cosine).
    """
    if progress < 1 - decay:
        return 1.0
    return _between(1.0, final, (progress - (1 - decay)) / decay, anneal_strategy)


def by_epoch(schedule: Schedule, *, steps_per_epoch: float, total_steps: int) -> Schedule:
    """``schedule`` as it is at the first step of each epoch, kept until the next one.

    Args:
        schedule: what is made to wait.
        steps_per_epoch: may be fractional; an epoch begins with the first step that is wholly
            in it.
        total_steps: of the run.
    """

    def stepped(progress: float) -> float:
        epoch = math.floor(round(progress * total_steps) / steps_per_epoch + 1e-9)
        return schedule(min(1.0, math.ceil(epoch * steps_per_epoch - 1e-9) / total_steps))

    return stepped


PROBES = 200
"""At so many steps, spread over the run, a schedule is tried before the run."""


def checked(schedule: Schedule, *, total_steps: int) -> Schedule:
    """``schedule``, which has been tried at some steps of the run, the first and last among them.

    Args:
        schedule: any function, as ``train.schedule`` names it.
        total_steps: of the run.

    Raises:
        ConfigError: it raises, gives what is no finite number from 0 on, or gives 0 throughout.
    """
    some = min(PROBES, total_steps)
    steps = sorted({k * (total_steps - 1) // max(1, some - 1) for k in range(some)})
    factors = [_factor(schedule, step / total_steps) for step in steps]
    if not any(factors):
        raise ConfigError(
            f"train.schedule gives 0 throughout the run ({len(steps)} steps were tried): nothing "
            f"would be learnt; look at its options"
        )
    return schedule


def _factor(schedule: Schedule, progress: float) -> float:
    """The factor at ``progress``.

    Raises:
        ConfigError: there is none.
    """
    place = f"progress {progress:.4g} (0 is the start of the run, 1 its end)"
    try:
        given = schedule(progress)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"train.schedule fails at {place}: {type(error).__name__}: {error}"
        ) from error
    try:
        factor = math.nan if isinstance(given, (str, bytes)) else float(given)
    except (TypeError, ValueError):
        factor = math.nan
    if not 0 <= factor < math.inf:
        raise ConfigError(
            f"train.schedule gives {given!r} at {place}; the factor on the learning rate must be a "
            f"finite number, 0 or more"
        )
    return factor


def with_warmup(
    schedule: Schedule, *, until: float, shape: WarmupShape = "linear", factor: float = 0.001
) -> Schedule:
    """``schedule`` times a rise from ``factor`` to 1 that is over at progress ``until``.

    Args:
        schedule: what it is multiplied into.
        until: progress at its end; 0 for none.
        shape: ``linear``; ``constant`` (``factor``, then 1); ``burn_in`` (the fourth power of the
            way, as Darknet does).
        factor: where it begins.
    """

    def warmed(progress: float) -> float:
        rate = float(schedule(progress))  # a user's may give numpy's float
        if progress >= until:
            return rate
        way = progress / until
        risen = {"linear": way, "constant": 0.0, "burn_in": way**4}[shape]
        return (factor + (1 - factor) * risen) * rate

    return warmed


def _between(start: float, end: float, way: float, strategy: str) -> float:
    """From ``start`` (way 0) to ``end`` (way 1), straight or along half a cosine."""
    if strategy == "cos":
        way = (1 - math.cos(math.pi * way)) / 2
    return start + (end - start) * way
