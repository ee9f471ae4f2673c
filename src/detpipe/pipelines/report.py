"""``report``: what people look at, as csv files, pictures and one page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kedro.pipeline import Node, Pipeline

from detpipe.evaluate.config import EvaluateConfig, ReportConfig
from detpipe.pipelines import DataFrame, existing
from detpipe.pipelines.evaluate import GROUPS, splits_of

if TYPE_CHECKING:
    from detpipe.evaluate.gallery import Tile
    from detpipe.evaluate.report import Diagnosis, Part

DIAGNOSIS = ("thresholds", "errors", "slices", "calibration", "intervals", "per_image")
"""The tables of :class:`detpipe.evaluate.report.Diagnosis`, in its order."""
FIGURES = ("curves", "confusion", "errors_plots")
DETECTIONS = tuple(f"{group}_detections" for group in GROUPS)


def tables(scores: DataFrame) -> tuple[DataFrame, DataFrame]:
    """``overview.csv`` and ``per_class.csv``; the copy-paste lines go to the log."""
    from detpipe.evaluate import report

    report.log(scores)
    return report.overview(scores), report.per_class(scores)


def diagnose(
    images: DataFrame,
    boxes: DataFrame,
    classes: DataFrame,
    evaluated: dict[str, str],
    evaluate: EvaluateConfig,
    report: ReportConfig,
    *detections: DataFrame,
) -> tuple[DataFrame, ...]:
    """The tables :data:`DIAGNOSIS` of all data sets; the thresholds say of which weights."""
    from detpipe.evaluate.report import diagnose as diagnose_parts

    found = diagnose_parts(
        _parts(images, boxes, evaluate, detections),
        classes,
        report,
        max_detections=evaluate.max_detections,
    )
    thresholds, *rest = found
    return (thresholds.assign(weights=evaluated["weights"]), *rest)


def draw(
    images: DataFrame,
    boxes: DataFrame,
    classes: DataFrame,
    history: DataFrame,
    evaluate: EvaluateConfig,
    report: ReportConfig,
    *frames: DataFrame,
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The drawings :data:`FIGURES`; ``frames``: :data:`DIAGNOSIS`, then the detections."""
    from detpipe.evaluate.report import Diagnosis, figures

    return figures(
        _parts(images, boxes, evaluate, frames[len(DIAGNOSIS) :]),
        classes,
        Diagnosis(*frames[: len(DIAGNOSIS)]),
        report,
        max_detections=evaluate.max_detections,
        history=history,
    )


def write_page(
    name: str,
    raw: Path,
    images: DataFrame,
    boxes: DataFrame,
    classes: DataFrame,
    scores: DataFrame,
    verdict: DataFrame,
    timing: DataFrame,
    evaluated: dict[str, str],
    evaluate: EvaluateConfig,
    report: ReportConfig,
    *rest: Any,
) -> tuple[dict[str, Any], str]:
    """The gallery's sheets, and ``report.html`` with everything on it.

    ``rest``: :data:`FIGURES`, :data:`DIAGNOSIS`, then the detections.
    """
    from detpipe.evaluate.gallery import sheet
    from detpipe.evaluate.page import Report, page
    from detpipe.evaluate.report import Diagnosis

    end = len(FIGURES) + len(DIAGNOSIS)
    diagnosis = Diagnosis(*rest[len(FIGURES) : end])
    parts = _parts(images, boxes, evaluate, rest[end:])
    tiles = _tiles(parts, classes, diagnosis, raw, report, evaluate.max_detections)
    content = Report(
        parts, scores, diagnosis, *rest[: len(FIGURES)], tiles, report,
        evaluate.max_detections, verdict=verdict, timing=timing, made=evaluated,
    )  # fmt: skip
    sheets = {
        f"{dataset}_{kind}": sheet(own)
        for dataset, kinds in tiles.items()
        for kind, own in kinds.items()
        if own
    }
    return sheets, page(content, title=f"Evaluation of {name}")


def page_of_file(
    dataset: str,
    images: DataFrame,
    boxes: DataFrame,
    detections: DataFrame,
    classes: DataFrame,
    scores: DataFrame,
    raw: Path,
    evaluate: EvaluateConfig,
    report: ReportConfig,
) -> str:
    """The page of detections whose model is not here: no verdict, no timing, no training.

    Args:
        dataset: the split that they are of.
        images: the images table of all splits.
        boxes: the truth in them.
        detections: what was found in the images of the split.
        classes: the classes table.
        scores: theirs.
        raw: the data set's folder; needed if the report has pictures.
        evaluate: for the limit of detections.
        report: what is on the page.
    """
    from detpipe.evaluate import report as module
    from detpipe.evaluate.page import Report, page

    limit = evaluate.max_detections
    parts = module.parts(images, boxes, [([dataset], detections)])
    diagnosis = module.diagnose(parts, classes, report, max_detections=limit)
    figures = module.figures(parts, classes, diagnosis, report, max_detections=limit)
    tiles = _tiles(parts, classes, diagnosis, raw, report, limit)
    content = Report(parts, scores, diagnosis, *figures, tiles, report, limit)
    return page(content, title=f"Evaluation of a file of detections on {dataset}")


def _parts(
    images: DataFrame, boxes: DataFrame, evaluate: EvaluateConfig, detections: Sequence[DataFrame]
) -> list[Part]:
    """The data sets; ``detections``: one table each of :data:`GROUPS`."""
    from detpipe.evaluate.report import parts

    groups = [splits_of(group, evaluate) for group in GROUPS]
    return parts(images, boxes, zip(groups, detections, strict=True))


def _tiles(
    parts: Sequence[Part],
    classes: DataFrame,
    diagnosis: Diagnosis,
    raw: Path,
    report: ReportConfig,
    limit: int,
) -> Mapping[str, Mapping[str, Sequence[Tile]]]:
    """Data set → the pictures of each kind; without pictures the folder is not needed."""
    from detpipe.data.image import load_image
    from detpipe.evaluate.errors import kinds
    from detpipe.evaluate.gallery import tiles
    from detpipe.evaluate.report import threshold

    made = {}
    for dataset, *own in parts if report.pictures else ():
        score = threshold(diagnosis.thresholds, dataset, report)
        found = kinds(*own, classes, iou=report.iou, score_threshold=score, max_detections=limit)
        ranking = diagnosis.per_image[diagnosis.per_image["dataset"] == dataset]
        made[dataset] = tiles(
            *own[:2], found, ranking, existing(raw),
            read=load_image, count=report.pictures, seed=report.seed,
        )  # fmt: skip
    return made


def create_pipeline() -> Pipeline:
    """scores, detections → everything in 08_reporting."""
    truth, parameters = ["images", "boxes", "classes"], ["params:evaluate", "params:report"]
    return Pipeline(
        [
            Node(tables, "scores", ["overview", "per_class"], name="tables"),
            Node(
                diagnose, [*truth, "evaluated", *parameters, *DETECTIONS], list(DIAGNOSIS),
                name="diagnose",
            ),
            Node(
                draw, [*truth, "history", *parameters, *DIAGNOSIS, *DETECTIONS], list(FIGURES),
                name="draw",
            ),
            Node(
                write_page,
                [
                    "run_name", "raw", *truth, "scores", "verdict", "timing", "evaluated",
                    *parameters, *FIGURES, *DIAGNOSIS, *DETECTIONS,
                ],
                ["gallery", "report_page"],
                name="write_page",
            ),
        ],
        namespace="reporting",
        prefix_datasets_with_namespace=False,
        tags="report",
    )  # fmt: skip
