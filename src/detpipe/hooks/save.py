"""The hook that writes weights."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

from pydantic import Field

from detpipe.core.config import Duration, Every
from detpipe.core.errors import NonFiniteLoss
from detpipe.train.checkpoint import CheckpointFolder
from detpipe.train.contract import Hook, LoopContext, Phase, due

logger = logging.getLogger(__name__)


class Checkpoint(Hook):
    """Saves checkpoints: periodically, the best, the final one, and when a signal ends the run.

    Args:
        folder: where they go, given by the program.
        every: the period; 0 for none but best and final.
        keep: how many of the newest stay, beside the best and the final one.
        best: whether a step marked as best is saved.
    """

    phase = Phase.SAVE
    saves = True

    def __init__(
        self,
        folder: Path,
        *,
        every: Every = Duration(epochs=1),  # noqa: B008 - it is frozen
        keep: Annotated[int, Field(ge=1)] = 2,
        best: bool = True,
    ) -> None:
        self._folder = CheckpointFolder(folder, keep=keep)
        self._every, self._best = every, best
        self._period = 0
        self._saved_step = -1

    def on_start(self, ctx: LoopContext) -> None:
        """A best that was found while resuming is saved at once."""
        self._period = ctx.steps(self._every)
        self._saved_step = ctx.state.step if ctx.state.step else -1
        if self._is_best(ctx):
            self._save(ctx)

    def on_step(self, ctx: LoopContext) -> None:
        """Saves when it is time, at a best step, and before a signal ends the run."""
        wanted = due(ctx.state.step, self._period) or self._is_best(ctx)
        if wanted or ctx.interruption is not None:
            self._save(ctx)

    def on_end(self, ctx: LoopContext) -> None:
        """Saves the last one, the final one unless there is more to do; waits for the disk.

        The mark ``recalibrated`` says that a hook changed statistics since it was saved.
        """
        if self._saved_step == ctx.state.step and "recalibrated" not in ctx.marks:
            if not ctx.resumable:
                self._folder.mark_final(ctx.state.step)
        else:
            self._save(ctx, final=not ctx.resumable)
        self._folder.wait()

    def on_error(self, ctx: LoopContext, error: BaseException) -> None:
        """Waits for what is being written; says what is left when the run went astray."""
        try:
            self._folder.wait()
        finally:
            if isinstance(error, NonFiniteLoss):
                error.checkpoint = self._left()
        if error is ctx.interruption and self._saved_step == ctx.state.step:
            logger.info(
                "'%s' is saved; --params train.resume=true goes on there",
                self._folder.file(ctx.state.step),
            )

    def _left(self) -> str:
        entries = self._folder.entries()
        if not entries:
            return "There is no checkpoint to go back to"
        step = entries[-1].step
        return f"The checkpoint of step {step} is intact: '{self._folder.file(step)}'"

    def _is_best(self, ctx: LoopContext) -> bool:
        return self._best and "best" in ctx.marks

    def _save(self, ctx: LoopContext, *, final: bool = False) -> None:
        best = self._is_best(ctx)
        metric = ctx.marks["best"] if best else None
        self._folder.save(ctx.snapshot(), best=best, metric=metric, final=final)
        self._saved_step = ctx.state.step
