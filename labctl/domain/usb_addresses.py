"""Give a restored guest the USB addresses that it booted with. Pure.

libvirt gives devices on USB an address only in a guest that starts, and then refuses to restore it
with XML that has none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from copy import deepcopy

from lxml import etree

from labctl.base.xmldiff import parse

_Key = tuple[str, ...]


def with_usb_addresses(asked: str, live: str) -> str:
    """Return the XML `asked` for with the addresses of devices on USB that libvirt showed, once it
    ran (`live`), where it has none. Devices are known by their kind and their order among those."""
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
    """Yield what libvirt keeps of a device that may be on USB; it sorts disks."""
    match device.tag:
        case "input" if device.get("bus") == "usb":
            yield "input", device.get("type", "")
        case "disk":
            target = device.find("target")
            yield "disk", "" if target is None else target.get("dev", "")
        case "hub" | "sound" | "serial":
            yield str(device.tag), device.get("type", device.get("model", ""))
