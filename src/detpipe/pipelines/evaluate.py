"""``evaluate``: one pass of inference per data set, then scores; ``evaluate_files``: no model."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from kedro.pipeline import Node, Pipeline

from detpipe.core.errors import ConfigError
from detpipe.data.config import StreamConfig
from detpipe.evaluate.config import EvaluateConfig, FilesConfig
from detpipe.models.config import ModelSpec
from detpipe.pipelines import DataFrame, Module, Store, Weights, existing

logger = logging.getLogger(__name__)

DATASETS = ("val", "test")
"""The splits that are evaluated, each in a namespace of its own."""


def load_trained(
    classes: DataFrame, weights: Weights, raw: Path, signature: dict[str, str], model: ModelSpec
) -> Module:
    """The trained detector; weights of other classes or another model are refused.

    So are tables of annotation files that have been edited since.
    """
    from detpipe.data.signature import require_same
    from detpipe.models.restore import restore

    require_same(raw, signature)
    return restore(weights, model, list(classes["class_name"]))


def detect(
    dataset: str,
    model: Module,
    store: Store,
    raw: Path,
    stream: StreamConfig,
    evaluate: EvaluateConfig,
) -> DataFrame:
    """Detections in the images of ``dataset``, each image once; no rows if it has no images."""
    from detpipe.core.tables import DETECTIONS
    from detpipe.data.stream import EvalStream
    from detpipe.evaluate.run import predict
    from detpipe.train.launch import pick_device, torch_threads

    store = store.split(dataset)
    if not len(store):
        logger.info("the data set has no images for '%s': there is nothing to detect", dataset)
        return DETECTIONS.empty()
    batches = EvalStream(
        store.at(existing(raw)),
        batch_size=evaluate.batch_size,
        resize=stream.resize,
        workers=stream.workers if len(store) > evaluate.batch_size else 0,
    )
    with torch_threads(stream.threads):
        return predict(
            model,
            batches,
            class_names=store.class_names,
            device=pick_device(evaluate.device),
            score_threshold=evaluate.score_threshold,
            max_detections=evaluate.max_detections,
        ).detections


def score(
    dataset: str,
    images: DataFrame,
    boxes: DataFrame,
    detections: DataFrame,
    classes: DataFrame,
    evaluate: EvaluateConfig,
) -> DataFrame:
    """The scores of ``detections`` against the boxes of ``dataset``; no rows if it is empty."""
    from detpipe.core.tables import SCORES
    from detpipe.evaluate.scoring import score as score_tables

    images = images[images["split"] == dataset]
    if images.empty:
        return SCORES.empty()
    return score_tables(
        images,
        boxes[boxes["image_id"].isin(images["image_id"])],
        detections,
        classes,
        dataset=dataset,
        metrics=evaluate.metrics,
        max_detections=evaluate.max_detections,
    )


def join_scores(*scores: DataFrame) -> DataFrame:
    """All data sets' scores in one table."""
    import pandas as pd

    return pd.concat(scores, ignore_index=True)


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
    evaluate: EvaluateConfig,
    files: FilesConfig,
) -> tuple[DataFrame, DataFrame, DataFrame]:
    """Scores, overview and per-class table of a file of detections."""
    from detpipe.evaluate import report

    scores = score(files.dataset, images, boxes, detections, classes, evaluate)
    report.log(scores)
    return scores, report.overview(scores), report.per_class(scores)


def _for(dataset: str) -> tuple[Callable[..., DataFrame], Callable[..., DataFrame]]:
    """:func:`detect` and :func:`score` of one data set, with hints that Kedro can read."""

    def detect_dataset(
        model: Module, store: Store, raw: Path, stream: StreamConfig, evaluate: EvaluateConfig
    ) -> DataFrame:
        return detect(dataset, model, store, raw, stream, evaluate)

    def score_dataset(
        images: DataFrame, boxes: DataFrame, detections: DataFrame, classes: DataFrame,
        evaluate: EvaluateConfig,
    ) -> DataFrame:  # fmt: skip
        return score(dataset, images, boxes, detections, classes, evaluate)

    return detect_dataset, score_dataset


def _dataset_pipeline(dataset: str) -> Pipeline:
    detect_dataset, score_dataset = _for(dataset)
    return Pipeline(
        [
            Node(
                detect_dataset,
                ["trained_model", "store", "raw", "params:stream", "params:evaluate"],
                "detections",
                name="detect",
            ),
            Node(
                score_dataset,
                ["images", "boxes", "detections", "classes", "params:evaluate"],
                "scores",
                name="score",
            ),
        ],
        namespace=dataset,
        inputs={"trained_model", "store", "raw", "images", "boxes", "classes"},
        outputs={"detections": f"{dataset}_detections", "scores": f"{dataset}_scores"},
        parameters={"params:stream", "params:evaluate"},
    )  # fmt: skip


def create_pipeline() -> Pipeline:
    """weights → val_detections, test_detections → scores."""
    return Pipeline(
        [
            Node(
                load_trained, ["classes", "weights", "raw", "data_signature", "params:model"],
                "trained_model", name="load_trained",
            ),
            *(_dataset_pipeline(dataset) for dataset in DATASETS),
            Node(
                join_scores, [f"{dataset}_scores" for dataset in DATASETS], "scores",
                name="join_scores",
            ),
        ],
        namespace="evaluation",
        prefix_datasets_with_namespace=False,
        tags="evaluate",
    )  # fmt: skip


def create_files_pipeline() -> Pipeline:
    """detections_file → file_scores, file_overview, file_per_class; no model, no torch."""
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
                    "images", "boxes", "file_detections", "classes",
                    "params:evaluate", "params:evaluate_files",
                ],
                ["file_scores", "file_overview", "file_per_class"],
                name="score_file",
            ),
        ],
        tags="evaluate_files",
    )  # fmt: skip
