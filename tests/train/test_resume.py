"""A resumed run equals the unbroken one, bit for bit, however it was ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import nn

from detpipe.core.errors import CheckpointError
from detpipe.models.adapter import TorchvisionDetector
from detpipe.train.checkpoint import CheckpointFolder
from detpipe.train.content import load_checkpoint
from detpipe.train.launch import torch_threads
from detpipe.train.result import TrainResult
from detpipe.train.resume import describe_difference, flat, newest
from tests.trees import equal_trees

from .real import real_run
from .toys import ToyStream, config, detector, evaluate, same, timeless, train


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """As in the processes that are started here: another number of threads rounds differently."""
    with torch_threads(1):
        yield


class Killed(BaseException):
    """Stands for anything that ends a process without warning."""


def dying(at_evaluation: int):
    """An evaluation that ends the run the ``at_evaluation``-th time."""
    count = 0

    def evaluate_or_die(model: nn.Module) -> dict[str, float]:
        nonlocal count
        count += 1
        if count == at_evaluation:
            raise Killed
        return evaluate(model)

    return evaluate_or_die


def equal(a: TrainResult, b: TrainResult) -> None:
    assert a.step == b.step
    assert same(a.weights, b.weights)
    pd.testing.assert_frame_equal(timeless(a.history), timeless(b.history), check_like=True)


def final_content(folder: Path) -> dict:
    """Everything that a checkpoint holds, but for the settings and times."""
    content = CheckpointFolder(folder).latest()
    content["scalars"] = {
        part: {name: value for name, value in values.items() if not name.startswith("time/")}
        for part, values in content["scalars"].items()
    }
    del content["config"]
    return content


EVERYTHING = {
    "precision": "fp16",
    "accumulate": 2,
    "groups": {"norm_weight_decay": 0.0, "bias_weight_decay": 0.0},
    "clip": {"parameter_norm": 1.0},
    "schedule_by": "epoch",
    "non_finite": {"action": "skip"},
    "hooks": {
        "ema": {"beside": True},
        "stem": {"use": "detpipe.hooks.freeze.Freeze", "patterns": ["0"], "until": "27 steps"},
        "precise": {"use": "detpipe.hooks.norm.PreciseBN", "every": "10 steps", "images": 8},
        "stop": {"use": "detpipe.hooks.decide.EarlyStop", "patience": 100},
    },
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("settings", [{}, {"accumulate": 3}, EVERYTHING])
def test_resumed_equals_unbroken(tmp_path: Path, workers: int, settings: dict) -> None:
    """Ended at step 30, gone on from 25: in the middle of an epoch and of a log interval."""
    hooks = {"evaluate": {"every": "10 steps"}, "checkpoint": {"every": "5 steps"}}
    changes = {**settings, "hooks": {**settings.get("hooks", {}), **hooks}}
    at = 5 if "precision" in settings else 3  # trained and averaged weights are two evaluations
    unbroken = train(tmp_path / "a", config(**changes), stream=ToyStream())
    with pytest.raises(Killed):
        train(
            tmp_path / "b",
            config(**changes),
            stream=ToyStream(workers=workers),
            evaluate=dying(at_evaluation=at),
        )
    assert CheckpointFolder(tmp_path / "b").latest()["state"]["step"] == 25
    resumed = train(
        tmp_path / "b",
        config(**changes, resume=True),
        model=detector(seed=99, dropout=0.2, norm=True),  # other weights: all comes from the file
        stream=ToyStream(workers=workers),
    )
    equal(resumed, unbroken)
    equal_trees(final_content(tmp_path / "b"), final_content(tmp_path / "a"))


def test_a_run_broken_off_at_every_step_equals_the_unbroken_one(tmp_path: Path) -> None:
    """Seven interruptions by Ctrl-C, wherever they fall."""
    settings = config(hooks={"evaluate": {"every": "6 steps"}}, duration="14 steps")
    unbroken = train(tmp_path / "a", settings)
    result = None
    for _ in range(20):
        calls = 0
        model = detector(dropout=0.2, norm=True)

        def interrupt(module: nn.Module, inputs: object) -> None:
            nonlocal calls
            calls += 1
            if calls == 2:
                signal.raise_signal(signal.SIGINT)

        model.register_forward_pre_hook(interrupt)
        try:
            result = train(
                tmp_path / "b",
                settings.model_copy(update={"resume": True}),
                model=model,
                run_config={"train": settings.model_dump(mode="json")},
            )
            break
        except KeyboardInterrupt:
            continue
    assert result is not None
    equal(result, unbroken)


def test_an_evaluation_that_a_signal_breaks_off_is_made_up_for(tmp_path: Path) -> None:
    unbroken = train(tmp_path / "a", config())

    def slow(model: nn.Module) -> dict[str, float]:
        signal.raise_signal(signal.SIGTERM)
        pytest.fail("the evaluation went on")

    with pytest.raises(SystemExit) as caught:
        train(tmp_path / "b", config(), evaluate=slow)
    assert caught.value.code == 143
    assert CheckpointFolder(tmp_path / "b").latest()["state"]["step"] == 10
    with pytest.raises(SystemExit):  # and once more, while making up for it
        train(tmp_path / "b", config(resume=True), evaluate=slow)
    resumed = train(tmp_path / "b", config(resume=True))
    equal(resumed, unbroken)
    assert (
        CheckpointFolder(tmp_path / "b").best()["state"]
        == (CheckpointFolder(tmp_path / "a").best()["state"])
    )


def test_a_damaged_newest_costs_only_its_interval(tmp_path: Path) -> None:
    unbroken = train(tmp_path / "a", config())
    with pytest.raises(Killed):
        train(tmp_path / "b", config(), evaluate=dying(at_evaluation=3))
    newest = sorted((tmp_path / "b").glob("step_*.pt"))[-1]
    newest.write_bytes(newest.read_bytes()[:3000])
    equal(train(tmp_path / "b", config(resume=True)), unbroken)


def test_two_runs_with_one_seed_are_identical(tmp_path: Path) -> None:
    first = train(tmp_path / "a", config())
    torch.rand(11)  # whatever the process drew before
    second = train(tmp_path / "b", config())
    equal(first, second)
    other = train(tmp_path / "c", config(seed=1))
    assert not same(first.weights, other.weights)  # dropout is drawn from the seed


def test_no_step_twice_in_any_record(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    unbroken = train(tmp_path / "a", config())
    with pytest.raises(Killed):
        # The writers are ahead of the newest checkpoint: rows of steps 26 to 40 come again.
        periods = {"checkpoint": {"every": "25 steps"}}
        train(tmp_path / "b", config(hooks=periods), evaluate=dying(at_evaluation=4))
    resumed = train(tmp_path / "b", config(resume=True))
    equal(resumed, unbroken)

    rows = [json.loads(line) for line in (tmp_path / "b/metrics.jsonl").read_text().splitlines()]
    written = [(row["step"], tuple(sorted(row))) for row in rows]
    assert len(set(written)) == len(written)
    table = pd.read_csv(tmp_path / "b/metrics.csv")
    assert list(table["step"]) == [row["step"] for row in rows]
    events = EventAccumulator(str(tmp_path / "b/tensorboard")).Reload()
    steps = [event.step for event in events.Scalars("train/loss")]
    assert steps == list(unbroken.history.dropna(subset="train/loss")["step"])


SCRIPT = """
    import logging, sys, time
    from pathlib import Path
    import torch
    from train.toys import *
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    folder, resume, workers, delay = sys.argv[1:5]
    torch.set_num_threads(1)
    class Slow(ToyDetector):
        def forward(self, batch):
            time.sleep(float(delay))
            return super().forward(batch)
    with seeded(0):
        model = Slow(dropout=0.2, norm=True)
    train(
        Path(folder),
        config(resume=resume == "resume"),
        model=model,
        stream=ToyStream(workers=int(workers)),
    )
