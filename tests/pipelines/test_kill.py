"""A training that is killed 20 times, wherever it falls, ends as the one that is left alone."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from detpipe.train.checkpoint import CheckpointFolder
from tests.trees import equal_trees

from .conftest import Project
from .forks import Forks

STEPS = 48
KILLS = 20
PARAMS: dict[str, Any] = {
    "data": {"reader": {"images": 40, "size": 96}, "check": {"workers": 0}},
    "model": {"width": 16},
    "stream": {"workers": 0},
    "evaluate": {"batch_size": 2},
    "train": {
        "duration": f"{STEPS} steps",
        "batch_size": 2,
        "accumulate": 2,
        "log_every": "2 steps",
        "resume": True,
        "hooks": {
            "ema": {"use": "detpipe.hooks.update.EMA", "decay": 0.9},
            "memory": {"use": "detpipe.hooks.measure.Memory"},
            "evaluate": {"every": "5 steps"},
            "checkpoint": {"every": "3 steps"},
        },
        # Some rows get out before a kill, some do not.
        "writers": {"mlflow": {"interval": 0.3}},
    },
}


def with_workers(number: int) -> dict[str, Any]:
    return PARAMS | {"stream": {"workers": number}}


class Runs:
    """One project, its forks, and what can be read of its results."""

    def __init__(self, folder: Path, source: Path) -> None:
        folder.mkdir()
        self.project = Project(folder, source)
        self.forks = Forks(folder, folder / "flags")
        self.started = 0
        self.checkpoints = CheckpointFolder(self.project.path("06_models/sample/checkpoints"))

    @property
    def log(self) -> Path:
        """Of the last run that was started."""
        return self.project.folder / f"log_{self.started}.txt"

    def start(self, workers: int) -> int:
        self.started += 1
        self.log.touch()
        return self.forks.start(with_workers(workers), log=self.log)

    def step(self) -> int:
        """The newest step in the records; 0 before there is one."""
        file = self.checkpoints.path / "metrics.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        try:
            return int(json.loads(lines[-1])["step"]) if lines else 0
        except ValueError:
            return 0  # it is being written

    def doing(self) -> str:
        """What the run is doing, or was doing when it was killed."""
        flags = self.forks.flags()
        if flags["restored"]:
            return "final evaluation" if flags["detecting"] else "scores and reports"
        if flags["trained"]:
            return "weights handed over"
        if not flags["training"]:
            return "before training"
        if flags["writing"]:
            return "checkpoint being written"
        if flags["detecting"]:
            return "evaluation in training"
        return "training" if self.checkpoints.entries() else "before the first checkpoint"

    def rows(self) -> list[dict[str, Any]]:
        lines = (self.checkpoints.path / "metrics.jsonl").read_text().splitlines()
        return [lasting(json.loads(line)) for line in lines]

    def tracked(self) -> dict[str, dict[str, list[tuple[int, float]]]]:
        """status → metric → (step, value) of all runs in MLflow."""
        from mlflow import MlflowClient

        client = MlflowClient(f"sqlite:///{self.project.folder / 'mlflow.db'}")
        found = {}
        for run in client.search_runs([e.experiment_id for e in client.search_experiments()]):
            histories = {k: client.get_metric_history(run.info.run_id, k) for k in run.data.metrics}
            found[f"{run.info.status} {run.info.run_id}"] = lasting(
                {key: sorted((m.step, m.value) for m in h) for key, h in histories.items()}
            )
        return found


def lasting(values: dict[str, Any]) -> dict[str, Any]:
    """Without what differs between two equal runs."""
    return {k: v for k, v in values.items() if not k.startswith(("time/", "memory/"))}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, project_root: Path) -> Runs:
    runs = Runs(tmp_path_factory.mktemp("unbroken") / "project", project_root)
    try:
        runs.start(workers=0)
        assert runs.forks.status() == 0, runs.log.read_text()
    finally:
        runs.forks.close()
    return runs


@pytest.fixture
def runs(tmp_path: Path, project_root: Path) -> Iterator[Runs]:
    runs = Runs(tmp_path / "project", project_root)
    yield runs
    runs.forks.close()


Moment = tuple[str, Callable[[Runs], bool], float]
"""A name, a condition to wait for, and seconds to wait after it."""


def moments(seed: int) -> list[Moment]:
    """When to kill: drawn at random, but so that no part of a run is left out."""
    draw = random.Random(seed)

    def at(step: int, doing: str) -> Moment:
        name = f"from step {step} on, {doing or 'anywhere'}"
        return (
            name,
            lambda runs: runs.forks.flags()["training"]
            and runs.step() >= step
            and doing in runs.doing(),
            draw.uniform(0, 0.004 if doing else 0.3),
        )  # fmt: skip

    kinds = ["", "checkpoint", "evaluation in", "", "checkpoint"] * 3
    draw.shuffle(kinds)
    steps = sorted(draw.uniform(2, STEPS - 8) for _ in kinds[1:])
    return [
        ("before anything", lambda runs: True, draw.uniform(0, 1.5)),
        ("before training", lambda runs: "MLflow run '" in runs.log.read_text(),
         draw.uniform(0, 0.3)),
        ("before the first checkpoint", lambda runs: runs.forks.flags()["training"],
         draw.uniform(0, 0.1)),
        *(at(int(step), kind) for step, kind in zip(steps, kinds[1:], strict=True)),
        ("after training", lambda runs: runs.forks.flags()["trained"], draw.uniform(0, 0.02)),
        ("final evaluation", lambda runs: runs.doing() == "final evaluation",
         draw.uniform(0, 0.01)),
        ("reports", lambda runs: runs.doing() == "scores and reports", draw.uniform(0, 0.8)),
    ]  # fmt: skip


def kill_at(moment: Moment, runs: Runs, workers: int) -> str:
    """Starts the run, kills it and all its processes; what it was doing."""
    name, reached, seconds = moment
    process = runs.start(workers)
    wait_until(lambda: reached(runs), runs, process, what=name)
    time.sleep(seconds)
    os.killpg(process, signal.SIGKILL)
    assert runs.forks.status() == -signal.SIGKILL, f"{name}\n{runs.log.read_text()[-5000:]}"
    wait_for_the_end_of(process)
    return runs.doing()


def wait_until(
    reached: Callable[[], bool], runs: Runs, process: int, *, what: str = "training"
) -> None:
    deadline = time.monotonic() + 120
    while not reached():
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            pytest.fail(f"{what}: it ended before\n{runs.log.read_text()[-5000:]}")
        assert time.monotonic() < deadline, f"{what}: not reached\n{runs.log.read_text()[-5000:]}"
        time.sleep(0.0005)


def wait_for_the_end_of(group: int) -> None:
    deadline = time.monotonic() + 30
    while left := processes_of(group):
        assert time.monotonic() < deadline, f"processes are left: {left}"
        time.sleep(0.01)


def processes_of(group: int) -> list[int]:
    """Processes of a group that live."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, of_group = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(of_group) == group and state != "Z":
            found.append(int(folder.name))
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="it looks at /proc")
@pytest.mark.parametrize("workers", [0, 2])
def test_killed_20_times_it_equals_the_unbroken_run(
    runs: Runs, unbroken: Runs, workers: int
) -> None:
    when = moments(seed=workers)
    doing = [kill_at(moment, runs, workers) for moment in when]
    counts = f"killed {len(doing)} times, {workers} workers: {dict(Counter(doing))}"
    print(counts)
    assert len(doing) == KILLS, counts
    aimed_at = {"checkpoint being written", "evaluation in training", "final evaluation"}
    assert aimed_at <= set(doing), counts

    runs.start(workers)
    assert runs.forks.status() == 0, runs.log.read_text()[-5000:]
    equal_weights(runs, unbroken)
    equal_records(runs, unbroken)
    equal_tracking(runs, unbroken)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="it looks at /proc")
