"""Options from YAML against the signature of what is to be called with them."""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import re
import reprlib
import types
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError

from detpipe.core.errors import ConfigError


def parameters_of(target: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The signature of ``target``.

    Raises:
        ConfigError: it has none.
    """
    try:
        return inspect.signature(target).parameters
    except ValueError as error:  # some that are written in C
        name = getattr(target, "__qualname__", target)
        raise ConfigError(
            f"'{name}' has no signature that its options could be checked against; wrap it in a "
            f"function of your own and name that one"
        ) from error


def fitting_options(
    use: str,
    given: Mapping[str, Any],
    *,
    target: Callable[..., Any],
    args: int,
    provided: Collection[str],
) -> dict[str, Any]:
    """Options, coerced to the annotations of the target's signature.

    Args:
        use: the target's import path, for messages.
        given: the options.
        target: what is to be called with them.
        args: how many positional arguments it gets besides.
        provided: names of more that it may get.

    Raises:
        ConfigError: with all mistakes.
    """
    parameters = parameters_of(target)
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    positional = [
        name
        for name, p in parameters.items()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ][:args]
    hints = _hints(target)
    mistakes, options = [], {}
    for name, value in given.items():
        if name in positional or (name not in parameters and not open_ended):
            if value is None:
                continue
            names = [n for n in parameters if n not in positional and n not in provided]
            near = difflib.get_close_matches(name, names, 1)
            hint = (
                f"did you mean '{near[0]}'?" if near else f"it takes {', '.join(names) or 'none'}"
            )
            mistakes.append(f"{use} has no option '{name}' ({hint})")
            continue
        if (wrong := _no_value(value, hints.get(name))) is not None:
            mistakes.append(f"{use}: {name}: {wrong}")
            continue
        try:
            options[name] = (
                TypeAdapter(hints[name]).validate_python(value) if (name in hints) else value
            )
        except ValidationError as error:
            mistakes += [
                f"{use}: {_place(name, e['loc'])}: {e['msg']}, got {reprlib.repr(e['input'])}"
                for e in error.errors()
            ]
        except Exception:  # noqa: BLE001 - an annotation pydantic cannot read is no mistake of ours
            options[name] = value
    known = {*positional, *given, *provided}
    mistakes += [f"{use} needs the option '{n}'" for n in _required(parameters) if n not in known]
    mistakes += _wrong_positions(use, parameters.values(), args=args)
    if mistakes:
        raise ConfigError("; ".join(mistakes))
    return options


def _required(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    """Names of what has no default."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [n for n, p in parameters.items() if p.default is p.empty and p.kind in named]


_MEMBER = re.compile(r"constrained-\w+$|(function|chain|list|tuple|dict|int-enum)[\w-]*\[")
"""Such as ``constrained-float``, ``function-after[check(), float]``, ``list[str]``."""


def _wrong_positions(
    use: str, parameters: Collection[inspect.Parameter], *, args: int
) -> list[str]:
    """What is wrong with a call of ``args`` positional arguments."""
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return []
    takes = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(takes) < args:
        return [f"{use} takes {len(takes)} arguments by position, but would be given {args}"]
    return [
        f"{use} takes '{p.name}' by position, where no option can give it"
        for p in takes[args:]
        if p.kind is p.POSITIONAL_ONLY and p.default is p.empty
    ]


def _place(name: str, where: tuple[int | str, ...]) -> str:
    """The option and where in it; without pydantic's names for the members of a union."""
    return ".".join([name, *(str(at) for at in where if not _MEMBER.match(str(at)))])


def _no_value(value: Any, annotation: Any) -> str | None:
    """Why ``value`` is none for an option of that annotation, although pydantic lets it pass."""
    several = value if isinstance(value, (list, tuple)) else (value,)
    if any(isinstance(v, float) and math.isnan(v) for v in several):
        return "NaN is no value: write a number"
    if isinstance(value, bool) and is_number(annotation):
        return f"{str(value).lower()} is no number: write one"
    return None


def is_number(annotation: Any) -> bool:
    """Whether it stands for numbers, and not for true and false as well."""
    kinds = _kinds(annotation)
    return bool(kinds & {int, float}) and not kinds & {bool, Any}


def _kinds(annotation: Any) -> set[Any]:
    """The members of a union, without what is annotated to them."""
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return _kinds(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return set().union(*map(_kinds, typing.get_args(annotation)))
    return {annotation} if isinstance(annotation, type) or annotation is Any else set()


@functools.cache
def _hints(target: Callable[..., Any]) -> dict[str, Any]:
    function = target.__init__ if inspect.isclass(target) else target
    try:
        return inspect.get_annotations(function, eval_str=True)
    except Exception:  # noqa: BLE001 - names only a type checker can see
        return {}
