"""Writers of scalars: console, JSON lines, csv, TensorBoard."""

from __future__ import annotations

import csv
import io
import json
import logging
import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from time import time
from typing import IO, TYPE_CHECKING, Annotated, Any

from pydantic import Field

from detpipe.hooks.record import Writer, clock
from detpipe.train.files import whole_file

if TYPE_CHECKING:
    from tensorboard.summary.writer.event_file_writer import EventFileWriter  # type: ignore[import-untyped]

logger = logging.getLogger(__name__)

FileName = Annotated[str, Field(pattern=r"^[^/\\]+$")]
"""In the folder itself: no path."""


class Console(Writer):
    """One log line a row, without NaN and values by class.

    Args:
        total_steps: of the run, given by the program.
    """

    def __init__(self, *, total_steps: int = 0) -> None:
        self._total = total_steps

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Logs the row."""
        logger.info(console_line(step, scalars, total=self._total))


def console_line(step: int, scalars: Mapping[str, float], *, total: int = 0) -> str:
    """A row as one line for people."""
    parts = [f"step {step}/{total}" if total else f"step {step}"]
    row = dict(scalars)
    if "train/loss" in row:
        parts.append(f"epoch {row.pop('train/epoch', math.nan):.2f}")
        parts.append(f"loss {row.pop('train/loss'):.4g}")
        names = [name for name in row if name.startswith("train/loss_")]
        losses = [f"{name.removeprefix('train/loss_')} {row.pop(name):.4g}" for name in names]
        if len(losses) > 1:
            parts[-1] += f" ({', '.join(losses)})"
        if "train/lr" in row:
            parts.append(f"lr {row.pop('train/lr'):.3g}")
        if "time/step" in row:
            parts.append(f"{row.pop('time/step'):.3g} s/step")
            parts[-1] += f" (data {row.pop('time/data', math.nan):.2g})"
            row.pop("time/images_per_second", None)
        if "time/eta" in row:
            parts.append(f"{clock(row.pop('time/eta'))} left")
    parts += [
        f"{name} {value:.4g}"
        for name, value in row.items()
        if not (_is_of_a_class(name) or _is_a_candidate(name) or math.isnan(value))
    ]
    return "  ".join(parts)


class Json(Writer):
    """One JSON object a row in ``metrics.jsonl``; a value that is no number is ``null``.

    Args:
        folder: where the file goes, given by the program.
        name: of the file.
    """

    def __init__(self, folder: Path, *, name: FileName = "metrics.jsonl") -> None:
        self.path = Path(folder) / name
        self._file: IO[str] | None = None

    def open(self, *, start_step: int) -> None:
        """Keeps the rows up to ``start_step``."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        rows = [row for row in self.rows() if row["step"] <= start_step]
        with whole_file(self.path) as file:
            file.writelines(f"{json.dumps(row)}\n".encode() for row in rows)
        self._file = self.path.open("a", encoding="utf-8")

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Appends a line."""
        assert self._file is not None  # noqa: S101 - open() comes first
        values = {k: v if math.isfinite(v) else None for k, v in scalars.items()}
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()

    def rows(self) -> list[dict[str, Any]]:
        """What is in the file, without lines that are no rows (a crash may cut one short)."""
        lines = self.path.read_bytes().splitlines() if self.path.exists() else []
        rows = [row for line in lines if (row := _row_of_json(line)) is not None]
        _say_left_out(self.path, len(lines) - len(rows))
        return rows


class Csv(Writer):
    """``metrics.csv``: a column for the step and one for each scalar.

    Columns that appear later (evaluation results) are added to the rows before, empty.

    Args:
        folder: where the file goes, given by the program.
        name: of the file.
    """

    def __init__(self, folder: Path, *, name: FileName = "metrics.csv") -> None:
        self.path = Path(folder) / name
        self._columns: list[str] = []

    def open(self, *, start_step: int) -> None:
        """Keeps the rows up to ``start_step``."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        rows = [row for row in self._read() if int(row["step"]) <= start_step]
        self._columns = ["step", *(c for c in (rows[0] if rows else ()) if c != "step")]
        self._rewrite(rows)

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Appends a line; new columns rewrite the file."""
        new = [name for name in scalars if name not in self._columns]
        if new:
            self._columns += new
            self._rewrite(self._read())
        with self.path.open("a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, self._columns).writerow({"step": step, **scalars})

    def _read(self) -> list[dict[str, str]]:
        if not self.path.exists():
            return []
        text = self.path.read_bytes().decode("utf-8", errors="replace")
        whole = text[: text.rfind("\n") + 1]  # a crash cuts the last line short
        file = io.StringIO(whole, newline="")
        try:
            columns = next(csv.reader(file), [])  # a name may have commas and line breaks
        except csv.Error:  # it is too long for a header
            columns = []
        lines = list(file)
        rows = [row for line in lines if (row := _row_of_csv(line, columns)) is not None]
        _say_left_out(self.path, len(lines) - len(rows))
        return rows

    def _rewrite(self, rows: Iterable[Mapping[str, str]]) -> None:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self._columns, restval="")
        writer.writeheader()
        writer.writerows(rows)
        with whole_file(self.path) as file:
            file.write(text.getvalue().encode())


class TensorBoard(Writer):
    """TensorBoard's event files: one event a row.

    Args:
        folder: they go into its ``tensorboard``, given by the program.
    """

    def __init__(self, folder: Path) -> None:
        self.path = Path(folder) / "tensorboard"
        self._events: EventFileWriter | None = None

    def open(self, *, start_step: int) -> None:
        """Begins a new file; rows after ``start_step`` in older ones are void."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # type: ignore[import-untyped]
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if start_step == 0:
            shutil.rmtree(self.path, ignore_errors=True)
        self._events = EventFileWriter(str(self.path))
        # TensorBoard drops what an interrupted run wrote from this step on.
        start = SessionLog(status=SessionLog.START)
        self._events.add_event(Event(wall_time=time(), step=start_step + 1, session_log=start))

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Appends one event."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]

        assert self._events is not None  # noqa: S101 - open() comes first
        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self._events.add_event(Event(wall_time=time(), step=step, summary=Summary(value=values)))

    def close(self) -> None:
        """Closes the file."""
        if self._events is not None:
            self._events.close()


