"""From settings to a finished training: what is refused, what is said, what comes out."""

from __future__ import annotations

import itertools
import math
import random
import signal
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from pandas.testing import assert_frame_equal

from detpipe.core.config import Duration
from detpipe.core.errors import CheckpointError, ConfigError, NonFiniteLoss, NonFiniteWeights
from detpipe.core.types import Batch
from detpipe.train.build import build_schedule, build_update
from detpipe.train.checkpoint import CheckpointFolder
from detpipe.train.content import published
from detpipe.train.contract import LoopContext, Phase
from detpipe.train.plan import Plan
from detpipe.train.result import TrainResult

from .toys import IMAGES, ToyDetector, ToyStream, config, detector, evaluate, same, timeless, train


def plan(**changes: object) -> Plan:
    return Plan.of(config(**changes), images_per_epoch=IMAGES)


def text_of(folder: Path) -> dict[str, bytes]:
    return {str(f): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


def test_durations() -> None:
    assert plan(duration="10 epochs").total_steps == 50
    assert plan(duration="10 epochs", accumulate=2).total_steps == 25
    assert plan(duration="100 images").total_steps == 25
    assert plan(warmup={"duration": "2 epochs"}).warmup_steps == 10


def test_a_batch_larger_than_the_data_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="batch_size is 21, but there are only 20 training"):
        train(tmp_path, config(batch_size=21))
    assert not list(tmp_path.iterdir())


def test_a_run_without_steps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="duration is 0 epochs"):
        train(tmp_path, config(duration="0 epochs"))


def test_settings_for_another_batch_are_scaled() -> None:
    """Written for 16 images, run with 4: a quarter of the rate, four times the steps."""
    settings = config(
        reference_batch=16,
        duration="100 steps",
        warmup={"duration": "10 steps", "factor": 0.5},
        schedule={
            "use": "detpipe.train.schedule.multi_step", "milestones": ["60 steps", "15 epochs"],
        },
    )  # fmt: skip
    scaled = Plan.of(settings, images_per_epoch=IMAGES)
    assert (scaled.total_steps, scaled.warmup_steps) == (400, 40)
    update = build_update(settings, detector(), plan=scaled, device=torch.device("cpu"))
    update.begin(0.5)
    assert update.optimizer.param_groups[0]["lr"] == pytest.approx(0.01 / 4 * 0.1)
    factors = [build_schedule(settings, plan=scaled)(k / 400) for k in range(400)]
    changes = [k for k in range(41, 400) if factors[k] != factors[k - 1]]
    assert changes == [75, 240]  # 15 epochs of 5 steps; 60 steps of 16 images
    assert factors[0] == 0.5
    assert factors[20] == pytest.approx(0.75)


def test_the_same_images_for_hooks_too(tmp_path: Path) -> None:
    """A period in steps of the reference batch is as many images in steps of this one."""
    result = train(tmp_path, config(reference_batch=8, duration="25 steps", hooks={
        "evaluate": {"every": "10 steps"},
    }, log_every="5 steps"))  # fmt: skip
    rows = result.history
    assert list(rows.dropna(subset="val/bbox/AP")["step"]) == [20, 40]
    assert list(rows.dropna(subset="train/loss")["step"]) == [10, 20, 30, 40, 50]


def test_finished_stays_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    first = train(tmp_path, config())
    before = text_of(tmp_path)
    again = train(tmp_path, config(resume=True), model=detector(seed=7, dropout=0.2, norm=True))
    assert "already finished (step 50): nothing is changed" in caplog.text
    assert text_of(tmp_path) == before
    assert same(again.weights, first.weights)
    assert again.step == first.step == 50
    assert again.history.equals(first.history)


