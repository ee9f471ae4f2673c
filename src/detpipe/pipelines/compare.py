"""``compare``: runs side by side on the data set that is here, with intervals."""

from __future__ import annotations

import logging
from pathlib import Path

from kedro.pipeline import Node, Pipeline

from detpipe.core.errors import ConfigError, DataError, DetpipeError, one_message
from detpipe.evaluate.config import CompareConfig, EvaluateConfig
from detpipe.pipelines import DataFrame

logger = logging.getLogger(__name__)

_FILES = (".json", ".csv", ".parquet", ".pq")


def compare_runs(
    images: DataFrame,
    boxes: DataFrame,
    classes: DataFrame,
    raw: Path,
    signature: dict[str, str],
    compare: CompareConfig,
    evaluate: EvaluateConfig,
) -> tuple[DataFrame, str]:
    """``comparison.csv`` and ``comparison.html``; a small table goes to the log."""
    from detpipe.data.signature import require_same
    from detpipe.evaluate import compare as scorer
    from detpipe.evaluate import compare_page

    _require_runs_and_split(compare, sorted(images["split"].unique()))
    require_same(raw, signature)
    runs, sources = _read(compare, images, boxes, classes)
    own = images[images["split"] == compare.dataset]
    truth = boxes[boxes["image_id"].isin(own["image_id"])]
    limit = evaluate.max_detections
    comparison = scorer.compare(
        own, truth, classes, runs,
        max_detections=limit, samples=compare.samples, confidence=compare.confidence,
        seed=compare.seed,
    )  # fmt: skip
    logger.info("on '%s', percent:\n%s", compare.dataset, compare_page.log_text(comparison))
    page = compare_page.page(
        comparison,
        scorer.precision_recall(own, truth, classes, runs, max_detections=limit),
        sources=sources,
        dataset=compare.dataset,
        images=len(own),
        samples=compare.samples,
        confidence=compare.confidence,
    )
    return comparison, page


def _require_runs_and_split(compare: CompareConfig, splits: list[str]) -> None:
    if len(compare.runs) < 2:
        raise ConfigError(
            f"compare.runs: there is nothing to compare with {len(compare.runs)} run(s); name two "
            "or more, each an MLflow run (name or id) or a file of detections (.json, .csv, "
            '.parquet): kedro run --pipeline compare --params "compare.runs.old=<run>,'
            'compare.runs.new=<run>"'
        )
    if compare.dataset not in splits:
        raise ConfigError(
            f"compare.dataset: there is no split '{compare.dataset}'; there are {', '.join(splits)}"
        )


def _read(
    compare: CompareConfig, images: DataFrame, boxes: DataFrame, classes: DataFrame
) -> tuple[dict[str, DataFrame], dict[str, str]]:
    """The detections of each run, and what each is; everything that is wrong at once."""
    runs: dict[str, DataFrame] = {}
    sources: dict[str, str] = {}
    mistakes = []
    for name, what in compare.runs.items():
        try:
            if Path(what).suffix.lower() in _FILES:
                runs[name], sources[name] = _of_file(what, compare, images, classes)
            else:
                runs[name], sources[name] = _of_run(what, compare.dataset, images, boxes)
        except DetpipeError as error:
            mistakes.append(f"compare.runs.{name}: {error}")
    if mistakes:
        raise DataError(one_message("these runs cannot be compared:", mistakes))
    return runs, sources


def _of_file(
    what: str, compare: CompareConfig, images: DataFrame, classes: DataFrame
) -> tuple[DataFrame, str]:
    from detpipe.evaluate.files import read_detections

    own = images[images["split"] == compare.dataset]
    found = read_detections(
        Path(what), own, classes, categories=compare.categories, section="compare"
    )
    return found, f"file {what}"


def _of_run(what: str, dataset: str, images: DataFrame, boxes: DataFrame) -> tuple[DataFrame, str]:
    from detpipe.tracking.runs import detections_of, find_run, other_tables

    run = find_run(what)
    other = other_tables(run, images=images, boxes=boxes)
    if other:
        raise DataError(
            f"the run '{what}' ({run.info.run_id}) was evaluated on another state of the data set "
            f"({' and '.join(other)}), so its numbers do not compare; if its images of '{dataset}' "
            f"and their boxes are the same, name its file of detections instead (its artifact "
            f"detections/{dataset}_detections.parquet)"
        )
    found = detections_of(run, dataset)
    return found, f"MLflow run {run.info.run_name}, {run.info.run_id}"


def create_pipeline() -> Pipeline:
    """compare.runs → comparison.csv, comparison.html; no model, no torch."""
    return Pipeline(
        [
            Node(
                compare_runs,
                [
                    "images", "boxes", "classes", "raw", "data_signature",
                    "params:compare", "params:evaluate",
                ],
                ["comparison", "comparison_page"],
                name="compare_runs",
            ),
        ],
        tags="compare",
    )  # fmt: skip
