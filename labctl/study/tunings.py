"""Load tunings from `domains/*.yaml`: validated, `extends:` resolved, combined, frozen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from labctl.base.cpus import CpuSet
from labctl.base.errors import UsageError
from labctl.base.nearest import nearest
from labctl.base.paths import data_files
from labctl.base.tuning import (
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
from labctl.base.yamlfile import line_of, load_mapping, validate
from labctl.base.yamltext import YamlMapping
from labctl.study.combine import JOINT, combined, split
from labctl.study.contradictions import contradictions
from labctl.study.tuningfile import TuningFile

FOLDER = "domains"
BASELINE = "baseline"
"""Start of every combination."""

_NATIVE = "native"
"""Prefix of native tunings' names."""

_T = TypeVar("_T")
_Files = Mapping[str, Path]
"""Name to file of every tuning."""

GUEST_ONLY = (
    *("twin", "emulator_sched", "iothread_sched", "iothreads", "cpu", "kvm", "timers", "memory"),
    *("disk", "network", "guest", "handicap_percent"),
)
"""Keys that mean nothing without a guest."""


@dataclass(frozen=True, slots=True)
class _Source:
    """Hold a file of an `extends:` chain, for errors that name the place."""

    path: Path
    mapping: YamlMapping

    def error(self, keys: tuple[str, ...], text: str, hint: str | None = None) -> UsageError:
        line = line_of(self.mapping, keys)
        place = f"{self.path}:{line}" if line else str(self.path)
        return UsageError(f"{place}: {text}", hint=hint)


def tuning_names() -> list[str]:
    """Return the names of all tunings, sorted."""
    return list(data_files(FOLDER))


def tuning_file(name: str) -> Path:
    """Return the file of a tuning; raises UsageError with the nearest name when there is none."""
    return _file(name, data_files(FOLDER))


def load_tunings(names: Iterable[str]) -> dict[str, Tuning]:
    files = data_files(FOLDER)
    return {name: _named(name, files) for name in names}


def load_tuning(name: str) -> Tuning:
    """Return the tuning of that name with all that it extends, or, for `a+b` where no file has that
    name, the tunings `a` and `b` together.

    Raises UsageError naming file, line and key for anything that is wrong with the files, and
    both tunings where two can't be combined.
    """
    return _named(name, data_files(FOLDER))


def tuning_in(path: Path) -> Tuning:
    """Return the tuning in a file, wherever it lies; raises UsageError as `load_tuning`."""
    name = path.name.rpartition(".")[0]
    return _loaded(name, {**data_files(FOLDER), name: path})


def _named(name: str, files: _Files) -> Tuning:
    if name in files or JOINT not in name:
        return _loaded(name, files)
    parts = [_loaded(part, files) for part in split(name, files)]
    natives = [_loaded(other, files) for other in files if other.startswith(_NATIVE)]
    return combined(name, parts, _loaded(BASELINE, files), natives)


def tuning_files(name: str) -> list[Path]:
    """Return the file of a tuning, or the files of those that it combines."""
    known = tuning_names()
    parts = (name,) if name in known or JOINT not in name else split(name, known)
    return [tuning_file(part) for part in parts]


def _file(name: str, files: _Files) -> Path:
    if name not in files:
        raise UsageError(f"no tuning '{name}'", hint=nearest(name, files))
    return files[name]


def _loaded(name: str, files: _Files) -> Tuning:
    source, values = _merged(name, files)
    return _frozen(name, source, values, files)


def _merged(
    name: str, files: _Files, below: tuple[Path, ...] = ()
) -> tuple[_Source, dict[str, Any]]:
    """Return the values of a file over those that it extends. `below`: the files that extend it."""
    path = _file(name, files)
    if path in below:
        chain = " extends ".join(str(p) for p in (*below[below.index(path) :], path))
        raise UsageError(f"tunings extend each other in a circle: {chain}")
    source, checked = _read(path)
    parent = checked.get("extends")
    checked = {key: value for key, value in checked.items() if key != "extends"}
    if parent is None:
        for key, value in checked.items():
            if value is None:
                raise source.error(
                    (key,),
                    f"'{key}' is empty, which takes away what a tuning extends: this one extends "
                    "nothing.",
                    "Give it a value, or take the key out.",
                )
        return source, _merge({}, checked)
    if parent not in files:
        raise source.error(
            ("extends",),
            f"'extends' is '{parent}', which does not exist.",
            nearest(parent, files),
        )
    _, inherited = _merged(parent, files, (*below, path))
    return source, _merge(inherited, checked)


