"""What the loop and its hooks agree on.

A hook is an object with a ``phase`` and any of the methods of :class:`Hook`; the loop calls only
those that are overridden. Hooks run by phase, and within a phase they do not depend on each
other. Durations, tensors and files are the hook's own business; the loop hands each call a
:class:`LoopContext` and nothing else.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from enum import IntEnum
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from torch import nn, optim

from detpipe.core.config import Duration
from detpipe.core.errors import ConfigError
from detpipe.core.types import Batch

if TYPE_CHECKING:
    from detpipe.train.scalars import Scalars


class Phase(IntEnum):
    """When a hook runs within a step; the order is the order of the numbers."""

    UPDATE = 10
    """Changes the weights or what goes with them (EMA, unfreezing)."""
    CALIBRATE = 15
    """Adapts the model that is evaluated to its weights (PreciseBN)."""
    MEASURE = 20
    """Produces scalars (timer, memory, evaluation)."""
    DECIDE = 30
    """Reads scalars; sets marks or asks to stop (best, early stop)."""
    RECORD = 40
    """Writes scalars out."""
    SAVE = 50
    """Writes weights; acts on marks."""


class Stream(Protocol):
    """Where training batches come from."""

    @property
    def images_per_epoch(self) -> int:
        """Training images in one pass."""

    def batches(self, start: int) -> Iterator[Batch]:
        """Batches from the run's image number ``start`` on, as if all before had been read."""


@dataclass
class TrainState:
    """All the position there is; epoch and progress are derived from it."""

    step: int = 0
    """Optimiser updates done."""
    images_seen: int = 0
    """Training images taken from the stream: the stream's address."""
    skipped: int = 0
    """Updates left out because their losses or gradients were not finite."""
    reloads: int = 0
    """How often the run went back to a checkpoint because of such losses."""


@dataclass
class LoopContext:
    """What a hook may see and do.

    Attributes:
        state: the position. In ``on_step`` it already counts the update just done.
        total_steps: where the run ends unless something stops it.
        images_per_step: images of one optimiser update (batch size × accumulation).
        images_per_epoch: training images in one pass.
        reference_batch: the batch that durations in steps were written for; None for this one.
        model: the module being trained.
        eval_model: the module to evaluate and publish (the same one, or its EMA).
        applied: whether this step changed the weights; False if it was left out.
        average: the EMA of ``model``, kept in checkpoints; None without.
        beside: whether both ``model`` and ``average`` are evaluated, and the better one becomes
            ``eval_model``.
        resumes: whether the run goes on from a checkpoint.
        raw_was_better: what the run to resume had chosen of the two.
        optimizer: the optimiser.
        scalars: this run's scalars; put new ones, read the latest ones.
        marks: what DECIDE hooks decided in this step; cleared by the loop before each step.
        batch: the last batch of the step.
        data_seconds: how long the step waited for its batches.
        aside_seconds: spent so far on what is not training, see :meth:`aside`.
        stop_reason: why the run will end after this step; empty while it goes on.
        resumable: whether a run that was asked to stop has more to do; see :meth:`stop`.
        interruption: what a signal asked to raise after this step; hooks only save what is
            needed to go on later as if nothing had happened.
        take_snapshot: set by the loop, see :meth:`snapshot`.
        breakable: set by the loop, see :meth:`aside`.
    """

    state: TrainState
    total_steps: int
    images_per_step: int
    images_per_epoch: int
    model: nn.Module
    eval_model: nn.Module
    optimizer: optim.Optimizer
    scalars: Scalars
    reference_batch: int | None = None
    applied: bool = True
    average: nn.Module | None = None
    beside: bool = False
    resumes: bool = False
    raw_was_better: bool = False
    marks: dict[str, Any] = field(default_factory=dict)
    batch: Batch | None = None
    data_seconds: float = 0.0
    aside_seconds: float = 0.0
    stop_reason: str = ""
    resumable: bool = False
    interruption: BaseException | None = None
    take_snapshot: Callable[[], dict[str, Any]] | None = None
    breakable: Callable[[], AbstractContextManager[None]] = nullcontext

    @property
    def progress(self) -> float:
        """0 at the start, 1 after the last step."""
        return self.state.step / self.total_steps

    @property
    def epoch(self) -> float:
        """Passes over the training images so far, fractional."""
        return self.state.images_seen / self.images_per_epoch

    @property
    def is_last(self) -> bool:
        """Whether no further step will follow: the end is reached or a stop was asked for."""
        return self.state.step >= self.total_steps or bool(self.stop_reason)

    def steps(self, duration: Duration) -> int:
        """``duration`` in whole steps of this run."""
        return whole_steps(
            duration,
            images_per_step=self.images_per_step,
            images_per_epoch=self.images_per_epoch,
            reference_batch=self.reference_batch,
        )

    def stop(self, reason: str, *, resumable: bool = False) -> None:
        """Ends the run after this step; every hook still gets its ``on_step`` and ``on_end``.

        Args:
            reason: for people.
            resumable: the run is not finished: ``train.resume`` goes on with it.
        """
        if not self.stop_reason:
            self.stop_reason, self.resumable = reason or "a hook asked for it", resumable

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Around long work that is not training, such as an evaluation.

        The step timer leaves it out, and Ctrl-C or SIGTERM breaks it off at once, as
        ``KeyboardInterrupt`` or ``SystemExit``.
        """
        started = perf_counter()
        try:
            with self.breakable():
                yield
        finally:
            self.aside_seconds += perf_counter() - started

    def snapshot(self) -> dict[str, Any]:
        """The whole state of the run as a checkpoint's content; tensors are copies.

        Raises:
            NonFiniteLoss: a loss not yet looked at is NaN or infinite: such weights are not saved.
        """
        if self.take_snapshot is None:
            raise RuntimeError("snapshot() is available only inside a running loop")
        return self.take_snapshot()


class Hook:
    """Base of hooks: every method does nothing, and the loop calls only overridden ones."""

    phase: Phase = Phase.MEASURE
    saves: bool = False
    """Whether it saves a checkpoint when a signal ends the run (``ctx.interruption``)."""

    def on_start(self, ctx: LoopContext) -> None:
        """Before the first step, after a resumed state is in place."""

    def on_gradients(self, ctx: LoopContext) -> None:
        """After backward of a whole update (unscaled), before clipping and the optimiser."""

    def on_step(self, ctx: LoopContext) -> None:
        """After an optimiser update."""

    def on_end(self, ctx: LoopContext) -> None:
        """After the last step of a run that ended or was stopped in good order."""

    def on_error(self, ctx: LoopContext, error: BaseException) -> None:
        """When the loop dies of an exception, a signal or Ctrl-C; release what is held."""

    def state_dict(self) -> dict[str, Any]:
        """What must survive a resume: tensors and plain types only."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes back what :meth:`state_dict` gave."""


