"""A copy of a saved guest is another guest by its header alone; what is no save file is refused."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from labctl.base.errors import BrokenError
from labctl.domain.save_image import (
    Identity,
    SaveHeader,
    copy_saved,
    give_identity,
    header_size,
    identity_of,
    renamed,
)

RECORDED = Path(__file__).parent / "fixtures" / "libvirt-9.0.0-save-header.bin"
SIZE = 92 + 72976
STREAM = b"QEVM" + bytes(range(256)) * 40

OTHER = Identity(
    name="labctl-noisy-12",
    uuid="b165bd4d-8405-5fcf-a05e-db4cfbd4186e",
    macs=["52:54:00:b1:65:bd"],
)


def header() -> bytes:
    """The recorded header with libvirt's padding, which is zeros."""
    return RECORDED.read_bytes().ljust(SIZE, b"\0")


def altered(at: int, number: int) -> bytes:
    """The header with one of its 32-bit numbers changed."""
    data = bytearray(header())
    struct.pack_into("=I", data, at, number)
    return bytes(data)


VERSION, LENGTH, FORMAT, COOKIE = 16, 20, 28, 32


def test_the_recorded_header_says_whose_it_is() -> None:
    found = SaveHeader.parse(header() + STREAM, "boot-1.save")
    assert found.size == SIZE
    assert identity_of(found.xml) == Identity(
        name="labctl-guest",
        uuid="d9b4b2d5-3240-5265-acd3-dc035fa83719",
        macs=["52:54:00:d9:b4:b2"],
    )
    assert found.cookie.startswith(b"<cookie>")
    assert found.cookie.endswith(b"</cookie>\n")


def test_another_identity_leaves_the_stream_where_it_was_and_the_cookie_as_it_was() -> None:
    before = SaveHeader.parse(header(), "boot-1.save")
    written = before.with_identity(OTHER, "boot-1.save")
    assert len(written) == SIZE
    after = SaveHeader.parse(written, "copy")
    assert identity_of(after.xml) == OTHER
    assert after.cookie == before.cookie
    assert after.numbers[:4] == before.numbers[:4]
    back = identity_of(before.xml)
    assert renamed(after.xml, back, "copy") == renamed(before.xml, back, "boot-1.save")


def test_one_copy_serves_guest_after_guest_and_the_saved_file_stays_as_it_is(
    tmp_path: Path,
) -> None:
    saved, copy = tmp_path / "boot-1.save", tmp_path / "boot-1.copy"
    saved.write_bytes(header() + STREAM)
    copy_saved(saved, copy)
    assert copy.read_bytes() == saved.read_bytes()
    assert copy.stat().st_mode & 0o777 == 0o600
    long = Identity(name="labctl-noisy-1000", uuid=OTHER.uuid, macs=OTHER.macs)
    for identity in (long, OTHER):
        give_identity(copy, saved, identity)
        data = copy.read_bytes()
        assert identity_of(SaveHeader.parse(data, "copy").xml) == identity
        assert data[SIZE:] == STREAM
    assert saved.read_bytes() == header() + STREAM


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not a complete save file of libvirt: 0 bytes"),
        (b"LibvirtQemudPart" + header()[16:], "b'LibvirtQemudPart' instead of b'LibvirtQemudSave'"),
        (b"QFI\xfb" + bytes(200), "instead of b'LibvirtQemudSave'"),
        (altered(VERSION, 3), "a save file of version 2, got 3"),
        # Of a host of the other byte order.
        (altered(VERSION, 0x02000000), "version 2, got 33554432"),
        (altered(LENGTH, 2**31), "a header of 2147483648 bytes"),
        (header()[:5000], "5000 bytes of a header of 73068"),
        (altered(FORMAT, 2), "saved in libvirt's format 2"),
        (altered(COOKIE, 2**20), "a cookie at 1048576 of 72976 bytes"),
        (altered(COOKIE, 100), "text without an end"),
        (header()[:92] + b"\xff\0" + header()[94:], "XML that is not UTF-8"),
    ],
)
def test_what_is_no_whole_save_file_is_refused_with_what_was_found(data: bytes, said: str) -> None:
    with pytest.raises(BrokenError) as caught:
        SaveHeader.parse(data, "boot-1.save")
    assert said in caught.value.message
    assert caught.value.message.startswith("boot-1.save: ")


def test_a_refusal_of_a_compressed_file_names_the_setting() -> None:
    with pytest.raises(BrokenError) as caught:
        SaveHeader.parse(altered(FORMAT, 1), "boot-1.save")
    assert "'save_image_format'" in str(caught.value.hint)


def test_a_header_without_room_for_the_name_is_not_written(tmp_path: Path) -> None:
    full = SaveHeader.parse(header(), "boot-1.save")
    tight = SaveHeader((2, len(full.xml) // 2, *full.numbers[2:]), full.xml, full.cookie)
    with pytest.raises(BrokenError, match="bytes too short for another name"):
        tight.with_identity(OTHER, "boot-1.save")


@pytest.mark.parametrize(
    ("xml", "said"),
    [
        ("<domain><name>a</name>", "line 1"),
        ("<domain><name>a</name></domain>", "without a name or a UUID"),
        (
            "<domain><name>a</name><uuid>b</uuid></domain>",
            "has 0 network cards, but its copy has 1",
        ),
    ],
)
def test_xml_that_is_not_the_guests_is_refused(xml: str, said: str) -> None:
    with pytest.raises(BrokenError, match=said):
        renamed(xml, OTHER, "boot-1.save")


def test_a_file_without_a_cookie_keeps_none() -> None:
    full = SaveHeader.parse(altered(COOKIE, 0), "boot-1.save")
    written = full.with_identity(OTHER, "boot-1.save")
    after = SaveHeader.parse(written, "copy")
    assert (after.numbers[4], after.cookie) == (0, b"")


def test_the_size_is_known_from_the_first_bytes() -> None:
    assert header_size(header()[:92], "boot-1.save") == SIZE
