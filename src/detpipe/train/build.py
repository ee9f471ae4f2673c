"""From the ``train`` section to a finished training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from detpipe.core.config import Spec
from detpipe.core.errors import ConfigError, NonFiniteLoss, one_message
from detpipe.train.announce import announce, summarise
from detpipe.train.checkpoint import CheckpointFolder
from detpipe.train.config import TrainConfig
from detpipe.train.contract import Hook, LoopContext, Phase, Stream, as_hook
from detpipe.train.groups import parameter_groups
from detpipe.train.launch import pick_device, seeded
from detpipe.train.loop import fit
from detpipe.train.optimizer import build_optimizer
from detpipe.train.plan import Plan
from detpipe.train.result import TrainResult, as_history, finished_before, result_of
from detpipe.train.resume import (
    content_to_resume,
    flat,
    make_room,
    markers,
    newest,
    reaches,
    restore_best,
)
from detpipe.train.schedule import Schedule, by_epoch, checked, with_warmup
from detpipe.train.update import GradientUpdate

if TYPE_CHECKING:
    pass

logger = logging.getLogger(__name__)

Evaluate = Callable[[nn.Module], Mapping[str, float]]
Rows = Callable[[], list[dict[str, Any]]]

RECORD = Spec(use="detpipe.hooks.record.Record")
HISTORY = Spec(use="detpipe.hooks.writers.Json")


def train_detector(
    model: nn.Module,
    stream: Stream,
    *,
    config: TrainConfig,
    folder: Path,
    classes: Sequence[str],
    evaluate: Evaluate | None = None,
    run_config: Mapping[str, Any] | None = None,
) -> TrainResult:
    """Trains ``model`` as ``config`` says; see :func:`detpipe.train.loop.fit` for the loop itself.

    Args:
        model: a :class:`~detpipe.core.types.Detector`; it is changed.
        stream: endless batches of ``config.batch_size`` images.
        config: the ``train`` section.
        folder: for checkpoints and metrics.
        classes: names of the labels 1..C, kept in each checkpoint.
        evaluate: model → metrics, for evaluation during training; None when there is no such set.
        run_config: all settings of the run, nested or flat, kept in each checkpoint; a resume
            with others is refused.

    Raises:
        ConfigError: the settings do not fit the data, the machine, or the run to resume.
        CheckpointError: there is a checkpoint to resume from, and it cannot be read or does not
            belong to this run.
        NonFiniteLoss: a loss became NaN or infinite, and ``non_finite`` does not help.
    """
    plan = Plan.of(config, images_per_epoch=stream.images_per_epoch)
    device = pick_device(config.device)
    run = _Run(config, plan, model, stream, folder, evaluate, perf_counter())
    built = run.hooks()  # a mistake in their settings shows before anything is touched
    header = {"config": flat(run_config or {}), "classes": list(classes)}
    checkpoints = CheckpointFolder(folder)
    content = content_to_resume(checkpoints, header) if config.resume else None
    if content is not None:
        best = markers(config, built[0])
        restore_best(checkpoints, content, hooks=best, needed=config.publish == "best")
    if content is not None and checkpoints.finished and reaches(content, plan):
        return finished_before(checkpoints, content, config, as_history(built[1]()))

    model.to(device)
    if config.channels_last:
        model.to(memory_format=torch.channels_last)
    update = build_update(config, model, plan=plan, device=device)
    announce(config, plan, update, model, device=device, folder=folder, content=content)
    started = perf_counter()
    with seeded(config.seed):
        ctx, written = run.fit(update, built=built, device=device, header=header, content=content)
    seconds = perf_counter() - started
    result = result_of(ctx, checkpoints, config, as_history(written()))
    summarise(ctx, checkpoints, config, result, seconds=seconds)
    return result


@dataclass(frozen=True)
class _Run:
    """What stays the same when a run goes back to a checkpoint."""

    config: TrainConfig
    plan: Plan
    model: nn.Module
    stream: Stream
    folder: Path
    evaluate: Evaluate | None
    started: float

    def hooks(self) -> tuple[dict[str, Hook], Rows]:
        """All hooks, and how to read back what is recorded."""
        record, written = build_record(self.config, folder=self.folder, plan=self.plan)
        hooks = build_hooks(
            self.config,
            folder=self.folder,
            evaluate=self.evaluate,
            stream=self.stream,
            model=self.model,
            started=self.started,
        )
        return {"(room)": _Room(CheckpointFolder(self.folder)), **hooks, "record": record}, written

    def fit(
        self,
        update: GradientUpdate,
        *,
        built: tuple[dict[str, Hook], Rows],
        device: torch.device,
        header: Mapping[str, Any],
        content: Mapping[str, Any] | None,
    ) -> tuple[LoopContext, Rows]:
        """:func:`~detpipe.train.loop.fit`, again from the newest checkpoint where that is asked."""
        choice = self.config.non_finite
        reloads = content["state"].get("reloads", 0) if content is not None else 0
        hooks, written = built
        while True:
            try:
                ctx = fit(
                    self.model,
                    self.stream,
                    update,
                    total_steps=self.plan.total_steps,
                    images_per_step=self.plan.images_per_step,
                    hooks=hooks,
                    device=device,
                    reference_batch=self.plan.reference_batch,
                    header=header,
                    resume=content,
                    skip_limit=choice.limit,
                )
            except NonFiniteLoss as error:
                if choice.action == "reload" and error.interruption is not None:
                    raise error.interruption from error
                if choice.action != "reload" or reloads >= choice.limit:
                    raise
                content = newest(CheckpointFolder(self.folder), self.config, hooks)
                if content is None:
                    raise
                reloads += 1
                content["state"] |= {"images_seen": error.images_seen, "reloads": reloads}
                logger.warning(
                    "%s The run goes back to step %d (%d of at most %d times) and on with the "
                    "images after these", error, content["state"]["step"], reloads, choice.limit,
                )  # fmt: skip
                hooks, written = self.hooks()
            else:
                return ctx, written


class _Room(Hook):
    """Makes the folder ready: before anything is written, after all that can still be refused."""

    phase = Phase.RECORD

    def __init__(self, checkpoints: CheckpointFolder) -> None:
        self._checkpoints = checkpoints

    def on_start(self, ctx: LoopContext) -> None:
        """A new run gets an empty folder; one that goes on loses what is newer than its start."""
        if ctx.resumes:
            self._checkpoints.forget_after(ctx.state.step)
        else:
            make_room(self._checkpoints)


def build_update(
    config: TrainConfig, model: nn.Module, *, plan: Plan, device: torch.device
) -> GradientUpdate:
    """Optimiser, schedule and gradient handling as ``config`` says.

    Raises:
        ConfigError: nothing is left to train, or the groups do not fit model and optimiser.
    """
    if not any(p.requires_grad for p in model.parameters()):
        raise ConfigError("every parameter of the model is frozen: there is nothing to train")
    groups = parameter_groups(model, config.groups, optimizer=config.optimizer)
    optimizer = build_optimizer(config.optimizer, groups, device=device)
    for group in optimizer.param_groups:
        group["lr"] *= plan.lr_scale
    return GradientUpdate(
        optimizer,
        schedule=build_schedule(config, plan=plan),
        accumulate=config.accumulate,
        clip=config.clip,
        precision=config.precision,
        device=device.type,
        skips=model if config.non_finite.action == "skip" else None,
    )


def build_schedule(config: TrainConfig, *, plan: Plan) -> Schedule:
    """``train.schedule`` times ``train.warmup``."""
    schedule = checked(
        config.schedule.partial(args=1, to_progress=plan.to_progress), total_steps=plan.total_steps
    )
    if config.schedule_by == "epoch":
        schedule = by_epoch(
            schedule,
            steps_per_epoch=plan.images_per_epoch / plan.images_per_step,
            total_steps=plan.total_steps,
        )
    return with_warmup(
        schedule,
        until=plan.warmup_steps / plan.total_steps,
        shape=config.warmup.shape,
        factor=config.warmup.factor,
    )


def build_hooks(
    config: TrainConfig,
    *,
    folder: Path,
    evaluate: Evaluate | None = None,
    stream: Stream | None = None,
    model: nn.Module | None = None,
    started: float | None = None,
) -> dict[str, Hook]:
    """``train.hooks``, by name.

    Raises:
        ConfigError: one of them cannot be built, or is no hook.
    """
    hooks, mistakes = {}, []
    for name, spec in config.hooks.items():
        if spec is None:
            continue
        try:
            hook = spec.build(
                folder=folder,
                evaluate=evaluate,
                publish=config.publish,
                stream=stream,
                model=model,
                started=started,
            )
            hooks[name] = as_hook(hook)
        except ConfigError as error:
            mistakes.append(f"train.hooks.{name}: {error}")
    if mistakes:
        raise ConfigError(one_message("these hooks cannot be used:", mistakes))
    return hooks


def build_record(config: TrainConfig, *, folder: Path, plan: Plan) -> tuple[Hook, Rows]:
    """``train.writers`` in a hook, and how to read back what was written.

    There is always a writer that can be read: the history is a result of training.
    """
    specs = {name: spec for name, spec in config.writers.items() if spec is not None}
    if all(spec.use != HISTORY.use for spec in specs.values()):
        specs["history"] = HISTORY
    writers = {
        name: spec.build(folder=folder, total_steps=plan.total_steps)
        for name, spec in specs.items()
    }
    for name, writer in writers.items():
        if lacking := [m for m in ("open", "write", "close") if not hasattr(writer, m)]:
            raise ConfigError(
                f"train.writers.{name}: a {type(writer).__name__} is no writer: it lacks "
                f"{', '.join(lacking)} (detpipe.hooks.record.Writer has them)"
            )
    rows = next(writers[name].rows for name, spec in specs.items() if spec.use == HISTORY.use)
    return RECORD.build(writers, every=config.log_every), rows
