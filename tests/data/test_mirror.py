"""A folder that mirrors another one."""

from __future__ import annotations

import os
import shutil
from collections import namedtuple
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from detpipe.core.errors import DataError
from detpipe.data import mirror as mirrors
from detpipe.data.mirror import Mirror, locked


class Source:
    """What is mirrored: name → content; its version is the content itself."""

    def __init__(self, **files: bytes) -> None:
        self.files = dict(files)
        self.fetched: list[str] = []

    def fetch(self, names: Sequence[str], files: Sequence[str]) -> None:
        for name, file in zip(names, files, strict=True):
            Path(file).write_bytes(self.files[name])
            self.fetched.append(name)

    def into(self, mirror: Mirror) -> list[str]:
        """Updates; what was fetched for it."""
        self.fetched = []
        mirror.update(
            {name: f"version {content!r}" for name, content in self.files.items()},
            sizes={name: len(content) for name, content in self.files.items()},
            fetch=self.fetch,
            source="there",
        )
        return self.fetched


@pytest.fixture
def mirror(tmp_path: Path) -> Mirror:
    mirror = Mirror(tmp_path / "cache" / "home", "set")
    mirror.home.mkdir(parents=True)
    return mirror


def held(mirror: Mirror) -> dict[str, bytes]:
    """The mirror's files."""
    return {
        p.relative_to(mirror.root).as_posix(): p.read_bytes()
        for p in mirror.root.rglob("*")
        if p.is_file()
    }


def test_only_what_changed_is_fetched(mirror: Mirror) -> None:
    source = Source(**{"a.txt": b"1", "sub/b.txt": b"2", "sub/deep/c.txt": b"3"})
    assert sorted(source.into(mirror)) == sorted(source.files)
    assert held(mirror) == source.files
    assert source.into(mirror) == []

    source.files |= {"sub/b.txt": b"9", "new.txt": b""}  # as long as before
    del source.files["sub/deep/c.txt"]
    assert sorted(source.into(mirror)) == ["new.txt", "sub/b.txt"]
    assert held(mirror) == source.files
    assert not (mirror.root / "sub" / "deep").exists()
    assert source.into(mirror) == []


def test_an_unknown_version_is_fetched_each_time(mirror: Mirror) -> None:
    source = Source(**{"a.txt": b"1"})

    def update() -> None:
        mirror.update({"a.txt": ""}, sizes={"a.txt": None}, fetch=source.fetch, source="there")

    update()
    source.files["a.txt"] = b"2"
    update()
    assert held(mirror) == source.files


@pytest.mark.parametrize("harm", ["edited", "edited, same size", "removed", "all removed"])
def test_what_was_changed_in_the_mirror_is_mended(mirror: Mirror, harm: str) -> None:
    source = Source(**{"a.txt": b"1", "b.txt": b"2"})
    source.into(mirror)
    file = mirror.root / "a.txt"
    if harm == "edited, same size":
        file.write_bytes(b"x")
        os.utime(file, ns=(1, 1))
    elif harm == "edited":
        file.write_bytes(b"longer")
    elif harm == "removed":
        file.unlink()
    else:
        shutil.rmtree(mirror.root)
    assert source.into(mirror) == (["a.txt", "b.txt"] if harm == "all removed" else ["a.txt"])
    assert held(mirror) == source.files


def test_a_link_in_the_mirror_is_not_followed(mirror: Mirror, tmp_path: Path) -> None:
    source = Source(**{"images/a.txt": b"1"})
    source.into(mirror)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine.txt").write_bytes(b"mine")
    (mirror.root / "also").symlink_to(elsewhere)
    shutil.rmtree(mirror.root / "images")
    (mirror.root / "images").symlink_to(elsewhere)
    source.into(mirror)
    assert held(mirror) == source.files
    assert [p.name for p in elsewhere.iterdir()] == ["mine.txt"]


def test_a_file_becomes_a_folder_and_back(mirror: Mirror) -> None:
    source = Source(**{"a": b"1"})
    source.into(mirror)
    for files in ({"a/b": b"2"}, {"": b"3"}, {"a": b"4", "c/d/e": b"5"}, {"a/b/c": b"6"}):
        source.files = files
        source.into(mirror)
        assert (held(mirror) if "" not in files else {"": mirror.root.read_bytes()}) == files


