"""Take a VM's file of any platform: the one door to libvirt's XML, Proxmox, KubeVirt and Nova.

What no copy can have is left out by name, or a stated stand-in takes its place. libvirt's own XML
passes unchanged: its owner can edit it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from lxml import etree

from labctl.base.errors import UsageError
from labctl.base.xmldiff import parse, tag_of
from labctl.base.yamltext import YamlError, YamlMapping, parse_yaml
from labctl.domain.foreign import kubevirt, proxmox
from labctl.domain.foreign.draft import Draft

SUFFIXES: Final = (".xml", ".conf", ".yaml", ".yml", ".json")
"""Ends of names that --domain takes for a file's."""

FLAVOR: Final = "OpenStack, flavor"

_NAMESPACES: Final = {
    "Nova": re.compile(rb"http://openstack\.org/xmlns/libvirt/nova/"),
    "virt-launcher": re.compile(rb"http://kubevirt\.io"),
}
_HINT = (
    "Pass libvirt's XML, a Proxmox VM's configuration or 'qm showcmd ID --pretty', a KubeVirt VM, "
    "or a flavor of 'openstack flavor show -f json NAME'."
)
_LEFT_OUT = {
    "devices/hostdev": "a passed-through device",
    "devices/filesystem": "a shared folder",
    "devices/shmem": "shared memory",
    "devices/lease": "a lock",
    "devices/memory[@model='nvdimm']": "a file of the host",
    "devices/memory[@model='virtio-pmem']": "a file of the host",
    "launchSecurity": "encrypted memory",
    "{http://libvirt.org/schemas/domain/qemu/1.0}commandline": "options of QEMU",
    "{http://libvirt.org/schemas/domain/qemu/1.0}override": "options of QEMU",
}
_SET_UP = re.compile(
    r"/kubevirt-ephemeral-disks/cloud-init-data/|/kubevirt-private/(config-map|secret)"
)
"""Files of virt-launcher's pod that set the guest up."""
_PAGES = {"small": 0, "large": 2048, "any": 0, "2MB": 2048, "2048": 2048, "1GB": 1 << 20}
_PAGES |= {"1048576": 1 << 20}


@dataclass(frozen=True, slots=True)
class Understood:
    """Hold a VM's file as a domain. `form`: what it was taken for; `notes`: what was replaced or
    left out, a sentence each."""

    xml: bytes
    form: str
    notes: tuple[str, ...]


def understood(data: bytes, what: str, *, is_xml: bool = False) -> Understood:
    """Return the domain that a file describes. `is_xml`: whether its name says XML. Raises
    UsageError naming the line for a file of no known form, and beyond the limits of YAML."""
    if is_xml or data.lstrip().startswith(b"<"):
        return _of_xml(data, what)
    try:
        return _of_text(data.decode(), what)
    except UnicodeDecodeError as error:
        raise UsageError(f"{what} is not UTF-8 text ({error.reason})", hint=_HINT) from error
    except ValueError as error:  # lxml's
        raise UsageError(f"{what} holds a character that XML cannot hold", hint=_HINT) from error


def _of_text(text: str, what: str) -> Understood:
    if proxmox.is_command(text):
        return _finished(proxmox.drafted(text, what), "Proxmox VE, qm showcmd")
    content = _yaml(text, what)
    if isinstance(content, YamlMapping):
        if content.get("kind") in kubevirt.KINDS:
            return _finished(kubevirt.drafted(content, what), f"KubeVirt, {content['kind']}")
        if {"vcpus", "ram"} <= content.keys():
            return _finished(_flavor(content, what), FLAVOR)
        if "kind" in content or "apiVersion" in content:
            kind = str(content.get("kind"))[:60]
            raise UsageError(
                f"{what}: expected kind {' or '.join(kubevirt.KINDS)}, got {kind!r}", hint=_HINT
            )
    if proxmox.is_config(text):
        return _finished(proxmox.drafted(text, what), "Proxmox VE, configuration")
    raise UsageError(f"{what} is of no form that labctl knows", hint=_HINT)


def _yaml(text: str, what: str) -> Any:
    try:
        return parse_yaml(text)
    except YamlError as error:
        if re.search(r"^(apiVersion|kind)\s*:|^\s*\{", text, re.MULTILINE):
            line = f", line {error.line}" if error.line else ""
            raise UsageError(f"{what}{line}: {error.problem}", hint=_HINT) from error
        return None


def _finished(draft: Draft, form: str) -> Understood:
    return Understood(draft.xml(), form, tuple(draft.notes))


