"""Configuration of the ``train`` section (imports torch only to check a valid section's specs)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from detpipe.core.config import Duration, Every, Frozen, Spec
from detpipe.core.errors import ConfigError, one_message

# Hooks are above this package: it knows them as everybody's hooks are known, by their names.
EMA = "detpipe.hooks.update.EMA"
EVALUATE = "detpipe.hooks.measure.Evaluate"
BEST = "detpipe.hooks.decide.Best"
EARLY_STOP = "detpipe.hooks.decide.EarlyStop"
MAX_TIME = "detpipe.hooks.decide.MaxTime"
CHECKPOINT = "detpipe.hooks.save.Checkpoint"
JSON = "detpipe.hooks.writers.Json"

HOOK_RESOURCES = ("folder", "evaluate", "publish", "stream", "model", "started")
"""What a hook's constructor may ask for by name, see :func:`detpipe.train.build.build_hooks`."""
SAMPLER_RESOURCES = ("length", "seed", "store", "batch_size")
"""What a sampler may ask for by name, see :mod:`detpipe.data.sampler`."""
WRITER_RESOURCES = ("folder", "total_steps")
"""What a writer's constructor may ask for by name."""


def _at_most(limit: int, reason: str) -> AfterValidator:
    """An upper bound that says why it is there."""

    def check(value: int) -> int:
        if value > limit:
            shown = f"{value}" if value < 10**20 else f"a number of {len(str(value))} digits"
            raise ValueError(f"{shown} is more than {limit}: {reason}")
        return value

    return AfterValidator(check)


Seed = Annotated[int, Field(ge=0), _at_most(2**63 - 1, "random generators take 63 bits")]
Images = Annotated[int, Field(gt=0), _at_most(10**6, "no machine holds so many images")]
Passes = Annotated[int, Field(gt=0), _at_most(10**6, "no update needs so many forward passes")]
Batches = Annotated[int, Field(ge=0), _at_most(10**6, "nothing learns so many by heart")]


class Section(Frozen):
    """A part of the ``train`` section; its numbers are finite."""

    model_config = ConfigDict(allow_inf_nan=False)


class Warmup(Section):
    """The rise of the learning rate at the start."""

    duration: Duration = Duration(steps=0)
    """How long it takes."""
    shape: Literal["linear", "constant", "burn_in"] = "linear"
    """The way from ``factor`` to 1: ``linear``, ``constant`` (at ``factor``, then 1) or ``burn_in``
    (by the fourth power of the way, as Darknet does)."""
    factor: float = Field(default=0.001, ge=0, le=1)
    """Where it begins, as a share of the learning rate; Darknet's burn-in begins at 0."""


class Clip(Section):
    """Gradient clipping, after unscaling."""

    norm: float | None = Field(default=None, gt=0)
    """Clip the L2 norm of all gradients together to this."""
    parameter_norm: float | None = Field(default=None, gt=0)
    """Clip the L2 norm of each parameter's gradient to this."""
    value: float | None = Field(default=None, gt=0)
    """Clip every element to ± this."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [n for n in ("norm", "parameter_norm", "value") if getattr(self, n) is not None]
        if len(given) > 1:
            raise ValueError(f"give one of norm, parameter_norm and value, got {given}")
        return self


class GroupOptions(Section):
    """What differs for some parameters."""

    lr_factor: float = Field(default=1.0, ge=0)
    """On the learning rate; multiplied with the other factors that meet the parameter."""
    weight_decay: float | None = Field(default=None, ge=0)
    """Instead of the optimiser's; comes before those of norm and bias."""


class Groups(Section):
    """Parameters with a learning rate or weight decay of their own (optimiser groups)."""

    norm_weight_decay: float | None = Field(default=None, ge=0)
    """Of normalisation layers (detectron2: WEIGHT_DECAY_NORM); None: as all."""
    bias_weight_decay: float | None = Field(default=None, ge=0)
    """Of biases outside normalisation layers (detectron2: WEIGHT_DECAY_BIAS); None: as all."""
    backbone_lr_factor: float = Field(default=1.0, ge=0)
    """On the learning rate of the backbone's stages; 0.1 is usual for pretrained ones."""
    layer_decay: float = Field(default=1.0, gt=0, le=1)
    """The learning rate of each stage of the backbone is that of the next one times this: the
    last stage has the first power, 1 is off."""
    patterns: dict[str, GroupOptions | None] = Field(default_factory=dict)
    """Regular expression, searched in the parameter's name → what differs; of several that match
    factors multiply and the last weight decay counts. ``null`` takes one out."""

    @field_validator("patterns")
    @classmethod
    def _are_patterns(cls, value: dict[str, Any]) -> dict[str, Any]:
        for pattern in value:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"'{pattern}' is no regular expression: {error}") from error
        return value


class NonFinite(Section):
    """What happens when a loss, or the gradient, is NaN or infinite."""

    action: Literal["stop", "skip", "reload"] = "stop"
    """``stop`` the run; ``skip`` the step: weights and running statistics stay as they were (a
    check of each step, which waits for a GPU); ``reload`` the newest checkpoint and go on after
    the images that led there."""
    limit: int = Field(default=10, gt=0)
    """More steps left out, or reloads, in one run stop it."""

    @model_validator(mode="after")
    def _limit_counts(self) -> Self:
        other = self.limit != type(self).model_fields["limit"].default
        if self.action == "stop" and other:  # the default may be written out, as a dump does
            raise ValueError("limit has no meaning with action: stop, which stops at the first")
        return self


