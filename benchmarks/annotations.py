"""What a large data set's annotations cost: a made-up one of COCO 2017's size, or a multiple of it.

``store``: bytes, memory and time of the store that training reads, beside a list of dicts and
pycocotools. Memory is the proportional set size (PSS) that a main process and two forked workers
gain together by opening it and touching every record: a page that three processes share counts
once.

``read``: CPU time and highest memory of reading the set's COCO JSON into tables, its pictures
(empty files) found, beside pycocotools.

Every row is measured in processes of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import multiprocessing
import os
import platform
import re
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from children import in_child

from detpipe.core.tables import BOXES, CLASSES, IMAGES
from detpipe.data.store import Store

IMAGES_OF_COCO, BOXES_OF_COCO, CLASS_COUNT = 118_287, 860_001, 80
WORKERS = 2
MB = 1e6


# The made-up set


def make_tables(scale: float) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """images, boxes, classes: ids and names as COCO's, boxes spread over the images at random."""
    rng = np.random.default_rng(0)
    count, objects = round(IMAGES_OF_COCO * scale), round(BOXES_OF_COCO * scale)
    numbers = np.sort(rng.choice(5 * count, count, replace=False))
    ids = pd.Series(numbers).astype("str")
    split = np.where(rng.random(count) < 0.04, "val", "train")
    width, height = rng.integers(300, 641, (2, count))
    images = pd.DataFrame(
        {"image_id": ids, "path": ids.str.zfill(12) + ".jpg", "width": width, "height": height,
         "split": pd.Series(split).astype("str")}
    )  # fmt: skip
    rows = rng.integers(0, count, objects)  # in no order, as in COCO's files
    x1, y1 = rng.uniform(0, 200, (2, objects)).round(2)
    w, h = rng.uniform(2, 100, (2, objects)).round(2)
    names = pd.Series([f"class {number}" for number in range(CLASS_COUNT)]).astype("str")
    boxes = pd.DataFrame(
        {"image_id": ids.iloc[rows].reset_index(drop=True),
         "annotation_id": pd.Series(np.arange(objects)).astype("str"),
         "class_name": names.iloc[rng.integers(0, CLASS_COUNT, objects)].reset_index(drop=True),
         "x1": x1, "y1": y1, "x2": x1 + w, "y2": y1 + h, "area": w * h * 0.6,
         "iscrowd": rng.random(objects) < 0.01, "difficult": np.zeros(objects, bool)}
    )  # fmt: skip
    assert list(images) == list(IMAGES.columns) and list(boxes) == list(BOXES.columns)
    return images, boxes, CLASSES.make(names.to_frame("class_name"))


def write_coco(tables: tuple[pd.DataFrame, ...], file: Path) -> None:
    """The same set as a COCO JSON file, as COCO's own are written."""
    images, boxes, classes = tables
    labels = {name: label for label, name in enumerate(classes["class_name"], start=1)}
    with file.open("w") as out:
        out.write('{"info": {}, "licenses": [], "categories": ')
        json.dump([{"id": n, "name": name, "supercategory": ""} for name, n in labels.items()], out)
        out.write(', "images": [')
        for number, row in enumerate(images.itertuples(index=False)):
            out.write(", " * (number > 0))
            json.dump({"license": 1, "file_name": row.path, "height": row.height,
                       "width": row.width, "id": int(row.image_id)}, out)  # fmt: skip
        out.write('], "annotations": [')
        for number, row in enumerate(boxes.itertuples(index=False)):
            out.write(", " * (number > 0))
            box = [row.x1, row.y1, round(row.x2 - row.x1, 2), round(row.y2 - row.y1, 2)]
            json.dump({"area": round(row.area, 3), "iscrowd": int(row.iscrowd),
                       "image_id": int(row.image_id), "bbox": box,
                       "category_id": labels[row.class_name], "id": number + 1}, out)  # fmt: skip
        out.write("]}")


# Memory


