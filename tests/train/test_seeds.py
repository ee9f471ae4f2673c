"""What detectron2's and cvpods' trainers do, under their names, and their faults, which stay away.

Only what no other test shows under its own name; the names of the tests say whose it is.
"""

from __future__ import annotations

import ast
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from pydantic import ValidationError
from torch import nn

from detpipe.core.config import Duration
from detpipe.core.errors import CheckpointError, ConfigError, DetpipeError, NonFiniteLoss
from detpipe.data import sample
from detpipe.data.store import Store
from detpipe.data.stream import TrainStream
from detpipe.hooks.record import Writer
from detpipe.models import tiny
from detpipe.train.build import build_update
from detpipe.train.checkpoint import CheckpointFolder
from detpipe.train.contract import Hook, LoopContext, Phase
from detpipe.train.launch import seeded
from detpipe.train.plan import Plan
from detpipe.train.scalars import Scalars

from .real import real_run
from .toys import IMAGES, bare_loop, config, detector, evaluate, same, train

BARE = {
    "hooks": dict.fromkeys(config().hooks),
    "writers": dict.fromkeys(config().writers),
    "schedule": {"use": "detpipe.train.schedule.constant"},
    "warmup": {"duration": "0 steps"},
}
"""Nothing but the loop."""


# --- SimpleTrainer, OptimizationHook, HookBase ----------------------------------------------------


class CountedSGD(torch.optim.SGD):
    norms: ClassVar[list[float]] = []

    def step(self, closure: Any = None) -> Any:
        self.norms.append(self.param_groups[0]["params"][0].grad.norm().item())
        return super().step(closure)


@pytest.mark.parametrize("subdivisions", [2, 3])
def test_accumulate_grad_steps_above_one_step_once_a_group(
    tmp_path: Path, subdivisions: int
) -> None:
    """Their fault: above 1 the optimiser never stepped."""
    CountedSGD.norms.clear()
    model = detector()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    settings = config(
        **BARE, accumulate=subdivisions, duration="10 steps",
        optimizer={"use": f"{__name__}.CountedSGD", "lr": 0.1, "foreach": False},
    )  # fmt: skip
    result = train(tmp_path, settings, model=model)
    assert model.calls == 10 * subdivisions
    assert len(CountedSGD.norms) == result.step == 10
    assert all(norm > 0 for norm in CountedSGD.norms)
    assert not same(result.weights, before)


def test_batch_subdivisions_of_one_batch_are_that_batch(tmp_path: Path) -> None:
    """BATCH_SUBDIVISIONS: 2 halves of 2 images against 4 at once, by detpipe and by torch."""
    plain = {**BARE, "optimizer": {"use": "torch.optim.SGD", "lr": 0.05}, "duration": "20 steps"}
    halves = train(tmp_path / "a", config(**plain, batch_size=2, accumulate=2), model=detector())
    theirs = detector()
    bare_loop(theirs, torch.optim.SGD(theirs.parameters(), lr=0.05), steps=20)
    for name, weight in theirs.state_dict().items():
        torch.testing.assert_close(halves.weights[name], weight, rtol=1e-5, atol=1e-6)


MOMENTS: list[str] = []


class EveryMoment:
    """A user's hook: none of our classes."""

    phase = Phase.MEASURE

    def __init__(self, *, name: str) -> None:
        self.name = name

    def on_start(self, ctx: LoopContext) -> None:
        MOMENTS.append(f"{self.name} before_train")

    def on_gradients(self, ctx: LoopContext) -> None:
        MOMENTS.append(f"{self.name} after_backward {ctx.state.step}")

    def on_step(self, ctx: LoopContext) -> None:
        MOMENTS.append(f"{self.name} after_step {ctx.state.step}")

    def on_end(self, ctx: LoopContext) -> None:
        MOMENTS.append(f"{self.name} after_train")


def test_register_hooks_from_yaml(tmp_path: Path) -> None:
    MOMENTS.clear()
    hooks = BARE["hooks"] | {"mine": {"use": f"{__name__}.EveryMoment", "name": "m"}}
    train(tmp_path, config(**BARE | {"hooks": hooks}, duration="2 steps"))
    assert MOMENTS == [
        "m before_train", "m after_backward 0", "m after_step 1", "m after_backward 1",
        "m after_step 2", "m after_train",
    ]  # fmt: skip


