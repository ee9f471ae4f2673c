"""One function over many items in several processes, any of which may die of its item."""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import NamedTuple, TypeVar

from detpipe.core.errors import DetpipeError

T = TypeVar("T")

_BATCH = 16
"""Items handed over at a time: enough that nobody waits, few enough that all end together."""


class Died(NamedTuple):
    """In place of a result: the process ended, twice, while it had this item alone."""

    how: str


def spread(
    function: Callable[[str], T], items: Sequence[str], *, processes: int
) -> Generator[tuple[int, T | Died]]:
    """(position, result) of every item, in the order in which they are done.

    An item whose process dies (killed for want of memory, crashed in a codec) is tried once more
    when all others are done, with nothing beside it. When the iterator is closed early, by Ctrl-C
    too, the processes are killed at once.

    Args:
        function: a plain function of a module, or a ``functools.partial`` of one.
        items: its arguments.
        processes: how many work at a time; 1 and more.

    Raises:
        DetpipeError: processes cannot be started.
    """
    again: list[int] = []
    with closing(_run(function, items, deque(range(len(items))), processes)) as results:
        for index, result in results:
            if isinstance(result, Died):
                again.append(index)
            else:
                yield index, result
    for index in again:
        yield from _run(function, items, deque([index]), 1)


@dataclass
class _Worker:
    process: BaseProcess
    todo: deque[int] = field(default_factory=deque)
    ready: bool = False


def _run(
    function: Callable[[str], T], items: Sequence[str], waiting: deque[int], processes: int
) -> Generator[tuple[int, T | Died]]:
    team: dict[Connection, _Worker] = {}
    try:
        while waiting or team:
            while len(team) < processes and len(team) * _BATCH < len(waiting):
                team.update([_start(function)])
            heard = wait(list(team))
            for connection, worker in [pair for pair in team.items() if pair[0] in heard]:
                try:
                    message = connection.recv()
                except (EOFError, OSError):
                    del team[connection]
                    how = _end(worker.process)
                    if not worker.ready:
                        raise DetpipeError(_NO_START.format(how)) from None
                    guilty = worker.todo.popleft()
                    waiting.extendleft(reversed(worker.todo))
                    yield guilty, Died(how)
                    continue
                if worker.ready:
                    yield worker.todo.popleft(), message
                worker.ready = True
                if not worker.todo and not _hand_over(connection, worker, items, waiting):
                    del team[connection]
                    connection.close()
                    worker.process.join()
    finally:
        for connection, worker in team.items():
            worker.process.kill()
            worker.process.join()
            connection.close()


_NO_START = (
    "the processes that look at pictures cannot be started (the first one: {}); a script that "
    'starts them needs `if __name__ == "__main__":`, or set data.check.workers: 0'
)


def _start(function: Callable[[str], T]) -> tuple[Connection, _Worker]:
    # spawn: forking a process that already runs threads (BLAS, MLflow) can hang.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, function), daemon=True)
    process.start()
    theirs.close()  # so that its end is seen here
    return ours, _Worker(process)


def _hand_over(
    connection: Connection, worker: _Worker, items: Sequence[str], waiting: deque[int]
) -> bool:
    """Gives a worker its next items; whether there were any."""
    batch = [waiting.popleft() for _ in range(min(_BATCH, len(waiting)))]
    if batch:
        worker.todo.extend(batch)
        with suppress(OSError):  # it has died: its end is read next
            connection.send([items[index] for index in batch])
    return bool(batch)


def _end(process: BaseProcess) -> str:
    """How a process ended, in words."""
    process.join()
    code = process.exitcode or 0
    if code >= 0:
        return f"exit code {code}"
    if -code == signal.SIGKILL:
        return "killed, as the system does when memory runs out"
    return f"signal {-code} ({signal.strsignal(-code) or 'unknown'})"


def _serve(connection: Connection, function: Callable[[str], object]) -> None:
    """What a worker process does: results one by one, until nobody asks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    try:
        connection.send(None)
        while True:
            for item in connection.recv():
                connection.send(function(item))
    except (EOFError, OSError):
        return
