"""Real data sets from their folders, or from a URL, to scores: whole Kedro sessions of two steps.

Those that have a recipe of their own (``conf/``) are in ``test_recipes``.
"""

from __future__ import annotations

import itertools
import json

import fsspec
import numpy as np
import pandas as pd
import pytest
from PIL import Image

from tests.data.test_real_sets import TREE_FILES
from tests.pipelines.conftest import Project

pytestmark = pytest.mark.slow

SHORT = {
    "model": {"width": 16},
    "train": {"duration": "2 steps", "batch_size": 2, "hooks": {"evaluate": None, "best": None}},
    "stream": {"resize": {"height": 160, "width": 160}},
    "verify": {"expected": []},
}
HALVES = {"by": "ratio", "train": 0.5, "val": 0, "test": 0.5}

SETS = {  # folder, data section, evaluate section, images, boxes
    "cards": ("cards_csv", {"reader": "csv"}, {}, 117, 231),
    "cards_xml": (
        "cards_csv", {"reader": {"use": "voc", "annotations": "images"}, "split": HALVES}, {},
        117, 231,
    ),
    "screws": (
        "screws_coco_cvat",
        {"reader": "coco", "split": HALVES, "check": {"rules": {"missing_image": "drop"}}}, {},
        4, 4,
    ),
    "trees": (
        "trees_csv",
        {
            "reader": {"use": "csv", "annotations": [f"data/{name}" for name in TREE_FILES]},
            "split": HALVES,
        }, {}, 5, 61 + 79 + 37 + 7 + 4,
    ),
    "trees_xml": (
        "trees_csv", {"reader": {"use": "voc", "annotations": "data"}, "split": HALVES},
        {"max_detections": 300}, 3, 61 + 37 + 279,
    ),
    "bccd_csv": (
        "bccd_voc", {"reader": {"use": "csv", "images": "BCCD/JPEGImages"}, "split": HALVES}, {},
        364, 4886,
    ),
}  # fmt: skip


@pytest.fixture
def fresh(tmp_path, project_root):
    return Project(tmp_path, project_root)


def tables(project: Project) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Images, boxes, and the reports' overview."""
    return (
        pd.read_parquet(project.path("03_primary/sample/images.parquet")),
        pd.read_parquet(project.path("03_primary/sample/boxes.parquet")),
        pd.read_csv(project.path("08_reporting/sample/overview.csv")),
    )


def section(data):
    """``data`` in the place of the base configuration's."""
    return data | {"check": {"workers": 0, **data.get("check", {})}}


@pytest.mark.parametrize("name", SETS)
def test_a_set_goes_from_its_folder_to_its_reports(fresh, shared_data, name):
    folder, data, evaluate, images, boxes = SETS[name]
    params = SHORT | {"data": section(data), "evaluate": evaluate}
    batch = SHORT["train"] | {"batch_size": 1 if images < 10 else 2}
    fresh.run("train", params=params | {"train": batch, "raw": str(shared_data / folder)})
    found = tables(fresh)
    assert (len(found[0]), len(found[1])) == (images, boxes)
    assert list(found[2]["dataset"]) == ["test"]
    tested = pd.read_csv(fresh.path("08_reporting/sample/self_test.csv"), keep_default_na=False)
    assert set(tested.loc[tested["class_name"] == "", "AP"].astype(float).round(6)) == {100}


@pytest.mark.parametrize("protocol", ["file", "memory"])
def test_a_set_at_a_url_is_recognised(fresh, shared_data, protocol, tmp_path, monkeypatch):
    monkeypatch.setenv("DETPIPE_CACHE", str(tmp_path / "cache"))
    source = shared_data / "chess_coco_roboflow"
    url = f"file://{source}"
    if protocol == "memory":
        url = "memory://chess"
        fsspec.filesystem("memory").put(f"{source}/", "/chess/", recursive=True)
    try:
        data = {"reader": "auto", "split": HALVES}
        fresh.run("train", params=SHORT | {"data": section(data), "raw": url})
    finally:
        if protocol == "memory":
            fsspec.filesystem("memory").rm("/chess", recursive=True)
    images, boxes, overview = tables(fresh)
    assert (len(images), len(boxes)) == (29, 376)
    assert list(overview["dataset"]) == ["test"]
    issues = pd.read_csv(fresh.path("08_reporting/sample/data_issues.csv"))
    assert "format" in set(issues["rule"])
    copied = list((tmp_path / "cache").rglob("*.jpg"))
    assert len(copied) == (29 if protocol == "memory" else 0)


CLASSES = ["a,b", 'say "x"', "a/b", "a-b", "a_b", "(a)", "[/a]", "a&b", "a b", "é – 猫", "NA"]
FILES = ["é – 猫 1", "IMG 2", "a,b", 'say "x"', "[x]", "R&D (1)", "100 %", "#1"]


def odd_set(root):
    """Pictures and classes of odd names, each class once in every picture; train and test."""
    rng = np.random.default_rng(0)
    for part in ("train", "test"):
        (root / part).mkdir(parents=True)
        images, annotations, number = [], [], itertools.count()
        for place, stem in enumerate(FILES):
            name = stem + (".jpg", ".JPG")[place % 2]
            pixels = rng.integers(0, 255, (96, 128, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / part / name, format="JPEG")
            images.append({"id": place, "file_name": name, "width": 128, "height": 96})
            annotations += [
                {"id": next(number), "image_id": place, "category_id": label,
                 "bbox": [2 + 10 * label, 3 + 5 * label, 18, 22]}
                for label in range(len(CLASSES))
            ]  # fmt: skip
        content = {
            "images": images, "annotations": annotations,
            "categories": [{"id": i, "name": name} for i, name in enumerate(CLASSES)],
        }  # fmt: skip
        (root / part / "_annotations.coco.json").write_text(json.dumps(content))


def test_odd_names_of_classes_and_files_reach_every_report(fresh, tmp_path):
    """None is lost and none merged: tables, csv files, pictures drawn, MLflow."""
    odd_set(tmp_path / "raw")
    params = SHORT | {"data": section({"reader": "coco"}), "raw": str(tmp_path / "raw")}
    fresh.run("train", params=params)
    images, boxes, _ = tables(fresh)
    assert (len(images), len(boxes)) == (2 * len(FILES), 2 * len(FILES) * len(CLASSES))
    reports = fresh.path("08_reporting/sample")
    plain = {"keep_default_na": False, "dtype": str}
    for report in ("data_summary", "self_test", "scores", "per_class"):
        names = pd.read_csv(reports / f"{report}.csv", **plain)["class_name"]
        assert set(names) - {""} == set(CLASSES), report
    assert len(names) == len(CLASSES)
    ranking = pd.read_csv(reports / "per_image.csv", **plain)
    written = {f"test/{stem}" for stem in FILES}
    assert {path.rpartition(".")[0] for path in ranking["path"]} == written

    keys = {key for (key,) in fresh.rows("select distinct key from metrics")}
    per_class = [key for key in keys if key.startswith("test/") and key.count("AP50")]
    assert len(per_class) == len(CLASSES) + 1

    low = {"pictures": str(tmp_path / "raw/test"), "predict": {"score_threshold": 0}}
    fresh.run("predict", params=params | low)
    output = fresh.path("07_model_output/sample")
    assert len(list((output / "predictions_drawn").rglob("*.jpg"))) == len(FILES)
    predicted = pd.read_csv(output / "predictions.csv", **plain)
    assert set(predicted["image_id"]) == set(FILES)
    assert set(predicted["class_name"]) <= set(CLASSES)
