"""Reports: nothing vanishes, nothing is re-ordered, csv reads back."""

from __future__ import annotations

import csv
import io

import pandas as pd
import pytest

from detpipe.core.tables import SCORES
from detpipe.evaluate import coco, report
from detpipe.evaluate.config import ReportConfig

NAN = float("nan")
NAMES = ["z-last", "a,b", 'say "x"', "a/b", "R&D (x)", "猫", "[b]"]


@pytest.fixture
def scores():
    rows = [("val", "bbox", m, "", v) for m, v in (("AP", 38.12345), ("AP-x", 60.0), ("APs", NAN))]
    rows += [("test", "bbox", m, "", v) for m, v in (("AP", 37.5), ("AR7", 50.0))]
    for i, name in enumerate(NAMES):
        rows += [("val", "bbox", "AP", name, 10.0 + i), ("val", "bbox", "AP50", name, NAN)]
    return SCORES.make([dict(zip(SCORES.columns, row, strict=True)) for row in rows])


def test_overview_has_a_row_a_data_set_and_a_column_a_metric(scores):
    table = report.overview(scores)
    assert list(table.columns) == ["dataset", "task", "AP", "AP-x", "APs", "AR7"]
    assert table["dataset"].tolist() == ["val", "test"] and table["AP"].tolist() == [38.12345, 37.5]
    assert table["AR7"].isna().tolist() == [True, False] and table["APs"].isna().all()


def test_per_class_has_every_class_in_order(scores):
    table = report.per_class(scores)
    assert list(table.columns) == ["dataset", "task", "class_name", "AP", "AP50"]
    assert table["class_name"].tolist() == NAMES
    assert table["AP"].tolist() == [10.0 + i for i in range(len(NAMES))]
    assert table["AP50"].isna().all()


def test_tables_survive_csv(scores):
    for table in (report.overview(scores), report.per_class(scores)):
        back = pd.read_csv(io.StringIO(table.to_csv(index=False)))
        pd.testing.assert_frame_equal(back, table, check_dtype=False)


def test_copypaste_lines_read_as_csv(scores):
    lines = report.copypaste(scores)
    pasted = [
        next(csv.reader([line.removeprefix("copypaste: ")]))
        for line in lines
        if line.startswith("copypaste: ")
    ]
    assert pasted == [
        ["Task: bbox"], ["AP", "AP-x", "APs"], ["38.1234", "60.0000", "nan"],
        ["Task: bbox AP by class"], NAMES, [f"{10 + i}.0000" for i in range(len(NAMES))],
        ["Task: bbox"], ["AP", "AR7"], ["37.5000", "50.0000"],
    ]  # fmt: skip
    titles = [line for line in lines if not line.startswith("copypaste: ")]
    assert titles == [f"Evaluation results for {name} in csv format:" for name in ("val", "test")]


def test_log_holds_the_lines_and_a_table(scores, caplog):
    caplog.set_level("INFO")
    report.log(scores)
    for line in report.copypaste(scores):
        assert line in caplog.messages
    assert report.table(scores) in caplog.text


def test_table_shows_a_dash_where_there_is_no_number(scores):
    head, val, test = report.table(scores).splitlines()
    assert head.split() == ["dataset", "task", "AP", "AP-x", "APs", "AR7"]
    assert val.split() == ["val", "bbox", "38.12", "60.00", "-", "-"]
    assert test.split() == ["test", "bbox", "37.50", "-", "-", "50.00"]


def test_by_metric_is_the_overview_turned_round(scores):
    table = report.by_metric(scores)
    assert list(table.columns) == ["metric", "val", "test"]
    assert table["metric"].tolist() == ["AP", "AP-x", "APs", "AR7"]
    assert table["val"].tolist()[:2] == [38.12345, 60.0] and table["val"].isna().sum() == 2
    losses = report.by_metric(pd.concat([scores, scores.iloc[:1].assign(task="loss")]))
    assert losses["task"].tolist() == ["bbox"] * 4 + ["loss"]
    odd = report.by_metric(scores.assign(dataset=scores["dataset"].replace("val", "metric")))
    assert list(odd.columns) == ["metric", "metric", "test"], "a split of any name"


@pytest.mark.parametrize("count", [14, 15])
def test_many_metrics_are_rows_in_the_log(count):
    rows = [(d, "bbox", f"m{i}", "", float(i)) for d in ("val", "test") for i in range(count)]
    scores = SCORES.make([dict(zip(SCORES.columns, row, strict=True)) for row in rows])
    head, *lines = report.table(scores).splitlines()
    if count == 14:
        assert head.split()[:3] == ["dataset", "task", "m0"] and len(lines) == 2
    else:
        assert head.split() == ["metric", "val", "test"] and len(lines) == count
        assert lines[3].split() == ["m3", "3.00", "3.00"]


