"""Memory of the processes that read, by their number and by the size of the data set."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from detpipe.core.tables import CLASSES
from detpipe.data.sampler import shuffle
from detpipe.data.store import Store
from detpipe.data.stream import TrainStream

BATCH = 32
LINKS = 10_000
"""Names of one file: file systems have a limit."""


def make(folder: Path, *, images: int, boxes: int) -> Path:
    """A store of random boxes in tiny pictures; each has its own file name."""
    rng = np.random.default_rng(0)
    names = [f"{number:06d}.jpg" for number in range(images)]
    folder.mkdir()
    for number, name in enumerate(names):
        if number % LINKS == 0:
            first = folder / name
            Image.new("RGB", (16, 16), "grey").save(first)
        else:
            os.link(first, folder / name)
    ids = pd.Series(names)
    x1, y1 = rng.uniform(0, 6, (2, boxes))
    Store.from_tables(
        pd.DataFrame({"image_id": ids, "path": ids, "width": 16, "height": 16, "split": "train"}),
        pd.DataFrame(
            {"image_id": ids.iloc[rng.integers(0, images, boxes)].to_numpy(), "class_name": "a",
             "x1": x1, "y1": y1, "x2": x1 + 9, "y2": y1 + 9, "area": 81.0, "iscrowd": False,
             "difficult": False}
        ),
        CLASSES.make([{"class_name": "a"}]),
        folder,
    ).save(folder / "store")  # fmt: skip
    return folder


def memory() -> int:
    """Bytes of this process and of its children; what they share counts once.

    Files do not count: libraries come and go in the share of other programs, and the pages of a
    file that is mapped are there once, whoever maps it.
    """
    processes = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
    texts = [Path(f"/proc/{process}/smaps_rollup").read_text() for process in processes]
    found = re.findall(r"Pss_(?:Anon|Shmem):\s+(\d+) kB", "".join(texts))
    assert len(found) == 2 * len(processes)
    return 1024 * sum(map(int, found))


def train(folder: Path, workers: int, images: int, looks: int) -> list[int]:
    """Memory at ``looks`` moments while ``images`` images are read."""
    store = Store.open(folder / "store", folder)
    stream = TrainStream(
        store, batch_size=BATCH, sampler=shuffle(length=len(store), seed=0), workers=workers
    )
    batches = stream.batches(0)
    found = []
    for _ in range(looks):
        read = sum(len(batch) for batch in islice(batches, images // looks // BATCH))
        assert read
        found.append(memory())
    assert len(multiprocessing.active_children()) == workers
    batches.close()
    return found


def measured(folder: Path, workers: int) -> np.ndarray:
    """:func:`train` in a process that holds nothing else."""
    done = subprocess.run(
        [sys.executable, __file__, str(folder), str(workers), "20000", "4"],
        capture_output=True, text=True, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return np.array(json.loads(done.stdout))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux")
def test_memory_does_not_grow_with_workers_times_annotations_nor_with_time(tmp_path: Path) -> None:
    small = make(tmp_path / "small", images=64, boxes=640)
    large = make(tmp_path / "large", images=20_000, boxes=200_000)
    annotations = (large / "store").stat().st_size
    used = {(folder, n): measured(folder, n) for folder in (small, large) for n in (2, 8)}
    # Whatever the data set, a worker needs some megabytes of its own, a little more as it goes on.
    by_worker = {folder: (used[folder, 8] - used[folder, 2]) / 6 for folder in (small, large)}
    assert (by_worker[large] - by_worker[small] < annotations / 2).all(), used
    for n in (2, 8):
        grown = {folder: used[folder, n][-1] - used[folder, n][1] for folder in (small, large)}
        assert grown[large] - grown[small] < annotations / 2, used


if __name__ == "__main__":
    print(json.dumps(train(Path(sys.argv[1]), *map(int, sys.argv[2:]))))
