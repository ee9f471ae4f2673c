"""Console, Json, Csv, TensorBoard: what a reader finds, also after a resume and a crash."""

from __future__ import annotations

import csv
import io
import json
import logging
import math
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from detpipe.hooks.writers import Console, Csv, Json, TensorBoard, console_line

ROWS = [
    (2, {"train/loss": 3.5, "train/lr": 0.1}),
    (3, {"val/bbox/AP": 41.25}),
    (4, {"train/loss": 2.5, "train/lr": 0.05}),
]


def written(writer, rows=ROWS, *, start_step: int = 0) -> None:
    writer.open(start_step=start_step)
    for step, row in rows:
        writer.write(step, row)
    writer.close()


def test_json(tmp_path: Path) -> None:
    writer = Json(tmp_path / "new")
    written(writer, [*ROWS, (5, {"val/bbox/AP": math.nan})])
    rows = [json.loads(line) for line in writer.path.read_text().splitlines()]
    assert rows == [{"step": s, **r} for s, r in ROWS] + [{"step": 5, "val/bbox/AP": None}]


@pytest.mark.parametrize("make", [Json, Csv])
@pytest.mark.parametrize("crash", [False, True])
def test_a_resume_takes_later_rows_away(tmp_path: Path, make, crash: bool) -> None:
    writer = make(tmp_path)
    written(writer)
    if crash:
        with writer.path.open("a") as file:
            file.write('{"step": 3, "tra' if make is Json else "3,1")
    written(make(tmp_path), [(4, {"train/loss": 9.0})], start_step=3)
    text = writer.path.read_text()
    rows = writer.rows() if make is Json else list(csv.DictReader(io.StringIO(text)))
    assert [int(row["step"]) for row in rows] == [2, 3, 4]
    assert float(rows[-1]["train/loss"]) == 9.0


DAMAGED = {
    Json: [
        b"\0" * 200, b"[]", b'{"foo": 1}', b'{"step": 2, "x": "\xff\xfe"}', b"3", b"null",
        b'{"step": true}', b'{"step": 2.5}', b'{"step": 2, "x": "text"}', b'{"step": 2, "x": [1]}',
        b'{"step": 2, "tra', b"",
    ],
    Csv: [
        b"\0" * 200, b"\0" * 200_000, b"two,1,2,3", b"2.5,1,2,3", b",1,2,3", b"2,\xff,2,3",
        b"2,text,2,3", b"2,1", b"2,1,2,3,4", b'"2,1,2,3', b"",
    ],
}  # fmt: skip


@pytest.mark.parametrize("make", [Json, Csv])
def test_lines_that_are_no_rows_are_left_out(
    tmp_path: Path, make, caplog: pytest.LogCaptureFixture
) -> None:
    """Zeros after a power failure, another program's lines, another encoding."""
    written(make(tmp_path))
    path = make(tmp_path).path
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    first = 1 if make is Csv else 0  # after the header
    bad = [line + lines[0][-1:] for line in DAMAGED[make]]
    path.write_bytes(b"".join([*lines[: first + 1], *bad, *lines[first + 1 :]]))
    written(make(tmp_path), [], start_step=4)
    assert path.read_bytes() == whole
    said = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len(said) == 1
    assert f"'{path}': {len(bad)} of its lines are no rows" in said[0]


@pytest.mark.parametrize("header", [b"\0" * 200_000, b"a,b", b'"', b"\xff\xfe"])
def test_a_table_without_its_header_begins_anew(tmp_path: Path, header: bytes) -> None:
    path = Csv(tmp_path).path
    path.write_bytes(header + b"\r\n2,3.5\r\n")
    written(Csv(tmp_path), [(4, {"train/loss": 9.0})], start_step=3)
    assert path.read_text().splitlines() == ["step,train/loss", "4,9.0"]


