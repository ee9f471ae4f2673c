"""TIDE's errors: by hand, by the authors' code, by a second implementation."""

from __future__ import annotations

from fractions import Fraction

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings

from detpipe.evaluate.confusion import confusion_table
from detpipe.evaluate.errors import ERRORS, SPECIAL, breakdown, kinds, score

from . import coco_rule, error_rule

A = (0, 0, 10, 10)
FAR = (50, 50, 60, 60)


def counts(table):
    return {e: n for e, n in zip(table["error"], table["count"], strict=True) if n}


def gains(table):
    return dict(zip(table["error"], table["AP_gain"], strict=True))


def of(make, boxes, found, function=breakdown, **options):
    options |= {"dataset": "test"} if function is breakdown else {}
    return function(
        make.images(["1", "2"]), make.boxes(*boxes), make.detections(*found),
        make.classes("cat", "dog"), **options,
    )  # fmt: skip


@pytest.mark.parametrize(
    "found, kind, truth_class, missed",
    [
        pytest.param(("cat", 0, 0, 10, 9), "right", "cat", False, id="right"),
        pytest.param(("dog", 0, 0, 10, 9), "classification", "cat", False, id="classification"),
        pytest.param(("cat", 0, 0, 10, 4), "localisation", "cat", False, id="localisation"),
        pytest.param(("dog", 0, 0, 10, 4), "both", "cat", True, id="both"),
        pytest.param(("cat", 0, 0, 10, 0.9), "background", "", True, id="background"),
        pytest.param(("dog", *FAR), "background", "", True, id="nothing there"),
        # the borders, as tidecv has them
        pytest.param(("cat", 0, 0, 10, 5), "right", "cat", False, id="right from iou"),
        pytest.param(("dog", 0, 0, 10, 5), "classification", "cat", False, id="class from iou"),
        pytest.param(("cat", 0, 0, 10, 1), "localisation", "cat", False, id="from background_iou"),
        pytest.param(("dog", 0, 0, 10, 1), "background", "", True, id="to background_iou"),
    ],
)
def test_each_kind_by_hand(make, found, kind, truth_class, missed):
    box = ("1", "cat", *A)
    table = of(make, [box], [("1", *found, 0.9)], kinds)
    assert table.columns.tolist() == [
        "image_id", "class_name", "x1", "y1", "x2", "y2", "score", "kind", "truth_class",
    ]  # fmt: skip
    assert table.iloc[0].tolist() == ["1", *found, 0.9, kind, truth_class]
    assert len(table) == 1 + missed
    if missed:
        assert table.iloc[1].drop("score").tolist() == [*box, "missed", "cat"]
        assert np.isnan(table.loc[1, "score"])
    errors = {kind: 1} if kind != "right" else {}
    errors |= {"missed": 1} if missed else {}
    errors |= {"false_positive": 1, "false_negative": 1} if kind != "right" else {}
    assert counts(of(make, [box], [("1", *found, 0.9)])) == errors


def test_a_second_detection_of_a_box_is_a_duplicate(make):
    found = [("1", "cat", *A, 0.8), ("1", "cat", *A, 0.9)]
    table = of(make, [("1", "cat", *A)], found, kinds)
    assert table["kind"].tolist() == ["duplicate", "right"]
    assert table["truth_class"].tolist() == ["cat", "cat"]


def test_a_second_detection_at_the_border_is_one_of_place_as_tidecv_has_it(make):
    found = [("1", "cat", *A, 0.9), ("1", "cat", 0, 0, 10, 5, 0.8)]
    table = of(make, [("1", "cat", *A)], found, kinds)
    assert table["kind"].tolist() == ["right", "localisation"]


@pytest.mark.parametrize("wrong_in, gain", [("2", 50), ("10", 0)])
def test_equal_scores_rank_in_the_order_of_images(make, wrong_in, gain):
    right_in = {"2": "10", "10": "2"}[wrong_in]
    boxes = make.boxes((right_in, "cat", *A))
    found = make.detections((right_in, "cat", *A, 0.9), (wrong_in, "cat", *A, 0.9))
    tables = make.images(["10", "2"]), boxes, found, make.classes("cat")
    assert gains(breakdown(*tables, dataset="test"))["background"] == pytest.approx(gain)


