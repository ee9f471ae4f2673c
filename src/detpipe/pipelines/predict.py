"""``predict``: what a trained model sees in a folder of new pictures."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kedro.pipeline import Node, Pipeline

from detpipe.data.config import StreamConfig
from detpipe.evaluate.config import EvaluateConfig, PredictConfig
from detpipe.models.config import ModelSpec
from detpipe.pipelines import DataFrame, Module, Weights

logger = logging.getLogger(__name__)


def list_pictures(pictures: Path, predict: PredictConfig) -> DataFrame:
    """The pictures below a folder (or the one picture) as an images table."""
    from detpipe.data.formats.folder import read

    return read(pictures, bad_image=predict.bad_image).images


def load_model(
    weights: Weights, thresholds: Path, model: ModelSpec, predict: PredictConfig
) -> tuple[Module, DataFrame, dict[str, float]]:
    """The trained detector, its classes as its weights name them, and from which score they count.

    With ``best_f1`` the scores are those of ``thresholds.csv``, which must be of these weights.
    """
    from detpipe.core.tables import CLASSES
    from detpipe.models.restore import restore

    names = weights.metadata["classes"]
    if predict.score_threshold == "best_f1":
        from detpipe.evaluate.thresholds import read_thresholds

        least = read_thresholds(thresholds, names, weights=weights.metadata.get("digest", ""))
    else:
        least = dict.fromkeys(names, predict.score_threshold)
    classes = CLASSES.make([{"class_name": name} for name in names])
    return restore(weights, model, names), classes, least


def predict(
    model: Module,
    images: DataFrame,
    classes: DataFrame,
    thresholds: dict[str, float],
    pictures: Path,
    stream: StreamConfig,
    evaluate: EvaluateConfig,
) -> tuple[DataFrame, list[dict[str, Any]]]:
    """Detections as a table and as a COCO result list (``category_id`` 1..C in label order)."""
    from detpipe.core.tables import BOXES
    from detpipe.data.store import Store
    from detpipe.evaluate.files import coco_results
    from detpipe.pipelines.evaluate import detect

    images = images.assign(split="predict")
    store = Store.from_tables(images, BOXES.empty(), classes, Path())
    if evaluate.tta is not None:
        from detpipe.evaluate.tta import Augmented

        model = Augmented.of(model, evaluate.tta, max_detections=evaluate.max_detections)
    found, _ = detect("predict", model, store, _folder(pictures), stream, evaluate)
    least = found["class_name"].map(thresholds).astype("float64")
    found = found[found["score"] >= least].reset_index(drop=True)
    some = sorted(set(thresholds.values()))
    logger.info(
        "predict: %d objects of score %s and more in %d pictures",
        len(found), " to ".join(f"{s:.3g}" for s in dict.fromkeys((some[0], some[-1]))),
        len(images),
    )  # fmt: skip
    return found, coco_results(found, classes)


def draw(images: DataFrame, predictions: DataFrame, pictures: Path) -> dict[str, Callable[[], Any]]:
    """Each picture with its detections drawn; made one at a time, when it is written."""
    from detpipe.data.image import load_image
    from detpipe.evaluate import gallery

    by_image = dict(iter(predictions.groupby("image_id")))
    return {
        image.image_id: lambda image=image: gallery.draw(  # type: ignore[misc]
            load_image(_folder(pictures) / image.path),
            None,
            by_image.get(image.image_id, predictions.iloc[:0]),
        )
        for image in images.itertuples()
    }


def _folder(pictures: Path) -> Path:
    """What the paths of the images table are relative to."""
    return pictures if pictures.is_dir() else pictures.parent


def create_pipeline() -> Pipeline:
    """pictures, weights → predictions (csv, COCO JSON, drawn pictures)."""
    return Pipeline(
        [
            Node(
                list_pictures, ["pictures", "params:predict"], "picture_list",
                name="list_pictures",
            ),
            Node(
                load_model,
                ["weights", "thresholds_file", "params:model", "params:predict"],
                ["predictor", "predictor_classes", "predictor_thresholds"],
                name="load_model",
            ),
            Node(
                predict,
                [
                    "predictor", "picture_list", "predictor_classes", "predictor_thresholds",
                    "pictures", "params:stream", "params:evaluate",
                ],
                ["predictions", "predictions_coco"],
                name="predict",
            ),
            Node(
                draw, ["picture_list", "predictions", "pictures"], "predictions_drawn",
                name="draw",
            ),
        ],
        namespace="prediction",
        prefix_datasets_with_namespace=False,
        tags="predict",
    )  # fmt: skip
