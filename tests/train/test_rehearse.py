"""Settings of dry_run and overfit."""

from __future__ import annotations

import pytest

from detpipe.core.config import Spec
from detpipe.core.errors import TrainingError
from detpipe.train.plan import Plan
from detpipe.train.rehearse import dry_run, overfit, require_learned

from .toys import config


@pytest.mark.parametrize("reference_batch", [None, 64])
def test_a_dry_run_has_two_steps_and_everything_in_each(reference_batch: int | None) -> None:
    settings = config(accumulate=3, reference_batch=reference_batch, resume=True, dry_run=True)
    rehearsal = dry_run(settings)
    assert rehearsal.images == 2 * 3 * 4
    plan = Plan.of(rehearsal.config, images_per_epoch=20)
    assert plan.total_steps == 2
    assert not rehearsal.config.resume
    for name in ("evaluate", "checkpoint"):
        assert rehearsal.config.hooks[name].options["every"].images == plan.images_per_step
    unchanged = ("ema", "timer", "best")
    assert all(rehearsal.config.hooks[n] == settings.hooks[n] for n in unchanged)
    assert rehearsal.config.optimizer == settings.optimizer


def test_learning_by_heart_takes_the_same_batches_as_they_are() -> None:
    settings = config(
        overfit=2,
        reference_batch=64,
        augment={"flip": {"use": "detpipe.data.augment.HorizontalFlip"}},
        hooks={"stop": {"use": "detpipe.hooks.decide.EarlyStop"}},
    )
    rehearsal = overfit(settings, images_per_epoch=20)
    changed = rehearsal.config
    assert rehearsal.images == 8
    assert changed.sampler == Spec(use="detpipe.data.sampler.sequential")
    assert not changed.augment
    assert set(changed.hooks) == {"timer"}
    real = Plan.of(settings, images_per_epoch=20)
    plan = Plan.of(changed, images_per_epoch=rehearsal.images)
    assert (plan.total_steps, plan.warmup_steps) == (500, 50)  # 50 steps of 64 images are 800 of 4
    assert real.total_steps == 800
    assert plan.lr_scale == real.lr_scale


def test_a_short_run_learns_as_long_as_it_is() -> None:
    changed = overfit(config(overfit=1), images_per_epoch=20).config
    assert Plan.of(changed, images_per_epoch=4).total_steps == 50


def test_near_zero_is_a_tenth_of_the_beginning() -> None:
    said = require_learned([4.0, 2.0, 0.4], batches=1, steps=50)
    assert (
        said == "overfit: passed. 50 steps on 1 batch(es): the loss went from 4 to 0.4, 10.0% of it"
    )
    with pytest.raises(
        TrainingError, match=r"failed. 50 steps on 1 .* from 4 to 0.41, 10.2% of it"
    ):
        require_learned([4.0, 0.1, 0.41], batches=1, steps=50)


@pytest.mark.parametrize("losses", [[], [0.0, 5.0], [-1.0, -2.0], [float("nan"), 1.0]])
def test_what_cannot_be_told_is_no_success(losses: list[float]) -> None:
    with pytest.raises(TrainingError, match="Whether anything was learnt cannot be told"):
        require_learned(losses, batches=1, steps=50)
