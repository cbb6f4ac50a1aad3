"""labctl's copy of the administrator's domain: the same machine, with nothing of the original's
that two guests can't share, or that the guest could change. Pure.

Its parts are in the order of the table in docs/own-vm.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from lxml import etree

from labctl.base.cpus import CpuSet, format_cpus, parse_cpus
from labctl.base.xmldiff import parse, tag_of, text_of
from labctl.domain.foreign import OwnDomain, is_written, memory_kib
from labctl.domain.render import AGENT_PORT, DOMAIN_TYPES, RUNNER_PORT

_HEAD = ("genid", "resource", "seclabel", "on_poweroff", "on_reboot", "on_crash", "on_lockfailure")
"""Left out: an identity that changes with each restore; a cgroup among those of the host's own
guests; labels; what libvirt does when a guest ends."""

_WHO = ("global", "emulator", "iothread")

_SIZES = (
    ("memory", None, 1024),
    ("currentMemory", None, 1),
    ("maxMemory", None, 1024),
    ("cpu/numa/cell", "memory", 1024),
    ("memoryBacking/hugepages/page", "size", 1),
)
"""Elements with a size of memory: where it stands (None: the text), and the KiB that libvirt
rounds it up to."""

_CGROUP_LIMITS = (
    *(f"cputune/{tag}" for tag in ("shares", "period", "quota")),
    *(f"cputune/{who}_{tag}" for who in _WHO for tag in ("period", "quota")),
    *("blkiotune", "memtune"),
)
"""Left out: a share is one among the host's own guests, a cap is no part of the machine, and where
the kernel keeps real-time policies out of cpu cgroups libvirt starts no domain that has one."""

_DEVICES = {
    "tpm": "its state is the original's: a guest whose disk is sealed to it won't boot",
    "vsock": "its number is the original's",
    "smartcard": "it is the host's",
    "pstore": "the guest would write to the file behind it",
    "input[@type='evdev']": "it is the host's",
    "input[@type='passthrough']": "it is the host's",
}
"""Devices that are left out, with the reason."""

_KVM_FEATURES = ("kvm", "hyperv", "pvspinlock", "pmu", "ioapic[@driver='kvm']")
_KVM_TIMERS = ("kvmclock", "hypervclock", "tsc")

_INTERFACE = ("model", "boot", "rom", "link", "acpi", "alias", "address")
"""What a network card keeps without its network: all that the guest sees."""

_DISK_DROPPED = ("backingStore", "transient", "shareable", "mirror")
"""The overlay's own chain is what counts, and nobody shares it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRequest:
    """What of the copy is labctl's. `disks`: a disk's target to its overlay (qcow2).

    `confined_to`: the CPUs that threads without a pin may use, where that isn't all of the host's.
    """

    name: str
    uuid: str
    accelerator: str
    disabled_features: tuple[str, ...]
    disks: Mapping[str, Path]
    nvram: Path | None
    """The file of the copy's UEFI variables; None where the domain has none."""
    console_log: Path
    runner_socket: Path
    agent_socket: Path
    keep_network: bool
    confined_to: CpuSet | None

    def mac(self, number: int) -> str:
        """The same in each boot and restore; 52:54:00 is the prefix of QEMU and libvirt."""
        digits = self.uuid.replace("-", "")[:4].lower()
        return f"52:54:00:{digits[:2]}:{digits[2:]}:{number:02x}"


@dataclass(frozen=True, slots=True)
class Copied:
    """The copy's XML, and a sentence for each thing of it that works differently."""

    xml: str
    notes: tuple[str, ...]


def copied(own: OwnDomain, request: CopyRequest) -> Copied:
    """labctl's copy of a domain, over its overlays."""
    root = parse(own.xml)
    devices = root.find("devices")
    if devices is None:
        devices = etree.SubElement(root, "devices")
    _name(root, request)
    _memory(root, own)
    notes = [
        *_limits(root),
        *_processors(root, own, request),
        *_emulated(root, request),
        *_disks(devices, request),
        *_networks(devices, request),
        *_left_out(devices),
        *_displays(devices),
    ]
    _firmware(root, request)
    _ports(devices, request)
    return Copied(etree.tostring(root, encoding="unicode"), tuple(notes))


def _name(root: etree._Element, request: CopyRequest) -> None:
    root.set("type", DOMAIN_TYPES[request.accelerator])
    root.attrib.pop("id", None)
    _set_text(root, "name", request.name)
    _set_text(root, "uuid", request.uuid)
    for path in (*_HEAD, "devices//seclabel"):
        _remove_all(root, path)
    # libvirt refuses a system UUID that isn't the domain's.
    for entry in root.iterfind("sysinfo/system/entry[@name='uuid']"):
        entry.text = request.uuid
    # QEMU runs as root, so that libvirt has no reason to give the original's files another owner.
    label = etree.SubElement(root, "seclabel", type="static", model="dac", relabel="no")
    etree.SubElement(label, "label").text = "+0:+0"


