"""Fetching a cloud image from a web server on this machine: what is taken, and what is refused
with a sentence and nothing left of it."""

from __future__ import annotations

import hashlib
import shutil
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labctl.base.errors import BrokenError, DeadlineError, HostError, LabctlError, UsageError
from labctl.base.events import Event, Note, silent
from labctl.base.paths import StatePaths
from labctl.base.process import Deadline
from labctl.guest import fetch
from labctl.guest.recipe import CloudImage

from .publisher import Server, Signer

IMAGE = bytes(range(256)) * 20_000
NAME = "a cloud.qcow2"
PATH = "/a%20cloud.qcow2"


@pytest.fixture
def published(server: Server, signer: Signer) -> Server:
    server.publish(NAME, IMAGE, signer)
    server.files[PATH] = server.files.pop(f"/{NAME}")
    return server


def cloud_image(server: Server, keyring: Path, **changed: Any) -> CloudImage:
    given = {
        "url": f"{server.url}{PATH}",
        "checksums": f"{server.url}/SUMS",
        "signature": f"{server.url}/SUMS.sign",
        "signed_by": str(keyring),
    }
    return CloudImage(**{**given, **changed})


def left(places: StatePaths) -> list[str]:
    return [path.name for path in places.downloads.glob("*")]


def refused(
    places: StatePaths, cloud: CloudImage, error: type[LabctlError], said: str
) -> LabctlError:
    with pytest.raises(error, match=said) as caught:
        fetch.fetch(cloud, places, silent)
    assert left(places) == []
    return caught.value


def test_an_image_with_a_detached_signature_is_fetched_and_kept(
    published: Server, keyring: Path, places: StatePaths, signer: Signer
) -> None:
    heard: list[Event] = []
    fetched = fetch.fetch(cloud_image(published, keyring), places, heard.append)
    assert fetched.path.read_bytes() == IMAGE
    assert fetched.signed_by == signer.fingerprint
    assert fetched.checksum.hex == hashlib.sha512(IMAGE).hexdigest()
    assert left(places) == [f"{fetched.checksum.hex[:12]}-{NAME}"]
    assert any(isinstance(event, Note) and "4 of 4 MiB" in event.text for event in heard)


def test_one_with_a_clear_signed_checksum_file_as_well(
    published: Server, keyring: Path, places: StatePaths
) -> None:
    checksums = f"{published.url}/CHECKSUM"
    cloud = cloud_image(published, keyring, checksums=checksums, signature=None)
    assert fetch.fetch(cloud, places, silent).checksum.algorithm == "sha256"


def test_one_whose_checksum_is_in_the_recipe_as_well(published: Server, places: StatePaths) -> None:
    digest = f"sha512:{hashlib.sha512(IMAGE).hexdigest()}"
    cloud = CloudImage(url=f"{published.url}{PATH}", digest=digest)
    fetched = fetch.fetch(cloud, places, silent)
    assert fetched.path.read_bytes() == IMAGE
    assert fetched.signed_by is None


def test_what_is_there_is_verified_again_but_not_downloaded_again(
    published: Server, keyring: Path, places: StatePaths
) -> None:
    cloud = cloud_image(published, keyring)
    first = fetch.fetch(cloud, places, silent)
    published.asked.clear()
    assert fetch.fetch(cloud, places, silent) == first
    assert PATH not in [path for path, _ in published.asked]
    first.path.write_bytes(b"changed")
    assert fetch.fetch(cloud, places, silent).path.read_bytes() == IMAGE


def test_another_file_than_the_signed_one_is_refused(
    published: Server, keyring: Path, places: StatePaths
) -> None:
    published.files[PATH] = IMAGE[:-1] + b"x"
    error = refused(places, cloud_image(published, keyring), BrokenError, "not the published file")
    assert hashlib.sha512(IMAGE).hexdigest()[:16] in error.message


def test_a_wrong_signature_is_refused_before_anything_is_downloaded(
    published: Server, keyring: Path, places: StatePaths, stranger: Signer
) -> None:
    published.files["/SUMS.sign"] = stranger.detached(published.files["/SUMS"])
    refused(places, cloud_image(published, keyring), BrokenError, "not in the keyring")
    assert PATH not in [path for path, _ in published.asked]


def test_checksums_that_someone_changed_are_refused(
    published: Server, keyring: Path, places: StatePaths
) -> None:
    evil = IMAGE[:-1] + b"x"
    published.files |= {
        PATH: evil,
        "/SUMS": f"{hashlib.sha512(evil).hexdigest()}  {NAME}\n".encode(),
    }
    refused(places, cloud_image(published, keyring), BrokenError, "the text was changed")


def test_an_image_that_the_checksums_do_not_name_is_refused(
    published: Server, keyring: Path, places: StatePaths
) -> None:
    published.files["/other.qcow2"] = IMAGE
    cloud = cloud_image(published, keyring, url=f"{published.url}/other.qcow2")
    refused(places, cloud, BrokenError, "no SHA-256 or SHA-512 of 'other.qcow2'")


