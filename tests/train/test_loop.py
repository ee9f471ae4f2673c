"""The loop: equal to a bare PyTorch loop, hooks in order, errors that say what happened."""

from __future__ import annotations

import random
import signal
from typing import Any

import numpy as np
import pytest
import torch

from detpipe.core.config import Duration
from detpipe.core.errors import CheckpointError, DataError, NonFiniteLoss
from detpipe.train.content import load_checkpoint
from detpipe.train.contract import Hook, LoopContext, Phase
from detpipe.train.loop import fit
from detpipe.train.update import GradientUpdate

from .toys import ToyStream, bare_loop, detector, same

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "fused sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
}


def run(model: torch.nn.Module, *, steps: int = 10, accumulate: int = 1, **options: Any):
    optimizer = options.pop("optimizer", OPTIMIZERS["sgd"])
    update = GradientUpdate(optimizer(model.parameters()), accumulate=accumulate)
    stream = options.pop("stream", ToyStream(batch_size=4))
    return fit(model, stream, update, total_steps=steps, images_per_step=4 * accumulate, **options)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_equals_a_bare_loop_bit_for_bit(optimizer: str) -> None:
    mine, theirs = detector(norm=True), detector(norm=True)
    run(mine, steps=100, optimizer=OPTIMIZERS[optimizer])
    bare_loop(theirs, OPTIMIZERS[optimizer](theirs.parameters()), steps=100)
    assert same(mine.state_dict(), theirs.state_dict())


def test_accumulation_two_by_two_equals_a_batch_of_four() -> None:
    small, large = detector(), detector()
    run(small, steps=25, accumulate=2, stream=ToyStream(batch_size=2))
    run(large, steps=25)
    for name, value in large.state_dict().items():
        torch.testing.assert_close(small.state_dict()[name], value, rtol=1e-5, atol=1e-6)


def test_a_short_last_group_is_divided_by_its_true_length() -> None:
    """Five batches in groups of two: the last update is that of one batch."""
    mine, theirs = detector(), detector()
    with pytest.raises(DataError, match="ended at step 3 of 10"):
        run(mine, accumulate=2, stream=ToyStream(batch_size=4, end=20))
    optimizer = OPTIMIZERS["sgd"](theirs.parameters())
    for group in ((0, 4), (8, 12), (16,)):
        optimizer.zero_grad()
        for start in group:
            losses = theirs(next(ToyStream().batches(start)))
            (sum(losses.values()) / len(group)).backward()
        optimizer.step()
    assert same(mine.state_dict(), theirs.state_dict())


class Noted(Hook):
    """Writes down each call."""

    def __init__(self, name: str, phase: Phase, calls: list[str]) -> None:
        self.name, self.phase, self.calls = name, phase, calls

    def on_start(self, ctx: LoopContext) -> None:
        self.calls.append(f"start {self.name}")

    def on_gradients(self, ctx: LoopContext) -> None:
        assert all(p.grad is not None for p in ctx.model.parameters())
        self.calls.append(f"gradients {self.name} {ctx.state.step}")

    def on_step(self, ctx: LoopContext) -> None:
        self.calls.append(f"step {self.name} {ctx.state.step}")

    def on_end(self, ctx: LoopContext) -> None:
        self.calls.append(f"end {self.name}")


def test_order_is_by_phase_however_hooks_are_listed() -> None:
    for seed in range(10):
        calls: list[str] = []
        phases = list(Phase)
        random.Random(seed).shuffle(phases)
        run(detector(), steps=2, hooks={p.name: Noted(p.name, p, calls) for p in phases})
        names = ["UPDATE", "CALIBRATE", "MEASURE", "DECIDE", "RECORD", "SAVE"]
        assert calls == [
            *(f"start {name}" for name in names),
            *(f"gradients {name} 0" for name in names),
            *(f"step {name} 1" for name in names),
            *(f"gradients {name} 1" for name in names),
            *(f"step {name} 2" for name in names),
            *(f"end {name}" for name in names),
        ]


def test_a_hook_sees_the_position_after_its_step() -> None:
    seen = []

    class Look(Hook):
        def on_step(self, ctx: LoopContext) -> None:
            paths = ctx.batch.paths
            seen.append((ctx.state.step, ctx.state.images_seen, ctx.epoch, ctx.progress, paths[0]))

    run(detector(), steps=6, hooks={"look": Look()})
    assert seen[0] == (1, 4, 0.2, 1 / 6, "image_0.jpg")
    assert seen[-1] == (6, 24, 1.2, 1.0, "image_0.jpg")


def test_a_stop_ends_in_good_order() -> None:
    calls: list[str] = []

    class Stop(Hook):
        phase = Phase.DECIDE

        def on_step(self, ctx: LoopContext) -> None:
            if ctx.state.step == 3:
                ctx.stop("enough")
                assert ctx.is_last

    ctx = run(detector(), hooks={"save": Noted("save", Phase.SAVE, calls), "stop": Stop()})
    assert (ctx.state.step, ctx.stop_reason) == (3, "enough")
    assert calls[-2:] == ["step save 3", "end save"]


@pytest.mark.parametrize("read_at", [4, 100])
def test_a_non_finite_loss_names_step_losses_and_images(read_at: int) -> None:
    """Whenever it is noticed, it is the true step that is named."""
    errors = []

    class Look(Hook):
        def on_step(self, ctx: LoopContext) -> None:
            if ctx.state.step == read_at:
                ctx.scalars.read_losses()

        def on_error(self, ctx: LoopContext, error: BaseException) -> None:
            errors.append(error)
            with pytest.raises(NonFiniteLoss):
                ctx.snapshot()

    model = detector(fail_at=6)  # the second half of step 3
    with pytest.raises(NonFiniteLoss) as caught:
        run(model, accumulate=2, hooks={"look": Look()})
    assert caught.value.step == 3
    assert list(caught.value.losses) == ["loss_a", "b"]
    assert np.isnan(caught.value.losses["b"])
    assert np.isfinite(caught.value.losses["loss_a"])
    assert caught.value.files == tuple(f"image_{k}.jpg" for k in range(0, 4))  # 5 × 4 % 20
    assert errors == [caught.value]


