"""COCO's numbers: equal to pycocotools bit for bit, and right where pycocotools is not."""

from __future__ import annotations

import contextlib
import io
import json
import math
from functools import partial
from typing import Any, NamedTuple

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from pydantic import ValidationError

from detpipe.core.config import Spec
from detpipe.core.errors import ConfigError, DataError
from detpipe.core.tables import BOX_COLUMNS, BOXES, CLASSES, DETECTIONS, IMAGES
from detpipe.evaluate import coco, scoring
from detpipe.evaluate.config import EvaluateConfig
from tests.evaluate.conftest import Tables

SUMMARY = ["AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl"]


def summary(scores: pd.DataFrame) -> dict[str, float]:
    whole = scores[scores["class_name"] == ""]
    return dict(zip(whole["metric"], whole["value"], strict=True))


def by_class(scores: pd.DataFrame, metric: str = "AP") -> dict[str, float]:
    rows = scores[(scores["class_name"] != "") & (scores["metric"] == metric)]
    return dict(zip(rows["class_name"], rows["value"], strict=True))


def percent(values: dict[str, float]) -> dict[str, float]:
    return {name: 100 * value for name, value in values.items()}


def same(ours: dict[str, float], theirs: dict[str, float]) -> bool:
    """Equal bit for bit, NaN equal to NaN, in the same order."""
    return list(ours) == list(theirs) and np.array_equal(
        list(ours.values()), list(theirs.values()), equal_nan=True
    )


def test_published_numbers_of_cocoapi_to_the_last_bit(coco100):
    scores = coco.score(*coco100.tables, dataset="test")
    assert summary(scores) == percent(coco100.published)
    assert list(summary(scores)) == SUMMARY
    assert set(scores["dataset"]) == {"test"} and set(scores["task"]) == {"bbox"}


@pytest.mark.parametrize("limit", [1, 3, 10, 20, 100, 300])
def test_real_data_equals_pycocotools_at_every_limit_and_by_class(coco100, referee, limit):
    found = json.loads(coco100.found_file.read_text())
    limits = sorted({1, min(10, limit), limit})
    expected = referee(coco100.truth, found, limits=limits)
    scores = coco.score(*coco100.tables, dataset="test", max_detections=limit)
    assert same(summary(scores), percent(expected.summary))
    named = {coco100.names[number]: 100 * v for number, v in expected.by_class.items()}
    assert same(by_class(scores), named)
    assert by_class(scores)["hair drier"] != by_class(scores)["hair drier"]  # no truth: NaN


class Setting(NamedTuple):
    """Options of a score; the defaults are COCO's."""

    max_detections: int = 100
    iou_thresholds: list[float] | None = None
    areas: dict[str, tuple[float, float]] | None = None
    area: str = "annotation"


COCO_AREAS = {"s": (0, 32**2), "m": (32**2, 96**2), "l": (96**2, 1e10)}


