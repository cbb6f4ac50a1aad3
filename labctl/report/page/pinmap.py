"""Draw the pin plan: the host's cores, each with its CPUs and the threads on them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from labctl.analysis.view import mapping, sequence
from labctl.base.cpus import format_cpus, parse_cpus

WIDTH = 168
_LINE = 18
_CHIP = 22
_PADDING = 8
_LONGEST = 18
"""Letters that fit into a tile."""

_KINDS = (("vCPU", "vcpu"), ("emulator", "emulator"), ("iothread", "iothread"))
_MOST_CORES = 256
_CPU_LIST = re.compile(r"[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?){0,999}")


@dataclass(frozen=True, slots=True)
class Chip:
    """Show a role on a CPU. `kind` gives its colour, `text` its name."""

    y: int
    text: str
    kind: str


@dataclass(frozen=True, slots=True)
class Cpu:
    y: int
    name: str
    chips: tuple[Chip, ...]


@dataclass(frozen=True, slots=True)
class Core:
    """Show a core's tile; `name` is "" where only CPUs are known."""

    name: str
    cpus: tuple[Cpu, ...]
    height: int
    description: str


@dataclass(frozen=True, slots=True)
class Group:
    title: str
    cores: tuple[Core, ...]
    free: str


@dataclass(frozen=True, slots=True)
class PinMap:
    """Show the pin plan. `rows` are the table behind the picture: CPU, core, threads."""

    strategy: str
    groups: tuple[Group, ...]
    rows: tuple[tuple[str, str, str], ...]
    picture: str
    reasons: tuple[str, ...]


def pin_maps(record: Mapping[str, Any]) -> list[PinMap]:
    """Return the run's pin plan, and those of other strategies that its tunings used."""
    plans = {"": record.get("pin_plan"), **mapping(record.get("pin_plans"))}
    found = [_pin_map(str(name), mapping(plan)) for name, plan in plans.items() if mapping(plan)]
    return [pins for pins in found if pins.groups or pins.picture]


def _pin_map(strategy: str, plan: Mapping[str, Any]) -> PinMap:
    known = [mapping(group) for group in sequence(plan.get("layout"))]
    groups = [_group(group) for group in known] or list(_flat(mapping(plan.get("data"))))
    return PinMap(
        strategy=strategy or str(mapping(plan.get("data")).get("strategy") or ""),
        groups=tuple(groups),
        rows=tuple(
            (cpu.name, core.name, ", ".join(chip.text for chip in cpu.chips) or "free")
            for group in groups
            for core in group.cores
            for cpu in core.cpus
        ),
        picture=str(plan.get("picture") or ""),
        reasons=tuple(str(reason) for reason in sequence(plan.get("reasons"))),
    )


def _group(group: Mapping[str, Any]) -> Group:
    cores = [mapping(core) for core in sequence(group.get("cores"))[:_MOST_CORES]]
    return Group(
        title=str(group.get("title") or ""),
        cores=tuple(_core(f"core {core.get('core')}", mapping(core.get("cpus"))) for core in cores),
        free=str(group.get("free") or ""),
    )


def _flat(data: Mapping[str, Any]) -> Iterator[Group]:
    """Yield CPUs alone, of a plan whose cores were not recorded."""
    roles: dict[int, list[str]] = {}
    for number, cpu in mapping(data.get("vcpus")).items():
        if isinstance(cpu, int):
            roles.setdefault(cpu, []).append(f"vCPU {number}")
    named = {"emulator": data.get("emulator")}
    named |= {f"iothread {n}": cpus for n, cpus in mapping(data.get("iothreads")).items()}
    for role, text in (*named.items(), ("housekeeping", data.get("housekeeping"))):
        for cpu in sorted(_cpus(text)):
            roles.setdefault(cpu, []).append(role)
    if roles:
        cores = [_core("", {str(cpu): roles[cpu]}) for cpu in sorted(roles)[:_MOST_CORES]]
        free = _cpus(data.get("online")) - roles.keys()
        yield Group("", tuple(cores), format_cpus(free))


def _cpus(text: Any) -> frozenset[int]:
    """Return a CPU list; empty for anything else, a list of millions of CPUs included."""
    if not isinstance(text, str) or _CPU_LIST.fullmatch(text) is None:
        return frozenset()
    try:
        return parse_cpus(text)
    except ValueError:
        return frozenset()


def _core(name: str, cpus: Mapping[str, Any]) -> Core:
    y = _PADDING + (_LINE if name else 0)
    drawn = []
    for number, roles in cpus.items():
        top = y
        y += _LINE + 4
        chips = []
        for role in sequence(roles):
            chips.append(Chip(y, str(role)[:_LONGEST], _kind(str(role))))
            y += _CHIP
        drawn.append(Cpu(top, f"CPU {number}"[:_LONGEST], tuple(chips)))
        y += _PADDING if chips else 2
    said = "; ".join(
        f"{cpu.name}: {', '.join(chip.text for chip in cpu.chips) or 'free'}" for cpu in drawn
    )
    return Core(name, tuple(drawn), y + 2, said)


def _kind(role: str) -> str:
    return next((kind for start, kind in _KINDS if role.startswith(start)), "housekeeping")