def test_a_connection_that_breaks_is_taken_up_where_it_broke(
    published: Server, keyring: Path, places: StatePaths
) -> None:
    published.cut_at[PATH] = [3_000_000, 1_000_000]
    fetched = fetch.fetch(cloud_image(published, keyring), places, silent)
    assert fetched.path.read_bytes() == IMAGE
    asked = [wanted for path, wanted in published.asked if path == PATH]
    assert asked == [None, "bytes=3000000-", "bytes=4000000-"]


def test_a_server_that_knows_no_ranges_is_asked_for_all_of_it_again(
    published: Server, keyring: Path, places: StatePaths
) -> None:
    published.ranges = False
    published.cut_at[PATH] = [3_000_000]
    fetched = fetch.fetch(cloud_image(published, keyring), places, silent)
    assert fetched.path.read_bytes() == IMAGE


def test_a_download_that_always_ends_early_is_refused(
    published: Server, keyring: Path, places: StatePaths
) -> None:
    published.cut_at[PATH] = [1000] * 10
    said = r"ended after 4000 of 5120000 bytes, in 4 attempts"
    refused(places, cloud_image(published, keyring), BrokenError, said)


@pytest.mark.parametrize("path", [PATH, "/SUMS", "/SUMS.sign"])
def test_a_redirect_to_plain_http_is_refused(
    published: Server, keyring: Path, places: StatePaths, path: str
) -> None:
    published.redirects[path] = "http://mirror.example/a.qcow2"
    said = r"leads to http://mirror\.example/a\.qcow2, which must begin with https"
    refused(places, cloud_image(published, keyring), HostError, said)


def test_a_redirect_to_a_file_is_refused(
    published: Server, keyring: Path, places: StatePaths
) -> None:
    published.redirects[PATH] = "file:///etc/passwd"
    refused(places, cloud_image(published, keyring), HostError, "file:///etc/passwd.* not allowed")


def test_a_redirect_on_this_machine_is_followed(
    published: Server, keyring: Path, places: StatePaths
) -> None:
    published.redirects["/latest"] = f"{published.url}{PATH}"
    target = places.root / "x"
    places.root.mkdir()
    deadline = Deadline.after(10, "a test")
    fetch.download(f"{published.url}/latest", target, deadline, silent)
    assert target.read_bytes() == IMAGE


def test_a_file_larger_than_any_cloud_image_is_refused(
    published: Server, keyring: Path, places: StatePaths
) -> None:
    published.claimed_bytes[PATH] = fetch.MAX_BYTES + 1
    refused(places, cloud_image(published, keyring), BrokenError, "larger than 8192 MiB")


def test_a_file_that_the_disk_has_no_room_for_is_refused(
    published: Server, keyring: Path, places: StatePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(2**40, 2**40, 2**20))
    refused(places, cloud_image(published, keyring), HostError, "has 4 MiB, but .* has 1 MiB free")


def test_a_checksum_file_without_end_is_refused(
    published: Server, keyring: Path, places: StatePaths
) -> None:
    published.files["/SUMS"] = b"#" * (2**20 + 1)
    refused(places, cloud_image(published, keyring), BrokenError, "too large for a checksum file")


def test_what_is_not_there_is_told_with_the_servers_words(
    published: Server, keyring: Path, places: StatePaths
) -> None:
    del published.files["/SUMS.sign"]
    refused(places, cloud_image(published, keyring), HostError, "the server answered 404")


def test_a_server_that_does_not_answer_is_told(
    server: Server, keyring: Path, places: StatePaths
) -> None:
    gone = Server(url="http://127.0.0.1:9")
    refused(places, cloud_image(gone, keyring), HostError, "cannot download .*refused")


def test_a_missing_keyring_is_told_with_where_to_get_it(
    published: Server, tmp_path: Path, places: StatePaths
) -> None:
    cloud = cloud_image(published, tmp_path / "none.gpg", keyring_from="the package some-keyring")
    error = refused(places, cloud, HostError, "no keyring")
    assert error.hint == "Get it from a trusted source: the package some-keyring"


def test_a_download_ends_with_its_deadline(
    published: Server, keyring: Path, places: StatePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "DEADLINE_S", 0.0)
    refused(places, cloud_image(published, keyring), DeadlineError, "was not done within 0 s")


def test_what_a_killed_download_left_is_removed(
    published: Server, keyring: Path, places: StatePaths
) -> None:
    places.downloads.mkdir(parents=True)
    (places.downloads / ".partial-x.qcow2").write_bytes(b"half")
    fetched = fetch.fetch(cloud_image(published, keyring), places, silent)
    assert [path.name for path in places.downloads.iterdir()] == [fetched.path.name]


def test_nothing_but_https_is_ever_asked(tmp_path: Path) -> None:
    deadline = Deadline.after(10, "a test")
    for url in ("http://mirror.example/a", "ftp://mirror.example/a", "file:///etc/passwd"):
        with pytest.raises(UsageError, match="must begin with https://"):
            fetch.read_small(url, deadline)


@pytest.mark.parametrize(("length", "total"), [("5", 7), ("9" * 5000, None), ("-1", None)])
def test_a_length_that_no_file_has_is_unknown(length: str, total: int | None) -> None:
    response = SimpleNamespace(headers={"Content-Length": length})
    assert fetch._total_bytes(response, 2) == total  # type: ignore[arg-type]
