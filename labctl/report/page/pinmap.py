"""Draw the pin plan: the host's cores, each with its CPUs and the threads on them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from labctl.base.cpus import format_cpus, parse_cpus
from labctl.store.records.run_record import PinData, PinGroup, RecordedPins, RunRecord

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
class DrawnCpu:
    y: int
    name: str
    chips: tuple[Chip, ...]


@dataclass(frozen=True, slots=True)
class Core:
    """Show a core's tile; `name` is "" where only CPUs are known."""

    name: str
    cpus: tuple[DrawnCpu, ...]
    height: int
    description: str


@dataclass(frozen=True, slots=True)
class DrawnGroup:
    title: str
    cores: tuple[Core, ...]
    free: str


@dataclass(frozen=True, slots=True)
class PinMap:
    """Show the pin plan. `rows` are the table behind the picture: CPU, core, threads."""

    strategy: str
    groups: tuple[DrawnGroup, ...]
    rows: tuple[tuple[str, str, str], ...]
    picture: str
    reasons: tuple[str, ...]


def pin_maps(record: RunRecord) -> list[PinMap]:
    """Return the run's pin plan, and those of other strategies that its tunings used."""
    first = {"": record.pin_plan} if record.pin_plan else {}
    found = [_pin_map(name, plan) for name, plan in {**first, **record.pin_plans}.items()]
    return [pins for pins in found if pins.groups or pins.picture]


def _pin_map(strategy: str, plan: RecordedPins) -> PinMap:
    groups = list(map(_group, plan.layout)) or list(_flat(plan.data))
    return PinMap(
        strategy=strategy or plan.data.strategy or "",
        groups=tuple(groups),
        rows=tuple(
            (cpu.name, core.name, ", ".join(chip.text for chip in cpu.chips) or "free")
            for group in groups
            for core in group.cores
            for cpu in core.cpus
        ),
        picture=plan.picture,
        reasons=plan.reasons,
    )


def _group(group: PinGroup) -> DrawnGroup:
    cores = group.cores[:_MOST_CORES]
    return DrawnGroup(
        title=group.title,
        cores=tuple(_core(f"core {core.core}", core.cpus) for core in cores),
        free=group.free,
    )


def _flat(data: PinData) -> Iterator[DrawnGroup]:
    """Yield CPUs alone, of a plan whose cores were not recorded."""
    roles: dict[int, list[str]] = {}
    for number, cpu in data.vcpus.items():
        roles.setdefault(cpu, []).append(f"vCPU {number}")
    named = {"emulator": data.emulator}
    named |= {f"iothread {number}": cpus for number, cpus in data.iothreads.items()}
    for role, text in (*named.items(), ("housekeeping", data.housekeeping)):
        for cpu in sorted(_cpus(text)):
            roles.setdefault(cpu, []).append(role)
    if roles:
        cores = [_core("", {str(cpu): roles[cpu]}) for cpu in sorted(roles)[:_MOST_CORES]]
        free = _cpus(data.online) - roles.keys()
        yield DrawnGroup("", tuple(cores), format_cpus(free))


def _cpus(text: str | None) -> frozenset[int]:
    """Return a CPU list; empty for anything else, a list of millions of CPUs included."""
    if text is None or _CPU_LIST.fullmatch(text) is None:
        return frozenset()
    try:
        return parse_cpus(text)
    except ValueError:
        return frozenset()


def _core(name: str, cpus: Mapping[str, Sequence[str]]) -> Core:
    y = _PADDING + (_LINE if name else 0)
    drawn = []
    for number, roles in cpus.items():
        top = y
        y += _LINE + 4
        chips = []
        for role in roles:
            chips.append(Chip(y, role[:_LONGEST], _kind(role)))
            y += _CHIP
        drawn.append(DrawnCpu(top, f"CPU {number}"[:_LONGEST], tuple(chips)))
        y += _PADDING if chips else 2
    said = "; ".join(
        f"{cpu.name}: {', '.join(chip.text for chip in cpu.chips) or 'free'}" for cpu in drawn
    )
    return Core(name, tuple(drawn), y + 2, said)


def _kind(role: str) -> str:
    return next((kind for start, kind in _KINDS if role.startswith(start)), "housekeeping")
