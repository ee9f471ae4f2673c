"""``train.optimizer``: what is wrong with it, before any work, and the optimiser itself."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import nn, optim

from detpipe.core.config import Spec, locate
from detpipe.core.errors import ConfigError

_UNUSABLE: dict[Callable[..., Any], str] = {
    optim.Optimizer: "it is the base of the optimisers, not one of them",
    optim.LBFGS: "it computes the loss several times in a step, the training loop once",
    optim.SparseAdam: "it takes sparse gradients, and those of a detector are dense",
    optim.Muon: "it takes matrices only, and a detector has convolutions and biases",
}


def optimizer_mistakes(spec: Spec) -> list[str]:
    """Why ``spec`` is no optimiser that can train, as far as can be told without a model.

    Optimisers of torch are constructed with one small parameter, so that torch's own checks come
    before any work. Others are constructed only when the model is there.

    Args:
        spec: ``train.optimizer``, its path and the names of its options already checked.
    """
    target = locate(spec.use)
    usual = "torch.optim.AdamW and torch.optim.SGD are the usual ones"
    if target in _UNUSABLE:
        return [f"train.optimizer.use: {spec.use} cannot be used: {_UNUSABLE[target]}; {usual}"]
    if not _makes_optimizer(target):
        return [
            f"train.optimizer.use: {spec.use} is no optimiser: name a subclass of "
            f"torch.optim.Optimizer, or a function that makes one and whose first argument is "
            f"'params'; {usual}"
        ]
    options = spec.partial(args=1).keywords
    from_torch = inspect.isclass(target) and target.__module__.partition(".")[0] == "torch"
    mistakes = _wrong_values(target, options, strict=from_torch)
    if from_torch and not mistakes:
        try:
            _without_dynamo(cast("type[optim.Optimizer]", target))(
                [nn.Parameter(torch.zeros(1, 1))], **options
            )
        except Exception as error:  # noqa: BLE001 - whatever torch refuses them with
            mistakes = [_refusal(spec, error)]
    return mistakes


def build_optimizer(
    spec: Spec, groups: Sequence[Mapping[str, Any]], *, device: torch.device
) -> optim.Optimizer:
    """The optimiser of ``groups``; fused, which takes a third of the time, where that works.

    Args:
        spec: ``train.optimizer``.
        groups: see :func:`detpipe.train.groups.parameter_groups`.
        device: where the parameters are.

    Raises:
        ConfigError: it cannot be made, or is no optimiser.
    """
    if spec.options.get("capturable") and device.type != "cuda":
        raise ConfigError(
            f"train.optimizer.capturable is true, which is for CUDA graphs, but the device is "
            f"{device.type}: take it out"
        )
    wanted = device.type in ("cpu", "cuda") and "foreach" not in spec.options
    try:
        optimizer = spec.build(groups, **({"fused": True} if wanted else {}))
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(_refusal(spec, error)) from error
    if not isinstance(optimizer, optim.Optimizer):
        raise ConfigError(
            f"train.optimizer.use: {spec.use} gave a {type(optimizer).__name__}, which is no "
            f"torch.optim.Optimizer"
        )
    return optimizer


def _makes_optimizer(target: Callable[..., Any]) -> bool:
    if inspect.isclass(target):
        return issubclass(target, optim.Optimizer)
    return next(iter(inspect.signature(target).parameters), "") == "params"


def _wrong_values(
    target: Callable[..., Any], options: Mapping[str, Any], *, strict: bool
) -> list[str]:
    """What the annotations let pass: many allow tensors, and then nothing is checked.

    Args:
        target: the class or function.
        options: for it.
        strict: all options have the kind of their default, as in torch; otherwise only those
            that mean the same everywhere are looked at.
    """
    if strict and options.get("differentiable"):
        return [
            "train.optimizer.differentiable cannot be true: torch does not change weights that "
            "way; take it out"
        ]
    parameters = inspect.signature(target).parameters
    wanted: dict[str, str | None] = {}
    for name, value in options.items():
        default = parameters[name].default if name in parameters else None
        if name == "lr":
            wanted[name] = None if _is_finite(value) and value > 0 else "a finite number above 0"
        elif name == "weight_decay":
            wanted[name] = (
                None if _is_finite(value) and value >= 0 else "a finite number, 0 or more"
            )
        elif strict:
            wanted[name] = _other_kind(value, default)
    return [
        f"train.optimizer.{name} is {_shown(options[name])}; it must be {kind}"
        for name, kind in wanted.items()
        if kind is not None
    ]


def _other_kind(value: Any, default: Any) -> str | None:
    """What ``value`` should be, by the default of its option; None if it is that."""
    if isinstance(default, bool):
        return None if isinstance(value, bool) else "true or false"
    if isinstance(default, (int, float)):
        return None if _is_finite(value) else "a finite number"
    if isinstance(default, tuple):
        fits = isinstance(value, (list, tuple)) and len(value) == len(default)
        fits = fits and all(
            _is_finite(v) or (v is None and d is None)
            for v, d in zip(value, default, strict=True)
        )  # fmt: skip
        return None if fits else f"a list of {len(default)} numbers"
    return None


def _is_finite(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value)


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return f"the text '{value}'"
    return "null" if value is None else f"{value!r}"


def _refusal(spec: Spec, error: Exception) -> str:
    return (
        f"train.optimizer: {spec.use} refuses its options {spec.options}: "
        f"{type(error).__name__}: {error}"
    )


def _without_dynamo(target: type[optim.Optimizer]) -> type[optim.Optimizer]:
    """``target``, whose construction does not import torch's compiler (a second).

    It comes with ``add_param_group``, which does no more than this, and check the parameters.
    """

    def add_param_group(self: optim.Optimizer, group: dict[str, Any]) -> None:
        self.param_groups.append({**self.defaults, **group})

    return type(target.__name__, (target,), {"add_param_group": add_param_group})
