"""Exported files: each gives the model's own detections, or is refused."""

from __future__ import annotations

import builtins
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from detpipe.core.errors import ConfigError, DetpipeError
from detpipe.core.types import Detections
from detpipe.models import export, tiny
from detpipe.models.torchvision import build

from .conftest import batch, image, roughen


def _used(model: nn.Module) -> nn.Module:
    """The model after a few passes, so that batch norm holds statistics of real activations."""
    roughen(model).train()
    with torch.no_grad():
        for _ in range(3):
            model(batch(size=128))
    return model.eval()


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return _used(tiny.build(3, width=16, channels=16, score_thresh=0.3, max_detections=20))


@pytest.mark.parametrize("name", ["onnx", "torchscript"])
def test_file_agrees_with_the_model(model: nn.Module, name: str, tmp_path: Path) -> None:
    if name == "onnx":
        pytest.importorskip("onnxruntime")
    images = [image(96, 128, seed=seed) for seed in range(3)]
    images.append(torch.zeros(3, 96, 128, dtype=torch.uint8))
    model.train()
    rows = export.export_model(model, tmp_path, images, formats=[name], metadata={"classes": ["é"]})
    assert model.training and model.inner.rpn.training, "the caller's mode is restored"
    model.eval()
    assert rows[0]["ok"] and rows[0]["format"] == name
    assert rows[0]["images"] == 4
    with torch.inference_mode():
        expected = sum(len(model.detect([picture])[0]) for picture in images)
    assert rows[0]["detections"] == expected > 0
    assert rows[0]["matched"] > 0.98  # an untrained model has near ties
    assert rows[0]["max_box_difference"] < 1e-2
    if name == "onnx":
        _check_onnx(tmp_path / "model.onnx")


def _check_onnx(path: Path) -> None:
    import onnx

    proto = onnx.load(str(path))
    entry = proto.graph.input[0].type.tensor_type
    assert entry.elem_type == onnx.TensorProto.UINT8
    assert [d.dim_value for d in entry.shape.dim] == [3, 96, 128]
    assert [output.name for output in proto.graph.output] == ["boxes", "scores", "labels"]
    assert proto.opset_import[0].version == export.OPSET
    assert json.loads(proto.metadata_props[0].value) == {"classes": ["é"]}


@pytest.mark.slow
def test_torchscript_file_runs_without_detpipe(model: nn.Module, tmp_path: Path) -> None:
    path = export.export_torchscript(
        model, tmp_path / "m.torchscript", image_size=(64, 64), metadata={"classes": ["a", "é"]}
    )
    code = (
        "import sys, json, torch, torchvision; extra = {'detpipe': ''}; "
        f"m = torch.jit.load({str(path)!r}, _extra_files=extra); "
        "b, s, l = m(torch.zeros(3, 64, 64, dtype=torch.uint8)); "
        "assert b.shape[1] == 4 and 'detpipe' not in sys.modules; "
        "assert json.loads(extra['detpipe'])['classes'] == ['a', 'é']"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: Detections(d.boxes + 1, d.scores, d.labels),
        lambda d: Detections(d.boxes, d.scores * 0.9, d.labels),
        lambda d: Detections(d.boxes, d.scores, d.labels % 3 + 1),
        lambda d: Detections(d.boxes[:-1], d.scores[:-1], d.labels[:-1]),
        lambda d: Detections(*(torch.cat([x, x[:1]]) for x in (d.boxes, d.scores, d.labels))),
    ],
    ids=["boxes", "scores", "labels", "one missing", "one doubled"],
)
def test_parity_sees_a_difference(model: nn.Module, change: Any) -> None:
    images = [image(96, 128)]

    def run(picture: Tensor) -> Detections:
        return change(model.detect([picture])[0])

    assert export.parity(model, lambda picture: model.detect([picture])[0], images)["ok"]
    assert not export.parity(model, run, images)["ok"]


def test_a_file_that_differs_is_an_error(
    model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = Detections(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0, dtype=torch.int64))
    monkeypatch.setattr(export, "torchscript_runner", lambda _: lambda _: nothing)
    with pytest.raises(DetpipeError, match=r"model\.torchscript: 0\.0% of"):
        export.export_model(model, tmp_path, [image(64, 64)], formats=["torchscript"])


def test_missing_package_names_the_extra(
    model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without_onnx(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".", maxsplit=1)[0] == "onnx":
            raise ModuleNotFoundError("No module named 'onnx'", name="onnx")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_onnx)
    with pytest.raises(ConfigError, match=r"pip install -e '.\[onnx\]'"):
        export.export_model(model, tmp_path, [image()], formats=["onnx", "torchscript"])
    assert not list(tmp_path.iterdir())


def test_mistakes_are_named(model: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="onnx, torchscript"):
        export.export_model(model, tmp_path, [image()], formats=["tflite"])
    with pytest.raises(ConfigError, match="at least one image"):
        export.export_model(model, tmp_path, [], formats=["torchscript"])
    with pytest.raises(ConfigError, match="a Linear"):
        export.export_torchscript(nn.Linear(1, 1), tmp_path / "x", image_size=(8, 8))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["ssdlite320_mobilenet_v3_large", "fasterrcnn_mobilenet_v2_fpn", "retinanet_resnet50_fpn"],
)
def test_torchvision_families(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    model = _used(build(3, name=name, score_thresh=0.2))
    images = [image(128, 128, seed=seed) for seed in range(2)]
    rows = export.export_model(model, tmp_path, images, formats=["onnx", "torchscript"])
    assert all(row["ok"] and row["detections"] > 0 for row in rows)
