from __future__ import annotations

import itertools
import multiprocessing
import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import Tensor

from detpipe.core.config import Spec
from detpipe.core.errors import ConfigError, DataError, DetpipeError
from detpipe.core.tables import BOXES, CLASSES, IMAGES
from detpipe.core.types import Batch, Target
from detpipe.data import stream as stream_module
from detpipe.data.augment import (
    HorizontalFlip,
    IoUCrop,
    PhotometricDistort,
    RandomSize,
    ZoomOut,
    build,
)
from detpipe.data.config import Resize
from detpipe.data.formats import voc
from detpipe.data.image import load_image
from detpipe.data.mix import CopyPaste, MixUp, Mosaic
from detpipe.data.sampler import shuffle
from detpipe.data.store import Store
from detpipe.data.stream import EvalStream, TrainStream
from detpipe.data.transform import Transform, Until

COUNT = 10


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures – é 猫")
    rng = np.random.default_rng(0)
    for number in range(COUNT):
        size = (40, 60) if number % 3 else (50, 40)
        pixels = rng.integers(0, 256, (*size, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"bild {number} ü.jpg")
    return folder


def make_store(root: Path, *, count: int = COUNT) -> Store:
    images = IMAGES.make(
        [
            {"image_id": f"id-{n}", "path": f"bild {n} ü.jpg", "split": "train",
             "width": 60 if n % 3 else 40, "height": 40 if n % 3 else 50}
            for n in range(count)
        ]
    )  # fmt: skip
    rows = [
        {"image_id": f"id-{n}", "annotation_id": f"{n}-{k}", "class_name": "ab"[k % 2],
         "x1": 2.0 + k, "y1": 4.0, "x2": 22.0 + 3 * k, "y2": 24.0, "area": 200.0,
         "iscrowd": k == 2, "difficult": k == 1}
        for n in range(count)
        for k in range(n % 4)
    ]  # fmt: skip
    classes = CLASSES.make([{"class_name": c} for c in "ab"])
    boxes = BOXES.make(rows) if rows else BOXES.empty()
    return Store.from_tables(images, boxes, classes, root)


def make_stream(root: Path, **options: object) -> TrainStream:
    store = make_store(root)
    settings: dict[str, object] = {
        "batch_size": 4,
        "sampler": shuffle(length=len(store), seed=1),
        "resize": Resize(height=32, width=48),
        "augment": [HorizontalFlip(), PhotometricDistort(), numpy_and_python_noise],
        "seed": 7,
    }
    return TrainStream(store, **(settings | options))  # type: ignore[arg-type]


def numpy_and_python_noise(image: Tensor, target: Target) -> tuple[Tensor, Target]:
    """A user's own transform, which draws from all global generators."""
    shift = random.randrange(5) + int(np.random.randint(5)) + int(torch.randint(5, ()))
    return torch.roll(image, shift, -1), target


def take(batches: Iterator[Batch], count: int) -> list[Batch]:
    taken = list(itertools.islice(batches, count))
    batches.close()  # type: ignore[attr-defined]
    return taken


def assert_same(first: list[Batch], second: list[Batch]) -> None:
    assert len(first) == len(second) > 0
    for one, two in zip(first, second, strict=True):
        assert one.paths == two.paths
        for a, b in zip(one.images, two.images, strict=True):
            assert torch.equal(a, b)
        for s, t in zip(one.targets, two.targets, strict=True):
            assert (s.image_id, s.original_size) == (t.image_id, t.original_size)
            for name in ("boxes", "labels", "area", "iscrowd", "difficult"):
                assert torch.equal(getattr(s, name), getattr(t, name)), name


# --- addressed by position -----------------------------------------------------------------------


def test_workers_change_nothing(root: Path) -> None:
    alone = take(make_stream(root).batches(0), 7)
    assert_same(alone, take(make_stream(root, workers=2).batches(0), 7))


def test_start_is_the_tail_of_the_whole(root: Path) -> None:
    whole = take(make_stream(root).batches(0), 9)
    for step in (1, 4, 8):  # within the first epoch, across its end, in the fourth
        assert_same(whole[step:], take(make_stream(root).batches(4 * step), 9 - step))


def test_other_batch_size_gives_the_same_images(root: Path) -> None:
    by_4 = take(make_stream(root).batches(0), 5)
    by_2 = take(make_stream(root, batch_size=2).batches(0), 10)
    flat_4 = [image for batch in by_4 for image in batch.images]
    flat_2 = [image for batch in by_2 for image in batch.images]
    assert all(torch.equal(a, b) for a, b in zip(flat_4, flat_2, strict=True))


def test_every_image_once_an_epoch_and_none_dropped(root: Path) -> None:
    stream = make_stream(root)
    assert stream.images_per_epoch == COUNT
    ids = [t.image_id for batch in take(stream.batches(0), 5) for t in batch.targets]
    assert sorted(ids[:COUNT]) == sorted(ids[COUNT:]) == sorted(f"id-{n}" for n in range(COUNT))


def test_an_image_is_augmented_anew_each_epoch(root: Path) -> None:
    seen: dict[str, list[Tensor]] = {}
    for batch in take(make_stream(root).batches(0), 5):
        for image, target in zip(batch.images, batch.targets, strict=True):
            seen.setdefault(target.image_id, []).append(image)
    assert sum(torch.equal(a, b) for a, b in seen.values()) < COUNT / 2


def test_seed_decides_augmentation(root: Path) -> None:
    first, second = (take(make_stream(root, seed=s).batches(0), 2) for s in (1, 2))
    assert [b.paths for b in first] == [b.paths for b in second]
    assert not torch.equal(first[0].images[0], second[0].images[0])


@pytest.mark.parametrize("workers", [0, 1])
def test_global_generators_are_not_moved(root: Path, workers: int) -> None:
    def state() -> tuple[object, ...]:
        numpy_state = np.random.get_state()
        return (
            torch.get_rng_state().tolist(),
            random.getstate(),
            numpy_state[1].tolist(),  # type: ignore[index,union-attr]
            numpy_state[2],
        )

    before = state()
    batches = make_stream(root, workers=workers).batches(0)
    next(batches)
    assert state() == before
    batches.close()  # type: ignore[attr-defined]
    list(EvalStream(make_store(root), batch_size=4, workers=workers))
    assert state() == before


def test_generators_are_restored_when_a_transform_fails(root: Path) -> None:
    before = random.getstate(), torch.get_rng_state()
    with pytest.raises(ZeroDivisionError) as caught:
        next(make_stream(root, augment=[failing]).batches(0))
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    assert any(".jpg" in note for note in caught.value.__notes__)


def failing(image: Tensor, target: Target) -> tuple[Tensor, Target]:
    raise ZeroDivisionError


# --- content -------------------------------------------------------------------------------------


def test_images_and_boxes_are_scaled_together(root: Path) -> None:
    store = make_store(root)
    plain = EvalStream(store, batch_size=COUNT)
    small = EvalStream(store, batch_size=COUNT, resize=Resize(height=20, width=90))
    (big,), (little,) = list(plain), list(small)
    for index in range(COUNT):
        before, after = big.targets[index], little.targets[index]
        height, width = before.original_size
        assert big.images[index].shape == (3, height, width)
        assert little.images[index].shape == (3, 20, 90)
        assert after.original_size == before.original_size
        factors = torch.tensor([90 / width, 20 / height] * 2)
        torch.testing.assert_close(after.boxes, before.boxes * factors)
        torch.testing.assert_close(after.area, before.area * (90 / width * 20 / height))
        pixels = load_image(store.path(index))
        assert torch.equal(big.images[index], torch.from_numpy(pixels).permute(2, 0, 1))


def test_short_side_keeps_the_aspect_ratio(root: Path) -> None:
    (batch,) = EvalStream(make_store(root), batch_size=COUNT, resize=Resize(short_side=20))
    assert {tuple(i.shape) for i in batch.images} == {(3, 25, 20), (3, 20, 30)}


def test_target_fields_arrive_whole(root: Path) -> None:
    store = make_store(root)
    batches = list(EvalStream(store, batch_size=3, workers=2))
    targets = [t for batch in batches for t in batch.targets]
    for index, found in enumerate(targets):
        truth = store.target(index)
        assert found.image_id == truth.image_id
        for name in ("boxes", "labels", "area", "iscrowd", "difficult"):
            assert torch.equal(getattr(found, name), getattr(truth, name))
            assert getattr(found, name).dtype == getattr(truth, name).dtype
    assert any(t.iscrowd.any() for t in targets)  # crowds are kept
    assert any(len(t.boxes) == 0 for t in targets)


def test_evaluation_sees_each_image_once_in_order(root: Path) -> None:
    stream = EvalStream(make_store(root), batch_size=4)
    for _ in range(2):  # it can be read again
        batches = list(stream)
        assert [len(b) for b in batches] == [4, 4, 2]
        assert len(stream) == 3
        ids = [t.image_id for b in batches for t in b.targets]
        assert ids == [f"id-{n}" for n in range(COUNT)]


def test_exif_picture_is_upright_in_the_batch(tmp_path: Path) -> None:
    pixels = np.zeros((40, 60, 3), np.uint8)
    pixels[5:15, 30:50] = 255  # as stored; upright it lies at x 25..35, y 30..50
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels).save(tmp_path / "bild 0 ü.jpg", exif=exif)
    store = replace(make_store(tmp_path, count=1), sizes=np.array([[60, 40]], np.int32))
    (batch,) = EvalStream(store, batch_size=1)
    assert batch.images[0].shape == (3, 60, 40)
    ys, xs = torch.nonzero(batch.images[0][0] > 128, as_tuple=True)
    assert (xs.min(), ys.min(), xs.max() + 1, ys.max() + 1) == (25, 30, 35, 50)
    assert batch.targets[0].original_size == (60, 40)