def pycocotools(tables: Any, setting: Setting) -> dict[tuple[str, str], float]:
    """The rows (class, metric) → percent that the tables should get."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    images = {i: n for n, i in enumerate(sorted(tables.images["image_id"], key=int), 1)}
    labels = {name: n for n, name in enumerate(tables.classes["class_name"], 1)}
    areas = COCO_AREAS if setting.areas is None else setting.areas

    def record(number: int, row: Any) -> dict[str, Any]:
        w, h = row.x2 - row.x1, row.y2 - row.y1
        return {
            "id": number, "image_id": images[row.image_id], "bbox": [row.x1, row.y1, w, h],
            "category_id": labels[row.class_name], "area": w * h,
            "iscrowd": int(getattr(row, "iscrowd", 0)),
        }  # fmt: skip

    truth = [record(n, row) for n, row in enumerate(tables.boxes.itertuples(), 1)]
    if setting.area == "annotation":
        for annotation, area in zip(truth, tables.boxes["area"], strict=True):
            annotation["area"] = area
    found = [
        record(n, row) | {"score": row.score}
        for n, row in enumerate(tables.detections.itertuples(), 1)
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        gt, dt = COCO(), COCO()
        for side, annotations in ((gt, truth), (dt, found)):  # loadRes([]) is an IndexError
            side.dataset = {
                "images": [{"id": n} for n in images.values()],
                "categories": [{"id": n, "name": name} for name, n in labels.items()],
                "annotations": annotations,
            }
            side.createIndex()
        engine = COCOeval(gt, dt, "bbox")
        engine.params.maxDets = sorted(
            {1, 10, setting.max_detections} - set(range(setting.max_detections + 1, 11))
        )
        engine.params.areaRng = [[0, 1e10], *map(list, areas.values())]
        if setting.iou_thresholds is not None:
            engine.params.iouThrs = np.array(setting.iou_thresholds)
        engine.evaluate()
        engine.accumulate()
    precision, recall = engine.eval["precision"], engine.eval["recall"]

    def mean(values: Any) -> float:
        return 100 * float(np.mean(values[values > -1])) if (values > -1).any() else math.nan

    rows = {("", "AP"): mean(precision[..., 0, -1])}
    thresholds = [f"{100 * t:g}" for t in engine.params.iouThrs]
    shown = ["50", "75"] if setting.iou_thresholds is None else thresholds
    for name in shown:
        rows["", f"AP{name}"] = mean(precision[thresholds.index(name), ..., 0, -1])
    for a, name in enumerate(areas, 1):
        rows["", f"AP{name}"] = mean(precision[..., a, -1])
    for m, limit in enumerate(engine.params.maxDets):
        rows["", f"AR{limit}"] = mean(recall[..., 0, m])
    for a, name in enumerate(areas, 1):
        rows["", f"AR{name}"] = mean(recall[..., a, -1])
    for k, name in enumerate(labels):
        rows[name, "AP"] = mean(precision[:, :, k, 0, -1])
        if "50" in shown:
            rows[name, "AP50"] = mean(precision[thresholds.index("50"), :, k, 0, -1])
        rows[name, f"AR{setting.max_detections}"] = mean(recall[:, k, 0, -1])
    return rows


def ours(tables: Any, setting: Setting) -> dict[tuple[str, str], float]:
    scores = coco.score(*tables, dataset="test", **setting._asdict())
    keys = zip(scores["class_name"], scores["metric"], strict=True)
    return dict(zip(keys, scores["value"], strict=True))


BORDERS = [0.0, 16.0, 64.0, 1024.0, 5000.0, 9216.0, 1e10, math.inf]


@st.composite
def settings_of_a_score(draw: Any) -> Setting:
    overlap = st.sampled_from([0.05, 0.3, 1 / 3, 0.5, 0.6, 0.75, 0.85, 0.9, 0.95, 1.0])
    bounds = st.lists(st.sampled_from(BORDERS), min_size=2, max_size=2, unique=True)
    size = bounds.map(lambda pair: tuple(sorted(pair)))
    return Setting(
        draw(st.sampled_from([1, 2, 9, 10, 11, 100, 300])),
        draw(st.none() | st.lists(overlap, min_size=1, max_size=4, unique=True)),
        draw(st.none() | st.dictionaries(st.sampled_from("abcd"), size, max_size=4)),
        draw(st.sampled_from(["annotation", "box"])),
    )


@st.composite
def random_tables(draw: Any) -> Tables:
    """Crowds, ties, classes and images without anything, id 0, areas that are not the boxes'."""
    ids = [str(i) for i in draw(st.lists(st.integers(0, 199), min_size=1, max_size=4, unique=True))]
    classes = [f"class-{n}" for n in range(draw(st.integers(1, 4)))]
    counts = [
        draw(st.lists(st.sampled_from(sizes), min_size=len(ids), max_size=len(ids)))
        for sizes in ([0, 1, 4, 12], [0, 0, 1, 5, 30, 300])
    ]
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))

    def table(of_image: list[int]) -> pd.DataFrame:
        n = sum(of_image)
        x1, y1 = rng.integers(0, 60, (2, n)) / 10  # so near to each other that many overlap
        w, h = rng.choice([4.0, 5.0, 5.1, 8.3, 32.0, 70.7], (2, n))
        return pd.DataFrame(
            {"image_id": np.repeat(ids, of_image), "class_name": rng.choice(classes, n),
             "x1": x1, "y1": y1, "x2": x1 + w, "y2": y1 + h}
        )  # fmt: skip

    boxes = table(counts[0])
    n = len(boxes)
    boxes["annotation_id"] = np.arange(n)
    of_box = (boxes["x2"] - boxes["x1"]) * (boxes["y2"] - boxes["y1"])
    boxes["area"] = np.where(rng.random(n) < 0.5, of_box, rng.choice(BORDERS[1:-1], n))
    boxes["iscrowd"], boxes["difficult"] = rng.random(n) < 0.15, rng.random(n) < 0.1
    detections = table(counts[1])
    again = rng.integers(0, max(n, 1), len(detections))  # a part lies on the truth
    hits = (rng.random(len(detections)) < 0.4) & (n > 0)
    columns = ["image_id", "class_name", *BOX_COLUMNS]
    detections.loc[hits, columns] = boxes[columns].to_numpy()[again[hits]] if n else None
    detections["score"] = rng.integers(0, 8, len(detections)) / 7
    mixed = rng.permutation(len(detections))
    images = pd.DataFrame({"image_id": ids, "path": ids, "width": 200, "height": 100, "split": ""})
    return Tables(
        IMAGES.make(images), BOXES.make(boxes), DETECTIONS.make(detections.iloc[mixed]),
        CLASSES.make(pd.DataFrame({"class_name": classes})),
    )  # fmt: skip


