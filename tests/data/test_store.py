from __future__ import annotations

import gc
import multiprocessing
import pickle
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from detpipe.core.errors import DataError
from detpipe.core.tables import BOXES, CLASSES, IMAGES
from detpipe.data.store import Store, Texts


def tables() -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    images = IMAGES.make(
        [
            {
                "image_id": "0007",
                "path": "a/é – 猫.jpg",
                "width": 60,
                "height": 40,
                "split": "train",
            },
            {"image_id": "x", "path": "b.jpg", "width": 10, "height": 20, "split": "val"},
            {"image_id": "empty", "path": "c d.JPG", "width": 8, "height": 9, "split": "train"},
            {"image_id": "7", "path": "e.png", "width": 0, "height": 0, "split": "train"},
        ]
    )
    rows = [
        ("7", "dog", 1.5, 2, 3, 4.25, 5, True, False),
        ("0007", "cat", 0, 0, 60, 40, 1200, False, True),
        ("x", "cat", 1, 1, 2, 2, 1, False, False),
        ("7", "cat", 5, 6, 7, 8, 4, False, False),
    ]
    names = ["image_id", "class_name", "x1", "y1", "x2", "y2", "area", "iscrowd", "difficult"]
    boxes = pd.DataFrame(rows, columns=names).assign(annotation_id=["1", "2", "3", "4"])
    return images, BOXES.make(boxes), CLASSES.make([{"class_name": n} for n in ("dog", "cat")])


def test_round_trip_of_a_split() -> None:
    images, boxes, classes = tables()
    store = Store.from_tables(images, boxes, classes, Path("/pictures"), split="train")
    assert len(store) == 3
    assert [store.target(i).image_id for i in range(3)] == ["0007", "empty", "7"]
    assert store.path(0) == Path("/pictures/a/é – 猫.jpg")
    assert store.path(1) == Path("/pictures/c d.JPG")
    assert store.class_names == ("dog", "cat")

    first, empty, last = (store.target(i) for i in range(3))
    assert first.boxes.tolist() == [[0, 0, 60, 40]]
    assert (first.labels.tolist(), first.difficult.tolist()) == ([2], [True])
    assert first.original_size == (40, 60)
    assert empty.boxes.shape == (0, 4)
    assert empty.labels.shape == (0,)
    assert last.boxes.tolist() == [[1.5, 2, 3, 4.25], [5, 6, 7, 8]]
    assert (last.labels.tolist(), last.iscrowd.tolist()) == ([1, 2], [True, False])
    assert last.area.tolist() == [5, 4]


def test_whole_table_and_pickle() -> None:
    images, boxes, classes = tables()
    store = pickle.loads(pickle.dumps(Store.from_tables(images, boxes, classes, Path("r"))))
    assert [store.target(i).image_id for i in range(len(store))] == images["image_id"].tolist()
    assert sum(len(store.target(i).boxes) for i in range(len(store))) == len(boxes)


def test_a_target_is_a_copy() -> None:
    store = Store.from_tables(*tables(), Path("r"))
    store.target(0).boxes.zero_()
    assert store.target(0).boxes.tolist() == [[0, 0, 60, 40]]


def test_no_boxes_and_no_images() -> None:
    images, boxes, classes = tables()
    store = Store.from_tables(images, BOXES.empty(), classes, Path("r"))
    assert len(store) == 4
    assert store.target(3).boxes.shape == (0, 4)
    assert len(Store.from_tables(images, boxes, classes, Path("r"), split="nowhere")) == 0


def test_unknown_classes_are_all_named() -> None:
    images, boxes, _ = tables()
    with pytest.raises(DataError, match=r"(?s)'cat': 3 box.*'dog': 1 box"):
        Store.from_tables(
            images, boxes, CLASSES.make([{"class_name": "bird"}]), Path("r"), split=None
        )


def test_file_names_that_are_no_unicode_survive() -> None:
    names = ["plain", "", "caf\udce9.jpg"]  # as Python gives a Latin-1 name on disk
    packed = Texts.of(names)
    assert [packed[i] for i in range(len(packed))] == names


def _private_bytes() -> int:
    text = Path("/proc/self/smaps_rollup").read_text()
    return int(re.search(r"Private_Dirty:\s+(\d+)", text)[1]) * 1024


def _read_everything(store: Store, answer: multiprocessing.Queue) -> None:
    gc.disable()  # a collection touches, and so copies, what the test process itself left behind
    for index in range(0, 100):  # warms up allocators
        store.target(index)
    before, total = _private_bytes(), 0
    for index in range(len(store)):
        total += len(store.target(index).boxes) + len(str(store.path(index)))
    answer.put((_private_bytes() - before, total))


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux")
def test_forked_workers_share_the_store() -> None:
    images, boxes = 10_000, 2_000_000
    rng = np.random.default_rng(0)
    store = Store(
        root=Path("r"),
        class_names=("a",),
        paths=Texts.of([f"{i:08d}.jpg" for i in range(images)]),
        image_ids=Texts.of([str(i) for i in range(images)]),
        sizes=np.full((images, 2), 100, np.int32),
        offsets=np.linspace(0, boxes, images + 1).astype(np.int64),
        boxes=rng.random((boxes, 4), np.float32),
        labels=np.ones(boxes, np.int32),
        area=rng.random(boxes, np.float32),
        iscrowd=np.zeros(boxes, np.bool_),
        difficult=np.zeros(boxes, np.bool_),
    )
    context = multiprocessing.get_context("fork")
    answer = context.Queue()
    worker = context.Process(target=_read_everything, args=(store, answer))
    worker.start()
    grown, total = answer.get(timeout=60)
    worker.join()
    assert total == boxes + images * len("r/00000000.jpg")
    assert store.nbytes > 50_000_000
    assert grown < store.nbytes / 10
