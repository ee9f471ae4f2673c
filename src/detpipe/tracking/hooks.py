"""The MLflow side: Kedro hooks that open, fill and close one run per ``kedro run``.

It hangs off the side: without it in ``HOOKS`` of ``settings.py`` everything else works as
before, and a tracker that cannot be reached costs a warning, never a run. MLflow is imported when
a run starts, so other commands do not pay for it.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kedro.framework.hooks import hook_impl
from pydantic import ValidationError

from detpipe.core.config import Frozen
from detpipe.core.errors import ConfigError
from detpipe.tracking import records
from detpipe.tracking.store import (
    ADDRESS,
    LAST_RUN_FILE,
    end_killed_run,
    make_store,
    resumed_run,
    use_store,
)
from detpipe.tracking.writer import RUN_ID_FILE

if TYPE_CHECKING:
    from types import FrameType

    from kedro.framework.context import KedroContext
    from kedro.io import CatalogProtocol
    from kedro.pipeline import Pipeline
    from kedro.pipeline.node import Node

logger = logging.getLogger(__name__)

_CHARTS = "workflowType=machine_learning&compareRunsMode=CHART"
"""MLflow's page opens on another kind of work without it."""


class TrackingConfig(Frozen):
    """``mlflow.yml``; ``MLFLOW_TRACKING_URI`` and ``MLFLOW_EXPERIMENT_NAME`` come first."""

    tracking_uri: str | None = None
    """Where runs are kept; null for ``mlflow.db`` in the project."""
    experiment: str = "detpipe"
    """What runs are grouped under."""
    run_name: str | None = None
    """Null for pipeline, model and data set."""


