"""LVIS's numbers, beside a second implementation written from lvis-api's rule in plain Python.

Both gave the numbers of lvis-api 0.5.3 to the last bit on 742 of the random sets below. It is no
dependency: it needs opencv-python, whose files are also opencv-python-headless's.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detpipe.core.errors import ConfigError, DataError
from detpipe.core.tables import CLASSES, IMAGES
from detpipe.evaluate import coco
from detpipe.evaluate.config import EvaluateConfig
from detpipe.evaluate.lvis import score
from detpipe.evaluate.scoring import score as score_all

from .conftest import Tables, _boxes, _classes, _detections, _images

THIRTEEN = ["AP", "AP50", "AP75", "APs", "APm", "APl", "APr", "APc", "APf",
            "AR300", "ARs", "ARm", "ARl"]  # fmt: skip


def summary(tables, **options) -> dict[str, float]:
    rows = score(*tables, dataset="test", **options)
    return rows[rows["class_name"] == ""].set_index("metric")["value"].to_dict()


def by_class(tables, **options) -> dict[str, float]:
    rows = score(*tables, dataset="test", **options)
    return rows[rows["class_name"] != ""].set_index("class_name")["value"].to_dict()


def federated(images, *, negative=(), not_exhaustive=()):
    """The images with LVIS's lists: a list of names an image, from the first on; then ``[]``."""
    for column, lists in (("negative", negative), ("not_exhaustive", not_exhaustive)):
        texts = [json.dumps(names) for names in lists]
        images[column] = texts + ["[]"] * (len(images) - len(texts))
    return IMAGES.make(images)


def with_frequency(**letters):
    return CLASSES.make([{"class_name": n, "frequency": f} for n, f in letters.items()])


# --- the second implementation -------------------------------------------------------------------

SIZES = {"": (0, 1e10), "s": (0, 32**2), "m": (32**2, 96**2), "l": (96**2, 1e10)}


def overlap(a, b) -> float:
    width, height = (min(a[k + 2], b[k + 2]) - max(a[k], b[k]) for k in (0, 1))
    both = max(width, 0) * max(height, 0)
    return both / (area_of(a) + area_of(b) - both)


def area_of(box) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])


def outcomes(truth, found, size, threshold, partly):
    """Of one class in one image: objects that count, and (score, right) of detections that do."""
    low, high = SIZES[size]
    inside = [low <= area <= high for _, area in truth]
    taken, results = set(), []
    for *box, certainty in sorted(found, key=lambda d: -d[-1]):
        best = None
        for wanted in (True, False):  # one out of the range of sizes only if none in it fits
            bar = min(threshold, 1 - 1e-10)
            for n, (other, _) in enumerate(truth):
                if inside[n] is wanted and n not in taken and overlap(box, other) >= bar:
                    bar, best = overlap(box, other), n
            if best is not None:
                break
        if best is not None:
            taken.add(best)
            if inside[best]:
                results.append((certainty, True))
        elif low <= area_of(box) <= high and not partly:
            results.append((certainty, False))
    return sum(inside), results


def curve(objects, results):
    """Precision at 101 recalls, and the recall, of (score, right) in the order of images."""
    results = sorted(results, key=lambda r: -r[0])
    hits = np.cumsum([right for _, right in results], dtype=float)
    precision = hits / (np.arange(1, len(hits) + 1) + np.spacing(1))
    precision = np.maximum.accumulate(precision[::-1])[::-1]
    places = np.searchsorted(hits / objects, np.linspace(0, 1, 101), side="left")
    found = [precision[p] if p < len(precision) else 0.0 for p in places]
    return found, hits[-1] / objects if len(hits) else 0.0


