"""Fetch an official cloud image, and verify its publisher and its content."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from labctl.base.deadline import Deadline
from labctl.base.errors import BrokenError, HostError
from labctl.base.events import Listener, Note
from labctl.base.paths import StatePaths
from labctl.guest.download import download, read_small
from labctl.guest.recipe import CloudImage
from labctl.guest.signed import Checksum, checksum_of, verified

DEADLINE_S = 2 * 3600.0
"""Half a gigabyte over a slow line."""

_PARTIAL = ".partial-"
_DIGITS = 12
"""Digits of the checksum in the file's name."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """Hold a cloud image that is verified against its publisher's signature.

    `signed_by`: fingerprint of the key that signed its checksum; None where the recipe itself
    says the checksum.
    """

    path: Path
    url: str
    checksum: Checksum
    signed_by: str | None

    def to_json(self) -> dict[str, Any]:
        return {
            "file": self.path.name,
            "url": self.url,
            "checksum": str(self.checksum),
            "signed_by": self.signed_by,
        }


def fetch(cloud: CloudImage, places: StatePaths, listener: Listener) -> Fetched:
    """Return the cloud image in the state folder, downloaded unless it is there, and verified now.

    The caller holds the images' lock. Raises HostError when it can't be had, BrokenError when it
    is not what was signed: nothing is left of it then.
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
                f"{cloud.url} is not the file that was published: its {checksum.algorithm} is "
                f"{found[:16]}…, and the one {signed} is {checksum.hex[:16]}…",
                hint="It was removed. A mirror may be half way through an update: try again "
                "later, or compare 'url' and 'checksums' in the recipe.",
            )
        partial.rename(path)
    except OSError as error:
        raise HostError(
            f"cannot write {partial}: {error.strerror}",
            hint="Free some space, or give another folder with --state-dir.",
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
            hint=f"Get it where you trust it{source}",
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
            hint="Run labctl as root, or give a folder of your own with --state-dir.",
        ) from error
