"""The losses on a data set that is not trained on, on demand."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from math import fsum, isfinite

import pandas as pd
import torch

from detpipe.core.tables import SCORES
from detpipe.core.types import Batch, Detector
from detpipe.evaluate.processes import from_all
from detpipe.evaluate.run import device_of, evaluating, global_rng_kept

logger = logging.getLogger(__name__)

TASK = "loss"


def losses(
    model: Detector,
    stream: Iterable[Batch],
    *,
    dataset: str,
    device: torch.device | str,
    seed: int = 0,
) -> pd.DataFrame:
    """The mean of each loss over the images of the stream, and of their sum.

    The model is in eval mode: batch norm uses and keeps its running statistics, dropout is off. A
    detector gives the mean over a batch; those are weighted by the images of the batch, so the
    numbers depend a little on the batch size. Random draws within a loss (the proposals that Faster
    R-CNN samples) start from ``seed`` in each batch: the same numbers every time, whichever
    process computes which batch. The global random state stays as it is.

    With ``torch.distributed`` every process calls it with its share of the images (whole batches,
    see :func:`detpipe.evaluate.processes.share`) and gets the means over all of them.

    Args:
        model: the detector.
        stream: batches with targets; each image once.
        dataset: what the rows say.
        device: where to run; ``auto`` is a GPU if there is one.
        seed: of random draws within a loss.

    Returns:
        A scores table of task ``loss``: metric ``total`` and one for each loss by its name. They
        are losses, not percent. No rows without images.
    """
    where = device_of(device)
    batches = [
        each for part in from_all(lambda: _pass(model, stream, where, seed)) for each in part
    ]
    images = sum(count for count, _ in batches)
    # A loss that is not there in a batch is 0 there, so that the names add up to the total.
    names = dict.fromkeys(name for _, values in batches for name in values)
    means = {
        name: _sum(count * values.get(name, 0.0) for count, values in batches) / images
        for name in names
    }
    total = _sum(means.values())
    bad = [name for name, value in means.items() if not isfinite(value)]
    if bad:
        logger.warning("loss: not finite on '%s': %s", dataset, ", ".join(bad))
    if images:
        means = {"total": total} | {name: v for name, v in means.items() if name != "total"}
    return SCORES.make(
        {"dataset": dataset, "task": TASK, "metric": name, "class_name": "", "value": value}
        for name, value in means.items()
    )


def _pass(
    model: Detector, stream: Iterable[Batch], where: torch.device, seed: int
) -> list[tuple[int, dict[str, float]]]:
    """(images, name → loss) of each batch."""
    found = []
    with evaluating(model, where), global_rng_kept(where), torch.no_grad():
        for batch in stream:
            _seed(seed, where)
            values = model(batch.to(where))
            found.append((len(batch), {name: float(value) for name, value in values.items()}))
    return found


def _seed(seed: int, where: torch.device) -> None:
    """Only the generators that :func:`global_rng_kept` puts back; other GPUs keep theirs."""
    torch.default_generator.manual_seed(seed)
    if where.type == "cuda":
        with torch.cuda.device(where):
            torch.cuda.manual_seed(seed)


def _sum(values: Iterable[float]) -> float:
    """Exactly rounded, so it does not depend on the order; not finite where a value is not."""
    values = list(values)
    return fsum(values) if all(map(isfinite, values)) else sum(values)
