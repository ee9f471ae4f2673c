"""The hook that keeps parts of the model as they are, for the whole run or its first part."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from detpipe.core.config import Duration
from detpipe.core.errors import ConfigError
from detpipe.models import stages as parts
from detpipe.train.contract import Hook, LoopContext, Phase
from detpipe.train.launch import unwrapped

logger = logging.getLogger(__name__)

_held: WeakKeyDictionary[nn.Module, Counter[str]] = WeakKeyDictionary()
"""Model → by how many hooks each of its parameters and layers is kept now, by name. What one of
them lets go may still be another's, whichever of them the loop calls first."""


class Freeze(Hook):
    """Keeps parameters, and the running statistics of their normalisation layers, as they are.

    Frozen parameters have no gradient, so no optimiser touches them: no momentum and no weight
    decay acts. A normalisation layer whose parameters are all frozen normalises with its running
    statistics (evaluation mode), and these stay. Several of these hooks may stand side by side, for
    unfreezing one part after the other; what two of them freeze learns when both have ended. What
    the model's builder has frozen stays frozen.

    Args:
        stages: this many of the backbone's stages, counted from the input, see
            :func:`detpipe.models.stages.stages`.
        patterns: parameters in one of whose names one of these regular expressions is found.
        norm: all batch norm layers of the model ("frozen batch norm").
        until: how long, from the start of the run; null is the whole run.
        model: given by the program, so that mistakes show before anything begins.

    Raises:
        ConfigError: nothing is named, or something that the model does not have.
    """

    phase = Phase.UPDATE

    def __init__(
        self,
        *,
        stages: int = 0,
        patterns: Sequence[str] = (),
        norm: bool = False,
        until: Duration | None = None,
        model: nn.Module | None = None,
    ) -> None:
        if isinstance(patterns, str):
            patterns = (patterns,)
        if stages < 0:
            raise ConfigError(f"Freeze: stages must be 0 or more, got {stages}")
        if not (stages or patterns or norm):
            raise ConfigError("Freeze: nothing is named to be frozen; set stages, patterns or norm")
        self._stages, self._patterns, self._norm, self._until = stages, patterns, norm, until
        self._until_step: int | None = None
        self._parameters: dict[str, nn.Parameter] = {}
        self._layers: dict[str, nn.Module] = {}
        if model is not None:
            self._chosen(unwrapped(model))

    def on_start(self, ctx: LoopContext) -> None:
        """Freezes, unless the time is over already (after a resume).

        Raises:
            ConfigError: there is no such stage, pattern or layer; ``until`` is 0, or asks to
                unfreeze what the builder froze; or nothing is left to train.
        """
        model = unwrapped(ctx.model)
        self._until_step = None if self._until is None else ctx.steps(self._until)
        if self._until_step == 0:
            raise ConfigError(f"Freeze: until is {self._until}: nothing would ever be frozen")
        parameters, layers = self._chosen(model)
        if self._until_step is not None and self._until_step >= ctx.total_steps:
            logger.warning(
                "Freeze: until %s is not before the end of the run (%d steps): what it freezes "
                "never learns", self._until, ctx.total_steps,
            )  # fmt: skip
        if self._until_step is not None and ctx.state.step >= self._until_step:
            logger.info("%s learn, since step %d", self._what(parameters, layers), self._until_step)
            return
        held = _held.setdefault(model, Counter())
        self._parameters = {n: p for n, p in parameters.items() if p.requires_grad or held[n]}
        self._layers = layers
        held.update([*self._parameters, *layers])
        for parameter in self._parameters.values():
            parameter.requires_grad_(False)
            parameter.grad = None
        for layer in layers.values():
            layer.eval()
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ConfigError("Freeze: every parameter of the model is frozen: nothing to train")
        end = (
            "for the whole run"
            if self._until_step is None
            else f"until step {self._until_step} ({self._until}) of {ctx.total_steps}"
        )
        already = len(parameters) - len(self._parameters)
        also = f"; {already} of these tensors were frozen before" if already else ""
        logger.info("%s are frozen %s%s", self._what(parameters, layers), end, also)

    def on_step(self, ctx: LoopContext) -> None:
        """Lets go when it is time."""
        if ctx.state.step == self._until_step:
            what = self._what(self._parameters, self._layers)
            self._let_go(unwrapped(ctx.model), modes=True)
            logger.info("step %d: %s learn from now on", ctx.state.step, what)

    def on_end(self, ctx: LoopContext) -> None:
        """The parameters are as they were found; layers keep their mode for hooks that follow."""
        self._let_go(unwrapped(ctx.model), modes=False)

    def on_error(self, ctx: LoopContext, error: BaseException) -> None:
        """As :meth:`on_end`."""
        self._let_go(unwrapped(ctx.model), modes=False)

    def _let_go(self, model: nn.Module, *, modes: bool) -> None:
        """Drops this hook's holds; what nobody holds any more learns again."""
        held = _held.setdefault(model, Counter())
        held.subtract([*self._parameters, *self._layers])
        for name, parameter in self._parameters.items():
            parameter.requires_grad_(not held[name])
        for name, layer in self._layers.items():
            if modes and not held[name]:
                layer.train()
        self._parameters, self._layers = {}, {}

    def _chosen(self, model: nn.Module) -> tuple[dict[str, nn.Parameter], dict[str, nn.Module]]:
        """Parameters and normalisation layers, by name."""
        names = parts.parameter_names(model)
        prefixes = self._prefixes(model)
        found = parts.matching(self._patterns, names, where="Freeze: patterns")
        matched = {parameter for one in found.values() for parameter in one}
        chosen = {
            parameter: own[0]
            for parameter, own in names.items()
            if parameter in matched or any(parts.within(name, prefixes) for name in own)
        }
        self._refuse_fixed(model, chosen)
        layers: dict[str, nn.Module] = {}
        for name, layer in model.named_modules():
            if not isinstance(layer, _NormBase):
                continue
            own = list(layer.parameters(recurse=False))
            frozen = all(p in chosen for p in own) if own else parts.within(name, prefixes)
            if frozen or (self._norm and isinstance(layer, _BatchNorm)):
                layers[name] = layer
        if self._norm:
            chosen |= {p: names[p][0] for layer in layers.values() for p in layer.parameters()}
            if not any(isinstance(layer, _BatchNorm) for layer in layers.values()):
                raise ConfigError(
                    "Freeze: norm is true, but the model has no batch norm layer (those of "
                    "FrozenBatchNorm2d are frozen anyway); leave it out"
                )
        return {name: parameter for parameter, name in chosen.items()}, layers

    def _prefixes(self, model: nn.Module) -> list[str]:
        """Of the parameters' names of the first stages."""
        if not self._stages:
            return []
        every = parts.stages(model)
        if self._stages > len(every):
            listed = "; ".join(f"{i}: {', '.join(one)}" for i, one in enumerate(every, 1))
            raise ConfigError(
                f"Freeze: stages is {self._stages}, but the backbone has {len(every)} ({listed})"
            )
        return [prefix for stage in every[: self._stages] for prefix in stage]

    def _refuse_fixed(self, model: nn.Module, chosen: dict[nn.Parameter, str]) -> None:
        """What the builder froze is in no optimiser: it cannot learn when this hook ends."""
        held = _held.get(model, Counter())
        fixed = [name for p, name in chosen.items() if not p.requires_grad and not held[name]]
        if self._until is not None and fixed:
            raise ConfigError(
                f"Freeze: {len(fixed)} tensors ('{fixed[0]}', …) are frozen by the model itself "
                f"and would not learn after {self._until}: let the model train all of its stages "
                f"(model.trainable_backbone_layers), or set until to null"
            )

    @staticmethod
    def _what(parameters: dict[str, nn.Parameter], layers: dict[str, Any]) -> str:
        numbers = sum(parameter.numel() for parameter in parameters.values())
        norm = f" and the statistics of {len(layers)} norm layers" if layers else ""
        return f"{len(parameters)} tensors ({numbers:,} parameters){norm}"
