"""``export``: the trained model for other runtimes, each file checked against the model."""

from __future__ import annotations

from pathlib import Path

from kedro.pipeline import Node, Pipeline

from detpipe.data.config import StreamConfig
from detpipe.models.config import ExportConfig, ModelSpec
from detpipe.pipelines import DataFrame, Store, Weights, existing


def export(
    weights: Weights,
    store: Store,
    raw: Path,
    exports: Path,
    model: ModelSpec,
    stream: StreamConfig,
    export: ExportConfig,
) -> DataFrame:
    """Writes each format and compares its detections with the model's on real images."""
    import pandas as pd

    from detpipe.data.stream import EvalStream
    from detpipe.models.export import export_model
    from detpipe.models.restore import restore

    detector = restore(weights, model, store.class_names)
    # Any images do for the comparison; unseen ones are the fairer choice.
    split = next((s for s in ("test", "val", "train") if len(store.split(s))), "")
    some = store.at(existing(raw)).split(split)
    first = range(min(export.parity_images, len(some)))
    batches = EvalStream(some, indices=first, batch_size=1, resize=stream.resize)
    pictures = [image for batch in batches for image in batch.images]
    return pd.DataFrame(
        export_model(detector, exports, pictures, formats=export.formats, metadata=weights.metadata)
    )


def create_pipeline() -> Pipeline:
    """weights → model files and their parity report; a file that differs is an error."""
    return Pipeline(
        [
            Node(
                export,
                [
                    "weights", "store", "raw", "exports",
                    "params:model", "params:stream", "params:export",
                ],
                "export_report",
                name="export",
            ),
        ],
        tags="export",
    )  # fmt: skip
