"""Timer, memory, evaluation, callbacks."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from detpipe.core.config import Duration, Spec
from detpipe.core.errors import ConfigError, NonFiniteLoss
from detpipe.hooks import measure
from detpipe.hooks.measure import Callback, Evaluate, Memory, StepTimer
from detpipe.train.contract import Phase


def test_timer_with_a_clock_of_our_own(context, advance, monkeypatch) -> None:
    now = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(measure, "perf_counter", lambda: now.seconds)
    ctx, timer = context(step=10), StepTimer()
    timer.on_start(ctx)
    for seconds, aside in ((2.0, 0.0), (2.0, 0.0), (7.0, 3.0)):
        now.seconds += seconds
        ctx.aside_seconds += aside
        ctx.data_seconds = 0.5
        advance(ctx)
        timer.on_step(ctx)
    row = ctx.scalars.take_interval()
    assert row["time/step"] == pytest.approx((2 + 2 + 4) / 3)  # 3 seconds were an evaluation
    assert row["time/data"] == 0.5
    assert row["time/images_per_second"] == pytest.approx(4 / ((2 + 2 + 4) / 3))
    assert row["time/eta"] == pytest.approx(11 / 3 * 87)  # with it: 11 s for 3 of 90 steps


def test_memory(context, advance) -> None:
    ctx = context()
    advance(ctx)
    Memory().on_step(ctx)
    (value,) = ctx.scalars.take_interval().values()
    assert 10 < value < 1e6  # MiB: neither bytes nor KiB nor GiB


class Careless(nn.Module):
    """Batch norm in training mode, a part frozen in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.BatchNorm1d(2).eval()
        self.live = nn.BatchNorm1d(2)


def test_evaluation_leaves_no_trace(context, advance) -> None:
    modes = []

    def evaluate(model: nn.Module) -> dict[str, float]:
        modes.append((model.live.training, torch.is_grad_enabled()))
        random.random(), np.random.rand(), torch.rand(1)
        return {"val/bbox/AP": 12.5}

    model = Careless()
    ctx = context(model=model)
    hook = Evaluate(evaluate, every=Duration(steps=2))
    hook.on_start(ctx)
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    expected = random.random(), np.random.rand(), float(torch.rand(()))
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    for _ in range(4):
        advance(ctx)
        hook.on_step(ctx)
    assert (random.random(), np.random.rand(), float(torch.rand(()))) == expected
    assert modes == [(False, False)] * 2
    assert (model.live.training, model.frozen.training) == (True, False)
    rows = dict(ctx.scalars.take_exact())
    assert [rows[step]["val/bbox/AP"] for step in (2, 4)] == [12.5, 12.5]
    assert ctx.aside_seconds > 0


def test_modes_come_back_after_a_failing_evaluation(context, advance) -> None:
    model = Careless()
    ctx = context(model=model)
    hook = Evaluate(lambda model: {}["missing"], every=Duration(steps=1))
    hook.on_start(ctx)
    advance(ctx)
    with pytest.raises(KeyError):
        hook.on_step(ctx)
    assert (model.live.training, model.frozen.training) == (True, False)


@pytest.mark.parametrize(("publish", "steps"), [("final", [50]), ("best", [50, 100])])
def test_the_last_step(context, advance, publish: str, steps: list[int]) -> None:
    ctx, seen = context(), []
    hook = Evaluate(
        lambda model: seen.append(ctx.state.step) or {},
        every=Duration(steps=50),
        publish=publish,
    )
    hook.on_start(ctx)
    for _ in range(100):
        advance(ctx)
        hook.on_step(ctx)
    assert seen == steps


def test_nothing_is_measured_on_weights_that_are_not_finite(context, advance) -> None:
    ctx = context()
    hook = Evaluate(lambda model: pytest.fail("evaluated"), every=Duration(steps=1))
    hook.on_start(ctx)
    advance(ctx)
    ctx.scalars.put_losses(("loss",), torch.tensor([math.nan]), ("a.jpg",))
    with pytest.raises(NonFiniteLoss):
        hook.on_step(ctx)


def test_callbacks_are_plain_functions(context, advance) -> None:
    calls = []
    hook = Callback(
        phase="RECORD",
        on_start=lambda ctx: calls.append("start"),
        on_step=lambda ctx: calls.append(ctx.state.step),
        every=Duration(steps=3),
    )
    assert hook.phase is Phase.RECORD
    ctx = context()
    hook.on_start(ctx)
    for _ in range(7):
        advance(ctx)
        hook.on_step(ctx)
    assert calls == ["start", 3, 6]


CALLED: list[int] = []


def note(ctx: object) -> None:
    CALLED.append(1)


def test_callbacks_from_yaml() -> None:
    hook = Spec(
        use="detpipe.hooks.measure.Callback", on_end=f"{__name__}.note", every="10 steps"
    ).build(folder=None, evaluate=None, publish="final")
    hook.on_end(None)
    assert CALLED == [1]


@pytest.mark.parametrize(
    ("mode", "averaged", "trained", "better"),
    [
        ("max", 40.0, 39.0, "ema"),
        ("max", 40.0, 41.0, "model"),
        ("min", 40.0, 39.0, "model"),
        ("max", 40.0, 40.0, "ema"),
        ("max", math.nan, 1.0, "model"),
        ("max", 1.0, math.nan, "ema"),
    ],
)
def test_the_better_of_average_and_model_counts(
    context, advance, mode, averaged, trained, better
) -> None:
    ctx = context(average=torch.nn.Linear(2, 1), beside=True)
    values = {ctx.average: averaged, ctx.model: trained}
    hook = Evaluate(
        lambda model: {"val/bbox/AP": values[model]}, every=Duration(steps=1), mode=mode
    )
    hook.on_start(ctx)
    advance(ctx)
    hook.on_step(ctx)
    assert ctx.eval_model is {"ema": ctx.average, "model": ctx.model}[better]
    row = dict(ctx.scalars.take_exact())[1]
    assert row["val_ema/bbox/AP"] == pytest.approx(averaged, nan_ok=True)
    assert row["val_model/bbox/AP"] == pytest.approx(trained, nan_ok=True)
    assert row["val/bbox/AP"] == {"ema": averaged, "model": trained}[better]


def test_the_last_step_is_evaluated_when_two_stand_beside_each_other(context, advance) -> None:
    ctx = context(step=98, average=torch.nn.Linear(2, 1), beside=True)
    seen = []
    hook = Evaluate(
        lambda model: seen.append(ctx.state.step) or {"val/bbox/AP": 1.0},
        every=Duration(steps=1000),
    )
    hook.on_start(ctx)
    for _ in range(2):
        advance(ctx)
        hook.on_step(ctx)
    assert seen == [100, 100]


def test_a_metric_to_compare_by_that_is_not_there(context, advance) -> None:
    ctx = context(average=torch.nn.Linear(2, 1), beside=True)
    hook = Evaluate(lambda model: {"val/bbox/AP50": 1.0}, every=Duration(steps=1))
    hook.on_start(ctx)
    advance(ctx)
    with pytest.raises(ConfigError, match=r"no metric 'val/bbox/AP' to compare by; it gives val/b"):
        hook.on_step(ctx)