def pss(process: int) -> dict[str, int]:
    """Bytes of a process: all, and those that are not files (libraries come and go in the share
    of other programs that use them)."""
    text = Path(f"/proc/{process}/smaps_rollup").read_text()
    found = {key: 1024 * int(value) for key, value in re.findall(r"(\w+):\s+(\d+) kB", text)}
    return {"all": found["Pss"], "anonymous": found["Pss_Anon"] + found["Pss_Shmem"]}


def mapped(process: int, file: Path) -> int:
    """PSS of the pages of ``file``."""
    total, ours = 0, False
    for line in Path(f"/proc/{process}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            ours = line.endswith(str(file))
        elif ours and line.startswith("Pss:"):
            total += 1024 * int(line.split()[1])
    return total


def measured(processes: list[int], file: Path) -> np.ndarray:
    """Bytes ``[2]``: the whole PSS; and that without other files than ``file``."""
    rows = [(pss(p)["all"], pss(p)["anonymous"] + mapped(p, file)) for p in processes]
    return np.sum(rows, axis=0)


class Kind:
    """How annotations are held: made from the file, and one record looked at."""

    inherited = True  # made before the workers are forked; else each opens it

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self) -> Any:
        raise NotImplementedError

    def touch(self, held: Any) -> int:
        """Reads every record, its boxes and labels; gives the number of boxes."""
        raise NotImplementedError


class Opened(Kind):
    inherited = False
    file = "store"

    def open(self) -> Any:
        return Store.open(self.folder / self.file, Path("raw"))

    def touch(self, held: Any) -> int:
        total = 0
        for index in range(len(held)):
            total += len(held.target(index).labels)
            held.paths[index]  # not path(): pathlib keeps a table of names, whose size is its own
        return total


class Inherited(Opened):
    inherited = True


class Dicts(Kind):
    def open(self) -> Any:
        found = json.loads((self.folder / "coco.json").read_bytes())
        records = {
            image["id"]: {"file_name": image["file_name"], "image_id": image["id"],
                          "height": image["height"], "width": image["width"], "annotations": []}
            for image in found["images"]
        }  # fmt: skip
        for a in found["annotations"]:
            records[a["image_id"]]["annotations"].append(
                {"bbox": a["bbox"], "category_id": a["category_id"], "iscrowd": a["iscrowd"],
                 "area": a["area"]}
            )  # fmt: skip
        return list(records.values())

    def touch(self, held: Any) -> int:
        total = 0
        for record in held:
            np.array([a["bbox"] for a in record["annotations"]], np.float32)
            total += len(np.array([a["category_id"] for a in record["annotations"]]))
        return total


class Coco(Kind):
    def open(self) -> Any:
        from pycocotools.coco import COCO

        with contextlib.redirect_stdout(None):
            return COCO(str(self.folder / "coco.json"))

    def touch(self, held: Any) -> int:
        total = 0
        for number in held.getImgIds():
            annotations = held.loadAnns(held.getAnnIds(imgIds=number))
            np.array([a["bbox"] for a in annotations], np.float32)
            total += len(np.array([a["category_id"] for a in annotations]))
            assert held.loadImgs(number)[0]["file_name"]
        return total


KINDS: dict[str, tuple[str, type[Kind]]] = {
    "opened": ("store, opened by each process", Opened),
    "inherited": ("store, opened and then forked", Inherited),
    "dicts": ("list of dicts", Dicts),
    "coco": ("pycocotools COCO", Coco),
}


def warm_up(folder: Path) -> None:
    """Reads another store: what a process allocates at its first calls, and what of the
    interpreter a forked one gets of its own by running at all, is no cost of the annotations."""
    Opened(folder).touch(Store.open(folder / "small", Path("raw")))


def work(kind: Kind, held: Any, calls: Connection) -> None:
    """A worker: warms up, then reads everything."""
    warm_up(kind.folder)
    calls.send(None)
    while calls.recv() == "touch":
        calls.send(kind.touch(kind.open() if held is None else held))
    calls.recv()


