"""Copy the administrator's domain: the same machine, without those parts of the original that two
guests cannot share or that the guest could change. Pure.

docs/own-vm.md has a table of the parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from lxml import etree

from labctl.base.cpus import CpuSet, format_cpus, parse_cpus
from labctl.base.errors import UsageError
from labctl.base.xmldiff import parse, tag_of, text_of
from labctl.domain.foreign.allowed import DOMAIN, copy_table
from labctl.domain.foreign.foreign_domain import OwnDomain, is_written, memory_kib
from labctl.domain.foreign.rebuilt import rebuilt
from labctl.domain.render import AGENT_PORT, DOMAIN_TYPES, RUNNER_PORT


def kept_note(root: etree._Element) -> str:
    """Return a sentence on what is copied from the domain."""
    devices = root.find("devices")
    count = Counter(map(tag_of, devices if devices is not None else ()))
    parts = [f"<{tag_of(part)}>" for part in root if part.tag not in ("name", "uuid", "devices")]
    parts += [f"<{tag}>" if many == 1 else f"{many} <{tag}>" for tag, many in count.items()]
    return f"copied from its XML: {', '.join(dict.fromkeys(parts))}"


_SIZES = (
    ("memory", None, 2048),
    ("currentMemory", None, 1),
    ("maxMemory", None, 1024),
    ("cpu/numa/cell", "memory", 2048),
    ("memoryBacking/hugepages/page", "size", 1),
)
"""Elements with a size of memory: the attribute (None: the text), and the KiB that it is rounded up
to. libvirt rounds to whole MiB, and labctl to huge pages of 2 MiB, because QEMU 10 refuses other
sizes if a tuning requests huge pages, and all arms have the same memory."""

_KVM_FEATURES = ("kvm", "hyperv", "pvspinlock", "pmu", "ioapic[@driver='kvm']")
_KVM_TIMERS = ("kvmclock", "hypervclock", "tsc")

_INTERFACE = ("model", "boot", "rom", "link", "acpi", "alias", "address")
"""Elements that a network card keeps without its network: everything that the guest sees."""

_KEPT_NETWORKS = ("network", "bridge", "direct", "user")
"""Networks that --keep-network leaves a card on. Others lead to a socket, a port or a device."""

_DISPLAYS = ("spice", "vnc")
"""Displays that need neither a window nor the host's graphics card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRequest:
    """Hold labctl's own parts of the copy. `disks`: a disk's target to its overlay (qcow2).

    `confined_to`: the CPUs that threads without a pin may use, if those are not all of the
    host's.
    """

    name: str
    uuid: str
    accelerator: str
    disabled_features: tuple[str, ...]
    disks: Mapping[str, Path]
    nvram: Path | None
    """File of the copy's UEFI variables; None if the domain has none."""
    console_log: Path
    runner_socket: Path
    agent_socket: Path
    label: str
    """User that QEMU runs as: libvirt's "+user:+group"."""
    keep_network: bool
    confined_to: CpuSet | None

    def mac(self, number: int) -> str:
        """Return the address, the same in each boot and restore; 52:54:00 is the prefix of QEMU and
        libvirt.
        """
        digits = self.uuid.replace("-", "")[:4].lower()
        return f"52:54:00:{digits[:2]}:{digits[2:]}:{number:02x}"


@dataclass(frozen=True, slots=True)
class Copied:
    """Hold the copy's XML, and a sentence for each part that works differently."""

    xml: str
    notes: tuple[str, ...]


def copied(own: OwnDomain, request: CopyRequest) -> Copied:
    """Return labctl's copy of a domain, over its overlays."""
    root = rebuilt(parse(own.xml), DOMAIN).root
    kept = kept_note(root)
    devices = root.find("devices")
    if devices is None:
        devices = etree.SubElement(root, "devices")
    _set_names(root, request)
    _memory(root, own)
    notes = [
        kept,
        *own.notes,
        *_processors(root, own, request),
        *_emulated(root, request),
        *_disks(devices, request),
        *_networks(devices, request),
        *_displays(devices),
    ]
    _firmware(root, request)
    _ports(devices, request)
    return Copied(etree.tostring(root, encoding="unicode"), tuple(notes))


def confirmed(xml: str, paths: frozenset[str], label: str, what: str) -> str:
    """Rebuild the finished copy once more: it contains everything from a tuning and from labctl,
    but no file outside `paths` and no user but the `label`'s. Raises UsageError for anything else,
    which only a template of a lab folder can have added."""
    made = rebuilt(parse(xml, what), copy_table(paths, label))
    if wrong := [*made.refused, *made.left_out]:
        raise UsageError(
            f"{what} has elements that a copy must not contain: {'; '.join(wrong)}",
            hint="Check the tuning, templates/domain.xml.j2 and its parts.",
        )
    return etree.tostring(made.root, encoding="unicode")


def _set_names(root: etree._Element, request: CopyRequest) -> None:
    root.set("type", DOMAIN_TYPES[request.accelerator])
    _set_text(root, "name", request.name)
    _set_text(root, "uuid", request.uuid)
    # libvirt refuses a system UUID that is not the domain's.
    for entry in root.iterfind("sysinfo/system/entry[@name='uuid']"):
        entry.text = request.uuid
    # libvirt must not change the owners of the original's files.
    label = etree.SubElement(root, "seclabel", type="static", model="dac", relabel="no")
    etree.SubElement(label, "label").text = request.label


