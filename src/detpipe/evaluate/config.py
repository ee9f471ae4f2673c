"""Configuration of the ``evaluate`` and ``verify`` sections (imports nothing heavy)."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from detpipe.core.config import Frozen, Spec, check_specs


def _coco() -> dict[str, Spec | None]:
    return {"coco": Spec(use="detpipe.evaluate.coco.score")}


class Tta(Frozen):
    """Test-time augmentation: every image in several versions, their detections merged."""

    flip: bool = True
    """Each version also mirrored left to right."""
    scales: list[Annotated[float, Field(gt=0, le=8)]] = Field(default=[1.0], min_length=1)
    """Sizes of the versions as factors of the size at which images reach the model."""
    merge: Literal["nms", "wbf"] = "wbf"
    """Weighted box fusion (Solovyev et al. 2021), or non-maximum suppression."""
    iou: float = Field(default=0.55, gt=0, lt=1)
    """Boxes of one class that overlap more are one object."""


class EvaluateConfig(Frozen):
    """The ``evaluate`` section."""

    more: list[str] = Field(default_factory=list)
    """Splits that are evaluated beside ``val`` and ``test``, such as ``train``."""
    batch_size: int = Field(default=8, gt=0)
    """Images of one inference pass."""
    device: str = "auto"
    """``auto`` (a GPU if there is one), ``cpu``, ``cuda``, …"""
    score_threshold: float = Field(default=0.0, ge=0, le=1)
    """Detections below this score are not kept."""
    max_detections: int = Field(default=100, gt=0)
    """Best detections kept per image, and the scorer's limit (COCO: 100)."""
    tta: Tta | None = None
    """Test-time augmentation; evaluations inside the training go without."""
    loss: bool = False
    """Whether to compute the losses of each data set too (task ``loss``)."""
    warmup: int = Field(default=2, ge=0)
    """First batches of an inference pass that its timing leaves out."""
    metrics: dict[str, Spec | None] = Field(default_factory=_coco)
    """Scorers: functions of tables, see :func:`detpipe.evaluate.scoring.score`."""

    @field_validator("more")
    @classmethod
    def _more_than_val_and_test(cls, value: list[str]) -> list[str]:
        if {"val", "test"} & {*value} or len({*value}) < len(value):
            raise ValueError(f"each split once, and val and test are evaluated anyway: {value}")
        return value

    @model_validator(mode="after")
    def _specs(self) -> Self:
        provided = ("images", "boxes", "detections", "classes", "dataset", "max_detections")
        check_specs(*((s, f"evaluate.metrics.{n}", 0, provided) for n, s in self.metrics.items()))
        return self


_FORMS = (
    ("value", "tolerance"), ("min",), ("max",), ("min", "max"), ("tolerance", "baseline"),
    ("min", "baseline"), ("max", "baseline"), ("min", "max", "baseline"),
)  # fmt: skip
"""What an expectation may consist of, in the order of its fields."""


class Expectation(Frozen):
    """One expected result. The seeds' four items ``[bbox, AP, 38.5, 0.2]`` are understood too.

    What is expected is a ``value`` with its ``tolerance``, or bounds (``min``, ``max``), or, with
    ``baseline``, the result of another run: within ``tolerance`` of it, or from ``min`` to ``max``
    above it (``min: -0.5``: at most half a point worse).
    """

    dataset: str = "test"
    """Which data set's scores."""
    task: str = "bbox"
    """``bbox``."""
    metric: str
    """``AP``, ``AP50``, … as in the scores table."""
    class_name: str = ""
    """A class, or empty for all classes."""
    value: float | None = None
    """What is expected, in the unit of the scores table (percent)."""
    tolerance: float | None = Field(default=None, ge=0)
    """How far from it the result may lie, on either side."""
    min: float | None = None
    """The least that passes; beside a baseline, as a difference from its result."""
    max: float | None = None
    """The most that passes; beside a baseline, as a difference from its result."""
    baseline: str | None = None
    """An MLflow run, by name (the newest that finished) or id, whose result is expected."""

    @model_validator(mode="before")
    @classmethod
    def _from_four_items(cls, data: Any) -> Any:
        if isinstance(data, (list, tuple)):
            if len(data) != 4:
                raise ValueError(f"expected [task, metric, value, tolerance], got {list(data)}")
            return dict(zip(("task", "metric", "value", "tolerance"), data, strict=True))
        return data

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        names = ("value", "tolerance", "min", "max", "baseline")
        given = [name for name in names if getattr(self, name) is not None]
        if tuple(given) not in _FORMS:
            raise ValueError(
                "what is expected is one of: value and tolerance; min, max or both; baseline and "
                "tolerance; baseline and min, max or both; this has "
                + (" and ".join(given) or "none of these")
            )
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"no result is at least {self.min:g} (min) and at most {self.max:g} "
                             "(max)")  # fmt: skip
        if self.baseline is not None and not self.baseline.strip():
            raise ValueError("baseline is empty: name an MLflow run, or take it out")
        return self


