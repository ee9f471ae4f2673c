"""AP by size, aspect and crowding."""

from __future__ import annotations

import contextlib
import io
import json

import numpy as np
import pytest

from detpipe.evaluate import coco
from detpipe.evaluate.slices import score, slices


def of(table, slice_by):
    return table[table["slice_by"] == slice_by].set_index("slice").drop(columns="slice_by")


def pycocotools(coco100, ranges, *, aspect, limit=100):
    """AP and AP50 of each range by pycocotools, of areas or of width / height in their place."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(coco100.truth_file))
        found = truth.loadRes(json.loads(coco100.found_file.read_text()))
        for annotation in [*truth.anns.values(), *found.anns.values()] if aspect else []:
            _, _, width, height = annotation["bbox"]
            annotation["area"] = width / height
        engine = COCOeval(truth, found, "bbox")
        engine.params.maxDets = [limit]
        engine.params.areaRng, engine.params.areaRngLbl = ranges, [str(r) for r in ranges]
        engine.evaluate()
        engine.accumulate()
    rows = []
    for a in range(len(ranges)):
        precision = engine.eval["precision"][..., a, -1]
        rows.append([100 * np.mean(p[p > -1]) for p in (precision, precision[0])])
    return rows


@pytest.mark.parametrize("limit", [2, 100])
def test_size_is_cocos(coco100, limit):
    ranges = [[0, 32**2], [32**2, 96**2], [96**2, 1e10]]
    table = of(slices(*coco100.tables, dataset="test", max_detections=limit), "size")
    assert table.index.tolist() == ["small", "medium", "large"]
    expected = pycocotools(coco100, ranges, aspect=False, limit=limit)
    assert table[["AP", "AP50"]].to_numpy() == pytest.approx(np.array(expected))
    if limit == 100:
        published = [100 * coco100.published[name] for name in ("APs", "APm", "APl")]
        assert table["AP"].tolist() == pytest.approx(published)


@pytest.mark.parametrize("limit", [2, 100])
def test_aspect_is_cocos_rule_with_another_number_for_the_area(coco100, limit):
    ranges = [[0, 0.5 - 1e-9], [0.5 - 1e-9, 2 + 1e-9], [2 + 1e-9, 1e10]]
    table = of(slices(*coco100.tables, dataset="test", max_detections=limit), "aspect")
    assert table.index.tolist() == ["tall", "medium", "wide"]
    expected = pycocotools(coco100, ranges, aspect=True, limit=limit)
    assert table[["AP", "AP50"]].to_numpy() == pytest.approx(np.array(expected))


def test_every_object_has_one_aspect_and_one_crowding(coco100):
    table = slices(*coco100.tables, dataset="test")
    boxes = coco100.tables.boxes
    sums = table.groupby("slice_by")[["objects", "images"]].sum()
    assert sums.loc[["aspect", "crowding"], "objects"].tolist() == [
        (~boxes["iscrowd"]).sum()
    ] * 2  # fmt: skip
    assert sums.loc["crowding", "images"] == len(coco100.tables.images)
    assert table.columns.tolist() == [
        "dataset", "slice_by", "slice", "images", "objects", "AP", "AP50",
    ]  # fmt: skip


def test_crowding_is_coco_of_the_images_alone(coco100):
    images, boxes, detections, classes = coco100.tables
    table = of(slices(*coco100.tables, dataset="test"), "crowding")
    count = images["image_id"].map(boxes[~boxes["iscrowd"]]["image_id"].value_counts()).fillna(0)
    borders = {"none": (0, 0), "1": (1, 1), "2-5": (2, 5), "6-20": (6, 20), "over_20": (21, 999)}
    assert table.index.tolist() == list(borders)
    for name, (low, high) in borders.items():
        ids = images["image_id"][count.between(low, high)]
        alone = (t[t["image_id"].isin(ids)] for t in (images, boxes, detections))
        rows = coco.score(*alone, classes, dataset="test", per_class=False).set_index("metric")
        assert table.loc[name, ["AP", "AP50"]].tolist() == pytest.approx(
            rows.loc[["AP", "AP50"], "value"].tolist(), nan_ok=True
        )
        assert table.loc[name, ["images", "objects"]].tolist() == [
            len(ids), count[count.between(low, high)].sum()
        ]  # fmt: skip
    assert (table["images"] > 0).sum() >= 4


def test_aspects_by_hand(make):
    boxes = make.boxes(
        ("1", "cat", 0, 0, 10, 40), ("2", "cat", 0, 0, 10, 20), ("3", "cat", 0, 0, 20, 10),
        ("4", "cat", 0, 0, 40, 10),
    )  # fmt: skip
    found = make.detections(
        ("1", "cat", 50, 0, 60, 40, 0.9),  # wrong, tall
        ("1", "cat", 0, 0, 10, 40, 0.8), ("2", "cat", 0, 0, 10, 20, 0.8),
        ("4", "cat", 0, 0, 40, 10, 0.8),
    )  # fmt: skip
    tables = make.images(["1", "2", "3", "4"]), boxes, found, make.classes("cat")
    table = of(slices(*tables, dataset="test"), "aspect")
    assert table["objects"].tolist() == [1, 2, 1] == table["images"].tolist()  # 1:2, 2:1: medium
    assert table["AP"].tolist() == pytest.approx([50, 100 * 51 / 101, 100])


def test_the_area_column_is_the_size_and_the_box_where_it_has_none(make):
    boxes = make.boxes(
        ("1", "cat", 0, 0, 100, 100), ("2", "cat", 0, 0, 100, 100), area=[500, np.nan]
    )
    found = make.detections(("1", "cat", 0, 0, 100, 100, 0.9))
    table = slices(make.images(["1", "2"]), boxes, found, make.classes("cat"), dataset="test")
    assert of(table, "size")["objects"].tolist() == [1, 0, 1]
    assert of(table, "size")["AP"].tolist() == pytest.approx([100, np.nan, 0], nan_ok=True)


def test_flat_boxes_have_an_aspect(make):
    boxes = make.boxes(
        ("1", "cat", 0, 0, 10, 0), ("1", "cat", 0, 0, 0, 10), ("1", "cat", 5, 5, 5, 5)
    )
    found = make.detections(("1", "cat", 0, 0, 10, 0, 0.9), ("1", "cat", 0, 0, 0, 0, 0.9))
    table = slices(make.images(["1"]), boxes, found, make.classes("cat"), dataset="test")
    assert of(table, "aspect")["objects"].tolist() == [2, 0, 1]
    assert of(table, "aspect")["AP"].tolist() == pytest.approx([0, np.nan, 0], nan_ok=True)


def test_slices_without_objects_have_no_number(make):
    boxes = make.boxes(("1", "cat", 0, 0, 10, 10), ("2", "cat", 0, 0, 9, 9), iscrowd=[False, True])
    found = make.detections(("1", "cat", 0, 0, 10, 10, 0.9), ("3", "cat", 0, 0, 10, 10, 0.95))
    tables = make.images(["1", "2", "3"]), boxes, found, make.classes("cat", "dog")
    table = slices(*tables, dataset="test")
    assert table[table["objects"] == 0][["AP", "AP50"]].isna().all(axis=None)
    full = table[table["objects"] > 0]
    assert full["slice"].tolist() == ["small", "medium", "1"]
    assert full["AP"].tolist() == pytest.approx([50, 50, 100])  # the one in image 3 is wrong
    assert table.set_index("slice").loc["none", "images"] == 2


@pytest.mark.parametrize("ids, names", [([], []), (["1"], []), ([], ["cat"]), (["1"], ["cat"])])
def test_nothing_has_no_numbers(make, ids, names):
    tables = make.images(ids), make.boxes(), make.detections(), make.classes(*names)
    table = slices(*tables, dataset="test")
    assert len(table) == 11 and table["AP"].isna().all() and not table["objects"].any()


def test_without_detections_all_slices_with_objects_are_0(make):
    boxes = make.boxes(("1", "cat", 0, 0, 10, 10))
    tables = make.images(["1"]), boxes, make.detections(), make.classes("cat")
    table = slices(*tables, dataset="test")
    assert table["AP"][table["objects"] > 0].tolist() == [0, 0, 0]


def test_the_metric_has_the_numbers_of_the_table(coco100):
    rows = score(*coco100.tables, dataset="test").set_index("metric")["value"]
    table = slices(*coco100.tables, dataset="test")
    assert rows.index[:3].tolist() == ["AP_size_small", "AP50_size_small", "AP_size_medium"]
    assert len(rows) == 2 * len(table)
    for row in table.itertuples():
        got = rows[[f"{m}_{row.slice_by}_{row.slice}" for m in ("AP", "AP50")]].tolist()
        assert got == pytest.approx([row.AP, row.AP50], nan_ok=True)
    theirs = coco.score(*coco100.tables, dataset="test")["metric"]
    assert not set(rows.index) & set(theirs)
