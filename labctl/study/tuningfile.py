"""Check tuning files as they are written: keys and types, before `extends:` is followed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from labctl.base.cpus import parse_cpus
from labctl.base.quantities import DELAY, PERCENT
from labctl.base.tuning import PLAN
from labctl.base.yamlfile import FileModel


def _cpus(value: object) -> object:
    """Return a CPU list as YAML gives it: `2` is a number there, `2-3` a text."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError("give a CPU list, such as 2 or '2-3,6'")
    cpus = parse_cpus(str(value))
    if not cpus:
        raise ValueError("give at least one CPU")
    return cpus


def _one_pin(value: object) -> object:
    return value if value is None or value == PLAN else _cpus(value)


def _numbered_pins(value: object) -> object:
    if value is None or value == PLAN:
        return value
    if not isinstance(value, Mapping) or not all(type(key) is int for key in value):
        raise ValueError("give 'plan', or a mapping of numbers to CPU lists, such as {0: '2-3'}")
    return {number: None if cpus is None else _cpus(cpus) for number, cpus in value.items()}


def _knob_value(value: object) -> object:
    """Return a knob's value as text: `swappiness: 10` is a number in YAML, and a program a mapping
    of its keys to commands."""
    if isinstance(value, Mapping):
        return json.dumps(dict(value))
    return str(value) if type(value) is int else value


class PinFile(FileModel):
    vcpus: Annotated[Any, BeforeValidator(_numbered_pins)] = None
    emulator: Annotated[Any, BeforeValidator(_one_pin)] = None
    iothreads: Annotated[Any, BeforeValidator(_numbered_pins)] = None
    strategy: Literal["compact", "spread", "node", "siblings"] | None = None


class SchedFile(FileModel):
    policy: Literal["other", "fifo", "rr", "batch", "idle"] | None = None
    priority: Annotated[int, Field(ge=0, le=99)] | None = None


class CpuFile(FileModel):
    mode: Literal["host-passthrough", "host-model", "maximum", "custom"] | None = None
    model: str | None = None
    topology: bool | None = None
    cache: Literal["passthrough", "emulate", "disable"] | None = None
    features: (
        dict[str, Literal["force", "require", "optional", "disable", "forbid"] | None] | None
    ) = None


class KvmFile(FileModel):
    hint_dedicated: bool | None = None
    poll_control: bool | None = None
    pv_ipi: bool | None = None


class MemoryFile(FileModel):
    hugepages: Literal["2M", "1G"] | None = None
    locked: bool | None = None
    nosharepages: bool | None = None
    source: Literal["anonymous", "file", "memfd"] | None = None
    access: Literal["shared", "private"] | None = None
    numa: Literal["strict", "preferred", "interleave"] | None = None
    cells: bool | None = None
    balloon: bool | None = None


class DiskFile(FileModel):
    cache: Literal["none", "writeback", "writethrough", "directsync", "unsafe"] | None = None
    io: Literal["threads", "native", "io_uring"] | None = None
    iothread: bool | None = None
    iothread_mapping: bool | None = None
    bus: Literal["virtio", "scsi"] | None = None
    format: Literal["raw", "qcow2"] | None = None
    queues: Annotated[int, Field(ge=1, le=64)] | None = None
    packed: bool | None = None
    discard: Literal["unmap", "ignore"] | None = None


class NetworkFile(FileModel):
    model: Literal["virtio", "e1000e"] | None = None
    vhost: bool | None = None
    queues: Annotated[int, Field(ge=1, le=64)] | None = None
    packed: bool | None = None


class GuestSideFile(FileModel):
    command_line: list[str] | None = None
    tuned: str | None = None
    elevator: str | None = None
    sysfs: dict[str, str | None] | None = None


class RequiresFile(FileModel):
    accelerator: Literal["kvm", "tcg"] | None = None
    """Accelerator of the guests."""
    libvirt: str | None = None
    """The oldest version, such as `"10.0"`."""
    qemu: str | None = None
    """The oldest version."""
    kernel: str | None = None
    """The oldest version of the host's."""
    cpus: Annotated[int, Field(ge=1)] | None = None
    """Number of usable CPUs."""
    nodes: Annotated[int, Field(ge=1)] | None = None
    """Number of NUMA nodes with memory and usable CPUs."""
    smt: bool | None = None
    """Cores with two usable hardware threads."""
    cpu_flags: list[str] | None = None
    """Flags of /proc/cpuinfo."""
    paths: list[str] | None = None
    """Paths that must exist."""
    programs: list[str] | None = None
    """Programs in the host's PATH."""
    command_line: list[str] | None = None
    """Words that the host's kernel was booted with."""
    hugepages: Literal["2M", "1G"] | None = None
    """Size of which enough pages are free for the guest, or can be made."""


class TuningFile(FileModel):
    """Model one file before its `extends` is merged in: every key may be absent, null resets it."""

    extends: str | None = None
    description: Annotated[str, Field(min_length=1)]
    kind: Literal["guest", "native"] | None = None
    sources: list[str] | None = None
    needs: list[str] | None = None
    risks: list[str] | None = None
    exercised_by: list[str] | None = None
    requires: RequiresFile | None = None
    restore: bool | None = None
    twin: str | None = None
    pin: PinFile | None = None
    vcpu_sched: SchedFile | None = None
    vcpu_slice_ms: Annotated[float, Field(ge=0.1, le=100, allow_inf_nan=False), DELAY] | None = None
    """Time slice of the vCPUs under the fair scheduler, such as `3 ms` (Linux 6.12)."""
    emulator_sched: SchedFile | None = None
    iothread_sched: SchedFile | None = None
    iothreads: Annotated[int, Field(ge=0, le=16)] | None = None
    cpu: CpuFile | None = None
    kvm: KvmFile | None = None
    timers: dict[str, bool | None] | None = None
    memory: MemoryFile | None = None
    disk: DiskFile | None = None
    network: NetworkFile | None = None
    host: (
        dict[
            str,
            Annotated[
                str | None,
                BeforeValidator(
                    _knob_value, json_schema_input_type=str | int | dict[str, str] | None
                ),
            ],
        ]
        | None
    ) = None
    guest: GuestSideFile | None = None
    handicap_percent: Annotated[float, Field(ge=0, lt=100), PERCENT] | None = None
