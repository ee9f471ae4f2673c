"""Optimiser groups, against torchvision's own split and a loop written by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn, optim
from torchvision.ops._utils import split_normalization_params

from detpipe.core.config import Spec
from detpipe.core.errors import ConfigError
from detpipe.models import tiny
from detpipe.models.stages import stages
from detpipe.models.torchvision import build
from detpipe.train.config import Groups
from detpipe.train.groups import describe, parameter_groups

from .toys import ToyStream, detector, same

SGD = Spec(use="torch.optim.SGD", lr=0.1, weight_decay=0.01)


@pytest.fixture
def model() -> nn.Module:
    return tiny.build(2, width=16)


def grouped(model: nn.Module, *, optimizer: Spec = SGD, **settings: Any) -> list[dict[str, Any]]:
    groups = parameter_groups(model, Groups.model_validate(settings), optimizer=optimizer)
    once = [id(p) for group in groups for p in group["params"]]
    learning = {id(p) for p in model.parameters() if p.requires_grad}
    assert len(once) == len(set(once)) and set(once) == learning, "each parameter in one group"
    return groups


def effective(model: nn.Module, **settings: Any) -> dict[str, tuple[float, float]]:
    """Parameter name → learning rate and weight decay, as torch's optimiser has them."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    optimizer = SGD.build(grouped(model, **settings))
    return {
        names[parameter]: (group["lr"], group["weight_decay"])
        for group in optimizer.param_groups
        for parameter in group["params"]
    }


def test_without_settings_there_is_one_group_for_any_model_and_optimiser() -> None:
    model = detector()  # it does not say its stages
    groups = grouped(model, optimizer=Spec(use="torch.optim.Rprop"))
    assert groups == [{"params": list(model.parameters()), "name": "all"}]
    assert describe(groups) == "1 group: all (4 tensors)"
    optim.LBFGS(groups)  # it takes one group only


@pytest.mark.parametrize("name", ["ssdlite320_mobilenet_v3_large", "fasterrcnn_resnet50_fpn_v2",
                                  "fcos_resnet50_fpn"])  # fmt: skip
def test_norm_layers_are_those_of_torchvisions_references(name: str) -> None:
    """``references/detection/train.py --norm-weight-decay`` splits with this very function."""
    with torch.device("meta"):
        model = build(2, name=name, trainable_backbone_layers=3)
    norm, other = split_normalization_params(model)
    rest, without = grouped(model, norm_weight_decay=0.0)
    assert {id(p) for p in without["params"]} == {id(p) for p in norm} and norm
    assert {id(p) for p in rest["params"]} == {id(p) for p in other}
    assert without["weight_decay"] == 0 and "weight_decay" not in rest
    assert "lr" not in rest and "lr" not in without
    assert without["name"] == "norm without decay" and rest["name"] == "rest"
    assert describe([rest, without]) == (
        f"2 groups: rest ({len(other)} tensors), norm without decay ({len(norm)})"
    )


def test_every_norm_layer_of_torch_counts_and_its_bias_is_norm() -> None:
    norms = nn.ModuleList([
        nn.BatchNorm1d(4), nn.BatchNorm2d(4), nn.BatchNorm3d(4), nn.SyncBatchNorm(4),
        nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.RMSNorm(4), nn.InstanceNorm2d(4, affine=True),
    ])  # fmt: skip
    # Every class of torch whose name says so and that has parameters is in the list above.
    known = {type(norm) for norm in norms}
    named = {c for n, c in vars(nn).items() if n.endswith("Norm") or n[:-2].endswith("Norm")}
    named |= {c for n, c in vars(nn).items() if n[:-2].endswith("Norm1")}
    lazy_or_plain = {c for c in named if "Lazy" in c.__name__ or c is nn.LocalResponseNorm}
    others = {nn.InstanceNorm1d, nn.InstanceNorm3d}
    assert named - lazy_or_plain - others == known
    model = nn.ModuleDict({"norms": norms, "linear": nn.Linear(4, 4)})
    rest, norm, bias = grouped(model, norm_weight_decay=0.5, bias_weight_decay=0.25)
    assert {id(p) for p in norm["params"]} == {id(p) for p in norms.parameters()}
    assert [id(p) for p in bias["params"]] == [id(model["linear"].bias)]
    assert [id(p) for p in rest["params"]] == [id(model["linear"].weight)]
    assert (norm["name"], bias["name"]) == ("norm weight decay 0.5", "bias weight decay 0.25")