def test_gains_by_hand(make):
    # Precision 1/2 at the first cat, the second is missed: AP 51 of 101 recalls at 1/2.
    boxes = [("1", "cat", *A), ("2", "cat", *A)]
    found = [("1", "cat", *FAR, 0.9), ("1", "cat", *A, 0.8)]
    base = 100 * 51 / 101 / 2
    assert gains(of(make, boxes, found)) == pytest.approx(
        dict.fromkeys([*ERRORS, *SPECIAL], 0)
        | {"background": base, "false_positive": base}  # precision 1 at 51 recalls
        | {"missed": 50 - base, "false_negative": 50 - base}  # precision 1/2 at all
    )
    # The wrong class gives the cat its box and takes nothing from the dog, which is not there.
    found = [("1", "cat", *A, 0.8), ("2", "dog", *A, 0.9)]
    table = gains(of(make, boxes, found))
    assert table["classification"] == pytest.approx(100 - 100 * 51 / 101)
    assert table["missed"] == 0 and table["false_negative"] == table["classification"]


def test_only_the_best_of_two_is_repaired(make):
    found = [("1", "cat", 0, 0, 10, 4, 0.9), ("1", "cat", 0, 0, 10, 3, 0.8)]
    table = of(make, [("1", "cat", *A)], found)
    assert counts(table)["localisation"] == 2
    assert gains(table)["localisation"] == pytest.approx(100)
    # of two kinds too: the class is not repaired where the better one means the same box
    table = of(make, [("1", "cat", *A)], [*found[:1], ("1", "dog", *A, 0.8)])
    assert gains(table)["localisation"] == pytest.approx(100)
    assert gains(table)["classification"] == 0


def test_a_class_that_is_all_missed_is_perfect_when_that_is_repaired(make):
    boxes = [("1", "cat", *A), ("1", "dog", *FAR)]
    table = of(make, boxes, [("1", "cat", *A, 0.9), ("2", "dog", *A, 0.9)])
    assert gains(table)["missed"] == gains(table)["false_negative"] == pytest.approx(50)
    assert gains(of(make, boxes, []))["missed"] == pytest.approx(100)
    assert counts(of(make, boxes, [])) == {"missed": 2, "false_negative": 2}


def test_a_detection_on_a_crowd_is_no_error(make):
    boxes = make.boxes(("1", "cat", 0, 0, 50, 50), iscrowd=True)
    found = make.detections(("1", "cat", *A, 0.9), ("1", "dog", *A, 0.9))
    tables = make.images(["1"]), boxes, found, make.classes("cat", "dog")
    table = kinds(*tables)
    assert table["kind"].tolist() == ["ignored", "background"]
    assert table["truth_class"].tolist() == ["", ""]
    assert counts(breakdown(*tables, dataset="test")) == {"background": 1, "false_positive": 1}


def _harder(coco100):
    """Real boxes with detections of every kind of error, no two of equal score.

    Left out is what tidecv treats otherwise: crowds, classes without either, and the umbrellas, all
    of which are missed.
    """
    images, boxes, detections, classes = coco100.tables
    boxes = boxes[~boxes["iscrowd"] & (boxes["class_name"] != "umbrella")]
    detections = detections[detections["class_name"].isin(boxes["class_name"])]
    boxes = boxes[boxes["class_name"].isin(detections["class_name"])].reset_index(drop=True)
    width = detections["x2"] - detections["x1"]
    parts = [detections]
    for shift, weight in ((0.05, 0.9), (0.4, 0.8), (0.6, 0.7), (3.0, 0.6)):
        moved = detections.assign(score=weight * detections["score"])
        moved[["x1", "x2"]] = moved[["x1", "x2"]].add(shift * width, axis=0)
        parts.append(moved[int(10 * shift) :: 2])
    found = pd.concat(parts, ignore_index=True)
    rank = found["score"].rank(method="first")
    return images, boxes, found.assign(score=rank / len(found)), classes


TIDECV = {  # (iou, background_iou) → error → (count, gain)
    (0.5, 0.1): {
        "classification": (124, 11.8748), "localisation": (579, 4.5028), "both": (64, 0.5943),
        "duplicate": (446, 4.7618), "background": (273, 1.3148), "missed": (91, 6.4275),
        "false_positive": (None, 27.1817), "false_negative": (None, 13.4919),
    },
    (0.75, 0.2): {
        "classification": (89, 9.3393), "localisation": (791, 16.1822), "both": (80, 0.8579),
        "duplicate": (239, 1.987), "background": (376, 1.486), "missed": (100, 5.7831),
        "false_positive": (None, 26.5566), "false_negative": (None, 17.7109),
    },
}  # fmt: skip


@pytest.mark.parametrize("thresholds", TIDECV)
def test_real_boxes_equal_tidecv(coco100, thresholds):
    """Recorded from tidecv 1.0.1; it reads the precision at recalls a rounding away from COCO's."""
    iou, background_iou = thresholds
    table = breakdown(
        *_harder(coco100), dataset="test", iou=iou, background_iou=background_iou
    ).set_index("error")
    for error, (count, gain) in TIDECV[thresholds].items():
        assert count is None or table.loc[error, "count"] == count
        assert table.loc[error, "AP_gain"] == pytest.approx(gain, abs=0.03)


