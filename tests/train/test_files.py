"""Files and folders: whole files, a folder to write in, room for a new run; nothing is lost."""

from __future__ import annotations

import errno
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from detpipe.core.errors import CheckpointError
from detpipe.train import files
from detpipe.train.checkpoint import CheckpointFolder
from detpipe.train.files import make_folder, move_aside, whole_file

from .toys import config, train


def steps(folder: Path) -> list[int]:
    return [entry.step for entry in CheckpointFolder(folder).entries()]


def names(folder: Path) -> list[str]:
    return sorted(item.name for item in folder.iterdir())


def filled(folder: Path, text: str = "x") -> Path:
    """A folder as a run leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("step_00000001.pt", "index.json", "metrics.jsonl"):
        (folder / name).write_text(text)
    (folder / "tensorboard").mkdir()
    (folder / "tensorboard" / "events").write_text(text)
    return folder


FILLED = ["index.json", "metrics.jsonl", "step_00000001.pt", "tensorboard"]


def test_two_writers_of_one_file_do_not_meet(tmp_path: Path) -> None:
    both = Barrier(2, timeout=5)

    def write(text: bytes) -> None:
        with whole_file(tmp_path / "file") as file:
            both.wait()
            file.write(text)
            both.wait()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, [b"a" * 1000, b"b" * 1000]))
    assert (tmp_path / "file").read_bytes() in (b"a" * 1000, b"b" * 1000)
    assert names(tmp_path) == ["file"]


def test_a_folder_becomes_another_and_an_empty_one_stays(tmp_path: Path) -> None:
    folder = filled(tmp_path / "run", "old")
    aside = move_aside(folder, name="_previous")
    assert aside == tmp_path / "run_previous"
    assert (names(aside), names(folder)) == (FILLED, [])
    assert move_aside(folder, name="_previous") is None
    filled(folder, "new")
    assert move_aside(folder, name="_previous") == aside
    assert (aside / "index.json").read_text() == "new"
    assert names(tmp_path) == ["run", "run_previous"]


def test_names_of_the_same_second_are_all_different(tmp_path: Path) -> None:
    asides = {move_aside(filled(tmp_path / "run", str(n)), name=None) for n in range(4)}
    assert len(asides) == 4
    assert {(aside / "index.json").read_text() for aside in asides} == set("0123")


def test_a_link_stays_and_what_it_leads_to_moves(tmp_path: Path) -> None:
    """Checkpoints on a larger disk."""
    disk, link = tmp_path / "disk" / "run", tmp_path / "run"
    disk.mkdir(parents=True)
    link.symlink_to(disk)
    for count in range(1, 5):
        train(link, config(duration=f"{count} steps"))
        assert link.readlink() == disk
        assert steps(link) == [count]
        assert names(tmp_path) == ["disk", "run"]
        assert names(disk.parent) == (["run", "run_previous"] if count > 1 else ["run"])
        if count > 1:
            assert steps(tmp_path / "disk" / "run_previous") == [count - 1]


def test_an_old_run_that_is_a_link_gives_way_without_what_it_leads_to(tmp_path: Path) -> None:
    elsewhere = filled(tmp_path / "elsewhere")
    (tmp_path / "run_previous").symlink_to(elsewhere)
    aside = move_aside(filled(tmp_path / "run"), name="_previous")
    assert aside == tmp_path / "run_previous"
    assert not aside.is_symlink()
    assert names(aside) == names(elsewhere) == FILLED


@pytest.fixture
def immovable(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Folders in this list cannot be renamed, as a mount point."""
    folders: list[Path] = []
    rename = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if self in folders:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(self))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse)
    return folders


def test_what_is_in_a_mount_point_moves_within(tmp_path: Path, immovable: list[Path]) -> None:
    disk = tmp_path / "disk"
    immovable.append(disk)
    (disk / "lost+found").mkdir(parents=True)
    for count in range(1, 5):
        train(disk, config(duration=f"{count} steps"))
        assert steps(disk) == [count]
        assert (disk / "lost+found").is_dir()
        kept = [name for name in names(disk) if name.startswith("disk_")]
        assert kept == (["disk_previous"] if count > 1 else [])
        if count > 1:
            assert steps(disk / "disk_previous") == [count - 1]
            assert "metrics.jsonl" in names(disk / "disk_previous")
    assert names(tmp_path) == ["disk"]


def test_a_crash_while_moving_within_costs_nothing(
    tmp_path: Path, immovable: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = filled(tmp_path / "disk")
    immovable.append(disk)
    move, moved = shutil.move, []

    def crash(source: Path, target: Path) -> None:
        if len(moved) == 3:
            raise OSError(errno.EIO, "Input/output error")
        moved.append(source.name)
        move(source, target)

    monkeypatch.setattr(files.shutil, "move", crash)
    folder = CheckpointFolder(disk)
    with pytest.raises(CheckpointError, match=r"could not all be put aside.*Input/output error"):
        folder.put_aside(name="_previous")
    assert steps(disk) == [1]  # which goes last, so the folder is not taken for a free one
    monkeypatch.setattr(files.shutil, "move", move)
    folder.put_aside(name="_previous")
    found = [item.name for item in disk.glob("disk_*/*")]
    assert sorted(found) == FILLED


def test_an_old_run_that_cannot_be_removed_stays_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path / "run_previous", "old")
    filled(tmp_path / "run", "new")

    def refuse(folder: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(folder))

    monkeypatch.setattr(files.shutil, "rmtree", refuse)
    aside = move_aside(tmp_path / "run", name="_previous")
    assert (aside / "index.json").read_text() == "new"
    assert (tmp_path / "run_previous" / "index.json").read_text() == "old"


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("dangling", r"it is a link to '.*nowhere', which is not there"),
        ("loop", r"it is a link to '.*run', which is not there"),
        ("file", "there is a file of that name"),
        ("below a file", "Not a directory"),
    ],
)
def test_what_cannot_be_the_folder_is_explained(
    tmp_path: Path, kind: str, reason: str, resume: bool
) -> None:
    folder = tmp_path / "run"
    if kind in ("dangling", "loop"):
        folder.symlink_to(tmp_path / "nowhere" if kind == "dangling" else folder)
    else:
        folder.write_text("mine")
    path = folder / "below" if kind == "below a file" else folder
    if kind == "loop" and resume:  # it is looked into before it is to be written in
        reason = "index.json' cannot be read: .*symbolic links"
    with pytest.raises(CheckpointError, match=reason):
        train(path, config(duration="2 steps", resume=resume))
    assert names(tmp_path) == ["run"]
    assert kind in ("dangling", "loop") or folder.read_text() == "mine"


def test_a_folder_that_takes_no_file_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**options: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(options["dir"]))

    monkeypatch.setattr(files.tempfile, "TemporaryFile", refuse)
    with pytest.raises(CheckpointError, match=r"cannot hold checkpoints: .*Read-only.*another"):
        make_folder(tmp_path / "run")
