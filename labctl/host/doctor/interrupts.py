"""Show which CPUs the host's interrupts go to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from labctl.base.cpus import CpuSet, format_cpus
from labctl.host.doctor.check import Check, Result, Scope, fine, some, unknown, warn
from labctl.host.doctor.reader import Reader

GROUP = "interrupts"


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Describe an interrupt. `cpus`: where it is delivered now. `count`: on these CPUs, since the
    boot.
    """

    number: str
    name: str
    cpus: CpuSet
    count: int


def irqbalance(reader: Reader, scope: Scope) -> Result:
    pids = reader.running("irqbalance")
    if not pids:
        return fine("not running", False)
    banned = reader.text("/etc/default/irqbalance") or ""
    cpus = re.search(r"^IRQBALANCE_BANNED_CPU(?:S|LIST)=(\S+)", banned, re.MULTILINE)
    kept = f", which leaves CPUs {cpus[1]} alone" if cpus else ""
    return warn(f"running (pid {pids[0]}){kept}", "systemctl stop irqbalance", True)


def affinity(reader: Reader, scope: Scope) -> Result:
    isolated = reader.cpus("/sys/devices/system/cpu/isolated") or frozenset()
    guarded = scope.cpus | isolated
    if not guarded:
        return unknown("no pin plan to compare with")
    found = sorted(_interrupts(reader, guarded), key=lambda irq: -irq.count)
    value = [
        {"irq": int(irq.number), "name": irq.name, "cpus": format_cpus(irq.cpus)} for irq in found
    ]
    busy = [irq for irq in found if irq.count]
    shown = f"CPU {format_cpus(guarded)}"
    if not busy:
        return fine(f"none on {shown}", value)
    named = some(f"{irq.number} ({irq.name}, {irq.count} times)" for irq in busy)
    elsewhere = (reader.cpus("/sys/devices/system/cpu/online") or frozenset()) - guarded
    if not elsewhere:
        remedy = "No other CPU is available for them."
    else:
        numbers = " ".join(irq.number for irq in busy)
        remedy = (
            f"for i in {numbers}; do echo {format_cpus(elsewhere)} > "
            "/proc/irq/$i/smp_affinity_list; done"
        )
    return warn(f"on {shown}: {named}", remedy, value)


def _interrupts(reader: Reader, cpus: CpuSet) -> Iterator[Interrupt]:
    """Yield those of devices that are delivered to `cpus`, from /proc/interrupts (proc(5))."""
    lines = (reader.text("/proc/interrupts") or "").splitlines()
    header = lines[0].split() if lines else []
    columns = [int(name.removeprefix("CPU")) for name in header if name.startswith("CPU")]
    for line in lines[1:]:
        number, _, rest = line.strip().partition(":")
        fields = rest.split()
        if not number.isdecimal() or len(fields) < len(columns):
            continue
        folder = f"/proc/irq/{number}"
        delivered = reader.cpus(f"{folder}/effective_affinity_list") or reader.cpus(
            f"{folder}/smp_affinity_list"
        )
        if delivered is None or not delivered & cpus:
            continue
        counts = dict(zip(columns, map(int, fields), strict=False))
        name = fields[-1] if len(fields) > len(columns) else "unnamed"
        yield Interrupt(number, name, delivered, sum(counts.get(cpu, 0) for cpu in cpus))


CHECKS = (
    Check(
        "irqbalance",
        GROUP,
        "It moves interrupts between CPUs during trials, also to the vCPUs' CPUs.",
        irqbalance,
    ),
    Check(
        "irq-affinity",
        GROUP,
        "An interrupt stops the vCPU on its CPU, even with SCHED_FIFO.",
        affinity,
    ),
)