"""


def start_python(*arguments: str) -> subprocess.Popen:
    """A Python of its own process group, which finds these tests."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def start(folder: Path, *, resume: bool, workers: int = 0, delay: float = 0.05) -> subprocess.Popen:
    how = "resume" if resume else "new"
    return start_python("-c", textwrap.dedent(SCRIPT), str(folder), how, str(workers), str(delay))


def wait_for_checkpoint(process: subprocess.Popen, folder: Path, at_least: int) -> None:
    while not any(e.step >= at_least for e in CheckpointFolder(folder).entries()):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_kill_minus_nine(tmp_path: Path, workers: int) -> None:
    train(tmp_path / "a", config())
    process = start(tmp_path / "b", resume=False, workers=workers)
    wait_for_checkpoint(process, tmp_path / "b", 15)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not CheckpointFolder(tmp_path / "b").finished
    process = start(tmp_path / "b", resume=True, workers=workers, delay=0)
    _, log = process.communicate()
    assert process.returncode == 0, log
    assert "resuming at step" in log
    equal_trees(final_content(tmp_path / "b"), final_content(tmp_path / "a"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)]
)
def test_signals_to_a_real_process(tmp_path: Path, number: int, code: int) -> None:
    """SIGTERM ends with 143; SIGINT as Python ends by it, which is 130 in a shell."""
    unbroken = train(tmp_path / "a", config())
    process = start(tmp_path / "b", resume=False)
    wait_for_checkpoint(process, tmp_path / "b", 15)
    process.send_signal(number)
    _, log = process.communicate()
    assert process.returncode == code, log
    assert "the run ends after this step, with a checkpoint" in log
    newest = CheckpointFolder(tmp_path / "b").latest()["state"]["step"]
    assert newest >= 15
    resumed = train(tmp_path / "b", config(resume=True))
    equal(resumed, unbroken)


