"""The hook that makes the statistics of batch norm fit the weights."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from detpipe.core.config import Every
from detpipe.core.errors import ConfigError
from detpipe.hooks.measure import undisturbed
from detpipe.train.contract import Hook, LoopContext, Phase, Stream, due
from detpipe.train.launch import seeded, unwrapped

logger = logging.getLogger(__name__)


class PreciseBN(Hook):
    """Recomputes the running statistics of batch norm, before an evaluation and at the end.

    Training keeps an average over the last steps, whose weights were others. Here the weights
    stay, and mean and variance are those of all values that reach the layer in the first ``images``
    images of the training stream: over batches b with n_b values a channel, ::

        mean = Σ n_b·mean_b / Σ n_b
        var  = Σ n_b·(var_b + (mean_b - mean)²) / Σ n_b

    as "Rethinking 'Batch' in BatchNorm" (Wu and Johnson 2021, section 3) proposes, and with the
    weights n_b of fvcore's ``update_bn_stats``. The variance is the population's, without Bessel's
    correction. They are those of batches normalised by themselves, as in training.

    The result depends on the weights and the stream alone, and nothing else in the run changes.
    When the evaluated model is the trained one, its running statistics are replaced; training does
    not read them. Layers that are frozen (in evaluation mode, or of ``FrozenBatchNorm2d``) are left
    as they are. Give it the period of ``Evaluate`` (or a divisor), so that what is measured is what
    is published.

    Args:
        stream: of training images, given by the program.
        every: the period; 0 for at the end only.
        images: how many are looked at, at most one pass.
        model: given by the program, so that mistakes show before anything begins.

    Raises:
        ConfigError: there is no image to look at, or no layer with statistics.
    """

    phase = Phase.CALIBRATE

    def __init__(
        self,
        stream: Stream,
        *,
        every: Every,
        images: Annotated[int, Field(ge=1)] = 200,
        model: nn.Module | None = None,
    ) -> None:
        if images < 1:
            raise ConfigError(f"PreciseBN: images must be 1 or more, got {images}")
        if model is not None:
            _require_layers(unwrapped(model))
        self._stream, self._every, self._images = stream, every, images
        self._period = 0
        self._done_step = -1
        self._owed = False

    def on_start(self, ctx: LoopContext) -> None:
        """Looks at the layers; makes up for what a signal broke off.

        Raises:
            ConfigError: the model has no batch norm layer with running statistics.
        """
        self._period = ctx.steps(self._every)
        model = unwrapped(ctx.model)
        layers = _require_layers(model)
        if not any(layer.training for layer in layers.values()):
            logger.warning(
                "PreciseBN: all %d batch norm layers are frozen: it does nothing while they are",
                len(layers),
            )
        if self._owed:
            self._run(ctx)
            ctx.marks["recalibrated"] = True

    def on_step(self, ctx: LoopContext) -> None:
        """Recomputes when it is time, and after the last step."""
        if due(ctx.state.step, self._period) or (ctx.is_last and not ctx.resumable):
            self._run(ctx)

    def on_end(self, ctx: LoopContext) -> None:
        """Makes up for a last step that nobody knew to be the last.

        The mark ``recalibrated`` says that a checkpoint of this step lacks it. A run that will go
        on (``ctx.resumable``) is left as it is: resumed, it must equal the unbroken one.
        """
        if self._done_step != ctx.state.step and not ctx.resumable:
            self._run(ctx)
            ctx.marks["recalibrated"] = True

    def state_dict(self) -> dict[str, Any]:
        """Whether a signal broke it off."""
        return {"owed": self._owed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes back what :meth:`state_dict` gave."""
        self._owed = state["owed"]

    def _run(self, ctx: LoopContext) -> None:
        ctx.scalars.read_losses()  # weights that are not finite have no statistics
        self._owed = True
        images = min(self._images, ctx.images_per_epoch)
        trained = unwrapped(ctx.model)
        models = {ctx.eval_model}
        if ctx.beside and ctx.average is not None:
            models = {ctx.model, ctx.average}
        try:
            with ctx.aside():
                found = [
                    recomputed(unwrapped(model), self._stream, like=trained, images=images)
                    for model in models
                ]
        except (KeyboardInterrupt, SystemExit) as signal:
            logger.warning("PreciseBN at step %d is broken off", ctx.state.step)
            ctx.interruption = signal
            return
        for statistics in found:
            for layer, (mean, var) in statistics.items():
                layer.running_mean.copy_(mean)  # type: ignore[union-attr]
                layer.running_var.copy_(var)  # type: ignore[union-attr]
        self._owed, self._done_step = False, ctx.state.step


