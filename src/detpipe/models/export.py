"""The trained detector as one file for other runtimes, checked against the model it came from.

Both formats hold the whole detector, from pixels to detections: input ``image`` uint8
``[3, height, width]`` RGB of one fixed size, outputs ``boxes`` float32 ``[N, 4]`` (x1 y1 x2 y2 in
pixels of the input), ``scores`` float32 ``[N]`` and ``labels`` int64 ``[N]`` (1..C), best first.
"""

from __future__ import annotations

import contextlib
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from detpipe.core.errors import ConfigError, DetpipeError, one_message
from detpipe.core.types import Detections
from detpipe.models.adapter import TorchvisionDetector

_log = logging.getLogger(__name__)

OPSET = 18
"""Version of the ONNX operator set the files are written for."""
OUTPUTS = ("boxes", "scores", "labels")

_BOX_TOLERANCE = 0.5
"""Pixels by which a box may differ and still be the same detection."""
_SCORE_TOLERANCE = 0.005
_LEAST_MATCHED = 0.98
"""Share of detections that must agree: near ties may be resolved the other way."""

Runner = Callable[[Tensor], Detections]


def export_model(
    model: nn.Module,
    folder: Path,
    images: Sequence[Tensor],
    *,
    formats: Sequence[str],
    metadata: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Writes ``model.onnx`` and/or ``model.torchscript`` and compares each with the model.

    Args:
        model: a trained detector.
        folder: gets the files.
        images: ``uint8 [3, H, W]`` to compare on. The files take images of the first one's size;
            images of another size are left out of the comparison.
        formats: ``onnx``, ``torchscript``.
        metadata: plain values written into the files (classes, model, …) as JSON.

    Returns:
        One row a format, see :func:`parity`.

    Raises:
        ConfigError: an unknown format, no image, or a package that is missing.
        DetpipeError: a file's detections differ from the model's.
    """
    writers = {
        "onnx": (export_onnx, "model.onnx", onnx_runner),
        "torchscript": (export_torchscript, "model.torchscript", torchscript_runner),
    }
    unknown = [name for name in formats if name not in writers]
    if unknown:
        raise ConfigError(f"export.formats: {unknown} unknown; there are {', '.join(writers)}")
    if not images:
        raise ConfigError("export: it takes at least one image to compare the files on")
    size = (int(images[0].shape[-2]), int(images[0].shape[-1]))
    same = [image for image in images if tuple(image.shape[-2:]) == size]
    if len(same) < len(images):
        _log.warning(
            "export: the files take images of %d×%d pixels only (stream.resize sets one size for "
            "all); %d image(s) of another size are not compared",
            size[1], size[0], len(images) - len(same),
        )  # fmt: skip
    if "onnx" in formats:
        _onnx_packages()
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in formats:
        write, file_name, runner = writers[name]
        path = write(model, folder / file_name, image_size=size, metadata=metadata)
        rows.append({"format": name, "file": path.name, **parity(model, runner(path), same)})
    bad = [
        f"{row['file']}: {row['matched']:.1%} of {row['detections']} detections agree, boxes "
        f"within {row['max_box_difference']:.3g} pixels, scores within "
        f"{row['max_score_difference']:.2g}"
        for row in rows
        if not row["ok"]
    ]
    if bad:
        raise DetpipeError(one_message("export: these files differ from the trained model:", bad))
    return rows


def export_onnx(
    model: nn.Module,
    path: Path,
    *,
    image_size: tuple[int, int],
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """Writes the detector as ONNX (operator set :data:`OPSET`).

    It goes through the TorchScript exporter: the newer one cannot yet express detections whose
    number depends on the image.

    Args:
        model: a trained torchvision detector (or the tiny one).
        path: the file to write.
        image_size: (height, width) of the input.
        metadata: plain values, kept as JSON in the file's metadata under ``detpipe``.

    Raises:
        ConfigError: the packages of the extra ``onnx`` are missing, or the model is another kind.
    """
    onnx, _ = _onnx_packages()
    graph, example = _graph(model), _example(model, image_size)
    with _quiet_eval(graph):
        torch.onnx.export(
            graph,
            (example,),
            str(path),
            dynamo=False,
            opset_version=OPSET,
            input_names=["image"],
            output_names=list(OUTPUTS),
            dynamic_axes={name: {0: "detections"} for name in OUTPUTS},
        )
    proto = onnx.load(str(path))
    onnx.helper.set_model_props(proto, {"detpipe": _json(metadata)})
    onnx.checker.check_model(proto)
    onnx.save(proto, str(path))
    return path


def export_torchscript(
    model: nn.Module,
    path: Path,
    *,
    image_size: tuple[int, int],
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """Writes the detector as TorchScript, by tracing; ``torch.jit.load`` needs no detpipe.

    The process that loads it must ``import torchvision`` (its C++ operators).

    Args:
        model: a trained torchvision detector (or the tiny one).
        path: the file to write.
        image_size: (height, width) of the input.
        metadata: plain values, kept as JSON in the file's extra file ``detpipe``.

    Raises:
        ConfigError: the model is of another kind.
    """
    graph, example = _graph(model), _example(model, image_size)
    with _quiet_eval(graph):
        traced = torch.jit.trace(graph, (example,), check_trace=False)  # type: ignore[no-untyped-call]
        torch.jit.save(traced, str(path), _extra_files={"detpipe": _json(metadata)})
    return path


def onnx_runner(path: Path) -> Runner:
    """A function that runs an ONNX file on an image, on the CPU."""
    _, onnxruntime = _onnx_packages()
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def run(image: Tensor) -> Detections:
        found = session.run(list(OUTPUTS), {"image": image.cpu().numpy()})
        return Detections(*map(torch.from_numpy, found))

    return run


def torchscript_runner(path: Path) -> Runner:
    """A function that runs a TorchScript file on an image, on the CPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch will drop it some day
        module = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]

    def run(image: Tensor) -> Detections:
        with torch.inference_mode():
            return Detections(*module(image.cpu()))

    return run