class Tracking:
    """One MLflow run per ``kedro run``: parameters, tags, artifacts, scores, and the right status.

    The status is FINISHED, FAILED (an exception, a missed expectation) or KILLED (Ctrl-C,
    SIGTERM).
    """

    def __init__(self) -> None:
        self._context: KedroContext | None = None
        self._config = TrackingConfig()
        self._catalog: CatalogProtocol | None = None
        self._run_id = ""
        self._previous_handler: Any = None
        self._weights_step = 0
        self._logged_tables: set[str] = set()

    @hook_impl
    def after_context_created(self, context: KedroContext) -> None:
        """Keeps the context: its parameters are logged when a run starts.

        Raises:
            ConfigError: ``mlflow.yml`` holds something else than a :class:`TrackingConfig`.
        """
        self._context = context
        try:
            self._config = TrackingConfig.model_validate(context.config_loader["mlflow"])
        except ValidationError as error:
            raise ConfigError(f"mlflow.yml: {error}") from error

    @hook_impl
    def before_pipeline_run(
        self, run_params: dict[str, Any], pipeline: Pipeline, catalog: CatalogProtocol
    ) -> None:
        """Opens the run and logs what is known before work starts."""
        if self._context is None:
            return
        self._catalog = catalog
        self._close("KILLED")  # a session of this process that was interrupted
        self._weights_step = 0
        self._logged_tables = set()
        self._terminate_as_exit()
        try:
            self._open(run_params, pipeline, catalog)
        except Exception as error:  # noqa: BLE001 - tracking never stops a run
            self._warn("the run is not tracked", error)

    @hook_impl
    def after_dataset_saved(self, dataset_name: str, data: Any, node: Node) -> None:
        """Uploads what the catalog marks with ``metadata: {mlflow: {artifact_path: …}}``."""
        if dataset_name == "weights":
            self._weights_step = int(data.metadata.get("step", 0))
        if not self._run_id or self._catalog is None:
            return
        try:
            self._log_dataset(dataset_name, data)
        except Exception as error:  # noqa: BLE001
            self._warn(f"'{dataset_name}' is not in the tracker", error)

    @hook_impl
    def after_dataset_loaded(self, dataset_name: str, data: Any, node: Node) -> None:
        """Scores of weights from an earlier run belong to those weights' step.

        And a run that reads a data set says which, as one that makes it does.
        """
        if dataset_name == "weights":
            self._weights_step = int(data.metadata.get("step", 0))
        if self._run_id and dataset_name in {"images", "boxes"} - self._logged_tables:
            try:
                self._log_table(dataset_name, data)
            except Exception as error:  # noqa: BLE001
                self._warn(f"'{dataset_name}' is not in the tracker", error)

    @hook_impl
    def after_pipeline_run(self, run_params: dict[str, Any]) -> None:
        """The run ended well."""
        self._close("FINISHED")

    @hook_impl
    def on_pipeline_error(self, error: Exception, run_params: dict[str, Any]) -> None:
        """The run failed; its tag ``error`` says how."""
        if self._run_id:
            try:
                import mlflow

                mlflow.set_tag("error", f"{type(error).__name__}: {error}"[:4000])
            except Exception as problem:  # noqa: BLE001
                self._warn("the error is not in the tracker", problem)
        self._close("FAILED")

    def _open(
        self, run_params: dict[str, Any], pipeline: Pipeline, catalog: CatalogProtocol
    ) -> None:
        context = self._context
        assert context is not None  # noqa: S101 - the caller looked
        parameters = records.used_parameters(context, pipeline)
        if getattr(parameters.get("train"), "rehearsal", False):
            return
        import mlflow

        settings = self._settings(context)
        if settings["artifacts"] is not None:
            make_store(Path(context.project_path) / "mlflow.db")
        use_store(settings["uri"])
        # Registered after MLflow's own, so it runs before: MLflow's would call a run that Ctrl-C
        # ended FINISHED.
        atexit.unregister(self._killed)
        atexit.register(self._killed)
        experiment = mlflow.get_experiment_by_name(settings["experiment"])
        experiment_id = (
            experiment.experiment_id
            if experiment
            else mlflow.create_experiment(
                settings["experiment"], artifact_location=settings["artifacts"]
            )
        )
        resumed = resumed_run(parameters, pipeline, catalog)
        last = catalog.load("run_lock").with_name(LAST_RUN_FILE)
        end_killed_run(last, but=resumed)
        run = mlflow.start_run(
            run_id=resumed,
            experiment_id=None if resumed else experiment_id,
            run_name=None
            if resumed
            else settings["run_name"] or records.run_name(run_params, parameters, context),
        )
        self._run_id = run.info.run_id
        last.write_text(self._run_id)
        if getattr(parameters.get("train"), "resume", False) and "checkpoints" in pipeline.inputs():
            # Here, not only by the writer later: a kill in between would cost the run's continuity.
            (catalog.load("checkpoints") / RUN_ID_FILE).write_text(self._run_id)
        mlflow.set_tags(records.tags_of(context, run_params, parameters))
        records.log_parameters(parameters, run.data.params)
        logger.info(
            "MLflow run '%s'; to look at it: mlflow ui --backend-store-uri %s, then "
            "http://127.0.0.1:5000/#/experiments/%s/runs?%s",
            run.info.run_name, settings["uri"], run.info.experiment_id, _CHARTS,
        )  # fmt: skip

    def _settings(self, context: KedroContext) -> dict[str, Any]:
        """The tracker's address, experiment and run name: environment, mlflow.yml, default."""
        config = self._config
        project = Path(context.project_path)
        own = f"sqlite:///{project / 'mlflow.db'}"
        uri = os.environ.get(ADDRESS) or config.tracking_uri or own
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or config.experiment
        return {
            "uri": uri,
            "experiment": name,
            "artifacts": (project / "mlartifacts").as_uri() if uri == own else None,
            "run_name": config.run_name,
        }

    def _log_table(self, name: str, data: Any) -> None:
        self._logged_tables.add(name)
        records.log_table(name, data)

    def _log_dataset(self, name: str, data: Any) -> None:
        import mlflow

        assert self._catalog is not None  # noqa: S101 - the caller looked
        dataset = self._catalog.get(name)
        if name in ("scores", "file_scores"):
            records.log_scores(data, self._weights_step)
        if name in ("images", "boxes"):
            self._log_table(name, data)
        if name == "verdict" and len(data):
            mlflow.set_tag("verdict", "passed" if data["ok"].all() else "failed")
        marked = (getattr(dataset, "metadata", None) or {}).get("mlflow")
        if not marked:
            return
        path = Path(str(getattr(dataset, "_filepath", None) or getattr(dataset, "_path", "")))
        if path.is_dir():
            mlflow.log_artifacts(str(path), f"{marked['artifact_path']}/{path.name}")
        elif path.exists():
            mlflow.log_artifact(str(path), marked["artifact_path"])
        if name == "weights":
            records.log_checkpoints(self._catalog)

    def _close(self, status: str) -> None:
        """Ends the run, if one is open, and gives the signal handler back."""
        if self._previous_handler is not None:
            signal.signal(signal.SIGTERM, self._previous_handler)
            self._previous_handler = None
        if not self._run_id:
            return
        run_id, self._run_id = self._run_id, ""
        self._log_the_log(run_id)
        try:
            import mlflow

            active = mlflow.active_run()
            if active and active.info.run_id == run_id:
                mlflow.end_run(status)
            else:
                mlflow.MlflowClient().set_terminated(run_id, status)
        except Exception as error:  # noqa: BLE001
            self._warn(f"the run's status {status} is not in the tracker", error)

    def _log_the_log(self, run_id: str) -> None:
        try:
            import mlflow

            if self._catalog is not None and (log := self._catalog.load("run_log")).exists():
                mlflow.MlflowClient().log_artifact(run_id, str(log), "logs")
        except Exception as error:  # noqa: BLE001
            self._warn("the log is not in the tracker", error)

    def _killed(self) -> None:
        self._close("KILLED")

    def _terminate_as_exit(self) -> None:
        """SIGTERM ends the process in good order (exit code 143), so that the run is closed."""
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
            return
        self._previous_handler = signal.signal(signal.SIGTERM, _exit_143)

    @staticmethod
    def _warn(what: str, error: Exception) -> None:
        logger.warning("MLflow: %s (%s: %s)", what, type(error).__name__, error)


def _exit_143(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)
