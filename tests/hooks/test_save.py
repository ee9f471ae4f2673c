"""The Checkpoint hook: when it saves, and what the marks do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from detpipe.core.config import Duration, Spec
from detpipe.core.errors import CheckpointError
from detpipe.hooks.save import Checkpoint
from detpipe.train.checkpoint import CheckpointFolder


def drive(
    ctx, advance, hook: Checkpoint, steps: int, *, best_at: tuple[int, ...] = ()
) -> list[int]:
    """The steps of which a snapshot was taken."""
    taken = []

    def snapshot() -> dict:
        taken.append(ctx.state.step)
        return {"format": 1, "state": {"step": ctx.state.step}, "model": {}, "ema": None}

    ctx.take_snapshot = snapshot
    hook.on_start(ctx)
    for _ in range(steps):
        advance(ctx)
        if ctx.state.step in best_at:
            ctx.marks["best"] = 0.5
        hook.on_step(ctx)
    hook.on_end(ctx)
    return taken


def test_periodic_best_final(tmp_path: Path, context, advance) -> None:
    hook = Checkpoint(tmp_path, every=Duration(steps=4), keep=1)
    assert drive(context(), advance, hook, 10, best_at=(2, 4)) == [2, 4, 8, 10]
    entries = CheckpointFolder(tmp_path).entries()
    assert [(e.step, e.best, e.final) for e in entries] == [(4, True, False), (10, False, True)]


def test_a_final_step_that_was_just_saved_is_not_saved_again(
    tmp_path: Path, context, advance
) -> None:
    hook = Checkpoint(tmp_path, every=Duration(steps=5))
    assert drive(context(), advance, hook, 10, best_at=(10,)) == [5, 10]
    last = CheckpointFolder(tmp_path).entries()[-1]
    assert (last.step, last.best, last.final) == (10, True, True)


def test_statistics_that_changed_at_the_very_end_are_saved_too(
    tmp_path: Path, context, advance
) -> None:
    ctx, hook = context(step=9), Checkpoint(tmp_path, every=Duration(steps=5))
    hook.on_start(ctx)
    advance(ctx)
    ctx.marks["best"] = 3.0
    ctx.take_snapshot = lambda: {"state": {"step": 10}, "statistics": 1, "format": 1}
    hook.on_step(ctx)
    ctx.take_snapshot = lambda: {"state": {"step": 10}, "statistics": 2, "format": 1}
    ctx.marks["recalibrated"] = True
    hook.on_end(ctx)
    folder = CheckpointFolder(tmp_path)
    (last,) = folder.entries()
    assert (last.step, last.best, last.metric, last.final) == (10, True, 3.0, True)
    assert folder.latest()["statistics"] == 2


@pytest.mark.parametrize("resumable", [False, True])
def test_a_run_that_will_go_on_has_no_final_checkpoint(
    tmp_path: Path, context, advance, resumable: bool
) -> None:
    for every in (5, 100):  # saved at that step already, or not
        ctx = context()
        hook = Checkpoint(tmp_path / str(every), every=Duration(steps=every))
        hook.on_start(ctx)
        advance(ctx, 5)
        ctx.take_snapshot = lambda: {"state": {"step": 5}}
        hook.on_step(ctx)
        ctx.stop("for now", resumable=resumable)
        hook.on_end(ctx)
        folder = CheckpointFolder(tmp_path / str(every))
        assert [entry.step for entry in folder.entries()] == [5]
        assert folder.finished is not resumable


@pytest.mark.parametrize(
    ("every", "best", "steps"), [("0 steps", True, [3, 10]), ("0 steps", False, [10])]
)
def test_no_period(tmp_path: Path, context, advance, every: str, best: bool, steps: list) -> None:
    hook = Spec(use="detpipe.hooks.save.Checkpoint", every=every, best=best).build(
        folder=tmp_path, evaluate=None
    )
    assert drive(context(), advance, hook, 10, best_at=(3,)) == steps


def test_the_default_period_is_an_epoch(tmp_path: Path, context, advance) -> None:
    assert drive(context(), advance, Checkpoint(tmp_path), 12) == [5, 10, 12]


def test_a_full_disk_surfaces_at_the_next_save(
    tmp_path: Path, context, advance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(content: object, file: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    ctx = context()
    with pytest.raises(CheckpointError, match="No space left"):
        drive(ctx, advance, Checkpoint(tmp_path, every=Duration(steps=4)), 10)
    assert ctx.state.step == 8
