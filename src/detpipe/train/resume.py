"""Whether a run goes on from what is in its folder, and what happens to that otherwise."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from detpipe.core.errors import CheckpointError, one_message
from detpipe.train.checkpoint import CheckpointFolder
from detpipe.train.config import TrainConfig
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
    """
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
            "rename it back and set train.resume to true",
            checkpoints.path, entries[-1].step, checkpoints.put_aside(),
        )  # fmt: skip
    elif checkpoints.damaged():
        logger.warning(
            "'%s' held only damaged checkpoints: it is now '%s'",
            checkpoints.path, checkpoints.put_aside(),
        )  # fmt: skip
    else:
        checkpoints.clear()


def restore_best(
    checkpoints: CheckpointFolder,
    content: Mapping[str, Any],
    *,
    hooks: Sequence[str],
    needed: bool,
) -> None:
    """Marks the best checkpoint again if the index does not say which it is.

    Args:
        checkpoints: the run's.
        content: the checkpoint to go on from; the hook that marked the best remembers its step.
        hooks: names of such hooks.
        needed: whether the best weights are to be published.

    Raises:
        CheckpointError: it is needed, the index was lost, and the best checkpoint is not there.
    """
    entries = checkpoints.entries()
    if any(entry.best for entry in entries):
        return
    states = [content["hooks"][name] for name in hooks if name in content["hooks"]]
    remembered = [state for state in states if state.get("best") is not None]
    for state in remembered:
        if checkpoints.mark_best(state["best_step"], state["best"]):
            logger.warning(
                "the index of '%s' did not say which checkpoint is the best: step %d is marked "
                "again, as its hook remembers it", checkpoints.path, state["best_step"],
            )  # fmt: skip
            return
    if needed and remembered and any(entry.crc is None for entry in entries):
        step = remembered[0]["best_step"]
        raise CheckpointError(
            f"the best weights cannot be published: the index of '{checkpoints.path}' was lost, "
            f"and '{checkpoints.file(step).name}', which was the best, is not there. Put it back, "
            f"set train.publish to final, or set train.resume to false for a new run"
        )


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
    old = {**_defaults(), **old}  # of settings that the version which wrote it did not have
    for key in sorted({*old, *new}):
        if old.get(key) == new.get(key) or (key not in new and old[key] == _defaults().get(key)):
            continue
        line = f"{key}: {old.get(key, 'not set')} → {new.get(key, 'not set')}"
        may = any(key == name or key.startswith(f"{name}.") for name in MAY_CHANGE)
        (allowed if may else refused).append(line)
    return refused, allowed


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
