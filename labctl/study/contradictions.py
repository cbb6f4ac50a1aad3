"""Find what contradicts itself in one tuning: libvirt or QEMU would refuse it, or it would lie."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labctl.base.hostfacts import is_older, is_version
from labctl.base.tuning import OF_FAIR_SCHEDULER, PLAN, Kind, Policy, Strategy, Tuning
from labctl.study.changes import Key, dotted, values

TIMERS = ("hpet", "kvmclock", "hypervclock")
"""Timers that QEMU on x86 can enable or disable. (libvirt takes `tsc` and gives QEMU nothing.)"""

_ACCELERATOR: Key = ("requires", "accelerator")
_NEEDS_KVM = "Add 'requires: {accelerator: kvm}'."
_NEEDS_BOOT = "Write 'restore: false'."
_FAIR = (Policy.OTHER, Policy.BATCH)
_SCSI_MAPPING = {"libvirt": "11.2", "qemu": "10.0"}
_WORDS = {"libvirt": "libvirt", "qemu": "QEMU"}
_AT_BOOT = ("cpu", "kvm", "hyperv", "timers")
_OFF_IN_BASELINE: Sequence[Key] = (("cpu", "topology"), ("timers", "hpet"))
_ENLIGHTENED: Mapping[str, Sequence[Key]] = {
    "synic": (("hyperv", "vpindex"),),
    "stimer": (("hyperv", "synic"), ("timers", "hypervclock")),
    "stimer_direct": (("hyperv", "stimer"),),
    "tlbflush": (("hyperv", "vpindex"),),
    "ipi": (("hyperv", "vpindex"),),
    "evmcs": (("hyperv", "vapic"),),
}
"""Enlightenments that each one needs (QEMU, docs/system/i386/hyperv.rst); QEMU refuses it without
them."""


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Describe a contradiction. `keys`: the contradicting ones, the one to point at first."""

    keys: tuple[Key, ...]
    text: str
    hint: str | None = None


def contradictions(tuning: Tuning) -> Iterator[Contradiction]:
    """Yield everything in `tuning` that cannot be true at once."""
    if tuning.pin.strategy is not Strategy.COMPACT and tuning.pin.vcpus != PLAN:
        yield Contradiction(
            (("pin", "strategy"), ("pin", "vcpus")),
            f"'pin.strategy' is '{tuning.pin.strategy}', but 'pin.vcpus' does not use a plan.",
            "Write 'pin: {vcpus: plan}' as well.",
        )
    if tuning.host.get("smt") == "off" and PLAN in (
        tuning.pin.vcpus,
        tuning.pin.emulator,
        tuning.pin.vhost,
        tuning.pin.iothreads,
    ):
        yield Contradiction(
            (("host", "smt"), ("pin", "vcpus"), ("pin", "emulator"), ("pin", "iothreads")),
            "'host.smt' disables hardware threads that the pin plan uses.",
            "Switch SMT off for the whole run: 'labctl host tune smt-off', then the sweep.",
        )
    if (sched := tuning.vcpu_sched) and sched.policy not in _FAIR:
        for name in OF_FAIR_SCHEDULER:
            if getattr(tuning, name) is not None:
                yield Contradiction(
                    ((name,), ("vcpu_sched",)),
                    f"'{name}' needs the fair scheduler, but 'vcpu_sched.policy' is "
                    f"'{sched.policy}'.",
                    "Remove one of them.",
                )
    yield from _requirements(tuning)
    if tuning.kind is Kind.GUEST:
        yield from _iothreads(tuning)
        yield from _partition(tuning)
        yield from _disk(tuning)
        yield from _cpu(tuning)
        yield from _kvm_only(tuning)
        yield from _enlightened(tuning)
        yield from _memory(tuning)
        yield from _network(tuning)
        yield from _vhost(tuning)
        yield from _initrd(tuning)
        if tuning.restore:
            yield from _not_restorable(tuning)


