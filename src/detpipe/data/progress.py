"""How far a long walk over files has come: a bar on a terminal, else a log line now and then."""

from __future__ import annotations

import logging
import sys
from collections.abc import Generator, Iterable
from time import perf_counter
from typing import TypeVar

from detpipe.core.console import log_console

logger = logging.getLogger(__name__)

T = TypeVar("T")

_EVERY = 30.0
"""Seconds between log lines."""


def follow(steps: Iterable[T], *, total: int, what: str) -> Generator[T]:
    """``steps`` unchanged, while the user is told how many of ``total`` are done.

    Args:
        steps: the work.
        total: how many there will be.
        what: what is done, for the bar and the log (``looking at pictures``).
    """
    return _bar(steps, total, what) if sys.stdout.isatty() else _lines(steps, total, what)


def _lines(steps: Iterable[T], total: int, what: str) -> Generator[T]:
    start = said = perf_counter()
    for done, step in enumerate(steps, start=1):
        yield step
        now = perf_counter()
        if now - said >= _EVERY and done < total:
            said, left = now, (now - start) * (total - done) / done
            logger.info("%s: %d of %d, about %.0f s left", what, done, total, left)


def _bar(steps: Iterable[T], total: int, what: str) -> Generator[T]:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    bar = Progress(
        *columns, TimeRemainingColumn(), console=log_console(), transient=True,
        refresh_per_second=4,
    )  # fmt: skip
    task = bar.add_task(what, total=total)  # before the bar starts: what is quick is shown too
    with bar:
        yield from bar.track(steps, total=total, task_id=task)
