"""A Python that has imported everything once, and forks a process for each run it is told to make.

``python forks.py PROJECT FLAGS`` reads a line of JSON (``params``, ``log``) for each run, and
answers with the process's id and, when it has ended, its exit status. What the run is doing can be
seen in the bytes of the file FLAGS at any moment, also after it was killed.
"""

from __future__ import annotations

import functools
import json
import mmap
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

FLAGS = ("training", "writing", "detecting", "trained", "restored")
"""The bytes of the file; the last two stay 1."""


class Forks:
    """The other end: starts runs of a project and watches them."""

    def __init__(self, project: Path, marks: Path) -> None:
        self._running = 0
        marks.write_bytes(bytes(len(FLAGS)))
        self._marks = mmap.mmap(os.open(marks, os.O_RDONLY), 0, access=mmap.ACCESS_READ)
        self._parent = subprocess.Popen(
            [sys.executable, __file__, str(project), str(marks)],
            cwd=project,
            env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "400"},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._parent.stdout is not None
        assert self._parent.stdin is not None
        self._answers, self._orders = self._parent.stdout, self._parent.stdin
        assert self._answers.readline() == "ready\n"

    def start(self, params: Mapping[str, Any], *, log: Path) -> int:
        """The id of the process, and of its group."""
        self._orders.write(json.dumps({"params": params, "log": str(log)}) + "\n")
        self._orders.flush()
        self._running = int(self._answers.readline())
        return self._running

    def status(self) -> int:
        """The exit code of the last run; negative if a signal ended it. Waits for the end."""
        status = int(self._answers.readline())
        self._running = 0
        return status

    def flags(self) -> dict[str, bool]:
        return dict(zip(FLAGS, map(bool, self._marks[:]), strict=True))

    def close(self) -> None:
        """Ends it, and a run that a failing test has left."""
        if self._running:
            os.killpg(self._running, signal.SIGKILL)
        self._orders.close()
        assert self._parent.wait(timeout=60) == 0


def main(project: Path, marks: Path) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # log lines are no answers
    import_everything()
    from kedro.framework.startup import bootstrap_project

    bootstrap_project(project)
    flags = mmap.mmap(os.open(marks, os.O_RDWR), 0)
    show(flags)
    assert threading.active_count() == 1  # a fork would lose the others
    print("ready", file=answers)
    for line in sys.stdin:
        flags[:] = bytes(len(flags))
        child = os.fork()
        if child == 0:
            run(project, **json.loads(line))
            return
        os.setpgid(child, child)
        print(child, file=answers)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), file=answers)


def run(project: Path, *, params: Mapping[str, Any], log: str) -> None:
    """``kedro run`` in a process group of its own."""
    os.setpgid(0, 0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    from kedro.framework.session import KedroSession

    with KedroSession.create(project_path=project, runtime_params=dict(params)) as session:
        session.run(pipeline_names=["train"])


def import_everything() -> None:
    import cv2  # noqa: F401
    import hotcoco  # noqa: F401
    import kedro_datasets.pandas  # noqa: F401
    import matplotlib.figure  # noqa: F401
    import mlflow.store.tracking.sqlalchemy_store  # noqa: F401
    import tensorboard.summary.writer.event_file_writer  # noqa: F401
    import torchvision  # noqa: F401


def show(flags: mmap.mmap) -> None:
    """The functions at which a run's doings can be told raise and lower its flags."""
    from detpipe.evaluate import run as evaluate
    from detpipe.models import restore
    from detpipe.train import build
    from detpipe.train.checkpoint import CheckpointFolder

    def shown(owner: Any, name: str, during: str, after: str | None = None) -> None:
        function: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            flags[FLAGS.index(during)] = 1
            result = function(*args, **kwargs)
            if after is not None:
                flags[FLAGS.index(after)] = 1
            flags[FLAGS.index(during)] = during == "restored"
            return result

        setattr(owner, name, wrapped)

    shown(build, "train_detector", "training", after="trained")
    shown(CheckpointFolder, "_write", "writing")
    shown(evaluate, "predict", "detecting")
    shown(restore, "restore", "restored")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