def test_callback_hook_takes_functions_for_before_and_after_train_and_step(tmp_path: Path) -> None:
    MOMENTS.clear()
    functions = {
        moment: f"{__name__}.noted_{moment}" for moment in ("on_start", "on_step", "on_end")
    }
    callback = {"use": "detpipe.hooks.measure.Callback", "every": "2 steps", **functions}
    hooks = BARE["hooks"] | {"mine": callback}
    train(tmp_path, config(**BARE | {"hooks": hooks}, duration="5 steps"))
    assert MOMENTS == ["on_start 0", "on_step 2", "on_step 4", "on_end 5"]


def noted_on_start(ctx: LoopContext) -> None:
    MOMENTS.append(f"on_start {ctx.state.step}")


def noted_on_step(ctx: LoopContext) -> None:
    MOMENTS.append(f"on_step {ctx.state.step}")


def noted_on_end(ctx: LoopContext) -> None:
    MOMENTS.append(f"on_end {ctx.state.step}")


# --- DefaultTrainer's build_* ---------------------------------------------------------------------

BUILT: list[str] = []


class OwnOptimizer(torch.optim.SGD):
    def __init__(self, parameters: Any, *, lr: float) -> None:
        BUILT.append("optimizer")
        super().__init__(parameters, lr=lr)


def own_schedule(progress: float, *, floor: float) -> float:
    BUILT.append("schedule")
    return max(floor, 1 - progress)


class OwnWriter(Writer):
    def __init__(self, folder: Path, *, note: str) -> None:
        self.note = f"{note} {folder.name}"

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        BUILT.append(f"writer {self.note} {step}")


class OwnHook(Hook):
    def __init__(self, folder: Path, evaluate: Any) -> None:
        self.evaluate = evaluate

    def on_end(self, ctx: LoopContext) -> None:
        BUILT.append(f"hook {sorted(self.evaluate(ctx.eval_model))}")


def test_build_optimizer_lr_scheduler_writers_and_hooks_take_a_users_own(tmp_path: Path) -> None:
    """Each of DefaultTrainer's build_* is an import path in YAML, ours or anybody's."""
    BUILT.clear()
    changes = {
        "optimizer": {"use": f"{__name__}.OwnOptimizer", "lr": 0.1},
        "schedule": {"use": f"{__name__}.own_schedule", "floor": 0.5},
        "writers": {"own": {"use": f"{__name__}.OwnWriter", "note": "for"}},
        "hooks": {"own": {"use": f"{__name__}.OwnHook"}},
        "duration": "7 steps",
        "log_every": "7 steps",
    }
    history = train(tmp_path / "run", config(**{**BARE, **changes})).history
    assert {"optimizer", "schedule"} <= set(BUILT)
    assert set(BUILT[-2:]) == {"writer for run 7", "hook ['val/bbox/AP']"}
    assert history["train/lr"].iloc[-1] == pytest.approx(0.1 * 0.5)


# --- resume_or_load, DefaultCheckpointer, PeriodicCheckpointer ------------------------------------


def test_periodic_checkpointer_keeps_last_k_and_model_final(tmp_path: Path) -> None:
    """PeriodicCheckpointer(period=6, max_to_keep=3), and model_final after the last step."""
    hooks = {"checkpoint": {"every": "6 steps", "keep": 3}, "best": None}
    train(tmp_path, config(hooks=hooks, duration="25 steps"))
    folder = CheckpointFolder(tmp_path)
    assert [(e.step, e.final) for e in folder.entries()] == [
        (18, False), (24, False), (25, True),
    ]  # fmt: skip
    train(tmp_path / "b", config(hooks=hooks, duration="24 steps"))
    assert [(e.step, e.final) for e in CheckpointFolder(tmp_path / "b").entries()] == [
        (12, False), (18, False), (24, True),
    ]  # fmt: skip


def test_periodic_checkpointer_by_epoch_and_max_epoch(tmp_path: Path) -> None:
    """5 steps of 4 images are an epoch of 20: a period and an end in epochs."""
    hooks = {"checkpoint": {"every": "2 epochs", "keep": 9}, "best": None}
    train(tmp_path, config(hooks=hooks, duration="5 epochs"))
    assert [e.step for e in CheckpointFolder(tmp_path).entries()] == [10, 20, 25]


def test_last_checkpoint_is_the_newest_whatever_its_files_times_say(tmp_path: Path) -> None:
    """Their last_checkpoint is a text file that a crash can leave behind; steps cannot lie."""
    train(tmp_path, config(duration="12 steps"))
    folder = CheckpointFolder(tmp_path)
    newest, older = folder.entries()[-1].step, folder.entries()[-2].step
    os.utime(folder.file(newest), (0, 0))
    os.utime(folder.file(older), None)
    assert folder.latest()["state"]["step"] == newest == 12
    assert train(tmp_path, config(duration="14 steps", resume=True)).step == 14


