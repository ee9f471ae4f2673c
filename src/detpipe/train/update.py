"""What happens between the losses and the new weights."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn, optim

from detpipe.train.config import Clip
from detpipe.train.schedule import Schedule, constant

Precision = Literal["fp32", "bf16", "fp16"]


class Update(Protocol):
    """What :func:`detpipe.train.loop.fit` needs; write your own to train in another way."""

    optimizer: optim.Optimizer
    accumulate: int

    def begin(self, progress: float) -> None:
        """Before the first forward pass of an update."""

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Around each forward pass."""

    def synchronise(
        self, model: nn.Module, *, last: bool
    ) -> contextlib.AbstractContextManager[Any]:
        """Around forward and backward; ``last`` of the update's passes or not."""

    def backward(self, loss: Tensor, *, of: int) -> None:
        """Adds the gradients of one of ``of`` passes."""

    def finish(self, on_gradients: Callable[[], None]) -> bool:
        """Changes the weights; calls ``on_gradients`` when the gradients are whole.

        Returns:
            False if the update was left out because losses or gradients were not finite.
        """

    def state_dict(self) -> dict[str, Any]:
        """``optimizer`` and ``scaler`` of a checkpoint."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes back what :meth:`state_dict` gave."""


class GradientUpdate:
    """Accumulation, mixed precision, clipping, learning rate, optimiser.

    Args:
        optimizer: its groups' learning rates are those that the schedule's factors multiply.
        schedule: progress → factor, see :mod:`detpipe.train.schedule`.
        accumulate: forward passes of one update. The gradient is that of their mean loss.
        clip: of the gradients, after they are unscaled.
        precision: autocast of the forward pass; ``fp16`` with a gradient scaler.
        device: the type of device the model is on.
        skips: the model, if an update whose losses or gradients are not finite is to be left out.
            Its buffers, which forward passes change, are put back then. The price is a check of
            each step that waits for a GPU.
    """

    def __init__(
        self,
        optimizer: optim.Optimizer,
        *,
        schedule: Schedule = constant,
        accumulate: int = 1,
        clip: Clip | None = None,
        precision: Precision = "fp32",
        device: str = "cpu",
        skips: nn.Module | None = None,
    ) -> None:
        self.optimizer = optimizer
        self.accumulate = accumulate
        self._schedule = schedule
        self._clip = clip or Clip()
        self._precision = precision
        self._device = device
        self._base_lrs = [float(group["lr"]) for group in optimizer.param_groups]
        self._factor = 1.0
        self._scaler = torch.amp.GradScaler(device) if precision == "fp16" else None
        self._skips = skips
        self._buffers: dict[str, Tensor] = {}
        self._losses: list[Tensor] = []

    def begin(self, progress: float) -> None:
        """Sets the learning rate and drops the old gradients."""
        factor = self._schedule(progress)
        if factor != self._factor:
            self._factor = factor
            for group, lr in zip(self.optimizer.param_groups, self._base_lrs, strict=True):
                group["lr"] = lr * factor
        for parameter in self._parameters():
            parameter.grad = None  # zero_grad() does the same with a profiler span around it
        if self._skips is not None:
            self._buffers = {n: buffer.clone() for n, buffer in self._skips.named_buffers()}
            self._losses = []

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Mixed precision of the forward pass, nothing for fp32."""
        if self._precision == "fp32":
            return contextlib.nullcontext()
        dtype = torch.bfloat16 if self._precision == "bf16" else torch.float16
        return torch.autocast(self._device, dtype=dtype)

    def synchronise(
        self, model: nn.Module, *, last: bool
    ) -> contextlib.AbstractContextManager[Any]:
        """Keeps DistributedDataParallel from an all-reduce on all but the last pass."""
        no_sync = None if last else getattr(model, "no_sync", None)
        return no_sync() if no_sync else contextlib.nullcontext()

    def backward(self, loss: Tensor, *, of: int) -> None:
        """Adds the gradient of ``loss / of``."""
        if self._skips is not None:
            self._losses.append(loss.detach())
        if of > 1:
            loss = loss / of
        if self._scaler:
            loss = self._scaler.scale(loss)
        loss.backward()  # type: ignore[no-untyped-call]

    def finish(self, on_gradients: Callable[[], None]) -> bool:
        """Unscales, lets hooks look at the gradients, clips, steps."""
        if self._scaler:
            self._scaler.unscale_(self.optimizer)
        on_gradients()
        if self._skips is not None and not self._is_finite():
            for name, buffer in self._skips.named_buffers():
                buffer.copy_(self._buffers[name])
            if self._scaler:
                self._scaler.update()
            return False
        self._clip_gradients()
        if self._scaler:  # infinite gradients are its business: it leaves out the step by itself
            self._scaler.step(self.optimizer)
            self._scaler.update()
        else:
            self.optimizer.step()
        return True

    def _is_finite(self) -> bool:
        """Whether all losses are, and all gradients unless the scaler looks after those."""
        numbers = [*self._losses]
        if not self._scaler:
            gradients = [p.grad for p in self._parameters() if p.grad is not None]
            numbers.append(nn.utils.get_total_norm(gradients))
        return bool(torch.stack(numbers).isfinite().all())

    def _clip_gradients(self) -> None:
        parameters = list(self._parameters())
        if self._clip.norm is not None:
            nn.utils.clip_grad_norm_(parameters, self._clip.norm)
        elif self._clip.value is not None:
            nn.utils.clip_grad_value_(parameters, self._clip.value)
        elif self._clip.parameter_norm is not None:
            gradients = [p.grad for p in parameters if p.grad is not None]
            # As clip_grad_norm_ does for all together: 1e-6 keeps a zero gradient zero.
            norms = torch._foreach_norm(gradients)
            factors = [(self._clip.parameter_norm / (norm + 1e-6)).clamp(max=1.0) for norm in norms]
            torch._foreach_mul_(gradients, factors)

    def state_dict(self) -> dict[str, Any]:
        """``optimizer`` and ``scaler``."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "scaler": self._scaler.state_dict() if self._scaler else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes the optimiser's memory; the learning rate stays this run's own."""
        self.optimizer.load_state_dict(state["optimizer"])
        for group, lr in zip(self.optimizer.param_groups, self._base_lrs, strict=True):
            group["lr"] = lr
        self._factor = 1.0
        if self._scaler and state["scaler"]:
            self._scaler.load_state_dict(state["scaler"])

    def _parameters(self) -> Iterator[Tensor]:
        for group in self.optimizer.param_groups:
            yield from group["params"]
