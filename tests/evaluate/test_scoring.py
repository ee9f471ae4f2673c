"""Metrics as functions of tables, and the package without torch."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from detpipe.core.config import Spec
from detpipe.core.errors import ConfigError, DataError, DetpipeError, TableError
from detpipe.core.tables import SCORES
from detpipe.evaluate import coco, scoring
from detpipe.evaluate.config import EvaluateConfig

COCO = EvaluateConfig().metrics
SEEN: dict[str, object] = {}


def own_metric(boxes, dataset, *, factor: float = 1.0):
    """A metric that asks for two of the six things on offer."""
    SEEN.update(boxes=boxes, dataset=dataset)
    return [
        {
            "dataset": dataset, "task": "bbox", "metric": "objects", "class_name": "",
            "value": factor * len(boxes),
        }
    ]  # fmt: skip


def broken_metric(dataset):
    return [{"dataset": dataset, "value": 1.0}]


def raising_metric(boxes, classes, *, wrong: str = "column"):
    if wrong == "nothing":
        return None
    if wrong == "mistake":
        raise ConfigError("iou must be a number")
    return _helper(boxes)


def _helper(boxes):
    return boxes["colour"]  # a KeyError deep within pandas


@pytest.fixture
def tables(make):
    boxes = make.boxes(("1", "a", 0, 0, 50, 50), ("2", "b", 0, 0, 50, 50))
    return make.tables(
        make.images(["1", "2"]), boxes, boxes.assign(score=0.5), make.classes("a", "b")
    )


def test_metrics_are_joined_in_their_order(tables):
    own = Spec(use=f"{__name__}.own_metric", factor=2)
    scores = scoring.score(
        *tables, dataset="val", metrics={"own": own, "coco": COCO["coco"], "off": None},
        max_detections=7,
    )  # fmt: skip
    assert scores.iloc[0].tolist() == ["val", "bbox", "objects", "", 4.0]
    expected = coco.score(*tables, dataset="val", max_detections=7)
    assert scores.iloc[1:].reset_index(drop=True).equals(expected)
    assert list(scores.columns) == list(SCORES.columns) and SEEN["dataset"] == "val"


def test_no_metric_gives_an_empty_table(tables):
    scores = scoring.score(*tables, dataset="val", metrics={"coco": None}, max_detections=100)
    assert scores.empty and list(scores.columns) == list(SCORES.columns)


def test_strangers_are_listed_all_at_once(tables, make):
    detections = make.detections(
        *(("1", "a", 0, 0, 9, 9, 0.1), ("x", "a", 0, 0, 9, 9, 0.1), ("y", "bb", 0, 0, 9, 9, 0.1))
    )
    boxes = make.boxes(("z", "c", 0, 0, 9, 9))
    with pytest.raises(DataError) as error:
        scoring.score(
            tables.images, boxes, detections, tables.classes, dataset="val", metrics=COCO,
            max_detections=100,
        )  # fmt: skip
    for part in ("'x', 'y'", "'bb'; did you mean 'b'?", "'z'", "'c'", "detections:", "boxes:"):
        assert part in str(error.value)


def test_two_metrics_with_the_same_row_are_named(tables):
    with pytest.raises(ConfigError, match=r"one, two give the same row \(metric 'AP'"):
        scoring.score(
            *tables, dataset="val", metrics={"one": COCO["coco"], "two": COCO["coco"]},
            max_detections=100,
        )  # fmt: skip


def test_a_metric_with_other_columns_is_named(tables):
    with pytest.raises(TableError, match=r"metric 'mine'.*lacks the column"):
        scoring.score(
            *tables, dataset="val", metrics={"mine": Spec(use=f"{__name__}.broken_metric")},
            max_detections=100,
        )  # fmt: skip


def score_raising(tables, wrong):
    return scoring.score(
        *tables, dataset="val", max_detections=100,
        metrics={"mine": Spec(use=f"{__name__}.raising_metric", wrong=wrong)},
    )  # fmt: skip


def test_a_metric_that_raises_is_named_with_the_place_in_its_file(tables):
    with pytest.raises(DetpipeError) as error:
        score_raising(tables, "column")
    text = Path(__file__).read_text().partition('boxes["colour"]')[0]
    line = text.count("\n") + 1
    for part in (
        f"metric 'mine' ({__name__}.raising_metric) failed on data set 'val'",
        "KeyError: 'colour'",
        f"({__file__}, line {line})",
        "set evaluate.metrics.mine to null",
    ):
        assert part in str(error.value)
    assert isinstance(error.value.__cause__, KeyError)


def test_an_error_that_a_metric_explains_stays_as_it_is(tables):
    with pytest.raises(ConfigError, match=r"^iou must be a number$"):
        score_raising(tables, "mistake")


def test_a_metric_that_returns_no_rows_is_named(tables):
    with pytest.raises(TableError, match=r"metric 'mine' .*: it returns NoneType"):
        score_raising(tables, "nothing")


@pytest.mark.parametrize("limit, warned", [(2, False), (1, True)])
def test_truth_above_the_limit_warns(make, caplog, limit, warned):
    boxes = make.boxes(("7", "a", 0, 0, 50, 50), ("7", "b", 0, 0, 50, 50), ("7", "b", 0, 0, 9, 9))
    boxes["iscrowd"] = [False, False, True]  # crowds are no objects to find
    scoring.score(
        make.images(["7"]), boxes, make.detections(), make.classes("a", "b"),
        dataset="val", metrics=COCO, max_detections=limit,
    )  # fmt: skip
    assert ("max_detections=1 objects (most: 2 in image '7')" in caplog.text) is warned


def test_as_metrics_names_scalars_and_keeps_what_is_no_number():
    def row(metric, class_name, value):
        return {
            "dataset": "val", "task": "bbox", "metric": metric, "class_name": class_name,
            "value": value,
        }  # fmt: skip

    scores = SCORES.make([row("AP", "", 5.5), row("APs", "", float("nan")), row("AP", "a-b", 7)])
    metrics = scoring.as_metrics(scores)
    assert list(metrics) == ["val/bbox/AP", "val/bbox/APs", "val/bbox/AP/a-b"]
    assert math.isnan(metrics.pop("val/bbox/APs"))
    assert metrics == {"val/bbox/AP": 5.5, "val/bbox/AP/a-b": 7.0}
    assert scoring.as_metrics(SCORES.empty()) == {}


def test_everything_but_inference_works_without_torch():
    code = """
