"""Intervals against pycocotools on repeated images, the binomial law, and Efron's formula."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pytest

from detpipe.evaluate import bootstrap, coco

METRICS = ["AP", "AP50", "AP75", "AR100"]


@pytest.fixture
def given(monkeypatch):
    """Makes the bootstrap take these counts of images, one list a sample, instead of drawing."""

    def take(*samples: list[int]) -> None:
        weights = np.array(samples, dtype=np.int32).T
        monkeypatch.setattr(bootstrap, "_draws", lambda *_: iter([weights]))

    return take


def crowded(make, images: int = 24) -> Any:
    """Objects, crowd regions, jittered and wrong detections; no two scores alike."""
    random = np.random.default_rng(3)
    truth, crowd, found = [], [], []
    for image in range(1, images + 1):
        for _ in range(random.integers(0, 6)):
            x, y = random.uniform(0, 120), random.uniform(0, 50)
            width, height = random.uniform(15, 60), random.uniform(15, 40)
            name = "abc"[random.integers(0, 3)]
            truth.append((str(image), name, x, y, x + width, y + height))
            crowd.append(random.random() < 0.15)
            for _ in range(random.integers(0, 4)):
                dx, dy = random.normal(0, 4, 2)
                box = (x + dx, y + dy, x + dx + width, y + dy + height)
                found.append((str(image), name, *box, random.random()))
            found.append((str(image), "abc"[random.integers(0, 3)], x, y, x + 30, y + 30,
                          random.random()))  # fmt: skip
    boxes = make.boxes(*truth, iscrowd=crowd)
    ids = [str(i) for i in range(1, images + 1)]
    classes = make.classes("a", "b", "c", "never")
    return make.tables(make.images(ids), boxes, make.detections(*found), classes)


def repeated(tables: Any, counts: list[int]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A COCO file and results in which image i stands counts[i] times, copies side by side."""
    labels = {name: k for k, name in enumerate(tables.classes["class_name"], start=1)}
    by_image = dict(iter(tables.boxes.groupby("image_id")))
    found_in = dict(iter(tables.detections.groupby("image_id")))
    truth: dict[str, Any] = {
        "images": [], "annotations": [],
        "categories": [{"id": k, "name": name} for name, k in labels.items()],
    }  # fmt: skip
    results: list[dict[str, Any]] = []
    for image_id, count in zip(sorted(tables.images["image_id"], key=int), counts, strict=True):
        for _ in range(count):
            number = len(truth["images"]) + 1
            truth["images"].append({"id": number})
            for row in by_image.get(image_id, tables.boxes.iloc[:0]).itertuples():
                truth["annotations"].append(
                    {
                        "id": len(truth["annotations"]) + 1, "image_id": number,
                        "category_id": labels[row.class_name], "area": row.area,
                        "bbox": [row.x1, row.y1, row.x2 - row.x1, row.y2 - row.y1],
                        "iscrowd": int(row.iscrowd),
                    }
                )  # fmt: skip
            results += [
                {
                    "image_id": number, "category_id": labels[row.class_name], "score": row.score,
                    "bbox": [row.x1, row.y1, row.x2 - row.x1, row.y2 - row.y1],
                }
                for row in found_in.get(image_id, tables.detections.iloc[:0]).itertuples()
            ]  # fmt: skip
    return truth, results


@pytest.mark.parametrize("seed", [0, 1])
def test_a_sample_of_coco_is_what_pycocotools_gives_for_the_repeated_images(
    coco100, referee, given, seed
):
    random = np.random.default_rng(seed)
    counts = np.bincount(random.integers(0, 100, 100), minlength=100).tolist()
    given(counts)
    tables = coco100.tables
    # Copies of an image in which two detections of a class have one score have no order of their
    # own: pycocotools takes both of a copy, then both of the next.
    apart = tables.detections["score"] - 1e-7 * np.arange(len(tables.detections))
    tables = tables._replace(detections=tables.detections.assign(score=apart))
    (scored,) = bootstrap.resample(
        tables.images, tables.boxes, [tables.detections], tables.classes,
        max_detections=100, samples=1, seed=0,
    )  # fmt: skip
    judged = referee(*repeated(tables, counts))
    for metric in METRICS:
        (ours,) = bootstrap.mean_over_classes(scored[metric])
        assert ours == pytest.approx(100 * judged.summary[metric], abs=1e-9)
    by_class = [judged.by_class[k] for k in sorted(judged.by_class)]
    assert np.isnan(by_class).sum() > 0  # some classes are in no drawn image
    np.testing.assert_allclose(scored["AP"][:, 0], 100 * np.array(by_class), atol=1e-9)


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_crowds_and_limits_of_detections_are_those_of_pycocotools(make, referee, given, limit):
    tables = crowded(make)
    counts = np.random.default_rng(5).poisson(1, 24).tolist()
    given(counts)
    (scored,) = bootstrap.resample(
        tables.images, tables.boxes, [tables.detections], tables.classes,
        max_detections=limit, samples=1, seed=0,
    )  # fmt: skip
    judged = referee(*repeated(tables, counts), limits=[1, 10, 100] if limit == 100 else [limit])
    for metric in ("AP", "AP50", f"AR{limit}"):
        (ours,) = bootstrap.mean_over_classes(scored[metric])
        assert 5 < ours < 95
        assert ours == pytest.approx(100 * judged.summary[metric], abs=1e-9)


