"""COCO's numbers of a made-up set of COCO 2017's validation size: ours beside pycocotools.

5,000 images, 80 classes, 7.3 objects and 100 detections an image; times ``--scale``. Every row is
a process of its own that imports the library and makes its inputs first: ours the four tables,
pycocotools the same numbers as it takes them with least work (the truth as COCO's dictionary, the
detections as an array ``[N, 7]``). Then it scores: from these inputs to the twelve numbers and the
AP of each class. Measured are

* CPU seconds of scoring, all threads;
* memory: what the process held before scoring (``before``), the highest it held (``peak``), and
  the increment of the one over the other.

All numbers must be equal to the last bit, or the benchmark ends.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from children import in_child

IMAGES, OBJECTS, DETECTIONS, CLASSES = 5_000, 36_781, 500_000, 80
MB = 1e6


# The made-up set


class Made(NamedTuple):
    """Objects or detections: image and class from 0 ``[N]``; x, y, w, h ``[N, 4]``."""

    image: np.ndarray
    label: np.ndarray
    xywh: np.ndarray


def make(scale: float) -> tuple[int, Made, np.ndarray, Made, np.ndarray]:
    """Images; truth and its crowds ``[N]``; detections, one near most objects, and scores."""
    rng = np.random.default_rng(0)
    images, objects = round(IMAGES * scale), round(OBJECTS * scale)
    each = DETECTIONS // IMAGES

    def boxes(count: int) -> np.ndarray:
        # Dyadic fractions: x + w - x is w, so both sides score the very same boxes.
        corners, sides = rng.integers(0, 1600, (count, 2)), rng.integers(16, 1200, (count, 2))
        return np.concatenate([corners, sides], axis=1) / 4

    truth = Made(
        rng.integers(0, images, objects), rng.integers(0, CLASSES, objects), boxes(objects)
    )
    image = np.repeat(np.arange(images), each)
    found = Made(image, rng.integers(0, CLASSES, len(image)), boxes(len(image)))
    near = np.flatnonzero(rng.random(objects) < 0.8)
    places = truth.image[near] * each + rng.integers(0, each, len(near))
    found.label[places] = truth.label[near]
    found.xywh[places] = truth.xywh[near] + rng.integers(0, 20, (len(near), 4)) / 4
    scores = rng.random(len(image)).round(3)  # with ties
    return images, truth, rng.random(objects) < 0.01, found, scores


# What is measured


def memory() -> dict[str, float]:
    """Megabytes of this process: now, and the highest since :func:`forget_highest`."""
    text = Path("/proc/self/status").read_text()
    found = {key: 1024 * int(value) / MB for key, value in re.findall(r"(\w+):\s+(\d+) kB", text)}
    return {"now": found["VmRSS"], "highest": found["VmHWM"]}


def forget_highest() -> None:
    """What making the inputs took for a moment is no memory of scoring (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")


def measured(score: Callable[[], dict[str, float]]) -> dict[str, Any]:
    """The numbers of ``score``, its CPU seconds, the memory before it and the highest in it."""
    forget_highest()
    before, started = memory()["now"], time.process_time()
    numbers = score()
    return {"s": time.process_time() - started, "before": before, "peak": memory()["highest"],
            "numbers": numbers}  # fmt: skip


def ours(scale: float, _: Path) -> dict[str, Any]:
    """Tables → scores."""
    import hotcoco  # noqa: F401
    import pandas as pd

    from detpipe.core.config import Spec
    from detpipe.core.tables import BOXES
    from detpipe.core.tables import CLASSES as CLASSES_TABLE
    from detpipe.core.tables import DETECTIONS as DETECTIONS_TABLE
    from detpipe.core.tables import IMAGES as IMAGES_TABLE
    from detpipe.evaluate import scoring

    images, truth, crowds, found, scores = make(scale)
    ids = pd.Series(np.arange(images)).astype("str")
    names = pd.Series([f"class {number}" for number in range(CLASSES)]).astype("str")

    def table(made: Made) -> dict[str, Any]:
        x, y, w, h = made.xywh.T
        return {"image_id": ids.take(made.image).array, "class_name": names.take(made.label).array,
                "x1": x, "y1": y, "x2": x + w, "y2": y + h}  # fmt: skip

    tables = {
        "images": IMAGES_TABLE.make(
            pd.DataFrame({"image_id": ids, "path": ids, "width": 700, "height": 700, "split": ""})
        ),
        "boxes": BOXES.make(
            pd.DataFrame(table(truth))
            .assign(annotation_id="", area=truth.xywh[:, 2] * truth.xywh[:, 3])
            .assign(iscrowd=crowds, difficult=False)
        ),
        "detections": DETECTIONS_TABLE.make(pd.DataFrame(table(found)).assign(score=scores)),
        "classes": CLASSES_TABLE.make(names.to_frame("class_name")),
    }
    del truth, crowds, found, scores

    def score() -> dict[str, float]:
        spec = Spec(use="detpipe.evaluate.coco.score")
        rows = scoring.score(**tables, dataset="val", metrics={"coco": spec}, max_detections=100)
        wanted = rows[(rows["class_name"] == "") | (rows["metric"] == "AP")]
        return dict(zip(wanted["metric"] + wanted["class_name"], wanted["value"], strict=True))

    return measured(score)


def theirs(scale: float, _: Path) -> dict[str, Any]:
    """COCO's dictionary and an array of detections → scores."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    images, truth, crowds, found, scores = make(scale)
    dataset = {
        "images": [{"id": n} for n in range(images)],
        "categories": [{"id": n, "name": f"class {n}"} for n in range(CLASSES)],
        "annotations": [
            {"id": n, "image_id": image, "category_id": label, "bbox": box, "iscrowd": int(crowd),
             "area": box[2] * box[3]}
            for n, (image, label, box, crowd) in enumerate(
                zip(truth.image.tolist(), truth.label.tolist(), truth.xywh.tolist(), crowds,
                    strict=True), start=1
            )
        ],
    }  # fmt: skip
    results = np.column_stack([found.image, found.xywh, scores, found.label])
    del truth, crowds, found, scores

    def score() -> dict[str, float]:
        with contextlib.redirect_stdout(None):
            gt = COCO()
            gt.dataset = dataset
            gt.createIndex()
            engine = COCOeval(gt, gt.loadRes(results), "bbox")
            engine.evaluate()
            engine.accumulate()
            engine.summarize()
        numbers = dict(zip(NAMES, engine.stats, strict=True))
        for k in range(CLASSES):
            values = engine.eval["precision"][:, :, k, 0, -1]
            there = values[values > -1]
            numbers[f"APclass {k}"] = np.mean(there) if there.size else np.nan
        return {name: 100 * float(value) for name, value in numbers.items()}

    return measured(score)


NAMES = ["AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl"]
CHILDREN: dict[str, Callable[[float, Path], dict[str, Any]]] = {
    "detpipe": ours, "pycocotools": theirs,
}  # fmt: skip


def show(name: str, rows: list[dict[str, Any]]) -> dict[str, float]:
    """Prints the medians of one scorer, and gives them."""
    middle = {key: statistics.median(row[key] for row in rows) for key in ("s", "before", "peak")}
    seconds = sorted(row["s"] for row in rows)
    increment = middle["peak"] - middle["before"]
    print(
        f"{name:12} {middle['s']:8.2f} s ({seconds[0]:.2f} to {seconds[-1]:.2f}) CPU   before "
        f"{middle['before']:6.0f} MB, peak {middle['peak']:6.0f} MB, increment {increment:6.0f} MB"
    )
    return {**middle, "increment": increment}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1, help="times COCO 2017's val")
    parser.add_argument("--light", action="store_true", help="only ours")
    parser.add_argument("--rounds", type=int, default=1, help="of which the median is shown")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        what, scale, folder = options.child
        print(json.dumps(CHILDREN[what](float(scale), Path(folder))))
        return
    print(
        f"{platform.machine()}, {os.cpu_count()} cores; {round(IMAGES * options.scale):,} images, "
        f"{round(OBJECTS * options.scale):,} objects, {round(DETECTIONS * options.scale):,} "
        f"detections, {CLASSES} classes"
    )
    if not Path("/proc/self/clear_refs").exists():
        sys.exit("memory is measured on Linux only (/proc/self/clear_refs)")
    names = ["detpipe"]
    if not options.light and importlib.util.find_spec("pycocotools"):
        names.append("pycocotools")
    child = partial(in_child, __file__, scale=options.scale, folder=Path())
    rounds = [{name: child(name) for name in names} for _ in range(options.rounds)]
    shown = {name: show(name, [turn[name] for turn in rounds]) for name in names}
    if len(names) == 1:
        return
    mine, other = (rounds[0][name]["numbers"] for name in names)
    np.testing.assert_array_equal([*mine.values()], [other[name] for name in mine])
    ratio = {key: shown["detpipe"][key] / shown["pycocotools"][key] for key in shown["detpipe"]}
    print(
        f"{len(mine)} numbers equal to the last bit. ours / pycocotools: CPU × {ratio['s']:.4f} "
        f"(1 / {1 / ratio['s']:.0f}), increment of memory × {ratio['increment']:.3f}, peak of the "
        f"whole process × {ratio['peak']:.3f}"
    )


if __name__ == "__main__":
    main()