import importlib, pkgutil, sys
import pandas as pd
from detpipe.core.tables import BOXES, CLASSES, DETECTIONS, IMAGES
from detpipe import evaluate
for module in pkgutil.iter_modules(evaluate.__path__):
    if module.name not in ("losses", "processes", "run", "tta"):
        importlib.import_module(f"detpipe.evaluate.{module.name}")
from detpipe.evaluate import config, report, scoring, verify
loaded = [m for m in ("torch", "matplotlib", "hotcoco", "kedro", "mlflow") if m in sys.modules]
assert not loaded, f"importing loaded {loaded}"
images = IMAGES.make(pd.DataFrame([["1", "1.jpg", 9, 9, "val"]], columns=list(IMAGES.columns)))
row = {"image_id": "1", "annotation_id": "1", "class_name": "a", "x1": 0, "y1": 0, "x2": 9,
       "y2": 9, "area": 81, "iscrowd": False, "difficult": False}
boxes, classes = BOXES.make([row]), CLASSES.make([{"class_name": "a"}])
found = DETECTIONS.make([{**row, "score": 1}])
scores = scoring.score(images, boxes, found, classes, dataset="val", max_detections=100,
                       metrics=config.EvaluateConfig().metrics)
report.log(scores)
parts = report.parts(images, boxes, [(["val"], found)])
settings = config.ReportConfig(samples=10)
known = report.diagnose(parts, classes, settings, max_detections=100)
report.figures(parts, classes, known, settings, max_detections=100)
verify.require(verify.verify(scores, config.VerifyConfig(
    expected=[{"dataset": "val", "metric": "AP", "value": 100, "tolerance": 0.1}])))
loaded = [m for m in ("torch", "matplotlib.pyplot", "kedro", "mlflow") if m in sys.modules]
assert not loaded, f"scoring loaded {loaded}"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
