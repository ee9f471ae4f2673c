"""Parts of a detector by parameter name: stages of its backbone, and patterns."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from torch import nn

from detpipe.core.errors import ConfigError

Stages = tuple[tuple[str, ...], ...]
"""Each stage's prefixes of parameter names, from the input on."""


def stages(model: nn.Module) -> Stages:
    """The stages of the backbone, from the input on.

    A detector says them by a method ``stages()``. A prefix ends where a dot follows, or the name:
    ``backbone.layer1`` is a prefix of ``backbone.layer1.0.weight``, not of
    ``backbone.layer10.weight``. What belongs to no stage (feature pyramid, heads) is left out.

    Args:
        model: the detector as it is trained, without the wrapper of DistributedDataParallel.

    Raises:
        ConfigError: the model does not say its stages, or a prefix fits no module or parameter,
            or fits one that another stage has.
    """
    if not has_stages(model):
        raise ConfigError(
            f"{type(model).__name__} does not say what the stages of its backbone are: give the "
            f"class a method stages() that returns the prefixes of the parameter names of each "
            f'stage, from the input on, such as (("backbone.conv1", "backbone.bn1"), '
            f'("backbone.layer1",)), or choose parameters by name, with patterns'
        )
    found = tuple(tuple(prefixes) for prefixes in model.stages())  # type: ignore[operator]
    known = {name for name, _ in model.named_modules()} | {n for n, _ in model.named_parameters()}
    prefixes = [prefix for stage in found for prefix in stage]
    where = f"{type(model).__name__}.stages()"
    for i, prefix in enumerate(prefixes):
        if prefix not in known or not prefix:
            raise ConfigError(
                f"{where}: '{prefix}' is no module or parameter{_near(prefix, known)}"
            )
        others = prefixes[:i] + prefixes[i + 1 :]
        if within(prefix, others):
            raise ConfigError(f"{where}: '{prefix}' is in two stages, or twice in one")
    return found


def has_stages(module: nn.Module) -> bool:
    """Whether ``module`` says its stages; layers that are merely called so do not count."""
    said = getattr(module, "stages", None)
    return callable(said) and not isinstance(said, nn.Module)


def within(name: str, prefixes: Iterable[str]) -> bool:
    """Whether ``name`` is one of ``prefixes`` or lies below one of them."""
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def parameter_names(model: nn.Module) -> dict[nn.Parameter, list[str]]:
    """Each parameter once, with all its names (a tied one has several), in the model's order."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return names


def matching(
    patterns: Sequence[str], names: Mapping[nn.Parameter, Sequence[str]], *, where: str
) -> dict[str, list[nn.Parameter]]:
    """Pattern → the parameters one of whose names it is found in.

    Args:
        patterns: regular expressions.
        names: see :func:`parameter_names`.
        where: the patterns' place in the configuration, for messages.

    Raises:
        ConfigError: with every pattern that is no regular expression or is found in no name.
    """
    found, mistakes = {}, []
    for pattern in patterns:
        try:
            search = re.compile(pattern).search
        except re.error as error:
            mistakes.append(f"{where}: '{pattern}' is no regular expression: {error}")
            continue
        found[pattern] = [p for p, own in names.items() if any(map(search, own))]
        if not found[pattern]:
            every = [name for own in names.values() for name in own]
            mistakes.append(
                f"{where}: '{pattern}' is in no parameter's name{_near(pattern, every)}"
            )
    if mistakes:
        raise ConfigError("; ".join(mistakes))
    return found


def _near(text: str, names: Collection[str]) -> str:
    """``; near it are …`` for the dotted names, and parts of them, that look like ``text``."""
    plain = re.sub(r"[^\w.]", "", text.replace("\\.", ".")).strip(".")
    parts = {part for name in names for part in name.split(".") if not part.isdigit()}
    heads = {name.rpartition(".")[0] for name in names}
    near = difflib.get_close_matches(plain, sorted({*names, *heads, *parts} - {""}), 3)
    if near:
        return f"; near it are {', '.join(near)}"
    return f"; names are such as {', '.join(list(names)[:: max(1, len(names) // 3)][:3])}"
