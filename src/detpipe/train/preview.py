"""Configuration of the ``preview`` section (imports nothing heavy)."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from detpipe.core.config import Frozen


class LrRangeConfig(Frozen):
    """Options of the learning rate range test."""

    start: float = Field(default=1e-6, gt=0)
    """The first learning rate, in the terms of ``train.optimizer.lr``."""
    end: float = Field(default=1.0, gt=0)
    """The learning rate of the last step."""
    steps: int = Field(default=100, ge=10)
    """Optimiser updates of the test; a test that diverges ends before."""
    smoothing: float = Field(default=0.9, ge=0, lt=1)
    """Share of the past in the running mean of the loss; 0 is none."""
    divergence: float = Field(default=4.0, gt=1)
    """The test ends when the smoothed loss is above this times its least value."""

    @model_validator(mode="after")
    def _rises(self) -> Self:
        if self.start >= self.end:
            raise ValueError(f"start ({self.start:g}) must be below end ({self.end:g})")
        return self


class BatchSizeConfig(Frozen):
    """Options of the batch-size search."""

    limit: int | None = Field(default=None, gt=0)
    """The largest size to try; None for the number of training images."""
    batches: int = Field(default=8, gt=0)
    """Augmented batches that are looked through for images that take much memory."""


class PreviewConfig(Frozen):
    """The ``preview`` section: pipelines that look before training (they write no weights)."""

    batches: int = Field(default=2, gt=0)
    """Training batches in the picture of the preview pipeline."""
    depth: int = Field(default=2, ge=0)
    """How deep modules are listed in the model summary; 0 lists the whole model only."""
    latency_runs: int = Field(default=20, ge=0)
    """Calls of ``detect`` that are timed for the model summary; 0 for none."""
    warm_up: int = Field(default=3, ge=0)
    """Calls before them that are not timed."""
    lr_range: LrRangeConfig = LrRangeConfig()
    """Of the lr_range pipeline."""
    batch_size: BatchSizeConfig = BatchSizeConfig()
    """Of the batch_size pipeline (needs a CUDA GPU)."""
