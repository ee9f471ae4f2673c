"""Kedro's settings of this project: configuration loader, hooks, log filter.

Remove ``Tracking()`` and nothing is tracked; everything else works as before.
"""

from __future__ import annotations

import os
import warnings

from detpipe.guard import Guard, readable_logs
from detpipe.rehearsal import Rehearse
from detpipe.tracking.hooks import Tracking

# Neither Kedro's nor MLflow's telemetry reports on the people who use this project (for Kedro see
# the file .telemetry). MLflow reads its switch when it is imported, which is later than this.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
# A server that is away must cost seconds: MLflow's own default is minutes for each call.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")

# kedro 1.7 registers its resolvers under a name that omegaconf 2.4 calls old; nothing to act on.
warnings.filterwarnings("ignore", message=".*register_new_resolver.*")
# Both spellings of the option are documented here.
warnings.filterwarnings("ignore", message="Option '--pipeline' is deprecated.*")


def _environment_variable(name: str, default: str | None = None) -> str | None:
    """``${env:NAME, default}`` in the configuration; an empty variable counts as unset."""
    return os.environ.get(name) or default


HOOKS = (Tracking(), Guard(), Rehearse())
# Two trackers would log everything twice.
DISABLE_HOOKS_FOR_PLUGINS = ("kedro_mlflow", "kedro-mlflow")
CONFIG_LOADER_ARGS = {
    "base_env": "base",
    "default_run_env": "local",
    # A small environment file overrides single keys instead of wiping whole sections.
    "merge_strategy": {"parameters": "soft", "mlflow": "soft"},
    "config_patterns": {"mlflow": ["mlflow*", "mlflow*/**"]},
    "custom_resolvers": {"env": _environment_variable},
}

readable_logs()