def test_resume_or_load_without_a_checkpoint_begins_at_step_0(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    begun = train(tmp_path / "a", config(duration="5 steps", resume=True))
    assert "there is no checkpoint" in caplog.text
    assert same(begun.weights, train(tmp_path / "b", config(duration="5 steps")).weights)


def test_resume_or_load_takes_no_iteration_nor_lr_from_foreign_weights(tmp_path: Path) -> None:
    """Their fault: weights to start from brought their trainer's iteration and LR along."""
    root = tmp_path / "sample"
    found = sample.read(root, images=20, size=96)
    names = list(found.classes["class_name"])
    trained = tiny.build(len(names), width=16)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=123.0)
    foreign = {
        "model": trained.state_dict(), "optimizer": optimizer.state_dict(), "iteration": 89999,
        "scheduler": {"last_epoch": 89999, "base_lrs": [123.0]},
    }  # fmt: skip
    torch.save(foreign, tmp_path / "model_final.pth")
    model = tiny.build(len(names), width=16, weights=str(tmp_path / "model_final.pth"))
    assert same(model.state_dict(), trained.state_dict())
    store = Store.from_tables(found.images, found.boxes, found.classes, root, split="train")
    settings = config(**BARE, batch_size=2, duration="2 steps", log_every="1 steps", resume=True)
    result = train(
        tmp_path / "run", settings, model=model, classes=names,
        stream=TrainStream(store, batch_size=2, sampler=range_of(len(store))),
    )  # fmt: skip
    assert list(result.history["step"]) == [1, 2]
    assert set(result.history["train/lr"]) == {0.01}


def range_of(length: int) -> Any:
    from detpipe.data import sampler

    return sampler.shuffle(length=length, seed=0)


def test_a_foreign_checkpoint_in_the_folder_is_no_run_to_resume(tmp_path: Path) -> None:
    torch.save({"model": detector().state_dict(), "iteration": 9}, tmp_path / "step_00000009.pt")
    with pytest.raises(CheckpointError, match=r"no detpipe checkpoint.*model\.weights"):
        train(tmp_path, config(resume=True, duration="5 steps"))


def test_best_is_no_resume_point_after_later_checkpoints(tmp_path: Path) -> None:
    """Their fault: the best became last_checkpoint, and a resume lost what came after it."""
    values = iter([30.0, 20.0])
    with pytest.raises(StopIteration):
        train(tmp_path, config(), evaluate=lambda m: {"val/bbox/AP": next(values)})
    folder = CheckpointFolder(tmp_path)
    assert folder.best()["state"]["step"] == 10
    assert folder.latest()["state"]["step"] == 25


# --- EvalHook -------------------------------------------------------------------------------------


@pytest.mark.parametrize("period", ["0 steps", "0 epochs", "51 steps", "50 steps"])
def test_eval_period_zero_or_beyond_the_run_leaves_all_to_the_pipeline(
    tmp_path: Path, period: str, caplog: pytest.LogCaptureFixture
) -> None:
    """EVAL_PERIOD 0, or > max_iter: one evaluation, the final one; it is said at the start."""
    caplog.set_level("INFO")
    evaluated: list[int] = []
    settings = config(hooks={"evaluate": {"every": period}})
    train(tmp_path, settings, evaluate=lambda m: evaluated.append(1) or evaluate(m))
    assert evaluated == []
    assert "the final weights are evaluated once, after training" in caplog.text


def test_eval_period_negative_is_refused() -> None:
    with pytest.raises(ValidationError, match="duration"):
        config(hooks={"evaluate": {"every": "-5 steps"}})
    with pytest.raises(ValidationError, match="must be 0 or more, got -5"):
        Duration(steps=-5)


def test_eval_period_that_does_not_divide_the_run(tmp_path: Path) -> None:
    history = train(tmp_path, config(hooks={"evaluate": {"every": "20 steps"}})).history
    assert list(history.dropna(subset="val/bbox/AP")["step"]) == [20, 40]


def test_eval_hook_never_evaluates_the_same_weights_twice(tmp_path: Path) -> None:
    """Their fault: after_step and after_train both evaluated the last iteration."""
    seen: list[float] = []

    def weigh(model: nn.Module) -> dict[str, float]:
        seen.append(float(sum(p.double().sum() for p in model.parameters())))
        return evaluate(model)

    settings = config(publish="best", hooks={"evaluate": {"every": "25 steps"}})
    train(tmp_path, settings, evaluate=weigh)
    assert len(seen) == len(set(seen)) == 2