class VerifyConfig(Frozen):
    """The ``verify`` section."""

    expected: list[Expectation] = Field(default_factory=list)
    """What the run must reach; each miss is a row of the verdict, and ends the command with 1."""
    write: bool = False
    """Write what this run reached to ``conf/expected/<name>.yml``, as what later ones must."""
    metrics: list[str] = Field(default=["AP", "AP50"], min_length=1)
    """Which metrics of all classes together are written: names, or patterns such as ``AP*``."""
    tolerance: float = Field(default=0.5, ge=0, allow_inf_nan=False)
    """Of what is written: how far from it a result may lie, in the unit of the score."""


class ReportConfig(Frozen):
    """The ``report`` section."""

    iou: float = Field(default=0.5, gt=0, le=1)
    """The overlap from which a detection is right: curves, confusion, errors, pictures."""
    score_threshold: Annotated[float, Field(ge=0, le=1)] | Literal["best_f1"] = "best_f1"
    """Detections that count in the confusion matrix, by image and in pictures; ``best_f1`` is the
    one threshold for all classes with the best F1."""
    pictures: int = Field(default=8, ge=0)
    """Of each kind: worst, best, random, and by kind of error."""
    seed: int = 0
    """Of random pictures and of the bootstrap."""
    samples: int = Field(default=1000, ge=0)
    """Bootstrap samples for the confidence intervals; 0 makes none."""
    confidence: float = Field(default=0.95, gt=0, lt=1)
    """The share of samples that lie in an interval."""
    bins: int = Field(default=10, gt=0)
    """Bins of scores in the calibration."""


class CompareConfig(Frozen):
    """The ``compare`` section: runs side by side."""

    runs: dict[str, str] = Field(default_factory=dict)
    """What to call it → an MLflow run (name or id), or a file of detections; the first is the one
    that the others are compared with."""
    dataset: str = "test"
    """The split they are compared on."""
    categories: dict[str, str] | str | None = None
    """As in ``evaluate_files``."""
    samples: int = Field(default=1000, gt=0)
    """Bootstrap samples for the intervals of differences."""
    confidence: float = Field(default=0.95, gt=0, lt=1)
    """The share of samples that lie in an interval."""
    seed: int = 0
    """Of the bootstrap."""

    @field_validator("runs", mode="before")
    @classmethod
    def _list_of_names(cls, value: Any) -> Any:
        return {str(v): str(v) for v in value} if isinstance(value, list) else value

    @field_validator("categories", mode="before")
    @classmethod
    def _ids_as_text(cls, value: Any) -> Any:
        return {str(k): v for k, v in value.items()} if isinstance(value, dict) else value


class FilesConfig(Frozen):
    """The ``evaluate_files`` section: a file of detections against a data set."""

    dataset: str = "test"
    """The split whose boxes are the truth."""
    categories: dict[str, str] | str | None = None
    """Where the file holds category ids only: id → class name, or the path of a COCO file whose
    ``categories`` tell."""

    @field_validator("categories", mode="before")
    @classmethod
    def _ids_as_text(cls, value: Any) -> Any:
        return {str(k): v for k, v in value.items()} if isinstance(value, dict) else value


class PredictConfig(Frozen):
    """The ``predict`` section."""

    score_threshold: Annotated[float, Field(ge=0, le=1)] | Literal["best_f1"] = 0.5
    """Detections below this score are not reported; ``best_f1``: each class's own threshold, as
    the last ``evaluate`` found it on ``val`` with these weights."""
    bad_image: Literal["error", "drop"] = "error"
    """Pictures that do not decode: an error before any work, or left out with a warning."""
