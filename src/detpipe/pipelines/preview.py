"""``preview``, ``lr_range``, ``batch_size``: looking before a long training is begun.

None of them writes checkpoints, weights or history.
"""

from __future__ import annotations

import logging
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kedro.pipeline import Node, Pipeline

from detpipe.data.config import StreamConfig
from detpipe.pipelines import DataFrame, Module, Store
from detpipe.pipelines.train import build_model, training_stream
from detpipe.train.config import TrainConfig
from detpipe.train.preview import PreviewConfig

if TYPE_CHECKING:
    from detpipe.core.types import Batch
    from detpipe.data.stream import TrainStream

logger = logging.getLogger(__name__)


def draw_batches(
    store: Store,
    raw: Path,
    train: TrainConfig,
    stream: StreamConfig,
    preview: PreviewConfig,
) -> Any:
    """The first training batches exactly as the model gets them, as one picture."""
    from PIL import Image

    from detpipe.data.preview import draw_batch

    _, batches = training_stream(store, raw, train, stream)
    sheets = [draw_batch(batch, store.class_names) for batch in _first(batches, preview.batches)]
    size = (max(sheet.width for sheet in sheets), sum(sheet.height for sheet in sheets))
    picture = Image.new("RGB", size, "white")
    top = 0
    for sheet in sheets:
        picture.paste(sheet, (0, top))
        top += sheet.height
    return picture


def summarise_model(
    model: Module,
    store: Store,
    raw: Path,
    train: TrainConfig,
    stream: StreamConfig,
    preview: PreviewConfig,
) -> DataFrame:
    """What the model costs; see :func:`detpipe.models.describe.describe_model`."""
    from detpipe.models.describe import describe_model
    from detpipe.train.launch import pick_device, torch_threads

    _, batches = training_stream(store, raw, train, stream)
    with torch_threads(stream.threads):
        table = describe_model(
            model.to(pick_device(train.device)),
            _first(batches, 1)[0],
            depth=preview.depth,
            latency_runs=preview.latency_runs,
            warm_up=preview.warm_up,
            precision=train.precision,
        )
    whole = table.iloc[0]
    logger.info(
        "model: %.4g million parameters (%.4g to train), %.4g GFLOPs and %.3g ms an image (%s) on "
        "%s; %.4g MiB of activations for a training batch of %d",
        whole["parameters"] / 1e6, whole["trainable"] / 1e6, whole["flops"] / 1e9,
        whole["detect_ms"], whole["image"], whole["device"], whole["training_mib"],
        whole["batch_size"],
    )  # fmt: skip
    return table


def plot_schedule(
    model: Module,
    store: Store,
    raw: Path,
    train: TrainConfig,
    stream: StreamConfig,
) -> dict[str, Any]:
    """The learning rate over the steps of the run, warm-up included, a curve a group."""
    from detpipe.train.rates import learning_rates, plot

    _, batches = training_stream(store, raw, train, stream)
    rates = learning_rates(train, model, images_per_epoch=batches.images_per_epoch)
    return {"learning_rate": plot(rates)}


def try_learning_rates(
    model: Module,
    store: Store,
    raw: Path,
    train: TrainConfig,
    stream: StreamConfig,
    preview: PreviewConfig,
) -> tuple[DataFrame, dict[str, Any]]:
    """Loss over a rising learning rate; see :func:`detpipe.train.lr_range.lr_range_test`."""
    from detpipe.train.launch import torch_threads
    from detpipe.train.lr_range import lr_range_test, plot

    _, batches = training_stream(store, raw, train, stream)
    with torch_threads(stream.threads):
        result = lr_range_test(model, batches, config=train, **dict(preview.lr_range))
    logger.info("learning rate range test: %s", result)
    return result.table, {"lr_range": plot(result)}


def search_batch_size(
    model: Module,
    store: Store,
    raw: Path,
    train: TrainConfig,
    stream: StreamConfig,
    preview: PreviewConfig,
) -> DataFrame:
    """The largest batch that fits; see :func:`detpipe.train.batch_size.search_batch_size`."""
    from detpipe.train import batch_size
    from detpipe.train.launch import torch_threads

    used, batches = training_stream(store, raw, train, stream)
    options = preview.batch_size
    some = _first(batches, options.batches) + _largest(used, stream)
    with torch_threads(stream.threads):
        table = batch_size.search_batch_size(
            model, batch_size.fullest(some), config=train, limit=options.limit or len(used)
        )
    logger.info(
        "the largest batch that fits: train.batch_size: %d; leave a margin",
        table.loc[table["fits"], "batch_size"].max(),
    )
    return table


def _first(stream: TrainStream, number: int) -> list[Batch]:
    """The run's first batches; worker processes end at once."""
    batches: Any = stream.batches(0)  # a generator
    with closing(batches):
        return list(islice(batches, number))


def _largest(store: Store, stream: StreamConfig) -> list[Batch]:
    """The training images that are largest, tallest, widest when they reach the model, as read."""
    from detpipe.data.stream import EvalStream

    sizes = [
        stream.resize.target_size(height, width) if stream.resize else (height, width)
        for height, width in store.sizes.tolist()
    ]
    measures: tuple[Any, ...] = (lambda s: s[0] * s[1], lambda s: s[0], lambda s: s[1])
    rows = {sizes.index(max(sizes, key=measure)) for measure in measures}
    return list(EvalStream(store, indices=sorted(rows), batch_size=1, resize=stream.resize))


_INPUTS = ["store", "raw", "params:train", "params:stream"]


def create_pipeline() -> Pipeline:
    """The first batches, the model and the schedule, to be looked at."""
    return Pipeline(
        [
            _build(),
            Node(
                draw_batches, [*_INPUTS, "params:preview"], "augmented_batch",
                name="draw_batches",
            ),
            Node(
                summarise_model, ["model", *_INPUTS, "params:preview"], "model_summary",
                name="summarise_model",
            ),
            Node(plot_schedule, ["model", *_INPUTS], "schedule_plot", name="plot_schedule"),
        ],
        tags="preview",
    )  # fmt: skip


def create_lr_range_pipeline() -> Pipeline:
    """The learning rate range test."""
    return Pipeline(
        [
            _build(),
            Node(
                try_learning_rates,
                ["model", *_INPUTS, "params:preview"],
                ["lr_range", "lr_range_plot"],
                name="try_learning_rates",
            ),
        ],
        tags="preview",
    )


def create_batch_size_pipeline() -> Pipeline:
    """The largest batch that a GPU can train on."""
    return Pipeline(
        [
            _build(),
            Node(
                search_batch_size,
                ["model", *_INPUTS, "params:preview"],
                "batch_size_search",
                name="search_batch_size",
            ),
        ],
        tags="preview",
    )


def _build() -> Node:
    return Node(
        build_model, ["classes", "params:model", "params:train"], "model", name="build_model"
    )
