"""One pass of inference: what comes out, and what must be left as it was."""

from __future__ import annotations

import random

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from detpipe.core.errors import DataError
from detpipe.core.tables import DETECTIONS
from detpipe.core.types import Batch, Detections, Target
from detpipe.evaluate import run as module
from detpipe.evaluate.run import predict


def batch(*ids, size=(50, 100), original=(50, 100)):
    """Black images of ``size`` (height, width) that were ``original`` on disk."""
    none = torch.zeros(0)
    targets = tuple(
        Target(
            image_id=i, boxes=torch.zeros(0, 4), labels=none.long(), area=none,
            iscrowd=none.bool(), difficult=none.bool(), original_size=original,
        )
        for i in ids
    )  # fmt: skip
    return Batch(tuple(torch.zeros(3, *size, dtype=torch.uint8) for _ in ids), targets)


class Fixed(nn.Module):
    """Finds the same (x1, y1, x2, y2, score, label) in every image."""

    def __init__(self, *found):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1), nn.Dropout())
        self.found = torch.tensor(found, dtype=torch.float32).reshape(-1, 6)
        self.observed = []

    def detect(self, images):
        self.observed.append(
            ([m.training for m in self.modules()], torch.is_inference_mode_enabled())
        )
        one = Detections(self.found[:, :4], self.found[:, 4], self.found[:, 5].long())
        return [one for _ in images]


def run(model, stream, **options):
    return predict(model, stream, class_names=["cat", "dog"], device="cpu", **options)


def rows(prediction):
    return list(prediction.detections.itertuples(index=False, name=None))


def test_boxes_are_scaled_to_the_image_on_disk_and_clipped():
    model = Fixed([10, 5, 20, 25, 0.5, 1], [-4, 40, 120, 60, 0.25, 2])
    found = run(model, [batch("7", size=(50, 100), original=(100, 400))])
    assert rows(found) == [
        ("7", "cat", 40.0, 10.0, 80.0, 50.0, 0.5), ("7", "dog", 0.0, 80.0, 400.0, 100.0, 0.25),
    ]  # fmt: skip
    assert found.detections.dtypes.equals(DETECTIONS.empty().dtypes)


def test_nothing_is_lost_where_no_scaling_is_needed():
    box = [1 / 3, 2 / 3, 9.1, 8.7]
    found = run(Fixed([*box, 0.3, 1]), [batch("7")]).detections
    assert found.iloc[0, 2:].tolist() == torch.tensor([*box, 0.3]).double().tolist()


def test_boxes_outside_the_image_are_dropped():
    model = Fixed([110, 0, 120, 10, 0.9, 1], [5, 5, 5, 9, 0.9, 1], [0, 0, 1, 1, 0.1, 2])
    assert [row[1] for row in rows(run(model, [batch("7")]))] == ["dog"]


def test_best_first_top_n_above_the_threshold_ties_in_order():
    scores = [0.2, 0.9, 0.5, 0.9, 0.5, 0.3]
    model = Fixed(*([0, 0, i + 1, 1, s, 1] for i, s in enumerate(scores)))
    assert [r[4] for r in rows(run(model, [batch("7")]))] == [2, 4, 3, 5, 6, 1]
    assert [r[4] for r in rows(run(model, [batch("7")], max_detections=3))] == [2, 4, 3]
    score = float(torch.tensor(0.3))  # the threshold itself is kept
    assert [r[4] for r in rows(run(model, [batch("7")], score_threshold=score))] == [2, 4, 3, 5, 6]


def test_images_come_in_the_order_of_the_stream_and_may_have_nothing():
    class Varying(Fixed):
        def detect(self, images):
            full = super().detect(images)[0]
            none = Detections(full.boxes[:0], full.scores[:0], full.labels[:0])
            return [none if image.sum() else full for image in images]

    stream = [batch("b", "empty", "a"), batch("z")]
    stream[0].images[1].add_(1)
    found = run(Varying([0, 0, 9, 9, 0.5, 1]), iter(stream))
    assert found.detections["image_id"].tolist() == ["b", "a", "z"]
    assert found.image_ids == ("b", "empty", "a", "z")


