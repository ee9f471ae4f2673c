"""Test-time augmentation: an image in several versions, what is found in them merged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from detpipe.core.types import Batch, Detections, Detector
from detpipe.evaluate.config import Tta

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Merged(NamedTuple):
    """Boxes float [M, 4], their scores [M], and the row [M] of the best box of each."""

    boxes: Floats
    scores: Floats
    rows: Ints


class Augmented(nn.Module):
    """A detector that looks at each image in several versions.

    Each image is seen at every scale, as it is and, with ``flip``, mirrored left to right. Boxes
    are mapped back to the image and merged within each class. Calling it gives the losses of the
    detector, without augmentation.

    A detector that stretches every image to one size of its own (SSD) gains nothing from scales.

    Args:
        detector: what looks at the versions.
        flip: whether each version is seen mirrored too.
        scales: factors of the size at which images reach the detector.
        merge: ``wbf`` (:func:`fuse`) or ``nms`` (:func:`suppress`).
        iou: boxes of one class that overlap more are one object.
        max_detections: best detections given per image.
    """

    def __init__(
        self,
        detector: Detector,
        *,
        flip: bool = True,
        scales: Sequence[float] = (1.0,),
        merge: Literal["nms", "wbf"] = "wbf",
        iou: float = 0.55,
        max_detections: int = 100,
    ) -> None:
        super().__init__()
        self.detector = detector
        self.versions = [(s, mirrored) for s in scales for mirrored in ((False, True)[: 1 + flip])]
        self.merge, self.iou, self.max_detections = merge, iou, max_detections

    @classmethod
    def of(cls, detector: Detector, config: Tta, *, max_detections: int = 100) -> Self:
        """As the configuration says."""
        return cls(detector, **config.model_dump(), max_detections=max_detections)

    def forward(self, batch: Batch) -> Mapping[str, Tensor]:
        """The losses of the detector."""
        return self.detector(batch)

    def detect(self, images: Sequence[Tensor]) -> list[Detections]:
        """What is in each image (``uint8 [3, H, W]``), best first, boxes in its pixels."""
        if not len(images):
            return []
        # [version][image]; joined by image, so that ties do not depend on the rest of the batch.
        seen = [self._seen(images, scale, mirrored) for scale, mirrored in self.versions]
        found = _Found.joined(list(zip(*seen, strict=True)))
        finite = np.isfinite(found.boxes).all(axis=1) & np.isfinite(found.scores)
        good, bad = np.flatnonzero(finite), np.flatnonzero(~finite)
        given = found.boxes[good], found.scores[good], found.groups()[good]
        merged = (
            fuse(*given, iou=self.iou, versions=len(self.versions))
            if self.merge == "wbf"
            else suppress(*given, iou=self.iou)
        )
        rows = good[merged.rows]
        order = np.lexsort((rows, -merged.scores))
        detections = []
        for i in range(len(images)):
            best = order[found.image[rows[order]] == i][: self.max_detections]
            # What is not finite is passed on: whoever reads it counts it and says so.
            left = bad[found.image[bad] == i]
            boxes = np.concatenate([merged.boxes[best], found.boxes[left]])
            scores = np.concatenate([merged.scores[best], found.scores[left]])
            labels = found.labels[np.concatenate([rows[best], left])]
            device = seen[0][i].boxes.device
            detections.append(
                Detections(
                    torch.from_numpy(boxes).to(device, torch.float32),
                    torch.from_numpy(scores).to(device, torch.float32),
                    torch.from_numpy(labels).to(device),
                )
            )
        return detections

    def _seen(self, images: Sequence[Tensor], scale: float, mirrored: bool) -> list[Detections]:
        """What is found in one version of each image, boxes (float64) in pixels of the image."""
        versions = [_resized(image, scale) for image in images]
        if mirrored:
            versions = [version.flip(-1) for version in versions]
        detections = []
        for image, version, found in zip(
            images, versions, self.detector.detect(versions), strict=True
        ):
            boxes = found.boxes.to(torch.float64).reshape(-1, 4)
            if mirrored:
                # Pixel i becomes pixel W - 1 - i, so the edge x becomes the edge W - x.
                boxes = boxes[:, [2, 1, 0, 3]]
                boxes[:, [0, 2]] = version.shape[-1] - boxes[:, [0, 2]]
            y, x = (image.shape[d] / version.shape[d] for d in (-2, -1))
            boxes = boxes * boxes.new_tensor([x, y, x, y])
            detections.append(Detections(boxes, found.scores, found.labels))
        return detections


class _Found(NamedTuple):
    """All that was found in a batch, one row a box, images and then versions in their order."""

    image: Ints
    boxes: Floats
    scores: Floats
    labels: Ints

    @classmethod
    def joined(cls, found: Sequence[Sequence[Detections]]) -> Self:
        parts = [part for versions in found for part in versions]
        lengths = [sum(len(part) for part in versions) for versions in found]
        return cls(
            np.repeat(np.arange(len(found)), lengths),
            torch.cat([part.boxes for part in parts]).cpu().numpy(),
            torch.cat([part.scores for part in parts]).cpu().to(torch.float64).numpy(),
            torch.cat([part.labels for part in parts]).cpu().to(torch.int64).numpy(),
        )

    def groups(self) -> Ints:
        """A number for each image and class."""
        labels = self.labels - self.labels.min(initial=0)
        groups: Ints = self.image * (labels.max(initial=0) + 1) + labels
        return groups


def suppress(boxes: Floats, scores: Floats, groups: Ints, *, iou: float) -> Merged:
    """Non-maximum suppression within each group: the best box stays, its overlaps go."""
    from torchvision.ops import batched_nms

    # torchvision moves the groups apart, which takes coordinates of 0 and more.
    placed = torch.from_numpy(boxes - boxes.min(initial=0.0))
    kept = batched_nms(placed, torch.from_numpy(scores), torch.from_numpy(groups), iou).numpy()
    return Merged(boxes[kept], scores[kept], kept)


def fuse(boxes: Floats, scores: Floats, groups: Ints, *, iou: float, versions: int) -> Merged:
    """Weighted box fusion within each group (Solovyev, Wang, Gabruseva 2021, section 3).

    Best first, a box joins the cluster whose fused box it overlaps most, if by more than ``iou``,
    or begins one. The fused box is the mean of the cluster weighted by scores, its score their
    mean, at the end times ``min(n, versions) / versions`` for a cluster of n boxes: what only some
    versions show is less sure.

    The k-th boxes of all groups are placed together: as many steps as the largest group has boxes.

    Args:
        boxes: finite float [N, 4] x1 y1 x2 y2.
        scores: finite [N], 0 and more.
        groups: [N], the image and class of each.
        iou: see above.
        versions: of an image.
    """
    order = np.lexsort((-scores, groups))  # stable: ties stay in the order they came in
    boxes, groups = boxes[order], groups[order]
    # A score of 0 has no weight; with this one the box itself comes out.
    weights = np.maximum(scores[order], np.finfo(np.float64).tiny)
    _, starts, sizes = np.unique(groups, return_index=True, return_counts=True)
    # Clusters of a group stand where its boxes stand, from its start on: there are no more.
    sums, fused = np.zeros_like(boxes), np.zeros_like(boxes)
    weight, count = np.zeros(len(boxes)), np.zeros(len(boxes), dtype=np.int64)
    first = np.zeros(len(boxes), dtype=np.int64)
    clusters = np.zeros(len(starts), dtype=np.int64)
    for step in range(int(sizes.max(initial=0))):
        active = np.flatnonzero(sizes > step)
        rows, there = starts[active] + step, clusters[active]
        # Those that the group has not begun yet are boxes without area there: no overlap.
        slots = starts[active][:, None] + np.arange(max(int(there.max()), 1))
        overlap = _iou(boxes[rows][:, None], fused[slots])
        best = overlap.argmax(axis=1)
        joins = overlap[np.arange(len(active)), best] > iou
        slot = starts[active] + np.where(joins, best, there)
        first[slot[~joins]] = rows[~joins]
        clusters[active] += ~joins
        sums[slot] += weights[rows][:, None] * boxes[rows]
        weight[slot] += weights[rows]
        count[slot] += 1
        fused[slot] = sums[slot] / weight[slot][:, None]
    made = np.flatnonzero(count)
    score = weight[made] / count[made] * np.minimum(count[made], versions) / versions
    return Merged(fused[made], score, order[first[made]])


def _iou(a: Floats, b: Floats) -> Floats:
    """Overlap of boxes [..., 4]; 0 where neither has an area."""
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])
    common = sides.clip(0).prod(axis=-1)
    areas = [(box[..., 2:] - box[..., :2]).prod(axis=-1) for box in (a, b)]
    overlap: Floats = common / np.maximum(areas[0] + areas[1] - common, np.finfo(np.float64).tiny)
    return overlap


def _resized(image: Tensor, scale: float) -> Tensor:
    """The image (uint8 [3, H, W]) ``scale`` times as large, to the next whole pixel."""
    if scale == 1:
        return image
    from torchvision.transforms.v2.functional import resize

    # torch 2.14 fails at 1 × 1.
    size = [max(2, round(scale * side)) for side in image.shape[-2:]]
    resized: Tensor = resize(image, size, antialias=True)
    return resized
