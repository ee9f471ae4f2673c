"""A hook that records where the time of a few steps goes."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import torch
from torch import profiler

from detpipe.core.errors import ConfigError
from detpipe.train.contract import Hook, LoopContext, Phase

logger = logging.getLogger(__name__)

FOLDER = "profile"
"""Below the checkpoint folder; also the artifacts' folder in the tracker."""


class Profile(Hook):
    """Records ``steps`` steps with ``torch.profiler``: CPU, and CUDA where there is one.

    Into ``<checkpoint folder>/profile/`` it writes a trace for ``chrome://tracing`` or
    https://ui.perfetto.dev (``steps_11-13.json.gz``) and a table of operators (``.txt``), the most
    expensive first. What else happens within these steps, such as an evaluation, is recorded too.
    The recorded steps are slower than the others; the rest of the run is not.

    Args:
        folder: the checkpoint folder, given by the program.
        start: steps before the record begins; the last of them warms the profiler up. Counted
            from where this run began or was resumed.
        steps: how many are recorded.
        rows: operators in the table.
        memory: also record what each operator allocates.

    Raises:
        ConfigError: ``start``, ``steps`` or ``rows`` is below 1.
    """

    phase = Phase.RECORD  # when the folder of another run has been put aside

    def __init__(
        self, folder: Path, *, start: int = 10, steps: int = 3, rows: int = 40, memory: bool = False
    ) -> None:
        for name, value in {"start": start, "steps": steps, "rows": rows}.items():
            if value < 1:
                raise ConfigError(f"Profile: {name} must be 1 or more, got {value}")
        self._folder = folder / FOLDER
        self._start, self._steps, self._rows, self._memory = start, steps, rows, memory
        self._profiler: profiler.profile | None = None
        self._done = self._first = 0

    def on_start(self, ctx: LoopContext) -> None:
        """The profiler waits; what another run left in the folder goes."""
        self._done, self._first = 0, ctx.state.step
        if not self._first:
            shutil.rmtree(self._folder, ignore_errors=True)
        left = ctx.total_steps - self._first
        if left <= self._start:
            logger.warning(
                "Profile: nothing will be recorded: it begins after %d steps, and this run has %d; "
                "lower 'start'", self._start, left,
            )  # fmt: skip
            return
        activities = [profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(profiler.ProfilerActivity.CUDA)
        self._profiler = profiler.profile(
            activities=activities,
            schedule=profiler.schedule(
                wait=self._start - 1, warmup=1, active=self._steps, repeat=1
            ),
            record_shapes=True,
            profile_memory=self._memory,
        )
        self._profiler.start()

    def on_step(self, ctx: LoopContext) -> None:
        """One step further; writes after the last one that is recorded."""
        if self._profiler is None:
            return
        self._done += 1
        if self._done < self._start + self._steps and not ctx.is_last:
            self._profiler.step()
        else:
            self._finish(write=self._done > self._start)

    def on_error(self, ctx: LoopContext, error: BaseException) -> None:
        """The profiler ends; what it has is of no use."""
        self._finish(write=False)

    def _finish(self, *, write: bool) -> None:
        recorded, self._profiler = self._profiler, None
        if recorded is None:
            return
        recorded.stop()
        if not write:
            logger.warning("Profile: the run ended before anything was recorded")
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        first, last = self._first + self._start + 1, self._first + self._done
        file = self._folder / f"steps_{first}-{last}.json.gz"
        recorded.export_chrome_trace(str(file))
        on_gpu = torch.cuda.is_available()
        table = recorded.key_averages().table(
            sort_by="self_device_time_total" if on_gpu else "self_cpu_time_total",
            row_limit=self._rows,
        )
        file.with_suffix("").with_suffix(".txt").write_text(table, encoding="utf-8")
        logger.info("Profile: steps %d to %d are in '%s'", first, last, file)
