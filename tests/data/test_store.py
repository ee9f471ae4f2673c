from __future__ import annotations

import gc
import hashlib
import multiprocessing
import os
import pickle
import re
from dataclasses import fields, replace
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from detpipe.core.errors import DataError
from detpipe.core.tables import BOXES, CLASSES, IMAGES
from detpipe.data import sample, sampler
from detpipe.data.store import Store
from detpipe.data.stream import TrainStream
from detpipe.data.texts import Texts, small


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
    assert [store.target(i).image_id for i in range(len(store))] == ["0007", "empty", "7", "x"]
    assert sum(len(store.target(i).boxes) for i in range(len(store))) == len(boxes)
    assert store.splits == (("train", 0, 3), ("val", 3, 4))


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


def test_texts_of_any_column_are_those_of_a_list() -> None:
    names = ["", "é – 猫", "b", "caf\udce9.jpg", "", "z"]
    arrow = pd.Series([name for name in names if "caf" not in name], dtype="str")
    columns = [
        pd.Series(names, dtype=object),
        arrow,
        arrow.iloc[2:5],
        arrow.iloc[:0],
        pd.concat([arrow, arrow]).iloc[2:8],
        arrow.astype(pd.StringDtype("python")),
    ]
    for column in columns:
        packed, plain = Texts.of(column), Texts.of(column.tolist())
        assert [packed[i] for i in range(len(packed))] == column.tolist()
        assert packed.data.tolist() == plain.data.tolist()
        assert packed.ends.tolist() == plain.ends.tolist()


def test_places_are_narrow_only_where_they_fit() -> None:
    for last, dtype in ((2**31 - 1, np.int32), (2**31, np.int64)):
        places = small(np.array([0, last]))
        assert places.dtype == dtype
        assert places.tolist() == [0, last]


def large_tables() -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """300 images of several splits in no order; boxes in no order, some of unknown images."""
    rng = np.random.default_rng(5)
    count, objects = 300, 2_000
    ids = rng.permutation(count).astype(str)
    width, height = rng.integers(10, 500, (2, count))
    images = pd.DataFrame(
        {
            "image_id": ids,
            "path": [f"{'d' * (i % 7)}/{i}.jpg" for i in range(count)],
            "width": width,
            "height": height,
            "split": rng.choice(["zoo", "val", "test", "", "a", "train"], count),
        }
    )
    corners = rng.uniform(0, 100, (objects, 4))
    boxes = pd.DataFrame(corners, columns=["x1", "y1", "x2", "y2"]).assign(
        image_id=rng.integers(-20, count, objects).astype(str),  # -1 and the like are not there
        annotation_id=np.arange(objects).astype(str),
        class_name=rng.choice([f"c{i}" for i in range(300)], objects),
        area=rng.uniform(0, 100, objects),
        iscrowd=rng.random(objects) < 0.3,
        difficult=rng.random(objects) < 0.3,
    )
    classes = [{"class_name": f"c{i}"} for i in range(300)]
    return IMAGES.make(images), BOXES.make(boxes), CLASSES.make(classes)


def test_every_record_is_that_of_the_tables() -> None:
    images, boxes, classes = large_tables()
    store = Store.from_tables(images, boxes, classes, Path("r"))
    names = ["train", "val", "test", "", "a", "zoo"]
    assert [name for name, _, _ in store.splits] == names
    bounds = {name: (start, stop) for name, start, stop in store.splits}
    expected = [row for name in names for row in images[images["split"] == name].itertuples()]
    assert len(expected) == len(store)
    for index, row in enumerate(expected):
        target = store.target(index)
        mine = boxes[boxes["image_id"] == row.image_id]
        start, stop = bounds[row.split]
        assert start <= index < stop
        assert target.image_id == row.image_id
        assert store.path(index) == Path("r", row.path)
        assert target.original_size == (row.height, row.width)
        corners = mine[["x1", "y1", "x2", "y2"]].to_numpy(np.float32)
        assert np.array_equal(target.boxes.numpy(), corners)
        assert [store.class_names[c - 1] for c in target.labels] == mine["class_name"].tolist()
        assert np.array_equal(target.area.numpy(), mine["area"].to_numpy(np.float32))
        assert target.iscrowd.tolist() == mine["iscrowd"].tolist()
        assert target.difficult.tolist() == mine["difficult"].tolist()


