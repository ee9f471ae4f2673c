"""Checkpoints on disk: whole or not at all, written behind the training thread.

A checkpoint is one file, ``step_00000100.pt``, with the content ``{format, config, classes,
state, model, ema, optimizer, scaler, hooks, scalars, rng}``: tensors and plain types, loaded
without running any code from the file. ``index.json`` beside it says which is the best and the
final one, and holds checksums.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, cast

import torch

from detpipe.core.errors import CheckpointError, DamagedCheckpointError
from detpipe.train.content import FORMAT, load_checkpoint
from detpipe.train.files import Checksum, crc_of, make_folder, move_aside, whole_file

logger = logging.getLogger(__name__)

INDEX = "index.json"

_NAME = re.compile(r"step_(\d{8,})\.pt")


@dataclass
class Entry:
    """One line of the index.

    Attributes:
        step: the optimiser update after which it was taken.
        crc: zlib.crc32 of the file; None when the index was lost.
        best: whether it holds the best weights so far.
        metric: what the best was chosen by, at that step.
        final: whether the run ended here in good order.
    """

    step: int
    crc: int | None = None
    best: bool = False
    metric: float | None = None
    final: bool = False


class CheckpointFolder:
    """The checkpoints of one run.

    One thread writes; :meth:`save` returns as soon as the one before is on disk. What goes wrong
    while writing is raised by the next call.

    Args:
        path: the folder; made when the first checkpoint is saved.
        keep: how many of the newest stay, beside the best and the final one.
    """

    def __init__(self, path: Path, *, keep: int = 2) -> None:
        self.path = Path(path)
        self._keep = max(1, keep)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None

    def save(
        self,
        content: Mapping[str, Any],
        *,
        best: bool = False,
        metric: float | None = None,
        final: bool = False,
    ) -> None:
        """Writes ``content`` behind the caller; it must not change any more.

        Raises:
            CheckpointError: the checkpoint before could not be written.
        """
        self.wait()
        entry = Entry(content["state"]["step"], best=best, metric=metric, final=final)
        self._writing = self._writer.submit(self._write, content, entry)

    def mark_final(self, step: int) -> None:
        """The checkpoint of ``step``, already saved, is the end of the run."""
        self.wait()
        entries = self.entries()
        for entry in entries:
            entry.final = entry.step == step
        self._write_index(entries)

    def wait(self) -> None:
        """Until everything is on disk.

        Raises:
            CheckpointError: it could not be written.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def entries(self) -> list[Entry]:
        """What is there, oldest first; files count, the index only describes them."""
        files = {int(m[1]) for f in self.path.glob("step_*.pt") if (m := _NAME.fullmatch(f.name))}
        described = {entry.step: entry for entry in _read_index(self.path / INDEX)}
        return [described.get(step, Entry(step)) for step in sorted(files)]

    def file(self, step: int) -> Path:
        """The file of the checkpoint of ``step``."""
        return self.path / f"step_{step:08d}.pt"

    def latest(self) -> dict[str, Any] | None:
        """The content of the newest checkpoint that is whole, None if there is none.

        A damaged one is said, put aside as ``….damaged``, and the one before is taken.

        Raises:
            CheckpointError: there are checkpoints, and none can be read: now, or ever since one
                was put aside; or one is whole but of another program, or of another format.
        """
        for entry in reversed(self.entries()):
            try:
                return _load(self.file(entry.step), entry.crc)
            except DamagedCheckpointError as error:
                file = self.file(entry.step)
                logger.warning("%s; the checkpoint before it is taken", error)
                with _explained(f"'{file}' is damaged and could not be put aside"):
                    file.replace(file.with_suffix(".pt.damaged"))
        if damaged := self.damaged():
            raise CheckpointError(
                f"no checkpoint in '{self.path}' can be read; damaged are "
                f"{', '.join(file.name for file in damaged)}. Put whole copies back under the "
                f"names without '.damaged', or set train.resume to false for a new run"
            )
        return None

    def damaged(self) -> list[Path]:
        """What :meth:`latest` put aside, oldest first."""
        return sorted(self.path.glob("step_*.pt.damaged"))

    def best(self) -> dict[str, Any] | None:
        """The content of the best checkpoint, None if none was marked.

        Raises:
            CheckpointError: it is damaged.
        """
        best = (entry for entry in self.entries() if entry.best)
        return next((_load(self.file(entry.step), entry.crc) for entry in best), None)

    def mark_best(self, step: int, metric: float | None) -> bool:
        """The checkpoint of ``step`` is the best, whatever the index says; False without it.

        Raises:
            CheckpointError: the index could not be written.
        """
        entries = self.entries()
        if all(entry.step != step for entry in entries):
            return False
        for entry in entries:
            entry.best = entry.step == step
            entry.metric = metric if entry.best else None
        self._write_index(entries)
        return True

    @property
    def finished(self) -> bool:
        """Whether the newest checkpoint is the end of a run."""
        return any(entry.final for entry in self.entries()[-1:])

    def forget_after(self, step: int) -> None:
        """Removes checkpoints newer than ``step``, and half-written files: a run goes on there."""
        with _explained(f"'{self.path}' could not be made ready"):
            for entry in self.entries():
                if entry.step > step:
                    self.file(entry.step).unlink()
            for leftover in self.path.glob(".*.tmp"):
                leftover.unlink()
        entries = self.entries()
        for entry in entries:
            entry.final = False
        if entries:
            self._write_index(entries)

    def put_aside(self, *, name: str | None = None) -> Path | None:
        """Where what is in the folder is now, see :func:`move_aside`; None if it is empty.

        Args:
            name: what is added to the folder's name; one already there is replaced. None for
                the time, which replaces nothing.

        Raises:
            CheckpointError: it could not be moved.
        """
        if not self.path.is_dir():
            return None
        with _explained(
            f"what an earlier run left in '{self.path}' could not all be put aside; move it away "
            f"by hand"
        ):
            return move_aside(self.path, name=name)

    def prepare(self) -> None:
        """The folder is there and can be written in.

        Raises:
            CheckpointError: it cannot be.
        """
        make_folder(self.path)

    def clear(self) -> None:
        """Removes every checkpoint."""
        self.forget_after(-1)
        with _explained(f"'{self.path / INDEX}' could not be removed"):
            (self.path / INDEX).unlink(missing_ok=True)

    def _write(self, content: Mapping[str, Any], entry: Entry) -> None:
        entry.crc = self._write_content(content, self.file(entry.step))
        others = [other for other in self.entries() if other.step != entry.step]
        if entry.best:
            for other in others:
                other.best, other.metric = False, None
        newest = sorted([*others, entry], key=lambda e: e.step)
        kept = [e for e in newest if e.best or e.final or e in newest[-self._keep :]]
        self._write_index(kept)
        for other in newest:
            if other not in kept:
                self.file(other.step).unlink()

    def _write_content(self, content: Mapping[str, Any], path: Path) -> int:
        """Its checksum."""
        checked = None
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with whole_file(path) as file:
                checked = Checksum(file)
                torch.save(dict(content), cast("IO[bytes]", checked))
        except (OSError, RuntimeError) as error:  # torch says RuntimeError when the disk is full
            reason = checked.error if checked is not None and checked.error else error
            before = [other.step for other in self.entries() if self.file(other.step) != path]
            left = f"'{self.file(before[-1])}' is the newest one" if before else "there is no other"
            raise CheckpointError(
                f"checkpoint '{path}' could not be written: {reason}; {left}. Make room, then "
                f"go on with train.resume"
            ) from error
        return checked.value

    def _write_index(self, entries: Sequence[Entry]) -> None:
        lines = [asdict(entry) for entry in entries]
        text = json.dumps({"format": FORMAT, "checkpoints": lines}, indent=1)
        index = self.path / INDEX
        with _explained(f"'{index}' could not be written"), whole_file(index) as file:
            file.write(text.encode())


def _load(file: Path, known: int | None) -> dict[str, Any]:
    """The content of a file whose checksum is ``known``, if it is."""
    try:
        crc = crc_of(file) if known is not None else None
    except PermissionError as error:
        raise CheckpointError(f"checkpoint '{file}' must not be read ({error})") from error
    except OSError as error:
        raise DamagedCheckpointError(f"checkpoint '{file}' is damaged ({error})") from error
    if crc != known:
        raise DamagedCheckpointError(f"checkpoint '{file}' is damaged (its checksum is another)")
    return load_checkpoint(file)


def _read_index(file: Path) -> list[Entry]:
    try:
        text = file.read_text()
        return [Entry(**entry) for entry in json.loads(text)["checkpoints"]]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CheckpointError(f"'{file}' cannot be read: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        logger.warning(
            "'%s' cannot be read (%s): which checkpoint is the best is not known any more",
            file, error,
        )  # fmt: skip
        return []


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """What the system refuses is said together with what it was for."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{what}: {error}") from error
