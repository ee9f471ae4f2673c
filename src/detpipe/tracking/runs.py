"""Earlier runs: found by name or id, and read: their scores, detections and data set."""

from __future__ import annotations

import difflib
import hashlib
import logging
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from detpipe.core.errors import DetpipeError

if TYPE_CHECKING:
    import pandas as pd
    from mlflow import MlflowClient
    from mlflow.entities import Run

logger = logging.getLogger(__name__)

_SHOWN = 5
_LOOKED_THROUGH = 1000
"""Newest runs among which near names are looked for."""


def find_run(text: str) -> Run:
    """The run of that id, else the newest finished one of that name, in every experiment.

    Raises:
        DetpipeError: there is none, or the tracker cannot be asked; one sentence, with near names
            or the newest ones of runs that finished.
    """
    import mlflow
    from mlflow.exceptions import MlflowException

    client = mlflow.MlflowClient()
    try:
        run = _by_id(client, text)
        named = [] if run else _by_name(client, text)
        finished = [run] if run else [one for one in named if one.info.status == "FINISHED"]
        newest = [] if finished else _newest(client)
    except MlflowException as error:
        raise DetpipeError(
            f"MLflow at {mlflow.get_tracking_uri()} cannot be asked for the run '{text}': "
            + " ".join(str(error).split())
        ) from error
    if not finished:
        raise DetpipeError(_unknown(text, named, newest))
    if len(finished) > 1:
        logger.info(
            "%d finished runs are named '%s'; taken is the newest, %s",
            len(finished), text.replace("[", "("), finished[0].info.run_id,
        )  # fmt: skip
    return finished[0]


def scores_of(run: Run) -> pd.DataFrame:
    """The scores table of a run, with the real names of classes.

    Raises:
        DetpipeError: the run has none.
    """
    import pandas as pd

    from detpipe.core.tables import SCORES

    with tempfile.TemporaryDirectory() as folder:
        file = _artifact(run, "reports/scores.csv", Path(folder))
        rows = pd.read_csv(
            file, keep_default_na=False, na_values={"value": [""]}, dtype={"class_name": str}
        )
        return SCORES.make(rows)


def detections_of(run: Run, dataset: str) -> pd.DataFrame:
    """What the model of a run found in the images of ``dataset`` (``val``, ``test``, …).

    Raises:
        DetpipeError: the run has no such detections.
    """
    import pandas as pd

    from detpipe.core.tables import DETECTIONS

    with tempfile.TemporaryDirectory() as folder:
        file = _artifact(run, f"detections/{dataset}_detections.parquet", Path(folder))
        return DETECTIONS.make(pd.read_parquet(file))


def other_tables(run: Run, **tables: pd.DataFrame) -> list[str]:
    """Names of the tables (``images``, ``boxes``) that the run had other ones of than these.

    A run that made no tables itself, as ``evaluate`` alone, says nothing of them: they pass, with
    a warning.
    """
    known = {name: run.data.tags.get(digest_tag(name)) for name in tables}
    if silent := [name for name, digest in known.items() if digest is None]:
        logger.warning(
            "%s: MLflow does not say with which %s it was evaluated; they may be others than those "
            "that are here now", _words(run).replace("[", "("), " and ".join(silent),
        )  # fmt: skip
    return [name for name, digest in known.items() if digest not in (None, digest_of(tables[name]))]


def digest_of(table: pd.DataFrame) -> str:
    """Sixteen digits that stand for the rows of a table, whatever their order."""
    import pandas as pd

    rows = pd.util.hash_pandas_object(table, index=False).sort_values()
    return hashlib.sha256(rows.to_numpy().tobytes()).hexdigest()[:16]


def digest_tag(name: str) -> str:
    """The tag under which a run keeps the digest of a table."""
    return f"data.{name}.digest"


def _by_id(client: MlflowClient, text: str) -> Run | None:
    from mlflow.exceptions import MlflowException

    if not re.fullmatch("[0-9a-f]{32}", text):
        return None
    try:
        run = client.get_run(text)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None
    return run if run.info.lifecycle_stage == "active" else None


def _by_name(client: MlflowClient, text: str) -> list[Run]:
    """Runs of exactly that name, the newest first."""
    quotes = [quote for quote in "'\"" if quote not in text]
    if not quotes:  # MLflow's filters have no way to write both
        return [run for run in _newest(client) if run.info.run_name == text]
    return _newest(client, f"attributes.run_name = {quotes[0]}{text}{quotes[0]}")


def _newest(client: MlflowClient, which: str = "") -> list[Run]:
    everywhere = [experiment.experiment_id for experiment in client.search_experiments()]
    return list(
        client.search_runs(
            everywhere, which, max_results=_LOOKED_THROUGH, order_by=["attributes.start_time DESC"]
        )
    )


def _unknown(text: str, named: list[Run], newest: list[Run]) -> str:
    """Why there is no run, in one sentence; offered is only what the same question would find."""
    import mlflow

    if named:
        ended = [run for run in named if run.info.status != "RUNNING"][:_SHOWN]
        ids = " or ".join(f"{run.info.run_id} ({run.info.status})" for run in ended)
        return f"no run of the name '{text}' has finished well" + (
            f"; one that ended otherwise can be named by its id, {ids}" if ids else ""
        )
    finished = [run for run in newest if run.info.status == "FINISHED"]
    names = [*dict.fromkeys(run.info.run_name for run in finished)]
    where = f"MLflow at {mlflow.get_tracking_uri()} has no run of the name or id '{text}'"
    if near := difflib.get_close_matches(text, names, 3):
        return f"{where} (did you mean {' or '.join(repr(name) for name in near)}?)"
    if not names:
        return f"{where}, nor any other that finished"
    return f"{where}; the newest that finished: {', '.join(repr(name) for name in names[:_SHOWN])}"


def _words(run: Run) -> str:
    return f"run '{run.info.run_name}' ({run.info.run_id}, {run.info.status})"


def _artifact(run: Run, path: str, folder: Path) -> Path:
    """An artifact of a run, copied into ``folder``."""
    import mlflow
    from mlflow.exceptions import MlflowException

    parent = path.rpartition("/")[0]
    try:
        there = [
            file.path for file in mlflow.MlflowClient().list_artifacts(run.info.run_id, parent)
        ]
        if path in there:
            uri = f"{run.info.artifact_uri}/{path}"
            return Path(mlflow.artifacts.download_artifacts(uri, dst_path=str(folder)))
    except (MlflowException, OSError) as error:
        raise DetpipeError(f"{_words(run)}: its '{path}' cannot be read: {error}") from error
    has = f"'{parent}' holds {', '.join(there)}" if there else f"nothing is in '{parent}'"
    raise DetpipeError(
        f"{_words(run)} has no '{path}' ({has}); it is logged by the pipelines train and evaluate"
    )