def _memory(root: etree._Element, own: OwnDomain) -> None:
    """Write sizes in KiB, rounded up, because the live XML is compared with the request."""
    for path, attribute, step in _SIZES:
        for element in root.iterfind(path):
            size = -(-memory_kib(element, own.what, attribute) // step) * step
            if attribute is None:
                element.text = str(size)
            else:
                element.set(attribute, str(size))
            element.set("unit", "KiB")


def _processors(root: etree._Element, own: OwnDomain, request: CopyRequest) -> Iterator[str]:
    vcpu = root.find("vcpu")
    assert vcpu is not None  # own_domain has checked it
    if text_of(vcpu) != str(own.vcpus):
        yield f"it has the {own.vcpus} vCPUs that it starts with; more cannot be added"
        topology = root.find("cpu/topology")
        if topology is not None and _product(topology) != own.vcpus:
            _remove(topology)
        _forget_absent(root, frozenset(range(own.vcpus)))
    vcpu.text = str(own.vcpus)
    vcpu.attrib.pop("current", None)
    if request.confined_to is not None and vcpu.get("cpuset") is None:
        vcpu.set("cpuset", format_cpus(request.confined_to))


def _forget_absent(root: etree._Element, present: CpuSet) -> None:
    """Remove settings of vCPUs that the copy lacks: libvirt refuses them."""
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
    """Remove under TCG what only KVM supports, as in labctl's own guests."""
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
        source = disk.find("source")
        if disk.get("device") in ("cdrom", "floppy"):
            if disk.get("device") == "cdrom" and disk.get("type", "file") == "file":
                continue  # libvirt opens it read-only
            if source is not None:
                yield f"the {disk.get('device')} drive '{_target(disk)}' is empty"
            disk.set("type", "file")
            for tag in ("source", "driver"):
                _remove_all(disk, tag)
            continue
        if not is_written(disk):
            continue
        disk.set("type", "file")
        driver = disk.find("driver")
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
        if request.keep_network and kind in _KEPT_NETWORKS:
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


def _displays(devices: etree._Element) -> Iterator[str]:
    """Replace displays that would open a port or a window, and what depends on them."""
    doomed = [g for g in devices.iterfind("graphics") if _opens_a_port(g)]
    for graphics in doomed:
        _remove(graphics)
    if doomed:
        kinds = dict.fromkeys(str(graphics.get("type")) for graphics in doomed)
        yield f"its display ({', '.join(kinds)}) is left out: it would open a port"
    if devices.find("graphics[@type='spice']") is None:
        _remove_all(devices, "channel[@type='spicevmc']")
        _remove_all(devices, "channel[@type='spiceport']")
    if devices.find("sound") is not None:
        etree.SubElement(devices, "audio", id="1", type="none")


def _opens_a_port(graphics: etree._Element) -> bool:
    if graphics.get("type") not in _DISPLAYS:
        return True
    listens = [listen.get("type") for listen in graphics.iterfind("listen")]
    return not listens or any(kind != "none" for kind in listens)


def _firmware(root: etree._Element, request: CopyRequest) -> None:
    """Give the copy its own UEFI variables: the guest writes to that file."""
    for loader in root.iterfind("os/loader[@type='pflash']"):
        loader.set("readonly", "yes")
    system = root.find("os")
    if system is None or request.nvram is None:
        return
    nvram = system.find("nvram")
    if nvram is None:
        nvram = etree.SubElement(system, "nvram")
    nvram.text = str(request.nvram)


def _ports(devices: etree._Element, request: CopyRequest) -> None:
    """Redirect serial ports and channels: those that lead to files, sockets or ports of the host
    lead nowhere in the copy; the agent's and the runner's are labctl's."""
    serials = devices.findall("serial")
    if serials:
        for console in devices.findall("console"):
            target = console.find("target")
            if target is None or target.get("type", "serial") == "serial":
                _remove(console)  # the same port again
    ports = serials or devices.findall("console")
    for number, port in enumerate([*ports, *devices.findall("parallel")]):
        _lead(port, request.console_log if number == 0 and port.tag != "parallel" else None)
    for console in devices.findall("console"):
        if console not in ports:
            _lead(console, None)
    for rng in devices.iterfind("rng"):
        backend = rng.find("backend")
        if backend is None or backend.get("model") != "builtin":
            _remove_all(rng, "backend")
            etree.SubElement(rng, "backend", model="random").text = "/dev/urandom"
    for channel in devices.findall("channel"):
        target = channel.find("target")
        if target is not None and target.get("name") == AGENT_PORT:
            _remove(channel)
        elif target is not None and target.get("type") == "guestfwd":
            _remove(channel)  # it belongs to a user network that was removed
        elif channel.get("type") != "spicevmc":
            _lead(channel, None)
    for name, socket in ((AGENT_PORT, request.agent_socket), (RUNNER_PORT, request.runner_socket)):
        channel = etree.SubElement(devices, "channel", type="unix")
        etree.SubElement(channel, "source", mode="bind", path=str(socket))
        etree.SubElement(channel, "target", type="virtio", name=name)


def _lead(port: etree._Element, log: Path | None) -> None:
    """Let a character device write to labctl's log, or nowhere."""
    port.attrib.clear()
    port.set("type", "file" if log else "null")
    if log:
        etree.SubElement(port, "source", path=str(log), append="on")


def _target(disk: etree._Element) -> str:
    target = disk.find("target")
    return target.get("dev", "") if target is not None else ""


def _set_text(root: etree._Element, tag: str, text: str) -> None:
    element = root.find(tag)
    if element is None:
        # In front: libxml2 takes a UUID behind other elements for an error of the next.
        element = etree.Element(tag)
        root.insert(0, element)
    element.text = text


def _remove_all(element: etree._Element, path: str) -> None:
    for found in list(element.iterfind(path)):
        _remove(found)


def _remove(element: etree._Element) -> None:
    parent = element.getparent()
    if parent is not None:
        parent.remove(element)
