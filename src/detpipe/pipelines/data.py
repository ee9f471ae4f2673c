"""``data``: from somebody's folder to checked tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kedro.pipeline import Node, Pipeline

from detpipe.core.errors import DataError
from detpipe.data.config import DataConfig
from detpipe.pipelines import DataFrame

SAMPLE = "detpipe.data.sample.read"
"""The reader that makes its data set when there is none."""


def read(
    raw: Path, data: DataConfig
) -> tuple[DataFrame, DataFrame, DataFrame, DataFrame, dict[str, str]]:
    """The folder as tables, just as its author left it, and what the reader noticed.

    The last output is the annotation files' signature, by which later pipelines know whether the
    tables are still those of the files.
    """
    from detpipe.data.signature import signature

    if data.reader.use == SAMPLE and not raw.exists() and raw.parent.name != "01_raw":
        raise DataError(
            f"there is no folder '{raw}', and data.reader is the built-in sample set: for your own "
            f"data name its reader, as in data.reader.use=detpipe.data.formats.coco.read"
        )
    found = data.reader.build(raw)
    return found.images, found.boxes, found.classes, found.issues, signature(raw)


def check(
    raw: Path,
    images: DataFrame,
    boxes: DataFrame,
    classes: DataFrame,
    issues: DataFrame,
    data: DataConfig,
) -> tuple[DataFrame, DataFrame, DataFrame]:
    """Every annotation and every image looked at; bad ones dropped or mended.

    Errors are refused by the next nodes, when ``data_issues`` is written.
    """
    from detpipe.data.check import inspect
    from detpipe.data.formats.base import Annotations

    found = inspect(Annotations(images, boxes, classes, issues), raw, data.check)
    return found.images, found.boxes, found.issues


def split(
    images: DataFrame, boxes: DataFrame, issues: DataFrame, raw: Path, data: DataConfig
) -> DataFrame:
    """Each image gets its use: train, val or test; a set with errors is refused."""
    from detpipe.data.check import require_valid
    from detpipe.data.prepare import split as split_images

    require_valid(issues, raw)
    return split_images(images, boxes, data.split)


def list_classes(
    classes: DataFrame, boxes: DataFrame, issues: DataFrame, raw: Path, data: DataConfig
) -> DataFrame:
    """The classes the model learns, in the order of its labels; a set with errors is refused."""
    from detpipe.data.check import require_valid
    from detpipe.data.prepare import list_classes as classes_in_use

    require_valid(issues, raw)
    return classes_in_use(classes, boxes, data.check)


def describe(
    images: DataFrame, boxes: DataFrame, classes: DataFrame
) -> tuple[DataFrame, dict[str, Any]]:
    """Counts, sizes and plots of the data set."""
    from detpipe.data import describe as description

    return (
        description.describe(images, boxes, classes),
        description.plots(images, boxes, classes),
    )


def create_pipeline() -> Pipeline:
    """raw → images, boxes, classes, data_issues, data_summary."""
    return Pipeline(
        [
            Node(
                read,
                ["raw", "params:data"],
                ["images_read", "boxes_read", "classes_read", "issues_read", "data_signature"],
                name="read",
            ),
            Node(
                check,
                ["raw", "images_read", "boxes_read", "classes_read", "issues_read", "params:data"],
                ["images_checked", "boxes", "data_issues"],
                name="check",
            ),
            Node(
                split, ["images_checked", "boxes", "data_issues", "raw", "params:data"], "images",
                name="split",
            ),
            Node(
                list_classes, ["classes_read", "boxes", "data_issues", "raw", "params:data"],
                "classes", name="list_classes",
            ),
            Node(
                describe, ["images", "boxes", "classes"], ["data_summary", "data_plots"],
                name="describe",
            ),
        ],
        namespace="data",
        prefix_datasets_with_namespace=False,
        tags="data",
    )  # fmt: skip