def equal(tables: Any, setting: Setting) -> None:
    ours_, theirs = ours(tables, setting), pycocotools(tables, setting)
    assert list(ours_) == list(theirs)
    np.testing.assert_array_equal(list(ours_.values()), list(theirs.values()))  # NaN equals NaN


@settings(max_examples=25, deadline=None)
@given(tables=random_tables(), setting=settings_of_a_score())
def test_random_sets_with_any_setting_equal_pycocotools_bit_for_bit(tables, setting):
    equal(tables, setting)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(tables=random_tables(), setting=settings_of_a_score())
def test_many_random_sets_with_any_setting_equal_pycocotools_bit_for_bit(tables, setting):
    equal(tables, setting)


def test_one_box_example_of_torchmetrics(make):
    scores = coco.score(
        make.images(["x"], 640, 480), make.boxes(("x", "a", 214, 41, 562, 285)),
        make.detections(("x", "a", 258, 41, 606, 285, 0.536)), make.classes("a"), dataset="test",
    )  # fmt: skip
    values = summary(scores)
    assert [values[n] for n in ("AP50", "AP75")] == pytest.approx([100] * 2)
    assert [values[n] for n in ("AP", "APl", "AR1", "AR10", "AR100")] == pytest.approx([60] * 5)
    assert math.isnan(values["APs"]) and math.isnan(values["APm"])


OTHER = Setting(
    37, [0.75, 0.3, 0.55], {"tiny": (0, 256), "rest": (256, math.inf), "all": (0, 1e10)}, "box"
)


@pytest.mark.parametrize("setting", [Setting(), OTHER, Setting(areas={})], ids=["coco", "own", "-"])
def test_real_data_with_any_setting_equals_pycocotools(coco100, setting):
    equal(coco100.tables, setting)


def test_one_box_example_equals_pycocotools_to_the_last_bit(make):
    tables = make.tables(
        make.images(["0"], 640, 480), make.boxes(("0", "a", 214, 41, 562, 285)),
        make.detections(("0", "a", 258, 41, 606, 285, 0.536)), make.classes("a"),
    )  # fmt: skip
    equal(tables, Setting())