def test_more_than_100_detections_reach_the_table():
    model = Fixed(*([i % 50, 0, i % 50 + 1, 9, 0.5, 1] for i in range(150)))
    assert len(run(model, [batch("7")]).detections) == 100
    assert len(run(model, [batch("7")], max_detections=150).detections) == 150


@pytest.mark.parametrize("stream", [[batch("1", "2"), batch("1")], [batch("1", "1")]])
def test_an_image_that_comes_twice_is_an_error(stream):
    with pytest.raises(DataError, match="'1' came twice"):
        run(Fixed([0, 0, 9, 9, 0.5, 1]), stream)


@pytest.mark.parametrize("label", [0, 3])
def test_a_label_outside_the_classes_is_an_error(label):
    with pytest.raises(DataError, match=f"'7' the label {label}, but there are 2 classes"):
        run(Fixed([0, 0, 9, 9, 0.5, label]), [batch("7")])


def test_another_number_of_results_than_images_is_an_error():
    model = Fixed([0, 0, 9, 9, 0.5, 1])
    model.detect = lambda images: []
    with pytest.raises(DataError, match="0 results for 2 images"):
        run(model, [batch("1", "2")])


@pytest.mark.parametrize("stream", [[], [batch("1")]], ids=["no images", "nothing found"])
def test_nothing_is_an_empty_table(stream, caplog):
    found = run(Fixed(), stream)
    assert found.detections.empty and found.detections.dtypes.equals(DETECTIONS.empty().dtypes)
    assert ("no images" in caplog.text) is (not stream) is found.timing.empty
    assert list(found.timing.dtypes) == [pd.StringDtype(na_value=np.nan), "float64", "int64"]


def test_what_is_not_finite_is_left_out_and_said(caplog):
    nan, inf = float("nan"), float("inf")
    model = Fixed(
        [0, 0, nan, 9, 0.5, 1], [0, 0, 9, inf, 0.5, 1], [0, 0, 9, 9, nan, 1], [0, 0, 9, 9, 0.5, 2]
    )
    assert [row[1] for row in rows(run(model, [batch("7")]))] == ["dog"]
    assert "3 detections were NaN or infinite" in caplog.text


def test_eval_mode_and_no_gradients_inside_each_modules_own_mode_after():
    model = Fixed([0, 0, 9, 9, 0.5, 1])
    model.train()
    model.body[1].eval()  # a frozen batch norm
    before = [module.training for module in model.modules()]
    assert True in before and False in before
    run(model, [batch("1"), batch("2")])
    assert model.observed == [([False] * len(before), True)] * 2
    assert [module.training for module in model.modules()] == before
    assert not torch.is_inference_mode_enabled()


def test_modes_come_back_after_an_error_too():
    model = Fixed([0, 0, 9, 9, 0.5, 9])
    model.train()
    with pytest.raises(DataError):
        run(model, [batch("1")])
    assert all(module.training for module in model.modules())


def test_global_random_states_stay():
    class Drawing(Fixed):
        def detect(self, images):
            torch.rand(3), np.random.rand(3), random.random()
            return super().detect(images)

    def stream():
        torch.rand(5), np.random.rand(5), random.random()  # as starting a DataLoader does
        yield batch("1")

    def drawn():
        return torch.rand(2).tolist(), np.random.rand(2).tolist(), random.random()

    def seeded():
        torch.manual_seed(1), np.random.seed(1), random.seed(1)

    model = Drawing([0, 0, 9, 9, 0.5, 1])
    seeded()
    expected = drawn()
    seeded()
    run(model, stream())
    assert drawn() == expected