def test_biases_of_norm_layers_are_no_biases() -> None:
    got = effective(detector(norm=True), bias_weight_decay=0.0)
    decays = {name: decay for name, (_, decay) in got.items()}
    assert decays.pop("layers.0.bias") == decays.pop("layers.5.bias") == 0
    assert set(decays) > {"layers.1.bias"} and set(decays.values()) == {0.01}


def test_in_projection_biases_of_attention_are_biases() -> None:
    rest, bias = grouped(nn.MultiheadAttention(4, 2), bias_weight_decay=0.0)
    assert [p.ndim for p in bias["params"]] == [1, 1] and all(p.ndim == 2 for p in rest["params"])


def test_all_settings_together_equal_a_loop_by_hand(model: nn.Module) -> None:
    got = effective(
        model, norm_weight_decay=0.0, bias_weight_decay=0.002, backbone_lr_factor=0.5,
        layer_decay=0.8,
        patterns={
            r"rpn\.head": {"lr_factor": 2},
            r"bbox_pred": {"lr_factor": 3, "weight_decay": 0.04},
            r"blocks\.4\.\d+\.weight": {"lr_factor": 10},
            r"blocks\.0\.1\.": {"weight_decay": 0.07},  # a norm layer
            r"inner\.rpn": {"lr_factor": 5},
            "unused": None,
        },
    )  # fmt: skip
    norm_layers = {n for n, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)}
    for name in got:
        lr, decay = 0.1, 0.01
        if name.endswith("bias"):
            decay = 0.002
        if name.rpartition(".")[0] in norm_layers:
            decay = 0.0
        for block in range(5):  # the last block is one step away from the rest
            if f".blocks.{block}." in name:
                lr *= 0.5 * 0.8 ** (5 - block)
        if "rpn.head" in name:
            lr *= 10
        if "bbox_pred" in name:
            lr *= 3
            decay = 0.04
        if ".blocks.4." in name and name.endswith("weight"):
            lr *= 10
        if ".blocks.0.1." in name:
            decay = 0.07
        assert got[name] == pytest.approx((lr, decay), rel=1e-12, abs=0), name
    assert len({lr for lr, _ in got.values()}) > 7


def test_equal_settings_share_a_group_and_the_rest_comes_first(model: nn.Module) -> None:
    groups = grouped(model, norm_weight_decay=0.0, bias_weight_decay=0.0, backbone_lr_factor=0.1)
    assert [group["name"] for group in groups] == [
        "rest",
        "backbone lr ×0.1",
        "backbone norm lr ×0.1, without decay",
        "bias without decay",
    ]
    assert grouped(model, bias_weight_decay=0.01)[0]["name"] == "all"  # as the optimiser's own
    both = grouped(detector(norm=True), norm_weight_decay=0.0, bias_weight_decay=0.0)
    assert [group["name"] for group in both] == ["rest", "bias and norm without decay"]
    last, first = stages(model)[-1], stages(model)[0]
    names = {id(p): n for n, p in model.named_parameters()}
    layered = grouped(model, layer_decay=0.5)
    assert [group["name"] for group in layered] == [
        "rest", *(f"stage {i} lr ×{0.5 ** (6 - i):.3g}" for i in range(1, 6)),
    ]  # fmt: skip
    assert names[id(layered[1]["params"][0])].startswith(first[0])
    assert names[id(layered[5]["params"][0])].startswith(last[0])
    assert layered[5]["lr"] == 0.05 and layered[1]["lr"] == 0.1 * 0.5**5