def referee(tables, limit):
    images, boxes, detections, classes = tables
    names, ids = classes["class_name"].tolist(), sorted(images["image_id"], key=int)
    lists = images.set_index("image_id")
    truth, found, every = defaultdict(list), defaultdict(list), defaultdict(list)
    for b in boxes.itertuples():
        truth[b.image_id, b.class_name].append(((b.x1, b.y1, b.x2, b.y2), b.area))
    for d in detections.itertuples():
        every[d.image_id].append((d.class_name, d.x1, d.y1, d.x2, d.y2, d.score))
    for image, rows in every.items():
        for name, *rest in sorted(rows, key=lambda d: -d[-1])[:limit]:
            if (image, name) in truth or name in json.loads(lists["negative"][image]):
                found[image, name].append(rest)
    precision = np.full((10, 101, len(names), 4), -1.0)
    recall = np.full((10, len(names), 4), -1.0)
    for (t, threshold), (k, name), (a, size) in product(
        enumerate(np.linspace(0.5, 0.95, 10)), enumerate(names), enumerate(SIZES)
    ):
        parts = [
            outcomes(truth[i, name], found[i, name], size, threshold,
                     name in json.loads(lists["not_exhaustive"][i])) for i in ids
        ]  # fmt: skip
        objects = sum(count for count, _ in parts)
        if objects:
            results = [result for _, of in parts for result in of]
            precision[t, :, k, a], recall[t, k, a] = curve(objects, results)

    def mean(values):
        there = values[values > -1]
        return 100 * np.mean(there) if there.size else np.nan

    groups = classes["frequency"].to_numpy()
    result = [mean(precision[..., 0]), mean(precision[0, ..., 0]), mean(precision[5, ..., 0])]
    result += [mean(precision[..., a]) for a in (1, 2, 3)]
    result += [mean(precision[:, :, groups == g, 0]) for g in "rcf"]
    result += [mean(recall[..., a]) for a in range(4)]
    return result, {name: mean(precision[:, :, k, 0]) for k, name in enumerate(names)}


# --- random sets ---------------------------------------------------------------------------------

NAMES = ["a", "b", "c", "d"]


