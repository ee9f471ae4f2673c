from __future__ import annotations

import pandas as pd
import pytest

from detpipe.core.errors import TableError
from detpipe.core.tables import BOXES, DETECTIONS, IMAGES, SCORES, positions


def image(image_id="a", **changes):
    return {"image_id": image_id, "path": "a.jpg", "width": 4, "height": 3, "split": ""} | changes


def test_make_orders_columns_and_converts_kinds():
    table = IMAGES.make(
        pd.DataFrame([image(7, width=4.0)])[::-1][["split", "height", "width", "path", "image_id"]]
    )
    assert list(table.columns) == ["image_id", "path", "width", "height", "split"]
    assert table.loc[0, "image_id"] == "7"
    assert table["width"].dtype == "int64"


def test_empty_has_the_columns_and_dtypes_of_a_filled_one():
    assert IMAGES.empty().dtypes.equals(IMAGES.make([image()]).dtypes)
    assert IMAGES.make([]).dtypes.equals(IMAGES.empty().dtypes)


def test_a_missing_column_is_named_with_those_that_are_there():
    with pytest.raises(TableError, match=r"table 'images' lacks the column\(s\) split; it has"):
        IMAGES.make(pd.DataFrame([image()]).drop(columns="split"))


def test_all_mistakes_of_a_table_come_together():
    with pytest.raises(TableError) as error:
        IMAGES.make([image(width=1.5, height=None)])
    assert "column 'width' must be int: it holds fractions" in str(error.value)
    assert "column 'height' must be int: 1 value(s) are missing" in str(error.value)


def test_a_repeated_id_is_named():
    with pytest.raises(TableError, match="image_id must be unique: 1 row"):
        IMAGES.make([image("a"), image("a")])


def test_a_score_above_one_is_refused():
    row = dict.fromkeys(("x1", "y1", "x2", "y2"), 0) | {"image_id": "a", "class_name": "cat"}
    with pytest.raises(TableError, match=r"score must lie in 0..1"):
        DETECTIONS.make([row | {"score": 1.5}])


def test_a_missing_flag_is_no_false():
    row = dict.fromkeys(BOXES.columns, 0) | {"iscrowd": None}
    with pytest.raises(TableError, match="column 'iscrowd' must be bool: 1 value"):
        BOXES.make([row])


def test_a_score_without_a_number_stays_nan():
    row = {"dataset": "val", "task": "bbox", "metric": "AP", "class_name": "", "value": None}
    table = SCORES.make([row])
    assert table["value"].isna().all()


@pytest.mark.parametrize("dtype", ["str", object])
def test_positions_are_those_of_equal_texts(dtype):
    among = pd.Series(["b", "é", "", "猫 x", "a"], dtype=dtype)
    values = pd.Series(["a", "b", "e\u0301", "", "é", "猫 x", "A"], dtype=dtype)[::-1]
    expected = [among.tolist().index(text) if text in among.tolist() else -1 for text in values]
    assert positions(values, among).tolist() == expected
    assert positions(values.iloc[2:4], among.iloc[1:3]).tolist() == [0, 1]
    assert positions(values.iloc[:0], among).tolist() == []
    assert positions(values, among.iloc[:0]).tolist() == [-1] * len(values)
    other = pd.Series(["caf\udce9", "é"], dtype=object)  # a name that is not UTF-8 on disk
    names = pd.Series(["caf?", "é", "caf\udce9"], dtype=object)
    assert positions(other, names).tolist() == [2, 1]


def test_a_broken_rule_names_the_row_in_plain_numbers():
    with pytest.raises(TableError) as error:
        IMAGES.make([image(), image("b", path="b.jpg", width=-3)])
    assert "image_id='b', path='b.jpg', width=-3" in str(error.value)
