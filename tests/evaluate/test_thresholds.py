"""The thresholds that ``predict`` takes from the last report."""

from __future__ import annotations

from pathlib import Path

import pytest

from detpipe.core.errors import DataError
from detpipe.evaluate.thresholds import read_thresholds

HEAD = "dataset,class_name,score_threshold,precision,recall,f1,weights\n"


def written(folder: Path, *rows: str) -> Path:
    file = folder / "thresholds.csv"
    file.write_text(HEAD + "".join(f"{row},90,90,90,w1\n" for row in rows))
    return file


def test_each_class_has_its_own_of_val_and_one_without_that_of_all(tmp_path: Path) -> None:
    file = written(tmp_path, "val,,0.4", "val,cat,0.7", "val,dog,", "test,,0.1", "test,cat,0.2")
    found = read_thresholds(file, ["cat", "dog", "cow"], weights="w1")
    assert found == {"cat": 0.7, "dog": 0.4, "cow": 0.4}


def test_test_serves_where_val_has_none_and_it_is_said(tmp_path: Path, caplog) -> None:
    file = written(tmp_path, "val,,", "test,,0.1", "test,cat,0.2")
    assert read_thresholds(file, ["cat"], weights="w1") == {"cat": 0.2}
    assert "optimistic" in caplog.text


@pytest.mark.parametrize(
    "rows, said",
    [
        (["val,,7"], "7 is no score from 0 to 1"),
        (["val,,abc"], "cannot be read"),
        ([], "no threshold for val or test"),
    ],
)
def test_a_file_that_was_edited_is_refused(tmp_path: Path, rows: list[str], said: str) -> None:
    with pytest.raises(DataError, match=said):
        read_thresholds(written(tmp_path, *rows), ["cat"], weights="w1")


def test_an_empty_file_and_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.csv").write_text("")
    for name in ("empty.csv", "none.csv"):
        with pytest.raises(DataError, match="evaluate"):
            read_thresholds(tmp_path / name, ["cat"], weights="w1")


def test_those_of_other_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="other weights"):
        read_thresholds(written(tmp_path, "val,,0.5"), ["cat"], weights="w2")
