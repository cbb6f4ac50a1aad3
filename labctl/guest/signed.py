"""Verify signed checksum files with gpgv, in the two formats that distributions publish."""

from __future__ import annotations

import base64
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from labctl.base import process
from labctl.base.deadline import Deadline
from labctl.base.errors import BrokenError, UsageError

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
    """Return what a checksum file says of the file `name`.

    Raises BrokenError when it has no entry for it, or several that differ, or only weak ones.
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
    """Return the text that was signed, and the fingerprint of the primary key that signed it.

    `signature`: detached; None when `signed` is clear-signed. Only the key of `fingerprint` will
    do where one is given, else any of the keyring. Raises BrokenError when no such key signed it,
    UsageError when the keyring can't be read.
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
        # What gpgv took out of a clear-signed file is all that was signed of it.
        if wanted and text.is_file():
            return text.read_text(encoding="utf-8", errors="replace"), wanted[0]
    raise _refused(told, signers, keyring, fingerprint)


def good_signers(status: str) -> Iterator[str]:
    """Return the fingerprints of the primary keys of good signatures, in gpgv's status lines; none
    at all when one of the signatures is bad.

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
    """Return a keyring as gpgv reads it; ASCII-armored ones are decoded. Raises UsageError."""
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
        hint="Nothing of it was used. If the distribution has a new key, get its new keyring.",
    )


def _reason(status: str) -> str | None:
    reasons = {
        "BADSIG": "its signature is wrong: it is not the text that was signed",
        "REVKEYSIG": "its key was revoked",
        "EXPKEYSIG": "its key has expired",
        "EXPSIG": "its signature has expired",
        "NO_PUBKEY": "its key is not in the keyring",
        "NODATA": "it holds no signature",
    }
    return next((text for word, text in reasons.items() if f"[GNUPG:] {word}" in status), None)
