"""Console, Json, Csv, TensorBoard: what a reader finds, also after a resume and a crash."""

from __future__ import annotations

import csv
import io
import json
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


def test_console_without_a_terminal_logs_plain_lines(capsys, caplog) -> None:
    caplog.set_level("INFO")
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