def test_a_finished_run_can_be_made_longer(tmp_path: Path) -> None:
    train(tmp_path, config())
    longer = train(tmp_path, config(resume=True, duration="60 steps"))
    assert longer.step == 60
    assert CheckpointFolder(tmp_path).finished
    assert list(longer.history["step"]) == sorted(set(longer.history["step"]))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"batch_size": 2}, "train.batch_size: 4 → 2"),
        ({"accumulate": 2}, "train.accumulate: 1 → 2"),
        ({"optimizer": {"lr": 0.5}}, "train.optimizer.lr: 0.01 → 0.5"),
    ],
)
def test_another_configuration_is_refused_by_name(tmp_path: Path, change: dict, line: str) -> None:
    train(tmp_path, config(duration="5 steps"))
    before = text_of(tmp_path)
    with pytest.raises(CheckpointError, match="cannot be resumed with other settings") as caught:
        train(tmp_path, config(resume=True, duration="9 steps", **change))
    assert f"- {line}" in str(caught.value)
    assert "duration" not in str(caught.value).partition("\n")[2]
    assert text_of(tmp_path) == before


def test_other_classes_are_refused(tmp_path: Path) -> None:
    train(tmp_path, config(duration="5 steps"))
    with pytest.raises(CheckpointError, match=r"classes \['a', 'b'\], this one has \['b', 'a'\]"):
        train(tmp_path, config(resume=True), classes=["b", "a"])


def test_a_new_run_never_loses_an_unfinished_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "checkpoints"
    with pytest.raises(NonFiniteLoss):
        train(folder, config(), model=detector(fail_at=23))
    train(folder, config())
    (aside,) = [other for other in tmp_path.iterdir() if other != folder]
    assert aside.name.startswith("checkpoints_")
    assert CheckpointFolder(aside).latest()["state"]["step"] == 20
    assert f"held an unfinished run (step 20): it is now '{aside}'" in caplog.text