class Clock:
    """Stands still but where it is told that time passes."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(module, "perf_counter", clock := Clock())
    return clock


def timed(clock, *batches):
    """A model and a stream of batches (images, seconds to wait for it, to detect, to take in)."""

    class Slow(Detections):
        @property
        def labels(self):
            clock.now += post
            return torch.ones(1, dtype=torch.int64)

        @labels.setter
        def labels(self, _): ...

    class Model(Fixed):
        def detect(self, images):
            nonlocal post
            _, _, model, post = batches[int(images[0][0, 0, 0])]
            clock.now += model
            post /= len(images)
            return [Slow(torch.ones(1, 4), torch.ones(1), None) for _ in images]

    def stream():
        for i, (images, data, _, _) in enumerate(batches):
            clock.now += data
            one = batch(*(f"{i}.{j}" for j in range(images)))
            one.images[0].fill_(i)
            yield one

    post = 0.0
    return Model(), stream()


def timing(prediction):
    return dict(zip(prediction.timing["part"], prediction.timing["ms_per_image"], strict=True))


def test_time_is_split_into_waiting_detecting_and_taking_in_by_image(clock, caplog):
    caplog.set_level("INFO")
    found = run(*timed(clock, (4, 2.0, 4.0, 0.5), (1, 0.5, 1.0, 0.0)), warmup=0)
    assert timing(found) == pytest.approx({"data": 500, "model": 1000, "post": 100})
    assert found.timing["images"].tolist() == [5, 5, 5]
    assert "data 500.0, model 1000.0, post 100.0 (0.6 images a second)" in caplog.text


def test_the_first_batches_are_not_timed(clock, caplog):
    caplog.set_level("INFO")
    batches = [(2, 90.0, 90.0, 90.0), (2, 9.0, 9.0, 9.0), (2, 2.0, 4.0, 0.0), (1, 1.0, 0.5, 0.3)]
    found = run(*timed(clock, *batches))
    assert timing(found) == pytest.approx({"data": 1000, "model": 1500, "post": 100})
    assert found.timing["images"].tolist() == [3, 3, 3]
    assert len(found.image_ids) == 7  # but they are detected in
    assert "without the first 2 batch(es)" in caplog.text


@pytest.mark.parametrize("warmup", [2, 5])
def test_without_more_batches_than_the_warm_up_all_are_timed_and_it_is_said(clock, caplog, warmup):
    caplog.set_level("INFO")
    batches = [(2, 3.0, 2.0, 1.0), (2, 1.0, 2.0, 3.0)]
    found = run(*timed(clock, *batches), warmup=warmup)
    assert timing(found) == pytest.approx({"data": 1000, "model": 1000, "post": 1000})
    assert "warm-up included: there are only 2 batch(es)" in caplog.text


def test_making_the_table_counts_for_all_images_alike(clock, monkeypatch):
    whole = module._Collected.table

    def table(self):
        clock.now += 8.0
        return whole(self)

    monkeypatch.setattr(module._Collected, "table", table)
    found = run(*timed(clock, (3, 0, 0, 0), (1, 0, 0, 1.0)), warmup=1)
    assert timing(found) == pytest.approx({"data": 0, "model": 0, "post": 1000 + 8000 / 4})


@pytest.mark.gpu
def test_on_a_gpu_the_same_comes_out():
    if not torch.cuda.is_available():
        pytest.skip("no GPU")

    class Moved(Fixed):
        def detect(self, images):
            assert {image.device.type for image in images} == {"cuda"}
            return [
                Detections(d.boxes.cuda(), d.scores.cuda(), d.labels.cuda())
                for d in super().detect(images)
            ]

    found = [10, 5, 20, 25, 0.5, 1]
    stream = [batch("7", original=(100, 400)), batch("8")]
    state = torch.cuda.get_rng_state()
    there = predict(Moved(found), stream, class_names=["cat"], device="auto")
    assert rows(there) == rows(run(Fixed(found), stream))
    assert torch.equal(torch.cuda.get_rng_state(), state)