class AugmentSpec(Spec):
    """A transform, and the part of the run in which it is used."""

    until: Annotated[float, Field(gt=0, le=1)] | Duration | None = None
    """It is switched off after this share (``0.85``) or duration (``10 epochs``) of the run."""


class TrainConfig(Section):
    """The ``train`` section."""

    seed: Seed = 0
    """Of the order of images, augmentation, and weights not loaded from a file."""
    device: str = "auto"
    """``auto`` (a GPU if there is one), ``cpu``, ``cuda``, ``cuda:1``, ``mps``."""
    duration: Duration
    """Length of the run."""
    batch_size: Images = 8
    """Images of one forward pass."""
    accumulate: Passes = 1
    """Forward passes of one optimiser update."""
    reference_batch: Images | None = None
    """The batch (× accumulation) the learning rate and durations in steps were written for. The
    learning rate is scaled by batch / reference_batch, step counts by its inverse."""
    optimizer: Spec
    """Any ``torch.optim`` class by import path, with its options."""
    schedule: Spec = Spec(use="detpipe.train.schedule.constant")
    """A function of progress 0..1 that gives the factor on the learning rate."""
    schedule_by: Literal["step", "epoch"] = "step"
    """Whether the schedule moves with each step, or only with each whole epoch; the warm-up always
    moves with each step."""
    warmup: Warmup = Warmup()
    """The rise of the learning rate at the start; multiplied into the schedule."""
    groups: Groups = Groups()
    """Parameters with a learning rate or weight decay of their own."""
    clip: Clip = Clip()
    """Gradient clipping; none by default."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Autocast of the forward pass; fp16 (GPU) with a gradient scaler."""
    channels_last: bool = True
    """Keep weights and activations channels-last: same numbers, faster on most CPUs and GPUs."""
    sampler: Spec = Spec(use="detpipe.data.sampler.shuffle")
    """The order of images."""
    augment: dict[str, AugmentSpec | None] = Field(default_factory=dict)
    """Transforms of the training images, in this order; ``null`` takes one out, ``until`` switches
    one off for the rest of the run."""
    non_finite: NonFinite = NonFinite()
    """What happens when a loss, or the gradient, is NaN or infinite."""
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
    dry_run: bool = False
    """Two steps of everything, evaluation and reports too, on a few images; nothing is kept."""
    overfit: Batches = 0
    """Learn this many batches by heart, without augmentation, and fail unless the loss ends below a
    tenth of what it began with: a self-test of data, model and settings. Nothing is kept; 0 is
    off."""

    @field_validator("device")
    @classmethod
    def _is_device(cls, value: str) -> str:
        if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", value):
            raise ValueError(f"device '{value}' is none; write auto, cpu, cuda, cuda:1 or mps")
        return value

    @field_validator("precision", mode="before")
    @classmethod
    def _not_apex(cls, value: Any) -> Any:
        if value in ("O0", "O1", "O2", "O3", "apex", "amp", "16", "16-mixed", "bf16-mixed", 16):
            raise ValueError(
                f"'{value}' is another program's word; write fp32, bf16, or fp16 (GPU, with a "
                f"gradient scaler): PyTorch's own autocast, which replaced apex"
            )
        return value

    @model_validator(mode="after")
    def _usable(self) -> Self:
        from detpipe.train.checks import section_mistakes

        if mistakes := section_mistakes(self):
            raise ConfigError(one_message("these settings cannot be used:", mistakes))
        return self

    @model_validator(mode="wrap")
    @classmethod
    def _specs_too(cls, data: Any, handler: Callable[[Any], Self]) -> Self:
        """Mistakes of specs are reported with those of other values, which hide them otherwise."""
        try:
            return handler(data)
        except ValidationError as error:
            found = error.errors()
            if isinstance(data, Mapping) and any(e["loc"] for e in found):
                raise _with_specs(error, data) from error
            raise

    @property
    def rehearsal(self) -> bool:
        """Whether nothing of the run is to be kept."""
        return self.dry_run or self.overfit > 0


def _with_specs(error: ValidationError, data: Mapping[str, Any]) -> ValidationError:
    """``error``, and what is wrong with the specs of ``data`` that are complete."""
    from detpipe.train.checks import specs_of

    def spec(value: Any) -> Spec | None:
        try:
            return Spec.model_validate(value)
        except ValidationError:
            return None  # it is in ``error``

    def specs(key: str) -> dict[str, Spec | None]:
        section = data.get(key)
        return {n: spec(s) for n, s in section.items()} if isinstance(section, Mapping) else {}

    single = {key: spec(data[key]) for key in ("optimizer", "schedule", "sampler") if key in data}
    augment = {
        name: Spec(use=s.use, **{k: v for k, v in s.options.items() if k != "until"}) if s else None
        for name, s in specs("augment").items()
    }
    mistakes = specs_of(single, augment=augment, hooks=specs("hooks"), writers=specs("writers"))
    lines = [(e["type"], e["loc"], e["msg"], e["input"]) for e in error.errors()]
    lines += [("value_error", (), mistake, None) for mistake in mistakes]
    return ValidationError.from_exception_data(
        error.title,
        [
            InitErrorDetails(
                type=PydanticCustomError(kind, "{text}", {"text": text}),
                loc=loc,
                input=value,
            )
            for kind, loc, text, value in lines
        ],
    )