def _row_of_json(line: bytes) -> dict[str, Any] | None:
    """None if it is no object of a whole ``step`` and of numbers or ``null``."""
    try:
        row = json.loads(line.decode())
    except ValueError:
        return None
    if not isinstance(row, dict) or type(row.get("step")) is not int:
        return None
    whole = all(value is None or type(value) in (int, float) for value in row.values())
    return row if whole else None


def _row_of_csv(line: str, columns: Sequence[str]) -> dict[str, str] | None:
    """None if it is no row of a whole ``step`` and of numbers or nothing."""
    cells = line.rstrip("\r\n").split(",")
    row = dict(zip(columns, cells, strict=False))
    try:
        int(row["step"])
        for cell in filter(None, cells):
            float(cell)
    except (KeyError, ValueError):
        return None
    return row if len(cells) == len(columns) else None


def _say_left_out(path: Path, lines: int) -> None:
    if lines:
        logger.warning(
            "'%s': %d of its lines are no rows, or were cut short by a crash; they are left out",
            path, lines,
        )  # fmt: skip


def _is_a_candidate(name: str) -> bool:
    """``val_ema/bbox/AP``: one of two that stand beside each other; the better is ``val/…``."""
    return name.split("/", maxsplit=1)[0].endswith(("_ema", "_model"))


def _is_of_a_class(name: str) -> bool:
    """``val/bbox/AP/person``; there may be hundreds."""
    return name.count("/") > 2
