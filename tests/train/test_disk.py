"""Full disks and bad files: the last good checkpoint stays, and what is foreign is not run."""

from __future__ import annotations

import ast
import json
import os
import pickle
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from detpipe.core.errors import CheckpointError, DetpipeError, WeightsError
from detpipe.train.checkpoint import CheckpointFolder
from detpipe.train.content import FORMAT

from .test_checkpoint import content, filled
from .test_resume import equal
from .toys import config, detector, evaluate, train

DISK = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, of a mebibyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(disk)]
    if shutil.which("mount") is None:
        pytest.skip("there is no mount command")
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(disk: Path, *, leave: int) -> Path:
    """A file that takes all room but ``leave`` bytes."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        room = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
        file.write(bytes(room - leave))
    return filler


def filling(
    disk: Path, *, at_evaluation: int, newest: int, leave: int
) -> Callable[[nn.Module], dict]:
    """An evaluation during which somebody else fills the disk, once ``newest`` is written."""
    count = 0

    def settled() -> bool:
        """Whether the index says what is there: older files go away last."""
        index = disk / "checkpoints" / "index.json"
        lines = json.loads(index.read_text())["checkpoints"] if index.exists() else []
        files = sorted(disk.glob("checkpoints/step_*.pt"))
        steps = [int(file.stem.removeprefix("step_")) for file in files]
        return [line["step"] for line in lines] == steps and newest in steps

    def evaluate_and_fill(model: nn.Module) -> dict[str, float]:
        nonlocal count
        count += 1
        if count == at_evaluation:
            deadline = time.monotonic() + 30
            while not settled():
                assert time.monotonic() < deadline
                time.sleep(0.005)
            fill(disk, leave=leave)
        return evaluate(model)

    return evaluate_and_fill


def names(folder: Path) -> set[str]:
    return {f.name for f in folder.iterdir()}


def test_a_full_disk_costs_nothing_but_what_did_not_fit(tmp_path: Path, small_disk: Path) -> None:
    """Full from step 30 on, with room for lines of metrics but not for a checkpoint."""
    unbroken = train(tmp_path / "unbroken", config())
    folder = small_disk / "checkpoints"
    with pytest.raises(CheckpointError) as caught:
        train(
            folder, config(), evaluate=filling(small_disk, at_evaluation=3, newest=25, leave=12_288)
        )
    lost, good = folder / "step_00000030.pt", folder / "step_00000025.pt"
    message = str(caught.value)
    assert f"checkpoint '{lost}' could not be written: [Errno 28] No space left" in message
    assert f"'{good}' is the newest one" in message
    assert "train.resume" in message
    assert CheckpointFolder(folder).latest()["state"]["step"] == 25
    assert not lost.exists()
    assert not [name for name in names(folder) if name.startswith(".")]

    (small_disk / "filler").unlink()
    equal(train(folder, config(resume=True)), unbroken)
    assert CheckpointFolder(folder).finished


def many_classes(evaluate: Callable[[nn.Module], dict]) -> Callable[[nn.Module], dict]:
    """With a row longer than what is left of a file's last block."""
    return lambda model: evaluate(model) | {f"val/bbox/AP/class {k}": k / 7 for k in range(300)}


WRITERS = ("json", "csv", "tensorboard")


@pytest.mark.parametrize("writer", WRITERS)
def test_records_on_a_full_disk_end_the_run_explained_and_resumable(
    tmp_path: Path, small_disk: Path, writer: str
) -> None:
    """Not even the row of step 30's evaluation fits, which comes before its checkpoint."""
    changes = {"writers": {other: None for other in WRITERS if other != writer}}
    unbroken = train(tmp_path / "unbroken", config(**changes), evaluate=many_classes(evaluate))
    folder = small_disk / "checkpoints"
    with pytest.raises(DetpipeError, match="No space left on device") as caught:
        train(
            folder, config(**changes),
            evaluate=many_classes(filling(small_disk, at_evaluation=3, newest=25, leave=0)),
        )  # fmt: skip
    assert str(folder) in str(caught.value)
    assert CheckpointFolder(folder).latest()["state"]["step"] == 25
    assert not [name for name in names(folder) if name.startswith(".")]

    (small_disk / "filler").unlink()
    resumed = train(folder, config(**changes, resume=True), evaluate=many_classes(evaluate))
    equal(resumed, unbroken)