def parity(model: Any, run: Runner, images: Sequence[Tensor]) -> dict[str, Any]:
    """How well an exported file agrees with the model.

    Two detections are the same if their label is, the box within half a pixel and the score
    within 0.005; each detection is used once.

    Args:
        model: the detector.
        run: the file, see :func:`onnx_runner`.
        images: ``uint8 [3, H, W]`` each.

    Returns:
        ``images``; ``detections`` (the model's, or the file's if more); ``matched``, the share of
        them found in both (1 if there is none); ``max_box_difference`` (pixels) and
        ``max_score_difference`` among the matched; ``ok``.
    """
    total = matched = 0
    box_difference = score_difference = 0.0
    with _quiet_eval(model), torch.inference_mode():
        for image in images:
            ours, theirs = model.detect([image])[0], run(image)
            total += max(len(ours), len(theirs))
            for box, score in _matches(ours, theirs):
                matched += 1
                box_difference = max(box_difference, box)
                score_difference = max(score_difference, score)
    share = matched / total if total else 1.0
    return {
        "images": len(images),
        "detections": total,
        "matched": share,
        "max_box_difference": box_difference,
        "max_score_difference": score_difference,
        "ok": share >= _LEAST_MATCHED,
    }


def _matches(ours: Detections, theirs: Detections) -> Iterator[tuple[float, float]]:
    """(box difference, score difference) of every detection of ours that theirs has too."""
    boxes, scores, labels = ours.boxes.cpu(), ours.scores.cpu(), ours.labels.cpu()
    free = torch.ones(len(theirs), dtype=torch.bool)
    for i in range(len(ours)):
        box = (theirs.boxes - boxes[i]).abs().amax(dim=1)
        score = (theirs.scores - scores[i]).abs()
        same = free & (theirs.labels == labels[i])
        same &= (box <= _BOX_TOLERANCE) & (score <= _SCORE_TOLERANCE)
        if same.any():
            best = int(torch.where(same, box, torch.inf).argmin())
            free[best] = False
            yield float(box[best]), float(score[best])


class _Graph(nn.Module):
    """A torchvision detector as a function of one image, with a tuple of tensors as its result."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        found = self.inner([image])[0]
        return found["boxes"], found["scores"], found["labels"]


def _graph(model: nn.Module) -> nn.Module:
    if not isinstance(model, TorchvisionDetector):
        raise ConfigError(
            f"export: only detectors of detpipe.models.tiny and detpipe.models.torchvision can be "
            f"exported, this is a {type(model).__name__}"
        )
    return _Graph(model.inner)


def _example(model: nn.Module, image_size: tuple[int, int]) -> Tensor:
    # Noise, not black: an image in which something is found takes every path of the graph.
    generator = torch.Generator().manual_seed(0)
    image = torch.randint(0, 256, (3, *image_size), dtype=torch.uint8, generator=generator)
    return image.to(next(model.parameters()).device)


@contextlib.contextmanager
def _quiet_eval(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, without gradients, and without the tracer's remarks on fixed sizes."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for module, training in modes:
            module.training = training


def _onnx_packages() -> tuple[Any, Any]:
    try:
        import onnx
        import onnxruntime
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"export.formats: onnx needs the package '{error.name}': pip install -e '.[onnx]'"
        ) from error
    return onnx, onnxruntime


def _json(metadata: Mapping[str, Any] | None) -> str:
    return json.dumps(dict(metadata or {}), ensure_ascii=False, default=str)
