"""From the ``train`` section to a finished training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn, optim

from detpipe.core.config import Spec
from detpipe.core.errors import ConfigError
from detpipe.train.checkpoint import CheckpointFolder, published, to_cpu
from detpipe.train.config import TrainConfig
from detpipe.train.contract import Hook, LoopContext, Stream, as_hook
from detpipe.train.launch import pick_device, seeded, unwrapped
from detpipe.train.loop import fit
from detpipe.train.plan import Plan
from detpipe.train.resume import content_to_resume, flat, make_room, reaches, restore_best
from detpipe.train.schedule import Schedule, with_warmup
from detpipe.train.update import GradientUpdate

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)

Evaluate = Callable[[nn.Module], Mapping[str, float]]
Rows = Callable[[], list[dict[str, Any]]]

# Hooks are above this package: it knows them as everybody's hooks are known, by their names.
RECORD = Spec(use="detpipe.hooks.record.Record")
HISTORY = Spec(use="detpipe.hooks.writers.Json")
BEST = "detpipe.hooks.decide.Best"


@dataclass(frozen=True)
class TrainResult:
    """What training hands on.

    Attributes:
        weights: the published ones, on the CPU.
        step: the optimiser update they are from.
        history: one row a written step: ``step``, then one column a scalar; NaN where a row has
            no value.
    """

    weights: dict[str, Tensor]
    step: int
    history: pd.DataFrame


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
        NonFiniteLoss: a loss became NaN or infinite.
    """
    plan = Plan.of(config, images_per_epoch=stream.images_per_epoch)
    device = pick_device(config.device)
    record, written = build_record(config, folder=folder, plan=plan)
    header = {"config": flat(run_config or {}), "classes": list(classes)}
    checkpoints = CheckpointFolder(folder)
    content = content_to_resume(checkpoints, header) if config.resume else None
    if content is not None:
        markers = [name for name, spec in config.hooks.items() if spec and spec.use == BEST]
        restore_best(checkpoints, content, hooks=markers, needed=config.publish == "best")
    if content is not None and checkpoints.finished and reaches(content, plan):
        return _finished_before(checkpoints, content, config, as_history(written()))

    model.to(device)
    if config.channels_last:
        model.to(memory_format=torch.channels_last)
    update = build_update(config, model, plan=plan, device=device)
    hooks = {**build_hooks(config, folder=folder, evaluate=evaluate), "record": record}
    # All is built: no mistake in the settings can cost what is in the folder any more.
    if content is None:
        make_room(checkpoints)
    else:
        checkpoints.forget_after(content["state"]["step"])
    _announce(config, plan, update, device, folder, content)
    started = perf_counter()
    with seeded(config.seed):
        ctx = fit(
            model,
            stream,
            update,
            total_steps=plan.total_steps,
            images_per_step=plan.images_per_step,
            hooks=hooks,
            device=device,
            reference_batch=plan.reference_batch,
            header=header,
            resume=content,
        )
    logger.info(
        "training is done: step %d of %d, epoch %.2f, in %s%s",
        ctx.state.step, plan.total_steps, ctx.epoch,
        timedelta(seconds=round(perf_counter() - started)),
        f"; ended early: {ctx.stop_reason}" if ctx.stop_reason else "",
    )  # fmt: skip
    weights, step = _published_weights(ctx, checkpoints, config)
    return TrainResult(weights, step, as_history(written()))


