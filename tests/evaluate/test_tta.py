"""Test-time augmentation: boxes land where they belong, and are merged as the papers say."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis.extra import numpy as hnp
from torch import nn
from torchvision.ops import batched_nms, box_iou

from detpipe.core.types import Detections, Detector
from detpipe.evaluate.config import Tta
from detpipe.evaluate.run import predict
from detpipe.evaluate.tta import Augmented, fuse, suppress
from detpipe.models import tiny

from .test_run import batch


class Bright(nn.Module):
    """Finds the one bright rectangle of an image, to the pixel."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def detect(self, images):
        self.sizes.append([tuple(image.shape[-2:]) for image in images])
        assert all(image.dtype == torch.uint8 for image in images)
        return [self._one(image) for image in images]

    def _one(self, image):
        y, x = torch.nonzero(image[0] > 127, as_tuple=True)
        if not len(x):
            return found()
        return found([int(x.min()), int(y.min()), int(x.max()) + 1, int(y.max()) + 1, 0.75, 1])


class Noisy(nn.Module):
    """Sees the bright rectangle a little beside its place, each time elsewhere."""

    def __init__(self, sigma, seed=0):
        super().__init__()
        self.inner, self.sigma = Bright(), sigma
        self.generator = torch.Generator().manual_seed(seed)

    def detect(self, images):
        return [
            Detections(
                one.boxes + self.sigma * torch.randn(one.boxes.shape, generator=self.generator),
                one.scores, one.labels,
            )
            for one in self.inner.detect(images)
        ]  # fmt: skip


class Given(nn.Module):
    """Gives what it is told to, one list a call."""

    def __init__(self, *calls):
        super().__init__()
        self.calls = list(calls)

    def detect(self, images):
        return self.calls.pop(0)


def found(*rows):
    """Detections from (x1, y1, x2, y2, score, label)."""
    table = torch.tensor(rows, dtype=torch.float32).reshape(-1, 6)
    return Detections(table[:, :4], table[:, 4], table[:, 5].long())


def rows(detections):
    parts = (detections.boxes, detections.scores[:, None], detections.labels[:, None])
    return torch.cat([part.double() for part in parts], dim=1).tolist()


def picture(x1, y1, x2, y2, size=(60, 90)):
    image = torch.zeros(3, *size, dtype=torch.uint8)
    image[:, y1:y2, x1:x2] = 255
    return image


BLACK = torch.zeros(3, 60, 90, dtype=torch.uint8)


@pytest.mark.parametrize("merge", ["nms", "wbf"])
@pytest.mark.parametrize("scales", [[1.0], [2.0], [0.5], [1.0, 2.0, 0.5, 3.0]])
def test_every_version_finds_the_object_at_its_place(scales, merge):
    box = [10, 20, 46, 48]  # even, so that half the size has whole pixels
    model = Augmented(Bright(), scales=scales, merge=merge)
    (one,) = model.detect([picture(*box)])
    # Full score: all versions are one cluster. Exact: not a pixel is lost in a flip or a scale.
    assert rows(one) == [[*box, 0.75, 1]]
    assert len(model.detector.sizes) == 2 * len(scales)


def test_sizes_are_rounded_and_boxes_scaled_by_the_true_factors():
    class Everything(Bright):
        def _one(self, image):
            return found([0, 0, image.shape[2], image.shape[1], 1, 1])

    model = Augmented(Everything(), scales=[0.3, 0.001, 1.5])
    (one,) = model.detect([torch.zeros(3, 55, 91, dtype=torch.uint8)])
    # 0.3 × 55 = 16.5, 0.3 × 91 = 27.3; never less than 2; 82.5, 136.5: halves go to even numbers
    assert model.detector.sizes[::2] == [[(16, 27)], [(2, 2)], [(82, 136)]]
    assert rows(one) == [[0, 0, 91, 55, 1, 1]]


def test_versions_are_resized_smoothly():
    stripes = torch.zeros(3, 40, 40, dtype=torch.uint8)
    stripes[:, :, ::2] = 254
    seen = []

    class Looking(Bright):
        def detect(self, images):
            seen.extend(images)
            return super().detect(images)

    Augmented(Looking(), scales=[0.2], flip=False).detect([stripes])
    inside = seen[0][:, :, 1:-1].float()
    assert (inside - 127).abs().max() <= 10  # without antialias each is 0 or 254


