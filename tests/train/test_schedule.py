"""Schedules, compared with torch's own and with tables for those of detectron2 and cvpods."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import SGD, lr_scheduler

from detpipe.core.config import Duration, Spec, check_spec
from detpipe.core.errors import ConfigError
from detpipe.train import schedule
from detpipe.train.build import build_schedule
from detpipe.train.plan import Plan
from detpipe.train.schedule import Schedule, with_warmup
from tests.train.toys import IMAGES, config

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


def given(value: Any) -> Schedule:
    """A schedule that gives ``value``."""
    return lambda progress: value


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (given(None), "gives None at progress 0 "),
        (given(object()), "gives <object"),
        (given("0.5"), "gives '0.5'"),
        (given([1.0, 2.0]), r"gives \[1.0, 2.0\]"),
        (given(float("nan")), "gives nan"),
        (given(float("inf")), "gives inf"),
        (given(-0.1), "gives -0.1"),
        (lambda p: 1.0 if p < 0.97 else -1.0, r"gives -1.0 at progress 0\.9[78]"),
        (lambda p: 1 / (p - 0.5), "gives -2"),
        (lambda p: 1 / p, "fails at progress 0 .*ZeroDivisionError: float division by zero"),
        (given(0.0), "gives 0 throughout the run"),
    ],
)
@pytest.mark.parametrize("total_steps", [40, 10**9])
def test_a_schedule_that_cannot_train_is_found_by_trying(
    wrong: Schedule, message: str, total_steps: int
) -> None:
    with pytest.raises(ConfigError, match=f"train.schedule {message}"):
        schedule.checked(wrong, total_steps=total_steps)


@pytest.mark.parametrize("total_steps", [1, 2, 3, 199, 200, 201, 10**6, 10**12])
def test_a_schedule_is_tried_at_the_first_and_the_last_step(total_steps: int) -> None:
    at: list[float] = []

    def seen(progress: float) -> float:
        at.append(progress)
        return 1.0

    assert schedule.checked(seen, total_steps=total_steps) is seen
    assert at == sorted(set(at)) and len(at) == min(total_steps, schedule.PROBES)
    assert (at[0], at[-1]) == (0, (total_steps - 1) / total_steps)


@pytest.mark.parametrize("until", [0.0, 0.5])
@pytest.mark.parametrize("kind", [np.float32, np.float64, int, torch.tensor])
def test_a_schedule_of_other_numbers_gives_pythons(kind: Any, until: float) -> None:
    own = schedule.checked(lambda p: kind(2), total_steps=STEPS)
    factors = ours(with_warmup(own, until=until, factor=0.5))
    assert {type(factor) for factor in factors} == {float}
    assert factors[0] == (1.0 if until else 2.0) and factors[-1] == 2.0


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("one_cycle", {"div_factor": 0}),
        ("one_cycle", {"div_factor": math.inf}),
        ("one_cycle", {"final_div_factor": -1}),
        ("one_cycle", {"pct_start": 1.5}),
        ("one_cycle", {"pct_start": -0.1}),
        ("wsd", {"decay": 0}),
        ("wsd", {"decay": 1.1}),
        ("wsd", {"final": -1}),
        ("linear", {"final": -0.1}),
        ("cosine", {"final": math.nan}),
        ("cosine", {"final": math.inf}),
        ("polynomial", {"power": 0}),
        ("polynomial", {"power": math.nan}),
        ("polynomial", {"final": -1}),
        ("multi_step", {"milestones": [0.5], "gamma": -1}),
        ("multi_step", {"milestones": [0.5], "gamma": math.inf}),
        ("multi_step", {"milestones": []}),
        ("multi_step", {"milestones": [1.5]}),
    ],
)
def test_options_out_of_range_are_refused_with_their_name(name: str, options: dict) -> None:
    spec = Spec(use=f"{HERE}.{name}", **options)
    with pytest.raises(ConfigError, match=rf"{HERE}.{name}: {list(options)[-1]}(\.0)?: "):
        check_spec(spec, where="train.schedule", args=1, provided=("to_progress",))


@pytest.mark.parametrize(
    "settings",
    [{"use": "one_cycle", "pct_start": 0}, {"use": "one_cycle", "pct_start": 1},
     {"use": "wsd", "decay": 1}, {"use": "cosine", "final": 2}],
)  # fmt: skip
def test_options_at_their_bounds_work_to_the_very_end(settings: dict) -> None:
    spec = Spec(**{**settings, "use": f"{HERE}.{settings['use']}"})
    built = spec.partial(args=1)
    assert all(0 < built(k / STEPS) <= 2 for k in range(STEPS)) and 0 <= built(1.0) <= 2


def test_what_lies_beyond_the_end_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    train = config(
        duration="10 steps", schedule={**MULTI_STEP, "milestones": ["6 steps", "77 steps"]}
    )
    rates(10, schedule=train.schedule.model_dump())
    assert caplog.messages == [
        "train.schedule names 77 steps, which is step 77, but the run ends at step 10: what it "
        "does there never happens"
    ]


def test_a_run_of_more_steps_than_can_be_counted_is_refused() -> None:
    longest = config(duration="1e12 steps", warmup={"duration": "1e12 images"})
    assert Plan.of(longest, images_per_epoch=10**6).total_steps == 10**12
    train = config(duration="1e12 epochs", warmup={"duration": "2e11 epochs"})
    with pytest.raises(
        ConfigError, match=r"train.duration is 1e\+12 epochs, which is 5e\+12 steps"
    ):
        Plan.of(train, images_per_epoch=IMAGES)
    with pytest.raises(ConfigError, match=r"train.warmup.duration is 2e\+11 epochs"):
        Plan.of(train, images_per_epoch=40)


# --- detectron2 and cvpods, by tables ----------------------------------------------------------
#
# Every number is worked out from the formulas of detectron2's solver/lr_scheduler.py and cvpods'
# solver/{lr_scheduler,scheduler_builder}.py, for a base learning rate of 0.02. There the rate of
# iteration k is base * warm-up(k) * schedule(k); the linear warm-up is
# factor * (1 - k / length) + k / length, and the warm-up is 1 from k = length on.

BASE = 0.02
HERE = "detpipe.train.schedule"
MULTI_STEP = {"use": f"{HERE}.multi_step", "milestones": ["6 steps", "8 steps"], "gamma": 0.1}


def rates(steps: int, **settings: Any) -> list[float]:
    """The learning rate of each step, as training sets it."""
    train = config(duration=f"{steps} steps", **settings)
    plan = Plan.of(train, images_per_epoch=IMAGES)
    factor = build_schedule(train, plan=plan)
    return [BASE * factor(k / plan.total_steps) for k in range(plan.total_steps)]


def warmup(length: int, factor: float, shape: str = "linear") -> dict[str, Any]:
    return {"duration": f"{length} steps", "factor": factor, "shape": shape}


def close(table: list[float]) -> Any:
    return pytest.approx(table, abs=1e-12, rel=0)


def test_WarmupMultiStepLR_linear() -> None:
    # Warm-up: 0.001 * (1 - k/4) + k/4 = 0.001, 0.25075, 0.5005, 0.75025; times 0.02.
    # Then 0.02; from iteration 6 on 0.02 * 0.1, from 8 on 0.02 * 0.01 (bisect_right: a milestone
    # counts in its own iteration).
    assert rates(10, schedule=MULTI_STEP, warmup=warmup(4, 0.001)) == close(
        [0.00002, 0.005015, 0.01001, 0.015005, 0.02, 0.02, 0.002, 0.002, 0.0002, 0.0002]
    )


def test_WarmupMultiStepLR_constant() -> None:
    # Warm-up: 0.3 for three iterations, 0.02 * 0.3 = 0.006.
    assert rates(10, schedule=MULTI_STEP, warmup=warmup(3, 0.3, "constant")) == close(
        [0.006, 0.006, 0.006, 0.02, 0.02, 0.02, 0.002, 0.002, 0.0002, 0.0002]
    )


def test_WarmupMultiStepLR_burnin() -> None:
    # cvpods alone: (k/4)^4 = 0, 1/256, 1/16, 81/256; times 0.02. It has no factor: ours is 0.
    assert rates(10, schedule=MULTI_STEP, warmup=warmup(4, 0, "burn_in")) == close(
        [0, 0.000078125, 0.00125, 0.006328125, 0.02, 0.02, 0.002, 0.002, 0.0002, 0.0002]
    )
    # On purpose: with a factor ours rises from there, where cvpods ignores WARMUP_FACTOR.
    # 0.2 + 0.8 * (0, 1/16) = 0.2, 0.25; times 0.02.
    assert rates(
        3, schedule={"use": f"{HERE}.constant"}, warmup=warmup(2, 0.2, "burn_in")
    ) == close([0.004, 0.005, 0.02])


def test_WarmupMultiStepLR_milestone_within_the_warmup() -> None:
    # The warm-up is a factor, so the milestone at 2 shows in it:
    # (0.2, 0.4, 0.6 * 0.5, 0.8 * 0.5, 0.5, 0.5) * 0.02.
    # detectron2's newer WarmupParamScheduler goes straight to what the schedule is at its end.
    settings = {"use": f"{HERE}.multi_step", "milestones": ["2 steps"], "gamma": 0.5}
    assert rates(6, schedule=settings, warmup=warmup(4, 0.2)) == close(
        [0.004, 0.008, 0.006, 0.008, 0.01, 0.01]
    )


def test_WarmupCosineLR() -> None:
    # Half-cosine at 0, 30, ..., 150 degrees: 1, (2 + sqrt 3)/4 = 0.93301270189, 0.75, 0.5, 0.25,
    # (2 - sqrt 3)/4 = 0.06698729811. Warm-up: 0.1 * (1 - k/3) + k/3 = 0.1, 0.4, 0.7. Multiplied:
    # 0.02 * 0.1; 0.008 * 0.9330127018922193; 0.014 * 0.75; then 0.02 * the half-cosine.
    # detectron2's newer WarmupParamScheduler goes straight from 0.1 to 0.5, the half-cosine at 3.
    assert rates(6, schedule={"use": f"{HERE}.cosine"}, warmup=warmup(3, 0.1)) == close(
        [0.002, 0.0074641016151378, 0.0105, 0.01, 0.005, 0.0013397459621556]
    )


def test_PolyLR() -> None:
    # (1 - k/4)^0.9 = 1, 0.75^0.9, 2^-0.9, 2^-1.8
    #               = 1, 0.7718895067236, 0.5358867312681, 0.2871745887493
    # Warm-up: 0.5 * (1 - k/2) + k/2 = 0.5, 0.75, then 1; everything times 0.02.
    assert rates(
        4, schedule={"use": f"{HERE}.polynomial", "power": 0.9}, warmup=warmup(2, 0.5)
    ) == close([0.01, 0.0115783426008536, 0.0107177346253629, 0.0057434917749852])


def test_OneCycleLR() -> None:
    # Up from 1/25 = 0.04 to 1 in 4 iterations, down to 1/(25 * 10^4) = 0.000004 in 6.
    # linear, up: 0.04 + 0.24 k; down: 1 - 0.999996 j/6 = 0.833334, 0.666668, 0.500002, ...
    # On purpose: torch's OneCycleLR, which cvpods uses, is at the peak one iteration sooner and
    # reaches the end in its last iteration; ours reaches it after the last, as every schedule here.
    options = {"use": f"{HERE}.one_cycle", "pct_start": 0.4}
    off = warmup(0, 0.001)
    assert rates(10, schedule={**options, "anneal_strategy": "linear"}, warmup=off) == close(
        [0.0008, 0.0056, 0.0104, 0.0152, 0.02,
         0.01666668, 0.01333336, 0.01000004, 0.00666672, 0.0033334]
    )  # fmt: skip
    # cos, up at 0, 45, 90, 135 degrees: 0.04 + 0.96 * (1 - cos)/2, where (1 - cos)/2 is 0,
    # (2 - sqrt 2)/4 = 0.14644660940673, 0.5, 0.85355339059327: 0.04, 0.18058874503046, 0.52, ...
    # Down at 30, ..., 150 degrees: 1 - 0.999996 * (1 - cos)/2, where (1 - cos)/2 is
    # (2 - sqrt 3)/4 = 0.06698729810778, 0.25, 0.5, 0.75, 0.93301270189222.
    assert rates(10, schedule=options, warmup=off) == close(
        [0.0008, 0.00361177490060914, 0.0104, 0.01718822509939086, 0.02,
         0.0186602593968282, 0.01500002, 0.01000004, 0.00500006, 0.0013398206031718]
    )  # fmt: skip


def stairs(progress: float, *, height: float) -> float:
    """A user's own schedule."""
    return 1 - height * int(progress * 4)


