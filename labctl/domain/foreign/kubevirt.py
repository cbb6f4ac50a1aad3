"""Read a VirtualMachine or VirtualMachineInstance of KubeVirt as a domain."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from lxml import etree

from labctl.base.yamltext import YamlList, YamlMapping
from labctl.domain.foreign.draft import Draft

KINDS: Final = ("VirtualMachine", "VirtualMachineInstance")

_UNITS: Final = {
    "": 1,
    **{unit: 1024**power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti"), start=1)},
    **{unit: 1000**power for power, unit in enumerate(("k", "M", "G", "T"), start=1)},
}
_QUANTITY = re.compile(r"(\d{1,15})(?:\.(\d{1,6}))?(|Ki|Mi|Gi|Ti|k|M|G|T)")
_CPUS = re.compile(r"(\d{1,6})(m?)")
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
_SCSI = "scsi"


def drafted(content: YamlMapping, what: str) -> Draft:
    """Return the domain of a VM's object. Raises UsageError naming the line of a field that is not
    as KubeVirt's API has it."""
    draft = Draft(what, "vm")
    reader = _Reader(draft)
    metadata = reader.mapping(content, "metadata")
    draft.name = str(metadata.get("name") or metadata.get("generateName") or "vm")
    spec = reader.mapping(content, "spec")
    if content["kind"] == "VirtualMachine":
        for key in ("instancetype", "preference"):
            if key in spec:
                named = reader.mapping(spec, key).get("name", "")
                draft.left_out(f"{key} {named}", "a file of its own; add its fields to the VM")
        spec = reader.mapping(reader.mapping(spec, "template", needed=True), "spec", needed=True)
    reader.read(spec, reader.mapping(spec, "domain", needed=True))
    return draft


