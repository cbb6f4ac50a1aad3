"""Name the settings of a rollout by a tuning's keys, for platforms that take no domain XML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from labctl.base.cpus import CpuSet, format_cpus, parse_cpus
from labctl.base.xmldiff import XmlChange
from labctl.rollout.domain_edits import (
    added_words,
    changed_devices,
    domain_changes,
    new_format,
)
from labctl.store.records.run_record import RecordedTuning

UNKNOWN = "another part of the domain"
"""Key of a change that no key of a tuning stands for."""


@dataclass(slots=True)
class Setting:
    """Hold a key of a tuning file with its value. `items`: values by number or name, such as the
    CPUs of each vCPU; `words`: further values, such as a policy's priority."""

    key: str
    value: str = ""
    items: dict[str, str] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)


_QUOTED = r"\[@[a-z]+='([^']*)'\]"
_PARTS = (
    (rf"cputune/vcpupin{_QUOTED}/@cpuset", "pin.vcpus", ""),
    (r"cputune/emulatorpin/@cpuset", "pin.emulator", ""),
    (rf"cputune/iothreadpin{_QUOTED}/@cpuset", "pin.iothreads", ""),
    (rf"cputune/vcpusched{_QUOTED}/@scheduler", "vcpu_sched", ""),
    (rf"cputune/vcpusched{_QUOTED}/@priority", "vcpu_sched", "priority"),
    (r"cputune/emulatorsched/@scheduler", "emulator_sched", ""),
    (r"cputune/emulatorsched/@priority", "emulator_sched", "priority"),
    (rf"cputune/iothreadsched{_QUOTED}/@scheduler", "iothread_sched", ""),
    (rf"cputune/iothreadsched{_QUOTED}/@priority", "iothread_sched", "priority"),
    (r"iothreads", "iothreads", ""),
    (r"cpu/@mode", "cpu.mode", ""),
    (r"cpu/model", "cpu.model", ""),
    (r"cpu/(?:@match|model/@fallback)", "cpu.model", "match"),
    (r"cpu/topology/@(?:sockets|cores|threads)", "cpu.topology", "NAME"),
    (r"cpu/cache/@mode", "cpu.cache", ""),
    (rf"cpu/feature{_QUOTED}/@policy", "cpu.features", ""),
    (rf"cpu/numa/cell{_QUOTED}/@cpus", "memory.cells", ""),
    (rf"cpu/numa/cell{_QUOTED}/@(?:memory|unit)", "memory.cells", "NAME"),
    (rf"numatune/memnode{_QUOTED}/@(?:mode|nodeset)", "memory.cells", "NAME"),
    (r"numatune/memory/@mode", "memory.numa", ""),
    (r"numatune/memory/@nodeset", "memory.numa", "nodes"),
    (rf"memoryBacking/hugepages/page{_QUOTED}/@unit", "memory.hugepages", ""),
    (r"memoryBacking/locked", "memory.locked", ""),
    (r"memoryBacking/nosharepages", "memory.nosharepages", ""),
    (r"memoryBacking/source/@type", "memory.source", ""),
    (r"memoryBacking/access/@mode", "memory.access", ""),
    (r"devices/memballoon/@model", "memory.balloon", ""),
    (r"devices/memballoon/@freePageReporting", "memory.free_page_reporting", ""),
    (r"features/kvm/hint-dedicated/@state", "kvm.hint_dedicated", ""),
    (r"features/kvm/poll-control/@state", "kvm.poll_control", ""),
    (r"features/kvm/pv-ipi/@state", "kvm.pv_ipi", ""),
    (r"features/hyperv/spinlocks/@retries", "hyperv.spinlocks", ""),
    (r"features/hyperv/spinlocks/@state", "hyperv.spinlocks", "state"),
    (r"features/hyperv/stimer/direct/@state", "hyperv.stimer_direct", ""),
    (r"features/hyperv/([a-z]+)/@state", "hyperv.", ""),
    (rf"clock/timer{_QUOTED}/@present", "timers.", ""),
)
"""Part of a domain to its key, and the further value that it is ("NAME": its attribute's). A key
that ends in a dot ends with the part's own name."""

_DEVICE_PARTS = (
    (r"disk: driver/@cache", "disk.cache", ""),
    (r"disk: driver/@io", "disk.io", ""),
    (r"disk: driver/@iothread", "disk.iothread", ""),
    (r"disk: driver/@queues|controller: driver/@queues", "disk.queues", ""),
    (r"disk: driver/@packed", "disk.packed", ""),
    (r"disk: driver/@discard", "disk.discard", ""),
    (r"(?:disk|controller): driver/iothreads/.*", "disk.iothread_mapping", ""),
    (r"disk: target/@bus", "disk.bus", ""),
    (r"controller: .*", "disk.bus", "controller"),
    (r"interface: model/@type", "network.model", ""),
    (r"interface: driver/@name", "network.vhost", ""),
    (r"interface: driver/@queues", "network.queues", ""),
    (r"interface: driver/@packed", "network.packed", ""),
)
"""Likewise of devices."""

