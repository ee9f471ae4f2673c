"""Data at a URL: its local mirror is what is there."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import http.server
import io
import json
import logging
import os
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pandas as pd
import pytest
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from PIL import Image

from detpipe.core.errors import DataError
from detpipe.data import mirror as mirrors
from detpipe.data import remote
from detpipe.data.formats import coco
from detpipe.data.remote import local_copy

FILES = {"/set/labels.json": b"{}", "/set/images/a.jpg": b"aa", "/set/images/deep/b.jpg": b"b"}


class Fake(fsspec.AbstractFileSystem):
    """A storage in a dict that fails when it is told to; it lists one folder at a time."""

    protocol = "fake"
    files: ClassVar[dict[str, bytes]] = {}
    opened: ClassVar[list[str]] = []
    options: ClassVar[dict[str, Any]] = {}
    failing: ClassVar[dict[str, Exception]] = {}
    slow = 0.0

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        type(self).options = options

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("fake://").strip("/")

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        if path in self.failing:
            raise self.failing[path]
        path = self._strip_protocol(path)
        if path in self.files:
            return [self._file(path)]
        start = path.rstrip("/") + "/"
        below = {n[len(start) :].split("/")[0] for n in self.files if n.startswith(start)}
        if not below:
            raise FileNotFoundError(path)
        found: list[Any] = []
        for name in sorted(below):
            if start + name in self.files:
                found.append(self._file(start + name))
            else:
                found.append({"name": start + name, "type": "directory", "size": 0})
        return found

    def info(self, path: str, **_: Any) -> Any:
        if path in self.failing:
            raise self.failing[path]
        return super().info(path)

    def _file(self, path: str) -> dict[str, Any]:
        content = self.files[path]
        tag = hashlib.md5(content).hexdigest()
        return {"name": path, "type": "file", "size": len(content), "ETag": tag}

    def _open(self, path: str, mode: str = "rb", **_: Any) -> io.BytesIO:
        assert mode == "rb"
        if path in self.failing:
            raise self.failing[path]
        time.sleep(self.slow)
        self.opened.append(path)
        return io.BytesIO(self.files[path])


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> type[Fake]:
    fsspec.register_implementation("fake", Fake, clobber=True)
    for name, value in (("files", dict(FILES)), ("opened", []), ("options", {}), ("failing", {})):
        monkeypatch.setattr(Fake, name, value)
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    monkeypatch.setattr(MemoryFileSystem, "pseudo_dirs", [""])
    return Fake


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DETPIPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def held(root: Path) -> dict[str, bytes]:
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def below(files: dict[str, bytes], root: str = "/set/") -> dict[str, bytes]:
    return {name.removeprefix(root): content for name, content in files.items()}


def coco_set(folder: Path, label: str) -> None:
    (folder / "images").mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (20, 10)).save(folder / "images" / "a é.png")
    content = {
        "images": [{"id": 1, "file_name": "a é.png", "width": 20, "height": 10}],
        "categories": [{"id": 1, "name": label}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4]}],
    }
    (folder / "annotations.json").write_text(json.dumps(content))


def upload(folder: Path, url: str) -> None:
    fs, root = fsspec.url_to_fs(url)
    for file in folder.rglob("*"):
        if file.is_file():
            fs.pipe_file(f"{root}/{file.relative_to(folder).as_posix()}", file.read_bytes())


def test_a_coco_set_of_a_url_reads_as_one_on_the_disk(tmp_path: Path) -> None:
    here = tmp_path / "here"
    for label in ("cat", "dog"):  # labels edited there are seen at the next run
        coco_set(here, label)
        upload(here, "memory://bucket/set")
        there = coco.read(local_copy("memory://bucket/set/"), annotations="annotations.json")
        for mine, theirs in zip(
            coco.read(here, annotations="annotations.json"), there, strict=True
        ):
            pd.testing.assert_frame_equal(mine, theirs)
        assert there.classes["class_name"].tolist() == [label]


def test_only_what_changed_is_copied(fake: type[Fake], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    root = local_copy("fake://set")
    assert held(root) == below(fake.files)
    assert root.name == "set"
    assert "3 files copied (0.0 MB), 0 unchanged, 0 removed" in caplog.text
    fake.opened.clear()
    left = root.parents[1] / "part-killed"
    left.mkdir()
    assert local_copy("fake://set/") == root
    assert not left.exists()
    assert fake.opened == []
    fake.files["/set/images/a.jpg"] = b"AA"
    del fake.files["/set/images/deep/b.jpg"]
    assert local_copy("fake://set") == root
    assert fake.opened == ["/set/images/a.jpg"]
    assert held(root) == below(fake.files)
    assert "1 files copied (0.0 MB), 1 unchanged, 1 removed" in caplog.text


def test_other_urls_are_other_mirrors(fake: type[Fake], cache: Path, tmp_path: Path) -> None:
    fake.files["/other/set/x"] = b"x"
    first, second = local_copy("fake://set"), local_copy("fake://other/set")
    assert held(second) == {"x": b"x"}
    assert held(first) == below({k: v for k, v in fake.files.items() if k.startswith("/set")})
    assert first.is_relative_to(cache)
    elsewhere = local_copy("fake://set", cache=tmp_path / "elsewhere")
    assert elsewhere.is_relative_to(tmp_path / "elsewhere")
    assert held(elsewhere) == held(first)


def test_one_file(fake: type[Fake]) -> None:
    file = local_copy("fake://set/labels.json")
    assert (file.name, file.read_bytes()) == ("labels.json", b"{}")
    fake.files["/set/labels.json"] = b"[]"
    assert local_copy("fake://set/labels.json").read_bytes() == b"[]"


def test_a_whole_bucket_and_a_whole_memory(fake: type[Fake]) -> None:
    assert held(local_copy("fake://")) == below(fake.files, "/")
    for name, content in FILES.items():
        fsspec.filesystem("memory").pipe_file(name, content)
    assert held(local_copy("memory://")) == below(FILES, "/")


def test_an_archive(tmp_path: Path) -> None:
    fs = fsspec.filesystem("memory")
    for content in (b"1", b"2"):
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("top/images/a.txt", content)
            archive.writestr("top/b.txt", b"b")
        fs.pipe_file("/set.zip", packed.getvalue())
        assert held(local_copy("zip://::memory://set.zip")) == {
            "top/images/a.txt": content, "top/b.txt": b"b",
        }  # fmt: skip
        assert held(local_copy("zip://top/images::memory://set.zip")) == {"a.txt": content}
    fs.pipe_file("/set.zip", b"no archive")
    with pytest.raises(DataError, match=r"cannot be opened: BadZipFile"):
        local_copy("zip://::memory://set.zip")


def test_file_urls_are_used_in_place(tmp_path: Path, cache: Path) -> None:
    assert local_copy(f"file://{tmp_path}/a b") == tmp_path / "a b"
    assert remote.mirror_path(f"file://{tmp_path}/a") == tmp_path / "a"
    assert not remote.exists(f"file://{tmp_path}/a")
    assert remote.exists(f"file://{tmp_path}")
    assert not cache.exists()


def test_names_that_lead_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = fsspec.filesystem("memory")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("../../../../evil.txt", b"evil")
    fs.pipe_file("/set.zip", packed.getvalue())
    with pytest.raises(DataError, match=r"\.\./evil\.txt"):
        local_copy("zip://::memory://set.zip")
    fs.store["/set/../../x/evil.txt"] = fs.store["/set.zip"]
    with pytest.raises(DataError, match=r"\.\./x/evil\.txt"):
        local_copy("memory://set")
    monkeypatch.setattr(remote, "_files", lambda *_: iter([{"name": "/elsewhere/evil.txt"}]))
    with pytest.raises(DataError, match=r"\.\.//elsewhere/evil\.txt"):
        local_copy("fake://set")
    assert not list(tmp_path.rglob("*evil*"))


@pytest.mark.parametrize(
    "url", ["fake://..", "fake://a/..", "fake://a/../..", "fake://set/..%2f.."]
)
def test_a_url_cannot_lead_out_of_the_cache(url: str, cache: Path) -> None:
    assert remote.mirror_path(url).resolve().is_relative_to(cache)
    assert len(remote.mirror_path(url).relative_to(cache).parts) == 3


def test_it_goes_on_where_it_broke_off(fake: type[Fake], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirrors, "_BATCH_FILES", 3)
    fake.files.update({f"/set/{number}": b"%d" % number for number in range(10)})
    fake.failing["/set/7"] = ConnectionResetError("peer")
    with pytest.raises(
        DataError, match=r"data set from fake://set .* broke off: Conn.*: peer; what"
    ):
        local_copy("fake://set")
    done = held(remote.mirror_path("fake://set"))
    assert 0 < len(done) < len(fake.files)
    fake.failing["/set"] = ConnectionError("down")
    with pytest.raises(DataError, match=r"no whole copy"):  # half a mirror is never used
        local_copy("fake://set")
    fake.failing.clear()
    fake.opened.clear()
    assert held(local_copy("fake://set")) == below(fake.files)
    assert len(fake.opened) == len(fake.files) - len(done)


@pytest.mark.parametrize("folder", ["/set", "/set/images/deep"])
def test_unreachable(fake: type[Fake], folder: str, caplog: pytest.LogCaptureFixture) -> None:
    fake.failing[folder] = TimeoutError("no answer")
    with pytest.raises(DataError, match=r"fake://set cannot be reached.*TimeoutError: no answer"):
        local_copy("fake://set")
    fake.failing.clear()
    root = local_copy("fake://set")
    fake.failing[folder] = TimeoutError("no answer")
    caplog.clear()
    assert local_copy("fake://set") == root
    assert held(root) == below(fake.files)  # a folder that could not be listed is not empty
    (line,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert "fake://set cannot be reached (TimeoutError: no answer); the copy of 20" in line


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PermissionError("Forbidden"), "may not be read: PermissionError: Forbidden.*credentials"),
        (type("NoCredentialsError", (Exception,), {})("no key"), "may not be read.*AWS_PROFILE"),
        (type("HttpError", (Exception,), {"code": 401})("who?"), "may not be read.*anon"),
        (FileNotFoundError("/set"), "there is nothing at fake://set"),
        (ValueError("bad region"), "cannot be opened: ValueError: bad region"),
    ],
)
def test_errors_that_waiting_does_not_mend(
    fake: type[Fake], error: Exception, message: str
) -> None:
    root = local_copy("fake://set")
    fake.failing["/set"] = error
    with pytest.raises(DataError, match=message):
        local_copy("fake://set")
    assert held(root) == below(fake.files)  # nobody's copy is taken away


def test_a_full_disk(fake: type[Fake]) -> None:
    fake.failing["/set/labels.json"] = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(DataError, match=r"the disk is full .*MB are free"):
        local_copy("fake://set")


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("DETPIPE_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"could not be copied to .*DETPIPE_CACHE"):
        local_copy("fake://set")


@pytest.mark.parametrize(
    ("url", "module", "package"),
    [
        ("s3://bucket/set", "s3fs", 'pip install "s3fs"'),
        ("gs://bucket/set", "gcsfs", 'pip install "gcsfs"'),
        ("zip://::s3://bucket/set.zip", "s3fs", 'pip install "s3fs"'),
        ("abfs://bucket/set", "adlfs", "Install adlfs"),
    ],
)
def test_a_missing_package(
    url: str, module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    for protocol in ("s3", "gs", "abfs"):
        monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, protocol, raising=False)
    with pytest.raises(DataError, match=package):
        local_copy(url)
    with pytest.raises(DataError, match=package):
        remote.exists(url)


def test_an_unknown_protocol() -> None:
    with pytest.raises(DataError, match=r"s4://bucket/x cannot be opened.*not known: s4"):
        local_copy("s4://bucket/x")


@pytest.mark.parametrize("url", ["simplecache::fake://set", "zip://::filecache::fake://set.zip"])
def test_caches_in_between_are_refused(url: str) -> None:
    with pytest.raises(DataError, match=r"would hide what was edited"):
        local_copy(url)


def test_storage_options_arrive(fake: type[Fake]) -> None:
    local_copy("fake://set", storage_options={"key": "k", "endpoint_url": "u"})
    assert fake.options == {"key": "k", "endpoint_url": "u"}
    assert remote.exists("fake://set", storage_options={"key": "other"})
    assert fake.options == {"key": "other"}


def test_exists_copies_nothing(fake: type[Fake], cache: Path) -> None:
    assert remote.exists("fake://set")
    assert not remote.exists("fake://sets")
    fake.failing["/set"] = ConnectionError("down")
    assert not remote.exists("fake://set")
    assert fake.opened == []
    assert not cache.exists()
    fake.failing.clear()
    local_copy("fake://set")
    fake.failing["/set"] = ConnectionError("down")
    assert remote.exists("fake://set")


def test_two_threads_at_once(fake: type[Fake], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake, "slow", 0.02)
    found: list[dict[str, bytes]] = []
    threads = [
        threading.Thread(target=lambda: found.append(held(local_copy("fake://set"))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [below(fake.files)] * 4
    assert sorted(fake.opened) == sorted(fake.files)  # the others waited and found it done


def test_two_processes_at_once(
    fake: type[Fake], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opened = tmp_path / "opened"

    class Log(list[str]):
        def append(self, name: str) -> None:
            with opened.open("a") as file:
                file.write(f"{name}\n")

    monkeypatch.setattr(fake, "opened", Log())
    monkeypatch.setattr(fake, "slow", 0.02)
    children = []
    for _ in range(3):
        if (child := os.fork()) == 0:
            fine = False
            try:
                fine = held(local_copy("fake://set")) == below(fake.files)
            finally:
                os._exit(0 if fine else 1)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(c, 0)[1]) for c in children] == [0, 0, 0]
    assert sorted(opened.read_text().split()) == sorted(fake.files)


def test_async_storages_copy_many_files_at_once(
    monkeypatch: pytest.MonkeyPatch, fake: type[Fake]
) -> None:
    class Concurrent(AsyncFileSystem):
        protocol = "concurrent"
        under_way = most = 0

        async def _ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
            if path in fake.failing:
                raise fake.failing[path]
            return Fake().ls(path)

        async def _info(self, path: str, **_: Any) -> dict[str, Any]:
            return Fake().info(path)

        async def _get_file(self, rpath: str, lpath: str, **_: Any) -> None:
            cls = type(self)
            cls.under_way += 1
            cls.most = max(cls.most, cls.under_way)
            await asyncio.sleep(0.01)
            Path(lpath).write_bytes(fake.files[rpath])
            cls.under_way -= 1

    fsspec.register_implementation("concurrent", Concurrent, clobber=True)
    fake.files.update({f"/set/[{number}]*.jpg": b"%d" % number for number in range(20)})
    root = local_copy("concurrent://set")
    assert held(root) == below(fake.files)
    assert Concurrent.most > 5
    fake.failing["/set/images"] = TimeoutError("no answer")  # fsspec's find would pass it over
    local_copy("concurrent://set")
    assert held(root) == below(fake.files)


@pytest.mark.parametrize(
    ("info", "other", "same"),
    [
        ({"ETag": "a", "LastModified": 1}, {"ETag": "a", "LastModified": 2}, True),
        ({"ETag": "a", "LastModified": 1}, {"ETag": "b", "LastModified": 1}, False),
        ({"mtime": 1.5}, {"mtime": 1.6}, False),
        ({"mtime": 1.5, "atime": 1}, {"mtime": 1.5, "atime": 2}, True),
        ({"CRC": 0}, {"CRC": 1}, False),
        ({"created": 1, "size": 2}, {"created": 1, "size": 3}, False),
    ],
)
def test_versions(info: dict[str, Any], other: dict[str, Any], same: bool) -> None:
    assert (remote.version(info) == remote.version(other)) == same
    assert remote.version(info)


@pytest.mark.parametrize("info", [{"size": 3}, {"size": 3, "ETag": None, "mtime": ""}])
def test_a_size_alone_tells_no_version(info: dict[str, Any]) -> None:
    assert remote.version(info) == ""


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert remote.cache_folder() == tmp_path / "cache"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DETPIPE_CACHE", "here")
    assert remote.cache_folder() == tmp_path / "here"
    monkeypatch.delenv("DETPIPE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert remote.cache_folder() == tmp_path / "xdg" / "detpipe"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    assert remote.cache_folder() == tmp_path / ".cache" / "detpipe"


def test_secrets_are_not_shown(fake: type[Fake], cache: Path) -> None:
    fake.failing["/user:passw0rd@set"] = ConnectionError("no fake://user:passw0rd@set")
    with pytest.raises(DataError) as caught:
        local_copy("fake://user:passw0rd@set")
    assert "passw0rd" not in str(caught.value)
    assert "passw0rd" not in " ".join(map(str, cache.rglob("*")))
    assert remote.mirror_path("https://host/a/set%20one.zip?sig=passw0rd").name == "set one.zip"
    assert "passw0rd" not in str(remote.mirror_path("https://host/a/set.zip?sig=passw0rd"))


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("s3://b/x", True), ("zip://::s3://b/x.zip", True), ("https://h/x", True),
        ("data/x", False), ("/data/x", False), (r"C:\data", False), ("C:/data", False),
        ("a::b/c", False) if os.name == "nt" else ("./a", False),
    ],
)  # fmt: skip
def test_what_is_a_url(given: str, url: bool) -> None:
    assert remote.is_url(given) == url


def test_what_a_readers_option_means(tmp_path: Path, fake: type[Fake]) -> None:
    assert remote.resolve(tmp_path, "images") == tmp_path / "images"
    assert remote.resolve(tmp_path, "/other/images") == Path("/other/images")
    assert held(remote.resolve(tmp_path, "fake://set/images")) == {
        "a.jpg": b"aa", "deep/b.jpg": b"b",
    }  # fmt: skip


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path, Any]]:
    pytest.importorskip("aiohttp")
    folder = tmp_path / "www"
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(folder))

        def log_message(self, *_: Any) -> None:
            pass

        def send_head(self) -> Any:
            code = self.path.lstrip("/").split(".")[0]
            if code.isdigit():
                return self.send_error(int(code))
            return super().send_head()

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as web:
        thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{web.server_port}", folder, web
        web.shutdown()
        thread.join()


def test_a_file_of_a_web_server(server: Any, caplog: pytest.LogCaptureFixture) -> None:
    url, folder, web = server
    caplog.set_level(logging.INFO)
    (folder / "set é.json").write_bytes(b"1")
    os.utime(folder / "set é.json", (1e9, 1e9))
    address = f"{url}/set%20%C3%A9.json?token=secret"
    file = local_copy(address)
    assert (file.name, file.read_bytes()) == ("set é.json", b"1")
    local_copy(address)
    assert "0 files copied (0.0 MB), 1 unchanged" in caplog.text
    (folder / "set é.json").write_bytes(b"2")
    assert local_copy(address).read_bytes() == b"2"
    web.shutdown()
    web.server_close()
    assert local_copy(address).read_bytes() == b"2"
    assert "cannot be reached (ClientConnectorError" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("none.json", "there is nothing at"),
        ("404.json", "there is nothing at"),
        ("403.json", "may not be read: ClientResponseError"),
        ("401.json", "may not be read: ClientResponseError"),
        ("500.json", "cannot be reached.*500"),
        ("folder/", "copied as a single file"),
    ],
)
def test_what_a_web_server_answers(server: Any, path: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        local_copy(f"{server[0]}/{path}")
