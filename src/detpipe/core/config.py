"""Building blocks of the configuration: frozen models, durations with a unit, specs.

Nothing here imports torch, so a mistake in the configuration is reported at once.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from detpipe.core.errors import ConfigError, one_message
from detpipe.core.options import fitting_options, is_number, parameters_of


class Frozen(BaseModel):
    """A configuration section: unknown keys are an error, values cannot change afterwards.

    ``true`` is no number.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_bool_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Python takes ``true`` for 1, a reader of YAML does not."""
        field = cls.model_fields[info.field_name or ""]
        if isinstance(value, bool) and is_number(field.annotation):
            raise ValueError(f"{str(value).lower()} is no number: write one")
        return value

    @model_validator(mode="wrap")
    @classmethod
    def _name_unknown_keys(cls, data: Any, handler: Callable[[Any], Self]) -> Self:
        """Says what was meant, where pydantic says "Extra inputs are not permitted"."""
        if isinstance(data, Mapping):
            unknown = [str(key) for key in data if key not in cls.model_fields]
            if unknown:
                known = {k: v for k, v in data.items() if k in cls.model_fields}
                mistakes = []
                for key in unknown:
                    near = difflib.get_close_matches(key, cls.model_fields, 1)
                    there = f"there are {', '.join(cls.model_fields)}"
                    hint = f"did you mean '{near[0]}'?" if near else there
                    mistakes.append(f"unknown key '{key}': {hint}")
                try:
                    handler(known)
                except ValidationError as error:
                    mistakes += [
                        f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()
                    ]
                raise ConfigError("; ".join(mistakes))
        return handler(data)


_UNITS = ("steps", "epochs", "images")
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?(?:e\d+)?)\s*(steps?|epochs?|images?)\s*", re.IGNORECASE)


LONGEST = 1e12
"""Of a duration, in any unit: what is longer is a slip, and too much for 64 bits further on."""


class Duration(Frozen):
    """A length of training with its unit: ``{steps: 500}``, ``{epochs: 1.5}``, ``{images: 10000}``.

    The text forms ``500 steps``, ``1.5 epochs`` and ``10000 images`` mean the same; in YAML they
    are the safer ones, because a small environment file replaces a text whole.
    """

    steps: float | None = None
    """Optimiser updates."""
    epochs: float | None = None
    """Passes over the training images."""
    images: float | None = None
    """Training images seen."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, data: Any) -> Any:
        if isinstance(data, str):
            match = _DURATION.fullmatch(data)
            if not match:
                raise ValueError(
                    f"'{data}' is no duration; write '500 steps', '12 epochs' or '10000 images'"
                )
            unit = match[2].lower().rstrip("s") + "s"
            return {unit: float(match[1])}
        if isinstance(data, (int, float)) and not isinstance(data, bool):
            if not data >= 0:
                raise ValueError(f"a duration must be 0 or more, got {data}")
            raise ValueError(
                f"{data} has no unit; write '{data} steps', '{data} epochs' or '{data} images'"
            )
        return data

    @model_validator(mode="after")
    def _one_unit(self) -> Self:
        given = [unit for unit in _UNITS if getattr(self, unit) is not None]
        if len(given) != 1:
            raise ValueError(
                f"a duration needs exactly one of steps, epochs, images; got {given or 'none'}"
                + (" (set the one you do not want to null)" if given else "")
            )
        length = getattr(self, given[0])
        if not length >= 0:  # NaN is neither
            raise ValueError(f"a duration must be 0 or more, got {length}")
        if length > LONGEST:
            raise ValueError(f"a duration must be at most {LONGEST:g} {given[0]}, got {length:g}")
        return self

    def to_steps(self, *, images_per_step: int, images_per_epoch: int) -> int:
        """Whole optimiser steps, rounded to the nearest, at least 1 unless the duration is 0."""
        if self.steps is not None:
            steps = self.steps
        elif self.epochs is not None:
            steps = self.epochs * images_per_epoch / images_per_step
        else:
            steps = (self.images or 0) / images_per_step
        return max(1, round(steps)) if steps > 0 else 0

    def __str__(self) -> str:
        unit = next(unit for unit in _UNITS if getattr(self, unit) is not None)
        return f"{getattr(self, unit):g} {unit}"


Every = Duration
"""A period, as in "every 500 steps"; 0 means never."""