def test_weights_that_are_not_finite_are_no_checkpoint() -> None:
    class Break(Hook):
        phase = Phase.UPDATE

        def on_step(self, ctx: LoopContext) -> None:
            with torch.no_grad():
                ctx.model.layers[0].bias[1] = torch.inf

    class Save(Hook):
        phase = Phase.SAVE

        def on_step(self, ctx: LoopContext) -> None:
            ctx.snapshot()

    with pytest.raises(NonFiniteLoss, match=r"weights are.*layers\.0\.bias=inf.*image_0\.jpg"):
        run(detector(), hooks={"break": Break(), "save": Save()})


def test_losses_that_are_no_scalars_are_explained() -> None:
    class Wrong(torch.nn.Linear):
        def forward(self, batch):
            return {"a": self.weight.sum(), "b": self.weight}

    with pytest.raises(TypeError, match=r"'b': \[1, 2\]"):
        run(Wrong(2, 1))


def test_hooks_do_not_move_the_random_numbers_of_training() -> None:
    """Dropout draws from the global generator; an evaluation that draws too changes nothing."""
    from detpipe.hooks.measure import Evaluate
    from detpipe.train.launch import seeded

    def careless(model: torch.nn.Module) -> dict[str, float]:
        torch.rand(7), np.random.rand(3), random.random()
        assert not model.training
        return {}

    weights = []
    for every in ("0 steps", "1 steps", "3 steps"):
        model = detector(dropout=0.5, norm=True)
        hook = Evaluate(careless, every=Duration.model_validate(every))
        with seeded(1):
            run(model, hooks={"evaluate": hook})
        weights.append(model.state_dict())
    assert same(weights[0], weights[1])
    assert same(weights[0], weights[2])


def test_a_checkpoint_of_another_model_is_refused() -> None:
    contents = []

    class Keep(Hook):
        def on_end(self, ctx: LoopContext) -> None:
            contents.append(ctx.snapshot())

    run(detector(), hooks={"keep": Keep()})
    with pytest.raises(CheckpointError, match="another model"):
        run(torch.nn.Linear(2, 2), resume=contents[0])


@pytest.mark.parametrize(
    ("number", "error", "code"),
    [(signal.SIGINT, KeyboardInterrupt, None), (signal.SIGTERM, SystemExit, 143)],
)
def test_a_signal_ends_the_run_after_its_step(number, error, code, tmp_path) -> None:
    from detpipe.hooks.save import Checkpoint

    told = []

    class Send(Hook):
        def on_gradients(self, ctx: LoopContext) -> None:
            if ctx.state.step == 4:  # in the middle of step 5
                signal.raise_signal(number)

        def on_error(self, ctx: LoopContext, error: BaseException) -> None:
            told.append(error)

    before = signal.getsignal(number)
    hooks = {"send": Send(), "save": Checkpoint(tmp_path, every=Duration(steps=100))}
    with pytest.raises(error) as caught:
        run(detector(), hooks=hooks)
    assert getattr(caught.value, "code", None) == code
    assert told == [caught.value]
    assert signal.getsignal(number) is before
    content = load_checkpoint(tmp_path / "step_00000005.pt")
    assert (content["state"]["step"], content["state"]["images_seen"]) == (5, 20)


def test_a_second_signal_ends_it_at_once() -> None:
    class Send(Hook):
        steps = 0

        def on_gradients(self, ctx: LoopContext) -> None:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

        def on_step(self, ctx: LoopContext) -> None:
            self.steps += 1

    hook = Send()
    with pytest.raises(KeyboardInterrupt):
        run(detector(), hooks={"send": hook})
    assert hook.steps == 0


def test_one_failing_hook_does_not_keep_others_from_closing() -> None:
    closed = []

    class Fail(Hook):
        phase = Phase.UPDATE

        def on_step(self, ctx: LoopContext) -> None:
            raise RuntimeError("the first error")

        def on_error(self, ctx: LoopContext, error: BaseException) -> None:
            raise RuntimeError("another one")

    class Close(Hook):
        phase = Phase.SAVE

        def on_error(self, ctx: LoopContext, error: BaseException) -> None:
            closed.append(str(error))

    with pytest.raises(RuntimeError, match="the first error"):
        run(detector(), hooks={"fail": Fail(), "close": Close()})
    assert closed == ["the first error"]


def test_any_object_with_some_of_the_methods_is_a_hook() -> None:
    from detpipe.core.errors import ConfigError
    from detpipe.train.contract import Phase, as_hook

    class Plain:
        phase = Phase.SAVE

        def __init__(self) -> None:
            self.steps: list[int] = []

        def on_step(self, ctx: Any) -> None:
            self.steps.append(ctx.state.step)

    plain = Plain()
    hook = as_hook(plain)
    assert hook.phase is Phase.SAVE
    assert hook.state_dict() == {}
    model = detector()
    update = GradientUpdate(torch.optim.SGD(model.parameters(), lr=0.1))
    fit(model, ToyStream(), update, total_steps=3, images_per_step=4, hooks={"plain": plain})  # type: ignore[dict-item]
    assert plain.steps == [1, 2, 3]
    with pytest.raises(ConfigError, match="a object is no hook"):
        as_hook(object())