def test_rows_of_thresholds_and_areas_that_are_given(coco100):
    scores = coco.score(
        *coco100.tables, dataset="test", iou_thresholds=[0.5, 0.555, 0.9], areas={"xs": (0, 256)},
        suffix="_own",
    )  # fmt: skip
    rows = ["AP", "AP50", "AP55.5", "AP90", "APxs", "AR1", "AR10", "AR100", "ARxs"]
    assert list(summary(scores)) == [f"{name}_own" for name in rows]
    mine = scores.loc[scores["class_name"] == "dog", "metric"]
    assert mine.tolist() == ["AP_own", "AP50_own", "AR100_own"]
    values = summary(scores)
    mean = np.mean([values[f"AP{name}_own"] for name in ("50", "55.5", "90")])
    assert values["AP_own"] == pytest.approx(mean)


def test_a_class_has_no_ap50_where_that_is_no_threshold(coco100):
    scores = coco.score(*coco100.tables, dataset="test", iou_thresholds=[0.75], max_detections=5)
    mine = scores.loc[scores["class_name"] == "dog", "metric"]
    assert mine.tolist() == ["AP", "AR5"] and summary(scores)["AP"] == summary(scores)["AP75"]


def test_two_settings_fit_in_one_table(coco100):
    metrics = {
        "coco": Spec(use="detpipe.evaluate.coco.score"),
        "boxes": Spec(use="detpipe.evaluate.coco.score", area="box", suffix=" (box)"),
    }
    tables = coco100.tables
    scores = scoring.score(*tables, dataset="test", metrics=metrics, max_detections=100)
    values = summary(scores)
    assert values["AP"] == values["AP (box)"] and values["APs"] != values["APs (box)"]


WRONG = {
    "above 1": ({"iou_thresholds": [0.5, 50]}, r"iou_thresholds\.1: .* less than or equal to 1"),
    "zero": ({"iou_thresholds": [0.0]}, r"iou_thresholds\.0: .* greater than 0"),
    "none": ({"iou_thresholds": []}, r"iou_thresholds: .* at least 1 item"),
    "twice": ({"iou_thresholds": [0.5, 0.7, 0.5]}, r"iou_thresholds: .*50 percent is there twice"),
    "as good as twice": ({"iou_thresholds": [0.7, 0.7 + 1e-12]}, r"70 percent is there twice"),
    "no number": ({"iou_thresholds": [math.nan]}, r"iou_thresholds: NaN is no value"),
    "empty area": ({"areas": {"s": (9, 9)}}, r"areas: .*'s' must go from 0 or more to more"),
    "negative": ({"areas": {"s": (-1, 9)}}, r"areas: .*'s' must go from 0 or more"),
    "NaN": ({"areas": {"s": (0, math.nan)}}, r"areas: .*'s' must go from 0 or more"),
    "one bound": ({"areas": {"s": [9]}}, r"areas\.s"),
    "name": ({"areas": {"50": (0, 9)}}, r"areas: .*'50' must begin with a letter"),
    "area": ({"area": "mask"}, r"area: .*'annotation' or 'box'"),
}


@pytest.mark.parametrize("options, message", WRONG.values(), ids=WRONG)
def test_options_that_make_no_sense_are_refused_before_anything_runs(make, options, message):
    with pytest.raises(ValidationError, match=message):
        EvaluateConfig(metrics={"c": {"use": "detpipe.evaluate.coco.score", **options}})
    nothing = make.tables(make.images([]), make.boxes(), make.detections(), make.classes())
    for call in (partial(coco.score, dataset="t"), partial(coco.evaluator, limits=[9])):
        with pytest.raises(ConfigError, match=message):
            call(*nothing, **options)


def test_all_mistakes_are_named_at_once(make):
    nothing = make.tables(make.images([]), make.boxes(), make.detections(), make.classes())
    with pytest.raises(ConfigError, match=r"(?s)max_detections.*iou_thresholds.*areas.*area"):
        coco.score(
            *nothing, dataset="t", max_detections=0, iou_thresholds=[2], areas={"s": (1, 0)},
            area="x",
        )  # fmt: skip


