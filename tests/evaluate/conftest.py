"""Small tables, the real COCO truth, and pycocotools as the referee."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from detpipe.core.tables import BOXES, CLASSES, DETECTIONS, IMAGES


class Tables(NamedTuple):
    """The four tables that a metric is a function of."""

    images: pd.DataFrame
    boxes: pd.DataFrame
    detections: pd.DataFrame
    classes: pd.DataFrame


def _images(ids: Sequence[str], width: int = 200, height: int = 100) -> pd.DataFrame:
    return IMAGES.make(
        [
            {"image_id": i, "path": f"{i}.jpg", "width": width, "height": height, "split": "test"}
            for i in ids
        ]
    ) if ids else IMAGES.empty()  # fmt: skip


def _boxes(*rows: tuple[Any, ...], **columns: Any) -> pd.DataFrame:
    """Rows (image_id, class_name, x1, y1, x2, y2); ``columns`` for all of them."""
    frame = pd.DataFrame(rows, columns=["image_id", "class_name", "x1", "y1", "x2", "y2"])
    frame["annotation_id"] = [str(i) for i in range(len(rows))]
    frame["area"] = (frame["x2"] - frame["x1"]) * (frame["y2"] - frame["y1"])
    return BOXES.make(frame.assign(**{"iscrowd": False, "difficult": False, **columns}))


def _detections(*rows: tuple[Any, ...]) -> pd.DataFrame:
    """Rows (image_id, class_name, x1, y1, x2, y2, score)."""
    return DETECTIONS.make(pd.DataFrame(rows, columns=list(DETECTIONS.columns)))


def _classes(*names: str) -> pd.DataFrame:
    return CLASSES.make([{"class_name": name} for name in names])


@pytest.fixture(scope="session")
def make() -> SimpleNamespace:
    """Functions that make tables from short rows."""
    return SimpleNamespace(
        images=_images, boxes=_boxes, detections=_detections, classes=_classes, tables=Tables
    )


@pytest.fixture(scope="session")
def coco100(shared_data: Path) -> SimpleNamespace:
    """100 images of COCO val2014: the tables, the files, the published numbers."""
    folder = shared_data / "eval_truth_coco100"
    truth_file = folder / "instances_val2014_100.json"
    found_file = folder / "instances_val2014_fakebbox100_results.json"
    truth, found = json.loads(truth_file.read_text()), json.loads(found_file.read_text())
    names = {c["id"]: c["name"] for c in sorted(truth["categories"], key=lambda c: c["id"])}

    def corners(annotation: dict[str, Any]) -> dict[str, Any]:
        x, y, w, h = annotation["bbox"]
        return {
            "image_id": str(annotation["image_id"]),
            "class_name": names[annotation["category_id"]],
            "x1": x, "y1": y, "x2": x + w, "y2": y + h,
        }  # fmt: skip

    images = IMAGES.make(
        {
            "image_id": str(image["id"]), "path": image["file_name"], "width": image["width"],
            "height": image["height"], "split": "test",
        }
        for image in truth["images"]
    )  # fmt: skip
    boxes = BOXES.make(
        {
            **corners(a), "annotation_id": str(a["id"]), "area": a["area"],
            "iscrowd": a["iscrowd"], "difficult": False,
        }
        for a in truth["annotations"]
    )  # fmt: skip
    detections = DETECTIONS.make({**corners(a), "score": a["score"]} for a in found)
    published = {  # README.md of the data; three decimals of them in cocoapi's own notebook
        "AP": 0.5045806987249628, "AP50": 0.6969727247299577, "AP75": 0.5729816669904824,
        "APs": 0.5856257209410443, "APm": 0.5193996948036719, "APl": 0.5013978986347466,
        "AR1": 0.38681277964578054, "AR10": 0.5936795762842003, "AR100": 0.595352982877607,
        "ARs": 0.6398109626113442, "ARm": 0.5664205978994309, "ARl": 0.5642905982905982,
    }  # fmt: skip
    return SimpleNamespace(
        tables=Tables(images, boxes, detections, _classes(*names.values())),
        truth=truth, truth_file=truth_file, found_file=found_file, names=names,
        published=published,
    )  # fmt: skip


@pytest.fixture(scope="session")
def referee() -> Callable[..., SimpleNamespace]:
    """pycocotools on a COCO dict and a result list, summarised at any limit of detections."""
    return _referee


def _referee(
    truth: dict[str, Any], found: list[dict[str, Any]], *, limits: Sequence[int] = (1, 10, 100)
) -> SimpleNamespace:
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):
        gt, dt = COCO(), COCO()
        gt.dataset = truth
        gt.createIndex()
        if found:
            dt = gt.loadRes(found)
        else:  # its loadRes([]) is an IndexError
            dt.dataset = {**truth, "annotations": []}
            dt.createIndex()
        engine = COCOeval(gt, dt, "bbox")
        engine.params.maxDets = list(limits)
        engine.evaluate()
        engine.accumulate()
    precision, recall = engine.eval["precision"], engine.eval["recall"]

    def mean(values: np.ndarray) -> float:
        there = values[values > -1]
        return float(np.mean(there)) if there.size else float("nan")

    last = len(limits) - 1
    summary = {"AP": mean(precision[:, :, :, 0, last]), "AP50": mean(precision[0, :, :, 0, last])}
    summary["AP75"] = mean(precision[5, :, :, 0, last])
    for a, area in enumerate("sml", start=1):
        summary[f"AP{area}"] = mean(precision[:, :, :, a, last])
    for m, limit in enumerate(limits):
        summary[f"AR{limit}"] = mean(recall[:, :, 0, m])
    for a, area in enumerate("sml", start=1):
        summary[f"AR{area}"] = mean(recall[:, :, a, last])
    by_class = {
        category: mean(precision[:, :, k, 0, last])
        for k, category in enumerate(engine.params.catIds)
    }
    return SimpleNamespace(summary=summary, by_class=by_class)