def test_LambdaLR_any_function_by_import_path() -> None:
    # Quarters of the run: 1, 0.8, 0.6, 0.4; the warm-up is 0.5, 0.75 and multiplied, as with all.
    # On purpose: a function of progress, where LambdaLR's is one of the iteration, so the curve
    # does not depend on the length of the run.
    table = [0.01, 0.015, 0.016, 0.016, 0.012, 0.012, 0.008, 0.008]
    settings = {"use": f"{__name__}.stairs", "height": 0.2}
    assert rates(8, schedule=settings, warmup=warmup(2, 0.5)) == close(table)
    with pytest.raises(ValueError, match=r"train\.schedule.*needs the option 'height'"):
        config(schedule={"use": f"{__name__}.stairs"})


def test_auto_scale_config() -> None:
    # Written for a batch of 8 and run with 4: every count of steps doubles. (The rate halves too:
    # that is done in the optimiser, once.) Warm-up over 2 * 2 steps from 0.2:
    # 0.2, 0.4, 0.6, 0.8; milestone at 2 * 3 of 2 * 4 steps.
    settings = {"use": f"{HERE}.multi_step", "milestones": ["3 steps"], "gamma": 0.5}
    assert rates(4, schedule=settings, warmup=warmup(2, 0.2), reference_batch=8) == close(
        [0.004, 0.008, 0.012, 0.016, 0.02, 0.02, 0.01, 0.01]
    )


