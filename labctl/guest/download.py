"""Download within limits of size and time; resume a broken download, never from elsewhere.

What comes is not to be trusted yet: callers verify it.
"""

from __future__ import annotations

import http.client
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from labctl.base.deadline import Deadline
from labctl.base.errors import BrokenError, HostError, UsageError
from labctl.base.events import Listener, Note
from labctl.guest.recipe import url_problem

MAX_BYTES = 8 * 2**30
"""Cloud images have half a gigabyte; more than this is none."""

_STALL_S = 60.0
"""A server that sends nothing for so long has gone."""
_ATTEMPTS = 4
_CHUNK = 1 << 20


def read_small(url: str, deadline: Deadline, *, limit_bytes: int = 2**20) -> bytes:
    """Return what is at a URL, all of it; raises HostError, and BrokenError past the limit."""
    with _opened(url, 0, deadline) as response:
        try:
            data: bytes = response.read(limit_bytes + 1)
        except (OSError, http.client.HTTPException) as error:
            raise _unreachable(url, error) from error
    if len(data) > limit_bytes:
        raise BrokenError(
            f"{url} is larger than {limit_bytes} bytes, too large for a checksum file"
        )
    return data


def download(
    url: str, target: Path, deadline: Deadline, listener: Listener, *, max_bytes: int = MAX_BYTES
) -> None:
    """Write what is at a URL to a file, telling the listener of each tenth.

    Raises HostError when it can't be had, BrokenError when it ends early or is too large; the
    caller removes what is there of `target` then.
    """
    progress = _Progress(url, listener)
    with open(target, "wb") as file:
        for _ in range(_ATTEMPTS):
            with _opened(url, file.tell(), deadline) as response:
                if response.status != http.HTTPStatus.PARTIAL_CONTENT:
                    file.seek(0)
                    file.truncate()
                total = _total_bytes(response, file.tell())
                _check_size(url, total or 0, file.tell(), target, max_bytes)
                try:
                    for data in _chunks(response, deadline):
                        file.write(data)
                        _check_size(url, file.tell(), file.tell(), target, max_bytes)
                        progress.told(file.tell(), total)
                except _InterruptedDownload as error:
                    why = str(error)
                else:
                    if total in (None, file.tell()):
                        return
                    why = "the server closed the connection"
        received = file.tell()
    raise BrokenError(
        f"{url} ended after {received} of {total} bytes, in {_ATTEMPTS} attempts: {why}",
        hint="Try again later, or name another mirror in the recipe.",
    )


class _InterruptedDownload(Exception):
    pass


class _Progress:
    def __init__(self, url: str, listener: Listener) -> None:
        self._name = urlsplit(url).path.rsplit("/", 1)[-1]
        self._listener = listener
        self._next = 1

    def told(self, received: int, total: int | None) -> None:
        if total and received * 10 // total >= self._next:
            self._next = received * 10 // total + 1
            text = f"Downloading {self._name}: {received >> 20} of {total >> 20} MiB"
            self._listener(Note(text=text))


class _OnlyWhereAllowed(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        problem = url_problem(newurl)
        if req.type == "https" and not newurl.startswith("https://"):
            problem = "is not https:// any more"
        if problem:
            raise HostError(
                f"{req.full_url} leads to {newurl}, which {problem}",
                hint="Name a mirror in the recipe that stays with https://.",
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


@contextmanager
def _opened(url: str, offset: int, deadline: Deadline) -> Iterator[http.client.HTTPResponse]:
    if problem := url_problem(url):
        raise UsageError(f"{url} {problem}")
    handlers: list[urllib.request.BaseHandler] = [_OnlyWhereAllowed()]
    if urlsplit(url).scheme == "http":
        # On this machine itself, which a proxy would not reach.
        handlers.append(urllib.request.ProxyHandler({}))
    headers = {"User-Agent": "labctl", **({"Range": f"bytes={offset}-"} if offset else {})}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310  # checked above
    opener = urllib.request.build_opener(*handlers)
    try:
        response = opener.open(request, timeout=min(_STALL_S, deadline.remaining()))
    except urllib.error.HTTPError as error:
        raise HostError(
            f"{url}: the server says {error.code} {error.reason}",
            hint="Distributions remove old releases: compare the recipe's URLs with what is there.",
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(url, error) from error
    with response:
        yield response


def _chunks(response: http.client.HTTPResponse, deadline: Deadline) -> Iterator[bytes]:
    while True:
        try:
            data = response.read(_CHUNK)
        except (OSError, http.client.HTTPException) as error:
            raise _InterruptedDownload(_said(error)) from error
        if not data:
            return
        yield data
        deadline.remaining()


def _total_bytes(response: http.client.HTTPResponse, offset: int) -> int | None:
    length = response.headers.get("Content-Length", "")
    return offset + int(length) if length.isdecimal() else None


def _check_size(url: str, size: int, present: int, target: Path, max_bytes: int) -> None:
    """Check the size. `size`: what the file will have or has; `present`: what of it is on the disk
    already.
    """
    if size > max_bytes:
        raise BrokenError(
            f"{url} is larger than {max_bytes >> 20} MiB, too large for a cloud image",
            hint="Compare 'url' in the recipe with what the distribution offers.",
        )
    free = shutil.disk_usage(target.parent).free
    if size - present > free:
        raise HostError(
            f"{url} has {size >> 20} MiB, and {target.parent} has {free >> 20} MiB free",
            hint="Free some space, or give a folder on a larger disk with --state-dir.",
        )


def _unreachable(url: str, error: Exception) -> HostError:
    return HostError(
        f"cannot download {url}: {_said(error)}",
        hint="Building from a cloud image needs the network; one made of packages (debian-13) "
        "needs the package sources of this host alone.",
    )


def _said(error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    return str(reason) or type(error).__name__