@pytest.mark.parametrize("areas", [
    {"all": (0, 1e10)}, {"a": (0, 100), "b": (0, 100)}, {"a": (100, 1e10), "b": (100, 1e10)},
])  # fmt: skip
def test_sizes_with_equal_bounds_have_equal_numbers(make, areas):
    """Of equal area ranges the engine would fill in the last one only."""
    boxes = make.boxes(("1", "a", 0, 0, 10, 10), ("1", "a", 50, 50, 90, 90))
    tables = make.tables(make.images(["1"]), boxes, boxes.assign(score=1.0), make.classes("a"))
    values = ours(tables, Setting(areas=areas))
    assert [values["", f"AP{name}"] for name in areas] == pytest.approx([100] * len(areas))
    assert values["", "AP"] == pytest.approx(100)


def test_an_area_that_is_not_there_is_width_times_height(make):
    tables = make.tables(
        make.images(["1"]), make.boxes(("1", "a", 0, 0, 10, 10), area=math.nan),
        make.detections(("1", "a", 0, 0, 10, 10, 0.5)), make.classes("a"),
    )  # fmt: skip
    values = ours(tables, Setting())
    assert values["", "APs"] == values["", "AP"] == pytest.approx(100)
    assert math.isnan(values["", "APl"])


@pytest.mark.parametrize(
    "table, column", [(t, c) for t in (1, 2) for c in ("image_id", "class_name")]
)
def test_a_row_of_no_known_image_or_class_is_an_error_not_a_lower_number(coco100, table, column):
    tables = list(coco100.tables)
    tables[table] = tables[table].copy()
    tables[table].loc[3, column] = "stranger"
    with pytest.raises(DataError, match=r"1 row\(s\) name 1 .*'stranger'"):
        coco.score(*tables, dataset="test")


# The four ways in which an adapter to hotcoco got a wrong number and no error, as its issue #5
# lists them, and what pycocotools itself gets wrong.


def test_masks_of_the_source_do_not_change_what_is_known_of_its_boxes(coco100):
    """Issue #5, 1: a mask in bytes became an empty one."""
    images, boxes, detections, classes = coco100.tables
    extra = [json.dumps({"segmentation": {"size": [9, 9], "counts": "0a"}})] * len(boxes)
    scores = coco.score(images, boxes.assign(extra=extra), detections, classes, dataset="test")
    assert summary(scores) == percent(coco100.published)


def test_every_setting_reaches_the_engine(coco100):
    """Issue #5, 2: what was read of the parameters is a copy, changes of it were lost."""
    sizes = {"tiny": (0.0, 256.0), "same": (0.0, 256.0), "rest": (256.0, math.inf)}
    engine = coco.evaluator(
        *coco100.tables, limits=[2, 7, 50], iou_thresholds=[0.9, 0.4], areas=sizes
    )
    for _ in range(2):
        assert engine.params.max_dets == [2, 7, 50] and engine.params.iou_thrs == [0.9, 0.4]
        assert engine.params.area_rng == [[0, 1e10], [0, 256], [256, math.inf]]
        assert engine.params.area_rng_lbl == ["all", "tiny", "rest"]
        engine.evaluate()
        engine.accumulate()
    assert engine.eval["precision"].shape == (2, 101, 80, 3, 3)


def test_the_engine_holds_every_row_and_nothing_of_the_evaluator_before(coco100):
    """Issue #5, 3: annotations that were set on a data set were not those that it scored."""
    images, boxes, detections, classes = coco100.tables
    engines = [
        coco.evaluator(images, boxes[part], detections, classes, limits=[100])
        for part in (slice(None), slice(0, 400))
    ]
    for engine, count in zip(engines, (839, 400), strict=True):
        assert sorted(engine.coco_gt.anns) == list(range(1, count + 1))
        assert len(engine.coco_dt.anns) == 734 and len(engine.coco_gt.imgs) == 100
        held = engine.coco_gt.anns[400]
        row = boxes.iloc[399]
        assert held["bbox"] == [row.x1, row.y1, row.x2 - row.x1, row.y2 - row.y1]
        assert bool(held["iscrowd"]) == row.iscrowd


