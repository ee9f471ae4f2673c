"""What each node of the ``data`` pipeline costs on a large data set, and whether it grows in line.

The set is that of ``annotations.py``, a made-up one of COCO 2017's size or multiples of it, as a
COCO JSON with pictures: one small JPEG under many names. They are not decoded (``decode.py`` says
what that costs); their headers are read. Val is drawn anew by ratio, so the whole set is split.

All nodes of one scale run one after the other in a process of their own: CPU seconds, and the most
memory held meanwhile. ``load`` rows are what a later pipeline pays before its first node: the table
read from its Parquet file and validated as the catalog does it, the store mapped.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from annotations import MB, make_tables, write_coco
from children import in_child
from PIL import Image

from detpipe.core.tables import BOXES, CLASSES, IMAGES, Table

LINKS = 20_000
"""Names of one file: file systems have a limit (ext4: 65,000)."""


def make(scale: float, folder: Path) -> dict[str, float]:
    """``raw/coco.json`` and its pictures, each of the size listed."""
    images, boxes, classes = make_tables(scale)
    images = images.assign(width=640, height=480)
    pictures = folder / "raw" / "pictures"
    pictures.mkdir(parents=True)
    for number, name in enumerate(images["path"]):
        if number % LINKS == 0:
            first = pictures / name
            Image.new("RGB", (640, 480), "grey").save(first)
        else:
            os.link(first, pictures / name)
    write_coco((images, boxes, classes), folder / "raw" / "coco.json")
    return {"images": len(images), "boxes": len(boxes)}


# The nodes, each a function of what was made before it


def read(s: SimpleNamespace) -> None:
    s.images, s.boxes, s.classes, s.issues, s.signature = s.nodes.read(s.raw, s.data)


def check(s: SimpleNamespace) -> None:
    s.images, s.boxes, s.issues = s.nodes.check(
        s.raw, s.images, s.boxes, s.classes, s.issues, s.folder / "cache",
        s.data, s.stream, s.evaluate,
    )  # fmt: skip


def draw_page(s: SimpleNamespace) -> None:
    s.page = s.nodes.draw_page(s.raw, s.images, s.boxes, s.classes, s.issues)


def split(s: SimpleNamespace) -> None:
    s.images = s.nodes.split(s.images, s.boxes, True, s.data)


def list_classes(s: SimpleNamespace) -> None:
    s.classes = s.nodes.list_classes(s.classes, s.boxes, True, s.data)


def pack(s: SimpleNamespace) -> None:
    s.store, _ = s.nodes.pack(s.images, s.boxes, s.classes, s.signature)


def describe(s: SimpleNamespace) -> None:
    s.nodes.describe(s.images, s.boxes, s.classes)


def self_test(s: SimpleNamespace) -> None:
    found = s.nodes.self_test(s.images, s.boxes, s.classes, s.evaluate)
    assert (found["AP"] > 99.9).all()


def save_tables(s: SimpleNamespace) -> None:
    for name, table in (("images", IMAGES), ("boxes", BOXES), ("classes", CLASSES)):
        table.validate(getattr(s, name)).to_parquet(s.folder / f"{name}.parquet")


def save_store(s: SimpleNamespace) -> None:
    s.store.save(s.folder / "store")


def load(name: str, table: Table) -> Callable[[SimpleNamespace], None]:
    def load_one(s: SimpleNamespace) -> None:
        import pandas as pd

        setattr(s, name, table.validate(pd.read_parquet(s.folder / f"{name}.parquet")))

    return load_one


def load_store(s: SimpleNamespace) -> None:
    from detpipe.data.store import Store

    s.store = Store.open(s.folder / "store", Path(), verify=True)  # as the catalog does it


def require_same(s: SimpleNamespace) -> None:
    from detpipe.data.signature import require_same as look

    look(s.raw, s.signature)


STEPS: dict[str, Callable[[SimpleNamespace], None]] = {
    "read": read,
    "check": check,
    "draw_page": draw_page,
    "split": split,
    "list_classes": list_classes,
    "pack": pack,
    "describe": describe,
    "self_test": self_test,
    "save tables": save_tables,
    "save store": save_store,
    "load images": load("images", IMAGES),
    "load boxes": load("boxes", BOXES),
    "load store": load_store,
    "signature": require_same,
}


def peak(*, anew: bool = False) -> float:
    """The most memory held since it was last asked for ``anew``, in megabytes; NaN if not known."""
    try:
        if anew:
            Path("/proc/self/clear_refs").write_text("5")
        status = Path("/proc/self/status").read_text()
    except OSError:
        return float("nan")
    return 1024 * int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / MB  # type: ignore[index]


def run(scale: float, folder: Path) -> dict[str, Any]:
    """Every step's CPU seconds, wall seconds and megabytes."""
    logging.disable(logging.WARNING)
    import detpipe.pipelines.data as nodes
    from detpipe.data.config import DataConfig, StreamConfig
    from detpipe.evaluate.config import EvaluateConfig

    state = SimpleNamespace(
        nodes=nodes, folder=folder, raw=folder / "raw", stream=StreamConfig(),
        evaluate=EvaluateConfig(),
        data=DataConfig.model_validate(
            {"reader": {"use": "detpipe.data.formats.coco.read", "annotations": "coco.json",
                        "images": "pictures"},
             "check": {"decode": False}, "split": {"by": "ratio"}}
        ),
    )  # fmt: skip
    steps = {}
    for name, step in STEPS.items():
        peak(anew=True)
        cpu, wall = time.process_time(), time.perf_counter()
        step(state)
        steps[name] = (time.process_time() - cpu, time.perf_counter() - wall, peak())
    return {"images": len(state.images), "boxes": len(state.boxes), "steps": steps}


CHILDREN: dict[str, Callable[[float, Path], dict[str, Any]]] = {"make": make, "run": run}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, nargs="+", default=[0.1, 1],
                        help="times COCO 2017's size, ascending; 10 needs 20 GB")  # fmt: skip
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        what, scale, folder = options.child
        print(json.dumps(CHILDREN[what](float(scale), Path(folder))))
        return
    print(f"{platform.machine()}, {os.cpu_count()} cores")
    before: dict[str, Any] = {}
    for scale in options.scale:
        with tempfile.TemporaryDirectory() as name:
            in_child(__file__, "make", scale, Path(name))
            found = in_child(__file__, "run", scale, Path(name))
        print(f"\n{scale:g} × COCO 2017: {found['images']:,} images, {found['boxes']:,} boxes")
        grown = f"{'CPU':>9} {'wall':>9} {'peak':>11}"
        if before:
            times = found["boxes"] / before["boxes"]
            grown += f"   CPU / before, of {times:.1f} times as many boxes"
        print(f"{'':14}{grown}")
        for step, (cpu, wall, mb) in found["steps"].items():
            ratio = f"   × {cpu / before['steps'][step][0]:.1f}" if before else ""
            print(f"{step:14}{cpu:7.2f} s {wall:7.2f} s {mb:8.0f} MB{ratio}")
        total = [sum(step[n] for step in found["steps"].values()) for n in (0, 1)]
        print(f"{'all':14}{total[0]:7.2f} s {total[1]:7.2f} s")
        before = found


if __name__ == "__main__":
    main()
