"""Every detector of torchvision, through one builder."""

from __future__ import annotations

import difflib
import inspect
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torchvision
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models import detection
from torchvision.ops import FrozenBatchNorm2d

from detpipe.core.errors import ConfigError, one_message
from detpipe.models import backbones
from detpipe.models.adapter import TorchvisionDetector
from detpipe.models.transform import BatchTransform, ResizingTransform
from detpipe.models.weights import load_into, read, resolve

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Family:
    """What differs between torchvision's builders.

    Attributes:
        build: the builder, called with ``num_classes`` (with background) and options.
        parts: the class whose signature lists the options.
        backbone: torchvision's name of the image classifier inside.
        stages: how many stages of it can be frozen.
        trainable: stages that learn by default when weights are given.
        frozen_norm: batch norm is frozen when weights are given.
        zero_eps: published weights that need batch norm without epsilon.
        defaults: options other than those of ``parts``.
    """

    build: Callable[..., Any]
    parts: type[nn.Module]
    backbone: str
    stages: int
    trainable: int
    frozen_norm: bool
    zero_eps: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)


_RCNN, _RETINA, _FCOS, _SSD = (
    detection.FasterRCNN,
    detection.RetinaNet,
    detection.FCOS,
    detection.ssd.SSD,
)
_RESNET, _V3 = ("resnet50", 5, 3), ("mobilenet_v3_large", 6, 3)
FAMILIES: Mapping[str, Family] = {
    "fasterrcnn_resnet50_fpn": Family(
        detection.fasterrcnn_resnet50_fpn, _RCNN, *_RESNET, True, zero_eps=True
    ),
    "fasterrcnn_resnet50_fpn_v2": Family(
        detection.fasterrcnn_resnet50_fpn_v2, _RCNN, *_RESNET, False
    ),
    "fasterrcnn_mobilenet_v3_large_fpn": Family(
        detection.fasterrcnn_mobilenet_v3_large_fpn, _RCNN, *_V3, True
    ),
    "fasterrcnn_mobilenet_v3_large_320_fpn": Family(
        detection.fasterrcnn_mobilenet_v3_large_320_fpn,
        _RCNN, *_V3, True, defaults={"min_size": 320, "max_size": 640},
    ),
    "fasterrcnn_mobilenet_v2_fpn": Family(
        backbones.fasterrcnn_mobilenet_v2_fpn, _RCNN, "mobilenet_v2", 6, 3, True
    ),
    "retinanet_resnet50_fpn": Family(
        detection.retinanet_resnet50_fpn, _RETINA, *_RESNET, True, zero_eps=True
    ),
    "retinanet_resnet50_fpn_v2": Family(
        detection.retinanet_resnet50_fpn_v2, _RETINA, *_RESNET, False
    ),
    "fcos_resnet50_fpn": Family(detection.fcos_resnet50_fpn, _FCOS, *_RESNET, True),
    "ssd300_vgg16": Family(detection.ssd300_vgg16, _SSD, "vgg16", 5, 4, False),
    "ssdlite320_mobilenet_v3_large": Family(
        detection.ssdlite320_mobilenet_v3_large, _SSD, "mobilenet_v3_large", 6, 6, False
    ),
}  # fmt: skip
"""torchvision's name of each detector → how it is built here."""