def _requirements(tuning: Tuning) -> Iterator[Contradiction]:
    for name in ("libvirt", "qemu", "kernel"):
        version = getattr(tuning.requires, name)
        if version is not None and not is_version(version):
            yield Contradiction(
                (("requires", name),),
                f"'requires.{name}': expected a version, got '{version}'.",
                "Write numbers and dots, such as '9.0'.",
            )


def _iothreads(tuning: Tuning) -> Iterator[Contradiction]:
    for key, given in (
        (("pin", "iothreads"), tuning.pin.iothreads),
        (("iothread_sched",), tuning.iothread_sched),
        (("disk", "iothread"), tuning.disk.iothread),
    ):
        if given and tuning.iothreads == 0:
            yield Contradiction(
                (key, ("iothreads",)),
                f"'{dotted(key)}' is set, but the guest has no iothreads.",
                "Write 'iothreads: 1' as well.",
            )
    if tuning.disk.iothread_mapping and tuning.iothreads < 2:
        yield Contradiction(
            (("disk", "iothread_mapping"), ("iothreads",)),
            "'disk.iothread_mapping' spreads the disk's queues over several iothreads, but "
            f"the guest has {tuning.iothreads}.",
            "Write 'iothreads: 2' or more as well.",
        )


def _partition(tuning: Tuning) -> Iterator[Contradiction]:
    """Return the threads that are not pinned beside a partition. Their cgroups would have its CPUs
    in cpuset.cpus too, and then the kernel refuses it ("Cpu list in cpuset.cpus not exclusive")."""
    if tuning.pin.partition is None:
        return
    needed = ("vcpus", "emulator", *(("iothreads",) if tuning.iothreads else ()))
    for name in needed:
        if not getattr(tuning.pin, name):
            yield Contradiction(
                (("pin", "partition"), ("pin", name)),
                f"'pin.partition' needs 'pin.{name}': no other thread may have the CPUs of an "
                "isolated vCPU.",
                f"Write 'pin: {{{name}: plan}}' as well.",
            )


def _disk(tuning: Tuning) -> Iterator[Contradiction]:
    disk = tuning.disk
    # QEMU: "aio=native was specified, but it requires cache.direct=on".
    if disk.io == "native" and disk.cache not in ("none", "directsync"):
        yield Contradiction(
            (("disk", "io"), ("disk", "cache")),
            "'disk.io' is 'native', which needs 'disk.cache' none or directsync.",
        )
    if disk.iothread_mapping and disk.bus == "scsi":
        for name, needed in _SCSI_MAPPING.items():
            given = getattr(tuning.requires, name)
            if given is None or (is_version(given) and is_older(given, needed)):
                yield Contradiction(
                    (("disk", "iothread_mapping"), ("disk", "bus"), ("requires", name)),
                    "'disk.iothread_mapping' of a virtio-scsi controller takes "
                    f"{_WORDS[name]} {needed}.",
                    f"Write 'requires: {{{name}: \"{needed}\"}}' as well.",
                )


def _cpu(tuning: Tuning) -> Iterator[Contradiction]:
    cpu = tuning.cpu
    if (cpu.mode == "custom") != (cpu.model is not None):
        yield Contradiction(
            (("cpu", "mode" if cpu.model is None else "model"), ("cpu", "mode"), ("cpu", "model")),
            "'cpu.mode' custom and 'cpu.model' need each other, but only one is set.",
            "Write, for example, 'cpu: {mode: custom, model: Nehalem}'.",
        )
    if cpu.topology and tuning.pin.vcpus != PLAN:
        yield Contradiction(
            (("cpu", "topology"), ("pin", "vcpus")),
            "'cpu.topology' shows the guest the cores of its pinned vCPUs, but they are "
            "not pinned by a plan.",
            "Write 'pin: {vcpus: plan}' as well.",
        )
    # libvirt: CPU cache mode 'passthrough' can only be used with 'host-passthrough' / 'maximum'.
    if cpu.cache == "passthrough" and cpu.mode not in (None, "host-passthrough", "maximum"):
        yield Contradiction(
            (("cpu", "cache"), ("cpu", "mode")),
            "'cpu.cache' is 'passthrough', but the CPU is not a copy of the host's: "
            f"'cpu.mode' is '{cpu.mode}'.",
        )
    # Under TCG the baseline has no CPU mode, and libvirt takes neither without one.
    for name in ("cache", "features"):
        if getattr(cpu, name) and cpu.mode is None and tuning.requires.accelerator != "kvm":
            yield Contradiction(
                (("cpu", name), ("cpu", "mode"), _ACCELERATOR),
                f"'cpu.{name}' is given without 'cpu.mode', which only a guest under KVM has by "
                "default.",
                f"{_NEEDS_KVM[:-1]}, or a 'cpu.mode'.",
            )