@contextlib.contextmanager
def workers(kind: Kind, held: Any) -> Iterator[tuple[list[int], Callable[[], list[int]]]]:
    """Two forked processes; their ids, and what makes them read everything and wait."""
    context = multiprocessing.get_context("fork")
    ends, processes = [], []
    for _ in range(WORKERS):
        here, there = context.Pipe()
        processes.append(context.Process(target=work, args=(kind, held, there)))
        processes[-1].start()
        here.recv()
        ends.append(here)

    def touch() -> list[int]:
        for end in ends:
            end.send("touch")
        return [end.recv() for end in ends]

    yield [process.pid for process in processes], touch
    for end, process in zip(ends, processes, strict=True):
        end.send("end")
        end.send(None)
        process.join()


def gain(name: str, _: float, folder: Path) -> dict[str, float]:
    """Opens and reads in this process and two workers; megabytes gained, seconds of each part."""
    kind = KINDS[name][1](folder)
    warm_up(folder)
    if isinstance(kind, Coco):
        import pycocotools.coco  # noqa: F401
    me = os.getpid()

    def opened() -> tuple[Any, float]:
        started = time.process_time()
        return kind.open(), time.process_time() - started

    def touched(held: Any) -> float:
        started = time.process_time()
        kind.touch(held)
        return time.process_time() - started

    with workers(kind, None) as (ids, touch):
        warm_up(folder)
        for _ in range(2):  # the first is for what measuring itself allocates
            before = measured([me, *ids], folder / "store")
        if not kind.inherited:
            held, seconds = opened()
            reading, counts = touched(held), touch()
            after = measured([me, *ids], folder / "store")
    if kind.inherited:
        held, seconds = opened()
        with workers(kind, held) as (ids, touch):
            warm_up(folder)
            reading, counts = touched(held), touch()
            after = measured([me, *ids], folder / "store")
    assert counts == [kind.touch(held)] * WORKERS
    if isinstance(kind, Opened):
        seconds = statistics.median(opened()[1] for _ in range(21))
    everything, without_libraries = (after - before) / MB
    return {"open_s": seconds, "read_s": reading, "all_mb": everything, "mb": without_libraries}


def make_json(scale: float, folder: Path) -> dict[str, float]:
    """Writes the set as ``coco.json``."""
    write_coco(make_tables(scale), folder / "coco.json")
    return {"json_mb": (folder / "coco.json").stat().st_size / MB}


def make_store(scale: float, folder: Path) -> dict[str, float]:
    """Writes the set as ``store``, and a small one to warm up; seconds and bytes of that."""
    tables = make_tables(scale)
    store = Store.from_tables(*tables, Path("raw"))  # imports, and the arrays for the file
    times = []
    for _ in range(1 if scale > 1 else 3):
        started = time.process_time()
        Store.from_tables(*tables, Path("raw"))
        times.append(time.process_time() - started)
    started = time.process_time()
    store.save(folder / "store")
    saving = time.process_time() - started
    Store.from_tables(*make_tables(0.1), Path("raw")).save(folder / "small")
    return {
        "images": len(store), "boxes": len(store.boxes),
        "mb": (folder / "store").stat().st_size / MB, "save_s": saving,
        "from_tables_s": statistics.median(times),
    }  # fmt: skip


def part_store(scale: float, folder: Path, *, light: bool) -> None:
    """Prints what the store costs and, unless ``light``, what the others do."""
    made = in_child(__file__, "make_store", scale, folder)
    print(
        f"store: {made['images']:,.0f} images, {made['boxes']:,.0f} boxes; file {made['mb']:.1f} "
        f"MB; from_tables {made['from_tables_s']:.2f} s, save {made['save_s']:.2f} s CPU"
    )
    if not Path("/proc/self/smaps_rollup").exists():
        print("memory is measured on Linux only (/proc/*/smaps_rollup)")
        return
    names = ["opened", "inherited"]
    if not light:
        in_child(__file__, "make_json", scale, folder)
        names += ["dicts", *(["coco"] if importlib.util.find_spec("pycocotools") else [])]
    print(
        f"{'':30} {'opening':>12} {'a record':>10} {'gained':>11} {'/ file':>7}   with libraries'"
    )
    for name in names:
        row = in_child(__file__, name, scale, folder)
        print(
            f"{KINDS[name][0]:30} {1e3 * row['open_s']:9.2f} ms "
            f"{1e6 * row['read_s'] / made['images']:7.1f} µs {row['mb']:8.1f} MB "
            f"× {row['mb'] / made['mb']:5.2f}   {row['all_mb']:8.1f} MB"
        )


