"""Take a VM's file of any platform: the one door to libvirt's XML, Proxmox, KubeVirt and Nova.

What no copy can have is left out by name, or a stated stand-in takes its place.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Final

from lxml import etree

from labctl.base.errors import UsageError
from labctl.base.xmldiff import tag_of
from labctl.base.yamltext import YamlError, YamlList, YamlMapping, parse_documents
from labctl.domain.foreign import kubevirt, proxmox
from labctl.domain.foreign.draft import Draft

SUFFIXES: Final = (".xml", ".conf", ".yaml", ".yml", ".json")
"""Ends of names that --domain takes for a file's."""

FLAVOR: Final = "OpenStack, flavor"

FORMATS: Final = ("raw", "qcow2")
"""Formats of a disk's file."""

_NAMESPACES: Final = {
    "http://openstack.org/xmlns/libvirt/nova/": "Nova",
    "http://kubevirt.io": "virt-launcher",
}
"""Namespaces of <metadata> to the program that wrote the domain."""
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
    "numatune/memory[@placement='auto']": "numad places it differently at each start",
}
"""Elements that a copy cannot have, with the reason."""
_SET_UP = re.compile(
    r"/kubevirt-ephemeral-disks/cloud-init-data/|/kubevirt-private/(config-map|secret)"
)
"""Files of virt-launcher's pod that set the guest up."""
_IN_POD = re.compile(r"(/var)?/run/kubevirt|/dev/[^/]+$")
"""Places of disks in virt-launcher's pod."""
_SWITCHES = (
    *("hw:locked_memory", "hw:hide_hypervisor_id", "hw:pmu", "hw:virtio_packed_ring"),
    "hw:vif_multiqueue_enabled",
)
_SPECS = {
    **dict.fromkeys(
        ("hw:cpu_policy", "hw:cpu_thread_policy", "hw:cpu_dedicated_mask", "hw:cpu_realtime")
        + ("hw:emulator_threads_policy", "hw:numa_"),
        "Nova places it; measure the copy with a tuning",
    ),
    "quota:": "results apply to a VM without it",
    **dict.fromkeys(
        ("aggregate_", "capabilities:", "resources", "trait"), "only Nova's scheduler reads it"
    ),
}
"""Beginnings of extra specs to the reason why they are left out."""
_PAGES = {"SMALL": 0, "LARGE": 2048, "2MB": 2048, "2048": 2048, "2048KB": 2048}
_PAGES |= dict.fromkeys(("1GB", "1048576", "1048576KB", "1024MB"), 1 << 20)


@dataclass(frozen=True, slots=True)
class Understood:
    """Hold a VM's file as a domain. `form`: what it was taken for; `notes`: what was replaced or
    left out, a sentence each."""

    xml: bytes
    form: str
    notes: tuple[str, ...]


def understood(data: bytes, what: str) -> Understood:
    """Return the domain that a file other than XML describes. Raises UsageError naming the line for
    a file of no known form, and beyond the limits of YAML."""
    try:
        return _of_text(data.decode(), what)
    except UnicodeDecodeError as error:
        raise UsageError(f"{what} is not UTF-8 text ({error.reason})", hint=_HINT) from error
    except ValueError as error:  # lxml's
        raise UsageError(f"{what} holds a character that XML cannot hold", hint=_HINT) from error


def _of_text(text: str, what: str) -> Understood:
    if proxmox.is_command(text):
        return _finished(proxmox.drafted(text, what), "Proxmox VE, qm showcmd")
    contents = _yaml(text, what)
    if kubevirt.has_vm(contents):
        draft, kind = kubevirt.drafted(contents, what)
        return _finished(draft, f"KubeVirt, {kind}")
    if contents and isinstance(content := contents[0], YamlMapping):
        if isinstance(content.get("flavor"), YamlMapping):  # as Nova's API has it
            content = content["flavor"]
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


