"""The run in numbers: settings and data set become steps."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from functools import partial

from detpipe.core.config import Duration
from detpipe.core.errors import ConfigError, one_message
from detpipe.train.config import TrainConfig
from detpipe.train.contract import whole_steps

logger = logging.getLogger(__name__)

MOST_STEPS = 10**12
"""Of a run: no machine gets there, and positions in images have to fit into 64 bits."""


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
        for name, duration in [("", config.duration), ("warmup.", config.warmup.duration)]:
            if units(duration) > MOST_STEPS:
                mistakes.append(
                    f"train.{name}duration is {duration}, which is {units(duration):.3g} steps; "
                    f"at most {MOST_STEPS:.0e} are possible"
                )
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
        """Where in the run (0..1) ``duration`` has passed; above 1, with a warning, if never."""
        steps = whole_steps(
            duration,
            images_per_step=self.images_per_step,
            images_per_epoch=self.images_per_epoch,
            reference_batch=self.reference_batch,
        )
        if steps >= self.total_steps:
            _warn_of_never(str(duration), steps, self.total_steps)
        return steps / self.total_steps


@functools.cache  # once: schedules ask at each step
def _warn_of_never(duration: str, steps: int, total_steps: int) -> None:
    logger.warning(
        "train.schedule names %s, which is step %d, but the run ends at step %d: what it does "
        "there never happens", duration, steps, total_steps,
    )  # fmt: skip
