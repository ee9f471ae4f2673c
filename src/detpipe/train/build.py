"""From the ``train`` section to a finished training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn, optim

from detpipe.core.config import Duration
from detpipe.core.errors import CheckpointError, ConfigError, one_message
from detpipe.train.checkpoint import CheckpointFolder, describe_difference, flat, published, to_cpu
from detpipe.train.config import TrainConfig
from detpipe.train.contract import Hook, LoopContext, Stream, whole_steps
from detpipe.train.launch import pick_device, seeded
from detpipe.train.loop import fit
from detpipe.train.schedule import Schedule, with_warmup
from detpipe.train.update import GradientUpdate

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)

Evaluate = Callable[[nn.Module], Mapping[str, float]]


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


@dataclass(frozen=True)
class Plan:
    """The run in numbers.

    Attributes:
        total_steps: optimiser updates.
        warmup_steps: of them.
        images_per_step: batch size × accumulation.
        images_per_epoch: training images.
        reference_batch: what the settings were written for; None for this batch.
    """

    total_steps: int
    warmup_steps: int
    images_per_step: int
    images_per_epoch: int
    reference_batch: int | None

    @classmethod
    def of(cls, config: TrainConfig, *, images_per_epoch: int) -> Plan:
        """The plan of ``config``.

        Raises:
            ConfigError: the batch is larger than the data set, or the run has no step.
        """
        images_per_step = config.batch_size * config.accumulate
        units = partial(
            whole_steps,
            images_per_step=images_per_step,
            images_per_epoch=images_per_epoch,
            reference_batch=config.reference_batch,
        )
        mistakes = []
        if config.batch_size > images_per_epoch:
            mistakes.append(
                f"train.batch_size is {config.batch_size}, but there are only "
                f"{images_per_epoch} training images; set it to {images_per_epoch} or less"
            )
        if not units(config.duration):
            mistakes.append(f"train.duration is {config.duration}; it must be above 0")
        if mistakes:
            raise ConfigError(one_message("the run cannot be planned:", mistakes))
        return cls(
            total_steps=units(config.duration),
            warmup_steps=units(config.warmup.duration),
            images_per_step=images_per_step,
            images_per_epoch=images_per_epoch,
            reference_batch=config.reference_batch,
        )

    @property
    def lr_scale(self) -> float:
        """What the learning rate is multiplied by, because the batch is another."""
        return self.images_per_step / (self.reference_batch or self.images_per_step)

    def to_progress(self, duration: Duration) -> float:
        """Where in the run (0..1) ``duration`` has passed."""
        steps = whole_steps(
            duration,
            images_per_step=self.images_per_step,
            images_per_epoch=self.images_per_epoch,
            reference_batch=self.reference_batch,
        )
        return steps / self.total_steps


def train_detector(
    model: nn.Module,
    stream: Stream,
    *,
    config: TrainConfig,
    folder: Path,
    classes: Sequence[str],
    evaluate: Evaluate | None = None,
    run_config: Mapping[str, Any] | None = None,
    tracker: Any = None,
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
        tracker: given to writers that ask for it.

    Raises:
        ConfigError: the settings do not fit the data, the machine, or the run to resume.
        CheckpointError: there is a checkpoint to resume from, and it cannot be read or does not
            belong to this run.
        NonFiniteLoss: a loss became NaN or infinite.
    """
    plan = Plan.of(config, images_per_epoch=stream.images_per_epoch)
    device = pick_device(config.device)
    record, history = build_record(config, folder=folder, plan=plan, tracker=tracker)
    header = {"config": flat(run_config or {}), "classes": list(classes)}
    checkpoints = CheckpointFolder(folder)
    content = _content_to_resume(checkpoints, config, header) if config.resume else None
    if content is not None and checkpoints.finished and _reaches(content, plan):
        return _finished_before(checkpoints, content, config, read_history(history))
    if content is None:
        _make_room(checkpoints)
    else:
        checkpoints.forget_after(content["state"]["step"])

    model.to(device)
    if config.channels_last:
        model.to(memory_format=torch.channels_last)
    update = build_update(config, model, plan=plan, device=device)
    hooks = {**build_hooks(config, folder=folder, evaluate=evaluate), "record": record}
    _announce(config, plan, update, device, folder, content)
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
        "training is done: step %d of %d, epoch %.2f%s",
        ctx.state.step, plan.total_steps, ctx.epoch,
        f"; ended early: {ctx.stop_reason}" if ctx.stop_reason else "",
    )  # fmt: skip
    weights, step = _published_weights(ctx, checkpoints, config)
    return TrainResult(weights, step, read_history(history))


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
    """``train.hooks``, by name."""
    return {
        name: spec.build(folder=folder, evaluate=evaluate, publish=config.publish)
        for name, spec in config.hooks.items()
        if spec is not None
    }


