"""Hooks that show and write scalars."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Mapping
from time import perf_counter
from typing import TYPE_CHECKING

from detpipe.core.config import Every
from detpipe.core.console import log_console
from detpipe.core.errors import ConfigError, DetpipeError
from detpipe.train.contract import Hook, LoopContext, Phase, due

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

logger = logging.getLogger(__name__)


class Writer:
    """Base of writers. A row is a step and some scalars; two rows may have the same step."""

    def open(self, *, start_step: int) -> None:
        """Before the first row. A resumed run goes on after ``start_step``: later rows go away."""

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """One row."""

    def close(self) -> None:
        """After the last row, also when the run failed."""


class Record(Hook):
    """Gives scalars to writers: one row every ``every`` steps, and one at the end of the run.

    A row holds means over the interval (losses, times) and last values (learning rate). Results
    of an evaluation are written at the very step they belong to.

    Args:
        writers: name → writer.
        every: the log interval, aligned to the run's steps, so a resumed run keeps the rhythm.
    """

    phase = Phase.RECORD

    def __init__(self, writers: Mapping[str, Writer], *, every: Every) -> None:
        self._writers, self._every = writers, every
        self._open: list[Writer] = []
        self._period = 0

    def on_start(self, ctx: LoopContext) -> None:
        """Opens the writers."""
        self._period = ctx.steps(self._every)
        for writer in self._writers.values():
            writer.open(start_step=ctx.state.step)
            self._open.append(writer)
        self._write_exact(ctx)

    def on_step(self, ctx: LoopContext) -> None:
        """Writes the interval's row when it is time, and results at once."""
        if due(ctx.state.step, self._period):
            self._write_interval(ctx)
        self._write_exact(ctx)

    def on_end(self, ctx: LoopContext) -> None:
        """Writes what is left and closes the writers.

        What a run leaves that goes on later stays in its checkpoint, as in :meth:`on_error`.
        """
        if ctx.scalars.pending and not ctx.resumable:
            self._write_interval(ctx)
        self._write_exact(ctx)
        self._close()

    def on_error(self, ctx: LoopContext, error: BaseException) -> None:
        """Closes the writers. The unfinished interval is in the checkpoint, for a resume."""
        self._close()

    def _write_interval(self, ctx: LoopContext) -> None:
        row = ctx.scalars.take_interval()
        self._write(ctx.state.step, {"train/epoch": ctx.epoch, **row})

    def _write_exact(self, ctx: LoopContext) -> None:
        for step, row in ctx.scalars.take_exact():
            self._write(step, row)

    def _write(self, step: int, row: Mapping[str, float]) -> None:
        for writer in self._open:
            try:
                writer.write(step, row)
            except OSError as error:
                where = getattr(writer, "path", "its file")
                raise DetpipeError(
                    f"{type(writer).__name__} could not write to '{where}' at step {step}: "
                    f"{error}. Make room there, then go on with train.resume: the checkpoints "
                    f"are as they were, and rows after the newest one are written again"
                ) from error

    def _close(self) -> None:
        writers, self._open = self._open, []
        for writer in writers:
            try:
                writer.close()
            except Exception:
                logger.exception("%s could not be closed", type(writer).__name__)


class ProgressBar(Hook):
    """A progress bar with the time left, on a terminal only: a log file gets no line of it.

    Args:
        refresh: redraws a second, at most.
    """

    phase = Phase.RECORD

    def __init__(self, *, refresh: float = 4.0) -> None:
        if refresh <= 0:
            raise ConfigError(f"ProgressBar: refresh must be above 0, got {refresh}")
        self._refresh = refresh
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._next = 0.0

    def on_start(self, ctx: LoopContext) -> None:
        """Shows the bar, if there is a terminal."""
        if not sys.stdout.isatty():
            return
        from rich.progress import BarColumn, Progress, TextColumn

        self._bar = Progress(
            TextColumn("step {task.completed}/{task.total}"),
            BarColumn(),
            TextColumn("{task.percentage:.0f} %  {task.fields[left]} left  {task.fields[loss]}"),
            console=log_console(),
            transient=True,
            refresh_per_second=self._refresh,
        )
        self._task = self._bar.add_task(
            "train", total=ctx.total_steps, completed=ctx.state.step, left="?", loss=""
        )
        self._bar.start()

    def on_step(self, ctx: LoopContext) -> None:
        """Moves it, as often as it is redrawn."""
        if self._bar is None or self._task is None:
            return
        now = perf_counter()
        if now < self._next and not ctx.is_last:
            return
        self._next = now + 1 / self._refresh
        eta, loss = ctx.scalars.latest("time/eta"), ctx.scalars.latest("train/loss")
        self._bar.update(
            self._task,
            completed=ctx.state.step,
            left="?" if math.isnan(eta) else clock(eta),
            loss="" if math.isnan(loss) else f"loss {loss:.4g}",
        )

    def on_end(self, ctx: LoopContext) -> None:
        """Takes the bar away."""
        self._close()

    def on_error(self, ctx: LoopContext, error: BaseException) -> None:
        """Takes the bar away."""
        self._close()

    def _close(self) -> None:
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.stop()


def clock(seconds: float) -> str:
    """Hours, minutes, seconds: ``1:02:03``."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
