"""The model section: mistakes come at once, and a spec can be rebuilt without its weights."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from pydantic import ValidationError

from detpipe.models.config import ExportConfig, ModelSpec

TORCHVISION = "detpipe.models.torchvision.build"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"use": "detpipe.models.tiny.build", "widht": 48}, "did you mean 'width'"),
        ({"use": "detpipe.models.tiny.build", "width": "wide"}, "valid integer"),
        ({"use": "detpipe.models.tinny.build"}, "no module"),
        ({"use": TORCHVISION}, "needs the option 'name'"),
        ({"use": TORCHVISION, "name": "retinanet"}, "no detector 'retinanet'"),
        ({"use": TORCHVISION, "name": "ssd300_vgg16", "box_nms": 1}, "no such option"),
    ],
)
def test_mistakes(spec: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ModelSpec.model_validate(spec)


def test_torchvision_model_without_weights_is_the_same_architecture() -> None:
    spec = ModelSpec(
        use=TORCHVISION, name="fasterrcnn_mobilenet_v3_large_320_fpn", weights="COCO_V1",
        trainable_backbone_layers=1,
    )  # fmt: skip
    bare = spec.without_weights()
    assert bare.options["load_weights"] is False
    model = bare.build(num_classes=2)  # needs no network
    names = {type(module).__name__ for module in model.inner.backbone.body.modules()}
    assert "FrozenBatchNorm2d" in names and "BatchNorm2d" not in names


def test_other_builders_lose_their_weights() -> None:
    spec = ModelSpec(use="detpipe.models.tiny.build", width=16, weights="absent.pth")
    bare = spec.without_weights()
    assert bare.options == {"width": 16}
    assert isinstance(bare.build(num_classes=2), torch.nn.Module)


def test_importing_the_configuration_imports_no_torch() -> None:
    code = "import sys, detpipe.models.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_export_formats() -> None:
    assert ExportConfig().formats == ["torchscript"]
    with pytest.raises(ValidationError, match="torchscript"):
        ExportConfig(formats=["tensorrt"])
