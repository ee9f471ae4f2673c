"""Record: which rows, at which steps."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping

import pytest
import torch
from rich.console import Console
from rich.logging import RichHandler

from detpipe.core.config import Duration
from detpipe.hooks.record import ProgressBar, Record, Writer


class Memory(Writer):
    def __init__(self, calls: list[str] | None = None) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.calls = [] if calls is None else calls

    def open(self, *, start_step: int) -> None:
        self.calls.append(f"open at {start_step}")

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        self.rows.append((step, dict(scalars)))

    def close(self) -> None:
        self.calls.append("close")


def drive(ctx, advance, hook: Record, steps: int) -> None:
    for _ in range(steps):
        advance(ctx)
        ctx.scalars.put_losses(("loss",), torch.tensor([float(ctx.state.step)]), ())
        if ctx.state.step in (4, 6):
            ctx.scalars.put("val/AP", 10.0 * ctx.state.step, how="exact")
        hook.on_step(ctx)


def losses(writer: Memory) -> dict[int, float]:
    return {step: row["train/loss"] for step, row in writer.rows if "train/loss" in row}


def test_rows(context, advance) -> None:
    ctx, writer = context(), Memory()
    hook = Record({"memory": writer}, every=Duration(steps=3))
    hook.on_start(ctx)
    drive(ctx, advance, hook, 8)
    hook.on_end(ctx)
    assert losses(writer) == {3: 2.0, 6: 5.0, 8: 7.5}
    assert [(s, r["val/AP"]) for s, r in writer.rows if "val/AP" in r] == [(4, 40.0), (6, 60.0)]
    assert writer.rows[0][1]["train/epoch"] == pytest.approx(0.6)
    assert writer.calls == ["open at 0", "close"]


def test_rows_are_aligned_to_the_runs_steps(context, advance) -> None:
    ctx, writer = context(step=4), Memory()
    hook = Record({"memory": writer}, every=Duration(steps=3))
    hook.on_start(ctx)
    drive(ctx, advance, hook, 5)
    assert list(losses(writer)) == [6, 9]
    assert writer.calls == ["open at 4"]


def test_a_period_of_zero_gives_one_row(context, advance) -> None:
    ctx, writer = context(), Memory()
    hook = Record({"memory": writer}, every=Duration(steps=0))
    hook.on_start(ctx)
    drive(ctx, advance, hook, 5)
    hook.on_end(ctx)
    assert losses(writer) == {5: 3.0}


def test_no_row_twice_at_the_end(context, advance) -> None:
    ctx, writer = context(), Memory()
    hook = Record({"memory": writer}, every=Duration(steps=3))
    hook.on_start(ctx)
    drive(ctx, advance, hook, 3)
    hook.on_end(ctx)
    assert [step for step, _ in writer.rows] == [3]


def test_every_writer_is_closed_when_the_run_fails(context, advance) -> None:
    class Fails(Memory):
        def close(self) -> None:
            raise OSError("disk full")

    calls: list[str] = []
    hook = Record({"a": Fails(calls), "b": Memory(calls)}, every=Duration(steps=3))
    ctx = context()
    hook.on_start(ctx)
    hook.on_error(ctx, RuntimeError())
    hook.on_error(ctx, RuntimeError())  # once is enough
    assert calls == ["open at 0", "open at 0", "close"]


def test_the_bar_shows_on_a_terminal_and_goes_away(context, advance, capsys, monkeypatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    console = Console(force_terminal=True, width=100)
    monkeypatch.setattr(logging.getLogger(), "handlers", [RichHandler(console=console)])
    ctx, bar = context(step=40), ProgressBar(refresh=1000)
    bar.on_start(ctx)
    advance(ctx)
    ctx.scalars.put("time/eta", 3723.0, how="last")
    ctx.scalars.put_losses(("loss",), torch.tensor([0.25]), ("a.jpg",))
    ctx.scalars.read_losses()
    bar.on_step(ctx)
    bar.on_end(ctx)
    shown = capsys.readouterr().out
    assert "step 41/100" in shown
    assert "41 %  1:02:03 left  loss 0.25" in shown
    assert shown.endswith("\x1b[2K")  # the line is cleared


def test_the_bar_leaves_a_log_file_alone(context, advance, capsys) -> None:
    ctx, bar = context(), ProgressBar()
    bar.on_start(ctx)
    advance(ctx)
    bar.on_step(ctx)
    bar.on_end(ctx)
    assert capsys.readouterr() == ("", "")


def test_what_a_stopped_run_left_over_waits_for_the_resume(context, advance) -> None:
    """A run that MaxTime ends has the rows of the run that goes on, no more and no fewer."""
    written = Memory()
    ctx, hook = context(), Record({"noted": written}, every=Duration(steps=3))
    hook.on_start(ctx)
    for _ in range(4):
        advance(ctx)
        ctx.scalars.put("train/a", 1.0)
        hook.on_step(ctx)
    ctx.stop("time is up", resumable=True)
    hook.on_end(ctx)
    assert [step for step, _ in written.rows] == [3]
    assert ctx.scalars.pending
