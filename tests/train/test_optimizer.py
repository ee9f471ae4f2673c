"""``train.optimizer``: what is refused before any work, and what is made."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
import torch
from torch import nn, optim

from detpipe.core.config import Spec
from detpipe.core.errors import ConfigError
from detpipe.train.optimizer import build_optimizer, optimizer_mistakes

CPU = torch.device("cpu")
UNUSABLE = {"LBFGS", "SparseAdam", "Muon", "Optimizer"}
TORCHS = sorted(
    name for name, kind in vars(optim).items()
    if inspect.isclass(kind) and issubclass(kind, optim.Optimizer)
)  # fmt: skip


def adamw(params: Any, *, lr: float) -> optim.Optimizer:
    return optim.AdamW(params, lr=lr)


def no_optimizer(params: Any) -> dict[str, Any]:
    return {"params": params}


def failing(params: Any) -> optim.Optimizer:
    raise KeyError("no such recipe")


class Own(optim.SGD):
    """Is constructed only when the model is there."""

    def __init__(self, params: Any, lr: float = 0.1, extra: Any = None) -> None:
        params = list(params)
        assert params[0]["params"][0].ndim == 2
        super().__init__(params, lr=lr)


def parameters() -> list[dict[str, Any]]:
    return [{"params": [nn.Parameter(torch.ones(3, 2))], "name": "all"}]


@pytest.mark.parametrize("name", TORCHS)
def test_torchs_optimisers_train_or_are_refused(name: str) -> None:
    spec = Spec(use=f"torch.optim.{name}")
    if name in UNUSABLE:
        (mistake,) = optimizer_mistakes(spec)
        assert f"torch.optim.{name} cannot be used: " in mistake and "AdamW" in mistake
        return
    assert optimizer_mistakes(spec) == []
    groups = parameters()
    (weights,) = groups[0]["params"]
    optimizer = build_optimizer(spec, groups, device=CPU)
    (weights**2).sum().backward()
    optimizer.step()
    assert type(optimizer) is getattr(optim, name)
    assert (weights < 1).all()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"lr": "0.01"}, "train.optimizer.lr is the text '0.01'; it must be a finite number above"),
        ({"lr": "abc"}, "train.optimizer.lr is the text 'abc'"),
        ({"lr": None}, "train.optimizer.lr is null"),
        ({"lr": 0}, "train.optimizer.lr is 0"),
        ({"lr": -1}, "train.optimizer.lr is -1"),
        ({"lr": math.inf}, "train.optimizer.lr is inf"),
        ({"lr": [0.1]}, r"train.optimizer.lr is \[0.1\]"),
        ({"betas": [0.9]}, r"train.optimizer.betas is \[0.9\]; it must be a list of 2 numbers"),
        ({"betas": [0.9, 0.99, 0.999]}, "betas .* a list of 2 numbers"),
        ({"betas": [0.9, None]}, "betas .* a list of 2 numbers"),
        ({"betas": 0.9}, "betas is 0.9; it must be a list of 2"),
        ({"betas": [0.9, 1.5]}, "refuses its options .*Invalid beta parameter at index 1: 1.5"),
        ({"weight_decay": -1}, "train.optimizer.weight_decay is -1"),
        ({"weight_decay": math.inf}, "train.optimizer.weight_decay is inf"),
        ({"eps": -1}, "refuses its options .*Invalid epsilon value: -1"),
        ({"differentiable": True}, "train.optimizer.differentiable cannot be true"),
        ({"fused": True, "foreach": True}, "`fused` and `foreach` cannot be `True` together"),
        ({"use": "torch.optim.SGD", "nesterov": True}, "SGD refuses .*Nesterov momentum requires"),
        ({"use": "torch.optim.SGD", "weight_decay": "0.1"}, "weight_decay is the text '0.1'"),
        ({"use": "torch.optim.RAdam", "lr": "1e-3"}, "lr is the text '1e-3'"),
        ({"use": f"{__name__}.adamw", "lr": -1}, "train.optimizer.lr is -1"),
        ({"use": "math.sqrt"}, "math.sqrt is no optimiser: name a subclass"),
        ({"use": "torch.optim.lr_scheduler.StepLR"}, "StepLR is no optimiser"),
        ({"use": "torch.optim.swa_utils.update_bn"}, "update_bn is no optimiser"),
    ],
)  # fmt: skip
def test_an_optimiser_that_cannot_train_is_refused(settings: dict[str, Any], said: str) -> None:
    (mistake,) = optimizer_mistakes(Spec(**{"use": "torch.optim.AdamW", **settings}))
    with pytest.raises(ConfigError, match=said):
        raise ConfigError(mistake)


def test_several_wrong_values_come_together() -> None:
    spec = Spec(use="torch.optim.AdamW", lr="x", weight_decay=-1, betas=3)
    assert len(optimizer_mistakes(spec)) == 3


@pytest.mark.parametrize(
    "settings",
    [
        {"use": "torch.optim.AdamW", "lr": 1, "betas": [0.9, 0.99], "eps": "1e-8"},
        {"use": "torch.optim.Adafactor", "eps": [None, 0.001]},
        {"use": "torch.optim.SGD", "lr": 0.1, "momentum": 0.9, "nesterov": True},
        {"use": f"{__name__}.adamw", "lr": 0.1},
        {"use": f"{__name__}.Own", "extra": {"any": "thing"}},
    ],
)  # fmt: skip
def test_what_can_train_is_made(settings: dict[str, Any]) -> None:
    spec = Spec(**settings)
    assert optimizer_mistakes(spec) == []
    groups = parameters()
    optimizer = build_optimizer(spec, groups, device=CPU)
    assert optimizer.param_groups[0]["params"][0] is groups[0]["params"][0]
    assert optimizer.param_groups[0]["name"] == "all"


@pytest.mark.parametrize(
    ("settings", "device", "fused"),
    [
        ({}, "cpu", True),
        ({}, "cuda", True),
        ({}, "mps", None),
        ({"fused": False}, "cpu", False),
        ({"foreach": True}, "cpu", None),
    ],
)
def test_it_is_fused_where_that_works(settings: dict, device: str, fused: bool | None) -> None:
    spec = Spec(use="torch.optim.AdamW", **settings)
    optimizer = build_optimizer(spec, parameters(), device=torch.device(device))
    assert optimizer.defaults["fused"] is fused


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"use": "torch.optim.AdamW", "capturable": True}, "capturable is true.* device is cpu"),
        ({"use": f"{__name__}.no_optimizer"}, "no_optimizer gave a dict, which is no torch.optim"),
        ({"use": f"{__name__}.failing"}, "train.optimizer: .*failing refuses.*KeyError: 'no such"),
        ({"use": "torch.optim.Muon"}, "train.optimizer: torch.optim.Muon refuses .*2D"),
    ],
)
def test_what_shows_only_with_the_model_names_the_optimiser(settings: dict, said: str) -> None:
    groups = [{"params": [nn.Parameter(torch.ones(2))]}]
    with pytest.raises(ConfigError, match=said):
        build_optimizer(Spec(**settings), groups, device=CPU)
