"""Checkpoints: whole or not at all, the newest good one found, nothing foreign loaded."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from detpipe.core.errors import CheckpointError
from detpipe.train.checkpoint import CheckpointFolder
from detpipe.train.content import FORMAT, load_checkpoint, to_cpu
from detpipe.train.files import whole_file
from detpipe.train.resume import make_room


def content(step: int) -> dict[str, Any]:
    return {
        "format": 1,
        "state": {"step": step},
        "model": {"w": torch.full((1000,), float(step))},
        "ema": None,
    }


def filled(path: Path, *steps: int, keep: int = 10) -> CheckpointFolder:
    folder = CheckpointFolder(path, keep=keep)
    for step in steps:
        folder.save(content(step))
    folder.wait()
    return folder


def damage(file: Path, how: str) -> None:
    data = bytearray(file.read_bytes())
    if how == "truncated":
        data = data[: len(data) // 2]
    elif how == "empty":
        data = bytearray()
    else:
        data[len(data) // 2] ^= 0xFF
    file.write_bytes(bytes(data))


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    folder = filled(tmp_path / "new" / "folder", 5, 10)
    assert folder.latest()["state"] == {"step": 10}
    assert torch.equal(folder.latest()["model"]["w"], torch.full((1000,), 10.0))
    assert CheckpointFolder(tmp_path / "nothing").latest() is None


def test_newest_best_and_final_stay(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=2)
    for step in (1, 2, 3, 4, 5):
        folder.save(content(step), best=step in (1, 2), metric=step / 10)
    folder.save(content(6), final=True)
    folder.wait()
    assert [entry.step for entry in folder.entries()] == [2, 5, 6]
    assert folder.best()["state"]["step"] == 2
    assert folder.finished
    again = CheckpointFolder(tmp_path, keep=1)
    assert next((e.step, e.best, e.metric, e.final) for e in again.entries()) == (
        2,
        True,
        0.2,
        False,
    )
    assert sorted(f.name for f in tmp_path.iterdir()) == [
        "index.json", "step_00000002.pt", "step_00000005.pt", "step_00000006.pt",
    ]  # fmt: skip


def test_the_best_is_not_the_point_to_resume_from(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.save(content(1), best=True)
    folder.save(content(2))
    folder.wait()
    assert folder.latest()["state"]["step"] == 2


@pytest.mark.parametrize("how", ["truncated", "empty", "one byte"])
def test_a_damaged_newest_gives_way_to_the_one_before(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = filled(tmp_path, 1, 2, 3)
    damage(folder.file(3), how)
    assert folder.latest()["state"]["step"] == 2
    assert "step_00000003.pt' is damaged" in caplog.text
    assert "the checkpoint before it is taken" in caplog.text
    assert (tmp_path / "step_00000003.pt.damaged").exists()


def test_all_damaged_is_an_error(tmp_path: Path) -> None:
    folder = filled(tmp_path, 1, 2)
    for step in (1, 2):
        damage(folder.file(step), "truncated")
    for _ in range(2):  # the first time puts them aside, which must not hide them
        with pytest.raises(CheckpointError, match=r"no checkpoint in .* can be read") as caught:
            folder.latest()
        for step in (1, 2):
            assert f"step_{step:08d}.pt.damaged" in str(caught.value)
        assert "train.resume to false" in str(caught.value)
    make_room(folder)
    assert folder.latest() is None
    (aside,) = [other for other in tmp_path.parent.glob(f"{tmp_path.name}_*") if other.is_dir()]
    assert len(CheckpointFolder(aside).damaged()) == 2


@pytest.mark.parametrize("index", [None, "", "{", '{"checkpoints": [{"other": 1}]}'])
def test_a_lost_index_loses_no_checkpoint(tmp_path: Path, index: str | None) -> None:
    folder = filled(tmp_path, 1, 2)
    if index is None:
        (tmp_path / "index.json").unlink()
    else:
        (tmp_path / "index.json").write_text(index)
    assert folder.latest()["state"]["step"] == 2


def test_nothing_half_written_has_a_checkpoints_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = filled(tmp_path, 1)

    def full_disk(content: Any, file: Any) -> None:
        file.write(b"half a checkp")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full_disk)
    folder.save(content(2))
    with pytest.raises(CheckpointError, match="No space left on device"):
        folder.save(content(3))
    assert sorted(f.name for f in tmp_path.iterdir()) == ["index.json", "step_00000001.pt"]
    assert folder.latest()["state"]["step"] == 1


FULL = """
    import resource, sys
    from pathlib import Path
    import torch
    from detpipe.core.errors import CheckpointError
    from detpipe.train.checkpoint import CheckpointFolder

    def content(step, size):
        return {"format": 1, "state": {"step": step}, "model": {"w": torch.zeros(size)}}

    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    for steps in ([3], [1, 3]):
        folder = CheckpointFolder(Path(sys.argv[1]) / str(len(steps)))
        for step in steps:
            folder.save(content(step, 10 if step == 1 else 100_000))
        try:
            folder.wait()
        except CheckpointError as error:
            print(error)
