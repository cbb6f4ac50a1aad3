"""Fetch an official cloud image, and verify its publisher and its content."""

from __future__ import annotations

import base64
import hashlib
import http.client
import re
import shutil
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from labctl.base import process
from labctl.base.errors import BrokenError, HostError, UsageError
from labctl.base.events import Listener, Note
from labctl.base.paths import StatePaths
from labctl.base.process import Deadline
from labctl.guest.recipe import CloudImage, url_problem

# Download within limits of size and time; resume a broken download, but only from the same source.
#
# The content is not trusted yet: callers verify it.


MAX_BYTES = 8 * 2**30
"""Limit on a download: cloud images have half a gigabyte."""

_STALL_S = 60.0
"""A server that sends nothing for that long is considered dead."""
_ATTEMPTS = 4
_CHUNK = 1 << 20


def read_small(url: str, deadline: Deadline, *, limit_bytes: int = 2**20) -> bytes:
    """Return the complete content of a URL; raises HostError, and BrokenError beyond the limit."""
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
    """Write the content of a URL to a file, reporting each tenth to the listener.

    Raises HostError if it is unavailable, BrokenError if it ends early or is too large; the caller
    then removes the partial `target`.
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
            problem = "is not https://"
        if problem:
            raise HostError(
                f"{req.full_url} leads to {newurl}, which {problem}",
                hint="Set the recipe's URL to a mirror that uses https:// throughout.",
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


@contextmanager
def _opened(url: str, offset: int, deadline: Deadline) -> Iterator[http.client.HTTPResponse]:
    if problem := url_problem(url):
        raise UsageError(f"{url} {problem}")
    handlers: list[urllib.request.BaseHandler] = [_OnlyWhereAllowed()]
    if urlsplit(url).scheme == "http":
        # On this machine itself, which a proxy cannot reach.
        handlers.append(urllib.request.ProxyHandler({}))
    headers = {"User-Agent": "labctl", **({"Range": f"bytes={offset}-"} if offset else {})}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310  # checked above
    opener = urllib.request.build_opener(*handlers)
    try:
        response = opener.open(request, timeout=min(_STALL_S, deadline.remaining()))
    except urllib.error.HTTPError as error:
        raise HostError(
            f"{url}: the server answered {error.code} {error.reason}",
            hint="Distributions remove old releases: check the recipe's URLs.",
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


_MOST_DIGITS = 18
"""Digits of a size: Python refuses to convert some thousand, which a server may send."""


def _total_bytes(response: http.client.HTTPResponse, offset: int) -> int | None:
    length = response.headers.get("Content-Length", "")
    is_number = length.isdecimal() and len(length) <= _MOST_DIGITS
    return offset + int(length) if is_number else None


def _check_size(url: str, size: int, present: int, target: Path, max_bytes: int) -> None:
    """Check the size. `size`: that of the complete file; `present`: the part on disk already."""
    if size > max_bytes:
        raise BrokenError(
            f"{url} is larger than {max_bytes >> 20} MiB, too large for a cloud image",
            hint="Check 'url' in the recipe.",
        )
    free = shutil.disk_usage(target.parent).free
    if size - present > free:
        raise HostError(
            f"{url} has {size >> 20} MiB, but {target.parent} has {free >> 20} MiB free",
            hint="Free some space, or name a folder on a larger disk with --state-dir.",
        )


def _unreachable(url: str, error: Exception) -> HostError:
    return HostError(
        f"cannot download {url}: {_said(error)}",
        hint="Building from a cloud image needs the network; an image from packages (debian-13) "
        "needs only the package sources of this host.",
    )


def _said(error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    return str(reason) or type(error).__name__


# Verify signed checksum files with gpgv, in the two formats that distributions publish.


_ALGORITHMS = {64: "sha256", 128: "sha512"}
"""Algorithms by the number of hexadecimal digits. Shorter ones (MD5, SHA-1) prove nothing."""

_GNU = re.compile(r"(?P<hex>[0-9a-fA-F]{32,128}) [ *](?:\./)?(?P<name>.+)")
"""A line of sha256sum(1): Debian, Ubuntu."""
_BSD = re.compile(r"SHA(?:256|512) \((?P<name>.+)\) = (?P<hex>[0-9a-fA-F]{32,128})")
"""A line of `sha256sum --tag`: Fedora."""

_ARMOR = re.compile(rb"-----BEGIN PGP PUBLIC KEY BLOCK-----(.*?)-----END PGP", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Checksum:
    algorithm: str
    hex: str

    @classmethod
    def of(cls, text: str) -> Checksum:
        """Parse "sha256:…", as recipes write it."""
        algorithm, _, digits = text.partition(":")
        return cls(algorithm, digits)

    def __str__(self) -> str:
        return f"{self.algorithm}:{self.hex}"


def checksum_of(name: str, text: str) -> Checksum:
    """Return the checksum of the file `name` in a checksum file.

    Raises BrokenError if it has no entry for it, or several that differ, or only weak ones.
    """
    found = {
        match["hex"].lower()
        for line in text.splitlines()
        if (match := _GNU.fullmatch(line.strip()) or _BSD.fullmatch(line.strip()))
        and match["name"] == name
    }
    strong = [Checksum(_ALGORITHMS[len(hex_)], hex_) for hex_ in found if len(hex_) in _ALGORITHMS]
    if strong and len({checksum.algorithm for checksum in strong}) == len(strong):
        return max(strong, key=lambda checksum: len(checksum.hex))
    said = "contradicts itself about" if strong else "has no SHA-256 or SHA-512 of"
    raise BrokenError(
        f"the signed checksum file {said} '{name}'",
        hint="Compare 'url' and 'checksums' in the recipe: both must be of the same release.",
    )


def verified(
    signed: bytes, signature: bytes | None, keyring: Path, fingerprint: str | None
) -> tuple[str, str]:
    """Return the signed text, and the fingerprint of the primary key that signed it.

    `signature`: detached; None if `signed` is clear-signed. Only the key of `fingerprint` is
    accepted if one is given, else any of the keyring. Raises BrokenError if no such key signed it,
    UsageError if the keyring cannot be read.
    """
    deadline = Deadline.after(60, "verifying a signature")
    with tempfile.TemporaryDirectory(prefix="labctl-gpgv-") as folder:
        home = Path(folder)
        (home / "keyring.gpg").write_bytes(binary_keyring(keyring))
        (home / "signed").write_bytes(signed)
        files = [home / "signed"]
        output = ["--output", str(home / "text")]
        if signature is not None:
            (home / "signature").write_bytes(signature)
            files, output = [home / "signature", home / "signed"], []
        options = ["--homedir", folder, "--keyring", f"{folder}/keyring.gpg", "--status-fd", "1"]
        told = process.run(
            ["gpgv", *options, *output, *map(str, files)],
            deadline=deadline,
            check=False,
            env={"LC_ALL": "C"},
        )
        signers = list(good_signers(told.stdout))
        text = home / "signed" if signature is not None else home / "text"
        wanted = [signer for signer in signers if fingerprint in (None, signer)]
        # Only the text that gpgv extracts from a clear-signed file is signed.
        if wanted and text.is_file():
            return text.read_text(encoding="utf-8", errors="replace"), wanted[0]
    raise _refused(told, signers, keyring, fingerprint)


def good_signers(status: str) -> Iterator[str]:
    """Return the fingerprints of the primary keys of good signatures, in gpgv's status lines; none
    at all if one of the signatures is bad.

    doc/DETAILS of GnuPG, "General status codes": a signature of a key that has expired or was
    revoked has EXPKEYSIG or REVKEYSIG in place of GOODSIG.
    """
    words = [line.split()[1:] for line in status.splitlines() if line.startswith("[GNUPG:] ")]
    if any(line[:1] == ["BADSIG"] for line in words):
        return
    is_good = False
    for line in words:
        match line:
            case ["NEWSIG", *_]:
                is_good = False
            case ["GOODSIG", *_]:
                is_good = True
            case ["VALIDSIG", *rest] if is_good and rest:
                yield rest[-1]


def binary_keyring(path: Path) -> bytes:
    """Return a keyring in gpgv's format; ASCII-armored ones are decoded. Raises UsageError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the keyring {path}: {error.strerror}") from error
    blocks = _ARMOR.findall(data)
    if not blocks:
        return data
    decoded = b""
    for block in blocks:
        # RFC 9580, 6.2: headers, an empty line, the data, a checksum that begins with "=".
        _, _, body = block.replace(b"\r\n", b"\n").partition(b"\n\n")
        lines = [line.strip() for line in body.splitlines() if not line.startswith(b"=")]
        try:
            decoded += base64.b64decode(b"".join(lines), validate=True)
        except ValueError as error:
            raise UsageError(f"{path} is not a keyring: {error}") from error
    return decoded


