"""What a model costs, against numbers worked by hand and those torchvision publishes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torchvision.models import detection, get_model_weights

from detpipe.core.errors import ConfigError
from detpipe.core.types import Batch, Detections
from detpipe.models.describe import describe_model
from detpipe.models.torchvision import build

from .conftest import batch, image, target

SIDE, KERNEL, CHANNELS, OUT = 8, 3, 4, 5
GRID = SIDE - KERNEL + 1
"""Side of the convolution's output: no padding."""


class Known(nn.Module):
    """A convolution in a list that is not called itself, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleList([nn.Conv2d(3, CHANNELS, KERNEL), nn.BatchNorm2d(CHANNELS)])
        self.head = nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(CHANNELS * GRID**2, OUT))
        self.calls = 0

    def outputs(self, images):
        x = torch.stack(list(images)).float() / 255
        for module in self.body:
            x = module(x)
        return self.head(x)

    def forward(self, batch):
        torch.rand(1)  # as models that sample proposals do
        return {"loss": self.outputs(batch.images).square().mean()}

    def detect(self, images):
        self.calls += 1
        self.outputs(images)
        return [Detections(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0).long())] * len(images)


def small_batch(size: int = 2) -> Batch:
    return Batch(
        tuple(image(SIDE, SIDE, seed=i) for i in range(size)),
        tuple(target([], []) for _ in range(size)),
    )


def described(model: nn.Module, given: Batch | None = None, **options):
    options = {"latency_runs": 0, **options}
    return describe_model(model, given or small_batch(), **options).set_index("module")


def test_parameters_flops_and_activations_are_those_worked_by_hand():
    table = described(Known())
    grid, weights = CHANNELS * GRID**2, 3 * KERNEL**2
    conv, linear = table.loc["body.0"], table.loc["head.2"]
    assert conv["parameters"] == CHANNELS * weights + CHANNELS
    assert conv["flops"] == 2 * grid * weights
    assert conv["activations"] == grid
    assert linear["parameters"] == grid * OUT + OUT
    assert linear["flops"] == 2 * grid * OUT
    assert linear["activations"] == OUT
    whole = table.loc["(whole model)"]
    assert whole["parameters"] == conv["parameters"] + 2 * CHANNELS + linear["parameters"]
    assert whole["flops"] == conv["flops"] + linear["flops"]
    assert whole["activations"] == grid + OUT


def test_memory_of_a_training_step_is_what_autograd_must_keep():
    """float32: the images (convolution), its output (batch norm), that of the batch norm (ReLU
    works on its own output, which the linear layer shares), batch statistics, the square's input.
    """
    size, grid = 3, CHANNELS * GRID**2
    table = described(Known(), small_batch(size))["training_mib"] * 2**20
    statistics = 2 * CHANNELS * 4
    assert table["body.0"] == size * 3 * SIDE**2 * 4
    assert table["body.1"] == size * grid * 4 + statistics
    assert table["head"] == size * grid * 4
    assert table["(whole model)"] == table[["body", "head"]].sum() + size * OUT * 4


def test_it_grows_with_the_batch_and_flops_do_not():
    one, four = described(Known(), small_batch(1)), described(Known(), small_batch(4))
    whole = "(whole model)"
    assert four.loc[whole, "training_mib"] > 3.5 * one.loc[whole, "training_mib"]
    assert four.loc[whole, "flops"] == one.loc[whole, "flops"]
    assert four.loc[whole, "batch_size"] == 4


def test_bfloat16_keeps_half_of_what_the_convolution_puts_out():
    full, half = described(Known()), described(Known(), precision="bf16")
    assert half.loc["body.1", "training_mib"] < 0.6 * full.loc["body.1", "training_mib"]
    assert set(half["precision"]) == {"bf16"}


def test_frozen_parameters_do_not_learn_and_nothing_is_kept_for_them():
    model = Known()
    model.body.requires_grad_(False)
    table = described(model)
    assert table.loc["body", "trainable"] == 0 < table.loc["body", "parameters"]
    assert table.loc["body", "training_mib"] == 0
    assert table.loc["head", "trainable"] == table.loc["head", "parameters"]


def test_a_container_that_is_not_called_costs_what_is_in_it():
    table = described(Known())
    columns = ["flops", "activations", "training_mib"]
    assert table.loc["body", "flops"] > 0
    assert list(table.loc["body", columns]) == list(table.loc[["body.0", "body.1"], columns].sum())


def test_depth_limits_the_list_and_not_the_numbers():
    deep, flat = described(Known()), described(Known(), depth=0)
    assert list(flat.index) == ["(whole model)"]
    assert list(described(Known(), depth=1).index) == ["(whole model)", "body", "head"]
    columns = ["parameters", "flops", "activations", "training_mib"]
    assert list(flat.loc["(whole model)", columns]) == list(deep.loc["(whole model)", columns])


def test_the_model_and_the_random_numbers_stay_as_they_are():
    model = Known()
    model.body[1].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    describe_model(model, small_batch(), latency_runs=2)
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert all(p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert model.calls == 0


def test_latency_is_of_the_runs_after_the_warm_up(monkeypatch):
    """A clock that goes 1, 2, 3, … ms from call to call: the warm-up's times must not count."""
    now, durations = [0.0], iter([100.0, 100.0, 1.0, 2.0, 3.0, 4.0, 10.0])
    monkeypatch.setattr("detpipe.models.describe.perf_counter", lambda: now[0])

    class Slow(Known):
        measured = False

        def detect(self, images):
            if self.calls:  # the first call is the one that counts FLOPs
                now[0] += next(durations) / 1000
            return super().detect(images)

    whole = describe_model(Slow(), small_batch(), warm_up=2, latency_runs=5).iloc[0]
    assert whole["detect_ms"] == pytest.approx(3)
    assert (whole["detect_ms_25"], whole["detect_ms_75"]) == pytest.approx((2, 4))
    assert next(durations, None) is None


