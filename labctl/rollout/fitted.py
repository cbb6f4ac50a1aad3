"""Fit the pins of a measured tuning to a virtual machine of another size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lxml import etree

from labctl.base.cpus import MOST_CPUS, CpuSet, format_cpus, parse_cpus
from labctl.base.placement import HostCpus
from labctl.base.tuning import PLAN
from labctl.base.xmldiff import parse
from labctl.store.records.run_record import PinChoice


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """Hold a pin plan for the virtual machine on this host: `vcpus[n]` is the CPU of vCPU n,
    `nodes` the NUMA nodes of these, `guest_topology` sockets, cores and threads."""

    vcpus: tuple[int, ...]
    nodes: CpuSet
    guest_topology: tuple[int, int, int]
    emulator: CpuSet
    iothreads: tuple[CpuSet, ...]
    online: CpuSet


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualMachine:
    """Describe the virtual machine that a tuning is rolled out to. `memory_mib` is None if it is
    unknown; `pins` makes the plan of a strategy and so many iothreads, for `host`; `xml`: its
    domain, None if only its size is known; `here` is the present host in words if it is not the
    measured one."""

    vcpus: int
    memory_mib: int | None
    pins: Callable[[str | None, int], Pins]
    host: HostCpus
    xml: str | None = None
    here: str = ""


_MOST_DIGITS = 3
"""Maximum digits of a number of iothreads: a run folder may come from anywhere."""


class UnfitError(Exception):
    """Report why a tuning's domain cannot be fitted to another size; the text is a clause."""


def iothreads_of(xml: str) -> int:
    """Return how many iothreads a domain has."""
    text = (parse(xml).findtext("./iothreads") or "0").strip()
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else 0


def fitted(xml: str, measured_vcpus: int, choice: PinChoice, pins: Pins) -> str:
    """Return a measured guest's domain with as many vCPUs as `pins` has, pinned as these say.

    `choice` is what the tuning pins by plan. CPUs that a tuning names itself stay, and are given to
    every vCPU if every vCPU had them. Raises UnfitError if the domain names single vCPUs in a way
    that does not extend to another number.
    """
    if measured_vcpus > MOST_CPUS:
        raise UnfitError(f"the run says that {measured_vcpus} vCPUs were measured")
    root = parse(xml)
    measured = frozenset(range(measured_vcpus))
    if root.find("./cpu/numa") is not None or root.find("./numatune/memnode") is not None:
        raise UnfitError("its NUMA cells name vCPUs and memory of the measured guest")
    _fit_vcpus(root, measured, choice, pins)
    tune = root.find("./cputune")
    if tune is not None:
        _fit_helpers(tune, choice, pins)
        for element in tune.findall("./vcpusched"):
            if _cpus(element.get("vcpus")) != measured:
                raise UnfitError("its scheduling policy is for some of the vCPUs")
            element.set("vcpus", format_cpus(range(len(pins.vcpus))))
    if choice.vcpus == PLAN:
        for element in root.findall("./numatune/memory[@nodeset]"):
            element.set("nodeset", format_cpus(pins.nodes))
    topology = root.find("./cpu/topology")
    if topology is not None:
        for key, count in zip(("sockets", "cores", "threads"), pins.guest_topology, strict=True):
            topology.set(key, str(count))
    return etree.tostring(root, encoding="unicode")


def _fit_vcpus(root: etree._Element, measured: CpuSet, choice: PinChoice, pins: Pins) -> None:
    present = root.findall("./cputune/vcpupin")
    if not present:
        return
    sets = {element.get("cpuset") for element in present}
    if choice.vcpus == PLAN:
        wanted = [str(cpu) for cpu in pins.vcpus]
    elif len(sets) == 1 and {element.get("vcpu") for element in present} == set(map(str, measured)):
        wanted = [str(present[0].get("cpuset"))] * len(pins.vcpus)
    else:
        raise UnfitError("it names the CPUs of single vCPUs")
    tune = present[0].getparent()
    assert tune is not None
    at = tune.index(present[0])
    for element in present:
        tune.remove(element)
    for number, cpuset in enumerate(wanted):
        tune.insert(at + number, etree.Element("vcpupin", vcpu=str(number), cpuset=cpuset))


def _fit_helpers(tune: etree._Element, choice: PinChoice, pins: Pins) -> None:
    emulator = tune.find("./emulatorpin")
    if emulator is not None and choice.emulator == PLAN:
        emulator.set("cpuset", format_cpus(pins.emulator))
    if choice.iothreads == PLAN:
        for element, cpus in zip(tune.findall("./iothreadpin"), pins.iothreads, strict=False):
            element.set("cpuset", format_cpus(cpus))


def _cpus(text: str | None) -> CpuSet:
    try:
        return parse_cpus(text or "")
    except ValueError:
        return frozenset()
