"""Kedro hooks around a run: mistyped sections, one run at a time, where the results are."""

from __future__ import annotations

import difflib
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from kedro.framework.hooks import hook_impl
from pydantic import ValidationError

from detpipe.core.config import Frozen
from detpipe.core.errors import ConfigError, DetpipeError, one_message
from detpipe.data.config import ConvertConfig, StreamConfig
from detpipe.evaluate.config import (
    CompareConfig,
    FilesConfig,
    PredictConfig,
    ReportConfig,
    VerifyConfig,
)
from detpipe.inputs import (
    EVALUATION,
    PATHS,
    clear_data,
    clear_evaluation,
    go_on,
    require_current_tables,
    require_given_paths,
    require_inputs,
    require_readable_expectations,
    require_same_evaluation,
)
from detpipe.models.config import ExportConfig
from detpipe.train.config import TrainConfig
from detpipe.train.preview import PreviewConfig

if TYPE_CHECKING:
    from kedro.framework.context import KedroContext
    from kedro.io import CatalogProtocol
    from kedro.pipeline import Pipeline
    from kedro.pipeline.node import Node

logger = logging.getLogger(__name__)

SECTIONS = (
    "data", "stream", "model", "train", "evaluate", "evaluate_files", "report", "verify",
    "compare", "predict", "export", "preview", "convert",
)  # fmt: skip
"""The top-level sections of the parameters."""
_FIELDS = {
    "train": TrainConfig.model_fields,
    "stream": StreamConfig.model_fields,
    "predict": PredictConfig.model_fields,
}


class Guard:
    """Refuses a mistyped section, and a second run in the folders of one that is under way."""

    def __init__(self) -> None:
        self._lock: IO[str] | None = None
        self._log: logging.Handler | None = None
        self._forks = False
        self._runtime: Mapping[str, Any] = {}
        self._anew: Pipeline | None = None

    @hook_impl
    def after_context_created(self, context: KedroContext) -> None:
        """Looks at the sections' names.

        Raises:
            ConfigError: a section that nothing reads; all of them are named.
        """
        readable_logs()  # Kedro may have configured logging anew since the settings were read
        self._runtime = dict(context.config_loader.runtime_params or {})
        runtime = set(self._runtime)
        given = set(context.config_loader["parameters"]) | runtime
        mistakes = []
        for name in sorted(given - {*SECTIONS, *PATHS}):
            near = difflib.get_close_matches(name, (*SECTIONS, *PATHS), 1)
            if near:
                mistakes.append(f"'{name}': did you mean '{near[0]}'?")
            elif name in runtime:
                owners = [f"'{key}.{name}'" for key, model in _FIELDS.items() if name in model]
                hint = f"did you mean {' or '.join(owners)}?" if owners else "nothing reads it"
                mistakes.append(f"'{name}': {hint}")
        if mistakes:
            raise ConfigError(
                one_message(
                    f"unknown parameters (known: {', '.join((*SECTIONS, *PATHS))}):", mistakes
                )
            )
        _check_light_sections(context.config_loader["parameters"])

    @hook_impl
    def before_pipeline_run(
        self, run_params: Mapping[str, Any], pipeline: Pipeline, catalog: CatalogProtocol
    ) -> None:
        """Takes the lock of this recipe's folders, and begins the run's log file.

        Raises:
            DetpipeError: another process has it, or what the pipeline reads is not there yet, or
                is not of the annotation files any more.
        """
        self._release()
        require_given_paths(self._runtime, pipeline, catalog)
        require_readable_expectations(pipeline, catalog)
        require_inputs(pipeline, catalog)
        require_current_tables(pipeline, catalog)
        require_same_evaluation(pipeline, catalog)
        self._take_lock(catalog)
        self._anew = None if run_params.get("only_missing_outputs") else pipeline
        if self._anew is None:
            go_on(pipeline, catalog)
        else:
            clear_data(pipeline, catalog)
        self._log = _log_to_file(pipeline, catalog)

    @hook_impl
    def after_node_run(self, node: Node, catalog: CatalogProtocol) -> None:
        """Takes detections of other weights away, when new ones are about to be made.

        Not before: weights or a data set that are refused cost no report.
        """
        if node.name == EVALUATION and self._anew is not None:
            clear_evaluation(self._anew, catalog)

    def _take_lock(self, catalog: CatalogProtocol) -> None:
        try:
            import fcntl
        except ImportError:  # no such locks on Windows
            return
        file = catalog.load("run_lock")
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = file.open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            holder = lock.read().strip() or "another process"
            lock.close()
            raise DetpipeError(
                f"{holder} works in the folders of this recipe ('{file.parent}'); two at a time "
                f"would mix their files. Wait for it, or give this run a recipe of its own "
                f"(conf/<env>/globals.yml with another name)"
            ) from None
        lock.truncate(0)
        lock.write(f"the run of process {os.getpid()}, since {time.strftime('%Y-%m-%d %H:%M:%S')},")
        lock.flush()
        self._lock = lock
        if not self._forks:  # or a worker would hold the lock when only the main process is killed
            os.register_at_fork(after_in_child=self._release)
            self._forks = True

    @hook_impl
    def after_pipeline_run(self, pipeline: Pipeline, catalog: CatalogProtocol) -> None:
        """Says where the results lie, and gives the lock back."""
        folders = {
            Path(str(path)).parent
            for name in pipeline.all_outputs()
            if (dataset := catalog.get(name)) is not None
            and (path := getattr(dataset, "_filepath", None) or getattr(dataset, "_path", None))
        }
        if folders:
            logger.info("results: %s", ", ".join(sorted(map(str, folders))))
        self._release()

    @hook_impl
    def on_pipeline_error(
        self, error: Exception, pipeline: Pipeline, catalog: CatalogProtocol
    ) -> None:
        """Gives the lock back; of a refused data set, says where everything found is written."""
        if hasattr(error, "issues") and "data_page" in pipeline.all_outputs():
            names = ("data_page", "data_issues")
            files = [str(getattr(catalog.get(name), "_filepath", name)) for name in names]
            logger.error("everything that was found: %s", ", ".join(files))
        self._release()

    def _release(self) -> None:
        # A process that ends in any other way gives it back by ending.
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        if self._log is not None:
            logging.getLogger().removeHandler(self._log)
            self._log.close()
            self._log = None


