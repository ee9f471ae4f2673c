"""Step metrics to MLflow, in batches, off the training thread."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

logger = logging.getLogger(__name__)

RUN_ID_FILE = "mlflow_run_id.txt"
"""In the checkpoint folder: the run that a resumed training continues."""


def metric_names(names: Iterable[str]) -> dict[str, str]:
    """Names as MLflow takes them, two never becoming one.

    MLflow allows letters, digits, ``_ - . : /`` and blanks; anything else becomes ``_``. Where two
    cleaned names would be equal, the later one gets ``_2``, ``_3``, … .
    """
    cleaned: dict[str, str] = {}
    for name in sorted(set(names)):
        base = re.sub(r"[^\w\-. :/]", "_", name)
        candidate, count = base, 1
        while candidate in cleaned.values():
            count += 1
            candidate = f"{base}_{count}"
        cleaned[name] = candidate
    return cleaned


class MlflowWriter:
    """Step metrics to the active MLflow run, in batches, from a thread of its own.

    The loop never waits for the tracker. What cannot be sent is kept and tried again; at the end
    what is still unsent is written to ``mlflow_unsent.jsonl`` in the checkpoint folder.

    Args:
        folder: the checkpoint folder; the run's id is kept there for a resume.
        interval: seconds between batches.
    """

    def __init__(self, *, folder: Path, interval: float = 5.0) -> None:
        self._folder = folder
        self._interval = interval
        self._pending: list[tuple[str, float, int, int]] = []
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._send: Callable[[list[tuple[str, float, int, int]]], None] | None = None
        self._logged: dict[str, int] = {}
        self._names: dict[str, str] = {}
        self._closing = False
        self._warned = False

    def open(self, *, start_step: int) -> None:
        """Finds the active run; without one nothing is written."""
        import mlflow

        run = mlflow.active_run()
        if run is None:
            logger.info("no MLflow run is active: its writer writes nothing")
            return
        client, run_id = mlflow.MlflowClient(), run.info.run_id
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / RUN_ID_FILE).write_text(run_id)
        if start_step:
            # MLflow appends: what the interrupted run already wrote must not come twice.
            self._logged = {
                key: max(m.step for m in client.get_metric_history(run_id, key))
                for key in client.get_run(run_id).data.metrics
            }

        def send(rows: list[tuple[str, float, int, int]]) -> None:
            from mlflow.entities import Metric

            for first in range(0, len(rows), 900):
                part = [
                    Metric(key, value, when, step)
                    for key, value, step, when in rows[first : first + 900]
                ]
                client.log_batch(run_id, metrics=part)

        self._send = send
        self._thread = threading.Thread(target=self._run, name="mlflow-writer", daemon=True)
        self._thread.start()

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Puts one row into the next batch."""
        if self._send is None:
            return
        if not scalars.keys() <= self._names.keys():
            self._names = metric_names([*self._names, *scalars])
        now = int(time.time() * 1000)
        rows = [
            (self._names[name], float(value), step, now)
            for name, value in scalars.items()
            if step > self._logged.get(self._names[name], -1)
        ]
        with self._lock:
            self._pending += rows

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

    def _run(self) -> None:
        while True:
            self._wake.wait(self._interval)
            with self._lock:
                rows = list(self._pending)
            if rows and self._send is not None:
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