def build_record(
    config: TrainConfig, *, folder: Path, plan: Plan, tracker: Any = None
) -> tuple[Hook, Path]:
    """``train.writers`` in a hook, and the file that holds the history.

    The history is always written: it is a result of training, whatever writers there are.
    """
    from detpipe.hooks.record import Record
    from detpipe.hooks.writers import Json

    writers = {
        name: spec.build(folder=folder, tracker=tracker, total_steps=plan.total_steps)
        for name, spec in config.writers.items()
        if spec is not None
    }
    history = next((w for w in writers.values() if isinstance(w, Json)), None)
    if history is None:
        history = writers["history"] = Json(folder)
    return Record(writers, every=config.log_every), history.path


def read_history(path: Path) -> pd.DataFrame:
    """The rows of ``metrics.jsonl``, those of one step as one; ordered by step."""
    import pandas as pd

    from detpipe.hooks.writers import read_json_rows

    by_step: dict[int, dict[str, Any]] = {}
    for row in read_json_rows(path):
        by_step.setdefault(row["step"], {}).update(row)
    frame = pd.DataFrame([by_step[step] for step in sorted(by_step)] or {"step": []})
    return frame.astype({c: "float64" for c in frame.columns if c != "step"})


def _content_to_resume(
    checkpoints: CheckpointFolder, config: TrainConfig, header: Mapping[str, Any]
) -> dict[str, Any] | None:
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
    for line in allowed:
        logger.info("resumed with another %s", line)
    return content


def _reaches(content: Mapping[str, Any], plan: Plan) -> bool:
    """Whether a run that ended as ``content`` says (perhaps early) had no more to do than this."""
    state = content["state"]
    return plan.total_steps <= max(int(state["step"]), int(state["total_steps"]))


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
    source = content
    if config.publish == "best":
        source = checkpoints.best() or content
    return TrainResult(published(source), source["state"]["step"], history)


def _make_room(checkpoints: CheckpointFolder) -> None:
    """A new run begins in an empty folder; an unfinished one in it is kept, under another name."""
    if checkpoints.finished or not checkpoints.entries():
        checkpoints.clear()
        return
    step = checkpoints.entries()[-1].step
    aside = checkpoints.put_aside()
    logger.warning(
        "'%s' held an unfinished run (step %d): it is now '%s'. To go on with it instead, rename "
        "it back and set train.resume to true",
        checkpoints.path, step, aside,
    )  # fmt: skip


def _published_weights(
    ctx: LoopContext, checkpoints: CheckpointFolder, config: TrainConfig
) -> tuple[dict[str, Tensor], int]:
    if config.publish == "best":
        best = checkpoints.best()
        if best is not None:
            return published(best), best["state"]["step"]
        logger.warning(
            "no step was marked as the best (was anything evaluated?): the final weights are taken"
        )
    from detpipe.train.launch import unwrapped

    return to_cpu(unwrapped(ctx.eval_model).state_dict()), ctx.state.step


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