def test_values_are_those_of_the_scores_table(coco100):
    rows = bootstrap.intervals(*coco100.tables, dataset="test", samples=20)
    assert list(rows) == ["dataset", "task", "metric", "value", "low", "high", "samples"]
    scores = coco.score(*coco100.tables, dataset="test", per_class=False)
    expected = scores.set_index("metric")["value"]
    assert dict(zip(rows["metric"], rows["value"], strict=True)) == pytest.approx(
        {metric: expected[metric] for metric in METRICS}
    )
    assert set(rows["dataset"]) == {"test"}
    assert set(rows["task"]) == {"bbox"}


def binomial(make, images: int, found: int) -> Any:
    """One object an image, and one perfect detection in the first ``found`` of them."""
    ids = [str(i) for i in range(1, images + 1)]
    boxes = make.boxes(*((i, "a", 10, 10, 50, 50) for i in ids))
    detections = make.detections(*((i, "a", 10, 10, 50, 50, 0.9) for i in ids[:found]))
    return make.tables(make.images(ids), boxes, detections, make.classes("a"))


def test_the_interval_of_a_recall_is_that_of_the_binomial_law(make):
    images, found = 100, 60  # recall of a sample is Binomial(100, 0.6) / 100
    rows = bootstrap.intervals(*binomial(make, images, found), dataset="test", samples=4000)
    recall = rows.set_index("metric").loc["AR100"]
    terms = [math.comb(images, k) * 0.6**k * 0.4 ** (images - k) for k in range(images + 1)]
    low, high = np.searchsorted(np.cumsum(terms), [0.025, 0.975])
    assert recall["value"] == pytest.approx(60)
    assert recall["low"] == pytest.approx(low, abs=1)  # 50 to 69
    assert recall["high"] == pytest.approx(high, abs=1)


def test_a_higher_confidence_is_a_wider_interval(make):
    tables = binomial(make, 50, 30)
    width = {}
    for confidence in (0.5, 0.95):
        rows = bootstrap.intervals(*tables, dataset="test", samples=500, confidence=confidence)
        width[confidence] = (rows["high"] - rows["low"]).iloc[-1]
    assert width[0.95] == pytest.approx(width[0.5] * 1.96 / 0.674, rel=0.25)  # normal quantiles


def test_the_bias_is_corrected_as_efron_says():
    samples = np.arange(10_000) / 10_000
    # Without bias (the value is the median) it is the plain percentiles.
    assert bootstrap.interval(0.5, samples, confidence=0.95) == pytest.approx(
        (0.025, 0.975), abs=5e-4
    )
    # 60% below: z0 = 0.2533; Φ(2 z0 - 1.96) = 0.0731, Φ(2 z0 + 1.96) = 0.9932 of tables.
    assert bootstrap.interval(0.6, samples, confidence=0.95) == pytest.approx(
        (0.0731, 0.9932), abs=5e-4
    )


def test_samples_that_equal_the_value_are_half_below_it():
    # As many below as above: no bias, so that both ends are the plain percentiles.
    samples = np.repeat([-1.0, 0.0, 1.0], [20, 60, 20])
    assert bootstrap.interval(0.0, samples, confidence=0.9) == (-1, 1)


def test_samples_that_all_have_the_value_leave_no_width():
    assert bootstrap.interval(3.0, np.full(50, 3.0), confidence=0.9) == (3.0, 3.0)