"""


def test_what_torch_says_when_the_disk_is_full_is_explained(tmp_path: Path) -> None:
    """A limit on the size of files stands for the end of the disk: torch raises RuntimeError."""
    command = [sys.executable, "-c", textwrap.dedent(FULL), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    alone, after_another = done.stdout.splitlines()
    file = tmp_path / "1" / "step_00000003.pt"
    assert f"checkpoint '{file}' could not be written: [Errno 27] File too large" in alone
    assert "there is no other" in alone
    assert "step_00000001.pt' is the newest one" in after_another
    assert sorted(f.name for f in (tmp_path / "2").iterdir()) == ["index.json", "step_00000001.pt"]


def test_an_index_that_cannot_be_written_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = filled(tmp_path, 1)

    def full_disk(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(CheckpointError, match=r"index\.json' could not be written: .*No space"):
        folder.mark_final(1)


def test_it_is_on_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fsync of the file, then rename, then fsync of the folder."""
    events: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def noted_fsync(number: int) -> None:
        kind = Path(f"/proc/self/fd/{number}").readlink()
        events.append(f"fsync {'folder' if kind.is_dir() else 'file'}")
        fsync(number)

    def noted_replace(self: Path, target: Path) -> Path:
        events.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    with whole_file(tmp_path / "file") as file:
        file.write(b"all of it")
        assert not (tmp_path / "file").exists()
    assert events == ["fsync file", "rename", "fsync folder"]


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("evil was here",))


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda f: f.write_bytes(pickle.dumps({"model": Evil()})), "no detpipe checkpoint"),
        (lambda f: torch.save({"format": 1, "state": Evil()}, f), "no detpipe checkpoint"),
        (lambda f: torch.save({"state_dict": {}}, f), "no detpipe checkpoint.*model.weights"),
        (lambda f: torch.save({"format": 99, "state": {}}, f), "format 99.*reads format 1"),
        (lambda f: f.write_text("not even close"), "checkpoint"),
    ],
)
def test_foreign_files_are_refused(tmp_path: Path, write: Any, message: str, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "step_00000001.pt"
    write(file)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(file)
    assert not (tmp_path / "evil was here").exists()


def test_going_on_at_an_earlier_step_forgets_later_ones(tmp_path: Path) -> None:
    folder = filled(tmp_path, 1, 2, 3)
    folder.mark_final(3)
    (tmp_path / ".step_00000004.pt.123.tmp").write_text("killed while writing")
    folder.forget_after(2)
    assert [entry.step for entry in folder.entries()] == [1, 2]
    assert not folder.finished
    assert not list(tmp_path.glob(".*"))


def test_an_unfinished_run_is_put_aside(tmp_path: Path) -> None:
    folder = filled(tmp_path / "checkpoints", 1)
    aside = folder.put_aside()
    assert aside.parent == tmp_path
    assert CheckpointFolder(aside).latest()["state"]["step"] == 1
    assert folder.latest() is None
    assert folder.put_aside() is None


def test_a_copy_is_a_copy_and_shares_what_was_shared() -> None:
    weights = torch.arange(4.0)
    copied = to_cpu({"a": weights, "b": [weights.detach(), (weights.view(2, 2), 3)], "c": "x"})
    weights.zero_()
    assert copied["a"].tolist() == [0, 1, 2, 3]
    assert copied["a"] is copied["b"][0]
    assert copied["b"][1][0].tolist() == [[0, 1], [2, 3]]
    assert (copied["b"][1][1], copied["c"]) == (3, "x")


@pytest.mark.parametrize("index", [True, False], ids=["with index", "index lost"])
def test_a_checkpoint_of_a_newer_format_is_left_as_it_is(tmp_path: Path, index: bool) -> None:
    folder = filled(tmp_path, 1)
    folder.save(content(2) | {"format": FORMAT + 1})
    folder.wait()
    if not index:
        (tmp_path / "index.json").unlink()
    with pytest.raises(CheckpointError, match="has format 2, this version reads format 1"):
        folder.latest()
    assert (tmp_path / "step_00000002.pt").exists()
