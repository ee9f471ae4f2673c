"""``evaluate_files``: the scores of detections from a file; no model, no torch."""

from __future__ import annotations

from pathlib import Path

from kedro.pipeline import Node, Pipeline

from detpipe.core.errors import ConfigError
from detpipe.evaluate.config import EvaluateConfig, FilesConfig, ReportConfig
from detpipe.pipelines import DataFrame
from detpipe.pipelines.evaluate import score
from detpipe.pipelines.report import page_of_file


def read_file(
    detections_file: Path,
    images: DataFrame,
    classes: DataFrame,
    raw: Path,
    signature: dict[str, str],
    files: FilesConfig,
) -> DataFrame:
    """Detections of any framework from a file."""
    from detpipe.data.signature import require_same
    from detpipe.evaluate.files import read_detections

    require_same(raw, signature)
    splits = sorted(images["split"].unique())
    if files.dataset not in splits:
        raise ConfigError(
            f"evaluate_files.dataset: there is no split '{files.dataset}'; there are "
            f"{', '.join(splits)}"
        )
    return read_detections(
        detections_file,
        images[images["split"] == files.dataset],
        classes,
        categories=files.categories,
    )


def score_file(
    images: DataFrame,
    boxes: DataFrame,
    detections: DataFrame,
    classes: DataFrame,
    raw: Path,
    evaluate: EvaluateConfig,
    files: FilesConfig,
    report: ReportConfig,
) -> tuple[DataFrame, DataFrame, DataFrame, str]:
    """Scores, overview, per-class table and page of a file of detections."""
    from detpipe.evaluate import report as reports

    scores = score(files.dataset, images, boxes, detections, classes, evaluate)
    reports.log(scores)
    page = page_of_file(
        files.dataset, images, boxes, detections, classes, scores, raw, evaluate, report
    )
    return scores, reports.overview(scores), reports.per_class(scores), page


def create_pipeline() -> Pipeline:
    """detections_file → file_scores, file_overview, file_per_class, file_report_page."""
    return Pipeline(
        [
            Node(
                read_file,
                [
                    "detections_file", "images", "classes", "raw", "data_signature",
                    "params:evaluate_files",
                ],
                "file_detections",
                name="read_file",
            ),
            Node(
                score_file,
                [
                    "images", "boxes", "file_detections", "classes", "raw",
                    "params:evaluate", "params:evaluate_files", "params:report",
                ],
                ["file_scores", "file_overview", "file_per_class", "file_report_page"],
                name="score_file",
            ),
        ],
        tags="evaluate_files",
    )  # fmt: skip
