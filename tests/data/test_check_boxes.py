from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detpipe.core.tables import BOX_COLUMNS, BOXES
from detpipe.data.check import inspect
from detpipe.data.check_boxes import check_boxes
from detpipe.data.check_config import CheckConfig
from detpipe.data.config import Resize
from detpipe.data.findings import Findings
from detpipe.data.formats.base import IssueLog, box_rows

ALL = CheckConfig(decode=False)
FINE = ("a", "cat", 4, 5, 24, 35), ("b", "dog", 0, 0, 64, 48)


def named(issues: pd.DataFrame, rule: str) -> list[str]:
    """Ids of the annotations that a rule names."""
    return issues["annotation_id"][issues["rule"] == rule].tolist()


# --- whatever comes in ---------------------------------------------------------------------------

SIZES = {"a": (64, 48), "b": (30, 90)}
EDGES = [-math.inf, math.nan, -1e308, -1e9, -5, -0.005, -1e-9, 0, 0.004, 0.02, 7, 29.995, 30,
         30.004, 47.99, 48, 48.3, 63.995, 64, 64.005, 90, 1e9, 1e308, math.inf]  # fmt: skip
NUMBERS = st.one_of(st.sampled_from(EDGES), st.floats(-20, 120), st.integers(-3, 95).map(float))


def some_boxes(numbers=NUMBERS):
    areas = st.sampled_from([math.nan, -1.0, 0.0, 3.5, math.inf])
    images = st.sampled_from(["a", "b"])
    return st.lists(st.tuples(images, numbers, numbers, numbers, numbers, areas), max_size=25)


