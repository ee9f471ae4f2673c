"""The catalog's folders: paths and URLs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from kedro.io import DataCatalog, DatasetError

from detpipe.datasets import FolderDataset


class Guarded(MemoryFileSystem):
    """A storage that notes its options, and what was looked at."""

    protocol = "guarded"
    options: ClassVar[dict[str, Any]] = {}
    listed = 0
    down = False

    def __init__(self, **options: Any) -> None:
        super().__init__()
        type(self).options = options

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("guarded://").strip("/")

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        if self.down:
            raise ConnectionError("down")
        return super().info(path)

    def find(self, path: str, **options: Any) -> Any:
        type(self).listed += 1
        return super().find(path, **options)


@pytest.fixture(autouse=True)
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[Guarded]:
    monkeypatch.setenv("DETPIPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    monkeypatch.setattr(MemoryFileSystem, "pseudo_dirs", [""])
    for name, value in (("options", {}), ("listed", 0), ("down", False)):
        monkeypatch.setattr(Guarded, name, value)
    fsspec.register_implementation("guarded", Guarded, clobber=True)
    Guarded().pipe_file("/set/images/a.txt", b"1")
    return Guarded


def test_a_folder_of_this_computer(tmp_path: Path) -> None:
    folder = FolderDataset(path=str(tmp_path / "a"), hint="Name it.")
    assert not folder.exists()
    with pytest.raises(DatasetError, match=r"nothing at .*/a'. Name it\."):
        folder.load()
    assert FolderDataset(path=str(tmp_path / "a"), missing="pass").load() == tmp_path / "a"
    assert FolderDataset(path=str(tmp_path / "a"), missing="create").load().is_dir()
    assert folder.exists()
    assert folder.load() == tmp_path / "a"


def test_a_url_is_copied_once_in_a_run(storage: type[Guarded]) -> None:
    folder = FolderDataset(path="guarded://set", missing="pass")
    assert storage.listed == 0
    copy = folder.load()
    assert (copy / "images" / "a.txt").read_bytes() == b"1"
    storage().pipe_file("/set/images/a.txt", b"2")
    for _ in range(10):
        assert folder.load() == copy
    assert storage.listed == 1
    assert (copy / "images" / "a.txt").read_bytes() == b"1"  # nothing changes within a run
    folder.release()
    assert (folder.load() / "images" / "a.txt").read_bytes() == b"2"
    assert (FolderDataset(path="guarded://set").load() / "images" / "a.txt").read_bytes() == b"2"


def test_one_file_of_a_url(storage: type[Guarded]) -> None:
    file = FolderDataset(path="guarded://set/images/a.txt").load()
    assert (file.name, file.read_bytes()) == ("a.txt", b"1")


def test_exists_copies_nothing(storage: type[Guarded], tmp_path: Path) -> None:
    assert FolderDataset(path="guarded://set").exists()
    assert not FolderDataset(path="guarded://sets").exists()
    assert storage.listed == 0
    assert not (tmp_path / "cache").exists()


def test_errors_are_the_catalogs(storage: type[Guarded]) -> None:
    for missing in ("error", "pass"):
        with pytest.raises(DatasetError, match=r"nothing at guarded://sets") as caught:
            FolderDataset(path="guarded://sets", missing=missing, hint="Name it.").load()
        assert str(caught.value).endswith("Name it.")
    storage.down = True
    with pytest.raises(DatasetError, match=r"guarded://set cannot be reached.*down"):
        FolderDataset(path="guarded://set").load()


def test_options_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    for option in ("credentials", "storage_options"):
        with pytest.raises(DatasetError, match=r"are for URLs"):
            FolderDataset(path=str(tmp_path), **{option: {"key": "k"}})  # type: ignore[arg-type]
    with pytest.raises(DatasetError, match=r"nothing is created there"):
        FolderDataset(path="guarded://set", missing="create")


def test_credentials_of_the_configuration(storage: type[Guarded]) -> None:
    catalog = DataCatalog.from_config(
        {
            "raw": {
                "type": "detpipe.datasets.FolderDataset",
                "path": "guarded://user:hidden@set",
                "credentials": "mine",
                "storage_options": {"endpoint_url": "https://here"},
            }
        },
        {"mine": {"key": "k", "secret": "hidden"}},
    )
    storage().pipe_file("/user:hidden@set/a", b"1")
    folder = catalog["raw"]
    assert "hidden" not in repr(folder) + str(folder._describe())
    folder.load()
    assert storage.options == {"key": "k", "secret": "hidden", "endpoint_url": "https://here"}
