"""Evaluation in several processes: real ones, with gloo, and the same numbers as in one."""

from __future__ import annotations

import datetime
import pickle
import sys

import numpy as np
import pandas as pd
import pytest
import torch
import torch.multiprocessing
from torch import distributed, nn

from detpipe.core.errors import DataError, DetpipeError
from detpipe.core.types import Batch, Detections, Target
from detpipe.data import sample
from detpipe.data.store import Store
from detpipe.data.stream import EvalStream
from detpipe.evaluate import processes
from detpipe.evaluate.losses import losses
from detpipe.evaluate.processes import from_all, gather, my_share, share
from detpipe.evaluate.run import predict
from detpipe.models import tiny

NAMES = ["cat", "dog"]
BATCH = 3

forks = pytest.mark.skipif(sys.platform == "win32", reason="processes are forked")


def in_processes(world, work, folder):
    """What ``work()`` gives, or raises, in each of ``world`` processes, by rank."""
    folder.mkdir()
    context = torch.multiprocessing.start_processes(
        _run, (world, work, folder), nprocs=world, join=False, start_method="fork"
    )
    try:
        while not context.join(timeout=60):
            pass
    finally:
        for process in context.processes:
            process.kill()
    return [pickle.loads((folder / str(rank)).read_bytes()) for rank in range(world)]


def _run(rank, world, work, folder):
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/group", rank=rank, world_size=world,
        timeout=datetime.timedelta(seconds=20),
    )  # fmt: skip
    try:
        result = work()
    except Exception as error:  # noqa: BLE001 the test looks at it
        result = error
    (folder / str(rank)).write_bytes(pickle.dumps(result))
    distributed.barrier()
    distributed.destroy_process_group()


