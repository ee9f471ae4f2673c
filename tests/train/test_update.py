"""GradientUpdate against plain torch."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from detpipe.train.config import Clip
from detpipe.train.update import GradientUpdate


def a_model() -> nn.Linear:
    model = nn.Linear(3, 2)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.arange(parameter.numel()).view_as(parameter) * 0.3 - number)
    return model


INPUT = torch.tensor([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0]])


def loss_of(model: nn.Module) -> torch.Tensor:
    return model(INPUT).square().sum()


@pytest.mark.parametrize(
    ("clip", "by_hand"),
    [
        (Clip(), lambda p: None),
        (Clip(norm=0.5), lambda p: clip_grad_norm_(p, 0.5)),
        (Clip(value=0.1), lambda p: clip_grad_value_(p, 0.1)),
        (Clip(parameter_norm=5.0), lambda p: [clip_grad_norm_([each], 5.0) for each in p]),
    ],
)
def test_a_step_equals_torch(clip: Clip, by_hand: object) -> None:
    mine, theirs = a_model(), a_model()
    update = GradientUpdate(torch.optim.SGD(mine.parameters(), lr=0.1), clip=clip)
    update.begin(0.0)
    update.backward(loss_of(mine), of=1)
    update.finish(lambda: None)

    loss_of(theirs).backward()
    by_hand(list(theirs.parameters()))
    torch.optim.SGD(theirs.parameters(), lr=0.1).step()
    assert torch.equal(mine.weight, theirs.weight)


def test_hooks_see_gradients_whole_and_unclipped() -> None:
    model, seen = a_model(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    update = GradientUpdate(optimizer, accumulate=2, clip=Clip(norm=1e-3), precision="fp16")
    reference = torch.autograd.grad(loss_of(model), model.weight)[0]
    update.begin(0.0)
    for _ in range(2):
        update.backward(loss_of(model), of=2)
    update.finish(lambda: seen.append(model.weight.grad.clone()))
    assert len(seen) == 1
    torch.testing.assert_close(seen[0], reference)  # unscaled, the mean of two equal passes
    assert model.weight.grad.norm() < 1.1e-3


def test_fp16_overflow_skips_the_step_and_lowers_the_scale() -> None:
    model = a_model()
    before = model.weight.clone()
    update = GradientUpdate(torch.optim.SGD(model.parameters(), lr=0.1), precision="fp16")
    update.begin(0.0)
    update.backward(loss_of(model) * 1e38, of=1)
    update.finish(lambda: None)
    assert torch.equal(model.weight, before)
    scale = update.state_dict()["scaler"]["scale"]
    assert scale == 65536 / 2

    resumed = GradientUpdate(torch.optim.SGD(model.parameters(), lr=0.1), precision="fp16")
    resumed.load_state_dict(update.state_dict())
    assert resumed.state_dict()["scaler"]["scale"] == scale


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)],
)
def test_autocast(precision: str, dtype: torch.dtype) -> None:
    model = a_model()
    update = GradientUpdate(torch.optim.SGD(model.parameters(), lr=0.1), precision=precision)
    with update.autocast():
        assert model(INPUT).dtype is dtype
    assert model(INPUT).dtype is torch.float32


def test_old_gradients_are_dropped() -> None:
    model = a_model()
    update = GradientUpdate(torch.optim.SGD(model.parameters(), lr=0.1))
    update.begin(0.0)
    update.backward(loss_of(model), of=1)
    update.begin(0.5)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_each_group_keeps_its_own_rate() -> None:
    model = a_model()
    groups = [{"params": [model.weight], "lr": 0.1}, {"params": [model.bias], "lr": 0.01}]
    update = GradientUpdate(torch.optim.SGD(groups), schedule=lambda progress: 1 - progress)
    for progress in (0.0, 0.25, 0.25, 0.0):
        update.begin(progress)
        rates = [group["lr"] for group in update.optimizer.param_groups]
        assert rates == pytest.approx([0.1 * (1 - progress), 0.01 * (1 - progress)])


def test_the_learning_rate_never_comes_from_a_checkpoint() -> None:
    model = a_model()
    foreign = GradientUpdate(torch.optim.SGD(model.parameters(), lr=123.0)).state_dict()
    update = GradientUpdate(torch.optim.SGD(model.parameters(), lr=0.1))
    update.load_state_dict(foreign)
    update.begin(0.0)
    assert update.optimizer.param_groups[0]["lr"] == 0.1


def test_only_the_last_pass_synchronises_processes() -> None:
    class Distributed(nn.Linear):
        waits = 0

        @contextlib.contextmanager
        def no_sync(self):
            self.waits += 1
            yield

    model = Distributed(3, 2)
    update = GradientUpdate(torch.optim.SGD(model.parameters(), lr=0.1), accumulate=3)
    for last in (False, False, True):
        with update.synchronise(model, last=last):
            pass
    assert model.waits == 2


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
@pytest.mark.parametrize("where", ["loss", "gradient"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_an_update_that_is_not_finite_is_left_out(number, where, precision) -> None:
    model = nn.Sequential(a_model(), nn.BatchNorm1d(2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    update = GradientUpdate(optimizer, precision=precision, skips=model)

    def step(factor: float) -> bool:
        update.begin(0.0)
        loss = model(INPUT).square().sum()
        if where == "gradient":
            loss.register_hook(lambda gradient: gradient * factor)
            update.backward(loss, of=1)
        else:
            update.backward(loss * factor, of=1)
        return update.finish(lambda: None)

    assert step(1.0)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    # With fp16 infinite gradients of a finite loss are the scaler's daily business.
    assert step(number) is (precision == "fp16" and where == "gradient")
    after = model.state_dict()
    trained = [name for name, _ in model.named_parameters()]
    assert all(torch.equal(before[name], after[name]) for name in trained)
    if precision == "fp32" or where == "loss":
        assert all(torch.equal(before[name], after[name]) for name in before)
    assert step(1.0)
    assert not torch.equal(before["0.weight"], model[0].weight)
    assert all(tensor.isfinite().all() for tensor in model.state_dict().values())


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_an_infinite_loss_with_finite_gradients_is_left_out_too(precision) -> None:
    model = a_model()
    update = GradientUpdate(
        torch.optim.SGD(model.parameters(), lr=0.1), precision=precision, skips=model
    )
    before = model.weight.clone()
    update.begin(0.0)
    update.backward(loss_of(model) + torch.inf, of=1)
    assert model.weight.grad.isfinite().all()
    assert not update.finish(lambda: None)
    assert torch.equal(model.weight, before)


def test_a_buffer_that_a_forward_pass_replaces_is_put_back() -> None:
    class Replacing(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 2)
            self.register_buffer("mean", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.mean = self.mean + torch.nan
            return super().forward(x)

    model = Replacing()
    update = GradientUpdate(torch.optim.SGD(model.parameters(), lr=0.1), skips=model)
    update.begin(0.0)
    update.backward(loss_of(model) * torch.nan, of=1)
    assert not update.finish(lambda: None)
    assert model.mean == 0