@pytest.mark.parametrize("area, size", [("annotation", "l"), ("box", "s")])
def test_the_area_that_was_asked_for_reaches_the_engine(make, area, size):
    """Issue #5, 4: the area of the task asked for was dropped for another one."""
    boxes = make.boxes(("1", "a", 0, 0, 10, 10), area=99999)
    tables = make.tables(make.images(["1"]), boxes, boxes.assign(score=1.0), make.classes("a"))
    values = ours(tables, Setting(area=area))
    assert [n for n in "sml" if not math.isnan(values["", f"AP{n}"])] == [size]


@pytest.mark.parametrize("ids, wrong", [([0, 1], 50 * 51 / 101), ([0], 0), ([5, 5], 50 * 51 / 101)])
def test_annotation_ids_that_pycocotools_gets_wrong(make, referee, ids, wrong):
    """Its matches are ids: 0 is no match; of equal ids it knows the last, in both images."""
    count = len(ids)
    truth = {
        "images": [{"id": n} for n in range(count)], "categories": [{"id": 1, "name": "a"}],
        "annotations": [
            {"id": i, "image_id": n, "category_id": 1, "bbox": [0, 0, 9, 9], "area": 81,
             "iscrowd": 0}
            for n, i in enumerate(ids)
        ],
    }  # fmt: skip
    found = [
        {"image_id": n, "category_id": 1, "bbox": [0, 0, 9, 9], "score": 0.5} for n in range(count)
    ]
    theirs = 100 * referee(truth, found).summary["AP"]
    assert theirs == pytest.approx(wrong)
    boxes = make.boxes(*((str(n), "a", 0, 0, 9, 9) for n in range(count)))
    boxes["annotation_id"] = [str(i) for i in ids]
    images = make.images([str(n) for n in range(count)])
    tables = make.tables(images, boxes, boxes.assign(score=0.5), make.classes("a"))
    assert ours(tables, Setting())["", "AP"] == pytest.approx(100)


def test_the_mean_is_there_at_limits_for_which_pycocotools_says_minus_one(coco100):
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(coco100.truth_file))
        engine = COCOeval(truth, truth.loadRes(str(coco100.found_file)), "bbox")
        engine.params.maxDets = [1, 10, 300]
        engine.evaluate()
        engine.accumulate()
        engine.summarize()
    assert engine.stats[0] == -1
    values = ours(coco100.tables, Setting(300))
    assert values["", "AP"] == 100 * coco100.published["AP"]  # no image has more than 100
    assert values["", "AP50"] == 100 * engine.stats[1]


def test_truth_as_predictions_scores_100(coco100):
    images, boxes, _, classes = coco100.tables
    alone = boxes[~boxes["iscrowd"]]
    scores = coco.score(images, boxes, alone.assign(score=1.0), classes, dataset="test")
    assert summary(scores)["AP"] == pytest.approx(100) == summary(scores)["AR100"]
    present = set(alone["class_name"])
    assert {n for n, v in by_class(scores).items() if v == pytest.approx(100)} == present


def test_no_detections_are_zero_not_an_error(make, coco100):
    images, boxes, detections, classes = coco100.tables
    scores = coco.score(images, boxes, detections.iloc[:0], classes, dataset="test")
    assert summary(scores) == dict.fromkeys(SUMMARY, 0.0)
    assert set(by_class(scores).values()) - {0.0} != set()  # NaN where there is no truth
    assert by_class(scores)["person"] == 0.0


@pytest.mark.parametrize("crowd", [False, True], ids=["no boxes", "only crowds"])
def test_no_ground_truth_is_nan_and_said(make, caplog, crowd):
    boxes = make.boxes(("1", "a", 0, 0, 9, 9), iscrowd=True) if crowd else BOXES.empty()
    scores = coco.score(
        make.images(["1"]), boxes, make.detections(("1", "a", 0, 0, 9, 9, 0.5)),
        make.classes("a", "b"), dataset="val",
    )  # fmt: skip
    assert list(summary(scores)) == SUMMARY and scores["value"].isna().all()
    assert list(by_class(scores)) == ["a", "b"]
    assert "'val': no ground truth" in caplog.text