# --- EventStorage, writers ------------------------------------------------------------------------


def test_window_mean_as_smoothing_hint(tmp_path: Path) -> None:
    """put_scalar(smoothing_hint=True) is a mean over the interval, False is the last value."""
    scalars = Scalars()
    values = [4.0, 1.0, 7.0]
    for step, value in enumerate(values, 1):
        scalars.step = step
        scalars.put("smooth", value)
        scalars.put("as it is", value, how="last")
    assert scalars.latest("smooth") == values[-1]
    row = scalars.take_interval()
    assert (row["smooth"], row["as it is"]) == (sum(values) / len(values), values[-1])
    scalars.put("smooth", 9.0)
    assert scalars.take_interval()["smooth"] == 9.0, "the window begins anew"


def test_metrics_json_has_a_row_a_log_interval_with_its_mean(tmp_path: Path) -> None:
    """JSONWriter's metrics.json: LOG_INTERVAL 10 against every single loss."""
    each = train(tmp_path / "a", config(log_every="1 steps")).history
    train(tmp_path / "b", config(log_every="10 steps"))
    lines = (tmp_path / "b" / "metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if "train/loss" in row]
    assert [row["step"] for row in rows] == [10, 20, 30, 40, 50]
    for row in rows:
        window = each[(each["step"] > row["step"] - 10) & (each["step"] <= row["step"])]
        assert row["train/loss"] == pytest.approx(window["train/loss"].mean(), rel=1e-12)
        assert row["train/lr"] == window["train/lr"].iloc[-1]


@pytest.mark.parametrize("name", ["A-P", "a,b", 'say "x"', "R&D (x)", "猫", "a/b"])
def test_a_dash_in_a_name_reaches_every_file(tmp_path: Path, name: str) -> None:
    """Their fault: names with '-' were left out of the printed csv."""
    metric = f"val/bbox/AP/{name}"
    train(
        tmp_path, config(duration="12 steps", hooks={"best": None}),
        evaluate=lambda m: {metric: 12.5},
    )  # fmt: skip
    csv = pd.read_csv(tmp_path / "metrics.csv")
    jsonl = pd.read_json(tmp_path / "metrics.jsonl", lines=True)
    for table in (csv, jsonl):
        assert list(table.dropna(subset=metric)[metric]) == [12.5]


# --- apex, sys.exit, README.md, exit codes --------------------------------------------------------


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_fp16_apex_levels_say_what_to_write_instead(level: str) -> None:
    with pytest.raises(ValidationError, match=level) as caught:
        config(precision=level)
    assert "bf16" in str(caught.value)


@pytest.mark.parametrize("name", ["FusedAdam", "FusedSGD", "FusedLAMB"])
def test_fp16_apex_optimizers_say_what_to_write_instead(name: str) -> None:
    with pytest.raises((ConfigError, ValidationError)) as caught:
        config(optimizer={"use": f"apex.optimizers.{name}", "lr": 0.1})
    assert f"apex.optimizers.{name}" in str(caught.value)
    assert "torch.optim.AdamW" in str(caught.value)


def test_no_sys_exit_in_the_library(project_root: Path) -> None:
    """Only signals end a process, as SystemExit with their number."""
    calls = []
    for file in (project_root / "src" / "detpipe").rglob("*.py"):
        if file.name in ("cli.py", "__main__.py"):
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                if name in ("sys.exit", "exit", "quit", "os._exit", "os.abort"):
                    calls.append(f"{file.name}:{node.lineno}: {name}")
    assert calls == []


def test_the_working_folder_and_its_readme_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their fault: the evaluation wrote its table over ./README.md."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "README.md").write_text("mine")
    monkeypatch.chdir(work)
    train(tmp_path / "run", config())
    assert [(f.name, f.read_text()) for f in work.rglob("*")] == [("README.md", "mine")]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RuntimeError("a bug"), 1),
        (NonFiniteLoss(3, {"a": math.nan}, ["x.jpg"]), 1),
        (DetpipeError("a mistake"), 1),
        (KeyboardInterrupt(), 130),
        (SystemExit(143), 143),
        (MemoryError(), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_a_crash_never_ends_with_exit_code_0(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    from detpipe import cli

    def crash(**options: Any) -> None:
        raise error

    monkeypatch.setattr(cli.run, "callback", crash)
    assert CliRunner().invoke(cli.cli, ["run"]).exit_code == code


# --- situations of real people --------------------------------------------------------------------


def test_t1_batches_without_any_box_train(tmp_path: Path) -> None:
    root = tmp_path / "sample"
    found = sample.read(root, images=20, size=96)
    names = list(found.classes["class_name"])
    store = Store.from_tables(
        found.images, found.boxes.iloc[:0], found.classes, root, split="train"
    )
    with seeded(0):
        model = tiny.build(len(names), width=16)
    result = train(
        tmp_path / "run", config(**BARE, batch_size=2, duration="3 steps", log_every="1 steps"),
        model=model, stream=TrainStream(store, batch_size=2, sampler=range_of(len(store))),
        classes=names,
    )  # fmt: skip
    assert len(result.history) == 3
    assert result.history["train/loss"].map(math.isfinite).all()


def test_t2_a_learning_rate_for_8_gpus_is_scaled_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Written for 16 images a step, run with 4."""
    caplog.set_level("INFO")
    settings = config(reference_batch=16, duration="5 steps", **{**BARE, "log_every": "1 steps"})
    result = train(tmp_path, settings)
    assert result.step == 5 * 16 // 4, "as many images as were meant"
    assert set(result.history["train/lr"]) == {0.01 * 4 / 16}
    assert "written for 16 images a step: the learning rate is multiplied by 0.25" in caplog.text


def test_t7_another_batch_size_or_accumulation_is_refused_by_name_and_changes_nothing(
    tmp_path: Path,
) -> None:
    train(tmp_path, config(duration="5 steps"))
    before = {f.name: f.read_bytes() for f in tmp_path.iterdir() if f.is_file()}
    with pytest.raises(CheckpointError) as caught:
        train(tmp_path, config(duration="9 steps", resume=True, batch_size=2, accumulate=2))
    assert "train.batch_size: 4 → 2" in str(caught.value)
    assert "train.accumulate: 1 → 2" in str(caught.value)
    assert {f.name: f.read_bytes() for f in tmp_path.iterdir() if f.is_file()} == before


def test_t11_a_real_detector_with_one_seed_is_identical_in_two_runs(tmp_path: Path) -> None:
    runs = []
    for name, rubbish in (("a", 0), ("b", 7)):
        torch.rand(rubbish)  # what the process did before
        folder = tmp_path / name / "run"
        folder.mkdir(parents=True)
        runs.append(real_run(folder, workers=0, duration="2 steps"))
    assert same(runs[0].weights, runs[1].weights)
    assert runs[0].history["train/loss"].equals(runs[1].history["train/loss"])


@pytest.mark.parametrize(("accumulate", "steps"), [(1, 5), (2, 2), (3, 2), (4, 1), (7, 1)])
def test_t13_batches_of_an_epoch_that_the_accumulation_does_not_divide(
    tmp_path: Path, accumulate: int, steps: int
) -> None:
    """An epoch of 5 batches becomes whole updates, each of the full number of batches."""
    model = detector()
    settings = config(**BARE, duration="1 epochs", accumulate=accumulate)
    result = train(tmp_path, settings, model=model)
    assert result.step == steps == max(1, round(IMAGES / (4 * accumulate)))
    assert model.calls == steps * accumulate


def test_the_plan_says_what_auto_scale_config_would() -> None:
    """cvpods: from 1 to 2 times the images, LR doubles, iterations halve, epochs stay."""
    written = config(duration="90 steps", reference_batch=4, warmup={"duration": "10 steps"})
    doubled = config(
        duration="90 steps", reference_batch=4, warmup={"duration": "10 steps"}, batch_size=8
    )
    plans = [Plan.of(c, images_per_epoch=IMAGES) for c in (written, doubled)]
    assert [(p.total_steps, p.warmup_steps, p.lr_scale) for p in plans] == [
        (90, 10, 1.0), (45, 5, 2.0),
    ]  # fmt: skip
    update = build_update(doubled, detector(), plan=plans[1], device=torch.device("cpu"))
    update.begin(0.5)
    cosine = (1 + math.cos(math.pi * 0.5)) / 2
    assert update.optimizer.param_groups[0]["lr"] == pytest.approx(0.01 * 2 * cosine)


def test_a_crash_in_a_hook_leaves_the_last_checkpoint_and_its_own_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        train(tmp_path, config(), evaluate=lambda model: {"val/bbox/AP": 1 / 0})
    assert CheckpointFolder(tmp_path).latest()["state"]["step"] == 5
    assert not CheckpointFolder(tmp_path).finished
