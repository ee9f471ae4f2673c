"""What must be there, whole and of today before a pipeline runs, and what is taken away first."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detpipe.core.errors import ConfigError, DetpipeError, one_message

if TYPE_CHECKING:
    from kedro.io import CatalogProtocol
    from kedro.pipeline import Pipeline

    from detpipe.data.store import Store

logger = logging.getLogger(__name__)

VARIABLES = {
    "raw": "DETPIPE_RAW",
    "pictures": "DETPIPE_PICTURES",
    "detections_file": "DETPIPE_DETECTIONS",
    "converted": "DETPIPE_CONVERTED",
}
PATHS = tuple(VARIABLES)
"""What ``--params`` may set beside them: paths that the catalog asks for."""
TABLES = (
    "images_read", "boxes_read", "classes_read", "issues_read", "signature_read", "images_checked",
    "boxes", "images", "classes", "store", "data_signature",
)  # fmt: skip
"""What the data pipeline makes for other pipelines, the signature that vouches for it last."""
DETECT = ("val", "test", "more")
"""The namespaces of the evaluation."""
FOUND = tuple(f"{group}_{what}" for group in DETECT for what in ("detections", "timing", "losses"))
"""What its detectors make; ``evaluated`` vouches for it and all that comes of it."""
EVALUATION = "evaluation.load_trained"
"""The node after which it begins to make them."""
FINDINGS = ("data_page", "data_issues", "data_summary", "self_test", "data_plots")
"""What it makes for people."""


def require_given_paths(
    runtime: Mapping[str, Any], pipeline: Pipeline, catalog: CatalogProtocol
) -> None:
    """Refuses a path of ``--params`` that the recipe's own catalog entry takes no notice of.

    The same of an environment variable is a warning: it may be meant for another recipe.

    Raises:
        ConfigError: the entry names another path.
    """
    for name in sorted({*PATHS} & pipeline.inputs()):
        path = getattr(catalog.get(name), "path", None)
        variable = VARIABLES[name]
        elsewhere = os.environ.get(variable)
        if path is None:
            continue
        if name not in runtime and elsewhere and Path(path) != Path(elsewhere):
            logger.warning("%s=%s has no effect: the catalog of this environment names '%s'",
                           variable, elsewhere, path)  # fmt: skip
        if name in runtime and not _is(Path(path), Path(str(runtime[name]))):
            raise ConfigError(
                f"--params {name}={runtime[name]} has no effect: the catalog of this environment "
                f"names '{path}'. Take that entry out, or write its path as "
                f"${{runtime_params:{name}, {path}}}"
            )


def _is(path: Path, given: Path) -> bool:
    """Whether a path of the catalog is the one given; Kedro has put the project before it."""
    return path == given or path.parts[-len(given.parts) :] == given.parts


def clear_data(pipeline: Pipeline, catalog: CatalogProtocol) -> None:
    """Takes away what is about to be made anew, and what vouches for it.

    A run that breaks off or is refused leaves no mixture of old tables and new ones, and no report
    on another folder.
    """
    makes = {*TABLES, *FINDINGS} & pipeline.all_outputs()
    if {*TABLES} & makes:
        makes |= {"store", "data_signature"}
    _take_away(makes, catalog)


def clear_evaluation(
    pipeline: Pipeline, catalog: CatalogProtocol, *, keep: Collection[str] = ()
) -> None:
    """Takes away detections, scores and reports, when the evaluation that makes them anew begins.

    One that breaks off leaves none of other weights behind.
    """
    if EVALUATION in {node.name for node in pipeline.nodes}:
        _take_away({*pipeline.from_nodes(EVALUATION).all_outputs()} - {*keep}, catalog)


def _take_away(names: Iterable[str], catalog: CatalogProtocol) -> None:
    for name in names:
        dataset: Any = catalog.get(name)
        # A rehearsal keeps its reports in memory: there is neither.
        files = [*getattr(dataset, "files", list)(), getattr(dataset, "_filepath", None)]
        for file in filter(None, files):
            Path(str(file)).unlink(missing_ok=True)


def go_on(pipeline: Pipeline, catalog: CatalogProtocol) -> None:
    """Of a run that makes only what is missing: its tables must be whole, and of today's files.

    Raises:
        DataError: annotation files were edited since they were read.
        DetpipeError: the tables must be made anew, and there are weights of the ones before; or
            what was evaluated is not what is there now.
    """
    if "evaluated" in pipeline.all_outputs():
        _require_same_evaluation(catalog)
        if not all(catalog.exists(name) for name in ("evaluated", *FOUND)):
            clear_evaluation(pipeline, catalog, keep=FOUND)  # of these weights, or not there
    if "data_signature" not in pipeline.all_outputs():
        return
    if catalog.exists("data_signature"):
        from detpipe.data.signature import require_same

        require_same(catalog.load("raw"), catalog.load("data_signature"))
        return
    if "weights" in pipeline.all_outputs() and catalog.exists("weights"):
        raise DetpipeError(
            "the tables of the data set must be made anew, and there are weights of an earlier "
            "training: run it whole, without --only-missing-outputs"
        )
    clear_data(pipeline, catalog)


def made_with(weights: Mapping[str, Any], store: Store) -> dict[str, str]:
    """By what detections are known: the weights that made them, and the data set.

    Args:
        weights: their metadata.
        store: the data set, all splits of it.
    """
    content = f"{store.digest()} {store.splits}"
    data = hashlib.sha256(content.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return {"weights": str(weights.get("digest", "")), "data": data}


def require_same_evaluation(pipeline: Pipeline, catalog: CatalogProtocol) -> None:
    """Detections and scores of other weights, or of another data set, are used by nobody.

    Raises:
        DetpipeError: they are not of those that are there now.
    """
    if {"scores", *FOUND} & pipeline.inputs():
        if not catalog.exists("evaluated"):
            raise DetpipeError(
                "the last evaluation broke off, so there are no scores of these weights; run "
                "'kedro run --pipeline evaluate' (with the same --env and --params) first"
            )
        _require_same_evaluation(catalog)


def _require_same_evaluation(catalog: CatalogProtocol) -> None:
    if not all(catalog.exists(name) for name in ("evaluated", "weights", "store")):
        return  # what is missing is told by require_inputs, or made
    before = catalog.load("evaluated")
    weights: Any = catalog.get("weights")
    now = made_with(weights.header(), catalog.load("store"))
    other = [name for name in ("weights", "data") if before.get(name) != now[name]]
    if other:
        what = {"weights": "other weights", "data": "another state of the data set"}
        raise DetpipeError(
            f"the detections and scores that are there were made with "
            f"{' and '.join(what[name] for name in other)}; run 'kedro run --pipeline evaluate' "
            f"(with the same --env and --params) first"
        )


def require_readable_expectations(pipeline: Pipeline, catalog: CatalogProtocol) -> None:
    """A slip in the file of expected results is told before the training, not after it.

    Raises:
        ConfigError: with the lines of the file.
    """
    if "expected_results" in pipeline.inputs():
        from detpipe.evaluate.expected import read_expected

        read_expected(catalog.load("expected_results"))


def require_inputs(pipeline: Pipeline, catalog: CatalogProtocol) -> None:
    """Looks for what another pipeline has to make first.

    Raises:
        DetpipeError: all that is missing, and the pipeline that makes it.
    """
    from kedro.framework.project import pipelines

    missing = [
        name
        for name in sorted(pipeline.inputs())
        if ":" not in name and name not in PATHS and not catalog.exists(name)
    ]
    makers: dict[str, list[str]] = {}
    for name in missing:
        able = [
            (len(p.nodes), key)
            for key, p in pipelines.items()
            if name in p.all_outputs() and key != "__default__"
        ]
        if able:
            makers.setdefault(min(able)[1], []).append(name)
    if makers:
        lines = [
            f"{', '.join(names)}: kedro run --pipeline {maker} makes "
            f"{'it' if len(names) == 1 else 'them'} (with the same --env and --params)"
            for maker, names in makers.items()
        ]
        raise DetpipeError(one_message("what this pipeline reads is not there yet:", lines))


def require_current_tables(pipeline: Pipeline, catalog: CatalogProtocol) -> None:
    """Tables made from annotation files that were edited since are used by nobody.

    Raises:
        DataError: they were edited.
    """
    if not {"images", "boxes", "store"} & pipeline.inputs():
        return
    if not catalog.exists("data_signature"):
        raise DetpipeError(
            "the data pipeline broke off before its tables were whole, or refused the data set; "
            "run 'kedro run --pipeline data' (with the same --env and --params) first"
        )
    from detpipe.data.signature import require_same

    require_same(catalog.load("raw"), catalog.load("data_signature"))