class Sensitive(nn.Module):
    """What it finds depends on the image and, in the last bits and more, on its whole batch."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def detect(self, images):
        of_batch = torch.stack([image.float().mean() for image in images]).mean()
        found = []
        for image in images:
            n = int(image[0, 0, 0]) % 4
            corners = image[0, 0, : 2 * n].float().reshape(-1, 2) / 10 + of_batch / 7
            scores = torch.linspace(0.9, 0.3, n)
            boxes = torch.cat([corners, corners + 11], dim=1)
            found.append(Detections(boxes, scores, 1 + torch.arange(n) % 2))
        return found

    def forward(self, batch):
        drawn = torch.rand(())  # as a loss that samples does
        mean = torch.stack([image.float().mean() for image in batch.images]).mean()
        return {"a": self.weight * mean + drawn, "b": self.weight * mean**2 / 3}


def batches(indices):
    """Pictures of noise, each known by its number, in batches of three."""
    for start in range(0, len(indices), BATCH):
        chosen = indices[start : start + BATCH]
        yield Batch(
            tuple(
                torch.from_numpy(np.random.default_rng(i).integers(0, 255, (3, 40, 60), np.uint8))
                for i in chosen
            ),
            tuple(
                Target(
                    image_id=f"img{i}", boxes=torch.zeros(0, 4), labels=torch.zeros(0).long(),
                    area=torch.zeros(0), iscrowd=torch.zeros(0).bool(),
                    difficult=torch.zeros(0).bool(), original_size=(80, 120),
                )
                for i in chosen
            ),
        )  # fmt: skip


def detect(indices):
    return predict(Sensitive(), batches(indices), class_names=NAMES, device="cpu", warmup=0)


def ids(count):
    return [f"img{i}" for i in range(count)]


def shared(count):
    return gather(lambda: detect(my_share(count, batch_size=BATCH)), ids(count))


@pytest.mark.parametrize("batch_size", [1, 3, 8])
@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [0, 1, 5, 24])
def test_all_shares_together_are_each_image_once(count, world, batch_size):
    shares = [share(count, rank=r, world=world, batch_size=batch_size) for r in range(world)]
    assert sorted(i for each in shares for i in each) == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= batch_size


def test_shares_are_dealt_out_in_whole_batches():
    assert share(7, rank=0, world=2) == [0, 2, 4, 6]
    assert share(10, rank=0, world=2, batch_size=4) == [0, 1, 2, 3, 8, 9]
    assert share(10, rank=1, world=2, batch_size=4) == [4, 5, 6, 7]
    assert my_share(3) == [0, 1, 2]  # one process


@forks
@pytest.mark.parametrize(("world", "count"), [(2, 17), (3, 17), (3, 4), (3, 2)])
def test_every_process_has_the_table_of_a_single_one_to_the_last_bit(world, count, tmp_path):
    one = detect(range(count))
    assert len(one.detections)
    assert one.detections["image_id"].nunique() < count or count < 4  # some have none
    for found in in_processes(world, lambda: shared(count), tmp_path / "run"):
        pd.testing.assert_frame_equal(found.detections, one.detections, check_exact=True)
        assert found.image_ids == one.image_ids
        assert found.timing["part"].tolist() == ["data", "model", "post"]
        assert found.timing["images"].tolist() == [count] * 3


@forks
@pytest.mark.slow
def test_a_real_detector_on_real_files_gives_the_same_to_the_last_bit(tmp_path):
    found = sample.read(tmp_path / "sample", images=20, size=96)
    store = Store.from_tables(*found[:3], tmp_path / "sample", split="train")
    assert len(store) % 4
    model = tiny.build(len(store.class_names), width=16)

    def work():
        def mine():
            indices = my_share(len(store), batch_size=4)
            stream = EvalStream(store, indices=indices, batch_size=4)
            return predict(model, stream, class_names=store.class_names, device="cpu")

        return gather(mine, list(store.image_ids)).detections

    (one,) = in_processes(1, work, tmp_path / "one")  # with as many threads as the others
    assert len(one) > 100
    for other in in_processes(2, work, tmp_path / "run"):
        pd.testing.assert_frame_equal(other, one, check_exact=True)


@forks
def test_no_images_at_all_are_an_empty_table_in_every_process(tmp_path):
    for found in in_processes(2, lambda: shared(0), tmp_path / "run"):
        assert found.detections.empty and found.timing.empty and not found.image_ids
        assert found.detections.dtypes.equals(detect(range(1)).detections.dtypes)


@forks
def test_an_error_in_one_process_is_one_in_all(tmp_path):
    def work():
        if distributed.get_rank() == 1:
            raise KeyError("damaged.jpg")
        return detect(my_share(9, batch_size=BATCH))

    zero, one, two = in_processes(3, lambda: gather(work, ids(9)), tmp_path / "run")
    assert isinstance(one, KeyError)
    assert type(zero) is type(two) is DetpipeError
    assert "process 1: KeyError: 'damaged.jpg'" in str(zero) and str(zero) == str(two)


@forks
def test_an_image_of_two_processes_is_an_error_in_all(tmp_path):
    def work():
        return gather(lambda: detect([distributed.get_rank(), 2]), ids(3))

    for error in in_processes(2, work, tmp_path / "run"):
        assert isinstance(
            error, DataError
        ) and "1 image(s) were given more than once: 'img2'" in str(error)


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([0, 2], r"1 image\(s\) were given to no process: 'img1'"),
        ([0, 1, 2, 7], r"1 image\(s\) are none of this data set: 'img7'"),
        ([], r"3 image\(s\) were given to no process: 'img0', 'img1', 'img2'"),
    ],
)
def test_an_image_too_few_or_too_many_is_an_error(indices, message):
    with pytest.raises(DataError, match=message):
        gather(lambda: detect(indices), ids(3))


def test_many_missing_images_are_named_in_part():
    with pytest.raises(DataError, match=r"9 image\(s\) .* 'img4', …;"):
        gather(lambda: detect([]), ids(9))


def test_the_order_is_that_of_the_images_and_within_an_image_as_found(monkeypatch):
    parts = [detect([4, 0, 1]), detect([3, 2])]
    monkeypatch.setattr(processes, "from_all", lambda work: parts)
    found = gather(lambda: None, ids(5)).detections
    assert found["image_id"].drop_duplicates().tolist() == [
        i for i in ids(5) if any(i in set(part.detections["image_id"]) for part in parts)
    ]
    for part in parts:
        for image, rows in part.detections.groupby("image_id"):
            mine = found[found["image_id"] == image].reset_index(drop=True)
            pd.testing.assert_frame_equal(mine, rows.reset_index(drop=True))


def test_the_timing_is_the_mean_over_the_images_of_all_processes(monkeypatch):
    parts = [detect([0, 1, 2]), detect([3]), detect([])]
    parts[0].timing["ms_per_image"] = [1.0, 20.0, 0.0]
    parts[1].timing["ms_per_image"] = [5.0, 40.0, 8.0]
    monkeypatch.setattr(processes, "from_all", lambda work: parts)
    timing = gather(lambda: None, ids(4)).timing
    assert timing["ms_per_image"].tolist() == [2.0, 25.0, 2.0]
    assert timing["images"].tolist() == [4, 4, 4]


@forks
@pytest.mark.parametrize("world", [2, 3])
def test_the_losses_of_all_processes_are_those_of_a_single_one_to_the_last_bit(world, tmp_path):
    def loss(indices):
        return losses(Sensitive(), batches(indices), dataset="val", device="cpu")

    one = loss(range(17))
    assert one["value"].notna().all() and len(one) == 3

    def work():
        return loss(my_share(17, batch_size=BATCH))

    for found in in_processes(world, work, tmp_path / "run"):
        pd.testing.assert_frame_equal(found, one, check_exact=True)


def test_alone_an_error_comes_as_it_is():
    def work():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        from_all(work)
    assert from_all(lambda: 3) == [3]
