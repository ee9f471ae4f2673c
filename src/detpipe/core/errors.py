"""The errors detpipe raises for its users.

Every message names the thing, the value and the way out. All of them derive from
:class:`DetpipeError`, so a caller can tell "the input is wrong" from a bug.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


class DetpipeError(Exception):
    """Base of every error that detpipe raises on purpose."""


class ConfigError(DetpipeError, ValueError):
    """A configuration value is wrong. The message lists every mistake found, one a line.

    It is a ``ValueError`` too, so pydantic and Kedro collect it with their own findings.
    """


class DataError(DetpipeError):
    """The data set cannot be used as it is (missing file, malformed record, unknown class, …)."""


class TableError(DataError):
    """A table lacks a column, or a column holds a value it must not hold."""


class WeightsError(DetpipeError):
    """Weights cannot be found or do not fit the model."""


class CheckpointError(DetpipeError):
    """A checkpoint cannot be read, or belongs to another run."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint file is cut short or its bytes have changed; an older one can take its place."""


class NonFiniteLoss(DetpipeError):
    """A loss, or the gradient of finite losses, became NaN or infinite.

    Attributes:
        step: which optimiser update it was (1 is the first).
        losses: name → value of every loss of that step.
        files: the images of that step's batch.
        checkpoint: what is left to go on from, in words; empty while nobody has said.
        images_seen: the stream's position when it was found out.
        interruption: what a signal had asked to raise after this step, if there was one.
    """

    def __init__(self, step: int, losses: dict[str, float], files: Sequence[str]) -> None:
        super().__init__(step, losses, files)
        self.step, self.losses, self.files = step, losses, tuple(files)
        self.checkpoint = ""
        self.images_seen = 0
        self.interruption: BaseException | None = None

    def __str__(self) -> str:
        finite = all(math.isfinite(value) for value in self.losses.values())
        what = "the gradient" if finite else "loss"
        values = ", ".join(f"{name}={value:g}" for name, value in self.losses.items())
        left = f" {self.checkpoint}." if self.checkpoint else ""
        return (
            f"{what} is not finite at step {self.step}: {values}. Images of this batch: "
            f"{', '.join(self.files) or 'unknown'}. Lower the learning rate, lengthen the warm-up, "
            f"clip gradients (train.clip), or look at these images.{left}"
        )


class NonFiniteWeights(NonFiniteLoss):
    """Weights became NaN or infinite while every loss was finite.

    Attributes:
        weights: name → a value that is not finite, of every such weight.
    """

    def __init__(self, step: int, weights: dict[str, float], files: Sequence[str]) -> None:
        super().__init__(step, {}, files)
        self.weights = weights

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={value:g}" for name, value in list(self.weights.items())[:5])
        more = f" and {len(self.weights) - 5} more" if len(self.weights) > 5 else ""
        left = f" {self.checkpoint}." if self.checkpoint else ""
        return (
            f"weights are not finite after step {self.step}, although every loss was: "
            f"{shown}{more}. The update was too large: lower the learning rate, lengthen the "
            f"warm-up, or clip gradients (train.clip). Images of this batch: "
            f"{', '.join(self.files) or 'unknown'}.{left}"
        )


class TrainingError(DetpipeError):
    """Training ran, but what came out of it is not what was asked for."""


class VerificationError(DetpipeError):
    """The run did not meet its expected results (raised after every report is written)."""


def one_message(title: str, mistakes: Sequence[str]) -> str:
    """``title`` followed by one line for each mistake, for errors that come all at once."""
    return "\n".join([title, *(f"- {mistake}" for mistake in mistakes)])