def test_a_disk_that_is_full_at_the_end_of_the_run(tmp_path: Path, small_disk: Path) -> None:
    """The final checkpoint does not fit: the run is not called finished."""
    hooks = {"evaluate": {"every": "43 steps"}, "checkpoint": {"every": "20 steps"}, "best": None}
    changes = {"duration": "44 steps", "hooks": hooks}
    unbroken = train(tmp_path / "unbroken", config(**changes))
    folder = small_disk / "checkpoints"
    with pytest.raises(CheckpointError, match=r"step_00000044\.pt.*No space left"):
        train(folder, config(**changes),
              evaluate=filling(small_disk, at_evaluation=1, newest=40, leave=12_288))  # fmt: skip
    assert not CheckpointFolder(folder).finished
    (small_disk / "filler").unlink()
    equal(train(folder, config(**changes, resume=True)), unbroken)


@pytest.mark.parametrize("index", [True, False], ids=["with index", "index lost"])
@pytest.mark.parametrize("tenths", range(10))
def test_a_newest_cut_short_anywhere_gives_way_to_the_one_before(
    tmp_path: Path, tenths: int, index: bool
) -> None:
    folder = filled(tmp_path, 1, 2)
    file = folder.file(2)
    data = file.read_bytes()
    file.write_bytes(data[: len(data) * tenths // 10])
    if not index:
        (tmp_path / "index.json").unlink()
    assert folder.latest()["state"]["step"] == 1
    assert [entry.step for entry in folder.entries()] == [1]


@pytest.mark.parametrize("index", [True, False], ids=["with index", "index lost"])
def test_a_folder_in_place_of_the_newest(tmp_path: Path, index: bool) -> None:
    folder = filled(tmp_path, 1, 2)
    folder.file(2).unlink()
    folder.file(2).mkdir()
    if not index:
        (tmp_path / "index.json").unlink()
    assert folder.latest()["state"]["step"] == 1


def test_a_newest_of_a_newer_version_ends_a_resume_and_stays(tmp_path: Path) -> None:
    train(tmp_path, config(duration="10 steps"))
    folder = CheckpointFolder(tmp_path)
    folder.save(content(11) | {"format": FORMAT + 1})
    folder.wait()
    before = names(tmp_path)
    with pytest.raises(CheckpointError, match=r"step_00000011.pt' has format 2.*use the version"):
        train(tmp_path, config(duration="20 steps", resume=True))
    assert names(tmp_path) == before


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (str(self.proof), "w"))


def test_the_payload_would_work(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps({"model": Payload(tmp_path / "proof")}))["model"].close()
    assert (tmp_path / "proof").exists()


def plain_pickle(thing: Any, file: Path) -> None:
    file.write_bytes(pickle.dumps(thing))


@pytest.mark.parametrize("write", [torch.save, plain_pickle])
def test_a_resume_runs_no_code_of_a_checkpoint(
    tmp_path: Path, write: Callable[[Any, Path], None]
) -> None:
    proof, folder = tmp_path / "proof", tmp_path / "checkpoints"
    train(folder, config(duration="10 steps"))
    write({"format": 1, "state": {}, "model": Payload(proof)}, folder / "step_00000011.pt")
    with pytest.raises(CheckpointError, match="could run foreign code"):
        train(folder, config(duration="20 steps", resume=True))
    assert not proof.exists()
    assert (folder / "step_00000011.pt").exists(), "it is not ours to take away"


@pytest.mark.parametrize("write", [torch.save, plain_pickle])
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_given_weights_run_no_code(
    tmp_path: Path, write: Callable[[Any, Path], None], suffix: str
) -> None:
    from detpipe.models.weights import read

    proof, file = tmp_path / "proof", tmp_path / f"weights{suffix}"
    write({"model": Payload(proof), **detector().state_dict()}, file)
    with pytest.raises(WeightsError, match=f"weights{suffix}"):
        read(file)
    assert not proof.exists()


@pytest.mark.parametrize("write", [torch.save, plain_pickle])
def test_the_weights_data_set_runs_no_code(
    tmp_path: Path, write: Callable[[Any, Path], None]
) -> None:
    from kedro.io import DatasetError

    from detpipe.datasets import WeightsDataset

    proof, file = tmp_path / "proof", tmp_path / "weights.safetensors"
    write({"model": Payload(proof)}, file)
    with pytest.raises(DatasetError, match=r"weights\.safetensors"):
        WeightsDataset(filepath=str(file)).load()
    assert not proof.exists()


UNSAFE = {"pickle.load", "pickle.loads", "joblib.load", "dill.load"}


def test_nothing_in_the_sources_loads_code(project_root: Path) -> None:
    """Every torch.load is told weights_only=True, and nothing else that unpickles is called."""
    loads = 0
    for file in (project_root / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func)
            where = f"{file}:{node.lineno}: {ast.unparse(node)}"
            options = {option.arg: ast.unparse(option.value) for option in node.keywords}
            assert name not in UNSAFE, where
            assert options.get("allow_pickle", "False") == "False", where
            if name == "torch.load":
                loads += 1
                assert options.get("weights_only") == "True", where
    assert loads >= 2, "of checkpoints and of given weights"
