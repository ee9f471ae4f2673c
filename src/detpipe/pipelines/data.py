"""``data``: from somebody's folder to checked tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kedro.pipeline import Node, Pipeline

from detpipe.core.errors import DataError
from detpipe.data.config import DataConfig, StreamConfig
from detpipe.evaluate.config import EvaluateConfig
from detpipe.pipelines import DataFrame, Store

SAMPLE = "detpipe.data.sample.read"
"""The reader that makes its data set when there is none."""


def read(
    raw: Path, data: DataConfig
) -> tuple[DataFrame, DataFrame, DataFrame, DataFrame, dict[str, str]]:
    """The folder as tables, as its author left it but for ``data.classes``; and what was noticed.

    The last output is the annotation files' signature as it was before they were read.
    """
    from detpipe.data.formats.classes import choose_classes
    from detpipe.data.signature import places_outside, signature

    if data.reader.use == SAMPLE and not raw.exists() and raw.parent.name != "01_raw":
        raise DataError(
            f"there is no folder '{raw}', and data.reader is the built-in sample set: for your own "
            f"data name its reader, as in data.reader.use=detpipe.data.formats.coco.read"
        )
    # A reader may copy what lies far away: the places of its options are there after it only.
    before = signature(raw) if raw.is_dir() else None
    found = choose_classes(data.reader.build(raw), data.classes)
    signed = signature(raw, places_outside(raw, data.reader.options))
    if before is not None and any(signed.get(folder) != text for folder, text in before.items()):
        raise DataError(
            f"annotation files in {raw} were changed while they were read: run it again"
        )
    return found.images, found.boxes, found.classes, found.issues, signed


def check(
    raw: Path,
    images: DataFrame,
    boxes: DataFrame,
    classes: DataFrame,
    issues: DataFrame,
    cache: Path,
    data: DataConfig,
    stream: StreamConfig,
    evaluate: EvaluateConfig,
) -> tuple[DataFrame, DataFrame, DataFrame]:
    """Every annotation and every image looked at; bad ones dropped or mended.

    Errors are refused by ``accept``, when ``data_issues`` and ``data_page`` are written.
    """
    from detpipe.data.check import inspect
    from detpipe.data.formats.base import Annotations
    from detpipe.data.split import undecided

    found = inspect(
        Annotations(undecided(images, data.split), boxes, classes, issues),
        raw,
        data.check,
        cache=cache,
        resize=stream.resize,
        max_detections=evaluate.max_detections,
    )
    return found.images, found.boxes, found.issues


def draw_page(
    raw: Path, images: DataFrame, boxes: DataFrame, classes: DataFrame, issues: DataFrame
) -> tuple[str, dict[str, Any]]:
    """What is in the data set and what is wrong with it, as one HTML page; and its plots."""
    from detpipe.data.describe import draw
    from detpipe.data.page import page

    plots = draw(images, boxes, classes)
    return page(images, boxes, classes, issues, raw, plots=plots, name=raw.name), plots


def accept(raw: Path, issues: DataFrame, page: str) -> bool:
    """Refuses a data set with errors; everything that says what they are is written by then."""
    from detpipe.data.check import require_valid

    require_valid(issues, raw)
    return True


def split(images: DataFrame, boxes: DataFrame, accepted: bool, data: DataConfig) -> DataFrame:
    """Each image gets its use: train, val or test."""
    from detpipe.data.split import split as split_images

    return split_images(images, boxes, data.split)


def list_classes(
    classes: DataFrame, boxes: DataFrame, accepted: bool, data: DataConfig
) -> DataFrame:
    """The classes the model learns, in the order of its labels."""
    from detpipe.data.prepare import list_classes as classes_in_use

    return classes_in_use(classes, boxes, data.check)


def describe(images: DataFrame, boxes: DataFrame, classes: DataFrame) -> DataFrame:
    """Counts and sizes of the data set as it is trained on."""
    from detpipe.data.describe import describe as count

    return count(images, boxes, classes)


def pack(
    images: DataFrame, boxes: DataFrame, classes: DataFrame, signature: dict[str, str]
) -> tuple[Store, dict[str, str]]:
    """The annotations as one file of columns that training and evaluation map into memory.

    And, now that all tables are there, the signature by which later pipelines know whether they are
    still those of the annotation files.
    """
    from detpipe.data.store import Store as PackedStore

    return PackedStore.from_tables(images, boxes, classes, Path()), signature


def self_test(
    images: DataFrame, boxes: DataFrame, classes: DataFrame, evaluate: EvaluateConfig
) -> DataFrame:
    """The AP of a perfect detector: 100, or the reason why these settings cannot show it."""
    from detpipe.evaluate.self_test import self_test as score_truth

    return score_truth(images, boxes, classes, max_detections=evaluate.max_detections)


def create_pipeline() -> Pipeline:
    """raw → images, boxes, classes, store; data_issues, data_page, data_summary, self_test."""
    return Pipeline(
        [
            Node(
                read,
                ["raw", "params:data"],
                ["images_read", "boxes_read", "classes_read", "issues_read", "signature_read"],
                name="read",
            ),
            Node(
                check,
                [
                    "raw", "images_read", "boxes_read", "classes_read", "issues_read",
                    "check_cache", "params:data", "params:stream", "params:evaluate",
                ],
                ["images_checked", "boxes", "data_issues"],
                name="check",
            ),
            Node(
                draw_page,
                ["raw", "images_checked", "boxes", "classes_read", "data_issues"],
                ["data_page", "data_plots"],
                name="draw_page",
            ),
            Node(accept, ["raw", "data_issues", "data_page"], "accepted", name="accept"),
            Node(
                split, ["images_checked", "boxes", "accepted", "params:data"], "images",
                name="split",
            ),
            Node(
                list_classes, ["classes_read", "boxes", "accepted", "params:data"], "classes",
                name="list_classes",
            ),
            Node(
                pack, ["images", "boxes", "classes", "signature_read"], ["store", "data_signature"],
                name="pack",
            ),
            Node(describe, ["images", "boxes", "classes"], "data_summary", name="describe"),
            Node(
                self_test, ["images", "boxes", "classes", "params:evaluate"], "self_test",
                name="self_test",
            ),
        ],
        namespace="data",
        prefix_datasets_with_namespace=False,
        tags="data",
    )  # fmt: skip
