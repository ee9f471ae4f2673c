"""What a run holds besides its step metrics: parameters, tags, scores, the data set, checkpoints.

Every function writes to the active MLflow run.
"""

from __future__ import annotations

import platform
import subprocess
import time
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from detpipe.core.config import Duration, Spec
from detpipe.tracking.runs import digest_of, digest_tag
from detpipe.tracking.writer import metric_names, steps_logged

if TYPE_CHECKING:
    from kedro.framework.context import KedroContext
    from kedro.io import CatalogProtocol
    from kedro.pipeline import Pipeline

_LONGEST_PARAMETER = 500


def flatten(values: Any, prefix: str = "") -> dict[str, str]:
    """Nested mappings and sequences as dotted keys; an empty one keeps its own line."""
    if isinstance(values, Duration):
        return {prefix: str(values)}
    if isinstance(values, Spec):
        values = {"use": values.use, **values.options}
    elif isinstance(values, BaseModel):
        values = {name: getattr(values, name) for name in type(values).model_fields}
    if isinstance(values, Mapping) and values:
        items: Iterable[tuple[Any, Any]] = values.items()
    elif (
        isinstance(values, (list, tuple))
        and values
        and any(isinstance(value, (Mapping, list, tuple)) for value in values)
    ):
        items = enumerate(values)
    else:
        return {prefix: str(values)}
    flat: dict[str, str] = {}
    for key, value in items:
        flat |= flatten(value, f"{prefix}.{key}" if prefix else str(key))
    return flat


def used_parameters(context: KedroContext, pipeline: Pipeline) -> dict[str, Any]:
    """The parameter sections that this pipeline reads, defaults filled in."""
    names = {name.removeprefix("params:") for name in pipeline.inputs() if ":" in name}
    return {name: context.params[name] for name in sorted(names) if name in context.params}


def log_parameters(parameters: Mapping[str, Any], known: Mapping[str, str]) -> None:
    """Flattened parameters; long ones as a file, those that changed on resume as tags."""
    import mlflow

    flat = flatten(parameters)
    changed = {k: v for k, v in flat.items() if k in known and known[k] != v}
    if changed:
        mlflow.set_tags({f"resumed.{key}": value for key, value in changed.items()})
    long = {k: v for k, v in flat.items() if len(v) > _LONGEST_PARAMETER}
    if long:
        mlflow.log_dict(long, "config/long_parameters.json")
    fresh = {k: v for k, v in flat.items() if k not in known and k not in long}
    names = metric_names(fresh)
    mlflow.log_params({names[key]: value for key, value in fresh.items()})


def run_name(
    run_params: Mapping[str, Any], parameters: Mapping[str, Any], context: KedroContext
) -> str:
    """Pipeline, model and recipe, such as ``train fasterrcnn_resnet50_fpn bccd``."""
    pipelines = run_params.get("pipeline_names") or [run_params.get("pipeline_name")]
    pipeline = "+".join(sorted(name for name in pipelines if name)) or "train"
    model = parameters.get("model")
    parts = [pipeline if pipeline != "__default__" else "train"]
    if model is not None:
        parts.append(model.options.get("name") or model.use.split(".")[-2])
    parts.append(str(context.config_loader["globals"].get("name", "")))
    return " ".join(part for part in parts if part)


def tags_of(
    context: KedroContext, run_params: Mapping[str, Any], parameters: Mapping[str, Any]
) -> dict[str, str]:
    """Where, when and with what the run was made."""
    tags = {"env": str(run_params.get("env") or "local"), "host": platform.node()}
    for package in ("detpipe", "torch", "torchvision", "kedro", "mlflow"):
        try:
            tags[f"version.{package}"] = version(package)
        except PackageNotFoundError:
            continue
    tags["version.python"] = platform.python_version()
    for name, arguments in {
        "git.commit": ["rev-parse", "HEAD"],
        "git.dirty": ["status", "--porcelain"],
    }.items():
        found = subprocess.run(  # noqa: S603 - fixed arguments
            ["git", *arguments],  # noqa: S607
            cwd=context.project_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if found.returncode == 0:
            text = found.stdout.strip()
            tags[name] = str(bool(text)).lower() if name == "git.dirty" else text
    return tags


def log_scores(scores: Any, step: int) -> None:
    """The scores table as metrics at the step of the weights; what is there already stays."""
    import mlflow
    from mlflow.entities import Metric

    from detpipe.evaluate.scoring import as_metrics

    metrics = as_metrics(scores)
    names = metric_names(metrics)
    if any(names[name] != name for name in metrics):
        mlflow.log_dict({v: k for k, v in names.items()}, "reports/metric_names.json")
    run = mlflow.active_run()
    if run is None or not metrics:
        return
    client = mlflow.MlflowClient()
    there = steps_logged(client, run.info.run_id)
    now = int(time.time() * 1000)
    rows = [Metric(names[name], value, now, step) for name, value in metrics.items()]
    rows = [row for row in rows if (row.key, step) not in there]
    for first in range(0, len(rows), 900):
        client.log_batch(run.info.run_id, metrics=rows[first : first + 900])


def log_table(name: str, table: Any) -> None:
    """The data set: a digest of each of its tables, and how many images each split has."""
    import mlflow

    tags = {digest_tag(name): digest_of(table)}
    if name == "images":
        tags |= {f"data.images.{k}": str(n) for k, n in table["split"].value_counts().items()}
    mlflow.set_tags(tags)


def log_checkpoints(catalog: CatalogProtocol) -> None:
    """The final and the best checkpoint, and a profile; the periodic ones stay on disk only."""
    import mlflow

    from detpipe.hooks.profile import FOLDER as PROFILE
    from detpipe.train.checkpoint import INDEX, CheckpointFolder

    folder = CheckpointFolder(catalog.load("checkpoints"))
    files = [folder.file(entry.step) for entry in folder.entries() if entry.final or entry.best]
    for file in (*files, folder.path / INDEX):
        if file.exists():
            mlflow.log_artifact(str(file), "checkpoints")
    if (folder.path / PROFILE).is_dir():
        mlflow.log_artifacts(str(folder.path / PROFILE), PROFILE)
