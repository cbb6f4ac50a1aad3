"""Tunings from `domains/*.yaml`: validated, `extends:` resolved, frozen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from ruamel.yaml.comments import CommentedMap

from labctl.base.cpus import CpuSet, parse_cpus
from labctl.base.errors import UsageError
from labctl.base.places import data_files
from labctl.base.tuning import PLAN, Disk, Kind, Pin, Policy, Sched, Tuning
from labctl.base.yamlfile import FileModel, line_of, load_mapping, nearest, validate

FOLDER = "domains"

GUEST_ONLY = ("twin", "emulator_sched", "iothread_sched", "iothreads", "disk", "handicap_percent")
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


class SchedFile(FileModel):
    policy: Literal["other", "fifo", "rr", "batch", "idle"] | None = None
    priority: Annotated[int, Field(ge=0, le=99)] | None = None


class DiskFile(FileModel):
    cache: Literal["none", "writeback", "writethrough", "directsync", "unsafe"] | None = None
    io: Literal["threads", "native", "io_uring"] | None = None
    iothread: bool | None = None


class TuningFile(FileModel):
    """One file, before what it extends is merged in: every key may be absent, null resets it."""

    extends: str | None = None
    description: Annotated[str, Field(min_length=1)]
    kind: Literal["guest", "native"] | None = None
    sources: list[str] | None = None
    needs: list[str] | None = None
    risks: list[str] | None = None
    restore: bool | None = None
    twin: str | None = None
    pin: PinFile | None = None
    vcpu_sched: SchedFile | None = None
    emulator_sched: SchedFile | None = None
    iothread_sched: SchedFile | None = None
    iothreads: Annotated[int, Field(ge=0, le=16)] | None = None
    disk: DiskFile | None = None
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
    disk = values.get("disk", {})
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
        ),
        vcpu_sched=_sched(source, "vcpu_sched", values.get("vcpu_sched")),
        emulator_sched=_sched(source, "emulator_sched", values.get("emulator_sched")),
        iothread_sched=_sched(source, "iothread_sched", values.get("iothread_sched")),
        iothreads=values.get("iothreads", 0),
        disk=Disk(cache=disk.get("cache"), io=disk.get("io"), iothread=disk.get("iothread", False)),
        handicap_percent=float(values.get("handicap_percent", 0)),
    )
    if kind is Kind.NATIVE:
        _check_native(source, values)
    else:
        _check_guest(source, tuning)
    return tuning


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