def _kvm_only(tuning: Tuning) -> Iterator[Contradiction]:
    given = [
        key
        for key, value in values(tuning).items()
        if key[0] in ("kvm", "hyperv") and value is not None
    ]
    if tuning.cpu.mode == "host-passthrough":
        given.append(("cpu", "mode"))
    given += [("timers", name) for name in ("kvmclock", "hypervclock") if name in tuning.timers]
    for key in given:
        if tuning.requires.accelerator != "kvm":
            yield Contradiction((key, _ACCELERATOR), f"'{dotted(key)}' needs KVM.", _NEEDS_KVM)
    for name in tuning.timers:
        if name not in TIMERS:
            yield Contradiction(
                (("timers", name),),
                f"'timers.{name}': not a timer of QEMU's guests.",
                f"Allowed: {', '.join(TIMERS)}. The TSC is a CPU's: 'cpu: {{features: {{invtsc: "
                "require}}'.",
            )


def _enlightened(tuning: Tuning) -> Iterator[Contradiction]:
    found = values(tuning)
    for name, needed in _ENLIGHTENED.items():
        for need in needed if found["hyperv", name] else ():
            if not found.get(need):
                yield Contradiction(
                    (("hyperv", name), need),
                    f"'hyperv.{name}' needs '{dotted(need)}', without which QEMU doesn't start.",
                    f"Write '{need[0]}: {{{need[1]}: true}}' as well.",
                )


def _memory(tuning: Tuning) -> Iterator[Contradiction]:
    memory = tuning.memory
    if memory.free_page_reporting and not memory.balloon:
        yield Contradiction(
            (("memory", "free_page_reporting"), ("memory", "balloon")),
            "'memory.free_page_reporting' is a feature of the balloon, and 'memory.balloon' is "
            "false.",
            "Take one of them out.",
        )
    if memory.hugepages is not None:
        # libvirt: "hugepages are not allowed with anonymous memory source"; a file is on tmpfs.
        if memory.source in ("anonymous", "file"):
            yield Contradiction(
                (("memory", "source"), ("memory", "hugepages")),
                f"'memory.source' is '{memory.source}', but huge pages need hugetlbfs or a memfd.",
            )
        if tuning.requires.hugepages != memory.hugepages:
            yield Contradiction(
                (("memory", "hugepages"), ("requires", "hugepages")),
                "'memory.hugepages' is set, but 'requires.hugepages' differs.",
                f"Write 'requires: {{hugepages: {memory.hugepages}}}' as well.",
            )
    if memory.access == "shared" and memory.source in (None, "anonymous") and not memory.hugepages:
        yield Contradiction(
            (("memory", "access"), ("memory", "source")),
            "'memory.access' is 'shared', but anonymous memory cannot be shared.",
            "Write 'memory: {source: memfd}' as well.",
        )
    if memory.cells:
        if tuning.pin.vcpus != PLAN:
            yield Contradiction(
                (("memory", "cells"), ("pin", "vcpus")),
                "'memory.cells' shows the guest the nodes of its pinned vCPUs, but they "
                "are not pinned by a plan.",
                "Write 'pin: {vcpus: plan, strategy: spread}' as well.",
            )
        if memory.numa not in ("strict", "preferred"):
            yield Contradiction(
                (("memory", "cells"), ("memory", "numa")),
                "'memory.cells' tells the guest which memory is near, but nothing binds "
                "the memory.",
                "Write 'memory: {numa: strict}' as well.",
            )


