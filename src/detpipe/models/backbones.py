"""The backbones inside torchvision's detectors: their layers, freezing, and pretrained weights."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torchvision
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator, DefaultBoxGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.ssd import SSD, SSDFeatureExtractorVGG
from torchvision.models.detection.ssdlite import SSDLiteFeatureExtractorMobileNet, SSDLiteHead
from torchvision.ops import FrozenBatchNorm2d, MultiScaleRoIAlign
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

from detpipe.core.errors import ConfigError
from detpipe.models.stages import Stages
from detpipe.models.weights import load_into

_RESNET_STAGES = (("layer4",), ("layer3",), ("layer2",), ("layer1",), ("conv1", "bn1"))
_MOBILENET_V2_LEVELS = {4: (3, 24), 8: (6, 32), 16: (13, 96), 32: (18, 1280)}
"""Stride → (last block of that stride, its channels)."""


def layers(backbone: nn.Module) -> dict[str, nn.Module]:
    """The layers that an image classifier has too, under the classifier's own names.

    Args:
        backbone: the ``backbone`` of a torchvision detector.
    """
    if isinstance(backbone, BackboneWithFPN):
        body = dict(backbone.body.named_children())
        if "conv1" in body:
            return body
        if any(getattr(block, "_is_cn", False) for block in body.values()):  # a MobileNet
            return {f"features.{n}": m for n, m in body.items()}
    if isinstance(backbone, SSDFeatureExtractorVGG):
        fc = len(backbone.extra[0]) - 1
        plain = [*backbone.features, *list(backbone.extra[0])[:fc]]
        return {f"features.{i}": layer for i, layer in enumerate(plain)}
    if isinstance(backbone, SSDLiteFeatureExtractorMobileNet):
        # The first block of stride 32 is cut in two, its expansion being an output.
        first, second = (list(part) for part in backbone.features)
        cut = len(first) - 1
        found = {f"features.{i}": layer for i, layer in enumerate(first[:cut])}
        found[f"features.{cut}.block.0"] = first[cut]
        found |= {f"features.{cut}.block.{n}": m for n, m in second[0].named_children()}
        return found | {f"features.{cut + 1 + i}": m for i, m in enumerate(second[1:])}
    raise ConfigError(
        f"a backbone of type {type(backbone).__name__} is not known; give its class a method "
        f"stages(), see detpipe.models.stages.stages"
    )


def stages(backbone: nn.Module) -> list[list[str]]:
    """Names of :func:`layers` by stage, the last stage first: the order in which they unfreeze."""
    named = layers(backbone)
    if "conv1" in named:
        return [[n for n in stage if n in named] for stage in _RESNET_STAGES]
    index = {name: int(name.split(".")[1]) for name in named}
    if isinstance(backbone, SSDFeatureExtractorVGG):
        starts = [index[n] for n, m in named.items() if isinstance(m, nn.MaxPool2d)]
        starts = [0, *starts]
    else:
        strided = {index[n] for n, m in named.items() if getattr(m, "_is_cn", False)}
        cut = {i for n, i in index.items() if ".block." in n}
        starts = [0, *sorted(strided | cut), max(index.values())]
    bounds = [*starts, max(index.values()) + 1]
    return [
        [n for n, i in index.items() if low <= i < high]
        for low, high in reversed(list(itertools.pairwise(bounds)))
    ]


def stage_prefixes(backbone: nn.Module) -> Stages:
    """The same stages from the input on, each as prefixes of the backbone's parameter names."""
    named, paths = layers(backbone), {module: name for name, module in backbone.named_modules()}
    return tuple(tuple(paths[named[n]] for n in stage) for stage in reversed(stages(backbone)))


def freeze(backbone: nn.Module, trainable: int) -> None:
    """Leaves only the last ``trainable`` stages of the backbone to learn (0: none).

    Raises:
        ConfigError: the backbone has fewer stages.
    """
    named, order = layers(backbone), stages(backbone)
    if not 0 <= trainable <= len(order):
        raise ConfigError(
            f"trainable_backbone_layers must lie in 0..{len(order)} here, got {trainable}"
        )
    for stage in order[trainable:]:
        for name in stage:
            named[name].requires_grad_(False)


def freeze_norm(module: nn.Module) -> None:
    """Replaces every batch norm below ``module`` by one whose statistics and scale are fixed."""
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            frozen = FrozenBatchNorm2d(child.num_features, eps=child.eps)
            frozen.load_state_dict(child.state_dict())
            setattr(module, name, frozen)
        else:
            freeze_norm(child)


