"""PreciseBN against statistics over all values at once."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchvision.ops import FrozenBatchNorm2d

from detpipe.core.config import Duration, Spec
from detpipe.core.errors import ConfigError
from detpipe.core.types import Batch
from detpipe.data import sample, sampler
from detpipe.data.store import Store
from detpipe.data.stream import TrainStream
from detpipe.hooks.freeze import Freeze
from detpipe.hooks.norm import PreciseBN, recomputed
from detpipe.hooks.update import EMA
from detpipe.models import tiny
from detpipe.models.torchvision import build
from detpipe.train.checkpoint import CheckpointFolder
from detpipe.train.contract import LoopContext, Phase
from detpipe.train.launch import rng_state, seeded

from ..models.conftest import batch as pictures
from ..train.toys import IMAGES, ToyDetector, ToyStream, config, detector, image_at, same, timeless
from ..train.toys import train as train_toy

PRECISE = "detpipe.hooks.norm.PreciseBN"


class Uneven:
    """Batches of 4, 2, 1, 4, 2, 1 … images; counts what is read."""

    images_per_epoch = IMAGES
    read = 0
    closed = 0
    starts: tuple[int, ...] = ()

    def batches(self, start: int) -> Iterator[Batch]:
        self.starts += (start,)
        try:
            position = start
            for size in (4, 2, 1) * 100:
                images, targets = zip(*(image_at(position + i) for i in range(size)), strict=True)
                position += size
                self.read += size
                yield Batch(images, targets)
        finally:
            self.closed += 1


class Pictures:
    """A detector's batches."""

    images_per_epoch = 4

    def batches(self, start: int) -> Iterator[Batch]:
        for size in (64, 96, 64, 96):
            yield pictures(size=size)


class Deep(ToyDetector):
    """A second batch norm behind the first, and one that is used twice."""

    def __init__(self) -> None:
        super().__init__(norm=True)
        self.layers[0] = nn.Conv2d(3, 4, 3, padding=1)
        shared = nn.BatchNorm2d(4, momentum=None)
        self.layers = nn.Sequential(
            *self.layers[:2], nn.Conv2d(4, 4, 3), shared, nn.Tanh(), shared, *self.layers[2:]
        )


def by_hand(
    model: nn.Module, batches: list[Batch]
) -> dict[nn.BatchNorm2d, tuple[np.ndarray, np.ndarray]]:
    """All that reaches each layer in training mode, in one heap, in double precision."""
    heap: dict[nn.Module, list[Tensor]] = {}
    handles = [
        module.register_forward_pre_hook(lambda m, x: heap.setdefault(m, []).append(x[0]))
        for module in model.modules()
        if isinstance(module, nn.BatchNorm2d)
    ]
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.no_grad(), seeded(0):
        model.train()
        for batch in batches:
            model(batch)
    for handle in handles:
        handle.remove()
    model.load_state_dict(buffers, strict=False)
    flat = {
        m: np.concatenate([x.transpose(0, 1).flatten(1).double().numpy() for x in inputs], axis=1)
        for m, inputs in heap.items()
    }
    return {m: (values.mean(axis=1), values.var(axis=1)) for m, values in flat.items()}