def test_no_scores_give_empty_tables():
    empty = SCORES.empty()
    assert list(report.overview(empty).columns) == ["dataset", "task"]
    assert list(report.per_class(empty).columns) == ["dataset", "task", "class_name"]
    assert report.copypaste(empty) == [] and report.table(empty) == "no scores"


def test_overview_of_real_data_has_the_twelve_numbers(coco100):
    scores = coco.score(*coco100.tables, dataset="test")
    overview, by_class = report.overview(scores), report.per_class(scores)
    assert list(overview.columns) == ["dataset", "task", *coco100.published]
    assert overview.iloc[0, 2:].tolist() == [100 * v for v in coco100.published.values()]
    assert by_class["class_name"].tolist() == list(coco100.names.values())


@pytest.fixture
def splits(make):
    """val: an image, its box found; test: two, one box, nothing found; train: no detections."""
    images = make.images(["1", "2", "3", "4"]).assign(split=["val", "test", "test", "train"])
    boxes = make.boxes(("1", "cat", 0, 0, 9, 9), ("2", "cat", 0, 0, 9, 9), ("4", "cat", 0, 0, 9, 9))
    found = make.detections(("1", "cat", 0, 0, 9, 9, 0.7), ("4", "cat", 0, 0, 9, 9, 0.8))
    return images, boxes, found


def test_parts_are_the_splits_with_images_each_once(splits):
    images, boxes, found = splits
    val, more = found.head(1), found.tail(1)
    parts = report.parts(
        images, boxes, [(["val"], val), (["test"], val[:0]), (["train", "val", "none"], more)]
    )
    assert [part.dataset for part in parts] == ["val", "test", "train"]
    counts = [tuple(map(len, part[1:])) for part in parts]
    assert counts == [(1, 1, 1), (2, 1, 0), (1, 1, 1)]
    assert parts[2].detections["image_id"].tolist() == ["4"]


def test_a_diagnosis_has_every_data_set_in_every_table(splits, make):
    images, boxes, found = splits
    parts = report.parts(images, boxes, [(["val", "test"], found)])
    config = ReportConfig(samples=3, bins=5)
    diagnosis = report.diagnose(parts, make.classes("cat"), config, max_detections=100)
    for table in diagnosis:
        assert table.columns[0] == "dataset"
        assert table["dataset"].unique().tolist() == ["val", "test"]
    assert len(diagnosis.calibration) == 2 * 2 * 5
    assert diagnosis.intervals["samples"].unique().tolist() == [3]
    ranking = diagnosis.per_image.set_index("image_id")
    assert ranking["right"].to_dict() == {"1": 1, "2": 0, "3": 0}


def test_without_data_sets_the_tables_have_columns_and_no_rows(splits, make):
    some = report.diagnose(
        report.parts(*splits[:2], [(["val"], splits[2])]), make.classes("cat"),
        ReportConfig(samples=0), max_detections=100,
    )  # fmt: skip
    none = report.diagnose([], make.classes("cat"), ReportConfig(samples=0), max_detections=100)
    for table, other in zip(none, some, strict=True):
        assert table.empty and list(table.columns) == list(other.columns)


def test_pictures_count_from_the_best_f1_or_from_the_score_that_is_given(splits, make):
    parts = report.parts(*splits[:2], [(["val", "test"], splits[2])])
    best = ReportConfig(samples=0)
    diagnosis = report.diagnose(parts, make.classes("cat"), best, max_detections=100)
    assert report.threshold(diagnosis.thresholds, "val", best) == 0.7
    assert report.threshold(diagnosis.thresholds, "test", best) == 0.5  # nothing found
    given = ReportConfig(score_threshold=0.9)
    assert report.threshold(diagnosis.thresholds, "val", given) == 0.9
    strict = report.diagnose(parts, make.classes("cat"), given, max_detections=100)
    assert strict.per_image.set_index("image_id")["right"].to_dict() == {"1": 0, "2": 0, "3": 0}


def test_every_data_set_has_its_figures(splits, make):
    parts = report.parts(*splits[:2], [(["val", "test"], splits[2])])
    options = (make.classes("cat"), ReportConfig(samples=0))
    diagnosis = report.diagnose(parts, *options, max_detections=100)
    made = report.figures(
        parts, options[0], diagnosis, options[1], max_detections=100, history=pd.DataFrame()
    )
    what = ("precision_recall", "scores", "calibration", "slices")
    assert set(made.curves) == {"loss"} | {f"{d}_{w}" for d in ("val", "test") for w in what}
    assert set(made.confusion) == set(made.errors) == {"val", "test"}
    titles = {name: figure.axes[0].get_title() for name, figure in made.confusion.items()}
    assert titles["val"] == "1 objects, 1 detections\nIoU 0.5, score 0.70 and above"
    assert titles["test"] == "1 objects, 0 detections\nIoU 0.5, score 0.50 and above"