def test_the_checkpoint_of_an_interruption_is_that_of_its_step(tmp_path: Path) -> None:
    model = detector(dropout=0.2, norm=True)
    model.register_forward_pre_hook(
        lambda m, i: signal.raise_signal(signal.SIGINT) if m.calls == 12 else None
    )
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, config(), model=model)
    content = load_checkpoint(tmp_path / "step_00000013.pt")
    assert (content["state"]["step"], content["state"]["images_seen"]) == (13, 52)
    assert content["classes"] == ["a", "b"]


@pytest.mark.parametrize("hooks", [{}, {"checkpoint": None}])
def test_a_signal_promises_only_what_will_happen(
    tmp_path: Path, hooks: dict, caplog: pytest.LogCaptureFixture
) -> None:
    model = detector(dropout=0.2, norm=True)
    model.register_forward_pre_hook(
        lambda m, i: signal.raise_signal(signal.SIGTERM) if m.calls == 2 else None
    )
    with pytest.raises(SystemExit):
        train(tmp_path, config(hooks=hooks), model=model)
    promised = "the run ends after this step, with a checkpoint;" in caplog.text
    assert promised is bool(CheckpointFolder(tmp_path).entries()) is (not hooks)
    assert ("without a checkpoint (no hook saves one)" in caplog.text) is bool(hooks)


def test_differences_are_named_and_sorted_into_two() -> None:
    old = flat({"train": {"batch_size": 8, "duration": {"steps": 10}, "hooks": {"a": {}}}})
    new = flat({"train": {"batch_size": 4, "duration": {"steps": 20}, "hooks": {"b": {}}}})
    refused, allowed = describe_difference({**old, "model.use": "x"}, new)
    assert refused == ["model.use: x → not set", "train.batch_size: 8 → 4"]
    assert allowed == [
        "train.duration.steps: 10 → 20",
        "train.hooks.a: {} → not set",
        "train.hooks.b: not set → {}",
    ]


@pytest.mark.parametrize(
    ("where", "a", "b"),
    [("train.augment", "flip", "crop"), ("train.groups.patterns", "layers.1", "layers.0.bias")],
)
def test_an_order_that_counts_must_not_change(where: str, a: str, b: str) -> None:
    def settings(*names: str) -> dict:
        if where == "train.groups.patterns":
            named = {name: {"lr_factor": 2.0, "weight_decay": None} for name in names}
            return flat({"train": {"groups": {"patterns": named}}})
        named = {name: {"use": "x", "until": None} for name in names}
        return flat({"train": {"augment": {**named, "off": None}}})

    old = settings(a, b, "last")
    assert describe_difference(old, settings(a, b, "last")) == ([], [])
    assert describe_difference(old, settings(b, a, "last")) == (
        [f"{where}: {a}, {b}, last → {b}, {a}, last (another order, which counts here)"], [],
    )  # fmt: skip
    refused, _ = describe_difference(old, settings("last", a))  # which is said already
    assert refused
    assert not any("another order" in line for line in refused)


