"""What training hands on."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from detpipe.train.checkpoint import CheckpointFolder
from detpipe.train.config import TrainConfig
from detpipe.train.content import published, published_as, to_cpu
from detpipe.train.contract import LoopContext
from detpipe.train.launch import unwrapped

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainResult:
    """What training hands on.

    Attributes:
        weights: the published ones, on the CPU.
        step: the optimiser update they are from.
        source: ``ema`` if they are the average, ``model`` if they are as trained.
        metrics: scalar name → value, what was measured at that step during training.
        history: one row a written step: ``step``, then one column a scalar; NaN where a row has
            no value.
    """

    weights: dict[str, Tensor]
    step: int
    source: Literal["model", "ema"]
    metrics: dict[str, float]
    history: pd.DataFrame


def as_history(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Written rows as a table, those of one step as one; ordered by step."""
    import pandas as pd

    by_step: dict[int, dict[str, Any]] = {}
    for row in rows:
        by_step.setdefault(row["step"], {}).update(row)
    frame = pd.DataFrame([by_step[step] for step in sorted(by_step)] or {"step": []})
    return frame.astype({c: "float64" for c in frame.columns if c != "step"})


def finished_before(
    checkpoints: CheckpointFolder,
    content: Mapping[str, Any],
    config: TrainConfig,
    history: pd.DataFrame,
) -> TrainResult:
    """Of a run that had ended before; says so."""
    step = content["state"]["step"]
    logger.info(
        "the run in '%s' is already finished (step %d): nothing is changed. Give a longer "
        "train.duration to go on, or set train.resume to false for a new run",
        checkpoints.path, step,
    )  # fmt: skip
    source = (_best(checkpoints) if config.publish == "best" else None) or content
    return _of_checkpoint(source, history)


def result_of(
    ctx: LoopContext, checkpoints: CheckpointFolder, config: TrainConfig, history: pd.DataFrame
) -> TrainResult:
    """Of a run that has just ended: its best weights where they are asked for, else the last."""
    best = _best(checkpoints) if config.publish == "best" else None
    if best is not None:
        return _of_checkpoint(best, history)
    return TrainResult(
        weights=to_cpu(unwrapped(ctx.eval_model).state_dict()),
        step=ctx.state.step,
        source="model" if ctx.eval_model is ctx.model else "ema",
        metrics=_metrics(ctx.scalars.state_dict(), ctx.state.step),
        history=history,
    )


def _of_checkpoint(content: Mapping[str, Any], history: pd.DataFrame) -> TrainResult:
    step = content["state"]["step"]
    return TrainResult(
        weights=published(content),
        step=step,
        source=published_as(content),
        metrics=_metrics(content["scalars"], step),
        history=history,
    )


def _metrics(scalars: Mapping[str, Any], step: int) -> dict[str, float]:
    """What was measured at ``step`` itself, without times and values of single classes."""
    return {
        name: value
        for name, (at, value) in scalars["latest"].items()
        if at == step
        and math.isfinite(value)
        and name.count("/") < 3
        and not name.startswith(("time/", "memory/"))
    }


def _best(checkpoints: CheckpointFolder) -> dict[str, Any] | None:
    """The best checkpoint's content; None, and a warning, if there is none."""
    best = checkpoints.best()
    if best is None:
        logger.warning(
            "no step was marked as the best (was anything evaluated, and had the metric a value?): "
            "the final weights are taken"
        )
    return best