def _refused(
    told: process.Completed, signers: list[str], keyring: Path, fingerprint: str | None
) -> BrokenError:
    if signers and fingerprint not in (None, *signers):
        why = f"the key {signers[0]} signed it, not {fingerprint}"
    elif reason := _reason(told.stdout):
        why = reason
    else:
        why = (told.stderr.strip().splitlines() or ["gpgv found no signature"])[-1]
    return BrokenError(
        f"the checksum file is not signed by a key that the recipe trusts ({keyring}): {why}",
        hint="It was not used. If the distribution has a new key, get its new keyring.",
    )


def _reason(status: str) -> str | None:
    reasons = {
        "BADSIG": "its signature is wrong: the text was changed",
        "REVKEYSIG": "its key was revoked",
        "EXPKEYSIG": "its key has expired",
        "EXPSIG": "its signature has expired",
        "NO_PUBKEY": "its key is not in the keyring",
        "NODATA": "it holds no signature",
    }
    return next((text for word, text in reasons.items() if f"[GNUPG:] {word}" in status), None)


DEADLINE_S = 2 * 3600.0
"""Enough for half a gigabyte over a slow line."""

_PARTIAL = ".partial-"
_DIGITS = 12
"""Digits of the checksum in the file's name."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """Hold a cloud image that is verified against its publisher's signature.

    `signed_by`: fingerprint of the key that signed its checksum; None if the recipe itself contains
    the checksum.
    """

    path: Path
    url: str
    checksum: Checksum
    signed_by: str | None

    def to_json(self) -> dict[str, object]:
        return {
            "file": self.path.name,
            "url": self.url,
            "checksum": str(self.checksum),
            "signed_by": self.signed_by,
        }


def fetch(cloud: CloudImage, places: StatePaths, listener: Listener) -> Fetched:
    """Return the cloud image in the state folder, downloaded if it is missing, and verified now.

    The caller holds the images' lock. Raises HostError if it is unavailable, BrokenError if it does
    not match the signature: then nothing of it is kept.
    """
    deadline = Deadline.after(DEADLINE_S, f"downloading {cloud.url}")
    name = unquote(PurePosixPath(urlsplit(cloud.url).path).name)
    checksum, signer = _trusted_checksum(cloud, name, deadline)
    folder = places.downloads
    _make(folder)
    remove_partial(places)
    path = folder / f"{checksum.hex[:_DIGITS]}-{name}"
    fetched = Fetched(path, cloud.url, checksum, signer)
    if path.is_file():
        if _hash(path, checksum) == checksum.hex:
            return fetched
        listener(Note(text=f"{path} has changed since it was verified; downloading it again"))
        path.unlink()
    partial = folder / f"{_PARTIAL}{path.name}"
    try:
        download(cloud.url, partial, deadline, listener)
        if (found := _hash(partial, checksum)) != checksum.hex:
            signed = f"signed by {signer}" if signer else "of the recipe"
            raise BrokenError(
                f"{cloud.url} is not the published file: its {checksum.algorithm} is "
                f"{found[:16]}…, and the one {signed} is {checksum.hex[:16]}…",
                hint="It was removed. A mirror may be updating: try again later, or check 'url' "
                "and 'checksums' in the recipe.",
            )
        partial.rename(path)
    except OSError as error:
        raise HostError(
            f"cannot write {partial}: {error.strerror}",
            hint="Free some space, or name another folder with --state-dir.",
        ) from error
    finally:
        partial.unlink(missing_ok=True)
    return fetched


def remove_partial(places: StatePaths) -> None:
    """Remove what a killed download left. The caller holds the images' lock."""
    for path in places.downloads.glob(f"{_PARTIAL}*"):
        path.unlink()


def _trusted_checksum(
    cloud: CloudImage, name: str, deadline: Deadline
) -> tuple[Checksum, str | None]:
    if cloud.digest is not None:
        return Checksum.of(cloud.digest), None
    assert cloud.checksums is not None  # the recipe was checked
    assert cloud.signed_by is not None
    keyring = Path(cloud.signed_by)
    if not keyring.is_file():
        source = f": {cloud.keyring_from}" if cloud.keyring_from else "."
        raise HostError(
            f"no keyring {keyring} to check the signature with",
            hint=f"Get it from a trusted source{source}",
        )
    signed = read_small(cloud.checksums, deadline)
    signature = read_small(cloud.signature, deadline) if cloud.signature else None
    text, signer = verified(signed, signature, keyring, cloud.fingerprint)
    return checksum_of(name, text), signer


def _hash(path: Path, checksum: Checksum) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, checksum.algorithm).hexdigest()


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HostError(
            f"cannot write to {folder.parent}: {error.strerror}",
            hint="Run labctl as root, or name your own folder with --state-dir.",
        ) from error
