"""What went wrong with a URL, in words: fsspec's file systems raise what their libraries raise."""

from __future__ import annotations

import re

_WEB = re.compile(r"https?://", re.IGNORECASE)
_INSTALL = {
    "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs",
    "http": "fsspec[http]", "https": "fsspec[http]",
}  # fmt: skip


def shown(url: str) -> str:
    """The URL without passwords and signatures."""
    url = re.sub(r"://[^/@]*@", "://", url)
    return re.sub(r"\?.*", "?…", url) if _WEB.search(url) else url


def said(error: BaseException, url: str) -> str:
    """The error in its own words, without the URL's secrets."""
    return f"{type(error).__name__}: {error}".replace(url, shown(url)).rstrip(": ")


def true_cause(error: BaseException) -> BaseException:
    """The true error: fsspec says "not found" of everything that fails at a web server."""
    cause = error.__cause__
    if isinstance(error, FileNotFoundError) and cause is not None:
        failed = type(cause).__module__.startswith("aiohttp") or isinstance(cause, TimeoutError)
        if failed and getattr(cause, "status", None) not in (404, 410):
            return cause
    return error


def refused(error: BaseException) -> bool:
    """Whether the storage asks for other credentials, whichever library says so."""
    code = getattr(error, "status", None) or getattr(error, "code", None)
    name = type(error).__name__
    return (
        isinstance(error, PermissionError)
        or code in (401, 403, "401", "403")
        or any(part in name for part in ("Credential", "Authentication", "RefreshError", "SSO"))
    )


def mistaken(error: BaseException) -> bool:
    """Whether trying again later cannot help: the address or an option is wrong."""
    kinds = (FileNotFoundError, ImportError, ValueError, TypeError)
    return isinstance(error, kinds) or type(error).__module__ in ("zipfile", "tarfile")


def explain(error: BaseException, url: str, what: str) -> str:
    """What is wrong with a URL, and the way out."""
    protocol = re.split("://|::", url)[0].lower()
    if isinstance(error, FileNotFoundError):
        return f"there is nothing at {shown(url)} ({what}); check the address"
    if isinstance(error, ImportError):
        protocols = [re.split("://", part)[0].lower() for part in url.split("::")]
        packages = [_INSTALL[name] for name in protocols if name in _INSTALL]
        install = f'pip install "{packages[-1]}"' if packages else f"for {protocol}://: {error}"
        return f"{what} at {shown(url)} needs a package that is not installed: {install}"
    if mistaken(error):
        return (
            f"{what} at {shown(url)} cannot be opened: {said(error, url)}. Look at the "
            f"address (s3://, gs://, https://, … with the right spelling) and at the catalog's "
            f"storage_options"
        )
    if refused(error):
        return (
            f"{what} at {shown(url)} may not be read: {said(error, url)}. Log in with "
            f"the storage's own tool or variables (for S3 AWS_PROFILE or AWS_ACCESS_KEY_ID and "
            f"AWS_SECRET_ACCESS_KEY, for Google GOOGLE_APPLICATION_CREDENTIALS), or give the "
            f"catalog's entry 'credentials: <name in conf/local/credentials.yml>'; for a public "
            f"bucket 'storage_options: {{anon: true}}' (Google: {{token: anon}})"
        )
    return (
        f"{what} at {shown(url)} cannot be reached, and there is no whole copy of it here: "
        f"{said(error, url)}. Look at the network and the address, then run again"
    )