def test_the_main_process_killed_alone_leaves_no_lock_and_no_process(
    runs: Runs,
) -> None:
    """As when memory runs out: the processes that read live on for seconds, and are no run."""
    first = runs.start(workers=2)
    wait_until(lambda: runs.doing() == "training" and runs.step() >= 4, runs, first)
    os.kill(first, signal.SIGKILL)
    assert runs.forks.status() == -signal.SIGKILL
    second = runs.start(workers=2)
    wait_until(lambda: runs.forks.flags()["training"], runs, second)
    os.killpg(second, signal.SIGKILL)
    assert runs.forks.status() == -signal.SIGKILL
    wait_for_the_end_of(first)
    wait_for_the_end_of(second)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="it looks at /proc")
def test_a_kill_while_the_tracker_makes_its_store_leaves_none_half_made(
    runs: Runs,
) -> None:
    """A store with half its tables refuses every later run, which would then not be tracked."""
    draw = random.Random(0)
    for _ in range(3):
        for file in runs.project.folder.glob("*mlflow.db*"):
            file.unlink()
        process = runs.start(workers=0)
        wait_until(
            lambda: "Creating initial MLflow database" in runs.log.read_text(), runs, process,
            what="the store",
        )  # fmt: skip
        time.sleep(draw.uniform(0.05, 0.8))
        os.killpg(process, signal.SIGKILL)
        assert runs.forks.status() == -signal.SIGKILL
        process = runs.start(workers=0)
        wait_until(lambda: "Running node" in runs.log.read_text(), runs, process, what="the run")
        os.killpg(process, signal.SIGKILL)
        assert runs.forks.status() == -signal.SIGKILL
        assert "not tracked" not in runs.log.read_text()
        assert "MLflow run '" in runs.log.read_text()


