"""Whether a run goes on from what is in its folder, and what happens to that otherwise."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from detpipe.core.errors import CheckpointError, one_message
from detpipe.train.checkpoint import CheckpointFolder
from detpipe.train.config import BEST, TrainConfig
from detpipe.train.plan import Plan

logger = logging.getLogger(__name__)

MAY_CHANGE = (
    "train.duration",
    "train.hooks",
    "train.writers",
    "train.log_every",
    "train.resume",
    "train.publish",
    "train.non_finite",
    "train.dry_run",
    "train.overfit",
    "train.device",
    "train.channels_last",
    "stream.workers",
    "stream.threads",
)
"""Settings (and all below them) with which a run may be resumed although they differ."""

ORDERED: Mapping[str, Callable[[str], str]] = {
    "train.augment": lambda key: key.partition(".")[0],
    "train.groups.patterns": lambda key: key.rpartition(".")[0],  # a pattern may have dots
}
"""Sections whose order counts, and the name in it that a flat key below belongs to."""


def content_to_resume(
    checkpoints: CheckpointFolder, header: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The newest checkpoint, None if there is none.

    Args:
        checkpoints: where it is looked for.
        header: ``config`` (flat) and ``classes`` of this run.

    Raises:
        CheckpointError: it is of a run with other classes, or other settings that matter.
    """
    content = checkpoints.latest()
    if content is None:
        logger.info("train.resume: there is no checkpoint in '%s'; a new run", checkpoints.path)
        return None
    if content["classes"] != header["classes"]:
        raise CheckpointError(
            f"the checkpoints in '{checkpoints.path}' are of a run with the classes "
            f"{content['classes']}, this one has {header['classes']}; set train.resume to false "
            f"for a new run"
        )
    refused, allowed = describe_difference(content["config"], header["config"])
    if refused:
        raise CheckpointError(
            one_message(
                f"the run in '{checkpoints.path}' cannot be resumed with other settings; put them "
                f"back, or set train.resume to false for a new run:",
                refused,
            )
        )
    for line in (line for line in allowed if not line.startswith("train.resume")):
        logger.info("resumed with another %s", line)
    return content


def reaches(content: Mapping[str, Any], plan: Plan) -> bool:
    """Whether a run that ended as ``content`` says (perhaps early) had no more to do than this."""
    state = content["state"]
    return plan.total_steps <= max(int(state["step"]), int(state["total_steps"]))


def make_room(checkpoints: CheckpointFolder) -> None:
    """A new run begins in an empty folder; what is in it is kept, under another name.

    A finished run becomes ``<folder>_previous``, in place of an older one of that name; an
    unfinished or damaged one gets the time in its name, and stays until somebody removes it.

    Raises:
        CheckpointError: the folder cannot be written in, or what is in it cannot be moved.
    """
    checkpoints.prepare()
    entries = checkpoints.entries()
    if checkpoints.finished:
        aside = checkpoints.put_aside(name="_previous")
        logger.info(
            "'%s' held a finished run (step %d): it is now '%s', until the next run begins",
            checkpoints.path, entries[-1].step, aside,
        )  # fmt: skip
    elif entries:
        logger.warning(
            "'%s' held an unfinished run (step %d): it is now '%s'. To go on with it instead, "
            "move it back and set train.resume to true",
            checkpoints.path, entries[-1].step, checkpoints.put_aside(),
        )  # fmt: skip
    elif checkpoints.damaged():
        logger.warning(
            "'%s' held only damaged checkpoints: it is now '%s'",
            checkpoints.path, checkpoints.put_aside(),
        )  # fmt: skip
    else:
        checkpoints.clear()


def newest(
    checkpoints: CheckpointFolder, config: TrainConfig, hooks: Mapping[str, object]
) -> dict[str, Any] | None:
    """The newest checkpoint that is whole, None if there is none; the best one is marked.

    Args:
        checkpoints: the run's.
        config: its settings.
        hooks: all its hooks by name, as they were built.

    Raises:
        CheckpointError: see :meth:`CheckpointFolder.latest` and :func:`restore_best`.
    """
    content = checkpoints.latest()
    if content is not None:
        needed = config.publish == "best"
        restore_best(checkpoints, content, hooks=markers(config, hooks), needed=needed)
    return content


def markers(config: TrainConfig, hooks: Mapping[str, object]) -> dict[str, object]:
    """Those of ``hooks`` that mark the best step."""
    return {name: hooks[name] for name, spec in config.hooks.items() if spec and spec.use == BEST}


