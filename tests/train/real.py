"""A small real run: the tiny Faster R-CNN on a few made pictures.

``python -m train.real FOLDER`` trains until a signal comes.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import torch

from detpipe.core.config import Spec
from detpipe.data import sample, sampler
from detpipe.data.augment import HorizontalFlip
from detpipe.data.mix import MixUp, Mosaic
from detpipe.data.store import Store
from detpipe.data.stream import TrainStream
from detpipe.models import tiny
from detpipe.train.launch import seeded
from detpipe.train.result import TrainResult

from .toys import config, train


def real_run(
    folder: Path, *, workers: int, duration: str = "8 steps", **changes: Any
) -> TrainResult:
    root = folder.parent / "sample"
    found = sample.read(root, images=20, size=96)
    store = Store.from_tables(found.images, found.boxes, found.classes, root, split="train")
    order = sampler.aspect_ratio_grouped(
        length=len(store), seed=3, store=store, batch_size=2,
        sampler=Spec(use="detpipe.data.sampler.repeat_factor", threshold=0.9),
    )  # fmt: skip
    augment = [HorizontalFlip(), Mosaic(p=0.5), MixUp(p=0.5)]
    names = list(found.classes["class_name"])
    with seeded(0):
        model = tiny.build(len(names), width=16)
    hooks = {"evaluate": {"every": "3 steps"}, "checkpoint": {"every": "2 steps"}}
    return train(
        folder,
        config(batch_size=2, duration=duration, hooks=hooks, **changes),
        model=model,
        stream=TrainStream(store, batch_size=2, sampler=order, augment=augment, workers=workers),
        classes=names,
    )


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    real_run(Path(sys.argv[1]), workers=2, duration="10000 steps")
    sys.exit("it ended before the signal came")
