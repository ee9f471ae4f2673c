"""What is frozen stays bit for bit, what is let go learns, whatever else is in the run."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import detection
from torchvision.models._api import WeightsEnum

from detpipe.core.config import Spec
from detpipe.core.errors import ConfigError
from detpipe.hooks.freeze import Freeze
from detpipe.hooks.measure import undisturbed
from detpipe.models import tiny
from detpipe.models.torchvision import FAMILIES, build
from detpipe.train.build import train_detector
from detpipe.train.contract import LoopContext

from ..train.toys import ToyStream, config, detector, same, timeless, train

FREEZE = "detpipe.hooks.freeze.Freeze"
STEM = {"use": FREEZE, "patterns": [r"layers\.[01]\."]}  # the toy's convolution and batch norm


def watched(folder: Path, model: nn.Module, **changes: Any) -> dict[int, dict[str, Tensor]]:
    """Trains ``model`` on toys; the weights before, and after each step."""
    at = {}

    def note(ctx: LoopContext) -> None:
        at[ctx.state.step] = {n: t.clone() for n, t in ctx.model.state_dict().items()}

    watch = {"use": "detpipe.hooks.measure.Callback", "on_start": note, "on_step": note}
    hooks = {**changes.pop("hooks"), "watch": watch}
    settings = config(hooks=hooks, **changes)
    train_detector(model, ToyStream(), config=settings, folder=folder, classes=["a", "b"])
    return at


OPTIMIZERS: list[dict[str, Any]] = [
    {"use": "torch.optim.SGD", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.1, "foreach": False},
    {"use": "torch.optim.SGD", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.1, "foreach": True},
    {"use": "torch.optim.AdamW", "weight_decay": 0.1},  # fused
    {"use": "torch.optim.AdamW", "weight_decay": 0.1, "foreach": True},
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_frozen_weights_and_statistics_stay_until_they_are_let_go(
    optimizer: dict[str, Any], tmp_path: Path
) -> None:
    hooks = {"stem": {**STEM, "until": "7 steps"}}
    at = watched(
        tmp_path, detector(norm=True), hooks=hooks, optimizer=optimizer, duration="12 steps",
        groups={"patterns": {"layers.5": {"lr_factor": 2}}},
    )  # fmt: skip
    floats = [n for n, t in at[0].items() if t.is_floating_point()]
    stem = [n for n in floats if n.startswith(("layers.0", "layers.1"))]
    assert any("running_var" in n for n in stem) and len(stem) == 6
    for step in range(8):
        assert all(torch.equal(at[step][n], at[0][n]) for n in stem), step
    for earlier, later in itertools.pairwise(range(7, 13)):
        assert not any(torch.equal(at[earlier][n], at[later][n]) for n in stem), later
    for earlier, later in itertools.pairwise(range(13)):
        assert not any(torch.equal(at[earlier][n], at[later][n]) for n in floats if n not in stem)


def test_momentum_of_before_does_not_move_what_is_frozen_in_a_resumed_run(tmp_path: Path) -> None:
    """The hook is new in the resumed run; the optimiser remembers a momentum."""
    first = watched(
        tmp_path, detector(norm=True), hooks={}, duration="10 steps", optimizer=OPTIMIZERS[0]
    )
    at = watched(
        tmp_path, detector(norm=True), hooks={"stem": STEM}, duration="15 steps", resume=True,
        optimizer=OPTIMIZERS[0],
    )  # fmt: skip
    assert sorted(at) == list(range(10, 16)) and same(first[10], at[10])
    assert not torch.equal(at[10]["layers.5.weight"], at[15]["layers.5.weight"])
    for name in ("layers.0.weight", "layers.1.weight", "layers.1.running_mean"):
        assert not torch.equal(first[9][name], first[10][name]), "it was moving"
        assert torch.equal(at[10][name], at[15][name])


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("first", ["ema", "freeze"])
def test_it_does_not_matter_which_of_average_and_freeze_comes_first(
    beside: bool, first: str, tmp_path: Path
) -> None:
    ema = {"use": "detpipe.hooks.update.EMA", "decay": 0.9, "beside": beside}
    freeze = {**STEM, "until": "20 steps"}
    hooks = {"ema": None, "early": ema, "late": freeze}
    if first == "freeze":
        hooks = {"ema": None, "early": freeze, "late": ema}
    result = train(tmp_path / "a", config(hooks=hooks, duration="30 steps"))
    plain = train(
        tmp_path / "b",
        config(hooks={"ema": {"beside": beside}, "f": freeze}, duration="30 steps"),
    )
    assert same(result.weights, plain.weights)
    never = train(tmp_path / "c", config(hooks={"ema": {"beside": beside}, "f": STEM},
                                         duration="30 steps"))  # fmt: skip
    start = detector(dropout=0.2, norm=True).state_dict()
    assert torch.equal(never.weights["layers.0.weight"], start["layers.0.weight"])
    assert not torch.equal(result.weights["layers.0.weight"], start["layers.0.weight"])


@pytest.mark.parametrize("stop", [10, 14, 15, 16, 25])
def test_a_run_broken_off_around_the_moment_equals_the_unbroken_one(
    stop: int, tmp_path: Path
) -> None:
    hooks = {
        "stem": {**STEM, "until": "15 steps"},
        "norm": {"use": FREEZE, "norm": True, "until": "20 steps"},
        "last": {"use": FREEZE, "patterns": ["layers.5.bias"]},
        "checkpoint": {"every": "5 steps"},
    }
    settings = config(hooks=hooks, duration="30 steps")
    unbroken = train(tmp_path / "a", settings)

    model = detector(dropout=0.2, norm=True)

    def die(module: nn.Module, inputs: object) -> None:
        if module.calls == stop:
            raise RuntimeError("killed")

    model.register_forward_pre_hook(die)
    with pytest.raises(RuntimeError, match="killed"):
        train(tmp_path / "b", settings, model=model)
    resumed = train(
        tmp_path / "b", settings.model_copy(update={"resume": True}),
        run_config={"train": settings.model_dump(mode="json")},
    )  # fmt: skip
    assert same(resumed.weights, unbroken.weights)
    assert timeless(resumed.history).equals(timeless(unbroken.history))


def hooks_of(*settings: dict[str, Any]) -> list[Freeze]:
    return [Spec(use=FREEZE, **one).build() for one in settings]


def learning(model: nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow if n.startswith("ssdlite") else ()) for n in FAMILIES],
)
def test_freezing_n_stages_is_torchvisions_trainable_backbone_layers(
    name: str,
    context: Callable[..., LoopContext],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = FAMILIES[name].stages
    with torch.device("meta"):
        norm = "frozen" if FAMILIES[name].frozen_norm else "batch"
        ours = build(90, name=name, norm=norm)
        if name == "fasterrcnn_mobilenet_v2_fpn":  # which torchvision has no builder for
            theirs = build(90, name=name, norm=norm, trainable_backbone_layers=2).inner
        else:
            state = FAMILIES[name].build(weights=None, weights_backbone=None).state_dict()
            monkeypatch.setattr(WeightsEnum, "get_state_dict", lambda *_, **__: state)
            theirs = getattr(detection, name)(weights="COCO_V1", trainable_backbone_layers=2)
    before = learning(ours)
    (hook,) = hooks_of({"stages": count - 2})
    ctx = context(model=ours)
    hook.on_start(ctx)
    assert learning(ours) == {f"inner.{path}" for path in learning(theirs)}
    assert learning(ours) < before
    hook.on_end(ctx)
    assert learning(ours) == before


def test_gradual_unfreezing_in_any_order(
    context: Callable[..., LoopContext], advance: Callable[..., None]
) -> None:
    """Stages 1 to 3 until step 6, 1 to 2 until 4, one pattern in stage 1 for ever."""
    settings = [
        {"stages": 2, "until": "4 steps"},
        {"stages": 3, "until": "6 steps"},
        {"patterns": [r"backbone\.blocks\.0\.0\."]},
        {"norm": True, "until": "5 steps"},
    ]
    model = tiny.build(2, width=16)
    for order in itertools.permutations(settings):
        model.train()  # as the loop does
        every, hooks, ctx = learning(model), hooks_of(*order), context(model=model)
        norms = {n for n, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)}
        for hook in hooks:
            hook.on_start(ctx)
        for step in range(8):
            if step:
                advance(ctx)
                for hook in hooks:
                    hook.on_step(ctx)
            stages = tuple(f"inner.backbone.blocks.{b}." for b in range(3 if step < 6 else 0))
            frozen = {
                n
                for n in every
                if n.startswith(stages)
                or "backbone.blocks.0.0." in n
                or (n.rpartition(".")[0] in norms and step < 5)
            }
            assert learning(model) == every - frozen, step
            still = {n for n in norms if step < 5 or n.startswith(stages)}
            assert {n for n, m in model.named_modules() if not m.training} == still, step
            with undisturbed(model):
                pass
            assert {n for n, m in model.named_modules() if not m.training} == still
        for hook in hooks:
            hook.on_end(ctx)
        assert learning(model) == every, "the model is as it was found"


@pytest.mark.parametrize("step", [3, 4, 9])
def test_a_resumed_run_freezes_what_is_still_frozen(
    step: int, context: Callable[..., LoopContext], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    model = tiny.build(2, width=16)
    ctx, (hook,) = context(step, model), hooks_of({"stages": 1, "until": "4 steps"})
    before = learning(model)
    hook.on_start(ctx)
    assert (learning(model) == before) is (step >= 4)
    assert ("learn, since step 4" in caplog.text) is (step >= 4)


def test_the_log_says_what_until_when(
    context: Callable[..., LoopContext],
    advance: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    model = tiny.build(2, width=16)
    stem = model.inner.backbone.blocks[0]
    tensors = len(list(stem.parameters()))
    numbers = sum(p.numel() for p in stem.parameters())
    (hook,) = hooks_of({"stages": 1, "until": "2 epochs"})
    ctx = context(model=model)
    hook.on_start(ctx)
    what = f"{tensors} tensors ({numbers:,} parameters) and the statistics of 2 norm layers"
    assert f"{what} are frozen until step 10 (2 epochs) of 100" in caplog.text
    advance(ctx, 10)
    hook.on_step(ctx)
    assert f"step 10: {what} learn from now on" in caplog.text
    stem.requires_grad_(False)
    (again,) = hooks_of({"stages": 1})
    again.on_start(context(model=model))
    assert f"for the whole run; {tensors} of these tensors were frozen before" in caplog.text


def test_after_an_error_the_model_learns_again(tmp_path: Path) -> None:
    """A run may go back to a checkpoint with the same model and new hooks."""
    model = detector(norm=True, fail_at=3)
    with pytest.raises(Exception, match="not finite"):
        train(tmp_path, config(hooks={"stem": STEM}), model=model)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_what_the_builder_froze_stays_frozen(context: Callable[..., LoopContext]) -> None:
    model = tiny.build(2, width=16)
    model.inner.backbone.blocks[0].requires_grad_(False)
    ctx, before = context(model=model), learning(model)
    (hook,) = hooks_of({"stages": 2})
    hook.on_start(ctx)
    hook.on_end(ctx)
    assert learning(model) == before
    (hook,) = hooks_of({"stages": 2, "until": "4 steps"})
    with pytest.raises(ConfigError, match=r"by the model itself.*after 4 steps.*trainable_b"):
        hook.on_start(ctx)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "nothing is named"),
        ({"stages": -1}, "0 or more, got -1"),
        ({"stages": 6}, r"stages is 6, but the backbone has 5 \(1: inner.backbone.blocks.0; 2:"),
        ({"stages": 1, "until": "0 steps"}, "until is 0 steps"),
        ({"patterns": ["roi_head_", "fpn"]}, "'roi_head_' is in no parameter's name; near"),
        ({"patterns": ["["]}, "is no regular expression"),
        ({"patterns": ["inner"]}, "nothing to train"),
    ],
)
def test_mistakes_are_named(
    settings: dict[str, Any], message: str, context: Callable[..., LoopContext]
) -> None:
    with pytest.raises(ConfigError, match=message):
        for hook in hooks_of(settings):
            hook.on_start(context(model=tiny.build(2, width=16)))


def test_norm_needs_batch_norm_and_stages_need_a_model_that_says_them(
    context: Callable[..., LoopContext],
) -> None:
    for settings, message in (({"norm": True}, "no batch norm layer"), ({"stages": 1}, "stages()")):
        with pytest.raises(ConfigError, match=message):
            hooks_of(settings)[0].on_start(context(model=detector()))


def test_several_that_freeze_everything_together_are_refused(tmp_path: Path) -> None:
    hooks = {
        "stem": {"use": FREEZE, "patterns": [r"layers\.0"]},
        "rest": {"use": FREEZE, "patterns": [r"layers\.[1-9]"], "until": "3 steps"},
    }
    with pytest.raises(ConfigError, match="nothing to train"):
        train(tmp_path, config(hooks=hooks))


def test_statistics_stay_only_where_all_of_the_layer_stays(
    context: Callable[..., LoopContext],
) -> None:
    for patterns, training in (([r"1\.bias"], True), ([r"1\.bias", r"1\.weight"], False)):
        model = detector(norm=True)
        Freeze(patterns=patterns).on_start(context(model=model))
        assert not model.layers[1].bias.requires_grad
        assert model.layers[1].training is training


def test_a_single_pattern_may_be_a_plain_text(context: Callable[..., LoopContext]) -> None:
    model = detector(norm=True)
    hook = Freeze(patterns="layers.5")
    hook.on_start(context(model=model))
    assert not model.layers[5].weight.requires_grad and model.layers[0].weight.requires_grad