def _yaml(text: str, what: str) -> list[Any]:
    """Return the documents of a file, the items of a list of Kubernetes as documents of their own;
    none for other text."""
    try:
        documents = parse_documents(text)
    except YamlError as error:
        if re.search(r"^(apiVersion|kind)\s*:|^\s*\{", text, re.MULTILINE):
            line = f", line {error.line}" if error.line else ""
            raise UsageError(f"{what}{line}: {error.problem}", hint=_HINT) from error
        return []
    found: list[Any] = []
    for one in documents:
        items = one.get("items") if isinstance(one, YamlMapping) else None
        found += items if isinstance(items, YamlList) else [one]
    return found


def _finished(draft: Draft, form: str) -> Understood:
    return Understood(draft.xml(), form, tuple(draft.notes))


def replaced(root: etree._Element, what: str) -> tuple[str, tuple[str, ...]]:
    """Take out of libvirt's XML what no copy can have, or put a stand-in in its place. Return who
    wrote the XML, and a sentence for each part."""
    draft = Draft(what, (root.findtext("name") or "vm").strip(), root)
    form = _form(root)
    for path, why in _LEFT_OUT.items():
        for element in root.findall(path):
            draft.left_out(f"<{tag_of(element)}> (line {element.sourceline})", why)
            _remove(element)
    for vcpu in root.findall("vcpu[@placement='auto']"):
        vcpu.set("placement", "static")
        draft.notes.append("<vcpu> placement='auto': static")
    for disk in root.findall("devices/disk"):
        _replace_disk(draft, disk, form)
    if form == "virt-launcher":
        _replace_files_of_pod(draft, root)
    return form, tuple(draft.notes)


def _replace_files_of_pod(draft: Draft, root: etree._Element) -> None:
    """Take this host's UEFI and machine for the image's of virt-launcher, and stand-ins for a
    kernel."""
    for loader in root.findall("os/loader"):
        draft.notes.append(f"<loader> (line {loader.sourceline}): this host's UEFI")
        for element in (loader, *root.findall("os/nvram")):
            _remove(element)
        draft.put("os", firmware="efi")
    for tag in ("kernel", "initrd"):
        if _IN_POD.match(place := root.findtext(f"os/{tag}", "").strip()):
            draft.boot_file(tag, place)
    kind = root.find("os/type")
    if kind is not None and (match := re.match(r"pc-(q35|i440fx)-", kind.get("machine", ""))):
        draft.version(kind.get("machine", ""))
        kind.set("machine", "q35" if match[1] == "q35" else "pc")


def _form(root: etree._Element) -> str:
    spaces = [etree.QName(entry).namespace or "" for entry in root.iterfind("metadata/*")]
    known = (name for mark, name in _NAMESPACES.items() if any(s.startswith(mark) for s in spaces))
    return next(known, "libvirt")