def test_images_of_one_batch_stay_apart_and_may_have_nothing():
    images = [picture(1, 2, 30, 40), BLACK, picture(50, 5, 80, 50, size=(70, 110))]
    model = Augmented(Bright(), scales=[1.0, 2.0])
    together = model.detect(images)
    assert [rows(one) for one in together] == [
        [[1, 2, 30, 40, 0.75, 1]], [], [[50, 5, 80, 50, 0.75, 1]],
    ]  # fmt: skip
    assert [rows(model.detect([image])[0]) for image in images] == [rows(one) for one in together]
    assert together[1].boxes.shape == (0, 4) and model.detect([]) == []


@pytest.mark.parametrize("merge", ["nms", "wbf"])
def test_a_mirrored_image_gives_the_mirrored_boxes(merge):
    torch.manual_seed(0)
    detector = tiny.build(2, width=16, score_thresh=0.0).eval()
    model = Augmented(detector, scales=[1.0, 1.5], merge=merge)
    image = torch.randint(0, 255, (3, 96, 128), dtype=torch.uint8)
    with torch.no_grad():
        (one,), (other,) = model.detect([image]), model.detect([image.flip(-1)])
        (plain,), (turned,) = detector.detect([image]), detector.detect([image.flip(-1)])
    mirrored = other.boxes[:, [2, 1, 0, 3]]
    mirrored[:, [0, 2]] = 128 - mirrored[:, [0, 2]]
    assert len(one) == 100
    torch.testing.assert_close(one.scores, other.scores)
    apart = torch.cdist(one.boxes, mirrored, p=torch.inf)  # scores may tie: in any order
    assert max(apart.amin(dim=0).max(), apart.amin(dim=1).max()) < 1e-3
    assert not torch.allclose(plain.scores, turned.scores)  # the detector itself does not


def test_one_version_is_the_detector_after_nms():
    torch.manual_seed(0)
    detector = tiny.build(3, width=16, score_thresh=0.0, nms_thresh=0.9).eval()
    images = [torch.randint(0, 255, (3, 96, 128), dtype=torch.uint8) for _ in range(2)]
    model = Augmented(detector, flip=False, merge="nms", iou=0.4, max_detections=20)
    with torch.no_grad():
        for plain, one in zip(detector.detect(images), model.detect(images), strict=True):
            kept = batched_nms(plain.boxes, plain.scores, plain.labels, 0.4)[:20]
            assert 5 < len(kept) < len(plain)
            assert torch.equal(one.boxes, plain.boxes[kept])
            assert torch.equal(one.scores, plain.scores[kept])
            assert torch.equal(one.labels, plain.labels[kept])


@pytest.mark.parametrize("merge", ["nms", "wbf"])
def test_boxes_apart_and_boxes_of_other_classes_are_left_as_they_are(merge):
    third = 1 / 3
    some = found(
        [third, 0.1, 10.7, 9, 0.9, 1], [third, 0.1, 10.7, 9, 0.8, 2], [20, 0, 30.3, 9, third, 1],
        [-5, -5, 0.1, 0.1, 0.2, 1], [40, 3, 40, 9, 0.1, 1],
    )  # fmt: skip
    (one,) = Augmented(Given([some]), flip=False, merge=merge).detect([BLACK])
    assert rows(one) == rows(some)
    assert (one.boxes.dtype, one.scores.dtype, one.labels.dtype) == (
        torch.float32, torch.float32, torch.int64,
    )  # fmt: skip


def test_the_best_are_kept_best_first():
    first = found([0, 0, 9, 9, 0.3, 1], [20, 0, 29, 9, 0.2, 2])
    second = found([40, 0, 49, 9, 0.8, 2], [60, 0, 69, 9, 0.4, 1])
    model = Augmented(Given([first], [second]), scales=[1.0, 1.0], flip=False, merge="nms")
    model.max_detections = 3
    (one,) = model.detect([BLACK])
    assert [(row[0], row[5]) for row in rows(one)] == [(40, 2), (60, 1), (0, 1)]


