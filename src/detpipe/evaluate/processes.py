"""Evaluation that several processes share, with ``torch.distributed`` if it was started."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from torch import distributed

from detpipe.core.errors import DataError, DetpipeError
from detpipe.core.tables import positions
from detpipe.evaluate.run import Prediction, no_timing, timing_frame

T = TypeVar("T")


def share(count: int, *, rank: int, world: int, batch_size: int = 1) -> list[int]:
    """Which of ``count`` images the process ``rank`` of ``world`` takes.

    Whole batches are dealt out in turn, so each batch is the very one that a single process would
    make: a detector whose result depends on the padding of its batch gives the same too.

    Returns:
        Ascending indices in 0..count; all processes together have each exactly once. Some have
        none where there are more processes than batches.
    """
    starts = range(rank * batch_size, count, world * batch_size)
    return [i for start in starts for i in range(start, min(start + batch_size, count))]


def my_share(count: int, *, batch_size: int = 1) -> list[int]:
    """The :func:`share` of this process: all of it where it is the only one."""
    if not _several():
        return list(range(count))
    rank, world = distributed.get_rank(), distributed.get_world_size()
    return share(count, rank=rank, world=world, batch_size=batch_size)


def from_all(work: Callable[[], T]) -> list[T]:
    """What ``work()`` gives in each process, by rank, in every process; all must call it.

    An error in one process is one in all of them: none waits for a result that will not come.

    Raises:
        DetpipeError: another process failed. The one that did raises its own error.
    """
    if not _several():
        return [work()]
    mine, failure = None, None
    try:
        mine = work()
    except Exception as error:  # noqa: BLE001 raised below, when the others have heard of it
        failure = error
    told = None if failure is None else f"{type(failure).__name__}: {failure}"
    everyone: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(everyone, (mine, told))
    if failure is not None:
        raise failure
    failed = [f"process {rank}: {error}" for rank, (_, error) in enumerate(everyone) if error]
    if failed:
        raise DetpipeError(f"the evaluation failed in another process; {'; '.join(failed)}")
    return [result for result, _ in everyone]


def gather(work: Callable[[], Prediction], image_ids: Sequence[str]) -> Prediction:
    """What all processes found together, in each of them; ``work()`` does this one's share.

    Every process of the default group of ``torch.distributed`` must call it; without one it is
    ``work()`` with a check. An error in one process is one in all of them.

    Args:
        work: runs :func:`predict` on this process's share of the images.
        image_ids: all images, in the order in which their detections are wanted.

    Returns:
        The same in every process: the table in the order of ``image_ids``, best first within an
        image. The timing is of one process: the mean, weighted by images.

    Raises:
        DataError: an image is missing, came twice, or is not one of ``image_ids``.
        DetpipeError: another process failed. The one that did raises its own error.
    """
    return _joined(from_all(work), image_ids)


def _joined(parts: Sequence[Prediction], image_ids: Sequence[str]) -> Prediction:
    seen = pd.Series([image for part in parts for image in part.image_ids], dtype="str")
    wanted = pd.Series(list(image_ids), dtype="str")
    for images, what in (
        (wanted[~wanted.isin(seen)], "were given to no process"),
        (seen[seen.duplicated()], "were given more than once"),
        (seen[~seen.isin(wanted)], "are none of this data set"),
    ):
        if len(images):
            first = ", ".join(f"'{image}'" for image in images.unique()[:5])
            raise DataError(
                f"{images.nunique()} image(s) {what}: {first}{', …' if len(images) > 5 else ''}; "
                "deal them out with processes.my_share"
            )
    table = pd.concat([part.detections for part in parts], ignore_index=True)
    order = np.argsort(positions(table["image_id"], wanted), kind="stable")
    timing = _mean_timing([part.timing for part in parts])
    return Prediction(table.iloc[order].reset_index(drop=True), timing, tuple(wanted))


def _mean_timing(timings: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Of all processes; those without images have no rows."""
    counted = [timing for timing in timings if len(timing)]
    if not counted:
        return no_timing()
    weights = [int(timing["images"].iloc[0]) for timing in counted]
    ms = np.average([timing["ms_per_image"] for timing in counted], axis=0, weights=weights)
    return timing_frame(ms.tolist(), sum(weights))


def _several() -> bool:
    return (
        distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )
