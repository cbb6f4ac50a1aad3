"""Draft the domain XML of a VM that another platform describes, noting what it stands in for."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from lxml import etree

from labctl.base.errors import UsageError

STAND_INS: Final = "/var/lib/labctl/disks"
"""Folder of the files that stand in for disks which are not files of this host."""

_WINDOWS = (
    *("relaxed", "vapic", "spinlocks", "vpindex", "runtime", "synic", "stimer", "reset"),
    "ipi",
)
_MAC = re.compile(r"[0-9A-Fa-f]{2}(?::[0-9A-Fa-f]{2}){5}")
_BUSES = {"virtio": "vd", "scsi": "sd", "sata": "sd", "usb": "sd", "ide": "hd"}

MOST_MIB: Final = 1 << 26


@dataclass(slots=True)
class Draft:
    """Hold a domain in the making. `what`: its file, for errors; `notes`: what was replaced or left
    out, a sentence each."""

    what: str
    name: str
    root: etree._Element = field(default_factory=lambda: etree.Element("domain", type="kvm"))
    notes: list[str] = field(default_factory=list)
    targets: dict[str, int] = field(default_factory=dict)
    iothreads: int = 0

    def put(self, path: str, text: str | None = None, **attributes: object) -> etree._Element:
        """Return the element at a path, made where it is missing, with this text and attributes."""
        element = self.root
        for step in path.split("/"):
            found = element.find(step)
            element = etree.SubElement(element, step) if found is None else found
        if text is not None:
            element.text = text
        for key, value in attributes.items():
            if value is not None:
                element.set(key.rstrip("_"), str(value))
        return element

    def add(self, path: str, tag: str, **attributes: object) -> etree._Element:
        """Return one more element of that tag at a path."""
        made = etree.SubElement(self.put(path), tag)
        for key, value in attributes.items():
            if value is not None:
                made.set(key.rstrip("_"), str(value))
        return made

    def left_out(self, part: str, why: str = "") -> None:
        """Note a part that the copy does not have."""
        self.notes.append(f"{part}: left out" + (f" ({why})" if why else ""))

    def fail(self, said: str, line: int | None = None, hint: str | None = None) -> UsageError:
        """Return the error about a line of the file."""
        return UsageError(f"{self.what}{f', line {line}' if line else ''}: {said}", hint=hint)

    def size(self, vcpus: int, memory_mib: int) -> None:
        """Set the number of vCPUs and the memory. Raises UsageError beyond labctl's limits."""
        if not 0 < vcpus <= 1024 or not 0 < memory_mib <= MOST_MIB:
            raise self.fail(
                f"expected 1 to 1024 vCPUs and up to {MOST_MIB >> 20} TiB of memory, got {vcpus} "
                f"and {memory_mib} MiB"
            )
        self.put("name", re.sub(r"[^\w.+-]", "-", self.name)[:60] or "vm")
        self.put("memory", str(memory_mib), unit="MiB")
        self.put("vcpu", str(vcpus))

    def system(self, machine: str, *, uefi: bool, arch: str = "x86_64") -> None:
        """Set machine type and firmware."""
        if uefi:
            self.put("os", firmware="efi")
        self.put("os/type", "hvm", arch=arch, machine=machine)

    def version(self, machine: str) -> None:
        """Note a machine type whose version the copy does not have."""
        if re.search(r"\d\.\d", machine):
            self.notes.append(f"machine {machine[:60]}: the version of this host's QEMU")

    def cpu(self, mode: str, model: str = "") -> None:
        if mode == "custom":
            self.put("cpu", mode="custom", match="exact")
            self.put("cpu/model", model, fallback="forbid")
        else:
            self.put("cpu", mode=mode, check="none")

    def topology(self, sockets: int, cores: int, threads: int) -> None:
        self.put("cpu/topology", sockets=sockets, cores=cores, threads=threads)

    def hyperv(self, name: str, value: str = "on") -> None:
        """Set an enlightenment by libvirt's name; of spinlocks the attempts."""
        if name == "spinlocks":
            self.put("features/hyperv/spinlocks", state="on", retries=value)
        elif name == "stimer_direct":
            self.put("features/hyperv/stimer", state="on")
            self.put("features/hyperv/stimer/direct", state=value)
        else:
            self.put(f"features/hyperv/{name}", state=value)

    def windows(self) -> None:
        """Set the enlightenments that Proxmox VE and Nova give every Windows guest."""
        for name in _WINDOWS:
            self.hyperv(name, "8191" if name == "spinlocks" else "on")
        self.timer("hypervclock", True)

    def timer(self, name: str, present: bool, **attributes: object) -> None:
        self.put("clock", offset=self.put("clock").get("offset", "utc"))
        self.add("clock", "timer", name=name, present="yes" if present else "no", **attributes)

    def iothread(self) -> int:
        """Return the number of one more iothread."""
        self.iothreads += 1
        self.put("iothreads", str(self.iothreads))
        return self.iothreads

    def target(self, bus: str) -> str:
        """Return the next name of a disk on a bus (vda, sda, …)."""
        prefix = _BUSES.get(bus, "sd")
        number = self.targets.get(prefix, 0)
        self.targets[prefix] = number + 1
        if number >= 26:
            raise self.fail(f"more than 26 disks on the bus {bus}")
        return f"{prefix}{chr(ord('a') + number)}"

    def stand_in(self, named: str, target: str, was: str) -> str:
        """Return the path of the qcow2 file that stands in for a disk, and note it."""
        path = f"{self._stem(target)}.qcow2"
        self.notes.append(
            f"disk {named} ({was[:100]}): stand-in {path}; put a copy of the disk there with "
            "'qemu-img convert -O qcow2'"
        )
        return path

    def boot_file(self, tag: str, was: str) -> None:
        """Boot a kernel or an initrd directly; a stand-in for the platform's file."""
        path = self._stem(tag)
        self.put(f"os/{tag}", path)
        self.notes.append(f"{tag} ({was[:100]}): stand-in {path}; put a copy of the file there")

    def _stem(self, what: str) -> str:
        return f"{STAND_INS}/" + re.sub(r"[^\w.-]", "-", f"{self.name}-{what}")[:100]

    def disk(
        self,
        named: str,
        bus: str,
        path: str | None,
        kind: str | None = None,
        *,
        was: str = "",
        readonly: bool = False,
        **driver: object,
    ) -> etree._Element:
        """Add a disk. `path`: its file or block device on this host; None: a stand-in for what it
        `was`; `kind`: raw or qcow2."""
        target = self.target(bus)
        if path is None:
            path, kind = self.stand_in(named, target, was), "qcow2"
        is_device = path.startswith("/dev/")
        disk = self.add("devices", "disk", type="block" if is_device else "file", device="disk")
        values = {"name": "qemu", "type": kind or "raw", **driver}
        made = etree.SubElement(disk, "driver")
        for key, value in values.items():
            if value is not None:
                made.set(key, str(value))
        etree.SubElement(disk, "source", {"dev" if is_device else "file": path})
        etree.SubElement(disk, "target", dev=target, bus=bus)
        if readonly:
            etree.SubElement(disk, "readonly")
        return disk

    def card(
        self,
        model: str,
        mac: str | None,
        *,
        bridge: str = "",
        queues: int = 0,
        packed: str | None = None,
    ) -> None:
        """Add a network card; on no bridge it is on QEMU's user network."""
        kind = "bridge" if bridge else "user"
        card = self.add("devices", "interface", type=kind)
        if mac and _MAC.fullmatch(mac):  # people blank it out
            etree.SubElement(card, "mac", address=mac)
        if bridge:
            etree.SubElement(card, "source", bridge=bridge)
        etree.SubElement(card, "model", type=model)
        driver = {"name": "vhost"} | ({"queues": str(queues)} if queues > 1 else {})
        driver |= {"packed": packed} if packed else {}
        if len(driver) > 1:
            etree.SubElement(card, "driver", driver)

    def balloon(self, present: bool) -> None:
        if present:
            self.put("devices/memballoon", model="virtio", freePageReporting="on")
        else:
            self.put("devices/memballoon", model="none")

    def agent(self) -> None:
        channel = self.add("devices", "channel", type="unix")
        etree.SubElement(channel, "target", type="virtio", name="org.qemu.guest_agent.0")

    def xml(self) -> bytes:
        return etree.tostring(self.root, pretty_print=True)
