"""The training loop, to be read from top to bottom."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from detpipe.core.errors import CheckpointError, DataError, NonFiniteLoss, NonFiniteWeights
from detpipe.core.types import Batch
from detpipe.train.content import FORMAT, to_cpu
from detpipe.train.contract import Hook, LoopContext, Stream, TrainState, as_hook
from detpipe.train.launch import graceful_interrupts, rng_state, set_rng_state, unwrapped
from detpipe.train.scalars import Scalars
from detpipe.train.update import Update

logger = logging.getLogger(__name__)


def fit(  # noqa: PLR0912, PLR0915 - the one function to be read from top to bottom
    model: nn.Module,
    stream: Stream,
    update: Update,
    *,
    total_steps: int,
    images_per_step: int,
    hooks: Mapping[str, Hook] | None = None,
    device: torch.device | str = "cpu",
    reference_batch: int | None = None,
    header: Mapping[str, Any] | None = None,
    resume: Mapping[str, Any] | None = None,
    skip_limit: int = 0,
) -> LoopContext:
    """Trains ``model`` until ``total_steps`` updates are done or a hook asks to stop.

    Nothing in it waits for a GPU: losses are kept as they are and looked at when something needs
    them (a log row, an evaluation, a checkpoint, the end).

    Args:
        model: called with a batch it gives named losses (a
            :class:`~detpipe.core.types.Detector`); it is already on ``device``.
        stream: endless batches, addressed by position.
        update: turns losses into new weights, see :class:`~detpipe.train.update.GradientUpdate`.
        total_steps: optimiser updates of the whole run, those before a resume included.
        images_per_step: batch size times accumulation.
        hooks: name → hook; they run by phase. A checkpoint keeps their state under these names.
        device: where batches are moved to.
        reference_batch: the batch that durations in steps were written for.
        header: further content of each checkpoint (plain types), such as the configuration.
        resume: a checkpoint's content to go on from.
        skip_limit: how many updates of the run ``update`` may leave out because they were not
            finite; one more raises.

    Returns:
        The context, whose ``eval_model`` is the result.

    Raises:
        NonFiniteLoss: a loss, or a weight, became NaN or infinite; no checkpoint holds what came
            of it.
        DataError: the stream ended before the run.
        KeyboardInterrupt, SystemExit: after Ctrl-C or SIGTERM, when the current step is done and
            its checkpoint is written.
    """
    ctx = LoopContext(
        state=TrainState(),
        total_steps=total_steps,
        images_per_step=images_per_step,
        images_per_epoch=stream.images_per_epoch,
        model=model,
        eval_model=model,
        optimizer=update.optimizer,
        scalars=Scalars(),
        reference_batch=reference_batch,
    )
    state, scalars = ctx.state, ctx.scalars
    hooks = {name: as_hook(hook) for name, hook in (hooks or {}).items()}
    hooks = dict(sorted(hooks.items(), key=lambda item: item[1].phase))
    ctx.take_snapshot = lambda: _snapshot(ctx, update, hooks, header or {})
    on_start, on_gradients, on_step, on_end = (
        _overridden(hooks, moment) for moment in ("on_start", "on_gradients", "on_step", "on_end")
    )

    def gradients_ready() -> None:
        for call in on_gradients:
            call(ctx)

    with graceful_interrupts(saves=any(hook.saves for hook in hooks.values())) as interruption:
        ctx.breakable = interruption.breaks
        batches: Iterator[Batch] = iter(())
        try:
            if resume is not None:
                _restore(ctx, update, hooks, resume)
            model.train()
            for call in on_start:
                call(ctx)
            if ctx.interruption is not None:
                raise ctx.interruption
            if resume is not None:
                set_rng_state(resume["rng"])
            batches = stream.batches(state.images_seen)
            while not ctx.is_last:
                # fetch
                started = perf_counter()
                group = list(islice(batches, update.accumulate))
                ctx.data_seconds = perf_counter() - started
                if not group:
                    raise DataError(f"the stream ended at step {state.step} of {total_steps}")

                # forward and backward
                ctx.marks.clear()
                scalars.step = state.step + 1
                update.begin(ctx.progress)
                passes = []
                for number, read in enumerate(group, 1):
                    batch = read.to(device)
                    with update.synchronise(model, last=number == len(group)):
                        with update.autocast():
                            losses = model(batch)
                        values = _stacked(losses)
                        update.backward(values.sum(), of=len(group))
                    passes.append((tuple(losses), values.detach(), batch.paths))
                    state.images_seen += len(batch)

                # update
                ctx.batch = batch
                ctx.applied = update.finish(gradients_ready)
                if ctx.applied:
                    for one in passes:
                        scalars.put_losses(*one)
                else:
                    _left_out(ctx, passes, skip_limit)
                state.step += 1

                # hooks
                ctx.interruption = interruption.error
                scalars.put("train/lr", update.optimizer.param_groups[0]["lr"], how="last")
                for call in on_step:
                    call(ctx)
                if ctx.interruption is not None:
                    raise ctx.interruption
            scalars.read_losses()
            _check_finite(ctx, unwrapped(model).state_dict())
            for call in on_end:
                call(ctx)
        except BaseException as error:
            if isinstance(error, NonFiniteLoss):
                error.images_seen, error.interruption = state.images_seen, interruption.error
            _tell_hooks(ctx, hooks, error)
            raise
        finally:
            if isinstance(batches, Generator):
                batches.close()  # ends the processes that read
            ctx.take_snapshot = None
    if interruption.error is not None:  # it came too late to matter to the run
        raise interruption.error
    return ctx


def _left_out(
    ctx: LoopContext, passes: Sequence[tuple[tuple[str, ...], Tensor, Sequence[str]]], limit: int
) -> None:
    """An update that was not finite: it is counted and said, its losses are in no mean."""
    _check_finite(ctx, unwrapped(ctx.model).state_dict())  # such weights would never get well
    names, values, _ = max(passes, key=lambda one: not one[1].isfinite().all())
    paths = [path for _, _, batch in passes for path in batch]
    error = NonFiniteLoss(ctx.scalars.step, dict(zip(names, values.tolist(), strict=True)), paths)
    ctx.state.skipped += 1
    if ctx.state.skipped > limit:
        raise error
    logger.warning("the step is left out (%d of at most %d): %s", ctx.state.skipped, limit, error)
    ctx.scalars.put("train/skipped_steps", ctx.state.skipped, how="last")


def _stacked(losses: Mapping[str, Tensor]) -> Tensor:
    """``[number of losses]``, float32."""
    try:
        stacked = torch.stack([loss.float() for loss in losses.values()])
    except (RuntimeError, AttributeError):
        stacked = None
    if stacked is not None and stacked.ndim == 1:
        return stacked
    gave: object = type(losses).__name__
    if isinstance(losses, Mapping):
        gave = {n: list(getattr(loss, "shape", ["?"])) for n, loss in losses.items()} or "none"
    raise TypeError(f"the model must give one or more scalar losses by name, it gave {gave}")


def _overridden(
    hooks: Mapping[str, Hook], moment: str
) -> tuple[Callable[[LoopContext], None], ...]:
    """The hooks' methods for ``moment``, without those that would do nothing."""
    nothing = getattr(Hook, moment)
    methods = [getattr(hook, moment) for hook in hooks.values()]
    return tuple(m for m in methods if getattr(m, "__func__", None) is not nothing)


