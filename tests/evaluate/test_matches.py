"""Which detections are right: pycocotools and a second implementation, box by box."""

from __future__ import annotations

import contextlib
import io
import json
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from detpipe.core.errors import ConfigError
from detpipe.evaluate.matches import iou_suffix, matches

from . import coco_rule


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(coco_rule.truths, coco_rule.founds, coco_rule.ious, coco_rule.limits)
def test_every_detection_is_what_the_rule_says(make, truth, found, iou, limit):
    expected = coco_rule.match(truth, found, iou=iou, limit=limit)
    got = matches(*coco_rule.tables(make, truth, found), iou=float(iou), max_detections=limit)
    assert got.row.tolist() == sorted(expected)
    for k, n in enumerate(got.row):
        took = expected[n] if isinstance(expected[n], tuple) else None
        assert got.right[k] == (took is not None)
        assert got.ignored[k] == (expected[n] == "ignored")
        assert got.truth[k] == (took[0] if took else -1)
        assert got.iou[k] == float(took[1]) if took else math.isnan(got.iou[k])
        assert got.score[k] == found[n].twelfths / 12
        assert coco_rule.CLASSES[got.label[k]] == found[n].label
    real = [t.label for t in truth if not t.crowd]
    assert got.objects.tolist() == [real.count(name) for name in coco_rule.CLASSES]


@pytest.mark.parametrize(("iou", "limit"), [(0.5, 100), (0.75, 100), (0.9, 2), (1.0, 100)])
def test_real_data_equals_pycocotools(coco100, iou, limit):
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    found = json.loads(coco100.found_file.read_text())
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(coco100.truth_file))
        engine = COCOeval(truth, truth.loadRes(found), "bbox")
        engine.params.iouThrs, engine.params.maxDets = np.array([iou]), [limit]
        engine.params.areaRng, engine.params.areaRngLbl = [[0, 1e10]], ["all"]
        engine.evaluate()
    expected = {
        number: (bool(match), bool(ignore))
        for image in engine.evalImgs if image is not None
        for number, match, ignore in zip(
            image["dtIds"], image["dtMatches"][0], image["dtIgnore"][0], strict=True)
    }  # fmt: skip
    got = matches(*coco100.tables, iou=iou, max_detections=limit)
    seen = {
        row + 1: (right or ignored, ignored)
        for row, right, ignored in zip(
            got.row.tolist(), got.right.tolist(), got.ignored.tolist(), strict=True)
    }  # fmt: skip
    assert seen == expected
    assert limit < 100 or len(seen) == len(found)


@pytest.mark.parametrize("gone", ["boxes", "detections", "images", "classes"])
def test_tables_without_rows(make, gone):
    images, boxes, detections, classes = make.tables(
        make.images(["1"]), make.boxes(("1", "a", 0, 0, 9, 9)),
        make.detections(("1", "a", 0, 0, 9, 9, 0.5)), make.classes("a"),
    )  # fmt: skip
    none = gone in ("images", "classes")
    got = matches(
        images.iloc[:0] if gone == "images" else images,
        boxes.iloc[:0] if gone == "boxes" or none else boxes,
        detections.iloc[:0] if gone == "detections" or none else detections,
        classes.iloc[:0] if gone == "classes" else classes,
        iou=0.5, max_detections=100,
    )  # fmt: skip
    assert got.row.tolist() == ([0] if gone == "boxes" else [])
    assert not got.right.any() and not got.ignored.any()
    objects = {"boxes": [0], "detections": [1], "images": [0], "classes": []}
    assert got.objects.tolist() == objects[gone]


@pytest.mark.parametrize(("limit", "right"), [(100, 100), (149, 149), (150, 150), (300, 150)])
def test_more_objects_than_coco_looks_at(make, limit, right):
    spots = [("1", "a", 20 * n, 0, 20 * n + 10, 10) for n in range(150)]
    got = matches(
        make.images(["1"], 3000), make.boxes(*spots), make.detections(*((*s, 0.5) for s in spots)),
        make.classes("a"), iou=0.5, max_detections=limit,
    )  # fmt: skip
    assert got.right.all() and len(got.row) == right
    assert got.objects.tolist() == [150]


def test_rows_count_by_place_not_by_index(make):
    images, boxes, detections, classes = coco_rule.tables(
        make,
        [coco_rule.Truth("2", "a", (0, 0, 5, 5), False)] * 2,
        [coco_rule.Found("2", "a", (0, 0, 5, 5), 6), coco_rule.Found("2", "a", (0, 0, 5, 4), 12)],
    )
    got = matches(
        images, boxes.set_axis([7, 3]), detections.set_axis([5, 5]), classes,
        iou=0.5, max_detections=100,
    )  # fmt: skip
    assert got.row.tolist() == [0, 1] and got.truth.tolist() == [0, 1]
    assert got.iou.tolist() == [1.0, 0.8]


@pytest.mark.parametrize("iou", [0, -0.5, 50, float("nan")])
def test_an_iou_that_is_no_share_is_refused(coco100, iou):
    with pytest.raises(ConfigError, match="iou must lie above 0"):
        matches(*coco100.tables, iou=iou, max_detections=100)


def test_names_of_metrics_tell_another_iou():
    assert [iou_suffix(iou) for iou in (0.5, 0.55, 0.75, 1.0)] == ["", "_55", "_75", "_100"]