@pytest.mark.parametrize(
    ("augment", "sizes"),
    [
        ([ZoomOut(p=1.0), IoUCrop()], {(3, 32, 48)}),
        ([RandomSize(short_sides=(16, 24))], {(3, 16, 24), (3, 24, 36)}),
    ],
)
def test_size_after_transforms(
    root: Path, augment: list[Transform], sizes: set[tuple[int, ...]]
) -> None:
    batches = take(make_stream(root, augment=augment).batches(0), 5)
    assert {tuple(i.shape) for b in batches for i in b.images} == sizes
    for batch in batches:
        for image, target in zip(batch.images, batch.targets, strict=True):
            assert (target.boxes >= 0).all()
            assert (target.boxes[:, 2] <= image.shape[2] + 1e-3).all()
            assert (target.boxes[:, 3] <= image.shape[1] + 1e-3).all()


# --- sizes: torchvision's transforms, and the presets of its references ---------------------------

V2 = "torchvision.transforms.v2"
OURS = "detpipe.data.augment"
MEAN = [123, 117, 104]
FLIP = {"use": f"{V2}.RandomHorizontalFlip", "p": 0.5}
SSD = [
    {"use": f"{V2}.RandomPhotometricDistort"},
    {"use": f"{V2}.RandomZoomOut", "fill": MEAN},
    {"use": f"{V2}.RandomIoUCrop"},
    FLIP,
]
PRESETS = {
    "hflip": [FLIP],
    "lsj": [
        {"use": f"{V2}.ScaleJitter", "target_size": [64, 64]},
        {"use": f"{OURS}.FixedSizeCrop", "size": [64, 64], "fill": MEAN},
        FLIP,
    ],
    "multiscale": [
        {"use": f"{V2}.RandomShortestSize", "min_size": [24, 28, 36], "max_size": 44},
        FLIP,
    ],
    "ssd": SSD,
    "ssdlite": [SSD[2], FLIP],
    "ssd, ours": [
        {"use": f"{OURS}.{name}"}
        for name in ("PhotometricDistort", "ZoomOut", "IoUCrop", "HorizontalFlip")
    ],
}
SIZES = {
    "lsj": lambda h, w: (h, w) == (64, 64),
    "multiscale": lambda h, w: (h, w) in {(24, 36), (28, 42), (29, 44)},
}