@pytest.mark.parametrize(
    ("optimizer", "lr"),
    [
        ({"use": "torch.optim.AdamW"}, 1e-3),
        ({"use": "torch.optim.Adadelta"}, 1.0),
        ({"use": "torch.optim.AdamW", "lr": 4e-4, "weight_decay": 0.05}, 4e-4),
    ],
)
def test_factors_act_on_the_optimisers_own_learning_rate(
    model: nn.Module, optimizer: dict[str, Any], lr: float
) -> None:
    spec = Spec(**optimizer)
    assert spec.build([nn.Parameter(torch.zeros(1))]).param_groups[0]["lr"] == lr
    built = spec.build(grouped(model, optimizer=spec, backbone_lr_factor=0.1))
    assert [group["lr"] for group in built.param_groups] == [lr, lr * 0.1]


def test_frozen_parameters_are_in_no_group_and_tied_ones_in_one(model: nn.Module) -> None:
    for parameter in model.inner.backbone.parameters():
        parameter.requires_grad_(False)
    assert len(grouped(model, backbone_lr_factor=0.1)) == 1
    tied = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    tied["b"].weight = tied["a"].weight
    rest, factor = grouped(tied, patterns={r"b\.weight": {"lr_factor": 0.5}})
    assert [id(p) for p in factor["params"]] == [id(tied["a"].weight)]
    assert factor["lr"] == 0.05 and len(rest["params"]) == 2


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}])
def test_a_run_with_groups_equals_torchs_own_groups(options: dict[str, bool]) -> None:
    ours, theirs = detector(norm=True), detector(norm=True)
    spec = Spec(use="torch.optim.AdamW", lr=0.01, weight_decay=0.1, **options)
    settings = {"norm_weight_decay": 0.0, "patterns": {r"layers\.5": {"lr_factor": 0.1}}}
    layers = theirs.layers
    by_hand = optim.AdamW(
        [
            {"params": layers[0].parameters()},
            {"params": layers[1].parameters(), "weight_decay": 0.0},
            {"params": layers[5].parameters(), "lr": 0.001},
        ],
        lr=0.01, weight_decay=0.1, **options,
    )  # fmt: skip
    for model, optimizer in ((ours, spec.build(grouped(ours, optimizer=spec, **settings))),
                             (theirs, by_hand)):  # fmt: skip
        for _, batch in zip(range(5), ToyStream().batches(0), strict=False):
            optimizer.zero_grad()
            sum(model(batch).values()).backward()
            optimizer.step()
    assert same(ours.state_dict(), theirs.state_dict())
    assert not same(ours.state_dict(), detector(norm=True).state_dict())


@pytest.mark.parametrize(
    ("optimizer", "settings", "message"),
    [
        (SGD, {"patterns": {"roi_head_": {}}}, "near it are.*roi_heads"),
        (SGD, {"patterns": {"frozen_one": {}}}, "'frozen_one' is in no parameter's name"),
        (Spec(use="torch.optim.Rprop"), {"norm_weight_decay": 0.0}, "Rprop has no option 'weight_"),
        (Spec(use="torch.optim.Rprop"), {"patterns": {"a": {"weight_decay": 0}}}, "no option"),
        (Spec(use="torch.optim.SGD", lr="high"), {"patterns": {"a": {"lr_factor": 2}}},
         "needs a number for train.optimizer.lr to start from; 'high'"),
    ],
)  # fmt: skip
def test_mistakes_are_named(
    model: nn.Module, optimizer: Spec, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        grouped(model, optimizer=optimizer, **settings)


def test_a_pattern_for_parameters_that_do_not_learn_is_refused(model: nn.Module) -> None:
    model.inner.rpn.requires_grad_(False)
    with pytest.raises(
        ConfigError, match="among parameters that learn: 'rpn' is in no parameter's name"
    ):
        grouped(model, patterns={"rpn": {"lr_factor": 2}})


def test_all_mistakes_come_together() -> None:
    settings = {"backbone_lr_factor": 0.1, "bias_weight_decay": 0.0}
    with pytest.raises(ConfigError) as caught:
        grouped(detector(), optimizer=Spec(use="torch.optim.Rprop"), **settings)
    text = str(caught.value)
    assert "ToyDetector does not say" in text and "no option 'weight_decay'" in text
    with pytest.raises(ConfigError, match="nothing to train"):
        grouped(detector().requires_grad_(False))