def test_what_is_not_finite_is_passed_on_and_harms_nothing():
    nan = float("nan")
    bad = [[nan, 0, 9, 9, 0.9, 1], [0, 0, 9, 9, nan, 2]]
    good = [[0, 0, 10, 10, 0.5, 1], [0, 0, 10, 10, 0.3, 1]]
    for merge, score in (("nms", 0.5), ("wbf", 0.4)):
        model = Augmented(Given([found(*bad, *good)]), flip=False, merge=merge, max_detections=1)
        (one,) = model.detect([BLACK])
        np.testing.assert_allclose(rows(one), [[0, 0, 10, 10, score, 1], *bad], rtol=1e-6)


def test_fusion_by_hand():
    """Scores 0.8 and 0.4: x2 = (0.8 × 10 + 0.4 × 13) / 1.2 = 11; three of four versions miss."""
    first, second = [[0, 0, 10, 10, 0.8, 1], [50, 0, 60, 10, 0.6, 1]], [[0, 0, 13, 10, 0.4, 1]]
    model = Augmented(
        Given([found(*first)], [found(*second)], [found()], [found()]), scales=[1.0] * 4, flip=False
    )
    (one,) = model.detect([BLACK])
    expected = [[0, 0, 11, 10, 0.6 * 2 / 4, 1], [50, 0, 60, 10, 0.6 / 4, 1]]
    np.testing.assert_allclose(rows(one), expected, rtol=1e-6)


def test_more_boxes_than_versions_do_not_raise_the_score():
    some = [[0, 0, 10, 10, 0.9, 1], [0, 0, 10, 10, 0.6, 1], [0, 0, 10, 10, 0.3, 1]]
    (one,) = Augmented(Given([found(*some)]), flip=False).detect([BLACK])
    np.testing.assert_allclose(rows(one), [[0, 0, 10, 10, 0.6, 1]], rtol=1e-6)


def test_a_box_joins_the_cluster_it_overlaps_most_by_its_fused_box():
    """After the second box the fused box is 0..11; the third overlaps that by 0.6, not the first.

    IoU of 0..10 and 4.4..15: 5.6 / 15 = 0.37; fused with 0..13 at equal weight it is 0..11.5, of
    which 4.4..11.5 is 7.1 / 15 = 0.47.
    """
    boxes = np.array([[0, 0, 10, 10], [0, 0, 13, 10], [4.4, 0, 15, 10.0]])
    merged = fuse(boxes, np.array([0.5, 0.5, 0.4]), np.zeros(3, int), iou=0.45, versions=3)
    assert len(merged.boxes) == 1
    merged = fuse(boxes[[0, 2]], np.array([0.5, 0.4]), np.zeros(2, int), iou=0.45, versions=3)
    assert len(merged.boxes) == 2


def test_boxes_that_overlap_by_just_the_limit_are_two():
    boxes = np.array([[0, 0, 10, 10], [0, 0, 20, 10.0]])
    given = boxes, np.array([0.5, 0.4]), np.zeros(2, int)
    assert len(fuse(*given, iou=0.5, versions=1).boxes) == 2
    assert len(suppress(*given, iou=0.5).boxes) == 2
    assert len(fuse(*given, iou=0.4999, versions=1).boxes) == 1


def plain_fusion(boxes, scores, groups, *, iou, versions):
    """Section 3 of the paper, step by step, one class after the other."""
    out = []
    for group in sorted(set(groups.tolist())):
        queue = [i for i in np.argsort(-scores, kind="stable") if groups[i] == group]
        clusters, fused = [], []
        for i in queue:
            overlaps = [
                box_iou(torch.tensor(boxes[None, i]), torch.tensor(box[None])).item()
                for box in fused
            ]
            best = int(np.argmax(overlaps)) if overlaps else -1
            if best >= 0 and overlaps[best] > iou:
                clusters[best].append(i)
                fused[best] = np.average(
                    boxes[clusters[best]], axis=0, weights=scores[clusters[best]]
                )
            else:
                clusters.append([i])
                fused.append(boxes[i])
        for cluster, box in zip(clusters, fused, strict=True):
            n = len(cluster)
            out.append([*box, scores[cluster].mean() * min(n, versions) / versions, cluster[0]])
    return np.array(out).reshape(-1, 6)


