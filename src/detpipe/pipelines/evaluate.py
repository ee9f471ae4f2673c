"""``evaluate``: one pass of inference per data set, then scores."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kedro.pipeline import Node, Pipeline

from detpipe.core.errors import ConfigError
from detpipe.data.config import StreamConfig
from detpipe.evaluate.config import EvaluateConfig
from detpipe.inputs import made_with
from detpipe.models.config import ModelSpec
from detpipe.pipelines import DataFrame, Module, Store, Weights, existing

if TYPE_CHECKING:
    from detpipe.core.types import Batch

logger = logging.getLogger(__name__)

DATASETS = ("val", "test")
"""The splits that are always evaluated, each in a namespace of its own."""
GROUPS = (*DATASETS, "more")
"""The namespaces; the last one is that of ``evaluate.more``."""


def load_trained(
    classes: DataFrame,
    weights: Weights,
    store: Store,
    raw: Path,
    signature: dict[str, str],
    model: ModelSpec,
    evaluate: EvaluateConfig,
) -> tuple[Module, dict[str, str]]:
    """The trained detector, and by what its detections will be known.

    Weights of other classes or another model are refused, and so are tables of annotation files
    that have been edited since, and splits that the data set does not have.
    """
    from detpipe.data.signature import require_same
    from detpipe.models.restore import restore

    require_same(raw, signature)
    splits = [name for name, *_ in store.splits]
    unknown = [name for name in evaluate.more if name not in splits]
    if unknown:
        raise ConfigError(
            f"evaluate.more: there is no split {', '.join(map(repr, unknown))}; the data set has "
            f"{', '.join(splits)}"
        )
    detector = restore(weights, model, list(classes["class_name"]))
    return detector, made_with(weights.metadata, store)


def detect(
    dataset: str,
    model: Module,
    store: Store,
    raw: Path,
    stream: StreamConfig,
    evaluate: EvaluateConfig,
) -> tuple[DataFrame, DataFrame]:
    """Detections in the images of ``dataset``, each image once, and what an image took.

    No rows if it has no images. Under ``torch.distributed`` every process does its share and gets
    the whole.
    """
    from detpipe.core.tables import DETECTIONS
    from detpipe.evaluate.processes import gather
    from detpipe.evaluate.run import Prediction, no_timing, predict
    from detpipe.train.launch import pick_device, torch_threads

    store = store.split(dataset)
    if not len(store):
        logger.info("the data set has no images for '%s': there is nothing to detect", dataset)
        return DETECTIONS.empty(), no_timing()

    def mine() -> Prediction:
        return predict(
            model,
            _batches(store, raw, stream, evaluate),
            class_names=store.class_names,
            device=pick_device(evaluate.device),
            score_threshold=evaluate.score_threshold,
            max_detections=evaluate.max_detections,
            warmup=evaluate.warmup,
        )

    with torch_threads(stream.threads):
        found = gather(mine, list(store.image_ids))
    return found.detections, found.timing.assign(dataset=dataset)


def _batches(
    store: Store, raw: Path, stream: StreamConfig, evaluate: EvaluateConfig
) -> Iterable[Batch]:
    """This process's share of the images: all of them where it is the only one."""
    from detpipe.data.stream import EvalStream
    from detpipe.evaluate.processes import my_share

    return EvalStream(
        store.at(existing(raw)),
        indices=my_share(len(store), batch_size=evaluate.batch_size),
        batch_size=evaluate.batch_size,
        resize=stream.resize,
        workers=stream.workers if len(store) > evaluate.batch_size else 0,
    )


def losses(
    dataset: str,
    model: Module,
    store: Store,
    raw: Path,
    stream: StreamConfig,
    evaluate: EvaluateConfig,
) -> DataFrame:
    """The losses on ``dataset`` as rows of the scores table; none unless ``evaluate.loss``."""
    from detpipe.core.tables import SCORES

    store = store.split(dataset)
    if not (evaluate.loss and len(store)):
        return SCORES.empty()
    from detpipe.evaluate.losses import losses as mean_losses
    from detpipe.train.launch import pick_device, torch_threads

    with torch_threads(stream.threads):
        return mean_losses(
            model,
            _batches(store, raw, stream, evaluate),
            dataset=dataset,
            device=pick_device(evaluate.device),
        )