def random_set(seed: int) -> Tables:
    """Whole pixels, equal scores, boxes of all sizes, detections near the truth and elsewhere."""
    rng = np.random.default_rng(seed)
    ids = [str(i) for i in rng.permutation(12)[: rng.integers(1, 7)]]
    truth, found = [], []
    for image in ids:
        for _ in range(rng.integers(0, 5)):
            side = int(rng.choice([8, 32, 50, 96, 120]))
            x, y = rng.integers(0, 80, 2).tolist()
            truth.append((image, str(rng.choice(NAMES)), x, y, x + side, y + side))
            for _ in range(rng.integers(0, 3)):
                dx, dy, w, h = (rng.integers(-4, 5, 4) * side // 32).tolist()
                found.append((image, str(rng.choice(NAMES)) if rng.random() < 0.3 else truth[-1][1],
                              x + dx, y + dy, x + dx + side + w, y + dy + side + h,
                              rng.integers(0, 8) / 8))  # fmt: skip
    rng.shuffle(found)
    found = [(*row[:2], *map(float, row[2:])) for row in found]
    boxes = _boxes(*truth) if truth else _boxes()
    factor = rng.choice([0.25, 1], len(boxes))  # of masks: smaller than their boxes
    lists = [[n for n in NAMES if rng.random() < 0.4] for _ in range(2 * len(ids))]
    images = federated(_images(ids), negative=lists[::2], not_exhaustive=lists[1::2])
    classes = with_frequency(**{n: str(rng.choice(["r", "c", "f", ""])) for n in NAMES})
    return Tables(images, boxes.assign(area=boxes["area"] * factor), _detections(*found), classes)


@pytest.mark.parametrize("limit", [300, 2])
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_equal_to_the_last_bit_to_a_second_implementation(limit, seed):
    tables = random_set(seed)
    wanted, of_class = referee(tables, limit)
    np.testing.assert_array_equal(list(summary(tables, max_detections=limit).values()), wanted)
    np.testing.assert_array_equal(
        list(by_class(tables, max_detections=limit).values()), list(of_class.values())
    )


# --- by hand -------------------------------------------------------------------------------------

BOX, FAR = (0, 0, 40, 40), (100, 0, 140, 40)
TRUE = ("1", "a", *BOX, 0.5)


def one_object(*found, images=None, classes=None, **columns) -> Tables:
    """One object of class a in image 1 of two, found at 0.5, and ``found`` besides."""
    images = _images(["1", "2"]) if images is None else images
    classes = _classes("a", "b") if classes is None else classes
    return Tables(images, _boxes(("1", "a", *BOX), **columns), _detections(*found, TRUE), classes)


def test_the_thirteen_in_lvis_order_and_ap_of_each_class():
    rows = score(*one_object(), dataset="val")
    assert rows["metric"].tolist() == [*THIRTEEN, "AP", "AP"]
    assert rows["class_name"].tolist() == [""] * 13 + ["a", "b"]
    assert set(rows["dataset"]) == {"val"} and set(rows["task"]) == {"bbox"}


def test_a_class_neither_there_nor_looked_for_is_left_out():
    wrong = ("2", "a", *BOX, 0.9)
    assert summary(one_object(wrong, images=federated(_images(["1", "2"]))))["AP"] == pytest.approx(
        100
    )
    looked_for = federated(_images(["1", "2"]), negative=[[], ["a"]])
    assert summary(one_object(wrong, images=looked_for))["AP"] == pytest.approx(50)  # 1 of 2 right


def test_what_has_no_object_is_not_wrong_where_not_all_objects_have_a_box():
    again = ("1", "a", *FAR, 0.9)
    assert summary(one_object(again, images=federated(_images(["1"]))))["AP"] == pytest.approx(50)
    partly = federated(_images(["1"]), not_exhaustive=[["a"]])
    assert summary(one_object(again, images=partly))["AP"] == pytest.approx(100)


def test_the_limit_is_that_of_an_image_over_all_classes():
    images = federated(_images(["1", "2"]))
    tables = one_object(("1", "b", *FAR, 0.9), images=images)
    assert summary(tables, max_detections=2)["AR2"] == 100
    assert summary(tables, max_detections=1)["AR1"] == 0


@pytest.mark.parametrize(("limit", "recall"), [(300, 0), (301, 100)])
def test_a_limit_above_that_of_lvis(limit, recall):
    tables = one_object(*[("1", "a", *FAR, 0.9)] * 300)
    assert summary(tables, max_detections=limit)[f"AR{limit}"] == recall


def test_rare_common_and_frequent_are_means_over_their_classes():
    names = {"a": "r", "b": "c", "c": "c", "d": "c", "e": ""}
    boxes = _boxes(*(("1", name, *BOX) for name in "abce"))
    found = _detections(*(("1", name, *BOX, 0.9) for name in "abe"))
    tables = Tables(_images(["1"]), boxes, found, with_frequency(**names))
    result = summary(tables)
    assert (result["APr"], result["APc"]) == pytest.approx(
        (100, 50)
    )  # d has no object: not part of the mean
    assert np.isnan(result["APf"])
    assert result["AP"] == pytest.approx(75)


def test_sizes_by_the_annotation_or_the_box():
    tables = one_object(area=100)  # of a box of 40 × 40 pixels
    for area, size, other in (("annotation", "s", "m"), ("box", "m", "s")):
        result = summary(tables, area=area)
        assert result[f"AP{size}"] == pytest.approx(100)
        assert np.isnan(result[f"AP{other}"])


def test_crowds_are_neither_right_nor_wrong():
    boxes = _boxes(("1", "a", *BOX), ("1", "a", *FAR)).assign(iscrowd=[False, True])
    found = _detections(("1", "a", *FAR, 0.9), ("1", "a", 110, 5, 120, 20, 0.8), TRUE)
    tables = Tables(federated(_images(["1"])), boxes, found, _classes("a"))
    assert summary(tables)["AP"] == pytest.approx(100)
    assert np.isnan(summary(tables._replace(boxes=boxes[1:]))["AP"])


# --- without lists, without frequency ------------------------------------------------------------


@pytest.mark.parametrize("area", ["annotation", "box"])
def test_without_lists_it_is_cocos_rule(coco100, area):
    ours = summary(coco100.tables, area=area)
    rows = coco.score(*coco100.tables, dataset="test", max_detections=300, area=area)
    theirs = rows[rows["class_name"] == ""].set_index("metric")["value"]
    both = [name for name in ours if name in theirs]
    assert len(both) == 10
    assert [ours[name] for name in both] == theirs[both].tolist()


def test_an_image_without_a_list_among_others_is_fully_labelled():
    images = federated(_images(["1", "2", "3"])).assign(negative=["[]", "", "[]"])
    wrong = [(image, "a", *BOX, 0.9) for image in ("2", "3")]
    assert summary(one_object(*wrong, images=images))["AP"] == pytest.approx(50)  # 3 is left out


def test_what_lacks_is_said(caplog):
    result = summary(one_object())
    assert all(np.isnan(result[name]) for name in ("APr", "APc", "APf"))
    assert "2 of 2 image(s) have no list" in caplog.text
    assert "no 'frequency'" in caplog.text
    caplog.clear()
    complete = {"images": federated(_images(["1"])), "classes": with_frequency(a="r", b="")}
    summary(one_object(**complete))
    assert not caplog.records


@pytest.mark.parametrize(("limit", "said"), [(299, 1), (300, 0), (301, 0)])
def test_a_limit_below_that_of_lvis_is_said(limit, said, caplog):
    tables = one_object(images=federated(_images(["1"])), classes=with_frequency(a="r", b=""))
    summary(tables, max_detections=limit)
    assert len(caplog.messages) == said
    assert caplog.text.count("LVIS's own limit is 300 detections in an image, not 299") == said
    assert caplog.text.count("set evaluate.max_detections to 300") == said


# --- what is not there ---------------------------------------------------------------------------


def test_names_of_lists_that_are_no_class_are_left_out():
    images = federated(_images(["1", "2"]), negative=[["x"], ["y", "a"]], not_exhaustive=[["z"]])
    assert summary(one_object(("2", "a", *BOX, 0.9), images=images))["AP"] == pytest.approx(50)


def test_no_detections_are_0_and_no_truth_is_no_number(caplog):
    tables = one_object(classes=with_frequency(a="r", b="f"))
    result = summary(tables._replace(detections=tables.detections[:0]))
    assert (result["AP"], result["APm"], result["APr"], result["AR300"]) == (0, 0, 0, 0)
    assert np.isnan(result["APf"]) and np.isnan(result["APs"])
    with caplog.at_level(logging.WARNING):
        nothing = score(*tables._replace(boxes=tables.boxes[:0]), dataset="test")
    assert nothing["value"].isna().all() and nothing["metric"].tolist() == [*THIRTEEN, "AP", "AP"]
    assert "no ground truth" in caplog.text


def test_empty_tables():
    tables = Tables(*(table[:0] for table in one_object()))
    rows = score(*tables, dataset="test")
    assert len(rows) == 13 and rows["value"].isna().all()


@pytest.mark.parametrize("text", ["a", '"a"', "{}", "[[1]]"])
def test_a_list_that_is_none_names_the_image(text):
    tables = one_object(images=_images(["1", "2"]).assign(negative=["[]", text]))
    with pytest.raises(DataError, match=r"images\.negative of image '2' must be a JSON list"):
        score(*tables, dataset="test")


def test_unknown_images_are_refused():
    with pytest.raises(DataError, match="'9'"):
        score(*one_object(("9", "a", *BOX, 0.9)), dataset="test")


# --- configuration -------------------------------------------------------------------------------


def configured(**metrics):
    config = EvaluateConfig.model_validate({"max_detections": 300, "metrics": metrics})
    return score_all(
        *one_object(), dataset="test", metrics=config.metrics, max_detections=config.max_detections
    )


COCO, LVIS = ({"use": f"detpipe.evaluate.{name}.score"} for name in ("coco", "lvis"))


def test_alone_it_takes_cocos_place():
    assert configured(coco=None, lvis=LVIS)["metric"].tolist()[:13] == THIRTEEN


def test_beside_coco_it_needs_a_suffix():
    with pytest.raises(ConfigError, match=r"coco, lvis give the same row.*'AP'"):
        configured(coco=COCO, lvis=LVIS)
    both = configured(coco=COCO, lvis={**LVIS, "suffix": "_lvis"})["metric"].tolist()
    assert {"AP", "AP_lvis", "AR300", "AR300_lvis"} <= set(both)
