from __future__ import annotations

import pytest
import torch

from detpipe.core.errors import WeightsError
from detpipe.core.types import Weights
from detpipe.models.config import ModelSpec
from detpipe.models.restore import restore

TINY = ModelSpec(use="detpipe.models.tiny.build", width=16)


def trained(spec=TINY, classes=("cat", "dog"), **changes) -> Weights:
    model = spec.build(num_classes=len(classes))
    metadata = {"classes": list(classes), "model": spec.with_defaults() | changes}
    return Weights(model.state_dict(), metadata)


def test_the_restored_detector_finds_what_the_trained_one_finds():
    weights = trained()
    first, again = (restore(weights, TINY, ["cat", "dog"]) for _ in range(2))
    image = torch.randint(0, 256, (3, 64, 64), dtype=torch.uint8)
    with torch.inference_mode():
        (a,), (b,) = first.detect([image]), again.detect([image])
    assert torch.equal(a.boxes, b.boxes)
    assert torch.equal(a.scores, b.scores)


def test_weights_keep_every_option_so_that_a_changed_default_is_noticed():
    weights = trained(ModelSpec(use=TINY.use, width=16, representation=64))
    with pytest.raises(WeightsError, match=r"model.representation: .* trained with 64, .* 128"):
        restore(weights, TINY, ["cat", "dog"])
    same = ModelSpec(use=TINY.use, width=16, representation=64)
    assert restore(weights, same, ["cat", "dog"]) is not None


def test_weights_of_other_classes_or_another_order_are_refused():
    with pytest.raises(WeightsError, match=r"the weights know cat, dog .in this order.*dog, cat"):
        restore(trained(), TINY, ["dog", "cat"])


def test_all_differences_come_together():
    with pytest.raises(WeightsError) as error:
        restore(trained(), ModelSpec(use=TINY.use, width=24, channels=32), ["bird"])
    for part in ("bird", "model.width", "model.channels"):
        assert part in str(error.value)


def test_the_backbones_weights_are_not_needed_again():
    name = "fasterrcnn_mobilenet_v2_fpn"
    spec = ModelSpec(use="detpipe.models.torchvision.build", name=name)
    weights = trained(spec, weights_backbone="nowhere:weights/file.pth")
    configured = ModelSpec(use=spec.use, name=name, weights_backbone="nowhere:weights/file.pth")
    assert restore(weights, configured, ["cat", "dog"]) is not None