def test_a_finished_run_is_kept_until_another_is_finished(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    folder, previous = tmp_path / "checkpoints", tmp_path / "checkpoints_previous"
    for steps in (5, 6, 7):
        train(folder, config(duration=f"{steps} steps"))
    assert sorted(tmp_path.iterdir()) == [folder, previous]
    assert CheckpointFolder(previous).latest()["state"]["step"] == 6
    assert (previous / "metrics.jsonl").exists()
    assert [entry.step for entry in CheckpointFolder(folder).entries()] == [5, 7]
    assert f"held a finished run (step 6): it is now '{previous}'" in caplog.text
    before = list(text_of(folder).values())
    for _ in range(2):  # neither the first nor the second failure costs the finished run
        with pytest.raises(NonFiniteLoss, match="There is no checkpoint to go back to"):
            train(folder, config(), model=detector(fail_at=2))
        assert list(text_of(previous).values()) == before


@pytest.mark.parametrize(
    "mistake",
    [
        {"hooks": {"none": {"use": "detpipe.hooks.measure.Callback"}}},
        {"hooks": {"mine": {"use": "pathlib.PurePath"}}},
        {"hooks": {"no": {"use": "detpipe.hooks.freeze.Freeze", "patterns": ["layer8"]}}},
        {"groups": {"patterns": {"layer8": {"lr_factor": 2}}}},
    ],
)
@pytest.mark.parametrize("resume", [False, True])
def test_a_mistake_that_shows_while_building_costs_nothing(
    tmp_path: Path, mistake: dict, resume: bool
) -> None:
    folder = tmp_path / "checkpoints"
    train(folder, config(duration="5 steps"))
    before = text_of(tmp_path)
    wrong = config(**mistake, duration="9 steps", resume=resume)
    with pytest.raises(ValueError, match=r"there is no function|is no hook|'layer8'"):
        train(folder, wrong, run_config={"train": config().model_dump(mode="json")})
    assert text_of(tmp_path) == before


NO_MARKS = """{"format": 1, "checkpoints": [
    {"step": 20, "crc": null, "best": false, "metric": null, "final": false},
    {"step": 50, "crc": null, "best": false, "metric": null, "final": true}
]}"""


@pytest.mark.parametrize("index", [None, "{", NO_MARKS])
def test_the_best_is_published_although_the_index_was_lost(
    tmp_path: Path, index: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    values = iter([10.0, 30.0, 20.0, 20.0, 25.0])
    settings = config(publish="best")
    first = train(tmp_path, settings, evaluate=lambda model: {"val/bbox/AP": next(values)})
    (tmp_path / "index.json").unlink()
    if index is not None:
        (tmp_path / "index.json").write_text(index)
    again = train(tmp_path, config(publish="best", resume=True))
    assert again.step == first.step == 20
    assert same(again.weights, first.weights)
    assert "step 20 is marked again" in caplog.text
    assert [e.step for e in CheckpointFolder(tmp_path).entries() if e.best] == [20]


def test_a_lost_best_is_not_replaced_by_the_final_weights(tmp_path: Path) -> None:
    values = iter([10.0, 30.0, 20.0, 20.0, 25.0])
    train(tmp_path, config(publish="best"), evaluate=lambda model: {"val/bbox/AP": next(values)})
    (tmp_path / "index.json").unlink()
    (tmp_path / "step_00000020.pt").unlink()
    before = text_of(tmp_path)
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"step_00000020\.pt.*train.publish to final"):
            train(tmp_path, config(publish="best", resume=True))
        assert text_of(tmp_path) == before
    assert train(tmp_path, config(resume=True)).step == 50


def test_a_metric_without_a_value_is_no_mistake(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """AP of large objects, and there are none."""
    name = "val/bbox/APl"
    hooks = {
        "best": {"metric": name},
        "early": {"use": "detpipe.hooks.decide.EarlyStop", "metric": name, "patience": 1},
    }
    settings = config(hooks=hooks, writers={"console": {"use": "detpipe.hooks.writers.Console"}})
    caplog.set_level("INFO")
    result = train(tmp_path, settings, evaluate=lambda model: {**evaluate(model), name: math.nan})
    assert result.step == 50
    assert caplog.text.count(f"Best: '{name}' has no value (NaN) at step 10") == 1
    assert caplog.text.count("has no value") == 2  # one of each hook
    assert result.history[name].isna().all()
    assert "APl nan" not in caplog.text


def test_nan_leaves_the_last_good_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteLoss) as caught:
        train(tmp_path, config(), model=detector(fail_at=23))
    assert caught.value.step == 23
    assert caught.value.files == ("image_8.jpg", "image_9.jpg", "image_10.jpg", "image_11.jpg")
    folder = CheckpointFolder(tmp_path)
    assert [entry.step for entry in folder.entries()][-2:] == [15, 20]
    assert f"The checkpoint of step 20 is intact: '{folder.file(20)}'" in str(caught.value)
    weights = folder.latest()["model"]
    assert all(bool(w.isfinite().all()) for w in weights.values())


@pytest.mark.parametrize("duration", ["3 steps", "7 steps"])
def test_a_run_shorter_than_the_log_period_is_recorded(tmp_path: Path, duration: str) -> None:
    history = train(tmp_path, config(duration=duration)).history
    assert list(history["step"]) == [int(duration.split(maxsplit=1)[0])]
    assert math.isfinite(history["train/loss"][0])
    for name in ("train/loss_a", "train/loss_b", "train/lr", "train/epoch", "time/data"):
        assert name in history


@pytest.mark.parametrize(
    ("every", "said", "at"),
    [
        ("0 steps", "a period of 0 gives none within 50 steps", []),
        ("60 steps", "every 60 steps gives none within 50 steps", []),
        ("20 steps", "2 during training, at step 20, 40 of 50", [20, 40]),
        ("25 steps", "1 during training, at step 25 of 50", [25]),
    ],
)
def test_evaluation_periods_are_stated_and_the_last_step_is_left_to_the_pipeline(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, every: str, said: str, at: list[int]
) -> None:
    caplog.set_level("INFO")
    evaluated = []
    history = train(
        tmp_path,
        config(hooks={"evaluate": {"every": every}}),
        evaluate=lambda m: evaluated.append(0) or evaluate(m),
    ).history
    assert said in caplog.text
    assert "the final weights are evaluated once, after training" in caplog.text
    assert len(evaluated) == len(at)
    if at:
        assert list(history.dropna(subset="val/bbox/AP")["step"]) == at


def test_a_warmup_longer_than_the_run_is_stated(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(tmp_path, config(duration="10 steps", warmup={"duration": "20 steps"}))
    assert "the warm-up (20 steps) is not over before the run (10 steps) ends" in caplog.text


def test_best_weights_are_published_with_their_step(tmp_path: Path) -> None:
    values = iter([10.0, 30.0, math.nan, 20.0, 25.0])
    result = train(
        tmp_path, config(publish="best"), evaluate=lambda model: {"val/bbox/AP": next(values)}
    )
    assert next(values, None) is None  # 10, 20, 30, 40 and, because it could be the best, 50
    assert result.step == 20
    best = CheckpointFolder(tmp_path).best()
    assert best["state"]["step"] == 20
    assert same(result.weights, published(best))
    again = train(tmp_path, config(publish="best", resume=True))
    assert again.step == 20
    assert same(again.weights, result.weights)


def test_best_weights_without_any_evaluation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = train(tmp_path, config(publish="best"), evaluate=None)
    assert result.step == 50
    assert "no step was marked as the best" in caplog.text


def test_best_and_early_stop_remember_over_a_resume(tmp_path: Path) -> None:
    """Best value at step 10; the run dies after 30; worse values must neither win nor reset."""
    hooks = {
        "early": {"use": "detpipe.hooks.decide.EarlyStop", "patience": 4},
        "checkpoint": {"every": "1 steps"},
    }
    first = iter([50.0, 40.0, 40.0])
    with pytest.raises(StopIteration):
        train(tmp_path, config(hooks=hooks), evaluate=lambda m: {"val/bbox/AP": next(first)})
    second = iter([45.0, 44.0, 43.0])
    settings = config(hooks=hooks, resume=True, duration="100 steps")
    result = train(tmp_path, settings, evaluate=lambda m: {"val/bbox/AP": next(second)})
    assert CheckpointFolder(tmp_path).best()["state"]["step"] == 10
    assert result.step == 50  # the fourth in a row that is no better than step 10's


def test_what_ended_early_is_finished(tmp_path: Path) -> None:
    hooks = {"early": {"use": "detpipe.hooks.decide.EarlyStop", "patience": 1}}
    worse = iter([2.0, 1.0])
    settings = config(hooks=hooks)
    first = train(tmp_path, settings, evaluate=lambda m: {"val/bbox/AP": next(worse)})
    assert first.step == 20
    before = text_of(tmp_path)
    again = train(tmp_path, config(hooks=hooks, resume=True))
    assert again.step == 20
    assert text_of(tmp_path) == before


def test_what_is_published_is_the_average(tmp_path: Path) -> None:
    train(tmp_path, config())
    content = CheckpointFolder(tmp_path).latest()
    assert not same(content["model"], content["ema"])
    assert same(published(content), content["ema"])
    plain = train(tmp_path, config(hooks={"ema": None}))
    assert same(plain.weights, CheckpointFolder(tmp_path).latest()["model"])


def test_the_start_says_what_will_happen(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    train(tmp_path, config(accumulate=2, reference_batch=4))
    assert "20 training images, 25 steps (10 epochs) of 4 × 2 images" in caplog.text
    assert "learning rate 0.02; fp32 on cpu" in caplog.text
    assert "the learning rate is multiplied by 2" in caplog.text
    assert f"files go to '{tmp_path}'" in caplog.text
    assert "training is done: step 25 of 25, epoch 10.00, in 0:00:" in caplog.text
    assert not any("[/" in record.getMessage() for record in caplog.records)


def test_the_order_in_which_hooks_are_listed_does_not_matter(tmp_path: Path) -> None:
    results = []
    names = [*config().hooks, "memory", "early"]
    more = {
        "memory": {"use": "detpipe.hooks.measure.Memory"},
        "early": {"use": "detpipe.hooks.decide.EarlyStop", "patience": 2},
    }
    for seed in range(3):
        random.Random(seed).shuffle(names)
        settings = config(hooks=more)
        shuffled = {name: settings.hooks[name] for name in names}
        settings = settings.model_copy(update={"hooks": shuffled})
        folder = tmp_path / str(seed)
        result = train(folder, settings)
        marks = [(e.step, e.best, e.final) for e in CheckpointFolder(folder).entries()]
        results.append((result, marks))
    first, marks = results[0]
    for other, other_marks in results[1:]:
        assert same(other.weights, first.weights)
        assert other_marks == marks
        equal = ["step", "train/loss", "train/lr", "val/bbox/AP"]
        assert other.history[equal].equals(first.history[equal])


def test_a_frozen_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="every parameter of the model is frozen"):
        train(tmp_path, config(), model=detector().requires_grad_(False))


def test_no_hooks_and_no_writers_still_give_weights_and_history(tmp_path: Path) -> None:
    bare = config(
        hooks=dict.fromkeys(config().hooks), writers=dict.fromkeys(config().writers),
    )  # fmt: skip
    result = train(tmp_path, bare, stream=ToyStream())
    assert len(result.history) == 8
    assert result.step == 50


def explode(ctx: LoopContext) -> None:
    """The last update is the one that is too large: no loss shows it."""
    if ctx.is_last:
        with torch.no_grad():
            for weight in ctx.model.parameters():
                weight.mul_(math.inf)


@pytest.mark.parametrize("checkpoints", [True, False])
def test_weights_that_explode_under_finite_losses(tmp_path: Path, checkpoints: bool) -> None:
    hooks = {
        "explode": {
            "use": "detpipe.hooks.measure.Callback",
            "phase": "UPDATE",
            "on_step": f"{__name__}.explode",
        }
    }
    if not checkpoints:
        hooks["checkpoint"] = None
    settings = config(hooks=hooks, duration="6 steps")
    with pytest.raises(NonFiniteWeights, match="weights are not finite after step 6") as caught:
        train(tmp_path, settings)
    message = str(caught.value)
    assert "loss is" not in message
    assert "layers.0.weight=" in message
    assert "lower the learning rate" in message
    assert ("The checkpoint of step 5 is intact" in message) is checkpoints
    assert not CheckpointFolder(tmp_path).finished


def broken_at(*calls: int) -> ToyDetector:
    """Forward passes number ``calls`` (1 is the first) give NaN, and a forward of NaN."""
    model = detector(norm=True)

    def spoil(module: ToyDetector, inputs: tuple[Batch, ...]) -> tuple[Batch, ...] | None:
        if module.calls + 1 not in calls:
            return None
        (batch,) = inputs
        images = tuple(torch.full_like(image.float(), torch.nan) for image in batch.images)
        return (Batch(images, batch.targets, batch.paths),)

    model.register_forward_pre_hook(spoil)
    return model


def test_a_step_that_is_not_finite_is_skipped_by_setting(tmp_path: Path, caplog) -> None:
    """The run is the one that had never seen that step's images, but for its length."""
    settings = config(
        hooks={"ema": None, "evaluate": None, "best": None},
        schedule={"use": "detpipe.train.schedule.constant"},
        warmup={"duration": "0 steps"},
        duration="10 steps",
        log_every="1 steps",
        non_finite={"action": "skip", "limit": 2},
    )
    result = train(tmp_path / "skipped", settings, model=broken_at(4, 7))
    assert result.history["train/skipped_steps"].max() == 2
    assert result.history["train/loss"].isna().tolist() == [k in (4, 7) for k in range(1, 11)]
    assert all(tensor.isfinite().all() for tensor in result.weights.values())
    assert [r.getMessage()[:40] for r in caplog.records if "left out (" in r.getMessage()] == [
        "the step is left out (1 of at most 2): l",
        "the step is left out (2 of at most 2): l",
    ]

    class Without(ToyStream):
        def batches(self, start: int):
            for number, batch in enumerate(super().batches(start), 1):
                if number not in (4, 7):
                    yield batch

    expected = train(
        tmp_path / "expected",
        settings.model_copy(update={"duration": Duration(steps=8)}),
        model=detector(norm=True),
        stream=Without(),
    )
    assert same(result.weights, expected.weights)


def test_more_skipped_steps_than_allowed_end_the_run(tmp_path: Path) -> None:
    settings = config(non_finite={"action": "skip", "limit": 2})
    with pytest.raises(NonFiniteLoss) as caught:
        train(tmp_path, settings, model=broken_at(4, 7, 9))
    assert caught.value.step == 9


def test_skipped_steps_are_counted_over_a_resume(tmp_path: Path) -> None:
    settings = config(non_finite={"action": "skip", "limit": 2}, duration="10 steps")
    train(tmp_path, settings, model=broken_at(4, 7))
    longer = config(non_finite={"action": "skip", "limit": 2}, duration="20 steps", resume=True)
    with pytest.raises(NonFiniteLoss) as caught:
        train(tmp_path, longer, model=broken_at(2))
    assert caught.value.step == 12


def test_the_newest_checkpoint_is_loaded_again_by_setting(tmp_path: Path, caplog) -> None:
    """Steps are taken again with the images after those that led to NaN."""
    seen = []

    class Noted(ToyStream):
        def batches(self, start: int):
            for position, batch in zip(itertools.count(start, 4), super().batches(start)):
                seen.append(position)
                yield batch

    settings = config(
        duration="14 steps",
        log_every="1 steps",
        hooks={"evaluate": None, "best": None, "checkpoint": {"every": "5 steps"}},
        non_finite={"action": "reload", "limit": 1},
    )
    result = train(tmp_path, settings, model=broken_at(8), stream=Noted())
    assert seen == [4 * k for k in range(8)] + [4 * k for k in range(8, 17)]
    assert result.step == 14
    assert result.history["step"].tolist() == list(range(1, 15))
    assert result.history["train/loss"].notna().all()
    assert CheckpointFolder(tmp_path).latest()["state"]["reloads"] == 1
    assert "goes back to step 5 (1 of at most 1 times)" in caplog.text


@pytest.mark.parametrize(("calls", "step"), [((8, 11), 8), ((3,), 3)])
def test_a_reload_that_cannot_help_ends_the_run(tmp_path: Path, calls, step: int) -> None:
    """The limit is reached, or there is no checkpoint yet."""
    settings = config(
        log_every="1 steps",
        hooks={"checkpoint": {"every": "5 steps"}},
        non_finite={"action": "reload", "limit": 1},
    )
    with pytest.raises(NonFiniteLoss) as caught:
        train(tmp_path, settings, model=broken_at(*calls))
    assert caught.value.step == step


def test_the_better_of_average_and_model_is_published_and_said(tmp_path: Path, caplog) -> None:
    """Over a resume too: what was better at the last evaluation."""
    caplog.set_level("INFO")

    def prefer(which: str):
        # The average has no parameter that learns.
        def evaluate(model: torch.nn.Module) -> dict[str, float]:
            averaged = not next(model.parameters()).requires_grad
            return {"val/bbox/AP": 2.0 if averaged is (which == "ema") else 1.0}

        return evaluate

    for which in ("ema", "model"):
        folder = tmp_path / which
        settings = config(hooks={"ema": {"beside": True}})
        result = train(folder, settings, evaluate=prefer(which))
        content = CheckpointFolder(folder).latest()
        assert (result.source, content["published"]) == (which, which)
        assert same(result.weights, content[which])
        assert not same(content["ema"], content["model"])
        assert result.metrics["val/bbox/AP"] == 2.0
        again = train(folder, config(hooks={"ema": {"beside": True}}, resume=True))
        assert same(again.weights, result.weights)
        word = {"ema": "EMA", "model": "raw"}[which]
        assert f"published: the {word} weights of step 50" in caplog.text


def test_an_average_beside_needs_an_evaluation() -> None:
    with pytest.raises(ValueError, match=r"ema.beside needs the hook .*Evaluate"):
        config(hooks={"ema": {"beside": True}, "evaluate": None, "best": None})


def test_a_time_limit_ends_a_run_that_goes_on_as_if_unbroken(tmp_path: Path, monkeypatch) -> None:
    unbroken = train(tmp_path / "unbroken", config())
    limit = {"use": "detpipe.hooks.decide.MaxTime", "seconds": 1.375}
    clock = itertools.count(0, 0.125)  # seconds at each look: ten steps a process
    monkeypatch.setattr("detpipe.hooks.decide.perf_counter", lambda: next(clock))
    monkeypatch.setattr("detpipe.train.build.perf_counter", lambda: next(clock))
    for steps in (10, 20, 30, 40, 50):
        settings = config(hooks={"limit": limit}, resume=steps > 10)
        result = train(tmp_path / "parts", settings)
        assert result.step == steps
        assert CheckpointFolder(tmp_path / "parts").finished is (steps == 50)
    assert same(result.weights, unbroken.weights)
    assert_frame_equal(timeless(result.history), timeless(unbroken.history))


def test_the_end_says_best_and_last_numbers_and_where_everything_lies(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    train(tmp_path, config())
    best = next(entry for entry in CheckpointFolder(tmp_path).entries() if entry.best)
    (line,) = [r.getMessage() for r in caplog.records if "training is done" in r.getMessage()]
    assert "step 50 of 50, epoch 10.00, in 0:00:0" in line
    assert f"best val/bbox/AP {best.metric:.4g} at step {best.step}" in line
    assert "loss 0." in line
    assert f"in '{tmp_path}'" in line


def test_gradients_that_a_hook_spoils_are_skipped(tmp_path: Path) -> None:
    spoil = {"use": "tests.train.test_build.Spoil", "at": [3, 7]}
    settings = config(
        hooks={"spoil": spoil}, duration="10 steps", non_finite={"action": "skip", "limit": 2}
    )
    result = train(tmp_path, settings)
    assert result.history["train/skipped_steps"].max() == 2
    assert all(tensor.isfinite().all() for tensor in result.weights.values())


class Spoil:
    def __init__(self, *, at: list[int]) -> None:
        self.at = at

    def on_gradients(self, ctx: LoopContext) -> None:
        if ctx.state.step + 1 in self.at:
            next(ctx.model.parameters()).grad.fill_(torch.nan)


def test_weights_that_are_not_finite_cannot_be_skipped(tmp_path: Path) -> None:
    """Every later step would be left out: it is the weights that have to be said."""
    settings = config(
        hooks={"ema": None, "break": {"use": "tests.train.test_build.Break"}},
        non_finite={"action": "skip", "limit": 40},
    )
    with pytest.raises(NonFiniteWeights, match=r"weights are not finite after step 3"):
        train(tmp_path, settings)


class Break:
    def on_step(self, ctx: LoopContext) -> None:
        if ctx.state.step == 3:
            next(ctx.model.parameters()).data.fill_(torch.inf)


def test_an_average_does_not_move_at_a_step_that_is_left_out(tmp_path: Path) -> None:
    Watch.averages = []
    settings = config(
        duration="5 steps",
        hooks={"watch": {"use": "tests.train.test_build.Watch"}},
        non_finite={"action": "skip"},
    )
    train(tmp_path, settings, model=broken_at(3))
    moved = [
        any(not torch.equal(x, y) for x, y in zip(a, b, strict=True))
        for a, b in itertools.pairwise(Watch.averages)
    ]
    assert moved == [True, False, True, True]


class Watch:
    averages: ClassVar[list[list[torch.Tensor]]] = []
    step = 0

    def on_start(self, ctx: LoopContext) -> None:
        Watch.step = ctx.state.step

    def on_step(self, ctx: LoopContext) -> None:
        Watch.step = ctx.state.step
        if ctx.average is not None:
            Watch.averages.append([p.clone() for p in ctx.average.parameters()])


@pytest.mark.parametrize("action", ["reload", "skip"])
def test_a_signal_ends_a_run_that_would_help_itself(tmp_path: Path, action: str) -> None:
    """It comes after the loss that is not finite, before that was noticed."""
    model = broken_at(22)
    model.register_forward_pre_hook(
        lambda m, i: signal.raise_signal(signal.SIGTERM) if m.calls == 23 else None
    )
    with pytest.raises(SystemExit) as caught:
        train(tmp_path, config(non_finite={"action": action}), model=model)
    assert caught.value.code == 143


def test_a_choice_made_up_for_after_a_signal_stands(tmp_path: Path) -> None:
    """At step 10 the raw weights are better, at 20 the average, and that evaluation breaks off."""

    def run(folder: Path, *, breaks: bool, **changes: object) -> TrainResult:
        evaluations = itertools.count(3 if "resume" in changes else 1)

        def evaluate(model: torch.nn.Module) -> dict[str, float]:
            averaged = not next(model.parameters()).requires_grad
            second = next(evaluations) > 2  # two models an evaluation
            if breaks and second:
                signal.raise_signal(signal.SIGTERM)
            return {"val/bbox/AP": float(averaged is second)}

        hooks = {
            "ema": {"beside": True},
            "stop": {"use": "tests.train.test_build.StopAt", "step": 20},
        }
        settings = config(hooks=hooks, **changes)
        return train(folder, settings, evaluate=evaluate, run_config={})

    unbroken = run(tmp_path / "a", breaks=False)
    with pytest.raises(SystemExit):
        run(tmp_path / "b", breaks=True)
    resumed = run(tmp_path / "b", breaks=False, resume=True)
    assert (unbroken.source, resumed.source) == ("ema", "ema")
    assert same(unbroken.weights, resumed.weights)


class StopAt:
    phase = Phase.DECIDE

    def __init__(self, *, step: int) -> None:
        self.step = step

    def on_start(self, ctx: LoopContext) -> None:
        self.on_step(ctx)

    def on_step(self, ctx: LoopContext) -> None:
        if ctx.state.step == self.step and ctx.interruption is None:
            ctx.stop("far enough")


@pytest.mark.parametrize(
    "freeze", [{"patterns": ["layers"]}, {"patterns": ["0"], "until": "0 steps"}]
)
def test_a_mistake_that_shows_when_hooks_start_costs_nothing(tmp_path: Path, freeze) -> None:
    folder = tmp_path / "checkpoints"
    for _ in range(2):
        train(folder, config(duration="5 steps"))
    before = text_of(tmp_path)
    freeze = {"use": "detpipe.hooks.freeze.Freeze", **freeze}
    with pytest.raises(ConfigError, match="Freeze"):
        train(folder, config(hooks={"f": freeze}, duration="9 steps"))
    assert text_of(tmp_path) == before


def test_a_reload_gives_no_more_time(tmp_path: Path, monkeypatch) -> None:
    clock = itertools.count(0, 0.125)
    monkeypatch.setattr("detpipe.hooks.decide.perf_counter", lambda: next(clock))
    monkeypatch.setattr("detpipe.train.build.perf_counter", lambda: next(clock))
    limit = {"use": "detpipe.hooks.decide.MaxTime", "seconds": 2.5}
    settings = config(
        hooks={"limit": limit, "checkpoint": {"every": "2 steps"}},
        log_every="1 steps",
        non_finite={"action": "reload"},
    )
    result = train(tmp_path, settings, model=broken_at(15))
    assert 15 < result.step < 21  # twenty looks in all, not twenty after the reload


def test_a_reload_from_a_damaged_best_marks_the_best_that_is_left(tmp_path: Path) -> None:
    folder, values, done = CheckpointFolder(tmp_path), iter([1.0, 2.0, *[1.5] * 5]), []
    model = broken_at(23)

    def damage(module: ToyDetector, inputs: object) -> None:
        if module.calls == 22 and not done:
            done.append(True)
            folder.file(20).write_bytes(b"x")

    model.register_forward_pre_hook(damage)
    settings = config(
        publish="best",
        log_every="1 steps",
        hooks={"evaluate": {"every": "10 steps"}, "checkpoint": {"every": "10 steps"}},
        non_finite={"action": "reload"},
    )
    result = train(
        tmp_path, settings, model=model, evaluate=lambda model: {"val/bbox/AP": next(values)}
    )
    assert len(folder.damaged()) == 1
    assert result.metrics["val/bbox/AP"] == 1.5
