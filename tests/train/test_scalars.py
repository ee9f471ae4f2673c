"""Scalars: what is read when, and what a row holds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from detpipe.core.errors import NonFiniteLoss
from detpipe.train.scalars import Scalars


def step(scalars: Scalars, number: int, *losses: float) -> None:
    scalars.step = number
    names = ("loss_box", "cls")[: len(losses)]
    scalars.put_losses(names, torch.tensor(losses), (f"{number}.jpg",))


def test_a_row_holds_means_and_last_values() -> None:
    scalars = Scalars()
    for number in (1, 2, 3):
        step(scalars, number, number, 10 * number)
        scalars.put("time/step", 0.5 * number)
        scalars.put("grad", torch.tensor(float(number)))
        scalars.put("train/lr", 1 / number, how="last")
    assert scalars.take_interval() == pytest.approx(
        {
            "train/loss": 22.0,
            "train/loss_box": 2.0,
            "train/loss_cls": 20.0,
            "time/step": 1.0,
            "grad": 2.0,
            "train/lr": 1 / 3,
        }
    )
    step(scalars, 4, 7.0)
    assert scalars.take_interval() == pytest.approx(
        {"train/loss": 7.0, "train/loss_box": 7.0, "train/lr": 1 / 3}
    )


def test_exact_values_keep_their_step() -> None:
    scalars = Scalars()
    for scalars.step, value in ((3, 0.1), (8, 0.2)):
        scalars.put("val/AP", value, how="exact")
    assert list(scalars.take_exact()) == [(3, {"val/AP": 0.1}), (8, {"val/AP": 0.2})]
    assert list(scalars.take_exact()) == []
    assert scalars.latest("val/AP") == 0.2
    assert math.isnan(scalars.latest("never put"))
    assert scalars.put_now("val/AP")
    scalars.step = 9
    assert not scalars.put_now("val/AP")


def test_numbers_of_numpy_are_kept_as_pythons() -> None:
    scalars = Scalars()
    for how in ("mean", "last", "exact"):
        scalars.put(how, np.float32(0.1), how=how)
    state = scalars.state_dict()
    kept = [
        state["sums"]["mean"][0],
        state["last"]["last"],
        *(v for _, v in state["latest"].values()),
    ]
    assert [type(value) for value in kept] == [float] * 5
    assert set(kept) == {float(np.float32(0.1))}
    assert [type(v) for _, row in scalars.take_exact() for v in row.values()] == [float]


@pytest.mark.parametrize("value", ["0.5", None, [1.0], torch.ones(2), np.ones(2), 1j])
def test_what_is_not_one_number_is_refused_by_name(value: object) -> None:
    with pytest.raises(TypeError, match=r"scalars\.put\('mine', …\) takes one number"):
        Scalars().put("mine", value)


def test_the_column_of_the_step_is_no_scalar() -> None:
    with pytest.raises(ValueError, match="'step' says each row's step"):
        Scalars().put("step", 3)


def test_losses_may_differ_from_step_to_step() -> None:
    scalars = Scalars()
    step(scalars, 1, 1.0, 2.0)
    step(scalars, 2, 3.0)
    assert scalars.take_interval() == {
        "train/loss": 3.0,
        "train/loss_box": 2.0,
        "train/loss_cls": 2.0,
    }


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_the_first_non_finite_step_is_named_for_ever(bad: float) -> None:
    scalars = Scalars()
    step(scalars, 1, 1.0, 2.0)
    step(scalars, 2, 0.5, bad)
    step(scalars, 3, math.nan, math.nan)
    for read in (scalars.read_losses, scalars.take_interval, scalars.state_dict):
        with pytest.raises(NonFiniteLoss) as caught:
            read()
        assert caught.value.step == 2
        assert caught.value.files == ("2.jpg",)
        assert caught.value.losses == pytest.approx({"loss_box": 0.5, "cls": bad}, nan_ok=True)


def test_memory_is_bounded_when_nobody_reads() -> None:
    scalars = Scalars()
    for number in range(1, 2501):
        step(scalars, number, 1.0)
    assert len(scalars._unread) <= 1000
    assert scalars.take_interval()["train/loss"] == 1.0


def test_an_interval_survives_a_resume_bit_for_bit() -> None:
    values = torch.rand(20, generator=torch.Generator().manual_seed(0)).tolist()
    unbroken, first, second = Scalars(), Scalars(), Scalars()
    for number, value in enumerate(values):
        step(unbroken, number, value)
        unbroken.put("grad", torch.tensor(value))
    for number, value in enumerate(values[:13]):
        step(first, number, value)
        first.put("grad", torch.tensor(value))
    second.load_state_dict(first.state_dict())
    for number, value in enumerate(values[13:], 13):
        step(second, number, value)
        second.put("grad", torch.tensor(value))
    assert second.take_interval() == unbroken.take_interval()


def test_nothing_is_read_before_somebody_asks() -> None:
    """A value is looked at through ``tolist`` only when a row is made."""

    class Watched(torch.Tensor):
        reads = 0

        def tolist(self):
            Watched.reads += 1
            return super().tolist()

    scalars = Scalars()
    for number in range(5):
        scalars.step = number
        scalars.put_losses(("a",), torch.ones(1).as_subclass(Watched), ())
    assert Watched.reads == 0
    scalars.read_losses()
    assert Watched.reads == 1