def recomputed(
    model: nn.Module, stream: Stream, *, like: nn.Module, images: int
) -> dict[_BatchNorm, tuple[Tensor, Tensor]]:
    """Layer → mean and variance ``[C]``, float32, see :class:`PreciseBN`; nothing is changed.

    Args:
        model: the weights.
        stream: the images, read from position 0 on.
        like: the model in training, of the same structure: only the layers that it has in
            training mode are looked at, and the others work as they do in it.
        images: how many are read, rounded up to whole batches.
    """
    modes = {name: module.training for name, module in like.named_modules()}
    layers = [m for name, m in _with_statistics(model).items() if modes[name]]
    if not layers:
        return {}
    device = next(model.parameters()).device
    seen = 0
    batches = stream.batches(0)
    try:
        with undisturbed(model), _buffers_kept(layers), seeded(0), _moments(layers) as moments:
            for name, module in model.named_modules():
                module.training = modes[name]
            for batch in batches:
                model(batch.to(device))
                seen += len(batch)
                if seen >= images:
                    break
    finally:
        if isinstance(batches, Generator):
            batches.close()  # ends the processes that read
    return {layer: (m.mean, m.squares / m.count) for layer, m in moments.items() if m.count}


class _Moments:
    """Count, mean and summed squared deviation of batches, merged as they come.

    By the pairwise formula of Chan, Golub and LeVeque (1979), which does not cancel as the
    difference of two large sums does.
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean: Tensor = torch.zeros(())
        self.squares: Tensor = torch.zeros(())

    def add(self, values: Tensor) -> None:
        """Values ``[N, C, …]``."""
        dims = [d for d in range(values.ndim) if d != 1]
        number = values.numel() // values.shape[1]
        if not number:
            return
        var, mean = torch.var_mean(values.float(), dim=dims, correction=0)
        total = self.count + number
        delta = mean - self.mean.to(mean)
        self.squares = (
            self.squares.to(var) + var * number + delta**2 * (self.count * number / total)
        )
        self.mean = self.mean.to(mean) + delta * (number / total)
        self.count = total


@contextmanager
def _moments(layers: list[_BatchNorm]) -> Iterator[dict[_BatchNorm, _Moments]]:
    """The moments of what reaches ``layers``, filled by forward passes; those reached only."""
    found: dict[_BatchNorm, _Moments] = {}

    def look(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        found.setdefault(layer, _Moments()).add(inputs[0])  # type: ignore[arg-type]

    handles = [layer.register_forward_pre_hook(look) for layer in layers]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _buffers_kept(layers: list[_BatchNorm]) -> Iterator[None]:
    """Running statistics, which forward passes in training mode move, are put back."""
    before = [(buffer, buffer.clone()) for layer in layers for buffer in layer.buffers()]
    try:
        yield
    finally:
        for buffer, value in before:
            buffer.copy_(value)


def _require_layers(model: nn.Module) -> dict[str, _BatchNorm]:
    """Batch norm layers with running statistics, by name.

    Raises:
        ConfigError: there is none.
    """
    layers = _with_statistics(model)
    if not layers:
        norms = Counter(
            type(m).__name__ for m in model.modules() if "norm" in type(m).__name__.lower()
        )
        there = ", ".join(f"{number} {name}" for name, number in norms.items())
        raise ConfigError(
            f"PreciseBN: the model has no batch norm layer with running statistics to "
            f"recompute (its norm layers: {there or 'none'}); take this hook out"
        )
    return layers


def _with_statistics(model: nn.Module) -> dict[str, _BatchNorm]:
    """Batch norm layers with running statistics, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module.running_mean is not None
    }