def test_the_same_seed_gives_the_same_numbers_and_other_random_numbers_stay(make):
    tables = crowded(make)
    np.random.seed(7)
    before = np.random.get_state()[1].copy()
    first, again, other = (
        bootstrap.intervals(*tables, dataset="test", samples=40, seed=seed) for seed in (1, 1, 2)
    )
    pd.testing.assert_frame_equal(first, again)
    assert not first[["low", "high"]].equals(other[["low", "high"]])
    assert (np.random.get_state()[1] == before).all()


def test_samples_in_groups_are_the_samples_at_once(make, monkeypatch):
    tables = crowded(make)
    at_once = bootstrap.intervals(*tables, dataset="test", samples=10)
    monkeypatch.setattr(bootstrap, "_AT_ONCE", 3)
    pd.testing.assert_frame_equal(bootstrap.intervals(*tables, dataset="test", samples=10), at_once)


def test_images_are_drawn_with_repetition_as_many_as_there_are():
    _, weights = bootstrap._draws(200, 300, 0, 1000)
    assert (weights.sum(axis=0) == 200).all()
    times = Counter(weights.ravel().tolist())
    shares = [times[k] / weights.size for k in range(4)]
    assert shares == pytest.approx([0.367, 0.369, 0.184, 0.061], abs=0.01)  # Binomial(200, 1/200)


def test_without_detections_all_is_zero(make):
    tables = crowded(make)
    rows = bootstrap.intervals(
        tables.images, tables.boxes, tables.detections.iloc[:0], tables.classes,
        dataset="test", samples=20,
    )  # fmt: skip
    assert (rows[["value", "low", "high"]] == 0).all(axis=None)


def test_the_truth_as_detections_is_a_hundred(make):
    tables = crowded(make)
    real = tables.boxes[~tables.boxes["iscrowd"]]
    found = make.detections(
        *(
            (r.image_id, r.class_name, r.x1, r.y1, r.x2, r.y2, 0.9)
            for r in real.itertuples()
        )
    )  # fmt: skip
    rows = bootstrap.intervals(
        tables.images, tables.boxes, found, tables.classes, dataset="test", samples=20
    )
    assert np.allclose(rows[["value", "low", "high"]], 100)


def test_without_truth_there_is_no_number(make):
    tables = crowded(make)
    rows = bootstrap.intervals(
        tables.images, tables.boxes.iloc[:0], tables.detections, tables.classes,
        dataset="test", samples=20,
    )  # fmt: skip
    assert rows["metric"].tolist() == METRICS
    assert rows[["value", "low", "high"]].isna().all(axis=None)


@pytest.mark.parametrize(("images", "samples"), [(1, 50), (24, 0)])
def test_one_image_or_no_samples_have_a_value_and_no_interval(make, images, samples):
    tables = binomial(make, images, 1)
    rows = bootstrap.intervals(*tables, dataset="test", samples=samples)
    assert rows["value"].iloc[-1] == pytest.approx(100 / images)
    assert rows[["low", "high"]].isna().all(axis=None)


def test_a_set_without_anything_has_no_numbers(make):
    rows = bootstrap.intervals(
        make.images([]), make.boxes(), make.detections(), make.classes("a").iloc[:0],
        dataset="val", samples=5,
    )  # fmt: skip
    assert rows[["value", "low", "high"]].isna().all(axis=None)


def sampled_from(make, random: np.random.Generator, images: int) -> Any:
    """Images of one kind: one object each, found in 70%, a wrong detection in half of them."""
    ids = [str(i) for i in range(1, images + 1)]
    truth = [(i, "a", 10, 10, 50, 50) for i in ids]
    found = [(i, "a", 10, 10, 50, 50, random.beta(4, 2)) for i in ids if random.random() < 0.7]
    found += [(i, "a", 90, 10, 99, 50, random.beta(2, 4)) for i in ids if random.random() < 0.5]
    return make.tables(make.images(ids), make.boxes(*truth), make.detections(*found),
                       make.classes("a"))  # fmt: skip


@pytest.mark.slow
def test_about_95_of_100_intervals_hold_the_number_of_very_many_images(make):
    random = np.random.default_rng(0)
    many = sampled_from(make, random, 30_000)
    true = coco.score(*many, dataset="test", per_class=False).set_index("metric")["value"]["AP50"]
    held = 0
    for seed in range(200):
        rows = bootstrap.intervals(
            *sampled_from(make, random, 60), dataset="test", samples=200, seed=seed
        )
        row = rows.set_index("metric").loc["AP50"]
        held += row["low"] <= true <= row["high"]
    assert 180 <= held <= 198  # 95% of 200 are 190, with a standard deviation of 3
