"""Configuration of the ``data`` and ``stream`` sections (imports nothing heavy)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from detpipe.core.config import Frozen, Spec, check_spec
from detpipe.data.check_config import CheckConfig


class SplitConfig(Frozen):
    """Which image belongs to train, val or test."""

    by: Literal["own", "ratio", "folds", "auto"] = "own"
    """``own``: as the data set says; ``ratio``: drawn by ``seed``, stratified by class; ``folds``:
    likewise, one of ``folds`` equal parts is val, the others train; ``auto``: ``ratio`` for a data
    set without splits, else ``own``."""
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
        if self.by in ("ratio", "auto") and abs(self.train + self.val + self.test - 1) > 1e-6:
            raise ValueError(
                f"train + val + test must be 1, got {self.train} + {self.val} + {self.test}"
            )
        if self.by == "folds" and self.fold >= self.folds:
            raise ValueError(f"fold counts from 0 to {self.folds - 1}, got {self.fold}")
        if self.by == "folds" and self.test == 1:
            raise ValueError("test: 1 leaves nothing for the folds")
        ignored = [
            name for name, used in (("folds", self.by == "folds"), ("fold", self.by == "folds"),
                                    ("keep", self.by in ("ratio", "folds")))
            if name in self.model_fields_set and getattr(self, name) and not used
        ]  # fmt: skip
        if ignored:
            raise ValueError(f"{', '.join(ignored)} has no effect with by: {self.by}")
        return self


class ClassesConfig(Frozen):
    """Which of the data set's classes are used, and what they are called."""

    rename: dict[str, str] = Field(default_factory=dict)
    """The data set's name → the one to use; two that get the same name become one class."""
    keep: list[str] = Field(default_factory=list)
    """Only these classes, by their new names; empty: all of them."""
    drop: list[str] = Field(default_factory=list)
    """All classes but these, by their new names. Images stay, as images without objects."""

    @model_validator(mode="after")
    def _one_choice(self) -> Self:
        if self.keep and self.drop:
            raise ValueError("keep and drop exclude each other: what is not kept is dropped")
        nameless = [old for old, new in self.rename.items() if not new.strip()]
        if nameless:
            raise ValueError(f"rename: {', '.join(nameless)} must get a name; or drop it")
        return self


READERS: Mapping[str, str] = {
    **{
        name: f"detpipe.data.formats.{name}.read"
        for name in (
            "auto", "coco", "voc", "yolo", "csv", "openimages", "crowdhuman", "parquet", "folder",
            "join",
        )
    },
    "sample": "detpipe.data.sample.read",
}  # fmt: skip
"""Short name of a reader → its import path."""


WRITERS: Mapping[str, str] = {
    name: f"detpipe.data.writers.{name}.write" for name in ("coco", "voc", "yolo", "csv", "parquet")
}
"""Short name of a writer → its import path."""


def _in_full(value: object, names: Mapping[str, str], what: str) -> object:
    """``coco``, or ``{use: coco, …}``, with the import path; anything else as it is.

    Raises:
        ValueError: a word that is neither a short name nor an import path.
    """
    if isinstance(value, str):
        value = {"use": value}
    if not isinstance(value, Mapping) or not isinstance(use := value.get("use"), str):
        return value
    if use not in names and "." not in use:
        near = difflib.get_close_matches(use, names, 1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        raise ValueError(
            f"there is no {what} '{use}': {hint}There are {', '.join(names)}, and any function "
            f"by its full import path"
        )
    return {**value, "use": names.get(use, use)}


def full_reader(value: object) -> object:
    """A reader's spec whose ``use`` may be a short name, with its import path."""
    return _in_full(value, READERS, "reader")


class DataConfig(Frozen):
    """The ``data`` section: from somebody's folder to checked tables."""

    reader: Spec
    """Reads the folder: ``auto`` (looks what is in it), ``coco``, ``voc``, ``yolo``, ``csv``,
    ``openimages``, ``crowdhuman``, ``parquet``, ``folder``, ``join``, ``sample``, or any function
    by its import path; with options ``{use: coco, annotations: …}``."""
    classes: ClassesConfig = ClassesConfig()
    """Classes renamed, kept, dropped."""
    check: CheckConfig = CheckConfig()
    """What is checked, and what happens to what is wrong."""
    split: SplitConfig = SplitConfig()
    """Which image is used for what."""

    _short_name = field_validator("reader", mode="before")(full_reader)

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


class ConvertConfig(Frozen):
    """The ``convert`` section: the same data set in another format."""

    to: Spec
    """Writes the folder: ``coco``, ``voc``, ``yolo``, ``csv``, ``parquet`` or any function by its
    import path; with options ``{use: yolo, pictures: link, polygons: true}``."""
    checked: bool = True
    """Whether boxes and images pass the check first, which puts right or leaves out what is wrong,
    and get the splits of ``data.split`` (a set without splits that is not divided stays one);
    without it everything is written as it was read."""

    @field_validator("to", mode="before")
    @classmethod
    def _short_name(cls, value: object) -> object:
        return _in_full(value, WRITERS, "writer")

    @model_validator(mode="after")
    def _specs(self) -> Self:
        check_spec(self.to, where="convert.to", args=3)
        return self