def _read(path: Path) -> tuple[_Source, Mapping[str, Any]]:
    try:
        status = path.stat()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    return _parsed(path, (status.st_ino, status.st_mtime_ns, status.st_size))


@lru_cache(maxsize=256)
def _parsed(path: Path, stamp: tuple[int, ...]) -> tuple[_Source, Mapping[str, Any]]:
    """Return a file's checked keys. Most files extend others, and parsing is what loading costs."""
    mapping = load_mapping(path)
    checked = validate(TuningFile, mapping, path).model_dump(exclude_unset=True)
    return _Source(path, mapping), checked


def _merge(base: Mapping[Any, Any], over: Mapping[Any, Any]) -> dict[Any, Any]:
    """Merge `over` on top of `base`: mappings merge, all else replaces, None takes away."""
    merged = dict(base)
    for key, value in over.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            below = merged.get(key)
            merged[key] = _merge(below if isinstance(below, Mapping) else {}, value)
        else:
            merged[key] = value
    return merged


def _frozen(name: str, source: _Source, values: Mapping[str, Any], files: _Files) -> Tuning:
    kind = Kind(values.get("kind", "guest"))
    pin = values.get("pin", {})
    tuning = Tuning(
        name=name,
        description=" ".join(values["description"].split()),
        kind=kind,
        sources=tuple(values.get("sources", ())),
        needs=tuple(values.get("needs", ())),
        risks=tuple(values.get("risks", ())),
        exercised_by=tuple(values.get("exercised_by", ())),
        restore=values.get("restore", True),
        twin=values.get("twin"),
        pin=Pin(
            vcpus=_without_none(pin.get("vcpus")),
            emulator=pin.get("emulator"),
            iothreads=_without_none(pin.get("iothreads")),
            strategy=Strategy(pin.get("strategy", Strategy.COMPACT)),
        ),
        vcpu_sched=_sched(source, "vcpu_sched", values.get("vcpu_sched")),
        vcpu_slice_ms=values.get("vcpu_slice_ms"),
        emulator_sched=_sched(source, "emulator_sched", values.get("emulator_sched")),
        iothread_sched=_sched(source, "iothread_sched", values.get("iothread_sched")),
        iothreads=values.get("iothreads", 0),
        requires=required(values.get("requires", {})),
        cpu=_value(Cpu, values.get("cpu")),
        kvm=_value(KvmFeatures, values.get("kvm")),
        timers=values.get("timers", {}),
        memory=_value(Memory, values.get("memory")),
        disk=_value(Disk, values.get("disk")),
        network=_value(Network, values.get("network")),
        host={knob: value for knob, value in values.get("host", {}).items() if value is not None},
        guest=_value(GuestSide, values.get("guest")),
        handicap_percent=float(values.get("handicap_percent", 0)),
    )
    if kind is Kind.NATIVE:
        _check_native(source, values)
    elif tuning.twin is not None:
        _check_twin(source, tuning.twin, files)
    for found in contradictions(tuning):
        raise source.error(found.keys[0], found.text, found.hint)
    return tuning


def required(values: Mapping[str, Any]) -> Requires:
    """Return what the keys of a `requires` ask for."""
    return _value(Requires, values)


def _value(type_: type[_T], values: Mapping[str, Any] | None) -> _T:
    """Return a group of keys as its frozen value; what isn't given keeps the value's default."""
    given = {key: value for key, value in (values or {}).items() if value is not None}
    return type_(**{k: tuple(v) if isinstance(v, list) else v for k, v in given.items()})


def _without_none(pins: Any) -> str | Mapping[int, CpuSet] | None:
    if not isinstance(pins, Mapping):
        return pins if pins is None else str(pins)
    return {number: cpus for number, cpus in pins.items() if cpus is not None}


def _sched(source: _Source, key: str, value: Mapping[str, Any] | None) -> Sched | None:
    """Return a checked policy with its priority (sched(7): 1 to 99 for fifo and rr, else 0)."""
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


def _check_twin(source: _Source, twin: str, files: _Files) -> None:
    if twin not in files:
        raise source.error(
            ("twin",), f"'twin' is '{twin}', which does not exist.", nearest(twin, files)
        )
    if _merged(twin, files)[1].get("kind") != Kind.NATIVE:
        raise source.error(("twin",), f"'twin' is '{twin}', which is no native tuning.")
