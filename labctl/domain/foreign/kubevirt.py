"""Read a VirtualMachine or VirtualMachineInstance of KubeVirt as a domain."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from lxml import etree

from labctl.base.yamltext import YamlList, YamlMapping
from labctl.domain.foreign.draft import Draft
from labctl.domain.foreign.instancetype import merged, with_fields

KINDS: Final = ("VirtualMachine", "VirtualMachineInstance")

_UNITS: Final = {
    "": 1,
    **{unit: 1024**power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti"), start=1)},
    **{unit: 1000**power for power, unit in enumerate(("k", "M", "G", "T"), start=1)},
}
_QUANTITY = re.compile(r"(\d{1,15})(?:\.(\d{1,6}))?(|Ki|Mi|Gi|Ti|k|M|G|T)")
_CPUS = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)(m?)")
_DATA = (
    *("cloudInitNoCloud", "cloudInitConfigDrive", "configMap", "secret", "serviceAccount"),
    *("sysprep", "downwardAPI", "downwardMetrics"),
)
"""Volumes with data for the guest's set-up, not disks of its own."""
_PLACED = {
    "dedicatedCpuPlacement": "the kubelet pins it; measure the copy with 'pinned'",
    "isolateEmulatorThread": "the kubelet pins it; measure the copy with 'pinned'",
    "realtime": "without dedicated CPUs a real-time policy is unsafe; measure with 'pinned+fifo'",
    "numa": "its cells follow the node's; measure with 'numa-strict'",
    "maxSockets": "without hotplug",
}
"""Fields of domain.cpu that name no place on a host by themselves."""
_ENLIGHTENMENTS = (
    *("relaxed", "vapic", "vpindex", "runtime", "synic", "reset", "frequencies"),
    *("reenlightenment", "tlbflush", "ipi", "evmcs"),
)
_NEEDED = {
    **dict.fromkeys(("synic", "ipi", "tlbflush"), ("vpindex",)),
    "stimer": ("vpindex", "synic"),
    "evmcs": ("vapic",),
}
"""Enlightenments that KubeVirt adds to one that needs them."""
_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
_SIDECAR = "hooks.kubevirt.io/hookSidecars"
_READ: Final = {
    "domain": frozenset(
        ("cpu", "memory", "resources", "firmware", "machine", "features", "clock", "devices")
        + ("ioThreadsPolicy", "ioThreads", "rebootPolicy", "chassis")
    ),
    "cpu": frozenset(("sockets", "cores", "threads", "model", "features")),
    "memory": frozenset(("guest", "hugepages")),
    "firmware": frozenset(("bootloader", "kernelBoot", "uuid", "serial")),
    "machine": frozenset(("type",)),
    "features": frozenset(("acpi", "apic", "hyperv", "kvm", "smm")),
    "hyperv": frozenset((*_ENLIGHTENMENTS, "spinlocks", "synictimer")),
    "clock": frozenset(("timezone", "utc", "timer")),
    "devices": frozenset(
        ("disks", "interfaces", "autoattachMemBalloon", "blockMultiQueue", "rng")
        + ("networkInterfaceMultiqueue", "disableHotplug", "useVirtioTransitional")
        + ("autoattachGraphicsDevice", "autoattachInputDevice", "autoattachPodInterface")
        + ("autoattachSerialConsole", "autoattachVSOCK", "logSerialConsole")
    ),
    "disk": frozenset(
        ("name", "disk", "lun", "cache", "io", "dedicatedIOThread", "serial", "bootOrder")
        + ("blockSize", "tag", "bus", "readonly")
    ),
    "interface": frozenset(
        ("name", "model", "macAddress", "masquerade", "bridge", "binding", "slirp", "macvtap")
        + ("passt", "passtBinding", "ports", "dhcpOptions", "tag", "state", "bootOrder")
    ),
}
"""Fields that are read, or that a copy's guest does not see."""


def has_vm(contents: list[Any]) -> bool:
    """Return whether one of a file's objects is a VM."""
    return any(isinstance(one, YamlMapping) and one.get("kind") in KINDS for one in contents)