def test_the_order_of_options_does_not_count() -> None:
    old = {"train.augment.a.use": "x", "train.augment.a.p": 1, "train.augment.b.use": "y"}
    new = {"train.augment.a.p": 1, "train.augment.a.use": "x", "train.augment.b.use": "y"}
    assert describe_difference(old, new) == ([], [])


def test_a_resume_with_other_order_of_groups_is_refused(tmp_path: Path) -> None:
    patterns = {r"layers\.0": {"weight_decay": 0.1}, "layers": {"weight_decay": 0.2}}
    train(tmp_path, config(duration="5 steps", groups={"patterns": patterns}))
    turned = dict(reversed(patterns.items()))
    with pytest.raises(CheckpointError, match=r"layers\\\.0, layers → layers, layers\\\.0 \(ano"):
        train(tmp_path, config(resume=True, groups={"patterns": turned}))


def test_settings_survive_the_file(tmp_path: Path) -> None:
    """Whatever is in the settings, what comes back equals what goes in: no false difference."""
    settings = flat({"a": (1, 2.5), "b": Path("x"), "c": {"d": None, "e": [{"f": (1,)}]}})
    file = tmp_path / "file.pt"
    torch.save({"format": 1, "state": {}, "config": settings}, file)
    assert load_checkpoint(file)["config"] == settings
    assert json.loads(json.dumps(settings)) == settings


def values_of(*values: float):
    """An evaluation with these values, one after the other."""
    remaining = iter(values)
    return lambda model: {"val/bbox/AP": next(remaining)}


def best_of(folder: Path) -> list[tuple[int, float | None]]:
    return [(e.step, e.metric) for e in CheckpointFolder(folder).entries() if e.best]


@pytest.mark.parametrize("error", [Killed, CheckpointError])
def test_a_best_that_the_index_does_not_know_of_is_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """The run ended after the checkpoint file was written, and before the index was."""
    write, settings = CheckpointFolder._write_index, {"publish": "best"}
    hooks = {"evaluate": {"every": "10 steps"}, "checkpoint": {"every": "10 steps", "keep": 1}}

    def end(self: CheckpointFolder, entries: list) -> None:
        if entries[-1].step == 20:
            raise error
        write(self, entries)

    with monkeypatch.context() as patch, pytest.raises(error):
        patch.setattr(CheckpointFolder, "_write_index", end)
        train(tmp_path, config(**settings, hooks=hooks), evaluate=values_of(1, 2, 1.5, 1.5, 1.5))
    assert best_of(tmp_path) == [(10, 1.0)]
    resumed = config(**settings, hooks=hooks, resume=True)
    result = train(tmp_path, resumed, evaluate=values_of(1.5, 1.5, 1.5))
    assert (result.step, result.metrics["val/bbox/AP"]) == (20, 2.0)
    assert best_of(tmp_path) == [(20, 2.0)]


class Marks:
    """A hook that marks the best, as far as what it remembers goes."""

    def __init__(self, metric: str = "val/bbox/AP", mode: str = "max") -> None:
        self.metric, self.mode = metric, mode


def remembering(folder: Path, *states: dict, **options: int) -> CheckpointFolder:
    """Checkpoints 10, 20, … with these states of a hook; those at their own best are marked."""
    checkpoints = CheckpointFolder(folder, **options)
    for step, state in enumerate(states, 1):
        content = {"format": 1, "state": {"step": 10 * step}, "hooks": {"best": state}}
        best = state["best_step"] == 10 * step
        checkpoints.save(content, best=best, metric=state["best"] if best else None)
    checkpoints.wait()
    return checkpoints


def memory(step: int, value: float, **more: str) -> dict:
    return {"best": value, "best_step": step, **more}


def test_a_damaged_best_gives_its_mark_to_the_best_before(tmp_path: Path) -> None:
    checkpoints = remembering(tmp_path, memory(10, 1.0), memory(20, 2.0))
    checkpoints.file(20).write_bytes(b"damaged")
    content = newest(checkpoints, config(publish="best"), {"best": Marks()})
    assert content is not None
    assert content["state"]["step"] == 10
    assert best_of(tmp_path) == [(10, 1.0)]
    for step in (20, 30, 40, 50):
        checkpoints.save({"format": 1, "state": {"step": step}})
    checkpoints.wait()
    assert [entry.step for entry in checkpoints.entries()] == [10, 40, 50]