@pytest.mark.parametrize("name", PRESETS)
def test_presets_of_the_references_by_import_path(root: Path, name: str) -> None:
    augment = [build(Spec(**spec)) for spec in PRESETS[name]]
    batches = take(make_stream(root, augment=augment).batches(0), 5)
    fits = SIZES.get(name, lambda h, w: (h, w) == (32, 48))
    plain = take(make_stream(root, augment=[]).batches(0), 5)
    changed = 0
    for batch, before in zip(batches, plain, strict=True):
        for image, target, old in zip(batch.images, batch.targets, before.images, strict=True):
            assert fits(*image.shape[1:]), image.shape
            assert image.dtype == torch.uint8
            count = len(target.boxes)
            assert {len(target.labels), len(target.area), len(target.iscrowd)} == {count}
            assert (target.boxes >= 0).all()
            assert (target.boxes[:, 2:] <= torch.tensor(image.shape[:0:-1]) + 1e-3).all()
            changed += not torch.equal(image, old)
    assert changed > 5


@pytest.mark.parametrize(
    ("name", "options", "size"),
    [
        ("Resize", {"size": [20, 30]}, (20, 30)),
        ("RandomResize", {"min_size": 20, "max_size": 21}, (20, 30)),
        ("RandomShortestSize", {"min_size": 20}, (20, 30)),
        ("ScaleJitter", {"target_size": [96, 96], "scale_range": [0.75, 0.75]}, (48, 72)),
        ("RandomCrop", {"size": [50, 40], "pad_if_needed": True}, (50, 40)),
        ("CenterCrop", {"size": [10, 12]}, (10, 12)),
        ("RandomResizedCrop", {"size": [22, 23]}, (22, 23)),
        ("Pad", {"padding": 5}, (32, 48)),  # these change the size, but are told none
        ("RandomZoomOut", {"p": 1.0}, (32, 48)),
        ("RandomRotation", {"degrees": 40, "expand": True}, (32, 48)),
    ],
)
def test_a_size_that_a_transform_is_told_stays(
    root: Path, name: str, options: dict[str, object], size: tuple[int, int]
) -> None:
    augment = [build(Spec(use=f"{V2}.{name}", **options))]
    (batch,) = take(make_stream(root, augment=augment).batches(0), 1)
    assert {tuple(image.shape[1:]) for image in batch.images} == {size}


