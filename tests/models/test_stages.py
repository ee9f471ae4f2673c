"""Stages and patterns, over every family; the big ones without memory (the meta device)."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torchvision.models import detection, mobilenet_v2
from torchvision.models._api import WeightsEnum
from torchvision.models.detection.backbone_utils import _mobilenet_extractor

from detpipe.core.errors import ConfigError
from detpipe.models import tiny
from detpipe.models.adapter import TorchvisionDetector
from detpipe.models.backbones import layers
from detpipe.models.stages import matching, parameter_names, stages, within
from detpipe.models.torchvision import FAMILIES, build

from .conftest import image


@pytest.mark.parametrize("name", FAMILIES)
def test_stages_are_the_whole_body_and_nothing_else_each_part_once(name: str) -> None:
    with torch.device("meta"):
        model = build(3, name=name)
    found = stages(model)
    assert len(found) == FAMILIES[name].stages
    body = {id(p) for layer in layers(model.inner.backbone).values() for p in layer.parameters()}
    for path, parameter in model.named_parameters():
        times = sum(within(path, prefixes) for prefixes in found)
        assert times == (id(parameter) in body), path
    outside = {path for path, p in model.named_parameters() if id(p) not in body}
    parts = (".fpn.", ".head.", ".rpn.", ".roi_heads.", ".extra.", ".scale_weight")
    assert [path for path in outside if not any(part in path for part in parts)] == []


@pytest.mark.parametrize(
    "name",
    [
        "ssdlite320_mobilenet_v3_large",
        "fasterrcnn_mobilenet_v2_fpn",
        "fasterrcnn_mobilenet_v3_large_320_fpn",
        "tiny",
        pytest.param("ssd300_vgg16", marks=pytest.mark.slow),
        pytest.param("fasterrcnn_resnet50_fpn_v2", marks=pytest.mark.slow),
    ],
)
def test_stages_come_in_the_order_in_which_an_image_passes_them(name: str) -> None:
    model = tiny.build(3, width=16) if name == "tiny" else build(3, name=name)
    names = {module: path for path, module in model.named_modules()}
    passed: list[int] = []

    def note(module: nn.Module, *_: object) -> None:
        passed.extend(i for i, s in enumerate(stages(model)) if within(names[module], s))

    for module in model.inner.backbone.modules():
        module.register_forward_hook(note)
    with torch.inference_mode():
        model.eval().detect([image()])
    assert passed == sorted(passed) and set(passed) == set(range(len(stages(model))))


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow if n.startswith("ssdlite") else ()) for n in FAMILIES],
)
def test_torchvision_freezes_the_same_stages(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    count = FAMILIES[name].stages
    with torch.device("meta"):
        ours = build(90, name=name)
        if name != "fasterrcnn_mobilenet_v2_fpn":
            state = FAMILIES[name].build(weights=None, weights_backbone=None).state_dict()
            monkeypatch.setattr(WeightsEnum, "get_state_dict", lambda *_, **__: state)
        for trainable in range(count + 1):
            if name == "fasterrcnn_mobilenet_v2_fpn":  # torchvision builds only the backbone
                theirs = _mobilenet_extractor(mobilenet_v2(), fpn=True, trainable_layers=trainable)
                prefix = "inner.backbone."
            else:
                builder = getattr(detection, name)
                theirs = builder(weights="COCO_V1", trainable_backbone_layers=trainable)
                prefix = "inner."
            # Their frozen batch norm has no parameters.
            both = {path for path, _ in ours.named_parameters()} & {
                prefix + path for path, _ in theirs.named_parameters()
            }
            expected = {
                prefix + path for path, p in theirs.named_parameters() if not p.requires_grad
            }
            frozen = [p for stage in stages(ours)[: count - trainable] for p in stage]
            assert {path for path in both if within(path, frozen)} == expected & both
            assert bool(expected & both) is (trainable < count)


def test_a_backbone_and_a_detector_may_say_their_own() -> None:
    class Backbone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.body = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)

        def stages(self) -> list[list[str]]:
            return [["stem.weight", "stem.bias"], ["body"]]

    inner = nn.Module()
    inner.backbone = Backbone()
    model = TorchvisionDetector(inner, num_classes=1)
    assert stages(model) == (
        ("inner.backbone.stem.weight", "inner.backbone.stem.bias"),
        ("inner.backbone.body",),
    )


class Said(nn.Module):
    def __init__(self, *said: tuple[str, ...]) -> None:
        super().__init__()
        self.a, self.b = nn.Sequential(nn.Linear(1, 1)), nn.Linear(1, 1)
        self.said = said

    def stages(self) -> tuple[tuple[str, ...], ...]:
        return self.said


class Layers(nn.Module):
    """ConvNeXt's name for something else."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList([nn.Linear(1, 1)])


def other_backbone() -> nn.Module:
    inner = nn.Module()
    inner.backbone = nn.Linear(1, 1)
    return TorchvisionDetector(inner, num_classes=1)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear(1, 1), r"Linear does not say .* method stages\(\)"),
        (Layers(), r"Layers does not say"),
        (other_backbone(), r"type Linear is not known; give its class a method stages"),
        (TorchvisionDetector(nn.Module(), num_classes=1), r"is not known"),
        (Said(("a",), ("bb",)), r"Said.stages\(\): 'bb' is no module"),
        (Said(("a",), ("a.0.weight",)), r"'a.0.weight' is in two stages"),
        (Said(("b", "b")), r"'b' is in two stages, or twice in one"),
        (Said(("",)), r"'' is no module"),
    ],
)
def test_mistakes_in_stages_are_named(model: nn.Module, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        stages(model)


def test_a_prefix_ends_at_a_dot() -> None:
    assert within("layer1.weight", ["layer1"]) and within("layer1", ["layer1"])
    assert not within("layer10.weight", ["layer1"]) and not within("layer1", ["layer1.weight"])


def test_patterns_are_searched_in_every_name_of_a_tied_parameter() -> None:
    model = nn.ModuleDict({"head": nn.Linear(2, 2), "twin": nn.Linear(2, 2)})
    model["twin"].weight = model["head"].weight
    names = parameter_names(model)
    assert list(names.values()) == [
        ["head.weight", "twin.weight"],
        ["head.bias"],
        ["twin.bias"],
    ]
    found = matching(["twin", r"^head\."], names, where="here")
    assert found["twin"] == [model["head"].weight, model["twin"].bias]
    assert found[r"^head\."] == [model["head"].weight, model["head"].bias]


def test_mistakes_in_patterns_come_together_with_names_near_them() -> None:
    names = parameter_names(tiny.build(2, width=16))
    with pytest.raises(ConfigError) as caught:
        matching([r"roi_head\.", "(", "backbone"], names, where="here")
    first, second = str(caught.value).split("; here: ")
    assert first.startswith(r"here: 'roi_head\.' is in no parameter's name; near it are roi_heads")
    assert second.startswith("'(' is no regular expression: missing )")
    with pytest.raises(ConfigError, match=r"names are such as inner.backbone"):
        matching(["zzz"], names, where="here")
