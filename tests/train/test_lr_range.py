"""The learning rate range test, against a bare PyTorch loop with the same rates."""

from __future__ import annotations

import copy
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from detpipe.core.errors import ConfigError, NonFiniteLoss
from detpipe.train.config import TrainConfig
from detpipe.train.lr_range import LrRange, _evaluated, exponential, lr_range_test, plot

from .toys import ToyStream, detector, same

START, END, STEPS = 1e-4, 1e-1, 30


def settings(**changes) -> TrainConfig:
    return TrainConfig.model_validate(
        {
            "duration": "3 epochs",
            "batch_size": 4,
            "device": "cpu",
            "optimizer": {"use": "torch.optim.SGD", "lr": 0.5, "momentum": 0.9},
            "schedule": {"use": "detpipe.train.schedule.one_cycle"},
            "warmup": {"duration": "5 steps"},
            **changes,
        }
    )


def ranged(config: TrainConfig | None = None, model=None, **options) -> LrRange:
    options = {"start": START, "end": END, "steps": STEPS, **options}
    model = model or detector(norm=True)
    return lr_range_test(model, ToyStream(), config=config or settings(), **options)


def rates(steps: int = STEPS) -> list[float]:
    return [START * (END / START) ** (k / (steps - 1)) for k in range(steps)]


def bare_losses(groups, *, model, factor: float = 1.0, accumulate: int = 1) -> list[float]:
    """What anybody would write: the loss of each step while the learning rate rises."""
    optimizer = torch.optim.SGD(
        [{"params": parameters, "share": share} for parameters, share in groups(model)],
        lr=1.0, momentum=0.9,
    )  # fmt: skip
    model.train()
    batches, losses = ToyStream().batches(0), []
    for lr in rates():
        for group in optimizer.param_groups:
            group["lr"] = lr * factor * group["share"]
        optimizer.zero_grad()
        step = []
        for batch in islice(batches, accumulate):
            loss = sum(model(batch).values())
            (loss / accumulate).backward()
            step.append(loss.item())
        optimizer.step()
        losses.append(sum(step) / accumulate)
    return losses


def everything(model):
    return [(list(model.parameters()), 1.0)]


def test_it_is_training_while_the_rate_rises_exponentially():
    table = ranged().table
    assert list(table["step"]) == list(range(1, STEPS + 1))
    assert list(table["lr"]) == pytest.approx(rates())
    expected = bare_losses(everything, model=detector(norm=True))
    assert list(table["loss"]) == pytest.approx(expected, rel=1e-5)


def test_accumulation_is_the_runs():
    table = ranged(settings(accumulate=3)).table
    expected = bare_losses(everything, model=detector(norm=True), accumulate=3)
    assert list(table["loss"]) == pytest.approx(expected, rel=1e-5)


def test_groups_keep_their_ratio():
    config = settings(groups={"patterns": {r"layers\.0": {"lr_factor": 0.1}}})

    def groups(model):
        first = list(model.layers[0].parameters())
        rest = [p for p in model.parameters() if all(p is not q for q in first)]
        return [(first, 0.1), (rest, 1.0)]

    expected = bare_losses(groups, model=detector(norm=True))
    assert list(ranged(config).table["loss"]) == pytest.approx(expected, rel=1e-5)


def test_rates_are_in_the_terms_of_the_configuration_when_the_batch_is_another():
    """Written for 2 images a step, run with 4: the update works with twice the rate."""
    table = ranged(settings(reference_batch=2)).table
    assert list(table["lr"]) == pytest.approx(rates())
    expected = bare_losses(everything, model=detector(norm=True), factor=2.0)
    assert list(table["loss"]) == pytest.approx(expected, rel=1e-5)


