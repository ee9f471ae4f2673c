"""VOC's AP against a second implementation, written from the paper in exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from detpipe.evaluate import voc


def overlap(a, b) -> Fraction:
    """Area of the intersection over area of the union, by counting whole pixels."""

    def pixels(box):
        x1, y1, x2, y2 = box
        return {(x, y) for x in range(x1, x2) for y in range(y1, y2)}

    union = pixels(a) | pixels(b)
    return Fraction(len(pixels(a) & pixels(b)), len(union)) if union else Fraction(0)


def paper(truth, found, *, rule: str, iou: Fraction) -> Fraction | None:
    """Everingham et al. 2010, section 4.2; truth and found: (image, box, difficult or score)."""
    wanted = sum(not difficult for *_, difficult in truth)
    if not wanted:
        return None
    used, outcomes = set(), []
    for image, box, _ in sorted(found, key=lambda f: -f[2]):  # sorted() keeps ties in order
        rivals = [(overlap(box, t[1]), -n) for n, t in enumerate(truth) if t[0] == image]
        best, place = max(rivals, default=(Fraction(0), 1))
        if not rivals or best < iou:
            outcomes.append(False)
        elif not truth[-place][2]:
            outcomes.append(-place not in used)
            used.add(-place)
    points, right = [], 0
    for n, outcome in enumerate(outcomes, start=1):
        right += outcome
        points.append((Fraction(right, wanted), Fraction(right, n)))

    def best_from(recall):
        return max((p for r, p in points if r >= recall), default=Fraction(0))

    if rule == "11point":
        return sum(best_from(Fraction(k, 10)) for k in range(11)) / 11
    return sum(best_from(Fraction(k, wanted)) for k in range(1, wanted + 1)) / wanted


box = st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(1, 6), st.integers(1, 6)).map(
    lambda b: (b[0], b[1], b[0] + b[2], b[1] + b[3])
)
image = st.sampled_from(["1", "2", "empty"])
truths = st.lists(st.tuples(st.sampled_from(["1", "2"]), box, st.booleans()), max_size=10)
founds = st.lists(st.tuples(image, box, st.integers(0, 4)), max_size=14)


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    truth=truths, found=founds, rule=st.sampled_from(["area", "11point"]),
    iou=st.sampled_from([0.5, 0.75]),
)  # fmt: skip
def test_equals_the_paper(make, truth, found, rule, iou):
    scores = voc.score(
        make.boxes(*((i, "a", *b) for i, b, _ in truth), difficult=[d for *_, d in truth]),
        make.detections(*((i, "a", *b, s / 4) for i, b, s in found)),
        make.classes("a"), dataset="test", rule=rule, iou=iou,
    )  # fmt: skip
    expected = paper(truth, found, rule=rule, iou=Fraction(iou))
    if expected is None:
        assert scores["value"].isna().all()
    else:
        assert scores["value"].tolist() == pytest.approx([100 * float(expected)] * 2, abs=1e-9)


def test_by_hand(make):
    """Right, wrong, right of three: precision 1, 1/2, 2/3 at recall 1/3, 1/3, 2/3."""
    boxes = make.boxes(*(("1", "a", x, 0, x + 10, 10) for x in (0, 20, 40)))
    detections = make.detections(
        ("1", "a", 0, 0, 10, 10, 0.9),
        ("1", "a", 60, 0, 70, 10, 0.8),
        ("1", "a", 20, 0, 30, 10, 0.7),
    )
    tables = boxes, detections, make.classes("a")
    area = voc.score(*tables, dataset="test")
    assert area["metric"].unique().tolist() == ["AP12"]
    assert area["value"].tolist() == pytest.approx([100 * (1 + 2 / 3) / 3] * 2)
    points = voc.score(*tables, dataset="test", rule="11point")
    assert points["metric"].unique().tolist() == ["AP07"]
    assert points["value"].tolist() == pytest.approx([100 * (4 * 1 + 3 * 2 / 3) / 11] * 2)


def test_a_recall_of_three_tenths_reaches_the_point_0_3(make):
    """0.1 · 3 is above 3 / 10 in binary: such a point would be lost."""
    boxes = make.boxes(*(("1", "a", 20 * n, 0, 20 * n + 10, 10) for n in range(10)))
    detections = boxes.head(3).assign(score=0.9)
    scores = voc.score(boxes, detections, make.classes("a"), dataset="test", rule="11point")
    assert scores["value"].iloc[0] == pytest.approx(100 * 4 / 11)


def test_overlap_of_exactly_one_half_is_right(make):
    boxes = make.boxes(("1", "a", 0, 0, 10, 10))
    detections = make.detections(("1", "a", 0, 0, 5, 10, 0.9))
    for iou, value in ((0.5, 100), (0.51, 0)):
        scores = voc.score(boxes, detections, make.classes("a"), dataset="test", iou=iou)
        assert scores["value"].iloc[0] == pytest.approx(value)


def test_classes_without_truth_are_left_out_of_the_mean(make, caplog):
    boxes = make.boxes(("1", "a", 0, 0, 10, 10))
    scores = voc.score(boxes, make.detections(), make.classes("a", "b"), dataset="test")
    assert scores["value"].tolist()[:2] == [0, 0] and math.isnan(scores["value"].iloc[2])
    scores = voc.score(boxes.iloc[:0], make.detections(), make.classes("a"), dataset="val")
    assert scores["value"].isna().all() and "'val': no ground truth" in caplog.text


def test_another_iou_is_in_the_name(make):
    scores = voc.score(make.boxes(), make.detections(), make.classes("a"), dataset="test", iou=0.75)
    assert scores["metric"].unique().tolist() == ["AP12_75"]
