"""Configuration of the ``data`` and ``stream`` sections (imports nothing heavy)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from detpipe.core.config import Frozen, Spec, check_spec
from detpipe.data.rules import RULE_OF, Action, Severity


class SplitConfig(Frozen):
    """Which image belongs to train, val or test."""

    by: Literal["own", "ratio", "folds"] = "own"
    """``own``: as the data set says; ``ratio``: drawn by ``seed``, stratified by class; ``folds``:
    likewise, one of ``folds`` equal parts is val, the others train."""
    rename: dict[str, str] = Field(default_factory=dict)
    """Own split → train, val or test; such as ``{valid: val, trainval: train}``. Common names
    (``valid``, ``validation``, ``training``, …) are understood without it."""
    train: float = Field(default=0.8, ge=0, le=1)
    """Share of train when ``by: ratio``."""
    val: float = Field(default=0.1, ge=0, le=1)
    """Share of val when ``by: ratio``."""
    test: float = Field(default=0.1, ge=0, le=1)
    """Share of test when ``by: ratio``; when ``by: folds`` what is set aside first, the same for
    every fold."""
    folds: int = Field(default=5, ge=2)
    """Number of parts when ``by: folds``."""
    fold: int = Field(default=0, ge=0)
    """Which part is val, from 0, when ``by: folds``."""
    keep: list[str] = Field(default_factory=list)
    """Own splits that stay as they are while the rest is drawn, such as ``[test]``."""
    group_pattern: str | None = None
    """A regular expression on the picture's path whose first parenthesis (or all of it) names the
    video, patient or scene it belongs to: such groups are never torn apart. Groups can also come
    from the reader (a column ``group``)."""
    seed: int = 0
    """Same files and same seed give the same split, whatever the order of the file system."""

    @field_validator("group_pattern")
    @classmethod
    def _pattern(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                re.compile(value)
            except re.error as error:
                raise ValueError(f"'{value}' is no regular expression: {error}") from error
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.by == "ratio" and abs(self.train + self.val + self.test - 1) > 1e-6:
            raise ValueError(
                f"train + val + test must be 1, got {self.train} + {self.val} + {self.test}"
            )
        if self.by == "folds" and self.fold >= self.folds:
            raise ValueError(f"fold counts from 0 to {self.folds - 1}, got {self.fold}")
        if self.by == "folds" and self.test == 1:
            raise ValueError("test: 1 leaves nothing for the folds")
        ignored = [
            name for name, used in (("folds", self.by == "folds"), ("fold", self.by == "folds"),
                                    ("keep", self.by != "own"))
            if name in self.model_fields_set and getattr(self, name) and not used
        ]  # fmt: skip
        if ignored:
            raise ValueError(f"{', '.join(ignored)} has no effect with by: {self.by}")
        return self


class RuleSetting(Frozen):
    """What to do about the findings of a rule."""

    action: Action
    """``error``, ``drop``, ``clip``, ``fix``, ``keep`` (and report) or ``ignore``."""
    severity: Literal["warning", "info"] | None = None
    """Of the findings, where the action is not ``error``; without it the rule's own."""


class CheckConfig(Frozen):
    """What the check looks for, and what it does about its findings."""

    decode: bool = True
    """Decode every image fully: finds truncated files before training does."""
    workers: Literal["auto"] | int = "auto"
    """Processes that decode; 0 decodes in the main process; ``auto``: as many as there are cores,
    for more than a few megabytes."""
    near_duplicates: int = Field(default=3, ge=0, le=16)
    """Bits (of 64) in which the perceptual hashes of two pictures that look the same may differ."""
    tiny: float = Field(default=4.0, ge=0)
    """Pixels at the model's size: a box of a shorter side is reported as ``tiny_box``."""
    max_pixels: int = Field(default=400_000_000, gt=0)
    """A picture with more pixels is not decoded: it may be a decompression bomb."""
    rules: dict[str, RuleSetting] = Field(default_factory=dict)
    """Rule, or pattern (``near_*``) → action, or ``{action: …, severity: …}``: docs/rules.md lists
    them. Where several patterns fit, the last one counts."""

    @field_validator("rules", mode="before")
    @classmethod
    def _short_form(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        return {k: {"action": v} if isinstance(v, str) else v for k, v in value.items()}

    def setting(self, rule: str) -> tuple[Action, Severity]:
        """(action, severity) of a rule as configured."""
        own = RULE_OF[rule]
        action, severity = own.action, own.severity
        for pattern, setting in self.rules.items():
            if fnmatchcase(rule, pattern) and setting.action in own.allowed:
                action = setting.action
                severity = setting.severity or (
                    "warning" if own.severity == "error" else own.severity
                )
        return action, "error" if action == "error" else severity


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
