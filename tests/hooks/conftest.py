"""A loop context without a loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from detpipe.train.contract import LoopContext, TrainState
from detpipe.train.scalars import Scalars


@pytest.fixture
def context() -> Callable[..., LoopContext]:
    """Makes a context at ``step`` of a run of 100 steps, 4 images a step, 20 an epoch."""

    def make(step: int = 0, model: nn.Module | None = None, **values: Any) -> LoopContext:
        model = model or nn.Linear(2, 1)
        ctx = LoopContext(
            state=TrainState(step=step, images_seen=4 * step),
            total_steps=100,
            images_per_step=4,
            images_per_epoch=20,
            model=model,
            eval_model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            scalars=Scalars(),
            **values,
        )
        ctx.scalars.step = step
        return ctx

    return make


@pytest.fixture
def advance() -> Callable[[LoopContext], None]:
    """What the loop does between two calls of ``on_step``."""

    def advance(ctx: LoopContext, step: int | None = None) -> None:
        ctx.marks.clear()
        ctx.state.step = ctx.state.step + 1 if step is None else step
        ctx.state.images_seen = 4 * ctx.state.step
        ctx.scalars.step = ctx.state.step

    return advance