def restore_best(
    checkpoints: CheckpointFolder,
    content: Mapping[str, Any],
    *,
    hooks: Mapping[str, object] | Sequence[str],
    needed: bool,
) -> None:
    """Marks the best checkpoint as the run remembers it: the index may be lost, or older.

    Args:
        checkpoints: the run's.
        content: the checkpoint to go on from; the hook that marked the best remembers its step.
        hooks: such hooks by name, or their names alone. What one of them remembers of another
            ``metric`` or ``mode`` than its own does not count.
        needed: whether the best weights are to be published.

    Raises:
        CheckpointError: it is needed, and the best checkpoint is not there.
    """
    own = hooks if isinstance(hooks, Mapping) else dict.fromkeys(hooks)
    states = [
        state
        for name, hook in own.items()
        if (state := content["hooks"].get(name, {})).get("best") is not None
        and all(state.get(key, now) == now for key, now in _watched(hook).items())
    ]
    if not states:
        return
    state = max(states, key=lambda state: int(state["best_step"]))  # the last mark is what counts
    step = state["best_step"]
    marked = [entry.step for entry in checkpoints.entries() if entry.best]
    if marked == [step]:
        return
    if checkpoints.mark_best(step, state["best"]):
        logger.warning(
            "the index of '%s' did not say which checkpoint is the best: step %d is marked "
            "again, as its hook remembers it", checkpoints.path, step,
        )  # fmt: skip
    elif _damaged_after(checkpoints, content["state"]["step"]):
        # A better one took its place and was damaged: the run is on its way there again.
        logger.warning(
            "the best checkpoint so far, '%s', is no longer there", checkpoints.file(step).name
        )
    elif needed:
        raise CheckpointError(
            f"the best weights cannot be published: '{checkpoints.file(step).name}' in "
            f"'{checkpoints.path}', which was the best, is not there. Put it back, set "
            f"train.publish to final, or set train.resume to false for a new run"
        )


def _damaged_after(checkpoints: CheckpointFolder, step: int) -> bool:
    here = checkpoints.file(step).name
    return any(file.stem > here for file in checkpoints.damaged())


def _watched(hook: object) -> dict[str, object]:
    """What it looks at."""
    return {key: getattr(hook, key) for key in ("metric", "mode") if hasattr(hook, key)}


def describe_difference(
    old: Mapping[str, Any], new: Mapping[str, Any]
) -> tuple[list[str], list[str]]:
    """How a run's settings differ from those of the checkpoint to go on from.

    Args:
        old: flat settings (``train.batch_size`` → 8) of the checkpoint.
        new: those of this run.

    Returns:
        Lines ``train.batch_size: 8 → 4`` for what must not change, and for what may.
    """
    refused: list[str] = []
    allowed: list[str] = []
    for section in ORDERED:
        before, now = _names(old, section), _names(new, section)
        if before != now and set(before) == set(now):
            order = f"{', '.join(before)} → {', '.join(now)}"
            refused.append(f"{section}: {order} (another order, which counts here)")
    old = {**_defaults(), **old}  # of settings that the version which wrote it did not have
    for key in sorted({*old, *new}):
        if old.get(key) == new.get(key) or (key not in new and old[key] == _defaults().get(key)):
            continue
        line = f"{key}: {old.get(key, 'not set')} → {new.get(key, 'not set')}"
        may = any(key == name or key.startswith(f"{name}.") for name in MAY_CHANGE)
        (allowed if may else refused).append(line)
    return refused, allowed


def _names(settings: Mapping[str, Any], section: str) -> list[str]:
    """What is in a section of flat ``settings``, in order, without what is taken out by null."""
    below = f"{section}."
    keys = [k for k, value in settings.items() if k.startswith(below) and value is not None]
    return list(dict.fromkeys(ORDERED[section](key.removeprefix(below)) for key in keys))


@functools.cache
def _defaults() -> dict[str, Any]:
    """Default values of the ``train`` section, flat, without what has no default."""
    required = {"duration": "1 steps", "optimizer": {"use": "torch.optim.SGD"}}
    section = TrainConfig.model_validate(required).model_dump(mode="json", exclude=set(required))
    return flat({"train": section})


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings with dotted keys, values as plain types (others as text)."""
    result: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            result |= flat(value, f"{prefix}{key}.")
        else:
            result[f"{prefix}{key}"] = _plain(value)
    return result


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