def test_WarmupCosineLR_by_epoch() -> None:
    # 5 steps an epoch, 3 epochs: half-cosine at 0, 60, 120 degrees: 1, 0.75, 0.25. The warm-up
    # goes by steps all the same: 0.5, 0.75.
    assert rates(
        15, schedule={"use": f"{HERE}.cosine"}, schedule_by="epoch", warmup=warmup(2, 0.5)
    ) == close([0.01, 0.015, *[0.02] * 3, *[0.015] * 5, *[0.005] * 5])


def test_by_epoch_when_the_run_ends_within_one() -> None:
    # 8 steps are 1.6 epochs. The second begins at 5/8 of the run: 1 - 5/8 = 0.375.
    # On purpose: cvpods divides by whole epochs, so its second one would be at the end of the
    # schedule, with a learning rate of 0.
    assert rates(
        8, schedule={"use": f"{HERE}.linear"}, schedule_by="epoch", warmup=warmup(0, 0.5)
    ) == close([*[0.02] * 5, *[0.0075] * 3])


def test_by_epoch_when_an_epoch_is_no_whole_number_of_steps() -> None:
    # 20 images in batches of 8: 2.5 steps. The epochs begin with steps 0, 3, 5 and 8 of 10:
    # 1, 0.7, 0.5, 0.2.
    assert rates(
        10,
        batch_size=8,
        schedule={"use": f"{HERE}.linear"},
        schedule_by="epoch",
        warmup=warmup(0, 0.5),
    ) == close([*[0.02] * 3, *[0.014] * 2, *[0.01] * 3, *[0.004] * 2])


def test_WarmupMultiStepLR_milestones_in_epochs_by_epoch() -> None:
    # 5 steps an epoch: from step 10 on 0.1; one in the middle of an epoch waits for the next.
    settings = {
        "use": f"{HERE}.multi_step",
        "milestones": ["2 epochs", "13 steps"],
        "gamma": 0.1,
    }
    assert rates(20, schedule=settings, schedule_by="epoch", warmup=warmup(0, 0.5)) == close(
        [*[0.02] * 10, *[0.002] * 5, *[0.0002] * 5]
    )
