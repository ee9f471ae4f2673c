"""Runs side by side: differences, paired intervals, and the page."""

from __future__ import annotations

import re

import pandas as pd
import pytest

from detpipe.core.errors import DataError
from detpipe.evaluate import bootstrap, coco
from detpipe.evaluate.compare import COLUMNS, compare, precision_recall
from detpipe.evaluate.compare_page import log_text, page

RUNS = ("old", "new")


@pytest.fixture(scope="module")
def two(make):
    """60 images; ``new`` finds what ``old`` finds and 12 more, ``same`` is ``old`` again."""
    ids = [str(i) for i in range(1, 61)]
    boxes = make.boxes(*((i, "ab"[int(i) % 2], 10, 10, 50, 50) for i in ids))

    def found(count):
        return make.detections(*((i, "ab"[int(i) % 2], 10, 10, 50, 50, 0.9) for i in ids[:count]))

    runs = {"old": found(30), "new": found(42), "same": found(30)}
    return make.images(ids), boxes, make.classes("a", "b", "never"), runs


@pytest.fixture(scope="module")
def table(two):
    return compare(*two, samples=400)


def row(table: pd.DataFrame, run: str, metric: str, name: str = "") -> pd.Series:
    (found,) = table.index[
        (table["run"] == run) & (table["metric"] == metric) & (table["class_name"] == name)
    ]
    return table.loc[found]


def test_values_are_those_of_the_scores_table(two, table):
    images, boxes, classes, runs = two
    for run, found in runs.items():
        scores = coco.score(images, boxes, found, classes, dataset="test")
        expected = scores.set_index(["metric", "class_name"])["value"]
        for own in table[table["run"] == run].itertuples():
            assert own.value == pytest.approx(expected[own.metric, own.class_name], nan_ok=True)


def test_a_difference_is_the_value_less_the_baselines(table):
    assert list(table) == list(COLUMNS)
    new = row(table, "new", "AR100")
    assert (new["value"], new["baseline"]) == pytest.approx((70, 50))
    assert new["difference"] == pytest.approx(20)  # 12 of 60 objects more


def test_the_interval_of_a_difference_is_that_of_the_images_in_which_it_lies(two):
    # Found by one run alone in 12 of 60 images: with one class the difference of recalls in a
    # sample is Binomial(60, 0.2) / 60, whose 2.5% and 97.5% quantiles are 6 and 18 of 60.
    images, boxes, classes, runs = two
    one = {name: found.assign(class_name="a") for name, found in runs.items()}
    table = compare(images, boxes.assign(class_name="a"), classes, one, samples=3000)
    new = row(table, "new", "AR100")
    assert new["low"] == pytest.approx(10, abs=1.7)  # one image is 1.67 points
    assert new["high"] == pytest.approx(30, abs=1.7)
    assert new["differs"]
    # Not paired the interval would be wider than -20 + 40: the standard deviation of each is 6.


def test_two_runs_that_find_the_same_do_not_differ(table):
    same = table[(table["run"] == "same") & (table["class_name"] != "never")]
    assert (same[["difference", "low", "high"]] == 0).all(axis=None)
    assert not same["differs"].any()


def test_a_difference_of_chance_does_not_count(make, two):
    images, boxes, classes, runs = two
    old = runs["old"].iloc[:-1]
    new = pd.concat([runs["old"].iloc[1:], runs["new"].iloc[30:31]])  # one lost, two gained
    found = row(compare(images, boxes, classes, {"old": old, "new": new}), "new", "AR100")
    assert found["difference"] == pytest.approx(100 / 60)
    assert found["low"] < 0 < found["high"]
    assert not found["differs"]


def test_the_baseline_differs_by_nothing_and_has_no_interval(table):
    old = table[(table["run"] == "old") & (table["class_name"] != "never")]
    assert (old["difference"] == 0).all()
    assert old[["low", "high"]].isna().all(axis=None)
    assert not old["differs"].any()


def test_a_class_without_truth_has_no_numbers(table):
    never = table[table["class_name"] == "never"]
    assert len(never) == 3
    assert never[["value", "difference", "low", "high"]].isna().all(axis=None)
    assert not never["differs"].any()


def test_the_single_interval_of_a_run_is_its_difference_from_nothing(two, make):
    images, boxes, classes, runs = two
    nothing = {"nothing": make.detections(), "old": runs["old"]}
    difference = row(compare(images, boxes, classes, nothing, samples=100), "old", "AP")
    single = bootstrap.intervals(images, boxes, runs["old"], classes, dataset="test", samples=100)
    expected = single.set_index("metric").loc["AP"]
    assert difference["difference"] == pytest.approx(expected["value"])
    assert (difference["low"], difference["high"]) == (expected["low"], expected["high"])


def test_unknown_images_are_told_with_the_name_of_the_run(two, make):
    images, boxes, classes, runs = two
    strange = make.detections(("61", "a", 1, 1, 9, 9, 0.5))
    with pytest.raises(DataError, match=r"detections of 'new': 1 row.*'61'"):
        compare(images, boxes, classes, {"old": runs["old"], "new": strange})