def through_the_sieve(boxes, config=ALL) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What is left of (image, x1, y1, x2, y2, area), or of a table of boxes; and the issues."""
    if isinstance(boxes, list):
        columns = ["image_id", *BOX_COLUMNS, "area"]
        boxes = pd.DataFrame(boxes, columns=columns).assign(
            annotation_id=[f"n{n:02}" for n in range(len(boxes))],
            class_name="cat", iscrowd=False, difficult=False,
        )  # fmt: skip
    images = pd.DataFrame(
        [(name, f"{name}.png", *size, "") for name, size in SIZES.items()],
        columns=["image_id", "path", "width", "height", "split"],
    )
    findings = Findings(config)
    classes = pd.DataFrame({"class_name": ["cat"]})
    left = check_boxes(
        images, images, BOXES.make(boxes), classes, findings, mismatched=set(), resize=None
    )
    return left.table, findings.log.table()


def is_right(row) -> bool:
    """By hand: finite, wider and higher than a hundredth of a pixel, in its image to the same."""
    width, height = SIZES[row.image_id]
    if not all(map(math.isfinite, (row.x1, row.y1, row.x2, row.y2))):
        return False
    inside = min(row.x1, row.y1) >= 0 and row.x2 <= width and row.y2 <= height
    return inside and row.x2 - row.x1 > 0.01 and row.y2 - row.y1 > 0.01


@settings(max_examples=20, deadline=None)
@given(boxes=some_boxes())
def test_no_box_is_wrong_after_the_check_and_none_that_was_right_is_lost(boxes):
    left, issues = through_the_sieve(boxes)
    for row in left.itertuples():
        assert is_right(row)
        assert 0 < row.area < math.inf
    columns = ["image_id", *BOX_COLUMNS, "area"]
    names = pd.Index([f"n{n:02}" for n in range(len(boxes))])
    before = pd.DataFrame(boxes, columns=columns).set_index(names)
    after = left.set_index("annotation_id")
    assert after.index.is_monotonic_increasing  # in the order that they came in
    right = [row.Index for row in before.itertuples() if is_right(row)]
    assert set(right) <= set(after.index)
    same = before.loc[right, BOX_COLUMNS].astype(float) == after.loc[right, BOX_COLUMNS]
    assert same.all(axis=None)
    # What is lost or moved is named, each once.
    dropped = issues[issues["action"] == "dropped"]["annotation_id"]
    assert sorted(dropped) == sorted(set(before.index) - set(after.index))
    moved = (before.loc[after.index, BOX_COLUMNS] - after[BOX_COLUMNS]).abs().max(axis=1) > 0.01
    assert set(named(issues, "box_partly_outside")) == set(after.index[moved])
    # A second time there is nothing left to do.
    again, new = through_the_sieve(left)
    pd.testing.assert_frame_equal(again, left)
    assert not set(new["action"]) & {"dropped", "clipped", "the area of the box is used"}


@settings(max_examples=20, deadline=None)
@given(boxes=some_boxes(st.floats(-20, 120)))
def test_exchanged_corners_are_those_of_the_same_box(boxes):
    config = CheckConfig(rules={"box_inverted": "fix"})
    upright = [
        (i, min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2), abs(area))
        for i, x1, y1, x2, y2, area in boxes
    ]
    got, want = through_the_sieve(boxes, config)[0], through_the_sieve(upright, config)[0]
    columns = ["annotation_id", *BOX_COLUMNS]
    pd.testing.assert_frame_equal(got[columns], want[columns])


# --- one by one ----------------------------------------------------------------------------------


def test_an_area_that_is_none_becomes_that_of_the_box(tmp_path, data_set):
    found = data_set(*FINE, ("a", "dog", 1, 1, 9, 9), ("a", "cat", 60, 40, 68, 56))
    found.boxes["area"] = [0.0, math.nan, 20.0, -1.0]
    checked = inspect(found, tmp_path, ALL)
    assert checked.boxes["area"].tolist() == [20 * 30, 64 * 48, 20.0, 4 * 8]
    assert named(checked.issues, "area_not_positive") == ["0", "1", "3"]
    silent = CheckConfig(rules={"area_not_positive": "ignore"})
    quiet = inspect(found, tmp_path, silent)
    assert quiet.boxes.equals(checked.boxes)
    assert not named(quiet.issues, "area_not_positive")


def test_exchanging_corners_mends_the_area_that_came_of_them(tmp_path, data_set):
    found = data_set(*FINE, ("a", "dog", 30, 5, 10, 9), ("a", "cat", 30, 20, 10, 10))
    assert found.boxes["area"].tolist()[2:] == [-80, 200]
    found.boxes.loc[3, "area"] = 150.0  # a segment's
    checked = inspect(found, tmp_path, CheckConfig(rules={"box_inverted": "fix"}))
    assert checked.boxes["area"].tolist()[2:] == [80, 150]
    assert not named(checked.issues, "area_not_positive")


def test_a_sliver_inside_the_image_is_nothing(tmp_path, data_set):
    """It passes for a box, but is none any more once it is a share of 32 bits."""
    found = data_set(*FINE, ("a", "cat", -8, 5, 0.004, 20), ("a", "cat", 9, 9, 9.009, 20))
    checked = inspect(found, tmp_path, ALL)
    assert named(checked.issues, "box_outside") == ["2"]
    assert named(checked.issues, "box_without_area") == ["3"]
    assert len(checked.boxes) == 2


@pytest.mark.parametrize(
    ("resize", "scale"),
    [
        (None, (1, 1)),
        (Resize(height=96, width=32), (0.5, 2)),
        (Resize(short_side=24), (0.5, 0.5)),
        (Resize(short_side=480, long_side=16), (0.25, 0.25)),
    ],
)
def test_a_box_is_tiny_where_the_model_sees_it(tmp_path, data_set, resize, scale):
    sides = [(3, 30), (30, 3), (5, 5), (7, 30), (9, 9), (17, 17)]
    found = data_set(*(("a", "cat", 1, 1, 1 + w, 1 + h) for w, h in sides))
    checked = inspect(found, tmp_path, ALL, resize=resize)
    tiny = [str(n) for n, (w, h) in enumerate(sides) if min(w * scale[0], h * scale[1]) < 4]
    assert named(checked.issues, "tiny_box") == tiny
    assert len(checked.boxes) == len(sides)
    assert tiny
    none = inspect(found, tmp_path, CheckConfig(tiny=0), resize=resize)
    assert not named(none.issues, "tiny_box")


def test_regions_of_crowds_are_not_tiny_nor_copies_of_a_single_object(tmp_path, data_set):
    found = data_set(*FINE, FINE[0], ("b", "dog", 5, 5, 7, 7))
    found.boxes["iscrowd"] = [False, False, True, True]
    checked = inspect(found, tmp_path, ALL)
    assert checked.issues.empty


def test_a_copy_is_told_after_both_are_cut_to_their_image(tmp_path, data_set):
    twins = ("a", "cat", -5, 0, 10, 10), ("a", "cat", -9, 0, 10, 10)
    found = data_set(*FINE, *twins)
    checked = inspect(found, tmp_path, CheckConfig(rules={"duplicate_box": "drop"}))
    assert named(checked.issues, "duplicate_box") == ["3"]
    assert checked.boxes["annotation_id"].tolist() == ["0", "1", "2"]


def test_copies_are_those_that_pandas_finds():
    rng = np.random.default_rng(0)
    low = rng.integers(0, 3, (2000, 2)) * rng.choice([-0.0, 1.0], (2000, 1))
    high = low + rng.integers(5, 9, (2000, 2))
    boxes = [
        ("ab"[n % 2], *corners, 3.5) for n, corners in enumerate(np.hstack([low, high]).tolist())
    ]
    _, issues = through_the_sieve(boxes)
    repeated = pd.DataFrame(boxes).duplicated()
    assert named(issues, "duplicate_box") == [f"n{n:02}" for n in np.flatnonzero(repeated)]
    assert 100 < repeated.sum() < 2000
    assert np.signbit(low).any()


def test_ids_that_are_missing_or_repeat_are_numbered_and_one_of_each_is_enough(tmp_path, data_set):
    """Ids that restart in each image, or are not there at all."""
    boxes = *FINE, ("a", "dog", 1, 2, 30, 40)
    for ids in (["1", "1", "2"], ["", "", ""], ["7", "", "8"]):
        found = data_set(*boxes)
        found.boxes["annotation_id"] = ids
        checked = inspect(found, tmp_path, ALL)
        assert checked.boxes["annotation_id"].tolist() == ["1", "2", "3"]
        assert len(checked.issues) == 1
    found.boxes["annotation_id"] = ["9", "0", "x"]
    assert inspect(found, tmp_path, ALL).boxes["annotation_id"].tolist() == ["9", "0", "x"]


def test_gaps_in_ids_are_fine_and_a_stray_one_is_named(tmp_path, data_set):
    found = data_set(*FINE, ("4711", "cat", 1, 2, 3, 4), pictures=("a", "b", "900", "17"))
    checked = inspect(found, tmp_path, ALL)
    stray = checked.issues[checked.issues["severity"] == "warning"]
    assert stray[["rule", "image_id", "annotation_id"]].to_numpy().tolist() == [
        ["box_of_unknown_image", "4711", "2"]
    ]
    assert checked.images["image_id"].tolist() == ["a", "b", "900", "17"]


def test_boxes_of_an_image_that_is_left_out_go_with_it_and_are_counted(tmp_path, data_set, caplog):
    found = data_set(*FINE, ("a", "dog", 1, 2, 30, 40))
    (tmp_path / "a.png").unlink()
    with caplog.at_level("INFO", logger="detpipe.data"):
        checked = inspect(found, tmp_path, CheckConfig(rules={"missing_image": "drop"}))
    assert checked.boxes["annotation_id"].tolist() == ["1"]
    assert checked.issues["rule"].tolist() == ["missing_image", "class_without_boxes"]
    assert "1 of 2 images and 1 of 3 boxes can be used" in caplog.text


def test_many_findings_are_one_frame(tmp_path, data_set):
    """A hundred thousand wrong boxes cost about as much as right ones: no object for each."""
    rows = data_set(*FINE).boxes.iloc[np.arange(100_000) % 2]
    rows = rows.assign(x2=rows["x1"])
    log = IssueLog()
    log.add("info", "columns", value="first")
    log.add_rows("warning", "box_without_area", box_rows(rows, {"a": "a.png"}), action="dropped")
    log.add("info", "columns", value="last")
    assert len(log.rows) == 1
    table = log.table()
    assert len(table) == 100_002
    assert table["value"].iloc[[0, 1, 2, -1]].tolist() == [
        "first", "cat (4, 5, 4, 35)", "dog (0, 0, 0, 48)", "last",
    ]  # fmt: skip
    assert table["file"].iloc[1:3].tolist() == ["a.png", ""]