def _log_to_file(pipeline: Pipeline, catalog: CatalogProtocol) -> logging.Handler | None:
    """Everything that is logged goes to the catalog's ``run_log`` too; None if nothing is kept.

    A new run begins a new file, a resumed one goes on in it.
    """
    train = catalog.load("params:train") if "params:train" in pipeline.inputs() else None
    if train is not None and train.rehearsal:
        return None
    file = catalog.load("run_log")
    file.parent.mkdir(parents=True, exist_ok=True)
    goes_on = train is not None and train.resume
    handler = logging.FileHandler(file, mode="a" if goes_on else "w", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.getLogger().addHandler(handler)
    return handler


def _check_light_sections(parameters: Mapping[str, Any]) -> None:
    """Checks sections that Kedro leaves alone when the pipeline does not read them.

    Those whose specs would import torch (data, model, train, evaluate) are left to Kedro.

    Raises:
        ConfigError: with all mistakes.
    """
    sections: dict[str, type[Frozen]] = {
        "stream": StreamConfig,
        "evaluate_files": FilesConfig,
        "report": ReportConfig,
        "compare": CompareConfig,
        "verify": VerifyConfig,
        "predict": PredictConfig,
        "export": ExportConfig,
        "preview": PreviewConfig,
        "convert": ConvertConfig,
    }
    mistakes = []
    for name, section in sections.items():
        try:
            section.model_validate(parameters.get(name, {}))
        except ValidationError as error:
            mistakes += [
                f"{'.'.join(map(str, (name, *e['loc'])))}: {e['msg']}" for e in error.errors()
            ]
    if mistakes:
        raise ConfigError(one_message("these parameters cannot be used:", mistakes))


_CHAFF = (
    # Advice that would not go on with a training, but begin it anew: it is train.resume that does.
    "You can resume the pipeline run from",
    "No nodes ran. Repeat the previous command",
    # The command's last line says the same in words for people.
    "Failed to instantiate",
)


def only_kedros_markup(record: Any) -> bool:
    """A log filter: rich interprets ``[...]`` only in Kedro's own formatted lines.

    Kedro's handler has markup on; a file name or class with brackets in a log line would vanish
    or, as ``[/x]``, raise out of ``logger.info``.
    """
    record.markup = hasattr(record, "rich_format")
    return not any(chaff in record.getMessage() for chaff in _CHAFF)


def readable_logs() -> None:
    """No markup in our lines, and no line broken at 80 columns in a file."""
    from rich.logging import RichHandler

    for handler in logging.getLogger().handlers:
        if isinstance(handler, RichHandler) and only_kedros_markup not in handler.filters:
            handler.addFilter(only_kedros_markup)
            if not handler.console.is_terminal and "COLUMNS" not in os.environ:
                handler.console.width = 200
