"""Pairs that overlap, and AP of rights and wrongs."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from detpipe.evaluate import overlaps as module
from detpipe.evaluate.overlaps import average_precision, overlaps

from . import coco_rule, error_rule


@pytest.mark.parametrize("at_once", [1, 3, 500_000])
def test_pairs_are_those_of_each_image_that_overlap(make, monkeypatch, at_once):
    monkeypatch.setattr(module, "_AT_ONCE", at_once)

    @settings(max_examples=30, deadline=None)
    @given(coco_rule.truths, coco_rule.founds, coco_rule.ious)
    def check(truth, found, least):
        _, boxes, detections, _ = coco_rule.tables(make, truth, found)
        expected = [
            (d, t, float(iou))
            for d, f in enumerate(found)
            for iou, t in sorted(
                ((error_rule.overlap(f.box, b.box), t) for t, b in enumerate(truth)
                 if b.image == f.image and not b.crowd), key=lambda pair: -pair[0],
            )
            if iou >= least
        ]  # fmt: skip
        got = overlaps(boxes, detections, least=float(least))
        assert list(zip(*(column.tolist() for column in got), strict=True)) == expected

    check()


def test_pairs_equal_pycocotools_on_real_boxes(coco100):
    from pycocotools import mask

    _, boxes, detections, _ = coco100.tables
    got = overlaps(boxes, detections, least=0)
    assert len(got.iou) > 1000
    for d in np.unique(got.detection)[::10]:
        mine = got.detection == d
        a, b = ([*t[["x1", "y1", "x2", "y2"]].to_numpy()] for t in (
            detections.iloc[[d]], boxes.iloc[got.box[mine]]))  # fmt: skip
        xywh = [[np.concatenate([c[:2], c[2:] - c[:2]]) for c in side] for side in (a, b)]
        expected = mask.iou(np.array(xywh[0]), np.array(xywh[1]), [0] * int(mine.sum()))[0]
        assert got.iou[mine] == pytest.approx(expected, abs=1e-12)
        assert (np.diff(got.iou[mine]) <= 0).all()


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=40),
    st.lists(st.integers(0, 4), min_size=4, max_size=4),
)
def test_ap_is_the_mean_of_101_precisions(points, more):
    group = np.array([g for g, _ in points], dtype=int)
    right = np.array([r for _, r in points], dtype=bool)
    objects = np.array([int(right[group == g].sum()) + more[g] for g in range(4)])
    expected = [error_rule.average_precision(right[group == g], objects[g]) for g in range(4)]
    got = average_precision(group, right, objects)
    assert got == pytest.approx(expected, abs=1e-12, nan_ok=True)
