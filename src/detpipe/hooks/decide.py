"""Hooks that read scalars and set marks, or ask to stop. They write nothing."""

from __future__ import annotations

import difflib
import logging
import math
from collections.abc import Mapping
from datetime import timedelta
from time import perf_counter
from typing import Annotated, Any, Literal

from pydantic import Field

from detpipe.core.errors import ConfigError
from detpipe.train.contract import Hook, LoopContext, Phase

logger = logging.getLogger(__name__)

Mode = Literal["max", "min"]
Span = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]


class _Watch(Hook):
    """Looks at one metric whenever it gets a new value."""

    phase = Phase.DECIDE

    def __init__(self, metric: str, mode: Mode) -> None:
        if mode not in ("max", "min"):
            raise ConfigError(f"mode must be max or min, got '{mode}'")
        if metric.startswith("train/loss"):
            raise ConfigError(
                f"{type(self).__name__}: metric '{metric}': losses are looked at when they are "
                f"logged, not in each step; watch a result of an evaluation, such as val/bbox/AP"
            )
        self.metric, self.mode = metric, mode
        self.best: float | None = None
        self.best_step = 0
        self._looked_at = 0  # the step of the last value: a resume must not count it twice
        self._warned = False

    def on_start(self, ctx: LoopContext) -> None:
        """An evaluation that the run before could not finish has its result now."""
        self.on_step(ctx)

    def on_step(self, ctx: LoopContext) -> None:
        """Looks at a new value; the first evaluation shows whether the name is a mistake.

        NaN is no value: the metric exists, but nothing in the data set counts for it.
        """
        if not ctx.scalars.put_now(self.metric):
            self._check_name(ctx)
        elif ctx.state.step != self._looked_at:
            self._looked_at = ctx.state.step
            value = ctx.scalars.latest(self.metric)
            if not math.isnan(value):
                self.look(ctx, value)
            else:
                self.look_at_nan(ctx)

    def look_at_nan(self, ctx: LoopContext) -> None:
        """What to do about NaN: it is said once."""
        if not self._warned:
            self._warned = True
            logger.warning(
                "%s: '%s' has no value (NaN) at step %d, as if it had not been evaluated; is "
                "there anything in the data set that it counts?",
                type(self).__name__, self.metric, ctx.state.step,
            )  # fmt: skip

    def look(self, ctx: LoopContext, value: float) -> None:
        """What to do about a new value, which is not NaN."""
        raise NotImplementedError

    def better(self, value: float, *, by: float = 0.0) -> bool:
        """Whether ``value`` beats the best one by more than ``by``."""
        if self.best is None:
            return True
        return value > self.best + by if self.mode == "max" else value < self.best - by

    def _warn_at_first_evaluation(self, ctx: LoopContext, group: str) -> None:
        evaluated = [n for n in ctx.scalars.names(at=ctx.state.step) if n.startswith("val/")]
        if not evaluated or group == "val/" or self._warned:
            return
        self._warned = True
        logger.warning(
            "%s: nothing has given '%s' by the first evaluation, which gives %s; is that its name?",
            type(self).__name__, self.metric, ", ".join(evaluated[:12]),
        )  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        """The best value and its step, the step of the last value, and of what."""
        return {
            "metric": self.metric,
            "mode": self.mode,
            "best": self.best,
            "best_step": self.best_step,
            "looked_at": self._looked_at,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes back what :meth:`state_dict` gave, unless it is of another metric."""
        before = state.get("metric", self.metric), state.get("mode", self.mode)
        if before != (self.metric, self.mode):
            logger.warning(
                "%s: it watched %s (%s) before and watches %s (%s) now: it starts without a memory",
                type(self).__name__, *before, self.metric, self.mode,
            )  # fmt: skip
            return
        self.best, self.best_step = state["best"], state["best_step"]
        self._looked_at = state["looked_at"]

    def _check_name(self, ctx: LoopContext) -> None:
        group = self.metric.split("/")[0] + "/"
        known = ctx.scalars.names()
        if group == "train/" or self.metric in known:
            return
        self._warn_at_first_evaluation(ctx, group)
        there = [name for name in ctx.scalars.names(at=ctx.state.step) if name.startswith(group)]
        if there:
            near = difflib.get_close_matches(self.metric, there, 1)
            hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(there)}"
            raise ConfigError(
                f"{type(self).__name__}: the evaluation gives no metric '{self.metric}'; {hint}"
            )


class Best(_Watch):
    """Marks a step as the best so far (``marks['best']`` is its value); keeps it over a resume.

    Args:
        metric: name of a scalar.
        mode: whether more (``max``) or less (``min``) is better.
    """

    def __init__(self, *, metric: str = "val/bbox/AP", mode: Mode = "max") -> None:
        super().__init__(metric, mode)

    def look(self, ctx: LoopContext, value: float) -> None:
        """Sets the mark."""
        if self.better(value):
            self.best, self.best_step = value, ctx.state.step
            ctx.marks["best"] = value
            logger.info("best %s so far: %.4g, at step %d", self.metric, value, self.best_step)


class EarlyStop(_Watch):
    """Ends the run when a metric has not become better for a while, or is good or bad enough.

    Args:
        metric: name of a scalar.
        patience: how many values in a row may be no better before the run ends.
        min_delta: by how much a value must be better to count.
        mode: whether more (``max``) or less (``min``) is better.
        threshold: the run ends as soon as a value is at least this good.
        diverged: the run ends as soon as a value is worse than this.
        check_finite: the run ends at a value that is infinite, or NaN; otherwise NaN counts as no
            value (a metric that nothing in the data set counts for is NaN).
    """

    def __init__(
        self,
        *,
        metric: str = "val/bbox/AP",
        patience: Annotated[int, Field(ge=1)] = 5,
        min_delta: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0,
        mode: Mode = "max",
        threshold: float | None = None,
        diverged: float | None = None,
        check_finite: bool = False,
    ) -> None:
        if patience < 1:
            raise ConfigError(f"EarlyStop: patience must be 1 or more, got {patience}")
        if min_delta < 0:
            raise ConfigError(f"EarlyStop: min_delta must be 0 or more, got {min_delta}")
        super().__init__(metric, mode)
        self._patience, self._min_delta = patience, min_delta
        self._threshold, self._diverged, self._check_finite = threshold, diverged, check_finite
        self._waited = 0

    def on_start(self, ctx: LoopContext) -> None:
        """A run that had to stop still has to after a resume."""
        super().on_start(ctx)
        self._stop_if_exhausted(ctx)
        if self.best is not None:
            self._stop_at_limits(ctx, self.best)

    def look(self, ctx: LoopContext, value: float) -> None:
        """Counts values that are no better."""
        self._stop_at_limits(ctx, value)
        if self.better(value, by=self._min_delta):
            self.best, self.best_step, self._waited = value, ctx.state.step, 0
        else:
            self._waited += 1
        self._stop_if_exhausted(ctx)

    def state_dict(self) -> dict[str, Any]:
        """As of every watch, and how many values came after the best."""
        return {**super().state_dict(), "waited": self._waited}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes back what :meth:`state_dict` gave."""
        super().load_state_dict(state)
        self._waited = state["waited"] if self.best is not None else 0

    def look_at_nan(self, ctx: LoopContext) -> None:
        """Ends the run, if NaN is to end it."""
        if self._check_finite:
            ctx.stop(f"{self.metric} is NaN at step {ctx.state.step}")
        else:
            super().look_at_nan(ctx)

    def _stop_at_limits(self, ctx: LoopContext, value: float) -> None:
        sign = 1 if self.mode == "max" else -1
        if self._threshold is not None and (value - self._threshold) * sign >= 0:
            ctx.stop(f"{self.metric} is {value:g}, at least as good as {self._threshold:g}")
        elif self._diverged is not None and (value - self._diverged) * sign < 0:
            ctx.stop(f"{self.metric} is {value:g}, worse than {self._diverged:g}")
        elif self._check_finite and math.isinf(value):
            ctx.stop(f"{self.metric} is {value:g} at step {ctx.state.step}")

    def _stop_if_exhausted(self, ctx: LoopContext) -> None:
        if self._waited >= self._patience:
            ctx.stop(
                f"{self.metric} has not become better than {self.best} (step {self.best_step}) "
                f"in {self._waited} evaluations"
            )


class MaxTime(Hook):
    """Ends the process's part of a run when its time is up, for a machine that is lent by the hour.

    The run is not finished by it: a checkpoint is saved, the pipeline evaluates what there is,
    and ``train.resume: true`` goes on, with as much time again.

    Args:
        hours: added up with the others.
        minutes: added up with the others.
        seconds: added up with the others; the time is counted from the start of training.
        started: given by the program: when training began, on the clock of ``perf_counter``.
    """

    phase = Phase.DECIDE

    def __init__(
        self,
        *,
        hours: Span = 0,
        minutes: Span = 0,
        seconds: Span = 0,
        started: float | None = None,
    ) -> None:
        self._seconds = hours * 3600 + minutes * 60 + seconds
        if not self._seconds > 0:
            raise ConfigError(
                f"MaxTime: the time must be above 0, got hours={hours:g}, minutes={minutes:g}, "
                f"seconds={seconds:g}"
            )
        self._started, self._end = started, math.inf

    def on_start(self, ctx: LoopContext) -> None:
        """The clock starts, unless it runs already: a reload of a checkpoint gives no more time."""
        self._end = (perf_counter() if self._started is None else self._started) + self._seconds

    def on_step(self, ctx: LoopContext) -> None:
        """Ends the run at the first step after the time is up."""
        if perf_counter() >= self._end and not ctx.is_last:
            time = timedelta(seconds=math.ceil(self._seconds))
            ctx.stop(
                f"the time of {time} is up at step {ctx.state.step}; --params train.resume=true "
                f"goes on",
                resumable=True,
            )