# --- several images in one -----------------------------------------------------------------------


def mixing() -> list[object]:
    """Everything, with two that read several images and one that is switched off after 13."""
    return [numpy_and_python_noise, CopyPaste(p=0.7), Until(Mosaic(), 13), MixUp(p=0.5),
            HorizontalFlip()]  # fmt: skip


def test_mixing_is_the_same_with_workers_and_after_a_resume(root: Path) -> None:
    whole = take(make_stream(root, augment=mixing()).batches(0), 6)
    assert_same(whole, take(make_stream(root, augment=mixing(), workers=2).batches(0), 6))
    for step in (1, 3, 5):
        tail = take(make_stream(root, augment=mixing()).batches(4 * step), 6 - step)
        assert_same(whole[step:], tail)
    assert any(" + " in path for batch in whole for path in batch.paths)


def test_until_switches_off_at_its_image(root: Path) -> None:
    def taken(*augment: object) -> list[tuple[Tensor, Tensor]]:
        batches = take(make_stream(root, augment=augment).batches(0), 6)
        return [(i, t.boxes) for b in batches for i, t in zip(b.images, b.targets, strict=True)]

    limited = taken(Until(Mosaic(), 9), HorizontalFlip())
    expected = [
        *taken(Mosaic(), HorizontalFlip())[:9],
        *taken(HorizontalFlip())[9:],
    ]
    for (image, boxes), (other, others) in zip(limited, expected, strict=True):
        assert torch.equal(image, other)
        assert torch.equal(boxes, others)