def test_a_best_that_a_damaged_one_replaced_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The run goes on from 20 and comes to 30 again."""
    states = memory(10, 1.0), memory(10, 1.0), memory(30, 2.0)
    checkpoints = remembering(tmp_path, *states, keep=2)
    assert [entry.step for entry in checkpoints.entries()] == [20, 30]
    checkpoints.file(30).write_bytes(b"damaged")
    content = newest(checkpoints, config(publish="best"), {"best": Marks()})
    assert content is not None
    assert content["state"]["step"] == 20
    assert "'step_00000010.pt', is no longer there" in caplog.text
    assert best_of(tmp_path) == []


@pytest.mark.parametrize("publish", ["best", "final"])
def test_a_best_that_is_not_there_is_an_error_if_it_is_to_be_published(
    tmp_path: Path, publish: str
) -> None:
    checkpoints = remembering(tmp_path, memory(10, 1.0), memory(10, 1.0))
    checkpoints.file(10).unlink()
    settings = config(publish=publish)
    if publish == "best":
        with pytest.raises(CheckpointError, match=r"'step_00000010\.pt' in .* is not there"):
            newest(checkpoints, settings, {"best": Marks()})
    else:
        assert newest(checkpoints, settings, {"best": Marks()}) is not None


@pytest.mark.parametrize("now", [{"metric": "val/bbox/AP50"}, {"mode": "min"}])
def test_a_best_by_another_measure_does_not_count(tmp_path: Path, now: dict) -> None:
    was = {"metric": "val/bbox/AP", "mode": "max"}
    checkpoints = remembering(tmp_path, memory(10, 1.0, **was), memory(10, 1.0, **was))
    assert checkpoints.mark_best(20, 5.0)
    newest(checkpoints, config(), {"best": Marks(**now)})
    assert best_of(tmp_path) == [(20, 5.0)]
    newest(checkpoints, config(), {"best": Marks()})
    assert best_of(tmp_path) == [(10, 1.0)]


def test_nothing_is_written_when_the_index_is_right(tmp_path: Path) -> None:
    checkpoints = remembering(tmp_path, memory(10, 1.0), memory(10, 1.0))
    before = (tmp_path / "index.json").stat().st_mtime_ns, (tmp_path / "index.json").stat().st_ino
    newest(checkpoints, config(), {"best": Marks()})
    after = (tmp_path / "index.json").stat().st_mtime_ns, (tmp_path / "index.json").stat().st_ino
    assert before == after
    assert newest(CheckpointFolder(tmp_path / "none"), config(), {"best": Marks()}) is None


@pytest.fixture(scope="module")
def unbroken_real_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainResult]:
    folder = tmp_path_factory.mktemp("real")
    return folder, real_run(folder / "a", workers=0)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_real_detector_on_real_pictures(
    unbroken_real_run: tuple[Path, TrainResult], workers: int
) -> None:
    """Faster R-CNN draws its samples at random: the generators' states must come back too."""
    folder, unbroken = unbroken_real_run
    broken = folder / f"b{workers}"
    calls = 0

    def interrupt(module: nn.Module, inputs: object) -> None:
        nonlocal calls
        calls += isinstance(module, TorchvisionDetector)
        if calls == 5:
            signal.raise_signal(signal.SIGINT)
            calls += 1

    handle = nn.modules.module.register_module_forward_pre_hook(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            real_run(broken, workers=workers)
    finally:
        handle.remove()
    assert CheckpointFolder(broken).latest()["state"]["step"] == 5
    equal(real_run(broken, workers=workers, resume=True), unbroken)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143)]
)
def test_a_signal_to_the_whole_group_with_workers(tmp_path: Path, number: int, code: int) -> None:
    """As a terminal or a scheduler sends it: the processes that read get it too."""
    process = start_python("-m", "train.real", str(tmp_path / "b"))
    wait_for_checkpoint(process, tmp_path / "b", 4)
    os.killpg(process.pid, number)
    _, log = process.communicate(timeout=60)
    assert process.returncode == code, log
    assert "the run ends after this step, with a checkpoint" in log
    assert log.count("Traceback") <= 1, log  # of the main process, none of a worker
    folder = CheckpointFolder(tmp_path / "b")
    assert folder.latest()["state"]["step"] == folder.entries()[-1].step >= 4