def load_backbone(backbone: nn.Module, state: Mapping[str, Tensor], *, source: str) -> None:
    """Copies the weights of an image classifier into a detector's backbone.

    Args:
        backbone: the ``backbone`` of a torchvision detector.
        state: the classifier's state dict; its classification head is left out.
        source: where it comes from, for messages.

    Raises:
        WeightsError: a layer of the backbone is missing or has another shape.
    """
    features = {n: t for n, t in state.items() if not n.startswith(("fc.", "classifier."))}
    load_into(_tree(layers(backbone)), features, source=source, strict_head=True)


def _tree(named: Mapping[str, nn.Module]) -> nn.Module:
    """A module whose parameters have the names ``named`` gives its parts."""
    root = nn.Module()
    for path, module in named.items():
        *parents, name = path.split(".")
        node = root
        for parent in parents:
            if not hasattr(node, parent):
                node.add_module(parent, nn.Module())
            node = getattr(node, parent)
        node.add_module(name, module)
    return root


def fasterrcnn_mobilenet_v2_fpn(
    *,
    num_classes: int,
    strides: Sequence[int] = (8, 16, 32),
    channels: int = 128,
    anchor_sizes: Sequence[int] = (32, 64, 128, 256),
    aspect_ratios: Sequence[float] = (0.5, 1.0, 2.0),
    **options: Any,
) -> FasterRCNN:
    """Faster R-CNN on MobileNetV2 with a feature pyramid, which torchvision has no builder for.

    Args:
        num_classes: classes with background.
        strides: of the pyramid's levels, out of 4, 8, 16 and 32; a max-pooled level is added.
        channels: of every level.
        anchor_sizes: side of the anchors in pixels, one a level and one for the max-pooled level.
        aspect_ratios: of the anchors, height / width.
        options: further ones of torchvision's ``FasterRCNN``.

    Raises:
        ConfigError: a stride is unknown, or there is not one anchor size a level.
    """
    unknown = [s for s in strides if s not in _MOBILENET_V2_LEVELS]
    if unknown or not strides or len(anchor_sizes) != len(strides) + 1:
        raise ConfigError(
            f"fasterrcnn_mobilenet_v2_fpn: strides must be some of 4, 8, 16, 32 with one anchor "
            f"size for each and one more; got strides {list(strides)} and anchor_sizes "
            f"{list(anchor_sizes)}"
        )
    body = torchvision.models.mobilenet_v2(weights=None).features
    blocks = [_MOBILENET_V2_LEVELS[stride] for stride in strides]
    body = body[: blocks[-1][0] + 1]
    backbone = BackboneWithFPN(
        body,
        {str(block): str(i) for i, (block, _) in enumerate(blocks)},
        [depth for _, depth in blocks],
        channels,
        extra_blocks=LastLevelMaxPool(),
    )
    levels = [str(i) for i in range(len(strides))]
    return FasterRCNN(
        backbone,
        num_classes=num_classes,
        rpn_anchor_generator=AnchorGenerator(
            tuple((size,) for size in anchor_sizes),
            (tuple(aspect_ratios),) * len(anchor_sizes),
        ),
        box_roi_pool=MultiScaleRoIAlign(levels, output_size=7, sampling_ratio=2),
        **options,
    )


def ssdlite_full_tail(*, num_classes: int, **options: Any) -> SSD:
    """torchvision's ``ssdlite320_mobilenet_v3_large`` with the backbone's full last stage.

    torchvision halves that stage unless ImageNet weights are asked for, so those weights fit only
    this form; torchvision's own builder gives it only together with a download.

    Args:
        num_classes: classes with background.
        options: further ones of torchvision's ``SSD``.
    """
    norm = partial(nn.BatchNorm2d, eps=0.001, momentum=0.03)
    blocks = torchvision.models.mobilenet_v3_large(weights=None, norm_layer=norm).features
    cut = max(i for i, block in enumerate(blocks) if getattr(block, "_is_cn", False))
    backbone = SSDLiteFeatureExtractorMobileNet(blocks, cut, norm)
    anchors = DefaultBoxGenerator([[2, 3] for _ in range(6)], min_ratio=0.2, max_ratio=0.95)
    backbone.eval()
    with torch.no_grad():
        channels = [level.shape[1] for level in backbone(torch.zeros(1, 3, 320, 320)).values()]
    backbone.train()
    head = SSDLiteHead(channels, anchors.num_anchors_per_location(), num_classes, norm)
    defaults: dict[str, Any] = {
        "score_thresh": 0.001,
        "nms_thresh": 0.55,
        "detections_per_img": 300,
        "topk_candidates": 300,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    return SSD(backbone, anchors, (320, 320), num_classes, head=head, **{**defaults, **options})
