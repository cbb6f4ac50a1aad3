"""Checksum files: who signed them, and what they say. gpgv is the real one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from labctl.base.errors import BrokenError, UsageError
from labctl.guest import fetch
from labctl.guest.fetch import Checksum, checksum_of, good_signers

from .publisher import Signer

TEXT = b"0123  a.qcow2\n"
SHA256, SHA512 = "ab" * 32, "cd" * 64


def test_a_detached_signature_of_a_key_in_the_keyring_is_good(
    signer: Signer, keyring: Path
) -> None:
    text, fingerprint = fetch.verified(TEXT, signer.detached(TEXT), keyring, None)
    assert text == TEXT.decode()
    assert fingerprint == signer.fingerprint


def test_of_a_clear_signed_file_only_what_was_signed_is_read(signer: Signer, keyring: Path) -> None:
    around = b"evil  a.qcow2\n" + signer.clear(TEXT) + b"evil  a.qcow2\n"
    text, _ = fetch.verified(around, None, keyring, signer.fingerprint)
    assert text == TEXT.decode()


def test_an_armored_keyring_serves_as_well(signer: Signer, tmp_path: Path) -> None:
    armored = tmp_path / "key.asc"
    armored.write_bytes(signer.keyring(armored=True))
    assert b"BEGIN PGP" in armored.read_bytes()
    _, fingerprint = fetch.verified(TEXT, signer.detached(TEXT), armored, None)
    assert fingerprint == signer.fingerprint


def test_another_text_than_the_signed_one_is_refused(signer: Signer, keyring: Path) -> None:
    with pytest.raises(BrokenError, match="the text was changed"):
        fetch.verified(TEXT + b"x", signer.detached(TEXT), keyring, None)


def test_a_clear_signed_text_that_was_changed_is_refused(signer: Signer, keyring: Path) -> None:
    changed = signer.clear(TEXT).replace(b"0123", b"0124")
    with pytest.raises(BrokenError, match="the text was changed"):
        fetch.verified(changed, None, keyring, None)


def test_a_key_that_is_not_in_the_keyring_is_refused(stranger: Signer, keyring: Path) -> None:
    with pytest.raises(BrokenError, match="its key is not in the keyring"):
        fetch.verified(TEXT, stranger.detached(TEXT), keyring, None)


def test_another_key_of_the_keyring_than_the_named_one_is_refused(
    signer: Signer, stranger: Signer, tmp_path: Path
) -> None:
    both = tmp_path / "both.gpg"
    both.write_bytes(signer.keyring() + stranger.keyring())
    with pytest.raises(BrokenError, match=f"signed it, not {signer.fingerprint}"):
        fetch.verified(TEXT, stranger.detached(TEXT), both, signer.fingerprint)


@pytest.fixture(scope="module")
def expired(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Signer]:
    made = Signer.make(tmp_path_factory.mktemp("gpg") / "expired", expires="2d", days_ago=10)
    yield made
    made.stop()


def test_a_key_that_has_expired_is_refused(expired: Signer, tmp_path: Path) -> None:
    keyring = tmp_path / "expired.gpg"
    keyring.write_bytes(expired.keyring())
    with pytest.raises(BrokenError, match="its key has expired"):
        fetch.verified(TEXT, expired.detached(TEXT, days_ago=9), keyring, None)


@pytest.mark.parametrize(
    ("data", "signature"),
    [(TEXT, None), (TEXT, b""), (TEXT, b"<html>404</html>"), (b"", None), (b"\0" * 64, None)],
    ids=["unsigned", "empty signature", "a web page", "empty", "zeros"],
)
def test_what_is_no_signature_is_refused(
    keyring: Path, data: bytes, signature: bytes | None
) -> None:
    with pytest.raises(BrokenError, match="not signed by a key that the recipe trusts"):
        fetch.verified(data, signature, keyring, None)


def test_a_keyring_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nosuch\.gpg: No such file"):
        fetch.verified(TEXT, None, tmp_path / "nosuch.gpg", None)


# Status lines of gpgv 2.2.40.
GOOD = """\
[GNUPG:] NEWSIG test@example.org
[GNUPG:] KEY_CONSIDERED AAAA 0
[GNUPG:] GOODSIG 248D54EAD78E4A4A A Test <test@example.org>
[GNUPG:] VALIDSIG BBBB 2026-01-01 1767225600 0 4 0 22 10 00 AAAA
"""


def test_the_primary_key_of_a_good_signature_is_its_signer() -> None:
    assert list(good_signers(GOOD)) == ["AAAA"]


def test_one_bad_signature_beside_a_good_one_spoils_both() -> None:
    bad = "[GNUPG:] NEWSIG\n[GNUPG:] BADSIG 248D54EAD78E4A4A A Test\n"
    assert list(good_signers(GOOD + bad)) == []
    assert list(good_signers(bad + GOOD)) == []


def test_a_signature_of_an_unknown_key_beside_a_good_one_does_not() -> None:
    unknown = "[GNUPG:] NEWSIG\n[GNUPG:] ERRSIG 1 22 10 00 1 9 -\n[GNUPG:] NO_PUBKEY 1\n"
    assert list(good_signers(GOOD + unknown)) == ["AAAA"]


def test_valid_is_not_enough_without_good() -> None:
    assert list(good_signers(GOOD.replace("GOODSIG", "REVKEYSIG"))) == []


@pytest.mark.parametrize(
    "line",
    [
        f"{SHA256}  a.qcow2",
        f"{SHA256} *a.qcow2",
        f"{SHA256} *./a.qcow2",
        f"SHA256 (a.qcow2) = {SHA256}",
        f"{SHA256.upper()}  a.qcow2",
    ],
)
def test_both_formats_of_checksum_files_are_read(line: str) -> None:
    others = f"# a.qcow2: 5 bytes\n{'0' * 64}  b.qcow2\n{'1' * 64}  xa.qcow2\n"
    assert checksum_of("a.qcow2", f"{others}{line}\n") == Checksum("sha256", SHA256)
    assert checksum_of("a.qcow2", f"{SHA512}  a.qcow2") == Checksum("sha512", SHA512)


def test_of_two_kinds_of_checksums_the_stronger_is_taken() -> None:
    both = f"{SHA256}  a.qcow2\n{SHA512}  a.qcow2\n"
    assert checksum_of("a.qcow2", both).algorithm == "sha512"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{SHA256}  b.qcow2", "has no SHA-256 or SHA-512 of 'a.qcow2'"),
        (f"{'ab' * 16}  a.qcow2", "has no SHA-256 or SHA-512"),
        (f"{'ab' * 20}  a.qcow2", "has no SHA-256 or SHA-512"),
        (f"{SHA256}  a.qcow2.asc", "has no SHA-256 or SHA-512"),
        (f"{SHA256}  a.qcow2\n{'00' * 32}  a.qcow2", "contradicts itself about 'a.qcow2'"),
        ("", "has no SHA-256 or SHA-512"),
    ],
    ids=["another file", "MD5", "SHA-1", "a longer name", "two that differ", "empty"],
)
def test_a_file_without_one_strong_checksum_of_the_image_is_refused(text: str, said: str) -> None:
    with pytest.raises(BrokenError, match=said):
        checksum_of("a.qcow2", text)