class Spec(BaseModel):
    """Which function or class to call, and with what: ``{use: full.import.path, option: value}``.

    A user's own function has the same rank as detpipe's. Options are checked against the
    signature before any work starts, see :func:`check_spec`. An option set to ``null`` that the
    signature does not have is dropped: that is how a small environment file takes back an option
    of the base configuration when it names another ``use``.
    """

    model_config = ConfigDict(frozen=True, extra="allow", use_attribute_docstrings=True)

    use: str
    """Full import path of a function or class, such as ``torch.optim.AdamW``."""

    @property
    def options(self) -> dict[str, Any]:
        """Everything but ``use``."""
        return dict(self.__pydantic_extra__ or {})

    def build(self, *args: Any, **provided: Any) -> Any:
        """Calls the target with ``args``, the options, and those of ``provided`` it asks for.

        ``provided`` holds what the program has to offer by name (``num_classes``, ``evaluate``,
        …); a name that the target's signature lacks is left out.

        Raises:
            ConfigError: the path does not import, or an option does not fit the signature.
        """
        return self.partial(args=len(args), **provided)(*args)

    def partial(self, *, args: int = 0, **provided: Any) -> functools.partial[Any]:
        """The target with its options, still to be called with ``args`` positional arguments.

        Raises:
            ConfigError: as :meth:`build`.
        """
        target = locate(self.use)
        options = fitting_options(
            self.use, self.options, target=target, args=args, provided=provided
        )
        takes = parameters_of(target)
        passed = {k: v for k, v in provided.items() if k in takes and k not in options}
        return functools.partial(target, **passed, **options)


@functools.cache
def locate(path: str) -> Callable[..., Any]:
    """The function or class at a full import path.

    Raises:
        ConfigError: no such module or attribute, or it cannot be called.
    """
    module_name, _, name = path.rpartition(".")
    if not module_name:
        raise ConfigError(f"use: '{path}' is no full import path (package.module.function)")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and not module_name.startswith(error.name):
            raise ConfigError(f"use: '{path}' needs the package '{error.name}'") from error
        hint = _near_module(module_name)
        hint = hint or " (your own code: a package in src/ or in a folder of PYTHONPATH)"
        raise ConfigError(f"use: '{path}': there is no module '{module_name}'{hint}") from error
    if not hasattr(module, name):
        near = difflib.get_close_matches(name, dir(module), 1)
        hint = f"; did you mean '{module_name}.{near[0]}'?" if near else ""
        raise ConfigError(f"use: '{path}': '{module_name}' has no '{name}'{hint}")
    target = getattr(module, name)
    if not callable(target):
        raise ConfigError(f"use: '{path}' is a {type(target).__name__}, not a function or class")
    return target  # type: ignore[no-any-return]


def _near_module(name: str) -> str:
    """``; did you mean '…'?`` for the last part of a module's name, if its package exists."""
    if name.split(".", maxsplit=1)[0] == "apex":
        return (
            "; apex is retired, PyTorch does the same: write use: torch.optim.AdamW (or SGD, …), "
            "which runs fused by itself, and train.precision: bf16 or fp16"
        )
    parent, _, last = name.rpartition(".")
    try:
        siblings = [m.name for m in pkgutil.iter_modules(importlib.import_module(parent).__path__)]
    except (ImportError, AttributeError, ValueError):
        return ""
    near = difflib.get_close_matches(last, siblings, 1)
    return f"; did you mean '{parent}.{near[0]}'?" if near else ""


def check_spec(spec: Spec, *, where: str, args: int = 0, provided: Collection[str] = ()) -> None:
    """Checks a spec's path and options without calling anything.

    Args:
        spec: the spec.
        where: its place in the configuration, for messages (``train.optimizer``).
        args: how many positional arguments the program will pass.
        provided: names the program will offer, see :meth:`Spec.build`.

    Raises:
        ConfigError: with all mistakes of this spec, such as an option that the program gives.
    """
    try:
        target = locate(spec.use)
        taken = [n for n in spec.options if n in provided and n in parameters_of(target)]
        mistakes = [
            f"{spec.use}: '{name}' is given by the program, got {spec.options[name]!r}; take it out"
            for name in taken
        ]
        try:
            fitting_options(spec.use, spec.options, target=target, args=args, provided=provided)
        except ConfigError as error:
            mistakes.append(str(error))
        if mistakes:
            raise ConfigError("; ".join(mistakes))
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def check_specs(*checks: tuple[Spec | None, str, int, Collection[str]]) -> None:
    """:func:`check_spec` for many, all mistakes in one :class:`ConfigError`."""
    if mistakes := spec_mistakes(*checks):
        raise ConfigError(one_message("these settings cannot be used:", mistakes))


def spec_mistakes(*checks: tuple[Spec | None, str, int, Collection[str]]) -> list[str]:
    """What :func:`check_spec` finds in many, each mistake with its place."""
    mistakes = []
    for spec, where, args, provided in checks:
        if spec is None:
            continue
        try:
            check_spec(spec, where=where, args=args, provided=provided)
        except ConfigError as error:
            mistakes.append(str(error))
    return mistakes


def transform_args(spec: Spec | None) -> int:
    """2 if the spec names a function of ``(image, target)``; 0 for what makes a transform."""
    try:
        target = locate(spec.use) if spec else None
    except ConfigError:
        return 0
    if not inspect.isfunction(target):
        return 0
    return 2 if list(parameters_of(target))[:2] == ["image", "target"] else 0