def score(
    dataset: str,
    images: DataFrame,
    boxes: DataFrame,
    detections: DataFrame,
    classes: DataFrame,
    evaluate: EvaluateConfig,
) -> DataFrame:
    """The scores of ``detections`` against the boxes of ``dataset``; no rows if it is empty."""
    from detpipe.core.tables import SCORES, positions
    from detpipe.evaluate.scoring import score as score_tables

    images = images[images["split"] == dataset]
    if images.empty:
        return SCORES.empty()
    return score_tables(
        images,
        boxes[positions(boxes["image_id"], images["image_id"]) >= 0],
        detections,
        classes,
        dataset=dataset,
        metrics=evaluate.metrics,
        max_detections=evaluate.max_detections,
    )


def join(made: dict[str, str], *tables: DataFrame) -> tuple[DataFrame, DataFrame, dict[str, str]]:
    """All data sets' scores and losses in one table, their timing in another.

    The last output says that the detections and scores are whole, and of what.
    """
    import pandas as pd

    third = len(tables) // 3
    scores = pd.concat(tables[: 2 * third], ignore_index=True)
    return scores, pd.concat(tables[2 * third :], ignore_index=True), made


def splits_of(group: str, evaluate: EvaluateConfig) -> list[str]:
    """The splits of a namespace."""
    return list(evaluate.more) if group == "more" else [group]


def _for(group: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """:func:`detect` and :func:`score` of one namespace, with hints that Kedro can read."""

    def detect_group(
        model: Module, store: Store, raw: Path, stream: StreamConfig, evaluate: EvaluateConfig
    ) -> tuple[DataFrame, DataFrame, DataFrame]:
        import pandas as pd

        from detpipe.core.tables import DETECTIONS, SCORES
        from detpipe.evaluate.run import no_timing

        augmented = model
        if evaluate.tta is not None:
            from detpipe.evaluate.tta import Augmented

            augmented = Augmented.of(model, evaluate.tta, max_detections=evaluate.max_detections)
        found, timing, loss = [DETECTIONS.empty()], [no_timing()], [SCORES.empty()]
        for split in splits_of(group, evaluate):
            detections, took = detect(split, augmented, store, raw, stream, evaluate)
            found.append(detections)
            timing.append(took)
            loss.append(losses(split, model, store, raw, stream, evaluate))
        return tuple(pd.concat(t, ignore_index=True) for t in (found, timing, loss))

    def score_group(
        images: DataFrame, boxes: DataFrame, detections: DataFrame, classes: DataFrame,
        evaluate: EvaluateConfig,
    ) -> DataFrame:  # fmt: skip
        import pandas as pd

        from detpipe.core.tables import SCORES, positions

        tables = [SCORES.empty()]
        for split in splits_of(group, evaluate):
            ids = images.loc[images["split"] == split, "image_id"]
            own = detections[positions(detections["image_id"], ids) >= 0]
            tables.append(score(split, images, boxes, own, classes, evaluate))
        return pd.concat(tables, ignore_index=True)

    return detect_group, score_group


def _group_pipeline(group: str) -> Pipeline:
    detect_group, score_group = _for(group)
    outputs = ("detections", "timing", "losses", "scores")
    return Pipeline(
        [
            Node(
                detect_group,
                ["trained_model", "store", "raw", "params:stream", "params:evaluate"],
                ["detections", "timing", "losses"],
                name="detect",
            ),
            Node(
                score_group,
                ["images", "boxes", "detections", "classes", "params:evaluate"],
                "scores",
                name="score",
            ),
        ],
        namespace=group,
        inputs={"trained_model", "store", "raw", "images", "boxes", "classes"},
        outputs={name: f"{group}_{name}" for name in outputs},
        parameters={"params:stream", "params:evaluate"},
    )  # fmt: skip


def create_pipeline() -> Pipeline:
    """weights → val_detections, test_detections, more_detections → scores."""
    return Pipeline(
        [
            Node(
                load_trained,
                [
                    "classes", "weights", "store", "raw", "data_signature", "params:model",
                    "params:evaluate",
                ],
                ["trained_model", "evaluated_with"],
                name="load_trained",
            ),
            *(_group_pipeline(group) for group in GROUPS),
            Node(
                join,
                [
                    "evaluated_with",
                    *(f"{group}_{name}" for name in ("scores", "losses", "timing")
                      for group in GROUPS),
                ],
                ["scores", "timing", "evaluated"],
                name="join_scores",
            ),
        ],
        namespace="evaluation",
        prefix_datasets_with_namespace=False,
        tags="evaluate",
    )  # fmt: skip