def test_names_with_commas_and_line_breaks_survive_a_resume(tmp_path: Path) -> None:
    name = 'a "b",\nc\u2028d'
    written(Csv(tmp_path), [(1, {name: 1.0}), (2, {name: math.inf}), (3, {name: math.nan})])
    written(Csv(tmp_path), [(4, {name: 4.0})], start_step=3)
    rows = list(csv.DictReader(Csv(tmp_path).path.open(newline="", encoding="utf-8")))
    assert [(row["step"], row[name]) for row in rows] == [
        ("1", "1.0"), ("2", "inf"), ("3", "nan"), ("4", "4.0"),
    ]  # fmt: skip


@pytest.mark.parametrize("make", [Json, Csv])
def test_a_new_run_begins_anew(tmp_path: Path, make) -> None:
    written(make(tmp_path))
    writer = make(tmp_path)
    written(writer, [(1, {"other": 1.0})])
    text = writer.path.read_text()
    assert "other" in text
    assert "loss" not in text


def test_csv_columns_may_come_later(tmp_path: Path) -> None:
    writer = Csv(tmp_path)
    written(writer, [*ROWS, (5, {'a "quoted", name': 1.0})])
    rows = list(csv.DictReader(writer.path.open(newline="")))
    assert list(rows[0]) == ["step", "train/loss", "train/lr", "val/bbox/AP", 'a "quoted", name']
    assert [row["val/bbox/AP"] for row in rows] == ["", "41.25", "", ""]
    assert [row["train/loss"] for row in rows] == ["3.5", "", "2.5", ""]
    assert rows[3]['a "quoted", name'] == "1.0"


def test_csv_keeps_full_precision(tmp_path: Path) -> None:
    value = 0.1 + 0.2
    written(Csv(tmp_path), [(1, {"x": value})])
    assert float(next(csv.DictReader((tmp_path / "metrics.csv").open()))["x"]) == value


def read_events(path: Path, name: str) -> list[tuple[int, float]]:
    return [(e.step, e.value) for e in EventAccumulator(str(path)).Reload().Scalars(name)]


def test_tensorboard(tmp_path: Path) -> None:
    writer = TensorBoard(tmp_path)
    written(writer)
    assert read_events(writer.path, "train/loss") == [(2, 3.5), (4, 2.5)]
    assert read_events(writer.path, "val/bbox/AP") == [(3, 41.25)]
    written(TensorBoard(tmp_path), [(4, {"train/loss": 9.0})], start_step=3)
    assert read_events(writer.path, "train/loss") == [(2, 3.5), (4, 9.0)]
    written(TensorBoard(tmp_path), [(1, {"train/loss": 1.0})])
    assert read_events(writer.path, "train/loss") == [(1, 1.0)]


def test_console_line() -> None:
    row = {
        "train/epoch": 1.5, "train/loss": 1.25, "train/loss_cls": 1.0, "train/loss_box": 0.25,
        "train/lr": 0.001, "time/step": 0.35, "time/data": 0.01, "time/eta": 3723.0,
        "time/images_per_second": 22.0, "memory/gpu_peak_mb": 512.0,
    }  # fmt: skip
    assert console_line(40, row, total=250) == (
        "step 40/250  epoch 1.50  loss 1.25 (cls 1, box 0.25)  lr 0.001  "
        "0.35 s/step (data 0.01)  1:02:03 left  memory/gpu_peak_mb 512"
    )
    scores = {"val/bbox/AP": 41.2345, "val/bbox/AP/red and/or [blue]": 1.0}
    assert console_line(40, scores, total=250) == "step 40/250  val/bbox/AP 41.23"


def test_console_without_a_terminal_logs_plain_lines(capsys, caplog, monkeypatch) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(logging.getLogger(), "handlers", [caplog.handler])
    written(Console(total_steps=4))
    assert [record.getMessage()[:9] for record in caplog.records] == [
        "step 2/4 ",
        "step 3/4 ",
        "step 4/4 ",
    ]
    output = capsys.readouterr()
    assert output.out == ""
    assert "\x1b" not in caplog.text
    assert "\r" not in caplog.text