def test_until_holds_for_the_other_images_too(root: Path) -> None:
    augment = [Until(whiten, 4), Mosaic(scale=(1, 1), centre=(0.5, 0.5))]
    first, second = take(make_stream(root, augment=augment).batches(0), 2)
    assert all((image == 255).all() for image in first.images)
    assert not any((image == 255).all() for image in second.images)


def test_a_size_that_is_switched_off_gives_way_to_the_streams(root: Path) -> None:
    augment = [Until(RandomSize(short_sides=(16,)), 4)]
    first, second = take(make_stream(root, augment=augment).batches(0), 2)
    assert {tuple(image.shape) for image in first.images} == {(3, 16, 24)}
    assert {tuple(image.shape) for image in second.images} == {(3, 32, 48)}


def whiten(image: Tensor, target: Target) -> tuple[Tensor, Target]:
    return torch.full_like(image, 255), target


class Beside:
    """Two images side by side."""

    mixes = True

    def __call__(self, image, target, draw):
        other, _ = draw()
        assert other.shape == image.shape  # at the stream's size
        return torch.cat([image, other], dim=2), target


def darker(image, target):
    return image - 1, target


def test_other_images_go_through_the_transforms_before(root: Path) -> None:
    start = [whiten, darker, Beside(), darker]
    (batch,) = take(make_stream(root, augment=[*start, Beside(), darker]).batches(0), 1)
    assert all((image == 252).all() for image in batch.images)  # of white, three times 1


def test_a_mix_of_mixes_reads_what_it_shows_and_names_it(root: Path) -> None:
    (batch,) = take(make_stream(root, augment=[Mosaic(), MixUp()]).batches(0), 1)
    files = [path.split(" + ") for path in batch.paths]
    assert [len(f) for f in files] == [8] * 4
    assert all(Path(path).is_file() for f in files for path in f)
    first = [Path(f[0]).name for f in files]
    plain = take(make_stream(root, augment=[]).batches(0), 1)[0].paths
    assert first == [Path(path).name for path in plain]


def test_a_mosaic_of_real_pictures_holds_all_their_boxes(shared_data: Path) -> None:
    folder = shared_data / "bccd_voc"
    found = voc.read(folder)
    images = found.images.assign(width=0, height=0)  # unknown: the checks were left out
    store = Store.from_tables(images, found.boxes, found.classes, folder)
    counts = {str(store.path(i)): store.target(i).labels.bincount(minlength=4)
              for i in range(len(store))}  # fmt: skip
    stream = TrainStream(
        store,
        batch_size=8,
        sampler=shuffle(length=len(store), seed=0),
        resize=Resize(height=240, width=320),
        augment=[Mosaic(scale=(0.5, 0.5), centre=(0.5, 0.5), min_visible=0)],
    )
    (batch,) = take(stream.batches(0), 1)
    for target, paths in zip(batch.targets, batch.paths, strict=True):
        expected = sum(counts[path] for path in paths.split(" + "))
        assert target.labels.bincount(minlength=4).tolist() == expected.tolist()


class Some:
    """A sampler that leaves images out."""

    def index(self, position: int) -> int:
        return (2, 5, 5, 5)[position % 4]


def test_what_the_sampler_leaves_out_is_never_mixed_in(root: Path) -> None:
    stream = make_stream(root, augment=[Mosaic()], sampler=Some())
    files = [p for b in take(stream.batches(0), 10) for path in b.paths for p in path.split(" + ")]
    numbers = [int(Path(path).name.split()[1]) for path in files]
    assert set(numbers) == {2, 5}
    drawn = np.array([n for i, n in enumerate(numbers) if i % 4])
    # Three of the first ten positions are image 2: 120 draws, standard deviation 5.
    assert 16 <= (drawn == 2).sum() <= 56