def whole_steps(
    duration: Duration,
    *,
    images_per_step: int,
    images_per_epoch: int,
    reference_batch: int | None = None,
) -> int:
    """``duration`` in optimiser updates; steps written for another batch cover equal images."""
    if duration.steps is not None and reference_batch is not None:
        duration = Duration(images=duration.steps * reference_batch)
    return duration.to_steps(images_per_step=images_per_step, images_per_epoch=images_per_epoch)


MOMENTS = (
    "on_start", "on_gradients", "on_step", "on_end", "on_error", "state_dict", "load_state_dict",
)  # fmt: skip
"""The methods of a hook."""


def as_hook(thing: object) -> Hook:
    """``thing`` as a hook: one already, or any object with some of its methods.

    Raises:
        ConfigError: it has none of them.
    """
    if isinstance(thing, Hook):
        return thing
    methods = {name: getattr(thing, name) for name in MOMENTS if hasattr(thing, name)}
    if not methods:
        own = [name for name in dir(thing) if not name.startswith("_")]
        near = {m: c[0] for m in MOMENTS if (c := difflib.get_close_matches(m, own, 1))}
        hints = "".join(f"; is '{own}' to be '{moment}'?" for moment, own in near.items())
        raise ConfigError(
            f"a {type(thing).__name__} is no hook: it has none of {', '.join(MOMENTS)}{hints}"
        )
    hook = Hook()
    phase = getattr(thing, "phase", Phase.MEASURE)
    if phase not in list(Phase):
        raise ConfigError(
            f"the phase of {type(thing).__name__} is {phase!r}; it is one of "
            f"{', '.join(Phase.__members__)} of detpipe.train.contract.Phase"
        )
    hook.phase = Phase(phase)
    hook.saves = bool(getattr(thing, "saves", False))
    for name, method in methods.items():
        setattr(hook, name, method)
    return hook


def due(step: int, every: int) -> bool:
    """Whether something with a period of ``every`` steps (0: never) happens at ``step``."""
    return every > 0 and step % every == 0