@pytest.mark.parametrize(
    ("make", "stream", "number", "layers"),
    [
        (lambda: detector(norm=True), Uneven(), 7, 1),
        (Deep, Uneven(), 7, 2),
        (lambda: tiny.build(3, width=16), Pictures(), 4, 10),
    ],
    ids=["one", "deep and shared", "a real detector"],
)
def test_equals_the_statistics_of_all_values_at_once(
    make: Callable[[], nn.Module], stream: Any, number: int, layers: int
) -> None:
    model = make()
    batches, seen = [], 0
    for batch in stream.batches(0):
        batches.append(batch)
        seen += len(batch)
        if seen >= number:
            break
    expected = by_hand(model, batches)
    found = recomputed(model, stream, like=model, images=number)
    assert found.keys() == expected.keys() and len(found) == layers
    for layer, (mean, var) in found.items():
        np.testing.assert_allclose(mean.numpy(), expected[layer][0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(var.numpy(), expected[layer][1], rtol=1e-5, atol=1e-6)


def test_values_far_from_zero_do_not_cancel() -> None:
    """E[x²] - E[x]² in float32 would give 0, or a negative variance."""
    model = detector(norm=True)
    with torch.no_grad():
        model.layers[0].bias.fill_(1e4)
    batches = [b for b, _ in zip(Uneven().batches(0), range(3), strict=False)]
    (expected,) = by_hand(model, batches).values()
    ((_, var),) = recomputed(model, Uneven(), like=model, images=7).values()
    np.testing.assert_allclose(var.numpy(), expected[1], rtol=1e-2)


def test_they_depend_on_weights_and_stream_alone() -> None:
    """Not on the random numbers of the moment, such as those of a dropout before the layer."""
    model = detector(norm=True)
    model.layers[0] = nn.Sequential(model.layers[0], nn.Dropout(0.5))
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        found += recomputed(model, Uneven(), like=model.train(), images=7).values()
    (mean, var), (again, var_again) = found
    assert torch.equal(mean, again) and torch.equal(var, var_again)
    model.layers[0][1].eval()
    ((without, _),) = recomputed(model, Uneven(), like=model, images=7).values()
    assert not torch.equal(mean, without), "there is a dropout"


def test_nothing_else_changes(context: Callable[..., LoopContext]) -> None:
    model = detector(norm=True, dropout=0.5).train()
    model.layers[0].requires_grad_(False)
    model.layers[5].weight.grad = torch.ones_like(model.layers[5].weight)
    stream = Uneven()
    ctx = context(99, model)
    hook = PreciseBN(stream, every=Duration(steps=100))
    hook.on_start(ctx)
    ctx.state.step = 100
    before = {n: t.clone() for n, t in model.state_dict().items()}
    random_numbers = rng_state()
    hook.on_step(ctx)
    changed = {n for n, t in model.state_dict().items() if not torch.equal(t, before[n])}
    assert changed == {"layers.1.running_mean", "layers.1.running_var"}
    assert all(module.training for module in model.modules())
    assert [p.requires_grad for p in model.layers[0].parameters()] == [False, False]
    assert torch.equal(model.layers[5].weight.grad, torch.ones_like(model.layers[5].weight))
    assert torch.equal(rng_state()["torch"], random_numbers["torch"])
    assert rng_state()["python"] == random_numbers["python"]
    assert model.layers[1].running_mean.grad_fn is None
    assert not model.layers[1]._forward_pre_hooks
    assert (stream.starts, stream.closed) == ((0,), 1)


@pytest.mark.parametrize(("images", "read"), [(1, 4), (5, 6), (6, 6), (7, 7), (200, IMAGES)])
def test_as_many_images_as_asked_for_but_one_pass(
    images: int, read: int, context: Callable[..., LoopContext]
) -> None:
    stream, ctx = Uneven(), context(100, detector(norm=True))
    hook = PreciseBN(stream, every=Duration(steps=0), images=images)
    hook.on_start(ctx)
    hook.on_step(ctx)
    assert stream.read == read


def test_when(context: Callable[..., LoopContext]) -> None:
    assert PreciseBN.phase is Phase.CALIBRATE
    for every, expected in ((3, [3, 6, 9, 100]), (0, [100])):
        stream, ctx = Uneven(), context(model=detector(norm=True))
        hook = PreciseBN(stream, every=Duration(steps=every), images=1)
        hook.on_start(ctx)
        ran = []
        for step in [*range(1, 11), 100]:
            ctx.state.step = step
            before = len(stream.starts)
            hook.on_step(ctx)
            ran += [step] * (len(stream.starts) - before)
        assert ran == expected
        hook.on_end(ctx)
        assert len(stream.starts) == len(expected) and not ctx.marks


@pytest.mark.parametrize("resumable", [False, True])
def test_a_stop_that_came_later_in_the_step(
    resumable: bool, context: Callable[..., LoopContext]
) -> None:
    stream, ctx = Uneven(), context(model=detector(norm=True))
    hook = PreciseBN(stream, every=Duration(steps=20))
    hook.on_start(ctx)
    ctx.state.step = 7
    hook.on_step(ctx)
    ctx.stop("enough", resumable=resumable)  # a hook of a later phase
    hook.on_end(ctx)
    assert len(stream.starts) == (0 if resumable else 1)
    assert ctx.marks == ({} if resumable else {"recalibrated": True})


def statistics(model: nn.Module) -> dict[str, Tensor]:
    return {n: b.clone() for n, b in model.named_buffers() if "running" in n}


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("freeze_first", [True, False])
def test_the_average_gets_its_own_statistics_but_for_frozen_layers(
    beside: bool, freeze_first: bool, context: Callable[..., LoopContext]
) -> None:
    model = tiny.build(2, width=16).train()
    ctx, ema = context(99, model), EMA(decay=0.5, beside=beside)
    freeze = Freeze(stages=1)
    for hook in (freeze, ema) if freeze_first else (ema, freeze):
        hook.on_start(ctx)
    with torch.no_grad():
        for parameter in model.inner.backbone.blocks[1:].parameters():
            parameter.mul_(1.5)
    ctx.state.step = 100
    ema.on_step(ctx)
    before, averaged = statistics(model), statistics(ctx.average)
    hook = PreciseBN(Pictures(), every=Duration(steps=50))
    hook.on_start(ctx)
    hook.on_step(ctx)
    for name, value in statistics(ctx.average).items():
        assert torch.equal(value, averaged[name]) is (".blocks.0." in name), name
    for name, value in statistics(model).items():
        same_as_before = not beside or ".blocks.0." in name
        assert torch.equal(value, before[name]) is same_as_before, name
    if beside:
        mine, theirs = statistics(model), statistics(ctx.average)
        assert not torch.equal(mine["inner.backbone.blocks.2.1.running_var"],
                               theirs["inner.backbone.blocks.2.1.running_var"])  # fmt: skip


def test_frozen_layers_are_left_alone_to_the_very_end(context: Callable[..., LoopContext]) -> None:
    """Hooks of earlier phases end before this one."""
    model = tiny.build(2, width=16).train()
    ctx, freeze = context(7, model), Freeze(stages=1)
    hook = PreciseBN(Pictures(), every=Duration(steps=50))
    before = statistics(model)
    for one in (freeze, hook):
        one.on_start(ctx)
    ctx.stop("enough")
    for one in (freeze, hook):
        one.on_end(ctx)
    for name, value in statistics(model).items():
        assert torch.equal(value, before[name]) is (".blocks.0." in name), name


def test_training_does_not_notice_and_the_result_has_it(tmp_path: Path) -> None:
    def hooks(every: str) -> dict[str, Any]:
        return {"ema": None, "bn": {"use": PRECISE, "every": every, "images": 12}}

    plain = train_toy(tmp_path / "a", config(hooks={"ema": None}, duration="20 steps"))
    often = train_toy(tmp_path / "b", config(hooks=hooks("3 steps"), duration="20 steps"))
    once = train_toy(tmp_path / "c", config(hooks=hooks("0 steps"), duration="20 steps"))
    assert same(often.weights, once.weights)
    differs = {n for n in plain.weights if not torch.equal(plain.weights[n], often.weights[n])}
    assert differs == {"layers.1.running_mean", "layers.1.running_var"}
    model = detector(dropout=0.2, norm=True)
    model.load_state_dict(plain.weights)
    ((mean, var),) = recomputed(model, ToyStream(), like=model.train(), images=12).values()
    assert torch.equal(often.weights["layers.1.running_mean"], mean)
    assert torch.equal(often.weights["layers.1.running_var"], var)
    saved = CheckpointFolder(tmp_path / "b").latest()["model"]
    assert torch.equal(saved["layers.1.running_var"], var)


@pytest.mark.parametrize("ema", [True, False])
def test_a_resumed_run_equals_the_unbroken_one(ema: bool, tmp_path: Path) -> None:
    hooks = {
        **({} if ema else {"ema": None}),
        "bn": {"use": PRECISE, "every": "4 steps", "images": 8},
        "stem": {"use": "detpipe.hooks.freeze.Freeze", "norm": True, "until": "9 steps"},
        "evaluate": {"every": "4 steps"},
    }
    settings = config(hooks=hooks, duration="24 steps")
    recorded = {"train": settings.model_dump(mode="json")}
    unbroken = train_toy(tmp_path / "a", settings)
    model = detector(dropout=0.2, norm=True)
    done = 0

    def interrupt(module: nn.Module, inputs: object) -> None:
        nonlocal done
        done += 1
        if done == 13:
            signal.raise_signal(signal.SIGINT)

    model.register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        train_toy(tmp_path / "b", settings, model=model)
    resumed = train_toy(
        tmp_path / "b", settings.model_copy(update={"resume": True}), run_config=recorded
    )
    assert same(resumed.weights, unbroken.weights)
    assert timeless(resumed.history).equals(timeless(unbroken.history))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_real_detector_on_real_pictures(workers: int, tmp_path: Path) -> None:
    """Faster R-CNN draws proposals at random, in the hook too; workers read for both."""
    found = sample.read(tmp_path / "sample", images=20, size=96)
    store = Store.from_tables(*found[:3], tmp_path / "sample", split="train")
    order = sampler.shuffle(length=len(store), seed=3)
    hooks = {
        "ema": None,
        "bn": {"use": PRECISE, "every": "3 steps", "images": 6},
        "stem": {"use": "detpipe.hooks.freeze.Freeze", "stages": 2, "until": "6 steps"},
        "evaluate": {"every": "3 steps"},
        "checkpoint": {"every": "2 steps"},
    }
    settings = config(hooks=hooks, batch_size=2, duration="9 steps")

    def run(folder: str, *, stop: int = 0, **changes: Any) -> Any:
        with seeded(0):
            model = tiny.build(len(found.classes), width=16)
        steps = 0

        def interrupt(module: nn.Module, inputs: object) -> None:
            nonlocal steps
            steps += module.training and torch.is_grad_enabled()
            if steps == stop:
                signal.raise_signal(signal.SIGINT)
                steps += 1

        if stop:
            model.register_forward_pre_hook(interrupt)
        stream = TrainStream(store, batch_size=2, sampler=order, workers=workers)
        recorded = {"train": settings.model_dump(mode="json")}
        chosen = settings.model_copy(update=changes)
        return train_toy(
            tmp_path / folder, chosen, model=model, stream=stream, run_config=recorded,
            classes=list(found.classes["class_name"]),
        )  # fmt: skip

    unbroken = run("a")
    for stop in (4, 2):
        with pytest.raises(KeyboardInterrupt):
            run("b", stop=stop, resume=stop != 4)
    resumed = run("b", resume=True)
    assert same(resumed.weights, unbroken.weights)
    assert timeless(resumed.history).equals(timeless(unbroken.history))


class Interrupting(ToyStream):
    """A signal comes while the hook reads: its iterator is a second one from position 0."""

    starts = 0
    at = 2

    def batches(self, start: int) -> Iterator[Batch]:
        self.starts += start == 0
        for number, batch in enumerate(super().batches(start)):
            if start == 0 and self.starts == self.at and number == 1:
                signal.raise_signal(signal.SIGTERM)
            yield batch


@pytest.mark.parametrize("at", [2, 7])
def test_what_a_signal_breaks_off_is_made_up_for(at: int, tmp_path: Path) -> None:
    """In the first time it runs, and in the last, after the last step."""
    hooks = {
        "ema": None,
        "bn": {"use": PRECISE, "every": "4 steps", "images": 8},
        "evaluate": {"every": "8 steps"},
    }
    settings = config(hooks=hooks, duration="22 steps")
    recorded = {"train": settings.model_dump(mode="json")}
    unbroken = train_toy(tmp_path / "a", settings)
    stream = Interrupting()
    stream.at = at
    with pytest.raises(SystemExit):
        train_toy(tmp_path / "b", settings, stream=stream)
    content = CheckpointFolder(tmp_path / "b").latest()
    assert content["state"]["step"] == {2: 4, 7: 22}[at]
    assert content["hooks"]["bn"] == {"owed": True}
    resumed = train_toy(
        tmp_path / "b", settings.model_copy(update={"resume": True}), run_config=recorded
    )
    assert same(resumed.weights, unbroken.weights)
    assert timeless(resumed.history).equals(timeless(unbroken.history))


def test_what_breaks_off_ends_the_readers_and_changes_nothing() -> None:
    model, stream = detector(norm=True).eval(), Uneven()
    model.layers[1].train()
    model.layers[5].register_forward_pre_hook(lambda m, x: signal.raise_signal(signal.SIGINT))
    before, modes = statistics(model), [module.training for module in model.modules()]
    with pytest.raises(KeyboardInterrupt) as kept:  # its traceback holds every frame
        recomputed(model, stream, like=model, images=7)
    assert kept.value.__traceback__ is not None and stream.closed == 1
    assert same(statistics(model), before)
    assert [module.training for module in model.modules()] == modes
    assert not model.layers[1]._forward_pre_hooks


def test_mistakes_are_named(
    context: Callable[..., LoopContext], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConfigError, match="equal to 1, got 0"):
        Spec(use=PRECISE, every="1 epochs", images=0).build(stream=ToyStream())
    model = nn.Sequential(
        nn.GroupNorm(1, 2), FrozenBatchNorm2d(2), nn.LayerNorm(2), nn.LayerNorm(2)
    )
    hook = PreciseBN(ToyStream(), every=Duration(steps=1))
    with pytest.raises(ConfigError, match="1 GroupNorm, 1 FrozenBatchNorm2d, 2 LayerNorm"):
        hook.on_start(context(model=model))
    with pytest.raises(ConfigError, match="its norm layers: none"):
        hook.on_start(context(model=nn.Linear(2, 2)))
    model = detector(norm=True).eval()
    ctx, before = context(model=model), statistics(model)
    caplog.set_level(logging.WARNING)
    hook.on_start(ctx)
    hook.on_step(ctx)
    assert "all 1 batch norm layers are frozen" in caplog.text
    assert same(statistics(model), before)


def test_frozen_batch_norm_of_torchvision_is_left_alone() -> None:
    model = build(2, name="fasterrcnn_mobilenet_v2_fpn", norm="frozen").train()
    assert recomputed(model, Pictures(), like=model, images=4) == {}
