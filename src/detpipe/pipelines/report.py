"""``report``: the scores and detections as csv files and pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kedro.pipeline import Node, Pipeline

from detpipe.evaluate.config import EvaluateConfig
from detpipe.pipelines import DataFrame, existing
from detpipe.pipelines.evaluate import DATASETS


def tables(scores: DataFrame) -> tuple[DataFrame, DataFrame]:
    """``overview.csv`` and ``per_class.csv``; the copy-paste lines go to the log."""
    from detpipe.evaluate import report

    report.log(scores)
    return report.overview(scores), report.per_class(scores)


def draw(
    images: DataFrame,
    boxes: DataFrame,
    classes: DataFrame,
    history: DataFrame,
    raw: Path,
    evaluate: EvaluateConfig,
    *detections: DataFrame,
) -> tuple[dict[str, Any], dict[str, Any], Any, Any, DataFrame]:
    """Curves, confusion matrices, a gallery, and the worst images as a picture and a table.

    The pictures are of the last data set that has images (``test`` before ``val``).
    """
    from detpipe.data.image import load_image
    from detpipe.evaluate import gallery, plots

    curves: dict[str, Any] = {"loss": plots.loss_curves(history)}
    confusion: dict[str, Any] = {}
    shown = images.iloc[:0], boxes.iloc[:0], detections[0]
    for dataset, found in zip(DATASETS, detections, strict=True):
        own = images[images["split"] == dataset]
        if own.empty:
            continue
        truth = boxes[boxes["image_id"].isin(own["image_id"])]
        curves[f"{dataset}_precision_recall"] = plots.precision_recall(truth, found, classes)
        confusion[dataset] = plots.confusion(truth, found, classes)
        shown = own, truth, found
    return (
        curves,
        confusion,
        gallery.gallery(*shown, existing(raw), read=load_image, kind="random"),
        gallery.gallery(*shown, existing(raw), read=load_image, kind="worst"),
        gallery.rank(*shown),
    )


def create_pipeline() -> Pipeline:
    """scores, detections → everything in 08_reporting."""
    return Pipeline(
        [
            Node(tables, "scores", ["overview", "per_class"], name="tables"),
            Node(
                draw,
                [
                    "images", "boxes", "classes", "history", "raw", "params:evaluate",
                    *(f"{dataset}_detections" for dataset in DATASETS),
                ],
                ["curves", "confusion", "gallery", "worst_images", "image_ranking"],
                name="draw",
            ),
        ],
        namespace="reporting",
        prefix_datasets_with_namespace=False,
        tags="report",
    )  # fmt: skip