def equal_weights(runs: Runs, unbroken: Runs) -> None:
    import torch
    from safetensors.torch import load_file

    files = [r.project.path("06_models/sample/weights.safetensors") for r in (runs, unbroken)]
    mine, theirs = map(load_file, files)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    for which in ("latest", "best"):
        mine, theirs = (getattr(r.checkpoints, which)() for r in (runs, unbroken))
        for part in ("state", "model", "ema", "optimizer", "rng"):
            equal_trees(mine[part], theirs[part], f"{which}/{part}")
    assert [e.step for e in runs.checkpoints.entries()] == [
        e.step for e in unbroken.checkpoints.entries()
    ]
    assert runs.checkpoints.finished
    assert not runs.checkpoints.damaged()
    assert not list(runs.checkpoints.path.glob(".*")), "a temporary file is left"


def equal_records(runs: Runs, unbroken: Runs) -> None:
    rows = runs.rows()
    assert rows == unbroken.rows()
    logged = [row["step"] for row in rows if "train/loss" in row]
    assert logged == list(range(2, STEPS + 1, 2))
    assert [r["step"] for r in rows if "val/bbox/AP" in r] == list(range(5, STEPS, 5))
    for file in ("06_models/sample/checkpoints/metrics.csv", "08_reporting/sample/history.csv"):
        mine, theirs = (pd.read_csv(r.project.path(file)) for r in (runs, unbroken))
        kept = list(lasting(dict.fromkeys(theirs.columns)))
        assert set(kept) == set(lasting(dict.fromkeys(mine.columns)))
        pd.testing.assert_frame_equal(mine[kept], theirs[kept], check_exact=True)
    for table in ("scores.csv", "overview.csv", "per_class.csv"):
        mine, theirs = (r.project.path(f"08_reporting/sample/{table}") for r in (runs, unbroken))
        assert mine.read_text() == theirs.read_text()
    events = [tensorboard(r.checkpoints.path / "tensorboard") for r in (runs, unbroken)]
    assert events[0] == events[1]


def tensorboard(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows; NaN as None."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    shown = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {
        tag: [(e.step, None if math.isnan(e.value) else e.value) for e in shown.Scalars(tag)]
        for tag in lasting(dict.fromkeys(shown.Tags()["scalars"]))
    }


def equal_tracking(runs: Runs, unbroken: Runs) -> None:
    mine, theirs = runs.tracked(), unbroken.tracked()
    assert [status.split()[0] for status in theirs] == ["FINISHED"]
    assert [status.split()[0] for status in mine] == ["FINISHED"]
    (mine,), (theirs,) = mine.values(), theirs.values()
    assert mine.keys() == theirs.keys()
    for key, history in mine.items():
        steps = [step for step, _ in history]
        assert len(set(steps)) == len(steps), f"{key}: a step twice"
        equal_trees(history, theirs[key], key)
