"""Best and EarlyStop."""

from __future__ import annotations

import math

import pytest

from detpipe.core.errors import ConfigError
from detpipe.hooks.decide import Best, EarlyStop, MaxTime


def feed(ctx, advance, hook, values: list[float | None], name: str = "val/bbox/AP") -> list[object]:
    """The mark after each step; None is a step without an evaluation."""
    marks = []
    for value in values:
        advance(ctx)
        if value is not None:
            ctx.scalars.put(name, value, how="exact")
        hook.on_step(ctx)
        marks.append(ctx.marks.get("best"))
    return marks


def test_best_of_more_and_less(context, advance) -> None:
    values = [3.0, None, 2.0, 5.0, 5.0, math.nan, 6.0]
    more = feed(context(), advance, Best(), values)
    assert more == [3.0, None, None, 5.0, None, None, 6.0]
    less = feed(context(), advance, Best(mode="min"), values)
    assert less == [3.0, None, 2.0, None, None, None, None]


def test_nan_first_is_not_the_best(context, advance) -> None:
    assert feed(context(), advance, Best(), [math.nan, 1.0]) == [None, 1.0]


def test_nan_is_no_value_and_is_said_once(context, advance, caplog) -> None:
    ctx, hook = context(), EarlyStop(patience=2)
    feed(ctx, advance, hook, [1.0, math.nan, math.nan, math.nan, 0.5])
    assert not ctx.stop_reason
    assert caplog.text.count("has no value (NaN) at step 2") == 1
    assert caplog.text.count("has no value") == 1
    feed(ctx, advance, hook, [0.5])
    assert ctx.stop_reason


def test_best_survives_a_resume(context, advance) -> None:
    before, after = Best(), Best()
    feed(context(), advance, before, [3.0, 7.0])
    after.load_state_dict(before.state_dict())
    assert feed(context(step=2), advance, after, [5.0, 8.0]) == [None, 8.0]


def test_early_stop_counts_evaluations(context, advance) -> None:
    ctx, hook = context(), EarlyStop(patience=2, min_delta=0.5)
    feed(ctx, advance, hook, [1.0, None, None, 1.4, None, 2.0, 2.4])
    assert not ctx.stop_reason
    feed(ctx, advance, hook, [2.5])
    assert ctx.stop_reason == (
        "val/bbox/AP has not become better than 2.0 (step 6) in 2 evaluations"
    )


def test_early_stop_survives_a_resume(context, advance) -> None:
    before, after = EarlyStop(patience=3), EarlyStop(patience=3)
    feed(context(), advance, before, [5.0, 1.0, 1.0])
    after.load_state_dict(before.state_dict())
    ctx = context(step=3)
    after.on_start(ctx)
    assert not ctx.stop_reason
    feed(ctx, advance, after, [1.0])
    assert ctx.stop_reason
    again = EarlyStop(patience=3)
    again.load_state_dict(after.state_dict())
    ctx = context(step=4)
    again.on_start(ctx)
    assert ctx.stop_reason


def test_a_value_is_counted_once_when_its_step_is_resumed(context, advance) -> None:
    before, after = EarlyStop(patience=3), EarlyStop(patience=3)
    ctx = context()
    feed(ctx, advance, before, [5.0, 1.0, 1.0])
    after.load_state_dict(before.state_dict())
    resumed = context(step=3)
    resumed.scalars.load_state_dict(ctx.scalars.state_dict())
    after.on_start(resumed)
    assert not resumed.stop_reason
    assert after.state_dict() == before.state_dict()


@pytest.mark.parametrize("hook", [Best(metric="val/bbox/APP"), EarlyStop(metric="val/bbox/APP")])
def test_a_misspelt_metric_fails_at_the_first_evaluation(context, advance, hook) -> None:
    with pytest.raises(ConfigError, match=r"no metric 'val/bbox/APP'; did you mean 'val/bbox/AP'"):
        feed(context(), advance, hook, [None, 1.0])


def test_other_groups_are_no_evaluation_of_it(context, advance) -> None:
    assert feed(context(), advance, Best(metric="val/segm/AP"), [1.0], "test/bbox/AP") == [None]


@pytest.mark.parametrize("make", [lambda: Best(mode="up"), lambda: EarlyStop(patience=0)])
def test_mistakes(make) -> None:
    with pytest.raises(ConfigError):
        make()


@pytest.mark.parametrize(
    ("options", "values", "reason"),
    [
        ({"threshold": 50.0}, [10.0, 49.9, 50.0], "is 50, at least as good as 50"),
        ({"threshold": 1.0, "mode": "min"}, [3.0, 0.9], "is 0.9, at least as good as 1"),
        ({"diverged": 5.0}, [10.0, 4.9], "is 4.9, worse than 5"),
        ({"diverged": 5.0, "mode": "min"}, [3.0, 5.1], "is 5.1, worse than 5"),
        ({"check_finite": True}, [1.0, math.nan], "is NaN at step 2"),
        ({"check_finite": True, "mode": "min"}, [1.0, math.inf], "is inf at step 2"),
    ],
)
def test_early_stop_at_a_limit(context, advance, options, values, reason) -> None:
    ctx, hook = context(), EarlyStop(patience=9, **options)
    feed(ctx, advance, hook, values[:-1])
    assert not ctx.stop_reason
    feed(ctx, advance, hook, values[-1:])
    assert ctx.stop_reason.endswith(reason)
    assert not ctx.resumable


def test_max_time_ends_a_run_that_can_go_on(context, advance, monkeypatch) -> None:
    now = 1000.0
    monkeypatch.setattr("detpipe.hooks.decide.perf_counter", lambda: now)
    ctx, hook = context(), MaxTime(minutes=1, seconds=30)
    hook.on_start(ctx)
    now += 89.9
    advance(ctx)
    hook.on_step(ctx)
    assert not ctx.stop_reason
    now += 0.1
    advance(ctx)
    hook.on_step(ctx)
    assert (
        ctx.stop_reason == "the time of 0:01:30 is up at step 2; --params train.resume=true goes on"
    )
    assert ctx.resumable


def test_max_time_needs_a_time() -> None:
    with pytest.raises(ConfigError, match="must be above 0, got hours=0, minutes=0, seconds=0"):
        MaxTime()


def test_another_metric_begins_without_the_old_ones_memory(context, advance, caplog) -> None:
    before, after = Best(metric="val/bbox/AP"), Best(metric="val/bbox/AP50")
    feed(context(), advance, before, [5.0])
    after.load_state_dict(before.state_dict())
    assert after.best is None
    assert "watched val/bbox/AP (max) before and watches val/bbox/AP50 (max) now" in caplog.text


def test_a_name_that_no_evaluation_gives_is_said(context, advance, caplog) -> None:
    ctx, hook = context(), Best(metric="vall/bbox/AP")
    for _ in range(2):
        advance(ctx)
        ctx.scalars.put("val/bbox/AP", 1.0, how="exact")
        hook.on_step(ctx)
    assert caplog.text.count("nothing has given 'vall/bbox/AP' by the first evaluation") == 1


def test_losses_are_not_watched() -> None:
    with pytest.raises(ConfigError, match="losses are looked at when they are logged"):
        EarlyStop(metric="train/loss", mode="min")