@pytest.mark.parametrize("stop", [OSError("gone"), KeyboardInterrupt()])
def test_an_update_that_broke_off_goes_on(
    mirror: Mirror, stop: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirrors, "_BATCH_FILES", 2)
    source = Source(**{f"{number}.txt": b"%d" % number for number in range(7)})
    fetch = source.fetch

    def breaks(names: Sequence[str], files: Sequence[str]) -> None:
        if len(source.fetched) == 4:
            raise stop
        fetch(names, files)

    monkeypatch.setattr(source, "fetch", breaks)
    with pytest.raises(type(stop)):
        source.into(mirror)
    before = set(source.fetched)
    assert mirror.whole_since() is None
    assert set(held(mirror)) == before  # whole files only, under their own names
    monkeypatch.setattr(source, "fetch", fetch)
    assert set(source.into(mirror)) == source.files.keys() - before
    assert held(mirror) == source.files
    assert mirror.whole_since()


def test_a_killed_update_goes_on(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirrors, "_BATCH_FILES", 2)
    source = Source(**{f"{number}.txt": b"%d" % number for number in range(5)})
    if (child := os.fork()) == 0:
        place = Path.replace

        def killed(self: Path, target: Path) -> Path:
            if target.name == "3.txt":
                os._exit(9)
            return place(self, target)

        monkeypatch.setattr(Path, "replace", killed)
        source.into(mirror)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert list(mirror.home.glob("part-*"))
    mirror.clean()
    assert not list(mirror.home.glob("part-*"))
    assert mirror.whole_since() is None
    assert set(source.into(mirror)) == {"2.txt", "3.txt", "4.txt"}  # the batch that was killed
    assert held(mirror) == source.files


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_an_index_cut_short_is_no_harm(mirror: Mirror, cut: int) -> None:
    source = Source(**{"a.txt": b"1", "b.txt": b"2"})
    source.into(mirror)
    index = mirror.home / "index.jsonl"
    index.write_bytes(index.read_bytes()[:-cut])
    assert (mirror.whole_since() is None) == (cut > 1)  # only the end of the line is missing
    source.files["a.txt"] = b"3"
    source.into(mirror)
    assert held(mirror) == source.files
    assert mirror.whole_since()
    assert source.into(mirror) == []


@pytest.mark.parametrize(
    "names",
    [
        ["../evil.txt"],
        ["a/../../evil.txt"],
        ["/evil.txt"],
        ["a//b.txt"],
        ["./a.txt"],
        ["a/"],
        ["a\0b"],
        ["a", "a/b"],
        ["a/b", "a/b/c/d"],
    ],
)
def test_names_that_cannot_be_files_here(mirror: Mirror, names: list[str], tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    source = Source(**dict.fromkeys(["fine.txt", *names], b"1"))
    with pytest.raises(DataError, match=r"there has files whose names") as caught:
        source.into(mirror)
    assert repr(names[0]) in str(caught.value)
    assert "fine.txt" not in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_too_small_a_disk_is_found_before_anything_is_copied(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(**{"a.txt": b"1" * 1_000_000, "b.txt": b"2" * 2_000_000})
    disk = namedtuple("disk", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: disk(2_900_000))
    with pytest.raises(DataError, match=r"3\.0 MB more .* 2\.9 MB are free .*DETPIPE_CACHE"):
        source.into(mirror)
    assert source.fetched == []
    monkeypatch.setattr(shutil, "disk_usage", lambda _: disk(3_000_000))
    source.into(mirror)
    # What takes the place of other files needs their room only.
    monkeypatch.setattr(shutil, "disk_usage", lambda _: disk(10))
    source.files["b.txt"] = b"3" * 2_000_000
    assert source.into(mirror) == ["b.txt"]


def test_large_files_are_batches_of_their_own(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirrors, "_BATCH_BYTES", 10)
    sizes: Mapping[str, int | None] = {"a": 4, "b": 6, "c": 30, "d": None, "e": 1}
    assert list(mirrors._batches(list(sizes), sizes)) == [["a", "b"], ["c"], ["d", "e"]]


def test_one_at_a_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    read, write = os.pipe()
    with locked(tmp_path, waits_for="x") as alone:
        assert alone
        if (child := os.fork()) == 0:
            with locked(tmp_path, waits_for="x"):
                os.write(write, b"child")
            os._exit(0)
        os.write(write, b"parent ")
        os.set_blocking(read, False)
    os.waitpid(child, 0)
    assert os.read(read, 100) == b"parent child"


def test_where_there_are_no_locks_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    def fails(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fails)
    with locked(tmp_path, waits_for="x") as alone:
        assert not alone
    with pytest.raises(OSError, match=r"mine"), locked(tmp_path, waits_for="x"):
        raise OSError("mine")
