"""Schedules, compared with torch's own."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.optim import SGD, lr_scheduler

from detpipe.core.config import Duration, Spec
from detpipe.core.errors import ConfigError
from detpipe.train import schedule
from detpipe.train.schedule import Schedule, with_warmup

STEPS = 40


def ours(function: Schedule, steps: int = STEPS) -> list[float]:
    return [function(k / steps) for k in range(steps)]


def torchs(make: object, steps: int = STEPS) -> list[float]:
    """The factor torch's scheduler uses at each step."""
    optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = make(optimizer)
    factors = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch wants optimizer.step() in between
        for _ in range(steps):
            factors.append(optimizer.param_groups[0]["lr"])
            scheduler.step()
    return factors


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (schedule.constant, lambda o: lr_scheduler.ConstantLR(o, factor=1.0)),
        (
            lambda p: schedule.linear(p, final=0.1),
            lambda o: lr_scheduler.LinearLR(o, 1.0, 0.1, total_iters=STEPS),
        ),
        (schedule.cosine, lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=STEPS)),
        (
            lambda p: schedule.cosine(p, final=0.05),
            lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=STEPS, eta_min=0.05),
        ),
        (
            lambda p: schedule.polynomial(p, power=0.9),
            lambda o: lr_scheduler.PolynomialLR(o, total_iters=STEPS, power=0.9),
        ),
        (
            lambda p: schedule.multi_step(
                p,
                milestones=[Duration(steps=30), 0.25],
                gamma=0.3,
                to_progress=lambda d: d.steps / STEPS,
            ),
            lambda o: lr_scheduler.MultiStepLR(o, milestones=[10, 30], gamma=0.3),
        ),
        (
            with_warmup(schedule.constant, until=7 / STEPS, factor=0.001),
            lambda o: lr_scheduler.LinearLR(o, 0.001, 1.0, total_iters=7),
        ),
        (
            with_warmup(schedule.constant, until=7 / STEPS, shape="constant", factor=0.2),
            lambda o: lr_scheduler.ConstantLR(o, factor=0.2, total_iters=7),
        ),
    ],
)
def test_equals_torch(mine: Schedule, theirs: object) -> None:
    assert ours(mine) == pytest.approx(torchs(theirs), abs=1e-12)


@pytest.mark.parametrize("strategy", ["cos", "linear"])
def test_one_cycle_equals_torch(strategy: str) -> None:
    # torch counts to the last step, we count to the end: one step more, the same curve.
    peak = 0.3
    make = lambda o: lr_scheduler.OneCycleLR(  # noqa: E731
        o,
        max_lr=1.0,
        total_steps=STEPS + 1,
        pct_start=(peak * STEPS + 1) / (STEPS + 1),
        anneal_strategy=strategy,
    )
    mine = ours(lambda p: schedule.one_cycle(p, pct_start=peak, anneal_strategy=strategy))
    assert mine == pytest.approx(torchs(make), abs=1e-12)


def test_wsd_is_flat_then_falls() -> None:
    factors = ours(lambda p: schedule.wsd(p, decay=0.25), 8)
    assert factors == pytest.approx([1, 1, 1, 1, 1, 1, 1, 0.5])


def test_burn_in_is_the_fourth_power() -> None:
    warmed = with_warmup(schedule.constant, until=0.5, shape="burn_in", factor=0.0)
    assert ours(warmed, 8) == pytest.approx([0, 1 / 256, 1 / 16, 81 / 256, 1, 1, 1, 1])


def test_warmup_is_multiplied_into_the_schedule() -> None:
    warmed = with_warmup(schedule.cosine, until=0.5, factor=0.1)
    assert warmed(0.25) == pytest.approx(0.55 * schedule.cosine(0.25))
    assert warmed(0.75) == schedule.cosine(0.75)


@pytest.mark.parametrize("steps", [7, 49, 250, 1001])
def test_a_change_comes_at_its_very_step(steps: int) -> None:
    """Progress is a quotient: rounding must not move a milestone by a step."""
    for change in range(1, steps):
        warmed = with_warmup(schedule.constant, until=change / steps, shape="constant", factor=0.0)
        assert warmed((change - 1) / steps) == 0
        assert warmed(change / steps) == 1


def test_milestones_from_yaml() -> None:
    spec = Spec(
        use="detpipe.train.schedule.multi_step", milestones=["8 epochs", {"epochs": 11}, 0.5]
    )
    built = spec.partial(args=1, to_progress=lambda duration: duration.epochs / 12)
    assert built(0.51) == pytest.approx(0.1)
    assert built(8 / 12) == pytest.approx(0.01)
    assert built(11 / 12) == pytest.approx(0.001)


def test_a_milestone_without_a_unit_is_a_mistake() -> None:
    spec = Spec(use="detpipe.train.schedule.multi_step", milestones=[60000])
    with pytest.raises(ConfigError, match="milestones"):
        spec.partial(args=1, to_progress=lambda duration: 0.0)