def test_hooks_that_change_weights_take_part_and_no_others(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = settings(
        hooks={
            "zero": {"use": f"{__name__}.Reset"},
            "save": {"use": "detpipe.hooks.save.Checkpoint", "every": "1 steps"},
            "evaluate": {"use": "detpipe.hooks.measure.Evaluate", "every": "1 steps"},
        },
        writers={"json": {"use": "detpipe.hooks.writers.Json"}},
    )
    Reset.steps = 0
    ranged(config)
    assert Reset.steps == STEPS
    assert list(tmp_path.iterdir()) == []


class Reset:
    """A hook of somebody's own."""

    phase = 10
    steps = 0

    def on_step(self, ctx):
        Reset.steps += 1


def test_the_smoothed_loss_is_the_bias_corrected_running_mean():
    """pandas' adjusted exponential mean is the same thing, written by others."""
    table = ranged(smoothing=0.8).table
    unsmoothed = ranged(smoothing=0.0, divergence=1e9).table
    expected = table["loss"].ewm(alpha=1 - 0.8, adjust=True).mean()
    assert list(table["smoothed"]) == pytest.approx(list(expected))
    assert list(unsmoothed["smoothed"]) == list(unsmoothed["loss"])


def test_it_ends_when_the_loss_diverges():
    result = ranged(end=1e6, steps=60, divergence=3.0)
    smoothed = result.table["smoothed"]
    beyond = smoothed > 3.0 * smoothed.cummin()
    assert list(beyond) == [False] * (len(beyond) - 1) + [True]
    assert len(beyond) < 60
    assert f"diverged at step {len(beyond)}" in result.ending


def test_a_loss_that_is_not_finite_is_an_end_too():
    result = ranged(model=detector(norm=True, fail_at=20))
    assert len(result.table) == 19
    assert "not finite any more at step 20" in result.ending


def test_the_very_first_loss_must_be_finite():
    with pytest.raises(NonFiniteLoss):
        ranged(model=detector(norm=True, fail_at=1))


def test_the_model_and_the_random_numbers_stay_as_they_are():
    model = detector(norm=True, dropout=0.5)
    before = copy.deepcopy(model.state_dict())
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    first = ranged(model=model)
    assert torch.equal(torch.rand(1), expected)
    assert same(model.state_dict(), before)
    assert all(p.grad is None for p in model.parameters())
    pd.testing.assert_frame_equal(first.table, ranged(model=model).table)


def falling(centre: float, width: float, steps: int = 200) -> tuple[list[float], list[float]]:
    """A loss that falls as a sigmoid of log lr around ``centre``, and rises after 1."""
    lr = [exponential(k / steps, start=1e-5, end=10.0, steps=steps) for k in range(steps)]
    way = (np.log(lr) - np.log(centre)) / width
    return lr, list(3 - 2 / (1 + np.exp(-way)) + np.maximum(0, np.log(lr)) ** 2)


@pytest.mark.parametrize("centre", [1e-4, 3e-3, 1e-2])
def test_the_suggestion_is_where_the_loss_falls_fastest_over_the_logarithm(centre):
    """The steepest point of a sigmoid is its centre; one step of the test is 7 %."""
    lr, loss = falling(centre, 0.6)
    result = _evaluated(lr, loss, loss, ending="", skip=10)
    assert result.suggestion == pytest.approx(centre, rel=0.08)
    assert result.tenth == pytest.approx(lr[int(np.argmin(loss))] / 10)


def test_noise_of_the_first_steps_suggests_nothing():
    """A first loss far above the others has the steepest slope of all."""
    lr, loss = falling(1e-2, 0.6)
    loss[0] += 100
    assert _evaluated(lr, loss, loss, ending="", skip=10).suggestion == pytest.approx(
        1e-2, rel=0.08
    )


def test_a_loss_that_never_falls_has_no_suggestion():
    lr, _ = falling(1e-2, 0.6)
    rising = list(np.linspace(1, 2, len(lr)))
    result = _evaluated(lr, rising, rising, ending="the end", skip=10)
    assert result.suggestion is None
    assert "never falls (the end)" in str(result)


def test_the_figure_has_a_logarithmic_axis_and_the_suggestions():
    lr, loss = falling(1e-2, 0.6)
    result = _evaluated(lr, loss, loss, ending="the end", skip=10)
    (axes,) = plot(result).axes
    assert axes.get_xscale() == "log"
    raw, smoothed, *marks = axes.lines
    assert list(raw.get_xdata()) == lr == list(smoothed.get_xdata())
    assert [mark.get_xdata()[0] for mark in marks] == [result.suggestion, result.tenth]
    assert "the end" in axes.get_title()


def test_a_figure_without_a_suggestion_has_no_marks():
    table = ranged().table
    (axes,) = plot(LrRange(table, None, None, "")).axes
    assert len(axes.lines) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": 0.1, "end": 0.1}, "start .* must be above 0 and below end"),
        ({"start": 0.0}, "start .* must be above 0"),
        ({"steps": 9}, "steps .9. must be 10 or more"),
        ({"smoothing": 1.0}, "smoothing"),
        ({"divergence": 1.0}, "divergence"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ConfigError, match=message):
        ranged(**options)


def test_a_written_suggestion_says_where_it_comes_from():
    lr, loss = falling(3e-3, 0.6)
    said = str(_evaluated(lr, loss, loss, ending="all is done", skip=10))
    assert "train.optimizer.lr: 0.003 " in said
    assert "all is done" in said


def test_nothing_is_left_in_the_working_folder(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ranged()
    assert list(tmp_path.iterdir()) == []
