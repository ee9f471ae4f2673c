"""Configuration of the ``data`` and ``stream`` sections (imports nothing heavy)."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from detpipe.core.config import Frozen, Spec, check_spec


class SplitConfig(Frozen):
    """Which image belongs to train, val or test."""

    by: Literal["own", "ratio"] = "own"
    """``own``: as the data set says; ``ratio``: drawn by ``seed``, stratified by class."""
    rename: dict[str, str] = Field(default_factory=dict)
    """Own split → train, val or test; such as ``{valid: val, trainval: train}``. Common names
    (``valid``, ``validation``, ``training``, …) are understood without it."""
    train: float = Field(default=0.8, ge=0, le=1)
    """Share of train when ``by: ratio``."""
    val: float = Field(default=0.1, ge=0, le=1)
    """Share of val when ``by: ratio``."""
    test: float = Field(default=0.1, ge=0, le=1)
    """Share of test when ``by: ratio``."""
    seed: int = 0
    """Same files and same seed give the same split, whatever the order of the file system."""

    @model_validator(mode="after")
    def _shares(self) -> Self:
        if abs(self.train + self.val + self.test - 1) > 1e-6:
            raise ValueError(
                f"train + val + test must be 1, got {self.train} + {self.val} + {self.test}"
            )
        return self


class CheckConfig(Frozen):
    """What the check does about its findings."""

    decode: bool = True
    """Decode every image fully: finds truncated files before training does."""
    workers: int = Field(default=2, ge=0)
    """Processes that decode."""
    bad_box: Literal["drop", "error"] = "drop"
    """Boxes without area, with NaN, or wholly outside: dropped and counted, or an error."""
    bad_image: Literal["drop", "error"] = "error"
    """Images that are missing or do not decode: an error, or dropped and counted."""
    outside: Literal["clip", "error"] = "clip"
    """Boxes partly outside their image: clipped and counted, or an error."""
    empty_classes: Literal["keep", "drop"] = "drop"
    """Classes without a single box: reported, and dropped or kept as an output of the model."""


class DataConfig(Frozen):
    """The ``data`` section: from somebody's folder to checked tables."""

    reader: Spec
    """Reads the folder: ``detpipe.data.sample.read``, ``detpipe.data.formats.coco.read``, …"""
    check: CheckConfig = CheckConfig()
    """What is checked, and what happens to what is wrong."""
    split: SplitConfig = SplitConfig()
    """Which image is used for what."""

    @model_validator(mode="after")
    def _specs(self) -> Self:
        check_spec(self.reader, where="data.reader", args=1)
        return self


class Resize(Frozen):
    """The size at which images reach the model: exactly one of the two ways."""

    height: int | None = Field(default=None, gt=0)
    """With ``width``: stretched to exactly this size."""
    width: int | None = Field(default=None, gt=0)
    """With ``height``."""
    short_side: int | None = Field(default=None, gt=0)
    """Aspect ratio kept: the shorter side becomes this …"""
    long_side: int | None = Field(default=None, gt=0)
    """… unless the longer one would then exceed this (as torchvision's min_size/max_size)."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        exact = (self.height is not None, self.width is not None)
        if any(exact) and not all(exact):
            raise ValueError("height and width go together")
        if all(exact) == (self.short_side is not None):
            raise ValueError("give either height and width, or short_side (with long_side)")
        if self.long_side is not None and self.short_side is None:
            raise ValueError("long_side needs short_side")
        return self

    def target_size(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) that an image of ``height`` × ``width`` pixels gets."""
        if self.height and self.width:
            return self.height, self.width
        assert self.short_side  # noqa: S101 - the validator saw to it
        scale = self.short_side / min(height, width)
        if self.long_side:
            scale = min(scale, self.long_side / max(height, width))
        return max(1, round(height * scale)), max(1, round(width * scale))


class StreamConfig(Frozen):
    """The ``stream`` section: how images are read, the same for training and evaluation."""

    resize: Resize | None = None
    """Size at which images reach the model; without it they keep theirs."""
    workers: int = Field(default=0, ge=0)
    """Processes that read and augment; 0 reads in the main process. The result is the same."""
    threads: Literal["auto"] | int = "auto"
    """CPU threads of torch. ``auto``: ``OMP_NUM_THREADS`` if it is set, else half the cores: on a
    busy machine a thread too many costs far more than one too few."""

    @field_validator("threads")
    @classmethod
    def _at_least_one(cls, value: str | int) -> str | int:
        if isinstance(value, int) and value < 1:
            raise ValueError(f"threads must be auto or 1 and more, got {value}")
        return value
