"""Give a saved guest another identity, in the header of its save file.

libvirt restores a guest only under the name, the UUID and the MAC addresses in its file
(virDomainDefCheckABIStability); `virsh save-image-edit` refuses to change them as well. QEMU's data
after the header contains none of them but the MAC, which the guest's driver keeps in its card's
state. So a copy with another header is another guest.

The file begins with virQEMUSaveHeader (libvirt's qemu_saveimage.h): the magic, then 32-bit numbers
in the byte order of the host that wrote it; `data_len` bytes with the XML and, from `cookie_at` on,
libvirt's cookie, each ended by a NUL and padded with more; then QEMU's stream.
"""

from __future__ import annotations

import os
import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

from lxml import etree

from labctl.base.errors import BrokenError, UsageError
from labctl.base.xmldiff import parse

_MAGIC = b"LibvirtQemudSave"
_VERSION = 2
_RAW = 0
_FIXED = struct.Struct("=16s19I")
"""Magic, version, data_len, was_running, format, cookie_at, and 14 numbers that are not used."""

_MOST_BYTES = 16 * 1024 * 1024
"""Largest plausible `data_len`: 64 KiB is usual."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Hold a guest's identity to libvirt. `macs`: of its network cards, in the order of its XML."""

    name: str
    uuid: str
    macs: Sequence[str]


@dataclass(frozen=True, slots=True)
class SaveHeader:
    """Hold the header of a save file. `numbers`: the header's own, as in the file."""

    numbers: tuple[int, ...]
    xml: str
    cookie: bytes

    @property
    def size(self) -> int:
        """Return the bytes before QEMU's stream."""
        return _FIXED.size + self.numbers[1]

    @classmethod
    def parse(cls, data: bytes, where: str) -> SaveHeader:
        """Raise BrokenError unless `data` begins with the complete header of a save file with
        QEMU's uncompressed stream."""
        size = header_size(data, where)
        numbers = _FIXED.unpack_from(data)[1:]
        _, _, _, form, cookie_at = numbers[:5]
        if len(data) < size:
            raise _not_whole(where, f"{len(data)} bytes of a header of {size}")
        body = data[_FIXED.size : size]
        if form != _RAW:
            raise BrokenError(
                f"{where}: its guest's memory is saved in libvirt's format {form}, expected 'raw'",
                hint="Remove 'save_image_format' from qemu.conf and restart the daemon.",
            )
        end = cookie_at or len(body)
        if end > len(body):
            raise _not_whole(where, f"a cookie at {cookie_at} of {len(body)} bytes")
        xml, ended, _ = body[:end].partition(b"\0")
        cookie, cookie_ended, _ = body[end:].partition(b"\0")
        if not ended or (cookie_at and not cookie_ended):
            raise _not_whole(where, "text without an end")
        try:
            return cls(numbers, xml.decode(), cookie)
        except UnicodeDecodeError as error:
            raise _not_whole(where, "XML that is not UTF-8") from error

    def with_identity(self, identity: Identity, where: str) -> bytes:
        """Return the header of the same guest under another identity, exactly as long as it was.

        Raises BrokenError when the XML isn't a domain's with as many network cards, or is too long
        for the room that libvirt left.
        """
        xml = renamed(self.xml, identity, where).encode() + b"\0"
        cookie = self.cookie + b"\0" if self.numbers[4] else b""
        room = self.numbers[1] - len(xml) - len(cookie)
        if room < 0:
            raise BrokenError(f"{where}: its header is {-room} bytes too short for another name")
        cookie_at = len(xml) if cookie else 0
        numbers = (*self.numbers[:4], cookie_at, *self.numbers[5:])
        return _FIXED.pack(_MAGIC, *numbers) + xml + cookie + bytes(room)


def header_size(data: bytes, where: str) -> int:
    """Return how many bytes of a save file precede QEMU's stream, from its first 92.

    Raises BrokenError if it is not a complete save file of this host's libvirt.
    """
    if len(data) < _FIXED.size:
        raise _not_whole(where, f"{len(data)} bytes")
    magic, version, length, *_ = _FIXED.unpack_from(data)
    if magic != _MAGIC:
        raise _not_whole(where, f"{magic!r} instead of {_MAGIC!r}")
    if version != _VERSION:
        raise BrokenError(f"{where}: expected a save file of version {_VERSION}, got {version}")
    if length > _MOST_BYTES:
        raise _not_whole(where, f"a header of {length} bytes")
    return _FIXED.size + int(length)


