"""``data``: from somebody's folder to checked tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kedro.pipeline import Node, Pipeline

from detpipe.data.config import DataConfig
from detpipe.pipelines import DataFrame


def read(raw: Path, data: DataConfig) -> tuple[DataFrame, DataFrame, DataFrame, DataFrame]:
    """The folder as tables, just as its author left it, and what the reader noticed."""
    found = data.reader.build(raw)
    return found.images, found.boxes, found.classes, found.issues


def check(
    raw: Path,
    images: DataFrame,
    boxes: DataFrame,
    classes: DataFrame,
    issues: DataFrame,
    data: DataConfig,
) -> tuple[DataFrame, DataFrame, DataFrame]:
    """Every annotation and every image looked at; bad ones dropped, mended or refused."""
    from detpipe.data.check import check as check_annotations
    from detpipe.data.formats.base import Annotations

    found = check_annotations(Annotations(images, boxes, classes, issues), raw, data.check)
    return found.images, found.boxes, found.issues


def split(images: DataFrame, boxes: DataFrame, data: DataConfig) -> DataFrame:
    """Each image gets its use: train, val or test."""
    from detpipe.data.prepare import split as split_images

    return split_images(images, boxes, data.split)


def list_classes(classes: DataFrame, boxes: DataFrame, data: DataConfig) -> DataFrame:
    """The classes the model learns, in the order of its labels."""
    from detpipe.data.prepare import list_classes as classes_in_use

    return classes_in_use(classes, boxes, data.check)


def describe(
    images: DataFrame, boxes: DataFrame, classes: DataFrame
) -> tuple[DataFrame, dict[str, Any]]:
    """Counts, sizes and plots of the data set."""
    from detpipe.data import describe as description

    plots = description.plots(images, boxes, classes)
    return (
        description.describe(images, boxes, classes),
        {f"{name}.png": figure for name, figure in plots.items()},
    )


def create_pipeline() -> Pipeline:
    """raw → images, boxes, classes, data_issues, data_summary."""
    return Pipeline(
        [
            Node(
                read,
                ["raw", "params:data"],
                ["images_read", "boxes_read", "classes_read", "issues_read"],
                name="read",
            ),
            Node(
                check,
                ["raw", "images_read", "boxes_read", "classes_read", "issues_read", "params:data"],
                ["images_checked", "boxes", "data_issues"],
                name="check",
            ),
            Node(split, ["images_checked", "boxes", "params:data"], "images", name="split"),
            Node(
                list_classes, ["classes_read", "boxes", "params:data"], "classes",
                name="list_classes",
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