def _replace_disk(draft: Draft, disk: etree._Element, form: str) -> None:
    """Point a disk that is not a file of this host to a stand-in."""
    source, target, driver = (disk.find(tag) for tag in ("source", "target", "driver"))
    name = "" if target is None else target.get("dev", "")
    given = {} if source is None else dict(source.attrib)
    place = given.get("file") or given.get("dev") or ""
    in_pod = form == "virt-launcher" and _IN_POD.match(place) is not None
    is_file = disk.get("type", "file") in ("file", "block")
    if _SET_UP.search(place):
        _remove(disk)
        draft.left_out(f"disk {name}", "data for the guest's set-up")
        return
    if disk.get("device") in ("cdrom", "floppy"):
        if not is_file or in_pod:
            _remove(disk)
            draft.left_out(f"disk {name}", "a CD that is not a file of this host")
        return
    is_lun = disk.get("device") == "lun"
    has_secret = disk.find(".//auth") is not None or disk.find(".//encryption") is not None
    kind = "raw" if driver is None else driver.get("type", "raw")
    if is_file and kind in FORMATS and not (in_pod or is_lun or has_secret):
        return
    keys = ("protocol", "pool", "file", "dev", "name", "volume")
    words = [disk.get("type", "file"), *(given.get(key) for key in keys)]
    words += ["lun"] * is_lun + [kind] * (kind not in FORMATS) + ["with a secret"] * has_secret
    path = draft.stand_in(name, name, " ".join(filter(None, words)))
    for tag in ("source", "auth", "encryption", "backingStore", "mirror"):
        for element in disk.findall(tag):
            disk.remove(element)
    disk.set("type", "file")
    disk.set("device", "disk")
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
    draft.system("pc", uefi=False)
    draft.notes.append("machine: pc, Nova's default; an image's hw_machine_type is not in a flavor")
    draft.put("features/acpi")
    draft.put("features/apic")
    draft.cpu("host-model")
    words = _specs(draft, content)
    _nova_topology(draft, words, vcpus)
    if (page := words.get("hw:mem_page_size", "").upper().replace("IB", "B")) in _PAGES:
        del words["hw:mem_page_size"]
        if size := _PAGES[page]:
            pages = draft.put("memoryBacking/hugepages")
            etree.SubElement(pages, "page", size=str(size), unit="KiB")
    on = {key for key in _SWITCHES if words.get(key, "").lower() in ("true", "yes", "1", "on")}
    off = {
        key for key in _SWITCHES if words.pop(key, "true").lower() in ("false", "no", "0", "off")
    }
    if "hw:locked_memory" in on:
        draft.put("memoryBacking/locked")
    if "hw:hide_hypervisor_id" in on:
        draft.put("features/kvm/hidden", state="on")
    if "hw:pmu" in on | off:
        draft.put("features/pmu", state="on" if "hw:pmu" in on else "off")
    packed = "on" if "hw:virtio_packed_ring" in on else None
    queues = vcpus if "hw:vif_multiqueue_enabled" in on else 0
    draft.put("clock", offset="utc")
    draft.disk("root", "virtio", None, was="of the image", cache="none", packed=packed)
    draft.card("virtio", None, queues=queues, packed=packed)
    draft.balloon(True)
    draft.agent()
    for key in ("OS-FLV-EXT-DATA:ephemeral", "swap"):
        if content.get(key) not in (None, "", 0):
            draft.left_out(f"{key} {str(content[key])[:60]}", "a disk of the instance's own")
    for key, value in words.items():
        why = next((reason for mark, reason in _SPECS.items() if key.startswith(mark)), "")
        draft.left_out(f"{key}={value}"[:100], why)
    return draft


def _specs(draft: Draft, content: YamlMapping) -> dict[str, str]:
    """Return a flavor's extra specs. Older clients write them as one text."""
    key = "properties" if "properties" in content else "extra_specs"
    specs = content.get(key) or YamlMapping()
    if isinstance(specs, str):
        return dict(re.findall(r"([\w:.-]{1,200})='([^']{0,200})'", specs))
    if not isinstance(specs, YamlMapping):
        raise draft.fail(f"'{key}': expected a mapping", content.lines.get(key))
    return {str(name): str(value) for name, value in specs.items()}


def _nova_topology(draft: Draft, words: dict[str, str], vcpus: int) -> None:
    """Set sockets, cores and threads. Nova prefers sockets for what a flavor leaves open."""
    keys = [f"hw:cpu_{part}" for part in ("sockets", "cores", "threads")]
    given = [words.get(key, "") for key in keys]
    if not all(not n or (n.isdecimal() and 0 < int(n[:5]) < 10_000) for n in given):
        return
    shape = [int(n or 0) for n in given]
    free = next((place for place, count in enumerate(shape) if not count), None)
    shape = [count or 1 for count in shape]
    if free is not None:
        shape[free] = vcpus // math.prod(shape)
    if any(given) and math.prod(shape) == vcpus:
        draft.topology(*shape)
        for key in keys:
            words.pop(key, None)