def renamed(xml: str, identity: Identity, where: str) -> str:
    """Return a domain's XML under another identity. Raises BrokenError as `with_identity` does."""
    try:
        root = parse(xml)
    except UsageError as error:
        raise _not_whole(where, error.message) from error
    name, uuid = root.find("name"), root.find("uuid")
    cards = root.findall("devices/interface/mac")
    if name is None or uuid is None:
        raise _not_whole(where, "the XML of a domain without a name or a UUID")
    if len(cards) != len(identity.macs):
        raise BrokenError(
            f"{where}: its guest has {len(cards)} network cards, but its copy has "
            f"{len(identity.macs)}"
        )
    name.text, uuid.text = identity.name, identity.uuid
    for card, mac in zip(cards, identity.macs, strict=True):
        card.set("address", mac)
    return etree.tostring(root, encoding="unicode")


def identity_of(xml: str) -> Identity:
    """Return the identity in a domain's XML."""
    root = parse(xml)
    return Identity(
        name=root.findtext("name", ""),
        uuid=root.findtext("uuid", ""),
        macs=[card.get("address", "") for card in root.iterfind("devices/interface/mac")],
    )


def copy_saved(saved: Path, copy: Path) -> None:
    """Copy a save file for guests of other identities, with mode 0600: it holds all of its guest's
    memory.

    The kernel copies it, or shares its extents if the file system can. Raises OSError.
    """
    descriptor = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(saved, "rb") as source, open(descriptor, "wb") as target:
        left = os.fstat(source.fileno()).st_size
        while left > 0:
            copied = os.copy_file_range(source.fileno(), target.fileno(), left)
            if not copied:
                break
            left -= copied


def give_identity(copy: Path, saved: Path, identity: Identity) -> None:
    """Write a new identity into the header of a copy of `saved`. Only the header changes, so one
    copy serves guest after guest. Raises BrokenError if `saved` is not a complete save file."""
    where = str(saved)
    with open(saved, "rb") as file:
        first = file.read(_FIXED.size)
        header = SaveHeader.parse(first + file.read(header_size(first, where) - len(first)), where)
    with open(copy, "r+b") as file:
        file.write(header.with_identity(identity, where))


def _not_whole(where: str, found: str) -> BrokenError:
    return BrokenError(f"{where}: not a complete save file of libvirt: {found}")


# Give a restored guest the USB addresses that it booted with. Pure.
#
# libvirt gives USB devices an address only in a guest that starts, and then refuses to restore it
# with XML that has none.


_Key = tuple[str, ...]


def with_usb_addresses(asked: str, live: str) -> str:
    """Return the XML `asked` for with the addresses of USB devices that libvirt showed for the
    running guest (`live`), where it has none. Devices are matched by their kind and their order
    within it."""
    root = parse(asked)
    shown = _by_key(parse(live))
    for key, devices in _by_key(root).items():
        for device, as_shown in zip(devices, shown.get(key, []), strict=False):
            address = as_shown.find("address[@type='usb']")
            if address is not None and device.find("address") is None:
                device.append(deepcopy(address))
    return etree.tostring(root, encoding="unicode")


def _by_key(root: etree._Element) -> dict[_Key, list[etree._Element]]:
    found: dict[_Key, list[etree._Element]] = defaultdict(list)
    for device in root.iterfind("devices/*"):
        for key in _keys(device):
            found[key].append(device)
    return found


def _keys(device: etree._Element) -> Iterator[_Key]:
    """Yield libvirt's identification of a device that may be on USB; it sorts disks."""
    match device.tag:
        case "input" if device.get("bus") == "usb":
            yield "input", device.get("type", "")
        case "disk":
            target = device.find("target")
            yield "disk", "" if target is None else target.get("dev", "")
        case "hub" | "sound" | "serial":
            yield str(device.tag), device.get("type", device.get("model", ""))