def test_class_without_ground_truth_is_nan_and_not_in_the_mean(make):
    boxes = make.boxes(("1", "a", 0, 0, 50, 50))
    detections = make.detections(("1", "a", 0, 0, 50, 50, 0.9), ("1", "b", 0, 0, 50, 50, 0.8))
    scores = coco.score(
        make.images(["1"]), boxes, detections, make.classes("a", "b"), dataset="test"
    )
    assert summary(scores)["AP"] == pytest.approx(100)
    assert by_class(scores)["a"] == pytest.approx(100) and math.isnan(by_class(scores)["b"])


@pytest.mark.parametrize("ids", [["0", "1"], ["0", "0"], ["1", "1"], ["", ""], ["é", "猫"]])
def test_annotation_ids_do_not_matter(make, ids):
    boxes = make.boxes(("0", "a", 0, 0, 50, 50), ("1", "a", 9, 9, 40, 40)).assign(annotation_id=ids)
    detections = boxes.assign(score=0.9)
    scores = coco.score(
        make.images(["0", "1"]), boxes, detections, make.classes("a"), dataset="test"
    )
    assert summary(scores)["AP"] == pytest.approx(100)


def test_more_than_100_objects_in_an_image(make):
    grid = [("1", "a", 10 * (i % 15), 10 * (i // 15), 10 * (i % 15) + 8, 10 * (i // 15) + 8)
            for i in range(150)]  # fmt: skip
    boxes = make.boxes(*grid)
    tables = make.tables(make.images(["1"]), boxes, boxes.assign(score=0.5), make.classes("a"))
    at = {n: summary(coco.score(*tables, dataset="test", max_detections=n)) for n in (100, 150)}
    assert at[100]["AP"] == pytest.approx(66.3, abs=0.05)
    assert at[150]["AP"] == pytest.approx(100) == at[150]["AR150"]


def test_limits_below_ten_leave_out_what_lies_above(coco100):
    names = list(summary(coco.score(*coco100.tables, dataset="test", max_detections=5)))
    assert [n for n in names if n.startswith("AR")] == ["AR1", "AR5", "ARs", "ARm", "ARl"]


def test_result_depends_neither_on_the_order_of_images_nor_on_their_ids(coco100):
    images, boxes, detections, classes = coco100.tables
    expected = coco.score(*coco100.tables, dataset="test")
    shuffled = images.sample(frac=1, random_state=3)
    again = coco.score(shuffled, boxes, detections, classes, dataset="test")
    pd.testing.assert_frame_equal(again, expected, check_exact=True)

    def renamed(table):
        return table.assign(image_id="img-" + table["image_id"].str.zfill(12))

    again = coco.score(
        renamed(images), renamed(boxes), renamed(detections), classes, dataset="test"
    )
    pd.testing.assert_frame_equal(again, expected, check_exact=True)


def test_every_class_name_has_its_own_rows(make):
    names = ["a,b", 'say "x"', "a/b", "a-b", "a(b)", "R&D", "a b", "猫", "é"]
    boxes = make.boxes(*(("1", name, 20 * i, 0, 20 * i + 15, 15) for i, name in enumerate(names)))
    scores = coco.score(
        make.images(["1"]), boxes, boxes.assign(score=1.0), make.classes(*names), dataset="test"
    )
    assert by_class(scores) == pytest.approx(dict.fromkeys(names, 100))
    assert by_class(scores, "AP50") == pytest.approx(dict.fromkeys(names, 100))


def test_difficult_boxes_count_as_any_other(make):
    tables = [make.images(["1"]), make.detections(), make.classes("a")]
    boxes = make.boxes(("1", "a", 0, 0, 50, 50), difficult=True)
    scores = coco.score(tables[0], boxes, *tables[1:], dataset="test")
    assert summary(scores)["AP"] == 0.0
