"""Configuration of the ``evaluate`` and ``verify`` sections (imports nothing heavy)."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from detpipe.core.config import Frozen, Spec, check_specs


def _coco() -> dict[str, Spec | None]:
    return {"coco": Spec(use="detpipe.evaluate.coco.score")}


class EvaluateConfig(Frozen):
    """The ``evaluate`` section."""

    batch_size: int = Field(default=8, gt=0)
    """Images of one inference pass."""
    device: str = "auto"
    """``auto`` (a GPU if there is one), ``cpu``, ``cuda``, …"""
    score_threshold: float = Field(default=0.0, ge=0, le=1)
    """Detections below this score are not kept."""
    max_detections: int = Field(default=100, gt=0)
    """Best detections kept per image, and the scorer's limit (COCO: 100)."""
    metrics: dict[str, Spec | None] = Field(default_factory=_coco)
    """Scorers: functions of tables, see :func:`detpipe.evaluate.scoring.score`."""

    @model_validator(mode="after")
    def _specs(self) -> Self:
        provided = ("images", "boxes", "detections", "classes", "dataset", "max_detections")
        check_specs(*((s, f"evaluate.metrics.{n}", 0, provided) for n, s in self.metrics.items()))
        return self


class Expectation(Frozen):
    """One expected result. The seeds' four items ``[bbox, AP, 38.5, 0.2]`` are understood too."""

    dataset: str = "test"
    """Which data set's scores."""
    task: str = "bbox"
    """``bbox``."""
    metric: str
    """``AP``, ``AP50``, … as in the scores table."""
    class_name: str = ""
    """A class, or empty for all classes."""
    value: float
    """What is expected, in the unit of the scores table (percent)."""
    tolerance: float = Field(ge=0)
    """How far from it the result may lie, on either side."""

    @model_validator(mode="before")
    @classmethod
    def _from_four_items(cls, data: Any) -> Any:
        if isinstance(data, (list, tuple)):
            if len(data) != 4:
                raise ValueError(f"expected [task, metric, value, tolerance], got {list(data)}")
            return dict(zip(("task", "metric", "value", "tolerance"), data, strict=True))
        return data


class VerifyConfig(Frozen):
    """The ``verify`` section."""

    expected: list[Expectation] = Field(default_factory=list)
    """What the run must reach; each miss is a row of the verdict, and ends the command with 1."""


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

    score_threshold: float = Field(default=0.5, ge=0, le=1)
    """Detections below this score are not reported."""
    bad_image: Literal["error", "drop"] = "error"
    """Pictures that do not decode: an error before any work, or left out with a warning."""
