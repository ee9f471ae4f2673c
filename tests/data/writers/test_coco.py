"""COCO files as written, looked at with pycocotools and json."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from detpipe.core.errors import DataError
from detpipe.core.tables import BOXES, CLASSES, IMAGES, ISSUES
from detpipe.data.formats.base import Annotations
from detpipe.data.writers import coco


def tables(images, boxes, classes=("cat", "dog"), **more):
    """Rows (image id, path, split) and (image id, annotation id, class, x1, y1, x2, y2)."""
    frame = pd.DataFrame(images, columns=["image_id", "path", "split"])
    keys = ["image_id", "annotation_id", "class_name", "x1", "y1", "x2", "y2"]
    rows = pd.DataFrame(boxes, columns=keys).assign(
        area=100.0, iscrowd=False, difficult=False
    )  # fmt: skip
    return Annotations(
        IMAGES.make(frame.assign(width=640, height=480)), BOXES.make(rows.assign(**more)),
        CLASSES.make([{"class_name": name} for name in classes]), ISSUES.empty(),
    )  # fmt: skip


def written(found, tmp_path, name="train"):
    coco.write(found, tmp_path / "source", tmp_path / "out", pictures="none")
    return json.loads((tmp_path / f"out/annotations/instances_{name}.json").read_text())


@pytest.fixture
def truth(shared_data, tmp_path):
    """COCO's own 100 images written anew: (its file, ours)."""
    from tests.data.writers.sets import read

    source = shared_data / "eval_truth_coco100/instances_val2014_100.json"
    root = tmp_path / "source"
    root.mkdir()
    (root / "instances_val.json").write_bytes(source.read_bytes())
    for image in json.loads(source.read_text())["images"]:
        (root / image["file_name"]).touch()  # the reader wants to find them
    found = read("coco", root)
    coco.write(found, root, tmp_path / "out", pictures="none")
    return source, tmp_path / "out/annotations/instances_val.json"


def test_cocos_own_file_comes_out_with_every_value_of_its_objects(truth):
    source, ours = (json.loads(path.read_text()) for path in truth)
    name_of = {c["id"]: c["name"] for c in source["categories"]}
    our_name_of = {c["id"]: c["name"] for c in ours["categories"]}
    assert list(our_name_of.values()) == list(name_of.values())
    theirs = {a["id"]: a for a in source["annotations"]}
    assert [a["id"] for a in ours["annotations"]] == list(theirs)
    assert sum(a["iscrowd"] for a in theirs.values()) == 9
    for mine in ours["annotations"]:
        original = theirs[mine["id"]]
        assert mine["bbox"] == original["bbox"]  # to the last bit
        assert our_name_of[mine["category_id"]] == name_of[original["category_id"]]
        assert json.dumps(mine["segmentation"]) == json.dumps(original["segmentation"])
        rest = ("id", "image_id", "area", "iscrowd")
        assert {k: mine[k] for k in rest} == {k: original[k] for k in rest}


def test_pycocotools_reads_it_and_truth_as_detections_scores_100(truth, capsys):
    ours = COCO(str(truth[1]))
    detections = [
        {**{k: a[k] for k in ("image_id", "category_id", "bbox")}, "score": 0.9}
        for a in ours.loadAnns(ours.getAnnIds(iscrowd=False))
    ]
    evaluation = COCOeval(ours, ours.loadRes(detections), "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    precision = evaluation.eval["precision"][..., 0, -1]
    assert np.all(precision[precision > -1] == pytest.approx(1, abs=1e-9))
    assert evaluation.stats[0] == pytest.approx(1)
    masks = [ours.annToMask(a).sum() for a in ours.dataset["annotations"]]
    original = COCO(str(truth[0]))
    assert masks == [original.annToMask(original.anns[a["id"]]).sum()
                     for a in ours.dataset["annotations"]]  # fmt: skip


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (["7", "3"], [7, 3]),
        (["0", "3"], [1, 2]),  # 0 is no object to pycocotools
        (["007", "3"], [1, 2]),
        (["7", "7"], [1, 2]),
        (["7", "a-7"], [1, 2]),
        (["7", str(10**18)], [1, 2]),  # beyond what a JavaScript reader keeps
    ],
)
def test_annotation_ids_are_kept_where_they_are_unique_whole_numbers_from_1(
    ids, expected, tmp_path
):
    boxes = [("5", i, "cat", 0, 0, 10, 10) for i in ids]
    content = written(tables([("5", "a.jpg", "train")], boxes), tmp_path)
    assert [a["id"] for a in content["annotations"]] == expected
    assert [a["image_id"] for a in content["annotations"]] == [5, 5]


