"""MLflow's store: made whole, used without a trace in the environment, its runs ended."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detpipe.tracking.writer import RUN_ID_FILE

if TYPE_CHECKING:
    from kedro.io import CatalogProtocol
    from kedro.pipeline import Pipeline

logger = logging.getLogger(__name__)

LAST_RUN_FILE = ".mlflow_run"
"""Beside the recipe's lock: the run that was opened last."""
ADDRESS = "MLFLOW_TRACKING_URI"


def resumed_run(
    parameters: Mapping[str, Any], pipeline: Pipeline, catalog: CatalogProtocol
) -> str | None:
    """The run that an earlier, unfinished training of this checkpoint folder belongs to."""
    import mlflow

    train = parameters.get("train")
    if not getattr(train, "resume", False) or "checkpoints" not in pipeline.inputs():
        return None
    file = catalog.load("checkpoints") / RUN_ID_FILE
    if not file.exists():
        return None
    run_id = file.read_text().strip()
    try:
        mlflow.get_run(run_id)
    except mlflow.exceptions.MlflowException:
        logger.warning("the tracker does not know run %s any more: a new run is made", run_id)
        return None
    return run_id


def make_store(file: Path) -> None:
    """The project's own SQLite store, whole or not at all.

    MLflow makes its tables in many steps; a process that is killed between them leaves a store
    that no later one can use.
    """
    if file.exists() or os.name != "posix":
        return
    import mlflow

    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        mlflow.MlflowClient(f"sqlite:///{temporary}").search_experiments()
        with contextlib.suppress(FileExistsError):  # another process was faster
            os.link(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)


def end_killed_run(last: Path, *, but: str | None) -> None:
    """Calls the recipe's last run KILLED if it never ended: its process cannot be alive.

    Args:
        last: file with the run's id. Two processes do not run one recipe at a time.
        but: the run that goes on now.
    """
    import mlflow

    run_id = last.read_text().strip() if last.exists() else ""
    if not run_id or run_id == but:
        return
    client = mlflow.MlflowClient()
    with contextlib.suppress(mlflow.exceptions.MlflowException):  # unknown in this store
        if client.get_run(run_id).info.status == "RUNNING":
            client.set_terminated(run_id, "KILLED")
            logger.warning("MLflow: the run before this one never ended: it is now KILLED")


def use_store(uri: str) -> None:
    """MLflow uses ``uri`` from now on; the environment stays as the user set it.

    MLflow writes the address into the environment, where the next session of this process would
    take it for the user's wish.
    """
    import mlflow

    before = os.environ.get(ADDRESS)
    mlflow.set_tracking_uri(uri)
    os.environ.pop(ADDRESS, None)
    if before is not None:
        os.environ[ADDRESS] = before
