"""A small Faster R-CNN that a CPU trains in minutes.

Five convolution blocks, a feature pyramid of 64 channels, one anchor a level: torchvision's parts
throughout, sized for images of about 200 to 400 pixels.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.rpn import RPNHead
from torchvision.ops import FeaturePyramidNetwork, MultiScaleRoIAlign

from detpipe.core.errors import ConfigError
from detpipe.models.adapter import TorchvisionDetector
from detpipe.models.stages import Stages
from detpipe.models.transform import BatchTransform

_STRIDES = (4, 8, 16, 32)


class TinyBackbone(nn.Module):
    """Five blocks that each halve the image, and a feature pyramid over the last four.

    Args:
        width: channels of the third block; the others are width × ¼, ½, 1, 1½, 2.
        out_channels: channels of every pyramid level.
    """

    def __init__(self, width: int, out_channels: int) -> None:
        super().__init__()
        channels = [width // 4, width // 2, width, width * 3 // 2, width * 2]
        inputs = [3, *channels[:-1]]
        self.blocks = nn.ModuleList(map(_block, inputs, channels))
        self.fpn = FeaturePyramidNetwork(channels[1:], out_channels)
        self.out_channels = out_channels

    def forward(self, x: Tensor) -> OrderedDict[str, Tensor]:
        """Levels "0" to "3" with strides 4, 8, 16 and 32."""
        levels: OrderedDict[str, Tensor] = OrderedDict()
        for i, block in enumerate(self.blocks):
            x = block(x)
            if i:
                levels[str(i - 1)] = x
        pyramid: OrderedDict[str, Tensor] = self.fpn(levels)
        return pyramid

    def stages(self) -> Stages:
        """One a block, see :func:`detpipe.models.stages.stages`."""
        return tuple((f"blocks.{i}",) for i in range(len(self.blocks)))


def build(
    num_classes: int,
    *,
    width: int = 64,
    channels: int = 64,
    anchor_sizes: Sequence[int] = (16, 32, 64, 128),
    rois_per_image: int = 64,
    representation: int = 128,
    score_thresh: float = 0.01,
    nms_thresh: float = 0.5,
    max_detections: int = 100,
    weights: str | None = None,
) -> nn.Module:
    """The small Faster R-CNN.

    Args:
        num_classes: classes without background.
        width: width of the backbone.
        channels: channels of the feature pyramid.
        anchor_sizes: side in pixels of the one square anchor of the levels 4, 8, 16 and 32.
        rois_per_image: proposals an image's box head learns from in one step.
        representation: width of the box head's two hidden layers.
        score_thresh: detections below are not given.
        nms_thresh: of two boxes of one class that overlap more (IoU), the worse is dropped.
        max_detections: best detections given per image.
        weights: a file with weights of this detector, see :func:`detpipe.models.weights.resolve`.

    Raises:
        ConfigError: there are not four anchor sizes.
        WeightsError: the weights cannot be found, or nothing in them fits.
    """
    if len(anchor_sizes) != len(_STRIDES):
        raise ConfigError(
            f"model.anchor_sizes: one for each of the levels {_STRIDES} is needed, got "
            f"{list(anchor_sizes)}"
        )
    backbone = TinyBackbone(width, channels)
    inner = FasterRCNN(
        backbone,
        num_classes=None,
        rpn_anchor_generator=AnchorGenerator(
            tuple((size,) for size in anchor_sizes), ((1.0,),) * len(_STRIDES)
        ),
        rpn_head=RPNHead(channels, 1),
        box_roi_pool=MultiScaleRoIAlign(
            ["0", "1", "2"], output_size=7, sampling_ratio=2, canonical_scale=56, canonical_level=3
        ),
        box_head=TwoMLPHead(channels * 7 * 7, representation),
        box_predictor=FastRCNNPredictor(representation, num_classes + 1),
        rpn_pre_nms_top_n_train=256,
        rpn_pre_nms_top_n_test=max(256, max_detections),
        rpn_post_nms_top_n_train=256,
        rpn_post_nms_top_n_test=max(128, max_detections),
        rpn_batch_size_per_image=128,
        box_batch_size_per_image=rois_per_image,
        box_positive_fraction=0.5,  # most proposals of an image this small are easy background
        box_score_thresh=score_thresh,
        box_nms_thresh=nms_thresh,
        box_detections_per_img=max_detections,
    )
    inner.transform = BatchTransform((0.5,) * 3, (0.25,) * 3)
    detector = TorchvisionDetector(inner, num_classes=num_classes)
    if weights not in (None, "none"):
        from detpipe.models.weights import load_into, read, resolve

        load_into(detector, read(resolve(weights)), source=weights, strict_head=False)
    return detector


def _block(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(*_conv(inputs, outputs, stride=2), *_conv(outputs, outputs))


def _conv(inputs: int, outputs: int, *, stride: int = 1) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    ]