def test_image_ids_may_be_0_and_ids_are_unique_over_all_files(tmp_path):
    images = [("0", "a.jpg", "train"), ("8", "b.jpg", "val")]
    boxes = [("8", "x", "dog", 0, 0, 10, 10), ("0", "y", "cat", 0, 0, 10, 10)]
    train = written(tables(images, boxes), tmp_path)
    val = json.loads((tmp_path / "out/annotations/instances_val.json").read_text())
    assert [i["id"] for i in train["images"] + val["images"]] == [0, 8]
    assert [(a["id"], a["image_id"], a["category_id"]) for a in train["annotations"]] == [(2, 0, 1)]
    assert [(a["id"], a["image_id"], a["category_id"]) for a in val["annotations"]] == [(1, 8, 2)]
    assert train["categories"] == val["categories"]
    assert [(c["id"], c["name"]) for c in val["categories"]] == [(1, "cat"), (2, "dog")]


def test_boxes_are_the_short_numbers_they_were_made_of(tmp_path):
    sides = [(10.1, 20.2), (0.1, 0.2), (3.3, 4.7), (1 / 3, 2 / 3), (1e-3, 600.123456789)]
    boxes = [("1", str(n), "cat", x, x, x + w, x + w) for n, (x, w) in enumerate(sides, 1)]
    content = written(tables([("1", "a.jpg", "train")], boxes), tmp_path)
    for (x, w), record in zip(sides, content["annotations"], strict=True):
        assert record["bbox"][0] + record["bbox"][2] == x + w
        assert record["bbox"][2] == w or len(repr(w)) > 12


def test_own_fields_are_not_those_of_extra(tmp_path):
    extra = '{"id":99,"bbox":[1,2,3,4],"attributes":{"a":1.0},"iscrowd":1}'
    found = tables([("1", "a.jpg", "train")], [("1", "5", "cat", 0, 0, 10, 20)], extra=extra)
    record = written(found, tmp_path)["annotations"][0]
    assert record == {
        "id": 5, "image_id": 1, "category_id": 1, "bbox": [0, 0, 10, 20], "area": 100,
        "iscrowd": 0, "attributes": {"a": 1.0},
    }  # fmt: skip


def test_extra_that_is_no_json_object_is_named(tmp_path):
    found = tables([("1", "a.jpg", "train")], [("1", "5", "cat", 0, 0, 9, 9)], extra="[1]")
    with pytest.raises(DataError, match="annotation '5' is no JSON object"):
        written(found, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_was_never_checked_is_written_too(tmp_path, caplog):
    boxes = [
        ("1", "1", "cat", np.nan, 0, 5, 5), ("1", "2", "bird", 5, 5, 1, 1),
        ("9", "3", "cat", 0, 0, 5, 5), ("1", "4", "", 0, 0, 5, 5),
    ]  # fmt: skip
    content = written(tables([("1", "a.jpg", "train")], boxes), tmp_path)
    assert [a["id"] for a in content["annotations"]] == [1, 2]
    assert content["annotations"][0]["bbox"][0] is None
    assert content["annotations"][1]["bbox"] == [5, 5, -4, -4]
    assert [c["name"] for c in content["categories"]] == ["cat", "dog", "bird"]
    assert "left out: 2 box(es) without an image or a class" in caplog.text


def test_splits_of_any_name_get_files_of_their_own(tmp_path):
    images = [("1", "x.jpg", ""), ("2", "x.jpg", "a/b"), ("3", "x.jpg", "a_b"), ("4", "x.jpg", "é")]
    coco.write(tables(images, []), tmp_path / "source", tmp_path / "out", pictures="none")
    files = {p.name: json.loads(p.read_text()) for p in (tmp_path / "out/annotations").iterdir()}
    assert {name: [i["id"] for i in content["images"]] for name, content in files.items()} == {
        "instances_all.json": [1], "instances_a_b.json": [2], "instances_a_b_2.json": [3],
        "instances_é.json": [4],
    }  # fmt: skip


def test_difficult_objects_are_marked_and_counted(tmp_path, caplog):
    boxes = [("1", "1", "cat", 0, 0, 5, 5), ("1", "2", "cat", 0, 0, 5, 5)]
    content = written(tables([("1", "a.jpg", "train")], boxes, difficult=[True, False]), tmp_path)
    assert [a.get("difficult") for a in content["annotations"]] == [1, None]
    assert "1 difficult object(s)" in caplog.text


def test_records_are_complete_over_the_border_of_a_chunk(tmp_path, monkeypatch):
    monkeypatch.setattr(coco, "_CHUNK", 2)
    images = [(str(n), f"{n}.jpg", "train") for n in range(5)]
    boxes = [(str(n), str(n + 1), "cat", n, 0, n + 5, 5) for n in range(5)]
    content = written(tables(images, boxes), tmp_path)
    assert [i["id"] for i in content["images"]] == list(range(5))
    assert [a["bbox"][0] for a in content["annotations"]] == list(range(5))