def test_an_unreadable_other_image_is_named(tmp_path: Path) -> None:
    for number in range(2):
        pixels = np.zeros((40, 60, 3) if number else (50, 40, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"bild {number} ü.jpg")
    (tmp_path / "bild 1 ü.jpg").write_bytes(b"")
    store = make_store(tmp_path, count=2)
    stream = TrainStream(
        store, batch_size=1, sampler=shuffle(length=2, seed=0), augment=[Mosaic()], workers=1
    )
    with pytest.raises(DataError, match=r"bild 1 ü\.jpg: the file is empty"):
        take(stream.batches(0), 9)


# --- what goes wrong -----------------------------------------------------------------------------


def test_batch_larger_than_the_set_is_an_error(root: Path) -> None:
    with pytest.raises(DataError, match="batch_size is 11, but there are only 10"):
        make_stream(root, batch_size=11)


def test_empty_store_is_an_error(root: Path) -> None:
    empty = make_store(root, count=0)
    with pytest.raises(DataError, match="no image to train on"):
        TrainStream(empty, batch_size=1, sampler=shuffle(length=1, seed=0))
    with pytest.raises(DataError, match="no image to evaluate on"):
        EvalStream(empty, batch_size=1)


@pytest.mark.parametrize("workers", [0, 1])
def test_unreadable_picture_is_named(tmp_path: Path, workers: int) -> None:
    (tmp_path / "bild 0 ü.jpg").write_bytes(b"")
    stream = EvalStream(make_store(tmp_path, count=1), batch_size=1, workers=workers)
    with pytest.raises(DataError, match=r"^\S*bild 0 ü\.jpg: the file is empty"):
        list(stream)
    assert multiprocessing.active_children() == []


def test_picture_that_changed_since_the_tables_is_named(root: Path) -> None:
    store = make_store(root)
    wrong = replace(store, sizes=np.full_like(store.sizes, 33))
    with pytest.raises(DataError, match=r"bild 0 ü\.jpg: the picture is 40 × 50"):
        list(EvalStream(wrong, batch_size=2))


def test_size_0_in_the_table_means_unknown(root: Path) -> None:
    store = replace(make_store(root), sizes=np.zeros((COUNT, 2), np.int32))
    (batch,) = EvalStream(store, batch_size=COUNT)
    assert batch.targets[1].original_size == (40, 60)


def test_closing_ends_the_workers(root: Path) -> None:
    batches = make_stream(root, workers=2).batches(0)
    next(batches)
    assert len(multiprocessing.active_children()) == 2
    batches.close()  # type: ignore[attr-defined]
    assert multiprocessing.active_children() == []


def dying(image: Tensor, target: Target) -> tuple[Tensor, Target]:
    if multiprocessing.parent_process() is not None:
        os._exit(9)
    return image, target


def test_death_of_a_worker_is_an_error_with_a_way_out(root: Path) -> None:
    with pytest.raises(DetpipeError, match=r"(?s)died.*lower stream\.workers"):
        next(make_stream(root, workers=1, augment=[dying]).batches(0))
    assert multiprocessing.active_children() == []


def test_failing_transform_in_a_worker_names_the_picture(root: Path) -> None:
    with pytest.raises(ZeroDivisionError, match=r"while reading .*\.jpg"):
        next(make_stream(root, workers=1, augment=[failing]).batches(0))


@pytest.mark.slow
def test_workers_that_are_not_forked_give_the_same(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = take(make_stream(root).batches(0), 3)
    context = multiprocessing.get_context("forkserver")
    monkeypatch.setattr(stream_module, "_start_method", lambda: context)
    assert_same(expected, take(make_stream(root, workers=1).batches(0), 3))


def test_tables_of_pandas_are_not_kept(root: Path) -> None:
    fields = vars(type(make_store(root)))["__dataclass_fields__"]
    values = [getattr(make_store(root), name) for name in fields]
    assert not any(isinstance(v, (pd.DataFrame, pd.Series, list, dict)) for v in values)


def nan_box(image: Tensor, target: Target) -> tuple[Tensor, Target]:
    return image, replace(target, boxes=target.boxes * torch.nan)


def no_area(image: Tensor, target: Target) -> tuple[Tensor, Target]:
    boxes = target.boxes.clone()
    boxes[:, 2] = boxes[:, 0]
    return image, replace(target, boxes=boxes)


def background(image: Tensor, target: Target) -> tuple[Tensor, Target]:
    return image, replace(target, labels=target.labels * 0)


def normalised(image: Tensor, target: Target) -> tuple[Tensor, Target]:
    return image.float() / 255, target


def cut_without_boxes(image: Tensor, target: Target) -> tuple[Tensor, Target]:
    return image[:, :4, :4], target


def grey(image: Tensor, target: Target) -> tuple[Tensor, Target]:
    return image[:1], target


def one_label_less(image: Tensor, target: Target) -> tuple[Tensor, Target]:
    return image, replace(target, labels=target.labels[1:])


def nothing(image: Tensor, target: Target) -> None:
    return None


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("transform", "flaw"),
    [
        (nan_box, r"the box \[nan, nan, nan, nan\]"),
        (no_area, r"the box \[.*\], which has no area"),
        (background, "labels from 0 to 0; they are 1 to 2, 0 is background"),
        (normalised, r"an image of torch\.float32 \[3, 32, 48\] instead of uint8"),
        (cut_without_boxes, r"the box \[.*\] outside its image of 4 × 4"),
        (grey, r"an image of torch\.uint8 \[1, 32, 48\] instead of uint8 \[3, H, W\]"),
        (one_label_less, "lengths .*"),
        (nothing, r"a NoneType instead of \(image, target\)"),
    ],
)
def test_what_cannot_be_learnt_from_is_refused_with_the_transform_that_gave_it(
    root: Path, transform: Transform, flaw: str, workers: int
) -> None:
    chain = [HorizontalFlip(p=1.0), transform, HorizontalFlip(p=1.0), PhotometricDistort(p=1.0)]
    stream = make_stream(root, augment=chain, workers=workers)
    message = rf"the transform {transform.__name__} gives .*{flaw}.* \(position \d of the run\)"
    with pytest.raises(DataError, match=message):
        take(stream.batches(0), 3)
    assert multiprocessing.active_children() == []


class OutOfRange:
    def index(self, position: int) -> int:
        return COUNT


def test_a_sampler_beyond_the_set_is_refused(root: Path) -> None:
    message = r"train\.sampler \(OutOfRange\) gives image 10 at position 0; .* from 0 to 9"
    with pytest.raises(DataError, match=message):
        take(make_stream(root, sampler=OutOfRange()).batches(0), 1)


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("AutoAugment", {}, "does not move boxes"),
        ("Normalize", {"mean": [0.5], "std": [0.5]}, "normalise it themselves"),
        ("ToDtype", {"dtype": "float32"}, "normalise it themselves"),
        ("ConvertBoundingBoxFormat", {"format": "XYWH"}, "boxes that are not x1 y1 x2 y2"),
        ("Compose", {"transforms": []}, "holds transforms of its own"),
        ("GaussianBlur", {"kernel_size": 4}, "Kernel size value should be"),
        ("RandomHorizontalFlip", {"p": 5}, "`p` should be"),
    ],
)
def test_transforms_of_torchvision_that_cannot_be_used_are_refused(name, options, reason) -> None:
    with pytest.raises(ConfigError, match=rf"torchvision\.transforms\.v2\.{name}.*{reason}"):
        build(Spec(use=f"torchvision.transforms.v2.{name}", **options))
