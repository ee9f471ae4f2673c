"""Data at a URL (``s3://``, ``gs://``, ``https://``, …): a local mirror of what is there.

Every run lists what is there and copies what has changed; content decides, never an age.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from detpipe.core.errors import DataError, DetpipeError
from detpipe.data.mirror import Mirror, locked
from detpipe.data.remote_errors import explain, mistaken, refused, said, shown, true_cause

logger = logging.getLogger(__name__)

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(://|::)")
_WEB = re.compile(r"https?://", re.IGNORECASE)
_CACHES = frozenset(("simplecache", "filecache", "blockcache", "cached"))
_CONTENT = ("ETag", "etag", "md5Hash", "md5", "Content-MD5", "content_md5", "Digest", "CRC",
            "crc32c", "generation", "VersionId", "version_id", "sha", "blob_id")  # fmt: skip
_TIMES = ("mtime", "LastModified", "last_modified", "Last-Modified", "updated", "modified",
          "modify", "modificationTime", "date_time", "created")  # fmt: skip


def is_url(text: str) -> bool:
    """Whether ``text`` is a URL (``s3://…``, or a chain, ``zip://::s3://…``) and no path."""
    return _URL.match(text) is not None


def resolve(root: Path, given: str, *, what: str = "the data set") -> Path:
    """The place that an option of a reader means: a URL's mirror, a path, or one below ``root``.

    Raises:
        DataError: as :func:`local_copy`.
    """
    return local_copy(given, what=what) if is_url(given) else root / given


def cache_folder() -> Path:
    """Where mirrors are: ``DETPIPE_CACHE``, else ``detpipe`` in the user's cache folder."""
    if given := os.environ.get("DETPIPE_CACHE"):
        return Path(given).expanduser().absolute()
    if caches := os.environ.get("XDG_CACHE_HOME"):
        return Path(caches).absolute() / "detpipe"
    home = Path.home()
    systems = {"win32": home / "AppData" / "Local", "darwin": home / "Library" / "Caches"}
    return systems.get(sys.platform, home / ".cache") / "detpipe"


def mirror_path(url: str, *, cache: Path | None = None) -> Path:
    """Where :func:`local_copy` puts what is at ``url``; nothing is looked at."""
    return _local(url) or _mirror(url, cache).root


def local_copy(
    url: str,
    *,
    cache: Path | None = None,
    what: str = "the data set",
    storage_options: Mapping[str, Any] | None = None,
) -> Path:
    """A local copy of the folder or file at a URL, the same as what is there now.

    Files are told apart by what the storage says of their content (ETag, checksum, CRC), else by
    their size and time of change; where it says neither, they are copied each time. Files that are
    gone there are removed from the mirror. A copy that was broken off goes on where it was. A
    second process waits for the first, where there are file locks.

    Args:
        url: any URL of fsspec: ``file://`` is used in place, ``http(s)://`` is a single file,
            ``zip://::<url>`` what is in an archive.
        cache: the folder of all mirrors; :func:`cache_folder` by default.
        what: what is copied, for messages.
        storage_options: of fsspec's file system: credentials, ``endpoint_url``, ``anon``, …

    Returns:
        The mirror. If the storage cannot be reached, and the last copy was whole, that is warned
        of and the last copy is used.

    Raises:
        DataError: nothing there, no permission, a package is missing, names that cannot be files
            here, the disk is too small, or it cannot be reached and there is no whole copy.
    """
    if (path := _local(url)) is not None:
        return path
    _require_plain(url)
    mirror = _mirror(url, cache)
    try:
        with locked(mirror.home, waits_for=shown(url)) as alone:
            if alone:
                mirror.clean()
            _update(mirror, url, what, storage_options or {})
    except OSError as error:
        raise DataError(
            f"{what} at {shown(url)} could not be copied to '{mirror.home}': "
            f"{type(error).__name__}: {error}. DETPIPE_CACHE names another folder"
        ) from error
    return mirror.root


def exists(url: str, *, storage_options: Mapping[str, Any] | None = None) -> bool:
    """Whether there is something at ``url``, or a whole copy of it here; nothing is copied.

    Raises:
        DataError: a package is missing, the protocol is unknown, or there is no permission.
    """
    if (path := _local(url)) is not None:
        return path.exists()
    _require_plain(url)
    try:
        _connect(url, storage_options or {})
    except Exception as error:
        cause = true_cause(error)
        if isinstance(cause, FileNotFoundError):
            return False
        if mistaken(cause) or refused(cause):
            raise DataError(explain(cause, url, "the data")) from error
        return _mirror(url, None).whole_since() is not None
    return True


def version(info: Mapping[str, Any]) -> str:
    """What tells a file's content from another, of what a file system says of it; '' for unknown.

    A tag or checksum of the content comes before a time: the same bytes put there again are no
    change.
    """
    for keys in (_CONTENT, _TIMES):
        said = [f"{key}={info[key]}" for key in keys if info.get(key) not in (None, "")]
        if said:
            return " ".join([f"size={info.get('size')}", *said])
    return ""


def _update(mirror: Mirror, url: str, what: str, options: Mapping[str, Any]) -> None:
    try:
        fs, there = _look(url, options)
    except Exception as error:
        cause, since = true_cause(error), mirror.whole_since()
        if since is None or mistaken(cause) or refused(cause):
            raise DataError(explain(cause, url, what)) from error
        logger.warning(
            "%s at %s cannot be reached (%s); the copy of %s is used",
            what, shown(url), said(cause, url), since,
        )  # fmt: skip
        return

    def fetch(names: Sequence[str], files: Sequence[str]) -> None:
        _fetch(fs, [there[name]["name"] for name in names], files)

    try:
        mirror.update(
            {name: version(info) for name, info in there.items()},
            sizes={name: info.get("size") for name, info in there.items()},
            fetch=fetch,
            source=shown(url),
        )
    except DetpipeError:
        raise
    except Exception as error:
        cause = true_cause(error)
        if isinstance(cause, OSError) and cause.errno == errno.ENOSPC:
            free = shutil.disk_usage(mirror.home).free / 1e6
            way_out = (
                f"the disk is full ({free:,.1f} MB are free); set DETPIPE_CACHE to a larger one"
            )
        else:
            way_out = "what is copied is kept, and the next run goes on from there"
        raise DataError(
            f"copying {what} from {shown(url)} to '{mirror.home}' broke off: "
            f"{said(cause, url)}; {way_out}"
        ) from error


def _connect(url: str, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The file system of a URL, and what it says of the URL now."""
    from fsspec.core import url_to_fs  # type: ignore[import-untyped]

    fs, path = url_to_fs(url, skip_instance_cache=True, **options)
    fs.invalidate_cache()
    return fs, fs.info(path)


def _look(url: str, options: Mapping[str, Any]) -> tuple[Any, dict[str, dict[str, Any]]]:
    """The file system, and relative path → information of every file; '' if it is a file.

    Raises:
        FileNotFoundError: there is nothing.
        Exception: whatever else the file system raises.
    """
    fs, top = _connect(url, options)
    if top["type"] != "directory":
        return fs, {"": top}
    root = top["name"].rstrip("/")
    found = {}
    for info in _files(fs, root):
        name = info["name"]
        if not name.endswith("/"):  # an object store's mark of an empty folder
            inside = not root or name.startswith(f"{root}/")
            found[name[len(root) :].removeprefix("/") if inside else f"../{name}"] = info
    if not found:
        raise FileNotFoundError(url)
    return fs, found


def _files(fs: Any, root: str) -> Iterator[dict[str, Any]]:
    """What there is below a folder. A folder that cannot be listed is an error, never empty."""
    from fsspec import AbstractFileSystem  # type: ignore[import-untyped]
    from fsspec.asyn import AsyncFileSystem  # type: ignore[import-untyped]

    name, base = ("_find", AsyncFileSystem) if fs.async_impl else ("find", AbstractFileSystem)
    if getattr(type(fs), name) is not getattr(base, name):  # one listing for all folders
        yield from (i for i in fs.find(root, detail=True).values() if i["type"] != "directory")
        return
    # fsspec's own find passes over folders whose listing failed.
    folders, seen = [root], {root}
    while folders:
        for info in fs.ls(folders.pop(), detail=True):
            if info["type"] != "directory":
                yield info
            elif (folder := info["name"].rstrip("/")) not in seen:
                seen.add(folder)
                folders.append(folder)


def _fetch(fs: Any, names: Sequence[str], files: Sequence[str]) -> None:
    """Copies files, many at once where the file system can."""
    from fsspec import AbstractFileSystem

    if fs.async_impl or type(fs).get_file is not AbstractFileSystem.get_file:
        fs.get(list(names), list(files))
        return
    for name, file in zip(names, files, strict=True):  # fsspec's own asks first for a folder
        with fs.open(name, "rb") as source, Path(file).open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)


def _local(url: str) -> Path | None:
    """The path that a ``file://`` URL means."""
    found = re.fullmatch(r"(?:file|local)://(.*)", url, re.DOTALL)
    return Path(found[1]).absolute() if found and "::" not in url else None


def _mirror(url: str, cache: Path | None) -> Mirror:
    url = url.rstrip("/")
    plain = unquote(re.sub(r"[?#].*", "", url) if _WEB.search(url) else url)
    words = re.sub(r"[^\w.-]+", "-", shown(plain)).strip("-.")
    digest = hashlib.sha256(url.encode()).hexdigest()[:10]
    name = plain.replace("::", "/").rsplit("/", 1)[-1].strip()
    name = re.sub(r'[\\/:*?"<>|\0]', "_", name)
    home = (cache or cache_folder()).absolute() / f"{words[:80]}-{digest}"
    return Mirror(home, "data" if name in ("", ".", "..") else name[-120:])


def _require_plain(url: str) -> None:
    """Refuses URLs that would not be mirrored truly.

    Raises:
        DataError: a cache in the chain, or a folder of a web server.
    """
    parts = url.split("::")
    if caches := _CACHES.intersection(part.split("://")[0] for part in parts):
        name = sorted(caches)[0]
        raise DataError(
            f"{shown(url)}: leave '{name}::' out; detpipe keeps a copy of its own, and a cache in "
            f"between would hide what was edited there"
        )
    if _WEB.match(url) and url.endswith("/"):
        raise DataError(
            f"{shown(url)}: a web address is copied as a single file, for web servers do not list "
            f"folders; name a file, or an archive: zip://::{shown(url)}<file>.zip"
        )