def _tell_hooks(ctx: LoopContext, hooks: Mapping[str, Hook], error: BaseException) -> None:
    """Every hook may release what it holds; one that fails in it hides neither error."""
    for name, hook in hooks.items():
        try:
            hook.on_error(ctx, error)
        except Exception:
            logger.exception("hook '%s' failed while the run was ending", name)


def _snapshot(
    ctx: LoopContext, update: Update, hooks: Mapping[str, Hook], header: Mapping[str, Any]
) -> dict[str, Any]:
    """The run as a checkpoint's content, copied, so that training may go on meanwhile."""
    ctx.scalars.read_losses()
    weights = unwrapped(ctx.model).state_dict()
    _check_finite(ctx, weights)
    content: dict[str, Any] = to_cpu(
        {
            **header,
            "format": FORMAT,
            "state": {**asdict(ctx.state), "total_steps": ctx.total_steps},
            "model": weights,
            "ema": ctx.average.state_dict() if ctx.average is not None else None,
            "published": "model" if ctx.eval_model is ctx.model else "ema",
            **update.state_dict(),
            "hooks": {name: hook.state_dict() for name, hook in hooks.items()},
            "scalars": ctx.scalars.state_dict(),
            "rng": rng_state(),
        }
    )
    return content


def _check_finite(ctx: LoopContext, weights: Mapping[str, Tensor]) -> None:
    """Gradients can overflow under finite losses; such weights must not be kept."""
    floats = {name: t for name, t in weights.items() if t.is_floating_point() and t.numel()}
    if not floats:
        return
    largest = torch.stack([t.abs().max().float() for t in floats.values()]).tolist()
    bad = {
        name: value for name, value in zip(floats, largest, strict=True) if not math.isfinite(value)
    }
    if bad:
        raise NonFiniteWeights(ctx.state.step, bad, ctx.batch.paths if ctx.batch else ())


def _restore(
    ctx: LoopContext, update: Update, hooks: Mapping[str, Hook], content: Mapping[str, Any]
) -> None:
    """Puts a checkpoint's content back to where :func:`_snapshot` took it."""
    try:
        unwrapped(ctx.model).load_state_dict(content["model"])
        update.load_state_dict(content)
    except (RuntimeError, ValueError) as error:
        raise CheckpointError(
            f"the checkpoint is of another model or optimiser: {error}"
        ) from error
    ctx.scalars.load_state_dict(content["scalars"])
    ctx.state.step = ctx.scalars.step = content["state"]["step"]
    ctx.state.images_seen = content["state"]["images_seen"]
    ctx.state.skipped = content["state"].get("skipped", 0)
    ctx.resumes = True
    ctx.raw_was_better = content.get("published") == "model"
    ctx.state.reloads = content["state"].get("reloads", 0)
    for name, hook in hooks.items():
        if name in content["hooks"]:
            hook.load_state_dict(content["hooks"][name])
        elif type(hook).load_state_dict is not Hook.load_state_dict:
            logger.warning("hook '%s' is new in this run: it starts without a memory", name)