def test_the_area_under_a_curve_is_ap50(two, table):
    curves = precision_recall(*two)
    assert curves.index.tolist() == list(range(101))
    for run in RUNS:
        assert curves[run].mean() == pytest.approx(row(table, run, "AP50")["value"])


def test_a_curve_counts_no_more_detections_than_asked_for(make):
    objects = [("1", "a", 10, 10, 50, 50), ("1", "a", 60, 10, 99, 50)]
    found = make.detections(*((*box, 0.9) for box in objects))
    tables = make.images(["1"]), make.boxes(*objects), make.classes("a"), {"run": found}
    assert precision_recall(*tables)["run"].mean() == pytest.approx(100)
    curve = precision_recall(*tables, max_detections=1)["run"]
    assert curve.tolist() == pytest.approx(
        [100] * 51 + [0] * 50
    )  # recall ends at one of two objects


# --- the page ----------------------------------------------------------------------------------


def page_of(table, curves, names, confidence=0.95):
    return page(
        table, curves, sources={name: f"file {name}" for name in names}, dataset="test", images=60,
        samples=400, confidence=confidence,
    )  # fmt: skip


def cells(html: str) -> list[list[str]]:
    rows = re.findall(r"<tr>(.*?)</tr>", html)
    return [re.findall(r"<td[^>]*>(.*?)</td>", found) for found in rows]


def test_the_page_says_in_words_what_differs(two, table):
    html = page_of(table, precision_recall(*two), two[3])
    found = next(line for line in cells(html) if line[:1] == ["AR100"])
    metric, old, new, difference, words, same, nothing, no_words = found
    assert (metric, old, new, same) == ("AR100", "50.00", "70.00", "50.00")
    assert re.fullmatch(r"\+20\.00 \(\+\d+\.\d\d to \+\d+\.\d\d\)", difference)
    assert (words, nothing, no_words) == (
        "better", "+0.00 (+0.00 to +0.00)", "no clear difference",
    )  # fmt: skip


def test_a_worse_run_is_called_worse(two):
    images, boxes, classes, runs = two
    table = compare(images, boxes, classes, {"new": runs["new"], "old": runs["old"]}, samples=50)
    assert "worse" in log_text(table)
    assert "better" not in log_text(table)
    assert "−20.00" in log_text(table)


def test_each_class_has_a_row_that_sorts_by_numbers(two, table):
    html = page_of(table, precision_recall(*two), two[3])
    by_class = html[html.index('id="by-class"') :]
    assert '<table class="sortable">' in by_class
    rows = [line for line in cells(by_class) if line]
    assert [line[0] for line in rows] == ["a", "b", "never"]
    assert rows[2][1] == "–"
    assert "data-value=" in by_class


def test_differences_of_classes_are_signed_like_those_above(two):
    images, boxes, classes, runs = two
    turned = {name: runs[name] for name in ("new", "old", "same")}
    table = compare(images, boxes, classes, turned, samples=50)
    html = page_of(table, precision_recall(images, boxes, classes, turned), turned)
    rows = [line for line in cells(html[html.index('id="by-class"') :]) if line]
    assert len(rows) == 3
    for line in rows[:2]:
        new, old, *difference, words, same = line[1:8]
        no_words = line[-1]
        assert re.fullmatch(r"\d+\.\d\d", new) and re.fullmatch(r"\d+\.\d\d", old)
        assert all(re.fullmatch(r"−\d+\.\d\d", cell) for cell in difference)
        assert (same, words, no_words) == (old, "worse", "worse")
    assert rows[2][2:6] == ["–"] * 4
    backwards = {name: runs[name] for name in ("old", "new")}
    table = compare(images, boxes, classes, backwards, samples=50)
    html = page_of(table, precision_recall(images, boxes, classes, backwards), backwards)
    rows = [line for line in cells(html[html.index('id="by-class"') :]) if line]
    assert rows[0][3].startswith("+")


def test_the_page_is_one_file_with_the_picture_in_it(two, table):
    html = page_of(table, precision_recall(*two), two[3])
    assert html.count("data:image/png;base64,") == 1
    assert not re.search(r'(src|href)="(?!data:|#)', html)


def test_names_of_runs_and_classes_can_be_anything(make, two):
    images, boxes, _, runs = two
    awkward = ("<b>", "metric", "class", "$x_1$", "_y", "[/z]")
    names = dict(zip(awkward, [*runs.values()] * 2, strict=True))
    classes = make.classes("a", "b", "<i>")
    table = compare(images, boxes, classes, names, samples=10)
    html = page_of(table, precision_recall(images, boxes, classes, names), names)
    assert "&lt;b&gt;" in html
    assert "<b>" not in html
    assert "<i>" not in html
    assert "[" not in log_text(table)
    assert "(/z]" in log_text(table)


def test_without_truth_there_is_a_page_without_a_picture(make, two):
    images, _, classes, runs = two
    table = compare(images, make.boxes(), classes, runs, samples=10)
    assert table[["value", "difference", "low", "high"]].isna().all(axis=None)
    curves = precision_recall(images, make.boxes(), classes, runs)
    assert "<img" not in page_of(table, curves, runs)


def test_the_confidence_is_on_the_page(two, table):
    html = page_of(table, precision_recall(*two), two[3], confidence=0.9)
    assert "90% interval" in html
    assert "one in 10" in html