def odd_tables() -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Names that are no UTF-8, in columns of objects as pandas needs them for that."""
    images, boxes, classes = tables()
    odd = images["path"].astype(object)
    odd[3] = "caf\udce9, (1) & \n.jpg"
    named = boxes["class_name"].astype(object).replace("dog", 'd"o/g\udce9 – 犬')
    return (
        images.assign(path=odd),
        boxes.assign(class_name=named),
        classes.astype(object).replace("dog", 'd"o/g\udce9 – 犬'),
    )


def arrays(store: Store) -> dict[str, np.ndarray]:
    """All arrays by name."""
    found = {}
    for name in (field.name for field in fields(store)):
        value = getattr(store, name)
        if isinstance(value, Texts):
            found |= {f"{name}.data": value.data, f"{name}.ends": value.ends}
        elif isinstance(value, np.ndarray):
            found[name] = value
    assert len(found) == 11
    return found


def assert_same(one: Store, other: Store) -> None:
    assert (one.root, one.class_names) == (other.root, other.class_names)
    assert one.splits == other.splits
    mine, its = arrays(one), arrays(other)
    for name in mine:
        assert mine[name].dtype == its[name].dtype, name
        assert mine[name].shape == its[name].shape, name
        assert np.array_equal(mine[name], its[name]), name
    assert one.digest() == other.digest()
    assert one.nbytes == other.nbytes == sum(array.nbytes for array in mine.values())


def saved(store: Store, folder: Path) -> Path:
    store.save(folder / "store.bin")
    assert [file.name for file in folder.iterdir()] == ["store.bin"]
    return folder / "store.bin"


@pytest.mark.parametrize("make", [tables, large_tables, odd_tables])
def test_a_file_holds_all_of_it(tmp_path: Path, make) -> None:
    store = Store.from_tables(*make(), Path("r"))
    opened = Store.open(saved(store, tmp_path), Path("r"))
    assert_same(opened, store)
    for index in range(len(store)):
        assert opened.path(index) == store.path(index)
        assert opened.target(index).boxes.tolist() == store.target(index).boxes.tolist()
    for name, array in arrays(opened).items():
        assert not array.flags.writeable, name
        assert array.ctypes.data % 64 == 0, name


def test_files_without_images_or_boxes_or_classes(tmp_path: Path) -> None:
    images, boxes, classes = tables()
    for some in (
        (images.iloc[:0], boxes, classes),
        (images, boxes.iloc[:0], classes),
        (images, boxes.iloc[:0], classes.iloc[:0]),
        (images.iloc[:0], boxes.iloc[:0], classes.iloc[:0]),
    ):
        store = Store.from_tables(*some, Path("r"))
        assert_same(Store.open(saved(store, tmp_path), Path("r")), store)


@pytest.mark.parametrize("make", [tables, large_tables, odd_tables])
def test_a_split_of_the_file_is_that_of_the_tables(tmp_path: Path, make) -> None:
    whole = Store.from_tables(*make(), Path("r"))
    path = saved(whole, tmp_path)
    for name in (*(name for name, _, _ in whole.splits), "nowhere"):
        store = Store.from_tables(*make(), Path("r"), split=name)
        assert (len(store) > 0) == (name != "nowhere")
        assert_same(Store.open(path, Path("r"), split=name), store)
        assert_same(whole.split(name), store)
        assert_same(store.split(name), store)
        assert len(store.split("elsewhere")) == 0


def test_a_split_lies_on_the_pages_of_the_file(tmp_path: Path) -> None:
    whole = Store.open(saved(Store.from_tables(*large_tables(), Path("r")), tmp_path), Path("r"))
    copied = {"offsets", "paths.ends", "image_ids.ends"}
    for name, _, _ in whole.splits:
        ours = arrays(whole.split(name))
        shared = {key for key, array in arrays(whole).items() if np.shares_memory(array, ours[key])}
        assert shared == set(ours) - (set() if name == "train" else copied)


def test_the_digest_is_that_of_the_values(tmp_path: Path) -> None:
    images, boxes, classes = tables()  # written out: a run is resumed on what it was begun with
    content = hashlib.sha256(b"dog\ncat")
    for text in ("a/é – 猫.jpgc d.JPGe.png", "0007empty7"):
        content.update(text.encode())
    content.update(np.array([[40, 60], [9, 8], [0, 0]], "<i4").tobytes())
    content.update(np.array([0, 1, 1, 3], "<i8").tobytes())
    corners = [[0, 0, 60, 40], [1.5, 2, 3, 4.25], [5, 6, 7, 8]]
    content.update(np.array(corners, "<f4").tobytes())
    content.update(np.array([2, 1, 2], "<i4").tobytes())
    content.update(np.array([1200, 5, 4], "<f4").tobytes())
    content.update(bytes([0, 1, 0]) + bytes([1, 0, 0]))
    store = Store.from_tables(images, boxes, classes, Path("r"), split="train")
    assert store.digest() == content.hexdigest()[:16]


def test_a_target_of_the_file_can_be_written_to(tmp_path: Path) -> None:
    store = Store.open(saved(Store.from_tables(*tables(), Path("r")), tmp_path), Path("r"))
    target = store.target(0)
    for tensor in (target.boxes, target.labels, target.area, target.iscrowd, target.difficult):
        tensor.zero_()
    assert store.target(0).boxes.tolist() == [[0, 0, 60, 40]]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = saved(Store.from_tables(*tables(), Path("r")), tmp_path)
    whole = path.read_bytes()
    cuts = [0, 1, 15, 16, 40, len(whole) // 2, len(whole) - 64, len(whole) - 1]
    flipped = bytearray(whole)
    flipped[40] ^= 1
    newer = whole[:7] + bytes([whole[7] + 1]) + whole[8:]
    for content, problem in (
        *((whole[:cut], "cut short|not written by detpipe") for cut in cuts),
        (whole + b"\0", "cut short or damaged"),
        (bytes(flipped), "damaged"),
        (b"PAR1" * 100, "not written by detpipe"),
        (newer, r"newer detpipe \(format 2, this one reads 1\)"),
    ):
        path.write_bytes(content)
        with pytest.raises(
            DataError, match=rf"store\.bin' .*({problem}).*kedro run --pipeline data"
        ):
            Store.open(path, Path("r"))
    path.write_bytes(whole)
    assert len(Store.open(path, Path("r"))) == 4
    for wrong in (tmp_path / "none.bin", tmp_path):
        with pytest.raises(DataError, match=r"cannot be read \(.*kedro run --pipeline data"):
            Store.open(wrong, Path("r"))


def _report(store: Store, answer: multiprocessing.Queue) -> None:
    answer.put((store.digest(), store.root, [str(store.path(i)) for i in range(len(store))]))


@pytest.mark.slow
def test_a_spawned_process_opens_the_file_itself(tmp_path: Path) -> None:
    store = Store.open(
        saved(Store.from_tables(*odd_tables(), Path("r")), tmp_path), Path("r"), split="train"
    )
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    process = context.Process(target=_report, args=(store, answer))
    process.start()
    found = answer.get(timeout=120)
    process.join()
    assert found == (store.digest(), store.root, [str(store.path(i)) for i in range(len(store))])


def test_an_opened_store_is_pickled_as_its_file(tmp_path: Path, monkeypatch) -> None:
    path = saved(Store.from_tables(*large_tables(), Path("r")), tmp_path)
    monkeypatch.chdir(tmp_path)
    opened = Store.open(Path(path.name), Path())
    monkeypatch.chdir("/")  # as a process might that is started elsewhere
    for store in (opened, opened.at(Path("q")), opened.split("val"), opened.split("val").at(path)):
        content = pickle.dumps(store)
        assert len(content) < 1_000 < store.nbytes
        assert_same(pickle.loads(content), store)
    changed = replace(opened, sizes=np.full_like(opened.sizes, 33))
    assert_same(pickle.loads(pickle.dumps(changed)), changed)
    assert pickle.loads(pickle.dumps(changed)).sizes.min() == 33
    # A split of another split is not one of the file.
    empty = opened.split("val").split("train")
    assert_same(pickle.loads(pickle.dumps(empty)), empty)


def test_a_process_that_opens_another_file_says_so(tmp_path: Path) -> None:
    images, boxes, classes = tables()
    path = saved(Store.from_tables(images, boxes, classes, Path("r")), tmp_path)
    store = Store.open(path, Path("r"), split="train")
    content, digest = pickle.dumps(store), store.digest()
    Store.from_tables(images, boxes, classes, Path("elsewhere")).save(path)  # same content
    assert pickle.loads(content).digest() == digest
    Store.from_tables(images, boxes.assign(area=boxes["area"] + 1), classes, Path("r")).save(path)
    with pytest.raises(DataError, match=r"store\.bin' has changed since this run opened it"):
        pickle.loads(content)
    assert store.digest() == digest  # who had it open keeps the old one


def _stop_at_fsync(path: Path) -> None:
    os.fsync = lambda _: os._exit(9)
    Store.from_tables(*large_tables(), Path("r")).save(path)


def test_saving_is_all_or_nothing(tmp_path: Path, monkeypatch) -> None:
    store = Store.from_tables(*tables(), Path("r"))
    path = saved(store, tmp_path)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(os, "fsync", full)
        Store.from_tables(*large_tables(), Path("r")).save(path)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert_same(Store.open(path, Path("r")), store)

    process = multiprocessing.get_context("fork").Process(target=_stop_at_fsync, args=(path,))
    process.start()
    process.join()
    assert process.exitcode == 9
    assert_same(Store.open(path, Path("r")), store)


def test_the_same_store_gives_the_same_bytes(tmp_path: Path) -> None:
    store = Store.from_tables(*large_tables(), Path("r"))
    first = saved(store, tmp_path).read_bytes()
    Store.open(tmp_path / "store.bin", Path("q")).save(tmp_path / "store.bin")
    assert (tmp_path / "store.bin").read_bytes() == first


def test_training_on_the_file_is_training_on_the_tables(tmp_path: Path) -> None:
    found = sample.read(tmp_path / "sample", images=20, size=96)
    made = Store.from_tables(*found[:3], tmp_path / "sample", split="train")
    Store.from_tables(*found[:3], Path("r")).save(tmp_path / "store.bin")
    opened = Store.open(tmp_path / "store.bin", Path()).at(tmp_path / "sample").split("train")
    batches = [
        list(
            islice(
                TrainStream(
                    store, batch_size=4, sampler=sampler.shuffle(length=len(store), seed=0),
                    workers=workers,
                ).batches(0),
                5,
            )
        )
        for store, workers in ((made, 0), (opened, 0), (opened, 2))
    ]  # fmt: skip
    for other in batches[1:]:
        for mine, its in zip(batches[0], other, strict=True):
            assert mine.paths == its.paths
            for a, b in zip(mine.images, its.images, strict=True):
                assert torch.equal(a, b)
            for a, b in zip(mine.targets, its.targets, strict=True):
                for name in ("boxes", "labels", "area", "iscrowd", "difficult"):
                    assert torch.equal(getattr(a, name), getattr(b, name))
                assert (a.image_id, a.original_size) == (b.image_id, b.original_size)


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
@pytest.mark.parametrize("opened", [False, True])
def test_forked_workers_share_the_store(tmp_path: Path, opened: bool) -> None:
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
    if opened:
        store = Store.open(saved(store, tmp_path), Path("r"))
    context = multiprocessing.get_context("fork")
    answer = context.Queue()
    worker = context.Process(target=_read_everything, args=(store, answer))
    worker.start()
    grown, total = answer.get(timeout=60)
    worker.join()
    assert total == boxes + images * len("r/00000000.jpg")
    assert store.nbytes > 50_000_000
    assert grown < store.nbytes / 10
