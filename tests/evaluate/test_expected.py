"""The file of expected results: written, read back, edited by a person, broken."""

from __future__ import annotations

import datetime

import pytest
import yaml

from detpipe.core.errors import ConfigError
from detpipe.core.tables import SCORES, VERDICT
from detpipe.evaluate.config import VerifyConfig
from detpipe.evaluate.expected import read_expected, write_expected
from detpipe.evaluate.verify import verify

NAN = float("nan")


def table(*rows):
    return SCORES.make([dict(zip(SCORES.columns, row, strict=True)) for row in rows])


@pytest.fixture
def scores():
    return table(
        ("val", "bbox", "AP", "", 38.70777), ("val", "bbox", "APs", "", NAN),
        ("val", "bbox", "AP", "cat", 20.0), ("test", "bbox", "AP", "", 1 / 3),
    )  # fmt: skip


@pytest.fixture
def file(tmp_path):
    return tmp_path / "expected/mine.yml"


def test_finite_numbers_of_all_classes_are_written_a_line_each(scores, file):
    write_expected(file, scores, VERDICT.empty(), tolerance=0.5)
    lines = file.read_text("utf-8").splitlines()
    assert lines[0].startswith("#") and datetime.date.today().isoformat() in lines[0]
    assert [line for line in lines if not line.startswith("#")] == [
        "- {dataset: val, task: bbox, metric: AP, value: 38.71, tolerance: 0.5}",
        "- {dataset: test, task: bbox, metric: AP, value: 0.33, tolerance: 0.5}",
    ]
    assert [path.name for path in file.parent.iterdir()] == ["mine.yml"]


@pytest.mark.parametrize("tolerance", [0, 0.001, 0.005, 0.5])
def test_the_scores_that_were_written_pass_and_others_do_not(scores, file, tolerance):
    write_expected(file, scores, VERDICT.empty(), tolerance=tolerance)
    written = read_expected(file)
    assert written[0].value == (38.71 if tolerance >= 0.005 else 38.70777)
    assert verify(scores, VerifyConfig(), written=written)["ok"].tolist() == [True, True]
    worse = scores.assign(value=scores["value"] - 2 * tolerance - 0.01)
    assert verify(worse, VerifyConfig(), written=written)["ok"].tolist() == [False, False]


def test_names_that_yaml_takes_for_something_else_come_back(file):
    names = ["off", "null", "1", "0x10", "a: b", "- #x", "2026-01-01", "été", "x" * 200]
    write_expected(
        file, table(*(("1", "no", name, "", 5.0) for name in names)), VERDICT.empty(), tolerance=1,
        metrics=["*"],
    )  # fmt: skip
    back = read_expected(file)
    assert [expectation.metric for expectation in back] == names
    assert {(expectation.dataset, expectation.task) for expectation in back} == {("1", "no")}


def test_what_was_there_is_replaced_and_that_is_said(scores, file, caplog):
    caplog.set_level("INFO")
    write_expected(file, scores, VERDICT.empty(), tolerance=0.5)
    assert "2 results, each ± 0.5, are written" in caplog.text
    assert "in place of" not in caplog.text
    write_expected(file, scores.assign(value=5.0), VERDICT.empty(), tolerance=0.5)
    assert "in place of what was there" in caplog.text
    assert [expectation.value for expectation in read_expected(file)] == [5.0, 5.0]


def test_a_run_that_misses_something_else_leaves_the_file_as_it_is(scores, file, caplog):
    write_expected(file, scores, VERDICT.empty(), tolerance=0.5)
    before = file.read_bytes()
    missed = verify(scores, VerifyConfig(expected=[["bbox", "AP", 99, 1]]))
    write_expected(file, scores.assign(value=5.0), missed, tolerance=0.5)
    assert file.read_bytes() == before
    assert "is not written: the run misses what is expected of it" in caplog.text


@pytest.mark.parametrize(
    "rows, why",
    [
        ((), "there are no scores"),
        ((("val", "bbox", "AP", "", NAN),), "no score of 'AP', 'AP50' is a number"),
    ],
)
def test_without_a_number_nothing_is_written(rows, why, file, caplog):
    write_expected(file, table(*rows), VERDICT.empty(), tolerance=0.5)
    assert not file.exists() and why in caplog.text


@pytest.mark.parametrize(
    "metrics, written",
    [
        (["AP", "AP50"], ["AP", "AP50"]), (["AP?0"], ["AP50"]), (["A*", "loss"], ["AP", "AP50",
         "APs", "AR[1]", "loss"]), (["AR[1]"], ["AR[1]"]), (["ap"], []),
    ],
)  # fmt: skip
def test_metrics_are_written_by_name_or_pattern(metrics, written, file):
    rows = [("loss" if m == "loss" else "bbox", m) for m in ("AP", "AP50", "APs", "AR[1]", "loss")]
    scores = table(*(("test", task, metric, "", 5.0) for task, metric in rows))
    write_expected(file, scores, VERDICT.empty(), tolerance=1, metrics=metrics)
    assert [expectation.metric for expectation in read_expected(file)] == written


def test_what_is_written_by_default_is_what_the_configuration_says(file):
    scores = table(*(("test", "bbox", m, "", 5.0) for m in ("AP", "AP50", "AP75", "score_x")))
    write_expected(file, scores, VERDICT.empty(), tolerance=1)
    assert [e.metric for e in read_expected(file)] == VerifyConfig().metrics == ["AP", "AP50"]


def test_no_file_and_an_empty_one_expect_nothing(file):
    assert read_expected(file) == []
    file.parent.mkdir()
    file.write_text("# nothing\n")
    assert read_expected(file) == []


def test_a_person_may_write_every_form_into_it(file):
    file.parent.mkdir()
    file.write_text(
        "- [bbox, AP, 38.5, 0.2]\n- metric: AP\n  min: 3\n"
        "- {metric: AP, baseline: best, tolerance: 1}\n"
    )
    first, second, third = read_expected(file)
    assert (first.value, second.min, third.baseline) == (38.5, 3, "best")


@pytest.mark.parametrize(
    "text, says",
    [
        ("- {metric: AP, min: 3}\n- {metric: AP, min: 3\n", ["line 3", "cannot be read"]),
        ("metric: AP\n", ["must be a list of expectations"]),
        ("just words", ["must be a list of expectations"]),
        ("# x\n- {metric: AP}\n- {metric: AP, mim: 3}\n- 7\n",
         ["line 2: what is expected is one of", "line 3: unknown key 'mim': did you mean 'min'?",
          "line 4: "]),
        ("- {metric: AP, value: much, tolerance: 1}\n", ["line 1: value: "]),
        ("- {metric: 2026-99-99, min: 1}\n", ["cannot be read"]),
        ("- !!python/object:os.system {metric: AP}\n", ["line 1", "cannot be read"]),
    ],
)  # fmt: skip
def test_a_broken_file_is_an_error_with_its_name_and_the_lines(file, text, says):
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        read_expected(file)
    assert all(part in str(error.value) for part in [str(file), *says])


def test_a_file_that_is_no_text_or_a_folder_is_an_error(file):
    file.mkdir(parents=True)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_expected(file)
    file.rmdir()
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_expected(file)


def test_a_write_that_fails_leaves_the_old_file(scores, file, monkeypatch):
    write_expected(file, scores, VERDICT.empty(), tolerance=0.5)
    before = file.read_bytes()

    def full(*args, **options):
        raise OSError("no space left")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(OSError, match="no space"):
        write_expected(file, scores.assign(value=1.0), VERDICT.empty(), tolerance=0.5)
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == ["mine.yml"]
    assert yaml.safe_load(before.decode())
