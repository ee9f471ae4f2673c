"""What the log says before and after training."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn

from detpipe.train.checkpoint import CheckpointFolder
from detpipe.train.config import BEST, TrainConfig
from detpipe.train.contract import LoopContext
from detpipe.train.groups import describe
from detpipe.train.plan import Plan
from detpipe.train.result import TrainResult
from detpipe.train.update import GradientUpdate

logger = logging.getLogger(__name__)


def announce(
    config: TrainConfig,
    plan: Plan,
    update: GradientUpdate,
    model: nn.Module,
    *,
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
        "%s with %d threads; %s",
        f"resuming at step {start}:" if start else "training:",
        plan.images_per_epoch, plan.total_steps, epochs, config.batch_size, config.accumulate,
        f"{rates[0]:g}" if len(rates) == 1 else f"{rates[0]:g} to {rates[-1]:g} by group",
        config.precision, device, torch.get_num_threads(),
        "no file is kept" if config.rehearsal else f"files go to '{folder}'",
    )  # fmt: skip
    logger.info("%s", _of_the_images(config))
    logger.info("%s", _of_the_model(model))
    if len(update.optimizer.param_groups) > 1:
        logger.info("%s", describe(update.optimizer.param_groups))
    logger.info(
        "seed %d: %s", config.seed,
        "on a GPU some operators (RoIAlign's backward among them) add in no fixed order: another "
        "run with this seed gives slightly other numbers"
        if device.type != "cpu"
        else "another run on this machine gives the same numbers, with as many threads",
    )  # fmt: skip
    if plan.lr_scale != 1:
        logger.info(
            "the settings were written for %s images a step: the learning rate is multiplied by "
            "%g, steps cover as many images as they would have",
            plan.reference_batch, plan.lr_scale,
        )  # fmt: skip
    if plan.warmup_steps >= plan.total_steps and not config.rehearsal:
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


def summarise(
    ctx: LoopContext,
    checkpoints: CheckpointFolder,
    config: TrainConfig,
    result: TrainResult,
    *,
    seconds: float,
) -> None:
    """Says how training ended: length, the last and the best numbers, where everything lies.

    Args:
        ctx: of the run.
        checkpoints: the run's.
        config: the run's.
        result: what is handed on.
        seconds: it took, in this process.
    """
    lines = [
        f"training {'is interrupted' if ctx.resumable else 'is done'}: step {ctx.state.step} of "
        f"{ctx.total_steps}, epoch {ctx.epoch:.2f}, in {timedelta(seconds=round(seconds))}"
    ]
    if ctx.stop_reason:
        lines.append(f"ended early: {ctx.stop_reason}")
    loss = ctx.scalars.latest("train/loss")
    lines.append(f"loss {loss:.4g} at the last step")
    if ctx.state.skipped or ctx.state.reloads:
        lines.append(f"not finite: {ctx.state.skipped} steps left out, {ctx.state.reloads} reloads")
    markers = (spec for spec in config.hooks.values() if spec and spec.use == BEST)
    best = next((spec.options.get("metric", "val/bbox/AP") for spec in markers), "metric")
    marked = [entry for entry in checkpoints.entries() if entry.best and entry.metric is not None]
    for entry in marked:
        lines.append(f"best {best} {entry.metric:.4g} at step {entry.step}")
    which = {"ema": "EMA", "model": "raw"}[result.source] if ctx.average is not None else ""
    lines.append(f"published: the {which} weights of step {result.step}".replace("  ", " "))
    steps = ", ".join(str(entry.step) for entry in checkpoints.entries())
    if config.rehearsal:
        lines.append("nothing of it is kept")
    elif steps:
        lines.append(f"checkpoints of step {steps} in '{checkpoints.path}'")
    else:
        lines.append(f"no checkpoint was kept in '{checkpoints.path}'")
    logger.info("%s", "\n    ".join(lines))


def _of_the_images(config: TrainConfig) -> str:
    """Order and transforms, by the names that the settings give them."""
    transforms = [
        name if spec.until is None else f"{name} until {spec.until}"
        for name, spec in config.augment.items()
        if spec
    ]
    order = config.sampler.use.rpartition(".")[2]
    return f"images: order {order}; augmentation: {', '.join(transforms) or 'none'}"


def _of_the_model(model: nn.Module) -> str:
    parameters = dict(model.named_parameters())
    total = sum(p.numel() for p in parameters.values())
    frozen = [p for p in parameters.values() if not p.requires_grad]
    share = sum(p.numel() for p in frozen)
    text = f"model: {total / 1e6:.2f} million parameters"
    if frozen:
        text += f", of which {share / 1e6:.2f} million ({len(frozen)} tensors) are frozen"
    return text