_WORDS: Mapping[str, str] = {"on": "yes", "off": "no", "": "yes"}
_OWN_WORDS: Mapping[str, Mapping[str, str]] = {
    "memory.balloon": {"none": "no", "virtio": "yes"},
    "memory.hugepages": {"2048": "2M", "1048576": "1G"},
    "network.vhost": {"qemu": "no", "vhost": "yes"},
}
"""Values in the words of a tuning file."""
_ALWAYS_YES = frozenset({"disk.iothread", "disk.iothread_mapping"})
_PINS = ("pin.vcpus", "pin.iothreads")


def named_settings(
    before: str | None,
    after: str | None,
    recorded: RecordedTuning,
    former: RecordedTuning,
    *,
    host: Mapping[str, str],
    vhost: CpuSet,
) -> tuple[Setting, ...]:
    """Return what a tuning sets, by the keys of its file: from its domain's differences to
    baseline's, and from the run's record. `host`: knobs of the host to their values; `vhost`: CPUs
    of the vhost workers."""
    found: dict[str, Setting] = {}
    if before is not None and after is not None:
        for change in domain_changes(before, after):
            _note(found, change, change.path, _PARTS)
        for device in changed_devices(before, after):
            for change in device.changes:
                _note(found, change, f"{device.tag}: {change.path}", _DEVICE_PARTS)
        if image := new_format(before, after):
            found["disk.format"] = Setting("disk.format", image)
        if words := added_words(before, after):
            found["guest.command_line"] = Setting("guest.command_line", " ".join(words))
    for setting in found.values():
        if setting.key in _PINS:
            setting.value = _union(setting.items.values())
        elif setting.items and not setting.value:
            setting.value = ", ".join(f"{name}: {value}" for name, value in setting.items.items())
        elif setting.key == "cpu.topology":
            setting.value = "/".join(setting.words.values())
    return (*found.values(), *_recorded(recorded, former, host, vhost))


def _note(
    found: dict[str, Setting],
    change: XmlChange,
    path: str,
    parts: tuple[tuple[str, str, str], ...],
) -> None:
    for pattern, named, word in parts:
        match = re.fullmatch(pattern, path)
        if match is None:
            continue
        inner = match[1] if match.groups() else ""
        key, inner = (named + inner, "") if named.endswith(".") else (named, inner)
        setting = found.setdefault(key, Setting(key))
        value = "no" if change.after is None else _WORDS.get(change.after, change.after)
        if key == "memory.hugepages":
            value, inner = inner, ""
        value = _OWN_WORDS.get(key, {}).get(value, value)
        if key in _ALWAYS_YES:
            setting.value = "yes"
        elif word:
            setting.words[path.rpartition("@")[2] if word == "NAME" else word] = value
        elif inner and not key.endswith("_sched"):
            setting.items[inner] = value
        else:
            setting.value = value
        return
    found.setdefault(path, Setting(UNKNOWN, f"{path} = {change.after}"))


def _union(cpusets: Iterable[str]) -> str:
    cpusets = list(cpusets)
    try:
        return format_cpus(frozenset().union(*map(parse_cpus, cpusets)))
    except ValueError:  # a set that excludes numbers
        return ",".join(cpusets)


def _recorded(
    recorded: RecordedTuning, former: RecordedTuning, host: Mapping[str, str], vhost: CpuSet
) -> Iterator[Setting]:
    if vhost:
        yield Setting("pin.vhost", format_cpus(vhost))
    if recorded.pin.partition not in (None, former.pin.partition):
        yield Setting("pin.partition", str(recorded.pin.partition))
    if recorded.pin.strategy not in (None, former.pin.strategy):
        yield Setting("pin.strategy", str(recorded.pin.strategy))
    if recorded.vcpu_slice_ms and recorded.vcpu_slice_ms != former.vcpu_slice_ms:
        ns = f"{recorded.vcpu_slice_ms * 1e6:.0f}"
        yield Setting("vcpu_slice_ms", f"{recorded.vcpu_slice_ms:g}", words={"ns": ns})
    if recorded.nice not in (None, former.nice):
        yield Setting("nice", str(recorded.nice))
    if (weight := recorded.cpu_weight) not in (None, former.cpu_weight):
        yield Setting("cpu_weight", str(weight), words={"shares": str(weight * 1024 // 100)})
    for knob, value in host.items():
        yield Setting(f"host.{knob}", value)
    if words := recorded.requires.command_line:
        yield Setting("requires.command_line", " ".join(words))
    for name in ("tuned", "elevator"):
        if value := getattr(recorded.guest, name):
            yield Setting(f"guest.{name}", value)
    if recorded.guest.sysfs:
        paths = ", ".join(f"{path}={value}" for path, value in recorded.guest.sysfs.items())
        yield Setting("guest.sysfs", paths)
