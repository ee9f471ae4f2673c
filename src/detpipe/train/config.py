"""Configuration of the ``train`` section (imports torch only to check a valid section's specs)."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from detpipe.core.config import Duration, Every, Frozen, Spec, check_specs, transform_args

HOOK_RESOURCES = ("folder", "evaluate", "publish")
"""What a hook's constructor may ask for by name, see :func:`detpipe.train.build.build_hooks`."""
WRITER_RESOURCES = ("folder", "total_steps")
"""What a writer's constructor may ask for by name."""


class Warmup(Frozen):
    """The rise of the learning rate at the start."""

    duration: Duration = Duration(steps=0)
    """How long it takes."""
    shape: Literal["linear", "constant", "burn_in"] = "linear"
    """The way from ``factor`` to 1: ``linear``, ``constant`` (at ``factor``, then 1) or ``burn_in``
    (by the fourth power of the way, as Darknet does)."""
    factor: float = Field(default=0.001, ge=0, le=1)
    """Where it begins, as a share of the learning rate; Darknet's burn-in begins at 0."""


class Clip(Frozen):
    """Gradient clipping, after unscaling."""

    norm: float | None = Field(default=None, gt=0)
    """Clip the global L2 norm to this."""
    value: float | None = Field(default=None, gt=0)
    """Clip every element to ± this."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if self.norm is not None and self.value is not None:
            raise ValueError("give norm or value, not both")
        return self


class TrainConfig(Frozen):
    """The ``train`` section."""

    seed: int = Field(default=0, ge=0)
    """Of the order of images, augmentation, and weights not loaded from a file."""
    device: str = "auto"
    """``auto`` (a GPU if there is one), ``cpu``, ``cuda``, ``cuda:1``, ``mps``."""
    duration: Duration
    """Length of the run."""
    batch_size: int = Field(default=8, gt=0)
    """Images of one forward pass."""
    accumulate: int = Field(default=1, gt=0)
    """Forward passes of one optimiser update."""
    reference_batch: int | None = Field(default=None, gt=0)
    """The batch (× accumulation) the learning rate and durations in steps were written for. The
    learning rate is scaled by batch / reference_batch, step counts by its inverse."""
    optimizer: Spec
    """Any ``torch.optim`` class by import path, with its options."""
    schedule: Spec = Spec(use="detpipe.train.schedule.constant")
    """A function of progress 0..1 that gives the factor on the learning rate."""
    warmup: Warmup = Warmup()
    """The rise of the learning rate at the start; multiplied into the schedule."""
    clip: Clip = Clip()
    """Gradient clipping; none by default."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Autocast of the forward pass; fp16 (GPU) with a gradient scaler."""
    channels_last: bool = True
    """Keep weights and activations channels-last: same numbers, faster on most CPUs and GPUs."""
    sampler: Spec = Spec(use="detpipe.data.sampler.shuffle")
    """The order of images."""
    augment: dict[str, Spec | None] = Field(default_factory=dict)
    """Transforms of the training images, in this order; ``null`` takes one out."""
    hooks: dict[str, Spec | None] = Field(default_factory=dict)
    """What else happens in the loop; ``null`` takes one out."""
    writers: dict[str, Spec | None] = Field(default_factory=dict)
    """Where scalars are written; ``null`` takes one out."""
    log_every: Every = Every(steps=20)
    """How often scalars are written (and once at the end of the run)."""
    resume: bool = False
    """Continue from the newest checkpoint, if there is one."""
    publish: Literal["final", "best"] = "final"
    """The weights that the train pipeline evaluates and hands on."""

    @model_validator(mode="after")
    def _usable(self) -> Self:
        if self.publish == "best":
            there = {spec.use for spec in self.hooks.values() if spec}
            for needed in (
                "detpipe.hooks.measure.Evaluate",
                "detpipe.hooks.decide.Best",
                "detpipe.hooks.save.Checkpoint",
            ):
                if needed not in there:
                    raise ValueError(f"publish: best needs the hook {needed}")
        check_specs(
            (self.optimizer, "train.optimizer", 1, ()),
            (self.schedule, "train.schedule", 1, ("to_progress",)),
            (self.sampler, "train.sampler", 0, ("length", "seed", "store")),
            *((s, f"train.augment.{n}", transform_args(s), ()) for n, s in self.augment.items()),
            *((s, f"train.hooks.{n}", 0, HOOK_RESOURCES) for n, s in self.hooks.items()),
            *((s, f"train.writers.{n}", 0, WRITER_RESOURCES) for n, s in self.writers.items()),
        )
        return self
