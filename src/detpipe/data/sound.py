"""Whether what transforms give can be learnt from."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from detpipe.core.types import Target

_TOLERANCE = 0.01
"""By how many pixels a box may leave its image: scaling rounds."""


def flaw_of(sample: object, *, classes: int) -> str:
    """What is wrong with a transformed sample, in words; empty if nothing is.

    A model would learn from NaN boxes, from label 0 and from floats as if all were well.

    Args:
        sample: what should be (image, target).
        classes: labels are 1 to this.
    """
    if not (isinstance(sample, tuple) and len(sample) == 2):
        return f"a {type(sample).__name__} instead of (image, target)"
    image, target = sample
    if not isinstance(image, Tensor) or not isinstance(target, Target):
        return f"({type(image).__name__}, {type(target).__name__}) instead of (Tensor, Target)"
    if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[0] != 3 or not image.numel():
        return f"an image of {image.dtype} {list(image.shape)} instead of uint8 [3, H, W]"
    number = len(target.boxes)
    parts = target.labels, target.area, target.iscrowd, target.difficult
    if any(len(part) != number for part in parts) or target.boxes.shape != (number, 4):
        lengths = ", ".join(str(len(part)) for part in (target.boxes, *parts))
        return f"boxes, labels, area, iscrowd and difficult of lengths {lengths}"
    return _flaw_of_boxes(image, target, classes) if number else ""


def _flaw_of_boxes(image: Tensor, target: Target, classes: int) -> str:
    boxes = target.boxes.numpy()
    low, high = int(target.labels.min()), int(target.labels.max())
    if low < 1 or high > classes:
        return f"labels from {low} to {high}; they are 1 to {classes}, 0 is background"
    if not np.isfinite(boxes).all():
        return f"the box {boxes[~np.isfinite(boxes).all(axis=1)][0].tolist()}"
    if not (boxes[:, 2:] > boxes[:, :2]).all():
        bad = boxes[~(boxes[:, 2:] > boxes[:, :2]).all(axis=1)][0].tolist()
        return f"the box {bad}, which has no area"
    height, width = image.shape[-2:]
    most = np.array([width, height, width, height]) + _TOLERANCE
    outside = ((boxes < -_TOLERANCE) | (boxes > most)).any(axis=1)
    if outside.any():
        return f"the box {boxes[outside][0].tolist()} outside its image of {width} × {height}"
    return ""