def _memory(root: etree._Element, own: OwnDomain) -> None:
    """Sizes in KiB, and in whole MiB where libvirt would round them up when it starts the domain:
    what runs is compared with what was asked."""
    for path, attribute, step in _SIZES:
        for element in root.iterfind(path):
            size = -(-memory_kib(element, own.what, attribute) // step) * step
            if attribute is None:
                element.text = str(size)
            else:
                element.set(attribute, str(size))
            element.set("unit", "KiB")


def _limits(root: etree._Element) -> Iterator[str]:
    """Shares and caps of control groups."""
    doomed = [e for path in _CGROUP_LIMITS for e in root.iterfind(path)]
    for element in doomed:
        _remove(element)
    if doomed:
        tags = dict.fromkeys(f"<{tag_of(element)}>" for element in doomed)
        yield f"shares and limits among the host's guests are left out: {', '.join(tags)}"


def _processors(root: etree._Element, own: OwnDomain, request: CopyRequest) -> Iterator[str]:
    vcpu = root.find("vcpu")
    assert vcpu is not None  # own_domain has seen it
    if text_of(vcpu) != str(own.vcpus):
        yield f"it has the {own.vcpus} vCPUs that it starts with, and no room for more"
        topology = root.find("cpu/topology")
        if topology is not None and _product(topology) != own.vcpus:
            _remove(topology)
        _forget_absent(root, frozenset(range(own.vcpus)))
    vcpu.text = str(own.vcpus)
    vcpu.attrib.pop("current", None)
    _remove_all(root, "vcpus")
    if request.confined_to is not None and vcpu.get("cpuset") is None:
        vcpu.set("cpuset", format_cpus(request.confined_to))


def _forget_absent(root: etree._Element, present: CpuSet) -> None:
    """What is said of vCPUs that the copy hasn't: libvirt refuses it."""
    for path, key in (
        ("cputune/vcpupin", "vcpu"),
        ("cputune/vcpusched", "vcpus"),
        ("cpu/numa/cell", "cpus"),
    ):
        for element in list(root.iterfind(path)):
            left = parse_cpus(element.get(key, "")) & present
            if left:
                element.set(key, format_cpus(left))
            elif path == "cpu/numa/cell":
                element.attrib.pop(key, None)  # its memory stays
            else:
                _remove(element)


def _product(topology: etree._Element) -> int:
    product = 1
    for key in ("sockets", "dies", "clusters", "cores", "threads"):
        product *= int(topology.get(key, "1"))
    return product


def _emulated(root: etree._Element, request: CopyRequest) -> Iterator[str]:
    """What only KVM has goes under TCG, as it does in labctl's own guests."""
    cpu = root.find("cpu")
    if request.accelerator == "kvm":
        if cpu is not None and cpu.get("mode", "custom") != "custom":
            for name in request.disabled_features:
                _remove_all(cpu, f"feature[@name='{name}']")
                etree.SubElement(cpu, "feature", policy="disable", name=name)
        return
    doomed = [e for path in _KVM_FEATURES for e in root.iterfind(f"features/{path}")]
    doomed += [e for name in _KVM_TIMERS for e in root.iterfind(f"clock/timer[@name='{name}']")]
    if cpu is not None:
        shape = [child for child in cpu if child.tag in ("topology", "numa")]
        if cpu.attrib or len(shape) < len(cpu):
            doomed.append(cpu)
            if shape:
                etree.SubElement(root, "cpu").extend(shape)
    for element in doomed:
        _remove(element)
    if doomed:
        tags = dict.fromkeys(f"<{tag_of(element)}>" for element in doomed)
        yield f"it is emulated, without what only KVM has: {', '.join(tags)}"


def _disks(devices: etree._Element, request: CopyRequest) -> Iterator[str]:
    for disk in list(devices.iterfind("disk")):
        if disk.get("device") in ("cdrom", "floppy"):
            if disk.get("device") == "cdrom" and disk.get("type", "file") == "file":
                continue  # libvirt opens it read-only
            if disk.find("source") is not None:
                yield f"the {disk.get('device')} drive '{_target(disk)}' is empty"
            disk.set("type", "file")
            for tag in ("source", "driver", "auth", *_DISK_DROPPED):
                _remove_all(disk, tag)
            continue
        for tag in _DISK_DROPPED:
            _remove_all(disk, tag)
        if not is_written(disk):
            continue
        disk.set("type", "file")
        driver, source = disk.find("driver"), disk.find("source")
        if driver is None:
            driver = etree.SubElement(disk, "driver", name="qemu")
        driver.set("type", "qcow2")
        assert source is not None  # own_domain has refused a disk without one
        overlay = str(request.disks[_target(disk)])
        disk.replace(source, etree.Element("source", file=overlay))


def _networks(devices: etree._Element, request: CopyRequest) -> Iterator[str]:
    for number, card in enumerate(devices.iterfind("interface")):
        kind = card.get("type")
        kept = [card.find(tag) for tag in _INTERFACE]
        mac = etree.Element("mac", address=request.mac(number))
        if request.keep_network:
            _remove_all(card, "mac")
            card.insert(0, mac)
            continue
        card.clear()
        card.set("type", "user")
        card.append(mac)
        for element in kept:
            if element is not None:
                card.append(element)
        if card.find("model") is None:
            etree.SubElement(card, "model", type="virtio")
        etree.SubElement(card, "link", state="down")
        yield (
            f"its network card {number + 1} has no link: on QEMU's user network, in place of a "
            f"'{kind}', the guest would reach this host"
        )


def _left_out(devices: etree._Element) -> Iterator[str]:
    for path, reason in _DEVICES.items():
        for element in list(devices.iterfind(path)):
            _remove(element)
            yield f"<{tag_of(element)}> is left out: {reason}"


def _displays(devices: etree._Element) -> Iterator[str]:
    """Displays that would open a port or a window, and what depends on them."""
    doomed = [g for g in devices.iterfind("graphics") if _opens_a_port(g)]
    for graphics in doomed:
        _remove(graphics)
    if doomed:
        kinds = dict.fromkeys(str(graphics.get("type")) for graphics in doomed)
        yield f"its display ({', '.join(kinds)}) is left out: it would open a port"
    if devices.find("graphics[@type='spice']") is None:
        _remove_all(devices, "channel[@type='spicevmc']")
        _remove_all(devices, "channel[@type='spiceport']")
        _remove_all(devices, "redirdev[@type='spicevmc']")
    _remove_all(devices, "redirdev[@type='tcp']")
    if devices.find("redirdev") is None:
        _remove_all(devices, "redirfilter")
    if devices.find("graphics") is None:
        # virtio's 3D acceleration needs a display that has OpenGL.
        _remove_all(devices, "video/model/acceleration")
    for audio in devices.iterfind("audio"):
        number = audio.get("id", "1")
        audio.clear()
        audio.attrib.update({"id": number, "type": "none"})


def _opens_a_port(graphics: etree._Element) -> bool:
    if graphics.get("type") == "egl-headless":
        return False
    listens = [listen.get("type") for listen in graphics.iterfind("listen")]
    return not listens or any(kind != "none" for kind in listens)


def _firmware(root: etree._Element, request: CopyRequest) -> None:
    """The UEFI variables are a file that the guest writes to: the copy has a copy."""
    for loader in root.iterfind("os/loader[@type='pflash']"):
        loader.set("readonly", "yes")
    system = root.find("os")
    if system is None or request.nvram is None:
        return
    nvram = system.find("nvram")
    if nvram is None:
        nvram = etree.SubElement(system, "nvram")
    for child in list(nvram):
        _remove(child)
    for key in ("type", "format"):
        nvram.attrib.pop(key, None)
    nvram.text = str(request.nvram)


def _ports(devices: etree._Element, request: CopyRequest) -> None:
    """Serial ports and channels: those that lead to files, sockets or ports of the host lead
    nowhere, in their places; the agent's and the runner's are labctl's."""
    for log in list(devices.iterfind(".//log")):
        _remove(log)  # it would append to the original's
    serials = devices.findall("serial")
    if serials:
        for console in devices.findall("console"):
            target = console.find("target")
            if target is None or target.get("type", "serial") == "serial":
                _remove(console)  # the same port once more
    ports = serials or devices.findall("console")
    for number, port in enumerate([*ports, *devices.findall("parallel")]):
        _lead(port, request.console_log if number == 0 and port.tag != "parallel" else None)
    for console in devices.findall("console"):
        if console not in ports:
            _lead(console, None)
    for backend in devices.iterfind("rng/backend[@model='egd']"):
        backend.clear()
        backend.set("model", "random")
        backend.text = "/dev/urandom"
    for channel in devices.findall("channel"):
        target = channel.find("target")
        if target is not None and target.get("name") == AGENT_PORT:
            _remove(channel)
        elif target is not None and target.get("type") == "guestfwd":
            _remove(channel)  # it is of a user network that is gone
        elif channel.get("type") != "spicevmc":
            _lead(channel, None)
    for name, socket in ((AGENT_PORT, request.agent_socket), (RUNNER_PORT, request.runner_socket)):
        channel = etree.SubElement(devices, "channel", type="unix")
        etree.SubElement(channel, "source", mode="bind", path=str(socket))
        etree.SubElement(channel, "target", type="virtio", name=name)


def _lead(port: etree._Element, log: Path | None) -> None:
    """Let a character device write to labctl's log, or to nobody."""
    for tag in ("source", "protocol"):
        _remove_all(port, tag)
    port.attrib.clear()
    port.set("type", "file" if log else "null")
    if log:
        etree.SubElement(port, "source", path=str(log), append="on")


def _target(disk: etree._Element) -> str:
    target = disk.find("target")
    return target.get("dev", "") if target is not None else ""


def _set_text(root: etree._Element, tag: str, text: str) -> None:
    element = root.find(tag)
    (etree.SubElement(root, tag) if element is None else element).text = text


def _remove_all(element: etree._Element, path: str) -> None:
    for found in list(element.iterfind(path)):
        _remove(found)


def _remove(element: etree._Element) -> None:
    parent = element.getparent()
    if parent is not None:
        parent.remove(element)
