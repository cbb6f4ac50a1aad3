"""Merge KubeVirt's instance type and preference into a VM, as KubeVirt does when it starts. Pure.

https://kubevirt.io/user-guide/user_workloads/instancetypes/
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol

from labctl.base.yamltext import YamlList, YamlMapping

_LISTS: Final = ("gpus", "hostDevices")
_OF_DOMAIN: Final = ("ioThreadsPolicy", "ioThreads", "launchSecurity")
_CPU_NAMES: Final = {"dedicatedCPUPlacement": "dedicatedCpuPlacement"}
"""Fields of an instance type's cpu that have another name in a VM."""
_PREFERRED: Final = {
    "preferredBlockMultiQueue": "blockMultiQueue",
    "preferredNetworkInterfaceMultiQueue": "networkInterfaceMultiqueue",
    "preferredAutoattachMemBalloon": "autoattachMemBalloon",
    "preferredAutoattachPodInterface": "autoattachPodInterface",
    "preferredRng": "rng",
    "preferredTPM": "tpm",
    "preferredSoundModel": "sound",
    "preferredPanicDeviceModel": "panicDevices",
}
"""Preferences for devices to the VM's fields. Others change nothing that a copy has."""
_OF_DISK: Final = {
    "preferredDiskCache": "cache",
    "preferredDiskIO": "io",
    "preferredDiskBlockSize": "blockSize",
}


class Reader(Protocol):
    """Read fields of an object; raises UsageError naming the line."""

    def mapping(self, holder: Mapping[str, Any], key: str) -> YamlMapping: ...
    def entries(self, holder: YamlMapping, key: str) -> Iterator[YamlMapping]: ...
    def number(self, holder: YamlMapping, key: str, default: int) -> int: ...


def with_fields(given: Mapping[str, Any], more: Mapping[str, Any] | None = None) -> YamlMapping:
    """Return a copy of an object with further fields."""
    made = YamlMapping({**given, **(more or {})})
    for one in (given, more):
        made.lines |= one.lines if isinstance(one, YamlMapping) else {}
    return made


def merged(
    domain: YamlMapping, instancetype: YamlMapping, preference: YamlMapping, read: Reader
) -> YamlMapping:
    """Return the VM's domain with its instance type (its size) and its preference, which holds
    where the VM sets nothing. Both are specifications; empty: none."""
    parts = {key: with_fields(read.mapping(domain, key)) for key in ("cpu", "memory", "devices")}
    _add_type(parts, instancetype, preference, read)
    fields = {key: instancetype[key] for key in _OF_DOMAIN if key in instancetype}
    if preference:
        _add_preference(parts, preference, read)
        for key in ("clock", "features", "firmware", "machine"):
            parts[key] = with_fields(read.mapping(domain, key))
            _prefer(parts[key], key, read.mapping(preference, key), read)
    return with_fields(domain, {key: part for key, part in parts.items() if part} | fields)


def _add_type(
    parts: Mapping[str, YamlMapping],
    instancetype: YamlMapping,
    preference: YamlMapping,
    read: Reader,
) -> None:
    cpu = read.mapping(instancetype, "cpu")
    for key, value in cpu.items():
        if key != "guest":
            parts["cpu"][_CPU_NAMES.get(key, key)] = value
    if vcpus := read.number(cpu, "guest", 0):
        parts["cpu"].update(_shape(vcpus, read.mapping(preference, "cpu"), read))
    parts["memory"].update(read.mapping(instancetype, "memory"))
    for key in _LISTS:
        if key in instancetype:
            parts["devices"][key] = instancetype[key]


def _shape(vcpus: int, preferred: YamlMapping, read: Reader) -> dict[str, int]:
    """Return sockets, cores and threads of a number of vCPUs; by default all are sockets."""
    shape = {"sockets": 1, "cores": 1, "threads": 1}
    wish = str(preferred.get("preferredCPUTopology", "sockets")).lower().removeprefix("prefer")
    if wish == "spread":
        options = read.mapping(preferred, "spreadOptions")
        ratio = read.number(options, "ratio", 2) or 2
        across = str(options.get("across", "SocketsCores"))
        inner = {"CoresThreads": {"threads": ratio}, "SocketsCoresThreads": {"threads": 2}}
        shape |= {**inner.get(across, {}), **({"cores": ratio} if "Sockets" in across else {})}
        each = shape["cores"] * shape["threads"]
        outer = "sockets" if "Sockets" in across else "cores"
        if vcpus % each == 0:
            return shape | {outer: vcpus // each}
        shape = dict.fromkeys(shape, 1)
    return shape | {wish if wish in shape else "sockets": vcpus}


def _add_preference(
    parts: Mapping[str, YamlMapping], preference: YamlMapping, read: Reader
) -> None:
    devices, wishes = parts["devices"], read.mapping(preference, "devices")
    for wish, key in _PREFERRED.items():
        if wish in wishes:
            devices.setdefault(key, wishes[wish])
    devices["disks"] = YamlList(
        _disk(disk, wishes, read) for disk in read.entries(devices, "disks")
    )
    if model := wishes.get("preferredInterfaceModel"):
        cards = read.entries(devices, "interfaces")
        devices["interfaces"] = YamlList(with_fields({"model": model}, card) for card in cards)
    features = list(read.entries(read.mapping(preference, "cpu"), "preferredCPUFeatures"))
    if features:
        own = list(read.entries(parts["cpu"], "features"))
        names = {feature.get("name") for feature in own}
        parts["cpu"]["features"] = YamlList(
            [*own, *(one for one in features if one.get("name") not in names)]
        )


def _disk(disk: YamlMapping, wishes: YamlMapping, read: Reader) -> YamlMapping:
    if "cdrom" in disk:
        return disk
    fields = {key: wishes[wish] for wish, key in _OF_DISK.items() if wish in wishes}
    kind = "lun" if "lun" in disk else "disk"
    bus = wishes.get("preferredLunBus" if kind == "lun" else "preferredDiskBus")
    how = with_fields({"bus": bus} if bus else {}, read.mapping(disk, kind))
    thread = wishes.get("preferredDiskDedicatedIoThread")
    if thread is not None and how.get("bus") == "virtio":
        fields["dedicatedIOThread"] = thread
    return with_fields(fields if kind == "disk" else {}, {**disk, kind: how})


def _prefer(part: YamlMapping, key: str, wishes: YamlMapping, read: Reader) -> None:
    for wish, value in wishes.items():
        name = str(wish).removeprefix("preferred")
        match name:
            case "ClockOffset" if isinstance(value, YamlMapping):
                if not {"utc", "timezone"} & part.keys():
                    part.update(value)
            case "Efi" | "UseEfi" | "UseBios":
                if value is not False:
                    kind = "bios" if name == "UseBios" else "efi"
                    content = value if isinstance(value, YamlMapping) else YamlMapping()
                    part.setdefault("bootloader", YamlMapping({kind: content}))
            case "MachineType":
                part.setdefault("type", value)
            case _ if key in ("clock", "features"):
                part.setdefault(name[:1].lower() + name[1:], value)
