"""The cost of the transforms: ours beside torchvision's, and mixing beside reading an image.

Images of 640 × 480 pixels with twelve objects, read at 320 × 320. The partners of a pair run in
turn on the same images; CPU time of this thread, one thread. A ratio is the median over the rounds.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import cv2
import numpy as np
import torch
from PIL import Image
from torchvision.transforms import v2

from detpipe.core.tables import BOXES, CLASSES, IMAGES
from detpipe.data import augment, mix
from detpipe.data.config import Resize
from detpipe.data.reader import Reader
from detpipe.data.sampler import sequential
from detpipe.data.store import Store
from detpipe.data.transform import Sample, Transform

COUNT, OBJECTS = 32, 12
FILL = (124, 116, 104)
SHORT = (256, 288, 320, 352, 384)


def make_store(folder: Path) -> Store:
    """Pictures as smooth and as noisy as photographs are."""
    rng = np.random.default_rng(0)
    images, boxes = [], []
    for number in range(COUNT):
        coarse = rng.integers(0, 256, (12, 16, 3)).astype(np.uint8)
        picture = cv2.resize(coarse, (640, 480), interpolation=cv2.INTER_CUBIC).astype(np.int16)
        picture += rng.integers(-12, 13, picture.shape).astype(np.int16)
        Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(folder / f"{number}.jpg")
        images.append(
            {"image_id": str(number), "path": f"{number}.jpg", "split": "train",
             "width": 640, "height": 480}
        )  # fmt: skip
        for place in range(OBJECTS):
            x, y = rng.uniform(0, 540), rng.uniform(0, 380)
            width, height = rng.uniform(20, 100, 2)
            boxes.append(
                {"image_id": str(number), "annotation_id": f"{number}-{place}", "class_name": "a",
                 "x1": x, "y1": y, "x2": x + width, "y2": y + height, "area": width * height,
                 "iscrowd": False, "difficult": False}
            )  # fmt: skip
    classes = CLASSES.make([{"class_name": "a"}])
    return Store.from_tables(IMAGES.make(images), BOXES.make(boxes), classes, folder)


def pairs() -> dict[str, tuple[Transform, Transform]]:
    """What both have: ours, theirs."""
    theirs = augment.Torchvision
    return {
        "HorizontalFlip": (
            augment.HorizontalFlip(p=1),
            theirs(v2.RandomHorizontalFlip(p=1)),
        ),
        "PhotometricDistort": (
            augment.PhotometricDistort(),
            theirs(v2.RandomPhotometricDistort()),
        ),
        "ZoomOut": (
            augment.ZoomOut(p=1, fill=FILL),
            theirs(v2.RandomZoomOut(p=1, fill=list(FILL))),
        ),
        "IoUCrop": (augment.IoUCrop(), theirs(v2.RandomIoUCrop())),
        "RandomSize | RandomShortestSize": (
            augment.RandomSize(short_sides=SHORT),
            theirs(v2.RandomShortestSize(list(SHORT))),
        ),
        "FixedSizeCrop | RandomCrop, padding": (
            augment.FixedSizeCrop(size=(256, 384), fill=FILL),
            theirs(v2.RandomCrop((256, 384), pad_if_needed=True, fill=list(FILL))),
        ),
    }


def timed(call: Callable[[int], object]) -> float:
    """CPU milliseconds an image."""
    before = time.thread_time()
    for number in range(COUNT):
        call(number)
    return 1e3 * (time.thread_time() - before) / COUNT


def compared(calls: Sequence[Callable[[int], object]], rounds: int) -> list[list[float]]:
    """Milliseconds of each round after a first one that warms up, of each call."""
    rows = [[timed(call) for call in calls] for _ in range(rounds + 1)]
    return [list(column) for column in zip(*rows[1:], strict=True)]


def ratio(values: list[float], base: list[float]) -> float:
    return statistics.median(v / b for v, b in zip(values, base, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    rounds = 3 if parser.parse_args().quick else 15
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    torch.manual_seed(0)
    print(f"{platform.machine()}, {os.cpu_count()} cores, {COUNT} images, {rounds} rounds")
    with tempfile.TemporaryDirectory() as name:
        reader = Reader(
            store=make_store(Path(name)),
            sampler=sequential(length=COUNT),
            resize=Resize(height=320, width=320),
        )
        samples: list[Sample] = [reader.read(number)[:2] for number in range(COUNT)]
        print(f"\n{'':36} {'ours':>8} {'theirs':>8}  ms an image")
        for title, (ours, theirs) in pairs().items():
            mine, other = compared([lambda n, t=t: t(*samples[n]) for t in (ours, theirs)], rounds)
            print(
                f"{title:36} {statistics.median(mine):8.3f} {statistics.median(other):8.3f}  "
                f"× {ratio(mine, other):.2f}"
            )
        print(f"\n{'':36} {'alone':>8}  ms an image, without reading the other images")
        mixes = (mix.Mosaic(), mix.MixUp(), mix.CopyPaste(p=1))
        calls = [lambda n, t=t: t(*samples[n], others(samples, n)) for t in mixes]
        base, *rest = compared([reader.read, *calls], rounds)
        print(f"{'reading an image':36} {statistics.median(base):8.3f}")
        for transform, values in zip(mixes, rest, strict=True):
            title = type(transform).__name__
            print(f"{title:36} {statistics.median(values):8.3f}  × {ratio(values, base):.2f}")


def others(samples: Sequence[Sample], number: int) -> Callable[[], Sample]:
    """The images after this one, which are there already."""
    following = iter([*samples[number + 1 :], *samples])
    return lambda: next(following)


if __name__ == "__main__":
    main()
