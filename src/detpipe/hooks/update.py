"""Hooks that change weights, or what goes with them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from detpipe.core.errors import ConfigError
from detpipe.train.contract import Hook, LoopContext, Phase
from detpipe.train.launch import unwrapped


class EMA(Hook):
    """Evaluates and publishes an exponential moving average of the weights.

    Buffers (running statistics) are taken as they are.

    Args:
        decay: share of the old average that stays at each step.
        warmup: while few steps are done the decay is smaller, ``(1 + n) / (10 + n)``, so that
            the average forgets the first weights.
        beside: the average is evaluated beside the raw weights, not instead of them: the better
            of the two counts and is published (see ``compare`` of
            :class:`~detpipe.hooks.measure.Evaluate`).

    Raises:
        ConfigError: the decay is not within 0..1.
    """

    phase = Phase.UPDATE

    def __init__(
        self,
        *,
        decay: Annotated[float, Field(ge=0, lt=1)] = 0.999,
        warmup: bool = True,
        beside: bool = False,
    ) -> None:
        if not 0 <= decay < 1:
            raise ConfigError(f"EMA: decay must be at least 0 and below 1, got {decay}")
        self._decay, self._warmup, self._beside = decay, warmup, beside
        self._updates = 0
        self._average: nn.Module | None = None
        self._saved: Mapping[str, Tensor] | None = None

    def on_start(self, ctx: LoopContext) -> None:
        """The average begins as the weights are, or as the resumed run had it."""
        self._average = copy.deepcopy(unwrapped(ctx.model)).requires_grad_(False)
        if self._saved is not None:
            self._average.load_state_dict(self._saved)
            self._saved = None
        ctx.average, ctx.beside = self._average, self._beside
        ctx.eval_model = ctx.model if ctx.beside and ctx.raw_was_better else self._average

    def on_step(self, ctx: LoopContext) -> None:
        """Moves the average towards the new weights."""
        assert self._average is not None  # noqa: S101 - on_start made it
        if not ctx.applied:
            return
        self._updates += 1
        decay = self._decay
        if self._warmup:
            decay = min(decay, (1 + self._updates) / (10 + self._updates))
        model = unwrapped(ctx.model)
        with torch.no_grad():
            torch._foreach_lerp_(
                list(self._average.parameters()), list(model.parameters()), 1 - decay
            )
            for mine, current in zip(self._average.buffers(), model.buffers(), strict=True):
                mine.copy_(current)

    def state_dict(self) -> dict[str, Any]:
        """The average and how many updates it has seen."""
        weights = self._average.state_dict() if self._average else self._saved
        return {"updates": self._updates, "weights": weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes back what :meth:`state_dict` gave; :meth:`on_start` puts it in place."""
        self._updates, self._saved = state["updates"], state["weights"]
