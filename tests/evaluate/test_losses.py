"""The losses of a data set: the right mean, the same twice, and nothing that they change."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from detpipe.core.tables import SCORES
from detpipe.core.types import Batch, Target
from detpipe.evaluate.losses import losses
from detpipe.models import tiny, torchvision


def batch(*objects, size=(96, 128), first=0):
    """Images of noise; ``objects`` says how many boxes each has."""
    generator = torch.Generator().manual_seed(first)

    def target(number, n):
        corners = torch.rand(n, 2, generator=generator) * 40
        return Target(
            image_id=str(number), boxes=torch.cat([corners, corners + 30], dim=1),
            labels=torch.ones(n, dtype=torch.int64), area=torch.full((n,), 900.0),
            iscrowd=torch.zeros(n).bool(), difficult=torch.zeros(n).bool(), original_size=size,
        )  # fmt: skip

    return Batch(
        tuple(torch.randint(0, 255, (3, *size), dtype=torch.uint8, generator=generator)
              for _ in objects),
        tuple(target(first + i, n) for i, n in enumerate(objects)),
    )  # fmt: skip


class Plain(nn.Module):
    """Losses that are said beforehand, one dict a batch."""

    def __init__(self, *values):
        super().__init__()
        self.body = nn.Sequential(nn.BatchNorm1d(1), nn.Dropout())
        self.values, self.observed = list(values), []

    def forward(self, batch):
        grad = torch.is_grad_enabled()
        self.observed.append((grad, [module.training for module in self.modules()]))
        return {name: torch.tensor(value) for name, value in self.values.pop(0).items()}

    def detect(self, images): ...


def run(model, stream, **options):
    return losses(model, stream, **{"dataset": "val", "device": "cpu", **options})


def values(table):
    return dict(zip(table["metric"], table["value"], strict=True))


def test_means_are_over_images_not_batches_and_the_total_is_their_sum():
    model = Plain({"box": 1.0, "class": 4.0}, {"box": 4.0, "class": 0.5})
    table = run(model, [batch(1, 1), batch(1)])
    assert values(table) == pytest.approx({"box": 2.0, "class": 8.5 / 3, "total": 14.5 / 3})
    assert table["metric"].tolist() == ["total", "box", "class"]
    assert (table[["dataset", "task", "class_name"]] == ["val", "loss", ""]).all(axis=None)
    assert SCORES.make(table) is not None


def test_a_loss_that_is_missing_in_a_batch_is_0_there():
    model = Plain({"box": 1.0}, {"box": 1.0, "mask": 3.0})
    assert values(run(model, [batch(1), batch(1, 1)])) == {"box": 1.0, "mask": 2.0, "total": 3.0}


def test_a_loss_called_total_is_the_total():
    assert values(run(Plain({"total": 2.0}), [batch(1)])) == {"total": 2.0}


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_said(bad, caplog):
    table = values(run(Plain({"box": bad, "class": 1.0}), [batch(1)]))
    assert table["class"] == 1.0 and not np.isfinite([table["box"], table["total"]]).any()
    assert "not finite on 'val': box" in caplog.text


def test_no_images_are_no_rows():
    table = run(Plain(), [])
    assert table.empty and table.dtypes.equals(SCORES.empty().dtypes)


def test_eval_mode_and_no_gradient_inside_each_modules_own_mode_after():
    model = Plain({"box": 1.0}, {"box": 1.0})
    model.train()
    model.body[0].eval()
    before = [module.training for module in model.modules()]
    run(model, [batch(1), batch(1)])
    assert model.observed == [(False, [False] * len(before))] * 2
    assert [module.training for module in model.modules()] == before


def faster_rcnn():
    return tiny.build(2, width=16)


def retinanet():
    return torchvision.build(2, name="retinanet_resnet50_fpn", norm="batch", max_size=128,
                             min_size=96)  # fmt: skip


@pytest.mark.parametrize(
    "build",
    [faster_rcnn, pytest.param(retinanet, marks=pytest.mark.slow)],
    ids=lambda f: f.__name__,
)
def test_a_real_detector_gives_the_same_twice_and_changes_nothing(build):
    torch.manual_seed(5)
    model = build().train()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    assert any("running_mean" in name for name in state)
    rng = torch.get_rng_state()
    stream = [batch(2, 0, first=0), batch(1, first=2)]
    first, second = values(run(model, stream)), values(run(model, stream))
    assert first == second and np.isfinite(list(first.values())).all()
    assert torch.equal(torch.get_rng_state(), rng)
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(module.training for module in model.modules())


def test_sampled_proposals_depend_on_the_seed_only_and_not_on_what_came_before():
    torch.manual_seed(5)
    model = tiny.build(2, width=16)  # samples 128 of the anchors, and 64 of the proposals
    stream = [batch(2, 1, first=0), batch(1, first=2)]
    zero, one = values(run(model, stream)), values(run(model, stream, seed=1))
    assert zero["loss_objectness"] != one["loss_objectness"]
    assert zero["total"] == pytest.approx(one["total"], rel=0.2)
    alone = [values(run(model, [each])) for each in stream]
    assert zero["total"] == pytest.approx((2 * alone[0]["total"] + alone[1]["total"]) / 3)


def test_they_are_the_detectors_own_losses():
    torch.manual_seed(5)
    model = tiny.build(2, width=16).eval()
    stream = batch(2, 1)
    with torch.no_grad():
        torch.manual_seed(0)
        expected = {name: value.item() for name, value in model(stream).items()}
    found = values(run(model, [stream]))
    assert found.pop("total") == pytest.approx(sum(expected.values()))
    assert found == expected


def test_batches_without_boxes_work():
    torch.manual_seed(5)
    found = values(run(tiny.build(2, width=16), [batch(0, 0), batch(0)]))
    assert np.isfinite(list(found.values())).all() and found["loss_box_reg"] == 0


@pytest.mark.gpu
def test_on_a_gpu_the_same_comes_out_and_its_random_state_stays():
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    torch.manual_seed(5)
    model = tiny.build(2, width=16)
    stream = [batch(2, 1), batch(1, first=2)]
    here = values(run(model, stream))
    state = torch.cuda.get_rng_state()
    there = values(run(model, stream, device="cuda"))
    assert there == values(run(model, stream, device="cuda"))
    assert there["total"] == pytest.approx(here["total"], rel=0.2)  # other proposals
    assert torch.equal(torch.cuda.get_rng_state(), state)
