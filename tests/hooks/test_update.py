"""EMA against torch's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from detpipe.core.errors import ConfigError
from detpipe.hooks.update import EMA


def a_model() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.arange(parameter.numel()).view_as(parameter) / 7)
    return model


def change(model: nn.Module, step: int) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.sin(parameter * step))
        model[1].running_mean.add_(step)
        model[1].num_batches_tracked.add_(1)


def test_equals_torchs_average(context, advance) -> None:
    model = a_model()
    ctx = context(model=model)
    hook = EMA(decay=0.9, warmup=False)
    hook.on_start(ctx)
    reference = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    reference.update_parameters(model)  # torch's first update copies
    for step in range(1, 20):
        change(model, step)
        advance(ctx)
        hook.on_step(ctx)
        reference.update_parameters(model)
    for mine, theirs in zip(
        ctx.eval_model.parameters(), reference.module.parameters(), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
    assert torch.equal(ctx.eval_model[1].running_mean, model[1].running_mean)
    assert not any(parameter.requires_grad for parameter in ctx.eval_model.parameters())
    assert ctx.eval_model is not ctx.model


def test_warmup_forgets_the_first_weights(context, advance) -> None:
    model = a_model()
    ctx = context(model=model)
    hook = EMA(decay=0.999)
    hook.on_start(ctx)
    expected = model[0].weight.detach().clone()
    for step in range(1, 6):
        change(model, step)
        advance(ctx)
        hook.on_step(ctx)
        decay = (1 + step) / (10 + step)
        expected = decay * expected + (1 - decay) * model[0].weight.detach()
    torch.testing.assert_close(ctx.eval_model[0].weight.detach(), expected)


@pytest.mark.parametrize("decay", [1.0, -0.1])
def test_a_decay_out_of_range_is_refused(decay: float) -> None:
    with pytest.raises(ConfigError, match="decay"):
        EMA(decay=decay)