# Reading the JSON


def make_pictures(scale: float, folder: Path) -> dict[str, float]:
    """Writes ``coco.json``, and an empty file for each picture that it names."""
    tables = make_tables(scale)
    (folder / "pictures").mkdir()
    for path in tables[0]["path"]:
        (folder / "pictures" / path).touch()
    write_coco(tables, folder / "coco.json")
    return {"images": len(tables[0]), "boxes": len(tables[1]),
            "json_mb": (folder / "coco.json").stat().st_size / MB}  # fmt: skip


def spent() -> tuple[float, float]:
    """CPU seconds of this process so far, and the most memory it has held, in megabytes."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / MB  # kilobytes on Linux


def read_tables(_: float, folder: Path) -> dict[str, float]:
    """The reader: the file parsed, the pictures found, the tables made."""
    from detpipe.data.formats import coco

    before, _ = spent()
    found = coco.read(folder, annotations="coco.json", images="pictures")
    after, peak = spent()
    return {"boxes": len(found.boxes), "s": after - before, "mb": peak}


def read_coco(_: float, folder: Path) -> dict[str, float]:
    """pycocotools: the file parsed and indexed."""
    from pycocotools.coco import COCO

    before, _ = spent()
    with contextlib.redirect_stdout(None):
        found = COCO(str(folder / "coco.json"))
    after, peak = spent()
    return {"boxes": len(found.anns), "s": after - before, "mb": peak}


def part_read(scale: float, folder: Path, *, light: bool) -> None:
    """Prints what reading the JSON costs, beside pycocotools unless ``light``; in turns."""
    made = in_child(__file__, "make_pictures", scale, folder)
    print(
        f"read: {made['images']:,.0f} images, {made['boxes']:,.0f} boxes, "
        f"JSON {made['json_mb']:.0f} MB; CPU seconds of reading, highest memory of the process"
    )
    names = ["read_tables"]
    if not light and importlib.util.find_spec("pycocotools"):
        names.append("read_coco")
    rounds = [
        {name: in_child(__file__, name, scale, folder) for name in names}
        for _ in range(5 if scale <= 1 else 1)
    ]
    for name in names:
        rows = [turn[name] for turn in rounds]
        assert all(row["boxes"] == made["boxes"] for row in rows)
        seconds = sorted(row["s"] for row in rows)
        peak = statistics.median(row["mb"] for row in rows)
        print(
            f"{name:12} {statistics.median(seconds):6.2f} s "
            f"({seconds[0]:.2f} to {seconds[-1]:.2f}) {peak:8.0f} MB"
        )
    if len(names) > 1:
        ratios = [
            statistics.median(
                turn["read_tables"][unit] / turn["read_coco"][unit] for turn in rounds
            )
            for unit in ("s", "mb")
        ]
        print(f"ours / pycocotools: time × {ratios[0]:.3f}, memory × {ratios[1]:.3f}")


PARTS: dict[str, Callable[..., None]] = {"store": part_store, "read": part_read}
CHILDREN: dict[str, Callable[[float, Path], dict[str, float]]] = {
    "make_store": make_store,
    "make_json": make_json,
    "make_pictures": make_pictures,
    "read_tables": read_tables,
    "read_coco": read_coco,
    **{name: partial(gain, name) for name in KINDS},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1, help="times COCO 2017's size")
    parser.add_argument("--part", choices=PARTS, action="append", help="only these; default all")
    parser.add_argument("--light", action="store_true", help="only ours, without the JSON file")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        what, scale, folder = options.child
        print(json.dumps(CHILDREN[what](float(scale), Path(folder))))
        return
    print(f"{platform.machine()}, {os.cpu_count()} cores, {options.scale:g} × COCO 2017")
    with tempfile.TemporaryDirectory() as name:
        for part in options.part or PARTS:
            PARTS[part](options.scale, Path(name), light=options.light)


if __name__ == "__main__":
    main()
