from __future__ import annotations

from pathlib import Path

import pytest
from kedro.io import DatasetError

from detpipe.data import sample
from detpipe.data.store import Store
from detpipe.datasets import StoreDataset


def test_a_store_goes_through_the_catalog(tmp_path: Path) -> None:
    found = sample.read(tmp_path / "raw", images=20, size=96)
    dataset = StoreDataset(filepath=str(tmp_path / "new" / "store.bin"))
    assert not dataset.exists()
    dataset.save(Store.from_tables(*found[:3], tmp_path / "raw"))
    assert dataset.exists()
    loaded = dataset.load()
    assert loaded.root == Path()
    store = loaded.at(tmp_path / "raw").split("val")
    assert store.path(0).is_file()
    expected = Store.from_tables(*found[:3], tmp_path / "raw", split="val")
    assert len(store) == len(expected) > 0
    assert store.digest() == expected.digest()


def test_what_is_wrong_with_the_file_reaches_the_user(tmp_path: Path) -> None:
    file = tmp_path / "store.bin"
    dataset = StoreDataset(filepath=str(file))
    with pytest.raises(DatasetError, match=r"store\.bin.*kedro run --pipeline data"):
        dataset.load()
    file.write_text("something else, long enough")
    with pytest.raises(DatasetError, match=r"store\.bin' was not written by detpipe"):
        dataset.load()
    assert str(file) in str(dataset)