def build_update(
    config: TrainConfig, model: nn.Module, *, plan: Plan, device: torch.device
) -> GradientUpdate:
    """Optimiser, schedule and gradient handling as ``config`` says.

    Raises:
        ConfigError: nothing is left to train.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ConfigError("every parameter of the model is frozen: there is nothing to train")
    fused = {"fused": True} if device.type in ("cpu", "cuda") else {}  # a third of the time
    if "foreach" in config.optimizer.options:
        fused = {}
    optimizer: optim.Optimizer = config.optimizer.build(parameters, **fused)
    for group in optimizer.param_groups:
        group["lr"] *= plan.lr_scale
    return GradientUpdate(
        optimizer,
        schedule=build_schedule(config, plan=plan),
        accumulate=config.accumulate,
        clip=config.clip,
        precision=config.precision,
        device=device.type,
    )


def build_schedule(config: TrainConfig, *, plan: Plan) -> Schedule:
    """``train.schedule`` times ``train.warmup``."""
    return with_warmup(
        config.schedule.partial(args=1, to_progress=plan.to_progress),
        until=plan.warmup_steps / plan.total_steps,
        shape=config.warmup.shape,
        factor=config.warmup.factor,
    )


def build_hooks(
    config: TrainConfig, *, folder: Path, evaluate: Evaluate | None = None
) -> dict[str, Hook]:
    """``train.hooks``, by name.

    Raises:
        ConfigError: one of them cannot be built, or is no hook.
    """
    return {
        name: as_hook(spec.build(folder=folder, evaluate=evaluate, publish=config.publish))
        for name, spec in config.hooks.items()
        if spec is not None
    }


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
    rows = next(writers[name].rows for name, spec in specs.items() if spec.use == HISTORY.use)
    return RECORD.build(writers, every=config.log_every), rows


def as_history(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Written rows as a table, those of one step as one; ordered by step."""
    import pandas as pd

    by_step: dict[int, dict[str, Any]] = {}
    for row in rows:
        by_step.setdefault(row["step"], {}).update(row)
    frame = pd.DataFrame([by_step[step] for step in sorted(by_step)] or {"step": []})
    return frame.astype({c: "float64" for c in frame.columns if c != "step"})


def _finished_before(
    checkpoints: CheckpointFolder,
    content: Mapping[str, Any],
    config: TrainConfig,
    history: pd.DataFrame,
) -> TrainResult:
    step = content["state"]["step"]
    logger.info(
        "the run in '%s' is already finished (step %d): nothing is changed. Give a longer "
        "train.duration to go on, or set train.resume to false for a new run",
        checkpoints.path, step,
    )  # fmt: skip
    source = (_best(checkpoints) if config.publish == "best" else None) or content
    return TrainResult(published(source), source["state"]["step"], history)


def _published_weights(
    ctx: LoopContext, checkpoints: CheckpointFolder, config: TrainConfig
) -> tuple[dict[str, Tensor], int]:
    best = _best(checkpoints) if config.publish == "best" else None
    if best is not None:
        return published(best), best["state"]["step"]
    return to_cpu(unwrapped(ctx.eval_model).state_dict()), ctx.state.step


def _best(checkpoints: CheckpointFolder) -> dict[str, Any] | None:
    """The best checkpoint's content; None, and a warning, if there is none."""
    best = checkpoints.best()
    if best is None:
        logger.warning(
            "no step was marked as the best (was anything evaluated, and had the metric a value?): "
            "the final weights are taken"
        )
    return best


def _announce(
    config: TrainConfig,
    plan: Plan,
    update: GradientUpdate,
    device: torch.device,
    folder: Path,
    content: Mapping[str, Any] | None,
) -> None:
    """Says what is going to happen, and what in it is odd."""
    epochs = plan.total_steps * plan.images_per_step / plan.images_per_epoch
    start = content["state"]["step"] if content is not None else 0
    rates = sorted({group["lr"] for group in update.optimizer.param_groups})
    logger.info(
        "%s %d training images, %d steps (%.3g epochs) of %d × %d images; learning rate %s; %s on "
        "%s with %d threads; files go to '%s'",
        f"resuming at step {start}:" if start else "training:",
        plan.images_per_epoch, plan.total_steps, epochs, config.batch_size, config.accumulate,
        ", ".join(f"{lr:g}" for lr in rates), config.precision, device, torch.get_num_threads(),
        folder,
    )  # fmt: skip
    if plan.lr_scale != 1:
        logger.info(
            "the settings were written for %s images a step: the learning rate is multiplied by "
            "%g, steps cover as many images as they would have",
            plan.reference_batch, plan.lr_scale,
        )  # fmt: skip
    if plan.warmup_steps >= plan.total_steps:
        logger.warning(
            "the warm-up (%d steps) is not over before the run (%d steps) ends: the learning rate "
            "never gets to its full value; shorten train.warmup.duration",
            plan.warmup_steps, plan.total_steps,
        )  # fmt: skip
    if plan.images_per_step > plan.images_per_epoch:
        logger.warning(
            "one step takes %d images, more than the %d training images",
            plan.images_per_step, plan.images_per_epoch,
        )  # fmt: skip
