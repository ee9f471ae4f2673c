"""Optimiser groups: parameters with a learning rate or weight decay of their own."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from detpipe.core.config import Spec, locate
from detpipe.core.errors import ConfigError, one_message
from detpipe.models.stages import matching, parameter_names, stages, within
from detpipe.train.config import GroupOptions, Groups
from detpipe.train.launch import unwrapped

NORMS: tuple[type[nn.Module], ...] = (
    nn.modules.batchnorm._NormBase,  # batch and instance norm, synchronised or not
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
)
"""torch's normalisation layers that have parameters."""


@dataclass
class _Settings:
    """What differs for one parameter, and why."""

    lr_factor: float = 1.0
    weight_decay: float | None = None
    reasons: list[str] = field(default_factory=list)


def parameter_groups(model: nn.Module, groups: Groups, *, optimizer: Spec) -> list[dict[str, Any]]:
    """The learning parameters of ``model`` as groups for a ``torch.optim`` optimiser.

    Parameters with equal settings share a group, because fused and foreach optimisers work on a
    group at once. A group has ``params``, a ``name`` for people, and ``lr`` and ``weight_decay``
    only where they differ from the optimiser's. The group in which nothing differs comes first,
    the others in the order of the model. A tied parameter is in one group, once.

    * The learning rate is the optimiser's, times ``backbone_lr_factor`` and ``layer_decay`` to
      the power of the number of stages from this one to the last, both for the backbone's stages
      only, times the factor of every pattern that is found in one of the parameter's names.
    * The weight decay is that of the last such pattern that has one; else, for parameters of
      normalisation layers (their biases too), ``norm_weight_decay``; else, for biases,
      ``bias_weight_decay``; else the optimiser's.

    Args:
        model: the detector as it is trained.
        groups: ``train.groups``.
        optimizer: ``train.optimizer``; its options and its signature's defaults are what the
            groups differ from.

    Raises:
        ConfigError: with every mistake: nothing learns; a pattern is wrong or is found in no
            learning parameter; the model does not say its stages and they are needed; the
            optimiser has no such option.
    """
    model = unwrapped(model)
    names = {p: own for p, own in parameter_names(model).items() if p.requires_grad}
    if not names:
        raise ConfigError("every parameter of the model is frozen: there is nothing to train")
    patterns = {p: options for p, options in groups.patterns.items() if options is not None}
    mistakes = []
    decays = [groups.norm_weight_decay, groups.bias_weight_decay]
    decays += [options.weight_decay for options in patterns.values()]
    base_decay = base_lr = None
    try:
        if any(decay is not None for decay in decays):
            base_decay = _base(optimizer, "weight_decay")
        if any(options.lr_factor != 1 for options in patterns.values()) or _by_stage(groups):
            base_lr = _base(optimizer, "lr")
    except ConfigError as error:
        mistakes.append(str(error))
    try:
        settings = _settings(model, names, groups, patterns)
    except ConfigError as error:
        mistakes.append(str(error))
    if mistakes:
        raise ConfigError(one_message("train.groups cannot be used:", mistakes))
    return _grouped(settings, base_lr=base_lr, base_decay=base_decay)


def describe(groups: Sequence[Mapping[str, Any]]) -> str:
    """The groups in one line: ``2 groups: rest (80 tensors), norm without decay (40)``."""
    parts = [f"{group.get('name', 'parameters')} ({len(group['params'])})" for group in groups]
    parts[0] = parts[0].removesuffix(")") + " tensors)"
    return f"{len(groups)} group{'s' * (len(groups) > 1)}: {', '.join(parts)}"


def _settings(
    model: nn.Module,
    names: Mapping[nn.Parameter, Sequence[str]],
    groups: Groups,
    patterns: Mapping[str, GroupOptions],
) -> dict[nn.Parameter, _Settings]:
    """What differs for each parameter, see :func:`parameter_groups`."""
    settings = {parameter: _Settings() for parameter in names}
    order = stages(model) if _by_stage(groups) else ()
    for parameter, own in names.items():
        at = (i for i, prefixes in enumerate(order) if any(within(n, prefixes) for n in own))
        stage = next(at, None)
        if stage is not None:
            power = len(order) - stage
            settings[parameter].lr_factor = groups.backbone_lr_factor * groups.layer_decay**power
            reason = "backbone" if groups.layer_decay == 1 else f"stage {stage + 1}"
            settings[parameter].reasons.append(reason)
    norm = {p for m in model.modules() if isinstance(m, NORMS) for p in m.parameters(recurse=False)}
    for parameter, own in names.items():
        is_norm = parameter in norm
        is_bias = any(name.endswith("bias") for name in own)
        if is_norm and groups.norm_weight_decay is not None:
            settings[parameter].weight_decay = groups.norm_weight_decay
            settings[parameter].reasons.append("norm")
        elif is_bias and not is_norm and groups.bias_weight_decay is not None:
            settings[parameter].weight_decay = groups.bias_weight_decay
            settings[parameter].reasons.append("bias")
    where = "train.groups.patterns, among parameters that learn"
    found = matching(list(patterns), names, where=where)
    for pattern, matched in found.items():
        for parameter in matched:
            chosen, options = settings[parameter], patterns[pattern]
            chosen.lr_factor *= options.lr_factor
            if options.weight_decay is not None:
                chosen.weight_decay = options.weight_decay
            chosen.reasons.append(f"'{pattern}'")
    return settings


def _grouped(
    settings: Mapping[nn.Parameter, _Settings], *, base_lr: float | None, base_decay: float | None
) -> list[dict[str, Any]]:
    """One group for each pair of learning rate and weight decay."""
    together: dict[tuple[float, float | None], list[nn.Parameter]] = {(1.0, None): []}
    for parameter, own in settings.items():
        decay = None if own.weight_decay == base_decay else own.weight_decay
        together.setdefault((own.lr_factor, decay), []).append(parameter)
    groups = []
    for (factor, decay), parameters in together.items():
        if not parameters:
            continue
        group: dict[str, Any] = {"params": parameters}
        what = []
        if factor != 1 and base_lr is not None:
            group["lr"] = base_lr * factor
            what.append(f"lr ×{factor:.3g}")
        if decay is not None:
            group["weight_decay"] = decay
            what.append(f"weight decay {decay:g}" if decay else "without decay")
        reasons = dict.fromkeys(" ".join(settings[p].reasons) for p in parameters)
        rest = "rest" if len(together) > 1 and together[1.0, None] else "all"
        group["name"] = f"{' and '.join(reasons)} {', '.join(what)}" if what else rest
        groups.append(group)
    return groups


def _by_stage(groups: Groups) -> bool:
    return groups.backbone_lr_factor != 1 or groups.layer_decay != 1


def _base(optimizer: Spec, option: str) -> float:
    """The optimiser's own value of ``option``.

    Raises:
        ConfigError: it has none.
    """
    parameters = inspect.signature(locate(optimizer.use)).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if option not in parameters and not open_ended:
        raise ConfigError(
            f"{optimizer.use} has no option '{option}', but a group sets it: choose another "
            f"train.optimizer, or leave it out of train.groups"
        )
    value = optimizer.options.get(option)
    if value is None and option in parameters:
        value = parameters[option].default
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(
            f"train.groups needs a number for train.optimizer.{option} to start from; {value!r} is "
            f"none"
        )
    return float(value)
