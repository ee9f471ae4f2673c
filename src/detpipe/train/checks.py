"""Settings of the ``train`` section that cannot work, or not together.

Called when the section is validated, so before any work.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Mapping

from detpipe.core.config import Spec, locate, spec_mistakes, transform_args
from detpipe.core.errors import ConfigError
from detpipe.train.config import (
    BEST,
    CHECKPOINT,
    EARLY_STOP,
    EMA,
    EVALUATE,
    HOOK_RESOURCES,
    JSON,
    MAX_TIME,
    SAMPLER_RESOURCES,
    WRITER_RESOURCES,
    TrainConfig,
)
from detpipe.train.schedule import PROBES, checked

Specs = Mapping[str, Spec | None]

_ONCE = {
    CHECKPOINT: "they would share one folder",
    BEST: "they would share one mark",
    EMA: "only one average can be evaluated",
}


def section_mistakes(config: TrainConfig) -> list[str]:
    """All that is wrong with a section whose values are right one by one."""
    return [
        *_modes(config),
        *_names(config),
        *_hooks_together(config),
        *_hook_needs(config),
        *specs_of(
            {
                "optimizer": config.optimizer,
                "schedule": config.schedule,
                "sampler": config.sampler,
            },
            augment=config.augment,
            hooks=config.hooks,
            writers=config.writers,
        ),
    ]


def specs_of(single: Specs, *, augment: Specs, hooks: Specs, writers: Specs) -> list[str]:
    """What is wrong with the specs themselves.

    Args:
        single: ``optimizer``, ``schedule`` and ``sampler``, those that there are.
        augment: ``train.augment``.
        hooks: ``train.hooks``.
        writers: ``train.writers``.
    """
    optimizer = single.get("optimizer")
    mistakes = spec_mistakes((optimizer, "train.optimizer", 1, ()))
    if optimizer is not None and not mistakes:
        from detpipe.train.optimizer import optimizer_mistakes

        mistakes = optimizer_mistakes(optimizer)
    return [
        *mistakes,
        *_schedule(single.get("schedule")),
        *_transforms(augment),
        *spec_mistakes(
            (single.get("sampler"), "train.sampler", 0, SAMPLER_RESOURCES),
            *((s, f"train.hooks.{n}", 0, HOOK_RESOURCES) for n, s in hooks.items()),
            *((s, f"train.writers.{n}", 0, WRITER_RESOURCES) for n, s in writers.items()),
        ),
    ]


def _transforms(augment: Specs) -> list[str]:
    """Transforms are made at once: their own checks know more than their signatures."""
    mistakes = []
    for name, spec in augment.items():
        where = f"train.augment.{name}"
        wrong = spec_mistakes((spec, where, transform_args(spec), ()))
        mistakes += wrong
        if spec is None or wrong:
            continue
        from detpipe.data.augment import build

        try:
            build(spec)
        except ConfigError as error:
            mistakes.append(f"{where}: {error}")
    return mistakes


def _schedule(spec: Spec | None) -> list[str]:
    """A schedule that does not ask for the run's length is tried at once."""
    provided = ("to_progress",)
    mistakes = spec_mistakes((spec, "train.schedule", 1, provided))
    if spec is None or mistakes:
        return mistakes
    if not set(provided) & set(inspect.signature(locate(spec.use)).parameters):
        try:
            checked(spec.partial(args=1), total_steps=PROBES)
        except ConfigError as error:
            return [str(error)]
    return []


def _modes(config: TrainConfig) -> list[str]:
    mistakes = []
    if config.dry_run and config.overfit:
        mistakes.append("dry_run and overfit are two different tests: set one of them")
    if config.publish == "best":
        mistakes += [
            f"publish: best needs the hook {needed}"
            for needed in (EVALUATE, BEST, CHECKPOINT)
            if not _called(config.hooks, needed)
        ]
        mistakes += [
            f"publish: best needs the best weights, but train.hooks.{name}.best is false: leave "
            f"it out, or write publish: final"
            for name in _called(config.hooks, CHECKPOINT)
            if _option(config.hooks, name, "best") is False
        ]
    return mistakes


def _names(config: TrainConfig) -> list[str]:
    """Names that the program uses itself, see :mod:`detpipe.train.build`."""
    mistakes = []
    if config.hooks.get("record"):
        mistakes.append(
            "train.hooks.record: 'record' is the program's own hook, which gives scalars to "
            "train.writers; choose another name"
        )
    history = config.writers.get("history")
    if history and history.use != JSON:
        mistakes.append(
            f"train.writers.history: 'history' is the program's own writer, and {history.use} is "
            f"not {JSON}; choose another name"
        )
    return mistakes


def _hooks_together(config: TrainConfig) -> list[str]:
    mistakes = []
    for use, reason in _ONCE.items():
        names = _called(config.hooks, use)
        if len(names) > 1:
            mistakes.append(
                f"train.hooks: {' and '.join(names)} are both {use}: {reason}; set all but one "
                f"to null"
            )
    files = Counter(
        (spec.use, str(spec.options.get("name"))) for spec in config.writers.values() if spec
    )
    mistakes += [
        f"train.writers: {' and '.join(_called(config.writers, use))} are {use} and would write "
        f"the same file; set all but one to null, or give them names"
        for (use, _), times in files.items()
        if times > 1 and use.startswith("detpipe.")
    ]
    return mistakes


def _hook_needs(config: TrainConfig) -> list[str]:
    """Hooks that do nothing, or break the run, without another one."""
    hooks, mistakes = config.hooks, []
    own = any(spec and not spec.use.startswith("detpipe.") for spec in hooks.values())
    if not _called(hooks, EVALUATE):
        mistakes += [
            f"train.hooks.{name}.beside needs the hook {EVALUATE}"
            for name in _called(hooks, EMA)
            if _option(hooks, name, "beside")
        ]
        for name in () if own else [n for use in (BEST, EARLY_STOP) for n in _called(hooks, use)]:
            metric = str(_option(hooks, name, "metric", "val/bbox/AP"))
            if metric.startswith("val/"):
                mistakes.append(
                    f"train.hooks.{name} looks at '{metric}', but nothing evaluates: it needs the "
                    f"hook {EVALUATE}, or another metric, such as train/loss"
                )
    if not _called(hooks, CHECKPOINT):
        mistakes += [
            f"train.hooks.{name} needs the hook {CHECKPOINT}: a run that stops when its time is "
            f"up would be lost"
            for name in _called(hooks, MAX_TIME)
        ]
        if config.non_finite.action == "reload":
            mistakes.append(f"non_finite.action: reload needs the hook {CHECKPOINT}")
    return mistakes


def _called(specs: Specs, use: str) -> list[str]:
    """The names under which ``use`` is among ``specs``."""
    return [name for name, spec in specs.items() if spec and spec.use == use]


def _option(specs: Specs, name: str, option: str, default: object = None) -> object:
    spec = specs[name]
    return spec.options.get(option, default) if spec else default