def test_without_runs_there_is_no_latency():
    table = described(Known())
    assert math.isnan(table.loc["(whole model)", "detect_ms"])
    timed = described(Known(), latency_runs=1)
    assert timed.loc["(whole model)", "detect_ms"] > 0
    assert timed.loc["body":, "detect_ms"].isna().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": -1}, "depth is -1"),
        ({"latency_runs": -2}, "latency_runs is -2"),
        ({"given": Batch((), ())}, "at least one image"),
    ],
)
def test_options_are_checked(options, message):
    given = options.pop("given", small_batch())
    with pytest.raises(ConfigError, match=message):
        describe_model(Known(), given, **options)


def test_a_model_without_detect_is_refused():
    with pytest.raises(ConfigError, match="Linear is no detector"):
        describe_model(nn.Linear(1, 1), small_batch())


def published(name: str) -> dict:
    return next(iter(get_model_weights(getattr(detection, name)))).meta


def whole(name: str, size: int):
    """The architecture of torchvision's COCO weights: 90 classes, frozen norm where it has it."""
    weights = next(iter(get_model_weights(getattr(detection, name)))).name
    model = build(90, name=name, weights=weights, load_weights=False)
    return described(model, batch(size=size), depth=2)


def test_ssdlite_has_the_parameters_and_operations_torchvision_publishes():
    """torchvision counts a multiply-add as 1 and rounds to 0.001 · 10⁹, at 320 × 320."""
    name = "ssdlite320_mobilenet_v3_large"
    table, meta = whole(name, 320), published(name)
    assert table.loc["(whole model)", "parameters"] == meta["num_params"]
    assert table.loc["(whole model)", "flops"] / 2e9 == pytest.approx(meta["_ops"], abs=0.0005)


@pytest.mark.slow
def test_so_has_retinanet():
    """At 800 × 800."""
    name = "retinanet_resnet50_fpn"
    table, meta = whole(name, 800), published(name)
    assert table.loc["(whole model)", "parameters"] == meta["num_params"]
    assert table.loc["(whole model)", "flops"] / 2e9 == pytest.approx(meta["_ops"], abs=0.0005)


def test_so_has_faster_rcnn_but_for_its_box_head():
    """torchvision's number is that of a picture without proposals: the box head has no part."""
    name = "fasterrcnn_mobilenet_v3_large_320_fpn"
    table, meta = whole(name, 320), published(name)
    assert table.loc["(whole model)", "parameters"] == meta["num_params"]
    flops = table.loc[["inner.backbone", "inner.rpn"], "flops"].sum()
    assert flops / 2e9 == pytest.approx(meta["_ops"], abs=0.0005)
