"""One adapter that makes a :class:`detpipe.core.types.Detector` of any torchvision detector."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from detpipe.core.types import Batch, Detections, Target
from detpipe.models import backbones
from detpipe.models.stages import Stages, has_stages, stages


class TorchvisionDetector(nn.Module):
    """A torchvision detection model with the two methods of a detector.

    torchvision's models return losses or detections depending on ``train()`` / ``eval()``. Here
    calling the module always gives losses and ``detect`` always gives detections: for the time of
    the call, only the flag of those few modules that choose by it is set; batch norm and dropout
    keep the mode that the caller chose.

    Args:
        inner: a torchvision detection model whose labels are 0 for background and 1..C.
        num_classes: C, the number of classes without background.
    """

    def __init__(self, inner: nn.Module, *, num_classes: int) -> None:
        super().__init__()
        self.inner = inner
        self.num_classes = num_classes

    def forward(self, batch: Batch) -> Mapping[str, Tensor]:
        """Named losses, each a scalar tensor. Crowd regions are left out."""
        targets = [_torchvision_target(target) for target in batch.targets]
        empty = not any(len(target["labels"]) for target in targets)
        with self._choosing(True), self._some_proposals(empty):
            losses: Mapping[str, Tensor] = self.inner(list(batch.images), targets)
        return losses

    def detect(self, images: Sequence[Tensor]) -> list[Detections]:
        """What is in each image (``uint8 [3, H, W]``), best first, boxes in its pixels."""
        device = next(self.parameters()).device
        with self._choosing(False):
            found = self.inner([image.to(device) for image in images])
        detections = []
        for each in found:
            scores, order = each["scores"].sort(descending=True, stable=True)
            detections.append(Detections(each["boxes"][order], scores, each["labels"][order]))
        return detections

    def stages(self) -> Stages:
        """The backbone's stages, see :func:`detpipe.models.stages.stages`.

        Those that ``trainable_backbone_layers`` counts, or those of a backbone of your own that
        has a method ``stages()`` itself.

        Raises:
            ConfigError: the backbone is none of torchvision's and does not say its stages.
        """
        backbone: nn.Module = getattr(self.inner, "backbone", nn.Module())
        read = stages if has_stages(backbone) else backbones.stage_prefixes
        return tuple(
            tuple(f"inner.backbone.{prefix}" for prefix in stage) for stage in read(backbone)
        )

    @contextlib.contextmanager
    def _choosing(self, losses: bool) -> Iterator[None]:
        """Sets the flag by which torchvision chooses between losses and detections."""
        parts = [getattr(self.inner, name, None) for name in ("rpn", "roi_heads")]
        modules = [self.inner, *(part for part in parts if isinstance(part, nn.Module))]
        modules += self.inner.get_submodule("transform").modules()
        before = [module.training for module in modules]
        try:
            for module in modules:
                module.training = losses
            yield
        finally:
            for module, training in zip(modules, before, strict=True):
                module.training = training

    @contextlib.contextmanager
    def _some_proposals(self, empty: bool) -> Iterator[None]:
        """Keeps the box head's loss finite in a batch without any box.

        There, an RPN with a score threshold may give no proposal at all, and the mean over no
        proposal is NaN.
        """
        rpn: Any = getattr(self.inner, "rpn", None)
        if rpn is None or not empty:
            yield
            return
        threshold = rpn.score_thresh
        try:
            rpn.score_thresh = 0.0
            yield
        finally:
            rpn.score_thresh = threshold


def _torchvision_target(target: Target) -> dict[str, Tensor]:
    """Boxes and labels to learn from: no crowd regions, no boxes without area."""
    boxes = target.boxes
    keep = ~target.iscrowd & (boxes[:, 2:] > boxes[:, :2]).all(dim=1)
    return {"boxes": boxes[keep].to(torch.float32), "labels": target.labels[keep]}