def _network(tuning: Tuning) -> Iterator[Contradiction]:
    network = tuning.network
    if network.model != "virtio":
        for name in ("vhost", "queues", "packed"):
            if getattr(network, name) is not None:
                yield Contradiction(
                    (("network", name), ("network", "model")),
                    f"'network.{name}' needs virtio, but 'network.model' is '{network.model}'.",
                )
    if network.queues is not None and network.vhost is None:
        yield Contradiction(
            (("network", "queues"), ("network", "vhost")),
            "'network.queues' is set, but QEMU's user network has one queue.",
            "Add 'network: {vhost: true}', which uses a tap device.",
        )
    # Linux, drivers/vhost/net.c: VHOST_NET_FEATURES has no VIRTIO_F_RING_PACKED.
    if network.packed and network.vhost:
        yield Contradiction(
            (("network", "packed"), ("network", "vhost")),
            "'network.packed' needs packed rings, which the kernel's vhost does not support.",
            "Write 'network: {vhost: false}', or leave 'packed' out.",
        )


def _vhost(tuning: Tuning) -> Iterator[Contradiction]:
    if tuning.pin.vhost and not tuning.network.vhost:
        yield Contradiction(
            (("pin", "vhost"), ("network", "vhost")),
            "'pin.vhost' is given, and no network card is served by the kernel's vhost.",
            "Write 'network: {vhost: true}' as well.",
        )


def _initrd(tuning: Tuning) -> Iterator[Contradiction]:
    if tuning.initrd is not None and tuning.kernel is None:
        yield Contradiction(
            (("initrd",), ("kernel",)),
            "'initrd' is given without its 'kernel'.",
            "Add the kernel that it belongs to.",
        )


def _not_restorable(tuning: Tuning) -> Iterator[Contradiction]:
    """Return what METHOD says under "What may be restored": what a restore refuses, or takes and
    gets wrong.
    """
    memory, disk, network = tuning.memory, tuning.disk, tuning.network
    cpu = [(key, _acts(key, value)) for key, value in values(tuning).items() if key[0] in _AT_BOOT]
    devices = (
        (("disk", "bus"), disk.bus != "virtio"),
        (("disk", "queues"), disk.queues is not None),
        (("disk", "packed"), disk.packed is not None),
        (("network", "model"), network.model != "virtio"),
        (("network", "vhost"), network.vhost is not None),
        (("network", "queues"), network.queues is not None),
        (("network", "packed"), network.packed is not None),
        (("memory", "balloon"), not memory.balloon),
        (("memory", "free_page_reporting"), memory.free_page_reporting is not None),
    )
    saved = "a saved state is restored only by the build that saved it"
    refused: list[tuple[Key, bool, str]] = [
        (("emulator",), tuning.emulator is not None, saved),
        (("kernel",), tuning.kernel is not None, saved),
        (
            ("image",),
            tuning.image is not None and tuning.kind is Kind.GUEST,
            "it keeps the image that it booted",
        ),
        *((key, acts, "it keeps the CPU that it booted with") for key, acts in cpu),
        *((key, changed, "it keeps the devices that it booted with") for key, changed in devices),
        (("memory", "source"), memory.source is not None, "its memory stays where it was saved"),
        (("memory", "access"), memory.access is not None, "its memory stays where it was saved"),
        (("memory", "cells"), memory.cells, "it keeps the NUMA nodes that it booted with"),
        (
            ("guest", "command_line"),
            bool(tuning.guest.command_line),
            "its kernel read its command line when it booted",
        ),
        (
            ("disk", "cache"),
            disk.cache in ("writethrough", "directsync"),
            "it read the disk's write-cache bit when it booted",
        ),
    ]
    for key, given, why in refused:
        if given:
            yield Contradiction(
                (key, ("restore",)),
                f"'{dotted(key)}' is given in a tuning whose guest is restored: {why}.",
                _NEEDS_BOOT,
            )


def _acts(key: Key, value: Any) -> bool:
    """Return whether the guest's CPU or clock is another one than the baseline's by that key."""
    return value is True if key in _OFF_IN_BASELINE else value is not None
