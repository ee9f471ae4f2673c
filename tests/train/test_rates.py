"""Learning rates of a run before it begins, against those that it uses."""

from __future__ import annotations

import math

import pytest

from detpipe.train.build import train_detector
from detpipe.train.rates import learning_rates, plot

from .toys import IMAGES, ToyStream, config, detector


class Seen:
    """A hook that notes the learning rate of each group."""

    rows: list[list[float]]

    def on_step(self, ctx):
        Seen.rows.append([group["lr"] for group in ctx.optimizer.param_groups])


def settings(**changes):
    patterns = {r"layers\.0": {"lr_factor": 0.1}, r"layers\.1": {"weight_decay": 0.0}}
    return config(
        warmup={"duration": "5 steps"}, groups={"patterns": patterns}, reference_batch=8, **changes
    )


def test_they_are_those_that_training_uses(tmp_path):
    used = settings(hooks={"seen": {"use": f"{__name__}.Seen"}})
    rates = learning_rates(used, detector(norm=True), images_per_epoch=IMAGES)
    Seen.rows = []
    train_detector(
        detector(norm=True), ToyStream(), config=used, folder=tmp_path, classes=["a", "b"]
    )
    assert list(rates["step"]) == list(range(1, len(Seen.rows) + 1))
    assert len(rates.columns) == 1 + 2  # the group without decay has the rate of the rest
    rest, slower = rates.columns[1:]
    assert list(rates[rest]) == [row[0] for row in Seen.rows] == [row[2] for row in Seen.rows]
    assert list(rates[slower]) == [row[1] for row in Seen.rows]


def test_groups_with_one_rate_share_a_column_named_after_both():
    rates = learning_rates(settings(), detector(norm=True), images_per_epoch=IMAGES)
    shared, own = rates.columns[1:]
    assert "rest" in shared
    assert "without decay" in shared
    assert "×0.1" in own
    assert list(rates[own]) == pytest.approx(list(0.1 * rates[shared]))


def test_half_a_cosine_after_a_warm_up_worked_by_hand():
    plain = config(warmup={"duration": "5 steps"})
    (column,) = learning_rates(plain, detector(), images_per_epoch=IMAGES).columns[1:]
    rates = learning_rates(plain, detector(), images_per_epoch=IMAGES)[column]
    cosine = [0.01 * (1 + math.cos(math.pi * k / 50)) / 2 for k in range(50)]
    assert list(rates[5:]) == pytest.approx(cosine[5:])
    assert rates[2] == pytest.approx(cosine[2] * (0.001 + 0.999 * 2 / 5))


def test_a_long_run_is_thinned_out_with_both_ends():
    rates = learning_rates(
        config(duration="100000 steps"), detector(), images_per_epoch=IMAGES, points=50
    )
    assert len(rates) == 50
    assert (rates["step"].iloc[0], rates["step"].iloc[-1]) == (1, 100000)


def test_the_figure_has_a_curve_a_column():
    rates = learning_rates(settings(), detector(norm=True), images_per_epoch=IMAGES)
    (axes,) = plot(rates).axes
    assert len(axes.lines) == 2
    for line, name in zip(axes.lines, rates.columns[1:], strict=True):
        assert list(line.get_ydata()) == list(rates[name])
    assert [text.get_text() for text in axes.get_legend().get_texts()] == list(rates.columns[1:])