def build(
    num_classes: int,
    *,
    name: str,
    weights: str | None = None,
    weights_backbone: str | None = None,
    trainable_backbone_layers: int | None = None,
    norm: Literal["auto", "batch", "frozen"] = "auto",
    max_detections: int = 100,
    score_thresh: float | None = None,
    nms_thresh: float | None = None,
    load_weights: bool = True,
    **options: Any,
) -> nn.Module:
    """A torchvision detector.

    Images reach it at the size the stream gives them (``stream.resize``), and are not resized
    again unless ``min_size`` and ``max_size`` are among the options (the ``_320`` variant has
    them); the SSD family stretches them to its fixed size.

    Args:
        num_classes: classes without background.
        name: torchvision's name of the detector, see :data:`FAMILIES`.
        weights: of the whole detector: ``none``, a name of torchvision's (``COCO_V1``,
            ``DEFAULT``), a file, ``package:path`` or an address. A head of another class count
            stays untrained, and a warning says so.
        weights_backbone: of the backbone, likewise (``IMAGENET1K_V1``, …).
        trainable_backbone_layers: stages of the backbone that learn, counted from the last; by
            default torchvision's number with weights, and all without.
        norm: batch norm of the backbone: ``frozen``, ``batch`` (learns), or ``auto``: as
            torchvision does, frozen for most detectors when weights are given.
        max_detections: best detections given per image.
        score_thresh: detections below are not given (default: torchvision's).
        nms_thresh: overlap (IoU) above which the worse of two boxes is dropped (default:
            torchvision's).
        load_weights: false gives the same module with random values; nothing is read or
            downloaded. For weights that are loaded afterwards.
        options: further ones of torchvision's ``FasterRCNN``, ``RetinaNet``, ``FCOS`` or ``SSD``.

    Raises:
        ConfigError: the name or an option is unknown.
        WeightsError: the weights cannot be found, or nothing in them fits.
    """
    weights, weights_backbone = _given(weights), _given(weights_backbone)
    check_options(
        name=name, weights=weights, weights_backbone=weights_backbone,
        trainable_backbone_layers=trainable_backbone_layers, **options,
    )  # fmt: skip
    family = FAMILIES[name]
    if weights and _is_name(weights):
        weights_backbone = None  # they hold the backbone's too
    # Found before the model is built, so that an error comes at once.
    state = _read(name, weights) if load_weights else None
    backbone_state = None
    if load_weights and weights_backbone and not weights:
        backbone_state = _read(family.backbone, weights_backbone)

    settings = _settings(family, max_detections, score_thresh, nms_thresh, options)
    inner = _construct(name, num_classes, settings, full_tail=weights_backbone is not None)
    trained = bool(weights or weights_backbone)
    if norm == "frozen" or (norm == "auto" and trained and family.frozen_norm):
        backbones.freeze_norm(inner.backbone)
    if backbone_state is not None and weights_backbone:
        backbones.load_backbone(inner.backbone, backbone_state, source=weights_backbone)
    if state is not None and weights:
        load_into(inner, state, source=weights, strict_head=False)
    if weights and family.zero_eps and _is_published(name, weights):
        for module in inner.modules():
            if isinstance(module, FrozenBatchNorm2d):
                module.eps = 0.0
    _freeze(inner, family, trainable_backbone_layers, trained=trained)
    return TorchvisionDetector(inner, num_classes=num_classes)


def check_options(*, name: str = "", **options: Any) -> None:
    """Checks the options of :func:`build` against torchvision, without building anything.

    Raises:
        ConfigError: with every mistake.
    """
    if name not in FAMILIES:
        near = difflib.get_close_matches(name, FAMILIES, 1)
        hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(FAMILIES)}"
        raise ConfigError(f"model.name: torchvision has no detector '{name}'; {hint}")
    family = FAMILIES[name]
    known = _parameters(family) | _parameters_of(build)
    mistakes = []
    for option in options:
        if option not in known:
            near = difflib.get_close_matches(option, known, 1)
            hint = f"did you mean '{near[0]}'?" if near else f"it takes {', '.join(sorted(known))}"
            mistakes.append(f"model.{option}: {name} has no such option; {hint}")
    for option, owner in (("weights", name), ("weights_backbone", family.backbone)):
        source = _given(options.get(option))
        names = _published(owner)
        if source and _is_name(source) and source not in names:
            mistakes.append(
                f"model.{option}: torchvision has no weights '{source}' for {owner}; it has "
                f"{', '.join(names) or 'none'}. A file, 'package:path' or address works too."
            )
    layers = options.get("trainable_backbone_layers")
    if isinstance(layers, int) and not 0 <= layers <= family.stages:
        mistakes.append(
            f"model.trainable_backbone_layers: {name} has {family.stages} stages, got {layers}"
        )
    if mistakes:
        raise ConfigError(one_message(f"{name} cannot be built:", mistakes))


