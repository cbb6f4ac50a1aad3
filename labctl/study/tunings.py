"""Tunings from `domains/*.yaml`: validated, `extends:` resolved, frozen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field
from ruamel.yaml.comments import CommentedMap

from labctl.base.cpus import CpuSet, parse_cpus
from labctl.base.errors import UsageError
from labctl.base.places import data_files
from labctl.base.tuning import (
    PLAN,
    Cpu,
    Disk,
    GuestSide,
    Kind,
    KvmFeatures,
    Memory,
    Network,
    Pin,
    Policy,
    Requires,
    Sched,
    Strategy,
    Tuning,
)
from labctl.base.yamlfile import FileModel, line_of, load_mapping, nearest, validate

FOLDER = "domains"
_T = TypeVar("_T")

GUEST_ONLY = (
    *("twin", "emulator_sched", "iothread_sched", "iothreads", "cpu", "kvm", "timers", "memory"),
    *("disk", "network", "guest", "handicap_percent"),
)
"""Keys that mean nothing without a guest."""


def _cpus(value: object) -> object:
    """A CPU list as YAML gives it: `2` is a number there, `2-3` a text."""
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
    libvirt: str | None = None
    qemu: str | None = None
    kernel: str | None = None
    cpus: Annotated[int, Field(ge=1)] | None = None
    nodes: Annotated[int, Field(ge=1)] | None = None
    smt: bool | None = None
    cpu_flags: list[str] | None = None
    paths: list[str] | None = None
    programs: list[str] | None = None
    command_line: list[str] | None = None
    hugepages: Literal["2M", "1G"] | None = None


class TuningFile(FileModel):
    """One file, before what it extends is merged in: every key may be absent, null resets it."""

    extends: str | None = None
    description: Annotated[str, Field(min_length=1)]
    kind: Literal["guest", "native"] | None = None
    sources: list[str] | None = None
    needs: list[str] | None = None
    risks: list[str] | None = None
    requires: RequiresFile | None = None
    restore: bool | None = None
    twin: str | None = None
    pin: PinFile | None = None
    vcpu_sched: SchedFile | None = None
    emulator_sched: SchedFile | None = None
    iothread_sched: SchedFile | None = None
    iothreads: Annotated[int, Field(ge=0, le=16)] | None = None
    cpu: CpuFile | None = None
    kvm: KvmFile | None = None
    timers: dict[str, bool | None] | None = None
    memory: MemoryFile | None = None
    disk: DiskFile | None = None
    network: NetworkFile | None = None
    host: dict[str, str | None] | None = None
    guest: GuestSideFile | None = None
    handicap_percent: Annotated[float, Field(ge=0, lt=100)] | None = None


@dataclass(frozen=True, slots=True)
class _Source:
    """A file of an `extends:` chain, for errors that name the place."""

    path: Path
    mapping: CommentedMap

    def error(self, keys: tuple[str, ...], text: str, hint: str | None = None) -> UsageError:
        line = line_of(self.mapping, keys)
        place = f"{self.path}:{line}" if line else str(self.path)
        return UsageError(f"{place}: {text}", hint=hint)


def tuning_names() -> list[str]:
    """The names of all tunings, sorted."""
    return list(data_files(FOLDER))


def tuning_file(name: str) -> Path:
    """The file of a tuning; raises UsageError with the nearest name when there is none."""
    files = data_files(FOLDER)
    if name not in files:
        raise UsageError(f"no tuning '{name}'", hint=nearest(name, files))
    return files[name]


def load_tunings(names: Iterable[str]) -> dict[str, Tuning]:
    return {name: load_tuning(name) for name in names}


def load_tuning(name: str) -> Tuning:
    """The tuning of that name with all that it extends.

    Raises UsageError naming file, line and key for anything that is wrong with the files.
    """
    source, merged = _merged(name, ())
    return _frozen(name, source, merged)


def _merged(name: str, below: tuple[Path, ...]) -> tuple[_Source, dict[str, Any]]:
    """The values of a file over those that it extends. `below`: the files that extend it."""
    path = tuning_file(name)
    if path in below:
        chain = " extends ".join(str(p) for p in (*below[below.index(path) :], path))
        raise UsageError(f"tunings extend each other in a circle: {chain}")
    source = _Source(path, load_mapping(path))
    checked = validate(TuningFile, source.mapping, path).model_dump(exclude_unset=True)
    parent = checked.pop("extends", None)
    if parent is None:
        return source, checked
    if parent not in data_files(FOLDER):
        raise source.error(
            ("extends",),
            f"'extends' is '{parent}', which does not exist.",
            nearest(parent, tuning_names()),
        )
    _, inherited = _merged(parent, (*below, path))
    return source, _merge(inherited, checked)


def _merge(base: Mapping[Any, Any], over: Mapping[Any, Any]) -> dict[Any, Any]:
    """`over` on top of `base`: mappings merge, all else replaces, None takes away."""
    merged = dict(base)
    for key, value in over.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = _merge(merged[key], value)
        else:
            merged[key] = value
    return merged


def _frozen(name: str, source: _Source, values: Mapping[str, Any]) -> Tuning:
    kind = Kind(values.get("kind", "guest"))
    pin = values.get("pin", {})
    tuning = Tuning(
        name=name,
        description=" ".join(values["description"].split()),
        kind=kind,
        sources=tuple(values.get("sources", ())),
        needs=tuple(values.get("needs", ())),
        risks=tuple(values.get("risks", ())),
        restore=values.get("restore", True),
        twin=values.get("twin"),
        pin=Pin(
            vcpus=_without_none(pin.get("vcpus")),
            emulator=pin.get("emulator"),
            iothreads=_without_none(pin.get("iothreads")),
            strategy=Strategy(pin.get("strategy", Strategy.COMPACT)),
        ),
        vcpu_sched=_sched(source, "vcpu_sched", values.get("vcpu_sched")),
        emulator_sched=_sched(source, "emulator_sched", values.get("emulator_sched")),
        iothread_sched=_sched(source, "iothread_sched", values.get("iothread_sched")),
        iothreads=values.get("iothreads", 0),
        requires=_value(Requires, values.get("requires")),
        cpu=_value(Cpu, values.get("cpu")),
        kvm=_value(KvmFeatures, values.get("kvm")),
        timers=values.get("timers", {}),
        memory=_value(Memory, values.get("memory")),
        disk=_value(Disk, values.get("disk")),
        network=_value(Network, values.get("network")),
        host=values.get("host", {}),
        guest=_value(GuestSide, values.get("guest")),
        handicap_percent=float(values.get("handicap_percent", 0)),
    )
    if kind is Kind.NATIVE:
        _check_native(source, values)
    else:
        _check_guest(source, tuning)
    return tuning


def _value(type_: type[_T], values: Mapping[str, Any] | None) -> _T:
    """A group of keys as its frozen value; what isn't given keeps the value's default."""
    given = {key: value for key, value in (values or {}).items() if value is not None}
    return type_(**{k: tuple(v) if isinstance(v, list) else v for k, v in given.items()})


def _without_none(pins: Any) -> str | Mapping[int, CpuSet] | None:
    if not isinstance(pins, Mapping):
        return pins if pins is None else str(pins)
    return {number: cpus for number, cpus in pins.items() if cpus is not None}


def _sched(source: _Source, key: str, value: Mapping[str, Any] | None) -> Sched | None:
    """A checked policy with its priority (sched(7): 1 to 99 for fifo and rr, else 0)."""
    if not value:
        return None
    if "policy" not in value:
        raise source.error((key,), f"key '{key}.policy' is missing.")
    policy, priority = Policy(value["policy"]), value.get("priority", 0)
    if policy.realtime and priority == 0:
        raise source.error(
            (key, "policy"),
            f"'{key}.priority' is missing: policy '{policy}' needs a priority from 1 to 99.",
        )
    if not policy.realtime and priority != 0:
        raise source.error(
            (key, "priority"),
            f"'{key}.priority' is {priority}: policy '{policy}' has no priorities.",
            f"Take the key out, or write '{key}: {{policy: {policy}, priority: null}}'.",
        )
    return Sched(policy=policy, priority=priority)


def _check_native(source: _Source, values: Mapping[str, Any]) -> None:
    for key in GUEST_ONLY:
        if values.get(key):
            raise source.error((key,), f"'{key}' means nothing for a native tuning.")
    for key in ("emulator", "iothreads"):
        if values.get("pin", {}).get(key):
            raise source.error(("pin", key), f"'pin.{key}' means nothing for a native tuning.")


def _check_guest(source: _Source, tuning: Tuning) -> None:
    disk = tuning.disk
    if tuning.iothreads == 0:
        for keys, given in (
            (("pin", "iothreads"), tuning.pin.iothreads),
            (("iothread_sched",), tuning.iothread_sched),
            (("disk", "iothread"), disk.iothread),
        ):
            if given:
                raise source.error(
                    keys,
                    f"'{'.'.join(keys)}' is given, and the guest has no iothreads.",
                    "Write 'iothreads: 1' as well.",
                )
    # QEMU: "aio=native was specified, but it requires cache.direct=on".
    if disk.io == "native" and disk.cache not in ("none", "directsync"):
        raise source.error(
            ("disk", "io"), "'disk.io' is 'native', which needs 'disk.cache' none or directsync."
        )
    if tuning.restore and disk.cache in ("writethrough", "directsync"):
        raise source.error(
            ("disk", "cache"),
            f"'disk.cache' is '{disk.cache}' in a tuning that is restored: the guest read the "
            "disk's write-cache bit when it booted.",
            "Write 'restore: false'.",
        )
    if tuning.twin is not None:
        _check_twin(source, tuning.twin)


def _check_twin(source: _Source, twin: str) -> None:
    if twin not in data_files(FOLDER):
        raise source.error(
            ("twin",), f"'twin' is '{twin}', which does not exist.", nearest(twin, tuning_names())
        )
    if _merged(twin, ())[1].get("kind") != Kind.NATIVE:
        raise source.error(("twin",), f"'twin' is '{twin}', which is no native tuning.")