def drafted(contents: list[Any], what: str) -> tuple[Draft, str]:
    """Return the domain of a file's VM, and its kind. The file may also hold its instance type and
    its preference. Raises UsageError naming the line of a field that is not as KubeVirt's API has
    it, and for a file of several VMs."""
    draft = Draft(what, "vm")
    reader = _Reader(draft)
    content, *others = [one for one in contents if has_vm([one])]
    if others:
        raise draft.fail(f"expected one VM, got {len(others) + 1}")
    metadata = reader.mapping(content, "metadata")
    draft.name = str(metadata.get("name") or metadata.get("generateName") or "vm")
    spec = reader.mapping(content, "spec")
    outer, labelled = spec, [metadata]
    if content["kind"] == "VirtualMachine":
        template = reader.mapping(spec, "template", needed=True)
        labelled.append(reader.mapping(template, "metadata"))
        spec = reader.mapping(template, "spec", needed=True)
    if any(_SIDECAR in reader.mapping(one, "annotations") for one in labelled):
        draft.left_out(_SIDECAR, "a sidecar changes the domain; pass virt-launcher's XML instead")
    domain = reader.mapping(spec, "domain", needed=True)
    typed = []
    for key in ("instancetype", "preference"):
        named = reader.mapping(outer, key)
        found = reader.named(contents, key, str(named.get("name", ""))) if named else None
        if named and found is None:
            draft.left_out(
                f"{key} {named.get('name', '')}",
                "add its object to the file: 'kubectl get -o yaml vm/NAME "
                f"virtualmachinecluster{key}/NAME'; a VMI of 'kubectl get -o yaml vmi' has all",
            )
        typed.append(found or YamlMapping())
    instancetype, preference = typed
    reader.read(spec, merged(reader.completed(spec, domain), instancetype, preference, reader))
    return draft, str(content["kind"])


