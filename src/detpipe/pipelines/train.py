"""``train``: a model is built and trained; weights come out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from kedro.pipeline import Node, Pipeline

from detpipe.data.config import StreamConfig
from detpipe.evaluate.config import EvaluateConfig
from detpipe.models.config import ModelSpec
from detpipe.pipelines import DataFrame, Module, Store, Weights, existing
from detpipe.train.config import TrainConfig

if TYPE_CHECKING:
    from detpipe.data.stream import TrainStream
    from detpipe.data.transform import Step


def build_model(classes: DataFrame, model: ModelSpec, train: TrainConfig) -> Module:
    """The untrained detector, its random weights drawn from ``train.seed``."""
    from detpipe.core.errors import ConfigError, DataError
    from detpipe.core.types import Detector
    from detpipe.train.launch import seeded

    if classes.empty:
        raise DataError(
            "the data set has no class with a box, so there is nothing to train on; look at "
            "data_issues.csv"
        )
    with seeded(train.seed):
        detector = model.build(num_classes=len(classes))
    if not isinstance(detector, Detector):
        raise ConfigError(
            f"model: {model.use} gives a {type(detector).__name__} without the method 'detect'; "
            f"a detector has forward(batch) -> losses and detect(images) -> detections "
            f"(docs/models.md)"
        )
    return detector


def train(
    model: Module,
    store: Store,
    images: DataFrame,
    boxes: DataFrame,
    classes: DataFrame,
    raw: Path,
    checkpoints: Path,
    train: TrainConfig,
    stream: StreamConfig,
    evaluate: EvaluateConfig,
    spec: ModelSpec,
) -> tuple[Weights, DataFrame]:
    """The whole training loop as one node; see :func:`detpipe.train.loop.fit`.

    Images and boxes are read from ``store``; the tables are the truth of evaluations in between.

    Returns:
        The published weights, and the history: one row a logged step.
    """
    from detpipe.core.types import Weights
    from detpipe.train.build import train_detector
    from detpipe.train.launch import torch_threads

    used, batches = training_stream(store, raw, train, stream)
    settings = {
        "train": train.model_dump(mode="json"),
        "model": spec.model_dump(mode="json"),
        "stream": stream.model_dump(mode="json"),
        "data": {"training images": len(used), "digest": used.digest()},
    }
    names = list(classes["class_name"])
    with torch_threads(stream.threads):
        result = train_detector(
            model,
            batches,
            config=train,
            folder=checkpoints,
            classes=names,
            evaluate=evaluator("val", store, images, boxes, classes, raw, stream, evaluate),
            run_config=settings,
        )
    metadata = {
        "classes": names,
        "model": spec.with_defaults(),
        "resize": settings["stream"]["resize"],
        "step": result.step,
        "published": train.publish,
        "source": result.source,
        "metrics": result.metrics,
        "config": settings,
        "versions": {name: version(name) for name in ("detpipe", "torch", "torchvision")},
    }
    return Weights(result.weights, metadata), result.history


def training_stream(
    store: Store, raw: Path, train: TrainConfig, stream: StreamConfig
) -> tuple[Store, TrainStream]:
    """The training images, and batches of them in the order and shape that training gets."""
    from detpipe.core.errors import ConfigError
    from detpipe.data.stream import TrainStream

    store = store.at(existing(raw)).split("train")
    order = train.sampler.build(
        length=len(store), seed=train.seed, store=store, batch_size=train.batch_size
    )
    if not callable(getattr(order, "index", None)):
        raise ConfigError(
            f"train.sampler: {train.sampler.use} gives a {type(order).__name__} without the method "
            f"index(position) (docs/training.md, samplers)"
        )
    batches = TrainStream(
        store,
        batch_size=train.batch_size,
        sampler=order,
        resize=stream.resize,
        augment=transforms(train, images_per_epoch=len(store)),
        seed=train.seed,
        workers=stream.workers,
    )
    return store, batches


def transforms(train: TrainConfig, *, images_per_epoch: int) -> list[Step]:
    """The transforms of ``train.augment``, each with the image from which it is switched off."""
    from detpipe.core.config import Duration
    from detpipe.data.augment import build
    from detpipe.data.transform import Until
    from detpipe.train.plan import Plan

    steps: list[Step] = []
    for spec in filter(None, train.augment.values()):
        transform, until = build(spec), spec.until
        if until is None:
            steps.append(transform)
            continue
        plan = Plan.of(train, images_per_epoch=images_per_epoch)
        # Whole steps: the images of one update are all made with it, or all without.
        if isinstance(until, Duration):
            last = round(plan.to_progress(until) * plan.total_steps)
        else:
            last = max(1, round(until * plan.total_steps))
        steps.append(Until(transform, last * plan.images_per_step))
    return steps


def evaluator(
    dataset: str,
    store: Store,
    images: DataFrame,
    boxes: DataFrame,
    classes: DataFrame,
    raw: Path,
    stream: StreamConfig,
    evaluate: EvaluateConfig,
) -> Callable[[Module], Mapping[str, float]] | None:
    """Evaluation on ``dataset`` inside the loop: the evaluate pipeline's own two functions.

    None when the data set has no images.
    """
    from detpipe.evaluate.scoring import as_metrics
    from detpipe.pipelines.evaluate import detect, score

    if not len(store.split(dataset)):
        return None

    def evaluate_now(model: Module) -> Mapping[str, float]:
        detections, _ = detect(dataset, model, store, raw, stream, evaluate)
        return as_metrics(score(dataset, images, boxes, detections, classes, evaluate))

    return evaluate_now


def create_pipeline() -> Pipeline:
    """classes, store → weights, history. The model has one consumer: it is changed."""
    return Pipeline(
        [
            Node(
                build_model, ["classes", "params:model", "params:train"], "model",
                name="build_model",
            ),
            Node(
                train,
                [
                    "model", "store", "images", "boxes", "classes", "raw", "checkpoints",
                    "params:train", "params:stream", "params:evaluate", "params:model",
                ],
                ["weights", "history"],
                name="train",
            ),
        ],
        namespace="training",
        prefix_datasets_with_namespace=False,
        tags="train",
    )  # fmt: skip