@st.composite
def crowded(draw):
    """Boxes that overlap a lot, in a few groups; no two of a score, so the order is given."""
    n = draw(st.integers(0, 40))
    corner = draw(hnp.arrays(np.float64, (n, 2), elements=st.integers(0, 20)))
    side = draw(hnp.arrays(np.float64, (n, 2), elements=st.integers(5, 20)))
    scores = np.array(draw(st.lists(st.integers(1, 1000), min_size=n, max_size=n, unique=True)))
    groups = draw(hnp.arrays(np.int64, n, elements=st.sampled_from([0, 1, 3])))
    return np.concatenate([corner, corner + side], axis=1), scores.astype(float) / 1000, groups


@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(crowded(), st.sampled_from([0.3, 0.547, 0.71]), st.integers(1, 4))
def test_fusion_is_that_of_the_paper(some, iou, versions):
    expected = plain_fusion(*some, iou=iou, versions=versions)
    merged = fuse(*some, iou=iou, versions=versions)
    table = np.column_stack([merged.boxes, merged.scores, merged.rows])
    key = table[:, 5].argsort()
    np.testing.assert_allclose(table[key], expected[expected[:, 5].argsort()], rtol=1e-9)


@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(crowded(), st.sampled_from([0.3, 0.547, 0.71]))
def test_suppression_leaves_the_best_of_each_heap(some, iou):
    boxes, scores, groups = some
    boxes = boxes - 15  # some left of the image: their class must not matter to another
    kept = []
    for i in np.argsort(-scores):
        same = [k for k in kept if groups[k] == groups[i]]
        overlaps = box_iou(torch.tensor(boxes[None, i]), torch.tensor(boxes[same]).reshape(-1, 4))
        if not (overlaps > iou).any():
            kept.append(i)
    assert suppress(boxes, scores, groups, iou=iou).rows.tolist() == kept


def test_a_score_of_0_is_a_box_still():
    merged = fuse(
        np.array([[1.0, 2, 3, 4]] * 2), np.zeros(2), np.zeros(2, int), iou=0.5, versions=1
    )
    assert merged.boxes.tolist() == [[1, 2, 3, 4]] and merged.scores[0] == pytest.approx(0)


def test_fused_boxes_lie_nearer_to_the_truth_than_those_of_one_version():
    """Independent errors of eight versions: about 1 / sqrt(8) of the error of one."""
    generator = np.random.default_rng(0)
    boxes = [
        (x, y, x + w, y + h)
        for x, y, w, h in generator.integers([2, 2, 30, 25], [40, 25, 48, 33], (40, 4)).tolist()
    ]
    images, truth = [picture(*box) for box in boxes], torch.tensor(boxes)

    def error(model):
        found = model.detect(images)
        best = torch.stack([one.boxes[0] for one in found])
        return float((best - truth).square().mean().sqrt())

    one = error(Augmented(Noisy(2.0), flip=False))
    eight = error(Augmented(Noisy(2.0), flip=True, scales=[1.0] * 4))
    assert one == pytest.approx(2, rel=0.15)
    assert eight == pytest.approx(2 / np.sqrt(8), rel=0.15)


def test_it_is_a_detector_that_predict_takes_and_its_loss_is_the_detectors():
    class Training(Bright):
        def forward(self, batch):
            return {"loss": torch.tensor(float(len(batch)))}

    model = Augmented.of(Training(), Tta(scales=[1.0, 2.0], merge="nms", iou=0.3), max_detections=7)
    assert isinstance(model, Detector)
    assert (len(model.versions), model.merge, model.iou, model.max_detections) == (4, "nms", 0.3, 7)
    assert model(batch("1", "2"))["loss"] == 2
    one = batch("7", size=(60, 90), original=(120, 90))
    one.images[0].copy_(picture(4, 6, 30, 50))
    table = predict(model, [one], class_names=["cat"], device="cpu").detections
    assert table.iloc[0].tolist() == ["7", "cat", 4, 12, 30, 100, 0.75]


@pytest.mark.gpu
def test_on_a_gpu_the_same_comes_out():
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    model = Augmented(Bright(), scales=[1.0, 2.0])
    image = picture(10, 20, 46, 48)
    (there,) = model.detect([image.cuda()])
    assert there.boxes.device.type == "cuda"
    assert rows(there) == rows(model.detect([image])[0])