class _Reader:
    def __init__(self, draft: Draft) -> None:
        self.draft = draft

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
            self.mib(memory, "guest") or self.mib(limits, "memory") or self.mib(requests, "memory")
        )
        if size is None:
            draft.notes.append("memory: 1024 MiB stands in for the instance type's")
        shape = {key: self.number(cpu, key, 1) for key in ("sockets", "cores", "threads")}
        if not set(shape) & set(cpu):
            shape["sockets"] = self._requested(requests, limits)
        vcpus = shape["sockets"] * shape["cores"] * shape["threads"]
        draft.size(vcpus, size or 1024)
        firmware = self.mapping(self.mapping(domain, "firmware"), "bootloader")
        machine = str(self.mapping(domain, "machine").get("type") or "q35")
        draft.system("pc" if machine.startswith("pc-i440fx") else "q35", uefi="efi" in firmware)
        self._features(self.mapping(domain, "features"))
        self._cpu(cpu, shape)
        self._clock(self.mapping(domain, "clock"))
        pages = self.mapping(memory, "hugepages").get("pageSize")
        if pages is not None:
            element = draft.put("memoryBacking/hugepages")
            mib = self.mib(self.mapping(memory, "hugepages"), "pageSize")
            etree.SubElement(element, "page", size=str(mib), unit="MiB")
        self._devices(spec, domain, vcpus)
        used = {"cpu", "memory", "resources", "firmware", "machine", "features", "clock", "devices"}
        used |= {"ioThreadsPolicy", "ioThreads", "rebootPolicy", "chassis"}
        for key in domain:
            if key not in used:
                draft.left_out(f"domain.{key}")

    def _requested(self, requests: YamlMapping, limits: YamlMapping) -> int:
        text = str(limits.get("cpu", requests.get("cpu", "1")))
        match = _CPUS.fullmatch(text)
        if match is None:
            raise self.draft.fail(f"'cpu': expected a number of CPUs, got {text[:60]!r}")
        return max(1, -(-int(match[1]) // 1000) if match[2] else int(match[1]))

    def _cpu(self, cpu: YamlMapping, shape: Mapping[str, int]) -> None:
        draft = self.draft
        model = str(cpu.get("model") or "host-model")
        draft.cpu(model if model in ("host-model", "host-passthrough") else "custom", model)
        draft.topology(shape["sockets"], shape["cores"], shape["threads"])
        for feature in self.entries(cpu, "features"):
            policy = str(feature.get("policy") or "require")
            draft.add("cpu", "feature", policy=policy, name=str(feature.get("name", "")))
        for key, why in _PLACED.items():
            if cpu.get(key):
                draft.left_out(f"cpu.{key}", why)

    def _features(self, features: YamlMapping) -> None:
        draft = self.draft
        draft.put("features/acpi")
        draft.put("features/apic")
        hyperv = self.mapping(features, "hyperv")
        for name in _ENLIGHTENMENTS:
            if name in hyperv and self.mapping(hyperv, name).get("enabled", True):
                draft.hyperv(name)
        if "spinlocks" in hyperv:
            retries = self.number(self.mapping(hyperv, "spinlocks"), "spinlocks", 4096)
            draft.hyperv("spinlocks", str(retries))
        if "synictimer" in hyperv:
            draft.hyperv("stimer")
            if "direct" in self.mapping(hyperv, "synictimer"):
                draft.hyperv("stimer_direct")
        if self.mapping(features, "kvm").get("hidden"):
            draft.put("features/kvm/hidden", state="on")
        if "smm" in features:
            draft.put("features/smm", state="on")
        if "hypervPassthrough" in features:
            draft.left_out("features.hypervPassthrough")

    def _clock(self, clock: YamlMapping) -> None:
        draft = self.draft
        zone = clock.get("timezone")
        offset = "timezone" if zone else "utc"
        draft.put("clock", offset=offset, timezone=zone)
        for key, timer in self.mapping(clock, "timer").items():
            name = {"kvm": "kvmclock", "hyperv": "hypervclock"}.get(str(key), str(key))
            present = timer.get("present", True) if isinstance(timer, YamlMapping) else True
            draft.timer(name, bool(present))

    def _devices(self, spec: YamlMapping, domain: YamlMapping, vcpus: int) -> None:
        draft, devices = self.draft, self.mapping(domain, "devices")
        volumes = {str(one.get("name")): one for one in self.entries(spec, "volumes")}
        policy = str(domain.get("ioThreadsPolicy") or "")
        pool = self.number(self.mapping(domain, "ioThreads"), "supplementalPoolThreadCount", 0)
        for _ in range(min(pool, 256) if policy == "supplementalPool" else policy == "shared"):
            draft.iothread()
        disks = list(self.entries(devices, "disks"))
        named = {str(disk.get("name")) for disk in disks}
        # KubeVirt attaches a volume that no disk names.
        disks += [YamlMapping({"name": name}) for name in volumes if name not in named]
        for disk in disks:
            self._disk(disk, volumes, policy, vcpus if devices.get("blockMultiQueue") else 0)
        queues = vcpus if devices.get("networkInterfaceMultiqueue") else 0
        for card in self.entries(devices, "interfaces"):
            if "sriov" in card:
                draft.left_out(f"interface {card.get('name')}", "a passed-through function")
                continue
            draft.card(str(card.get("model") or "virtio"), card.get("macAddress"), queues=queues)
        draft.balloon(devices.get("autoattachMemBalloon") is not False)
        if "rng" in devices:
            rng = draft.add("devices", "rng", model="virtio")
            etree.SubElement(rng, "backend", model="builtin")
        draft.agent()
        read = {"disks", "interfaces", "autoattachMemBalloon", "blockMultiQueue", "rng"}
        read |= {"networkInterfaceMultiqueue", "disableHotplug", "useVirtioTransitional"}
        for key in devices:
            if key not in read and not str(key).startswith(("autoattach", "logSerial")):
                draft.left_out(f"devices.{key}")

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
        bus = str(how.get("bus") or "virtio")
        shared = policy == "shared" and bus in ("virtio", _SCSI)
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
        if disk.get("serial"):
            etree.SubElement(made, "serial").text = str(disk["serial"])


def _line(holder: Mapping[str, Any], key: str) -> int | None:
    return holder.lines.get(key) if isinstance(holder, YamlMapping) else None