class _Reader:
    def __init__(self, draft: Draft) -> None:
        self.draft = draft

    def named(self, contents: list[Any], kind: str, name: str) -> YamlMapping | None:
        """Return the specification of the instance type or preference of that name."""
        for one in contents:
            is_kind = isinstance(one, YamlMapping) and str(one.get("kind")).lower().endswith(kind)
            if is_kind and self.mapping(one, "metadata").get("name") == name:
                return self.mapping(one, "spec", needed=True)
        return None

    def completed(self, spec: YamlMapping, domain: YamlMapping) -> YamlMapping:
        """Return the domain with the disks and the card that KubeVirt adds to every VM: one for
        each volume that no disk names, and one on the pod's network."""
        devices = self.mapping(domain, "devices")
        disks, cards = (list(self.entries(devices, key)) for key in ("disks", "interfaces"))
        named = {str(disk.get("name")) for disk in disks}
        volumes = [str(volume.get("name")) for volume in self.entries(spec, "volumes")]
        disks += [YamlMapping({"name": name}) for name in volumes if name not in named]
        if not (cards or spec.get("networks") or devices.get("autoattachPodInterface") is False):
            cards = [YamlMapping({"name": "default"})]
        lists = {"disks": YamlList(disks), "interfaces": YamlList(cards)}
        return with_fields(domain, {"devices": with_fields(devices, lists)})

    def rest(self, holder: Mapping[str, Any], kind: str, where: str = "", why: str = "") -> None:
        """Note the fields of an object that the copy does not have."""
        for key in holder:
            if key not in _READ[kind]:
                self.draft.left_out(f"{where or kind}.{key}"[:100], why)

    def mapping(self, holder: Mapping[str, Any], key: str, *, needed: bool = False) -> YamlMapping:
        found = holder.get(key)
        if found is None and not needed:
            return YamlMapping()
        if not isinstance(found, YamlMapping):
            raise self.draft.fail(f"'{key}': expected a mapping", _line(holder, key))
        return found

    def entries(self, holder: YamlMapping, key: str) -> Iterator[YamlMapping]:
        found = holder.get(key)
        if found is None:
            return
        if not isinstance(found, YamlList):
            raise self.draft.fail(f"'{key}': expected a list", _line(holder, key))
        for number, entry in enumerate(found):
            if not isinstance(entry, YamlMapping):
                raise self.draft.fail(f"'{key}': expected mappings", found.lines[number])
            yield entry

    def number(self, holder: YamlMapping, key: str, default: int) -> int:
        found = holder.get(key, default)
        if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < 1 << 32:
            raise self.draft.fail(f"'{key}': expected a whole number", _line(holder, key))
        return found

    def mib(self, holder: YamlMapping, key: str) -> int | None:
        """Return a quantity of memory in MiB, rounded up; None without one."""
        found = holder.get(key)
        if found is None:
            return None
        match = _QUANTITY.fullmatch(str(found))
        if match is None:
            raise self.draft.fail(
                f"'{key}': expected a quantity such as 2Gi, got {str(found)[:60]!r}",
                _line(holder, key),
            )
        size = float(f"{match[1]}.{match[2] or 0}") * _UNITS[match[3]]
        return -(-int(size) // (1 << 20))

    def read(self, spec: YamlMapping, domain: YamlMapping) -> None:
        draft = self.draft
        cpu, memory = self.mapping(domain, "cpu"), self.mapping(domain, "memory")
        resources = self.mapping(domain, "resources")
        limits, requests = (self.mapping(resources, key) for key in ("limits", "requests"))
        size = (
            self.mib(memory, "guest") or self.mib(requests, "memory") or self.mib(limits, "memory")
        )
        if size is None:
            draft.notes.append("memory: 1024 MiB stands in for the instance type's")
        shape = {key: self.number(cpu, key, 1) for key in ("sockets", "cores", "threads")}
        if not set(shape) & set(cpu):
            shape["sockets"] = self._requested(requests, limits)
            if size is None:
                draft.notes.append(f"vCPUs: {shape['sockets']} for the instance type's")
        vcpus = shape["sockets"] * shape["cores"] * shape["threads"]
        draft.size(vcpus, size or 1024)
        firmware = self.mapping(self.mapping(domain, "firmware"), "bootloader")
        machine = str(self.mapping(domain, "machine").get("type") or "q35")
        arch = str(spec.get("architecture") or "amd64")
        draft.system(
            "pc" if machine.startswith("pc-i440fx") else "q35",
            uefi="efi" in firmware,
            arch=_ARCHITECTURES.get(arch, arch),
        )
        draft.version(machine)
        self.rest(self.mapping(domain, "machine"), "machine")
        self.rest(self.mapping(domain, "firmware"), "firmware")
        self.rest(memory, "memory", why="without hotplug" if "maxGuest" in memory else "")
        self._kernel(self.mapping(self.mapping(domain, "firmware"), "kernelBoot"))
        if self.mapping(firmware, "efi").get("secureBoot"):
            draft.left_out("firmware.bootloader.efi.secureBoot")
        self._features(self.mapping(domain, "features"))
        self._cpu(cpu, shape)
        self._clock(self.mapping(domain, "clock"))
        pages = self.mapping(memory, "hugepages").get("pageSize")
        if pages is not None:
            element = draft.put("memoryBacking/hugepages")
            mib = self.mib(self.mapping(memory, "hugepages"), "pageSize")
            etree.SubElement(element, "page", size=str(mib), unit="MiB")
        self._devices(spec, domain, vcpus)
        self.rest(domain, "domain")

    def _kernel(self, boot: YamlMapping) -> None:
        container = self.mapping(boot, "container")
        for key, tag in (("kernelPath", "kernel"), ("initrdPath", "initrd")):
            if key in container:
                self.draft.boot_file(tag, f"{container.get('image')} {container[key]}")
        if boot.get("kernelArgs"):
            self.draft.put("os/cmdline", str(boot["kernelArgs"]))

    def _requested(self, requests: YamlMapping, limits: YamlMapping) -> int:
        text = str(limits.get("cpu", requests.get("cpu", "1")))
        match = _CPUS.fullmatch(text)
        if match is None:
            raise self.draft.fail(f"'cpu': expected a number of CPUs, got {text[:60]!r}")
        return max(1, math.ceil(float(match[1]) / (1000 if match[2] else 1)))

    def _cpu(self, cpu: YamlMapping, shape: Mapping[str, int]) -> None:
        draft = self.draft
        model = str(cpu.get("model") or "host-model")
        draft.cpu(model if model in ("host-model", "host-passthrough") else "custom", model)
        draft.topology(shape["sockets"], shape["cores"], shape["threads"])
        for feature in self.entries(cpu, "features"):
            policy = str(feature.get("policy") or "require")
            draft.add("cpu", "feature", policy=policy, name=str(feature.get("name", "")))
        for key, given in cpu.items():
            if key not in _READ["cpu"] and given not in (False, None):
                draft.left_out(f"cpu.{key}"[:100], _PLACED.get(key, ""))

    def _features(self, features: YamlMapping) -> None:
        draft = self.draft
        if self.mapping(features, "acpi").get("enabled", True):
            draft.put("features/acpi")
        draft.put("features/apic")
        hyperv = self.mapping(features, "hyperv")
        asked = [name for name in (*_ENLIGHTENMENTS, "synictimer") if name in hyperv]
        on = [name for name in asked if self.mapping(hyperv, name).get("enabled", True)]
        on = ["stimer" if name == "synictimer" else name for name in on]
        for name in dict.fromkeys(n for one in on for n in (*_NEEDED.get(one, ()), one)):
            draft.hyperv(name)
        if "spinlocks" in hyperv:
            retries = self.number(self.mapping(hyperv, "spinlocks"), "spinlocks", 4096)
            draft.hyperv("spinlocks", str(retries))
        if "stimer" in on and "direct" in self.mapping(hyperv, "synictimer"):
            draft.hyperv("stimer_direct")
        if self.mapping(features, "kvm").get("hidden"):
            draft.put("features/kvm/hidden", state="on")
        if "smm" in features:
            draft.put("features/smm", state="on")
        self.rest(features, "features")
        self.rest(hyperv, "hyperv", "features.hyperv")

    def _clock(self, clock: YamlMapping) -> None:
        draft = self.draft
        zone = clock.get("timezone")
        offset = "timezone" if zone else "utc"
        draft.put("clock", offset=offset, timezone=zone)
        for key, timer in self.mapping(clock, "timer").items():
            name = {"kvm": "kvmclock", "hyperv": "hypervclock"}.get(str(key), str(key))
            fields = timer if isinstance(timer, YamlMapping) else YamlMapping()
            draft.timer(
                name,
                bool(fields.get("present", True)),
                tickpolicy=fields.get("tickPolicy"),
                track=fields.get("track"),
            )
        if self.mapping(clock, "utc").get("offsetSeconds"):
            draft.left_out("clock.utc.offsetSeconds")
        self.rest(clock, "clock")

    def _devices(self, spec: YamlMapping, domain: YamlMapping, vcpus: int) -> None:
        draft, devices = self.draft, self.mapping(domain, "devices")
        volumes = {str(one.get("name")): one for one in self.entries(spec, "volumes")}
        policy = str(domain.get("ioThreadsPolicy") or "")
        pool = self.number(self.mapping(domain, "ioThreads"), "supplementalPoolThreadCount", 0)
        for _ in range(min(pool, 256) if policy == "supplementalPool" else policy == "shared"):
            draft.iothread()
        for disk in self.entries(devices, "disks"):
            self._disk(disk, volumes, policy, vcpus if devices.get("blockMultiQueue") else 0)
        queues = vcpus if devices.get("networkInterfaceMultiqueue") else 0
        for card in self.entries(devices, "interfaces"):
            if "sriov" in card:
                draft.left_out(f"interface {card.get('name')}", "a passed-through function")
                continue
            self.rest(card, "interface", f"interface {card.get('name')}")
            draft.card(str(card.get("model") or "virtio"), card.get("macAddress"), queues=queues)
        draft.balloon(devices.get("autoattachMemBalloon") is not False)
        if "rng" in devices:
            rng = draft.add("devices", "rng", model="virtio")
            etree.SubElement(rng, "backend", model="builtin")
        draft.agent()
        self.rest(devices, "devices")

    def _disk(
        self, disk: YamlMapping, volumes: Mapping[str, YamlMapping], policy: str, queues: int
    ) -> None:
        draft, name = self.draft, str(disk.get("name", ""))
        volume = volumes.get(name, YamlMapping())
        kinds = [str(key) for key in volume if key != "name"]
        kind = kinds[0] if kinds else "no volume"
        if "cdrom" in disk or kind in _DATA:
            draft.left_out(f"disk {name} ({kind})", "a CD or data for the guest's set-up")
            return
        how = self.mapping(disk, "disk" if "disk" in disk else "lun")
        bus = str(how.get("bus") or "sata")  # KubeVirt's default on amd64
        self.rest({**disk, **how}, "disk", f"disk {name}")
        shared = policy == "shared" and bus in ("virtio", "scsi")
        own = bool(disk.get("dedicatedIOThread")) or policy == "auto"
        iothread = 1 if shared and not own else draft.iothread() if own else None
        source = volume.get(kind)
        path = (
            source.get("path") if isinstance(source, YamlMapping) and kind == "hostDisk" else None
        )
        referred = (
            source.get("name", source.get("claimName", source.get("image", "")))
            if isinstance(source, YamlMapping)
            else ""
        )
        made = draft.disk(
            name,
            bus,
            str(path) if path else None,
            was=f"{kind} {referred}".strip(),
            readonly=bool(how.get("readonly")),
            cache=disk.get("cache") or "none",
            io=disk.get("io"),
            discard="unmap",
            queues=queues or None,
            iothread=iothread if bus == "virtio" and policy != "supplementalPool" else None,
        )
        if policy == "supplementalPool" and bus == "virtio":
            driver = made.find("driver")
            assert driver is not None
            mapped = etree.SubElement(driver, "iothreads")
            for number in range(1, draft.iothreads + 1):
                etree.SubElement(mapped, "iothread", id=str(number))
        if order := self.number(disk, "bootOrder", 0):
            etree.SubElement(made, "boot", order=str(order))
        if size := self.mapping(self.mapping(disk, "blockSize"), "custom"):
            etree.SubElement(
                made,
                "blockio",
                logical_block_size=str(self.number(size, "logical", 512)),
                physical_block_size=str(self.number(size, "physical", 512)),
            )
        elif "blockSize" in disk:
            draft.left_out(f"disk {name}.blockSize", "that of the volume")
        if disk.get("serial"):
            etree.SubElement(made, "serial").text = str(disk["serial"])


def _line(holder: Mapping[str, Any], key: str) -> int | None:
    return holder.lines.get(key) if isinstance(holder, YamlMapping) else None
