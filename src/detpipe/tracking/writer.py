"""Step metrics to MLflow, in batches, off the training thread."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mlflow import MlflowClient

logger = logging.getLogger(__name__)

_LONGEST_NAME = 250
_BATCH = 900
"""MLflow takes 1000 metrics a call."""
RUN_ID_FILE = "mlflow_run_id.txt"
"""In the checkpoint folder: the run that a resumed training continues."""


def metric_names(names: Iterable[str]) -> dict[str, str]:
    """Names as MLflow takes them, two never becoming one.

    MLflow allows letters, digits, ``_ - . : /`` and blanks, wants names that are normal paths, and
    no more than 250 characters. Anything else becomes ``_``; the end of a long name is replaced by
    its digest. Where two cleaned names would be equal, the later one gets ``_2``, ``_3``, … ; a
    name that needs no cleaning stays as it is.
    """
    cleaned: dict[str, str] = {}
    for _, name, base in sorted((_clean(n) != n, n, _clean(n)) for n in set(names)):
        candidate, count = base, 1
        while candidate in cleaned.values():
            count += 1
            candidate = f"{base}_{count}"
        cleaned[name] = candidate
    return cleaned


def _clean(name: str) -> str:
    parts = re.sub(r"[^\w\-. :/]", "_", name).split("/")
    path = "/".join(part if part.strip(".") else part.replace(".", "_") or "_" for part in parts)
    if len(path) > _LONGEST_NAME:
        path = path[: _LONGEST_NAME - 9] + "_" + hashlib.sha256(name.encode()).hexdigest()[:8]
    return path


class _Row(NamedTuple):
    """One value on its way to the tracker."""

    key: str
    value: float
    step: int
    timestamp: int


class MlflowWriter:
    """Step metrics to the active MLflow run, in batches, from a thread of its own.

    The loop never waits for the tracker. What cannot be sent is kept and tried again; at the end
    what is still unsent is written to ``mlflow_unsent.jsonl`` in the checkpoint folder. A resumed
    run sends what the interrupted one did not get out, and nothing twice.

    Args:
        folder: the checkpoint folder; the run's id is kept there for a resume.
        interval: seconds between batches.
    """

    def __init__(self, *, folder: Path, interval: float = 5.0) -> None:
        self._folder = folder
        self._interval = interval
        self._pending: list[_Row] = []
        self._there: set[tuple[str, int]] = set()
        self._names: dict[str, str] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._warned = False
        self._run_id = ""
        self._client: MlflowClient | None = None
        self._thread: threading.Thread | None = None

    def open(self, *, start_step: int) -> None:
        """Finds the active run; without one nothing is written."""
        import mlflow

        run = mlflow.active_run()
        if run is None:
            logger.info("no MLflow run is active: its writer writes nothing")
            return
        self._client, self._run_id = mlflow.MlflowClient(), run.info.run_id
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / RUN_ID_FILE).write_text(self._run_id)
        self._catch_up(start_step)
        self._thread = threading.Thread(target=self._work, name="mlflow-writer", daemon=True)
        self._thread.start()

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Puts one row into the next batch."""
        if self._client is None:
            return
        if not scalars.keys() <= self._names.keys():
            self._names = metric_names([*self._names, *scalars])
        now = int(time.time() * 1000)
        rows = [_Row(self._names[n], float(v), step, now) for n, v in scalars.items()]
        with self._lock:
            self._pending += [row for row in rows if (row.key, step) not in self._there]

    def close(self) -> None:
        """Sends what is left."""
        if self._thread is None:
            return
        self._closing = True
        self._wake.set()
        self._thread.join(timeout=60)
        self._thread = None
        if self._pending:
            file = self._folder / "mlflow_unsent.jsonl"
            with file.open("a") as lines:
                lines.writelines(json.dumps(row) + "\n" for row in self._pending)
            logger.warning(
                "MLflow: %d values could not be sent; they are in %s", len(self._pending), file
            )

    def _catch_up(self, start_step: int) -> None:
        """What the run holds already, and from ``metrics.jsonl`` what it lacks up to the resume."""
        assert self._client is not None  # noqa: S101 - open() saw to it
        try:
            self._there = steps_logged(self._client, self._run_id)
        except Exception as error:  # noqa: BLE001 - tracking never stops training
            logger.warning("MLflow: what the run holds is not known (%s)", error)
        file = self._folder / "metrics.jsonl"
        for line in file.read_text().splitlines() if file.exists() else ():
            try:
                row = json.loads(line)
            except ValueError:  # cut short by a crash
                continue
            step = row.pop("step")
            if step <= start_step:
                self.write(step, {k: math.nan if v is None else v for k, v in row.items()})

    def _work(self) -> None:
        while True:
            self._wake.wait(self._interval)
            with self._lock:
                rows = list(self._pending)
            try:
                self._send(rows)
            except Exception as error:  # noqa: BLE001 - tracking never stops training
                if not self._warned:
                    logger.warning("MLflow: metrics wait for the tracker (%s)", error)
                self._warned = True
            else:
                with self._lock:
                    del self._pending[: len(rows)]
            if self._closing:
                return

    def _send(self, rows: Sequence[_Row]) -> None:
        """Sends all rows; one that MLflow refuses for what it is does not hold up the others."""
        from mlflow.entities import Metric
        from mlflow.exceptions import MlflowException

        assert self._client is not None  # noqa: S101 - open() saw to it
        for first in range(0, len(rows), _BATCH):
            part = [
                Metric(r.key, r.value, r.timestamp, r.step) for r in rows[first : first + _BATCH]
            ]
            try:
                self._client.log_batch(self._run_id, metrics=part)
            except MlflowException as error:
                if error.error_code != "INVALID_PARAMETER_VALUE":
                    raise
                if len(part) == 1:
                    logger.warning("MLflow refuses the metric '%s': %s", part[0].key, error)
                    continue
                for row in rows[first : first + _BATCH]:
                    self._send([row])


def steps_logged(client: MlflowClient, run_id: str) -> set[tuple[str, int]]:
    """(metric, step) of every value that a run holds."""
    return {
        (key, metric.step)
        for key in client.get_run(run_id).data.metrics
        for metric in client.get_metric_history(run_id, key)
    }
