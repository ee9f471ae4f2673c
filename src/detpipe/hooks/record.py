"""The hook that writes scalars out."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from detpipe.core.config import Every
from detpipe.train.contract import Hook, LoopContext, Phase, due

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
        """Writes what is left and closes the writers."""
        if ctx.scalars.pending:
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
            writer.write(step, row)

    def _close(self) -> None:
        writers, self._open = self._open, []
        for writer in writers:
            try:
                writer.close()
            except Exception:
                logger.exception("%s could not be closed", type(writer).__name__)