def _construct(name: str, num_classes: int, settings: dict[str, Any], *, full_tail: bool) -> Any:
    """The torchvision model with random values, its transform and its label 0 set right."""
    family = FAMILIES[name]
    builder: Callable[..., Any] = family.build
    none: dict[str, None] = {"weights": None, "weights_backbone": None}
    if family.build.__module__ == backbones.__name__:
        none = {}
    if name == "ssdlite320_mobilenet_v3_large" and full_tail:
        builder, none = backbones.ssdlite_full_tail, {}
    inner = builder(num_classes=num_classes + 1, **none, **settings)
    if family.parts in (_RETINA, _FCOS):
        inner.head.classification_head.register_forward_hook(_no_background)
    theirs = inner.transform
    if "min_size" in settings or "max_size" in settings:
        inner.transform = ResizingTransform(theirs)
    else:
        inner.transform = BatchTransform(
            theirs.image_mean,
            theirs.image_std,
            size_divisible=theirs.size_divisible,
            fixed_size=theirs.fixed_size and (theirs.fixed_size[1], theirs.fixed_size[0]),
        )
    return inner


def _no_background(_module: nn.Module, _inputs: Any, logits: Tensor) -> Tensor:
    """Takes label 0 out of a head that has a column for it but no use.

    RetinaNet and FCOS score each class by itself. torchvision's count of classes includes
    background there too (91 for COCO's 90), so that labels are 1..C as everywhere; the spare
    column must neither be detected nor weigh in the loss.
    """
    return F.pad(logits[..., 1:], (1, 0), value=-1e4)


def _settings(
    family: Family,
    max_detections: int,
    score_thresh: float | None,
    nms_thresh: float | None,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """torchvision's own options, ours under the names they have in this family."""
    prefix, limit = ("box_", "box_detections_per_img") if family.parts is _RCNN else (
        "", "detections_per_img",
    )  # fmt: skip
    settings = {**family.defaults, **options}
    settings.setdefault(limit, max_detections)
    for option, value in (("score_thresh", score_thresh), ("nms_thresh", nms_thresh)):
        if value is not None:
            settings.setdefault(prefix + option, value)
    # So many detections can come out only if as many candidates go in.
    signature = inspect.signature(family.parts.__init__).parameters
    for candidates in ("rpn_pre_nms_top_n_test", "rpn_post_nms_top_n_test", "topk_candidates"):
        if candidates in signature and max_detections > signature[candidates].default:
            settings.setdefault(candidates, max_detections)
    return settings


def _freeze(inner: Any, family: Family, layers: int | None, *, trained: bool) -> None:
    if layers is None:
        layers = family.trainable if trained else family.stages
    elif not trained and layers < family.stages:
        _log.warning(
            "model: trainable_backbone_layers=%d without weights keeps the other stages of the "
            "backbone at their random values", layers,
        )  # fmt: skip
    backbones.freeze(inner.backbone, layers)


def _given(source: str | None) -> str | None:
    return None if source is None or source.lower() in ("", "none") else source


def _is_name(source: str) -> bool:
    return re.fullmatch(r"[A-Z][A-Z0-9_]*", source) is not None


def _published(owner: str) -> list[str]:
    """Names of the weights torchvision publishes for a model."""
    try:
        return list(torchvision.models.get_model_weights(owner).__members__)
    except ValueError:
        return []


def _url(owner: str, name: str) -> str:
    return str(torchvision.models.get_model_weights(owner)[name].url)


def _read(owner: str, source: str | None) -> dict[str, Tensor] | None:
    if source is None:
        return None
    return read(resolve(_url(owner, source) if _is_name(source) else source))


def _is_published(owner: str, source: str) -> bool:
    """Whether ``source`` is the file torchvision publishes, by name or as a file of that name."""
    return _is_name(source) or Path(source).name in {
        Path(_url(owner, name)).name for name in _published(owner)
    }


def _parameters_of(function: Callable[..., Any]) -> set[str]:
    parameters = inspect.signature(function).parameters.values()
    return {p.name for p in parameters if p.kind is not p.VAR_KEYWORD} - {"num_classes"}


def _parameters(family: Family) -> set[str]:
    owned = {"self", "backbone", "num_classes", "size", "anchor_generator", "rpn_anchor_generator"}
    found = _parameters_of(family.parts.__init__) - owned
    if family.build.__module__ == backbones.__name__:
        found |= _parameters_of(family.build)
    return found