def test_real_data_equals_hotcoco(coco100):
    from detpipe.evaluate.coco import evaluator

    engine = evaluator(*coco100.tables, limits=[100])
    engine.evaluate()
    theirs = engine.tide_errors(pos_thr=0.5, bg_thr=0.1)
    table = breakdown(*coco100.tables, dataset="test").set_index("error")
    names = ["Cls", "Loc", "Both", "Dupe", "Bkg"]
    assert table["count"][list(ERRORS)].tolist() == [theirs["counts"][n] for n in [*names, "Miss"]]
    gains = [*table["AP_gain"][list(ERRORS[:-1])], table["AP_gain"]["false_positive"]]
    assert gains == pytest.approx([100 * theirs["delta_ap"][n] for n in [*names, "FP"]])


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    coco_rule.truths, coco_rule.founds, coco_rule.ious,
    st.sampled_from([Fraction(1, 8), Fraction(1, 4)]), coco_rule.limits,
)  # fmt: skip
def test_random_sets_equal_a_second_implementation(make, truth, found, iou, background, limit):
    meanings, free, missed = error_rule.judge(
        truth, found, iou=iou, background=background, limit=limit
    )
    tables = coco_rule.tables(make, truth, found)
    options = {
        "iou": float(iou), "background_iou": float(background), "max_detections": limit,
    }  # fmt: skip
    table = breakdown(*tables, dataset="test", **options)
    expected = {e: sum(kind == e for kind, _ in meanings.values()) for e in ERRORS[:-1]}
    expected["false_positive"] = sum(expected.values())
    expected |= {"missed": len(missed), "false_negative": len(free)}
    assert counts(table) == {e: n for e, n in expected.items() if n}
    repaired = error_rule.gains(truth, found, meanings, free, missed)
    assert gains(table) == pytest.approx(repaired, abs=1e-9, nan_ok=True)

    rows = kinds(*tables, score_threshold=0.0, **options)
    got = list(zip(rows["kind"], rows["truth_class"], strict=True))
    boxes = [(kind, "" if m is None else truth[m].label) for kind, m in meanings.values()]
    in_order = [pair for _, pair in sorted(zip(meanings, boxes, strict=True))]
    assert got == in_order + [("missed", truth[m].label) for m in sorted(missed)]


@pytest.mark.parametrize("threshold", [0.0, 0.5, 0.9])
def test_kinds_and_breakdown_and_confusion_count_the_same(coco100, threshold):
    images, boxes, detections, classes = coco100.tables
    rows = kinds(*coco100.tables, score_threshold=threshold)
    seen = rows["kind"].value_counts().to_dict()
    kept = detections[detections["score"] >= threshold]
    table = breakdown(images, boxes, kept, classes, dataset="test")
    expected = counts(table)
    assert {k: n for k, n in seen.items() if k in ERRORS} == {
        k: n for k, n in expected.items() if k in ERRORS
    }
    confusion = confusion_table(*coco100.tables, score_threshold=threshold).to_numpy()
    assert seen["right"] == np.trace(confusion)
    assert rows["score"].isna().sum() == seen["missed"]


def test_the_metric_names_the_iou(make):
    tables = (
        make.images(["1"]), make.boxes(("1", "cat", *A)),
        make.detections(("1", "dog", *A, 0.9)), make.classes("cat", "dog"),
    )  # fmt: skip
    rows = score(*tables, dataset="test").set_index("metric")
    assert rows.index.tolist() == [f"AP_gain_{error}" for error in [*ERRORS, *SPECIAL]]
    assert rows.loc["AP_gain_classification", "value"] == pytest.approx(100)
    assert set(rows["task"]) == {"bbox"} and set(rows["class_name"]) == {""}
    assert score(*tables, dataset="test", iou=0.75)["metric"].iloc[0] == "AP_gain_classification_75"


@pytest.mark.parametrize("ids, names", [([], []), (["1"], []), ([], ["cat"]), (["1"], ["cat"])])
def test_nothing_has_no_errors_and_no_gains(make, ids, names):
    tables = make.images(ids), make.boxes(), make.detections(), make.classes(*names)
    table = breakdown(*tables, dataset="test")
    assert table["count"].tolist() == [0] * 8 and table["AP_gain"].isna().all()
    assert kinds(*tables).empty


def test_without_truth_detections_are_background_and_no_gain_has_a_number(make):
    table = of(make, [], [("1", "cat", *A, 0.9)])
    assert counts(table) == {"background": 1, "false_positive": 1}
    assert table["AP_gain"].isna().all()