def _of_xml(data: bytes, what: str) -> Understood:
    form = next((name for name, mark in _NAMESPACES.items() if mark.search(data)), None)
    if form is None:
        return Understood(data, "libvirt", ())
    root = parse(data, what)
    if root.getroottree().docinfo.doctype:
        return Understood(data, form, ())  # refused with all that libvirt never writes
    draft = Draft(what, (root.findtext("name") or "vm").strip(), root)
    for path, why in _LEFT_OUT.items():
        for element in root.findall(path):
            _remove(element)
            draft.left_out(f"<{etree.QName(element).localname}> (line {element.sourceline})", why)
    for element in (*root.findall("vcpu"), *root.findall("numatune/memory")):
        if element.get("placement") == "auto":
            element.set("placement", "static")
            draft.notes.append(f"<{tag_of(element)}> placement='auto': static")
    for disk in root.findall("devices/disk"):
        _replace_disk(draft, disk, form)
    return Understood(etree.tostring(root), form, tuple(draft.notes))


def _replace_disk(draft: Draft, disk: etree._Element, form: str) -> None:
    """Point a disk that is not a file of this host to a stand-in."""
    source, target = disk.find("source"), disk.find("target")
    name = "" if target is None else target.get("dev", "")
    place = "" if source is None else source.get("file") or source.get("dev") or ""
    in_pod = form == "virt-launcher" and not place.startswith("/dev/disk")
    if _SET_UP.search(place):
        _remove(disk)
        draft.left_out(f"disk {name}", "data for the guest's set-up")
        return
    if disk.get("device") in ("cdrom", "floppy"):
        if disk.get("type") not in ("file", "block") or in_pod:
            _remove(disk)
            draft.left_out(f"disk {name}", "a CD of the platform's")
        return
    is_lun, has_secret = disk.get("device") == "lun", disk.find(".//auth") is not None
    is_kept = disk.get("type") in ("file", "block") and not (in_pod or is_lun or has_secret)
    if is_kept:
        return
    was = " ".join(
        filter(
            None, (disk.get("type"), source.get("protocol") if source is not None else "", place)
        )
    )
    path = draft.stand_in(name, name, was)
    for tag in ("source", "auth", "encryption", "backingStore", "mirror"):
        for element in disk.findall(tag):
            disk.remove(element)
    disk.set("type", "file")
    disk.set("device", "disk")
    driver = disk.find("driver")
    driver = etree.SubElement(disk, "driver", name="qemu") if driver is None else driver
    driver.set("type", "qcow2")
    etree.SubElement(disk, "source", file=path)


def _remove(element: etree._Element) -> None:
    holder = element.getparent()
    assert holder is not None
    holder.remove(element)


# Read a flavor of OpenStack: its size and its extra specs, with a stand-in for the disk.


def _flavor(content: YamlMapping, what: str) -> Draft:
    draft = Draft(what, str(content.get("name") or "flavor"))
    numbers = {}
    for key in ("vcpus", "ram"):
        if isinstance(content[key], bool) or not isinstance(content[key], int):
            raise draft.fail(f"'{key}': expected a whole number", content.lines.get(key))
        numbers[key] = content[key]
    vcpus = numbers["vcpus"]
    draft.size(vcpus, numbers["ram"])
    draft.system("q35", uefi=False)
    draft.put("features/acpi")
    draft.put("features/apic")
    draft.cpu("host-model")
    specs = content.get("properties", content.get("extra_specs")) or YamlMapping()
    if not isinstance(specs, YamlMapping):
        raise draft.fail("'properties': expected a mapping", content.lines.get("properties"))
    words = {str(key): str(value) for key, value in specs.items()}
    shape = [words.pop(f"hw:cpu_{part}", "") for part in ("sockets", "cores", "threads")]
    if any(shape):
        sockets, cores, threads = (int(n) if n.isdecimal() and len(n) < 5 else 1 for n in shape)
        if sockets * cores * threads == vcpus:
            draft.topology(sockets, cores, threads)
    page = words.pop("hw:mem_page_size", "")
    if size := _PAGES.get(page, 0):
        etree.SubElement(draft.put("memoryBacking/hugepages"), "page", size=str(size), unit="KiB")
    if words.pop("hw:locked_memory", "").lower() == "true":
        draft.put("memoryBacking/locked")
    queues = vcpus if words.pop("hw:vif_multiqueue_enabled", "").lower() == "true" else 0
    packed = "on" if words.pop("hw:virtio_packed_ring", "").lower() == "true" else None
    if words.pop("hw:hide_hypervisor_id", "").lower() == "true":
        draft.put("features/kvm/hidden", state="on")
    draft.put("clock", offset="utc")
    draft.disk("root", "virtio", None, was="of the image", cache="none", packed=packed)
    draft.card("virtio", None, queues=queues)
    draft.balloon(True)
    draft.agent()
    for key, value in words.items():
        draft.left_out(f"{key}={value}"[:100], "Nova places it; measure the copy with a tuning")
    return draft
