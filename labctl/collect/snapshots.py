"""Read host.json: the counters of the host's kernel before and after a trial's measured window."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labctl.base.cpus import CpuSet, parse_cpus
from labctl.base.errors import BrokenError
from labctl.store.trial import TrialFolder

# Parse CPU times in /proc/stat (proc_stat(5)), in clock ticks.


@dataclass(frozen=True, slots=True)
class CpuTicks:
    """Hold one line. `total` is its sum; guest time is inside user time and not counted twice."""

    idle: int
    steal: int
    total: int


def cpu_ticks(text: str, name: str, where: str) -> CpuTicks:
    """Return the line of "cpu" (all) or "cpu1"; raises BrokenError if it is missing or
    incomplete."""
    for line in text.splitlines():
        fields = line.split()
        if fields and fields[0] == name:
            return _ticks(fields[1:], name, where)
    raise BrokenError(f"{where}: expected a line '{name}' of /proc/stat, found none")


def cpus(text: str) -> CpuSet:
    """Return the CPUs with a line of their own, which are those online."""
    return frozenset(int(number) for number in re.findall(r"^cpu(\d+) ", text, re.M))


def _ticks(fields: Sequence[str], name: str, where: str) -> CpuTicks:
    # user nice system idle iowait irq softirq steal guest guest_nice
    if len(fields) < 8 or not all(field.isdecimal() for field in fields):
        raise BrokenError(
            f"{where}: expected eight tick counts or more in line '{name}' of /proc/stat, "
            f"found '{' '.join(fields)}'"
        )
    ticks = [int(field) for field in fields[:8]]
    return CpuTicks(idle=ticks[3] + ticks[4], steal=ticks[7], total=sum(ticks))


RAW = "host.json"
BESIDE = "neighbours"
"""Key of a snapshot: usage of neighbours, a row of each kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """Hold the usage of neighbours of one kind between the snapshots, and the CPUs that they might
    use."""

    workload: str
    cpus: CpuSet
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshots:
    """Hold two snapshots: `before` and `after` as written; `seconds` of CLOCK_MONOTONIC between
    them.

    `siblings`: the hardware threads that share a core with one of `trial_cpus`; None in snapshots
    of a labctl that did not record them.
    """

    where: str
    kind: str
    clk_tck: int
    trial_cpus: CpuSet
    siblings: CpuSet | None
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    seconds: float

    @property
    def is_native(self) -> bool:
        return self.kind == "native"

    def tick_change(self, line: str, field: str) -> int:
        """Return the growth of a count in a line of /proc/stat ("cpu", "cpu1"); `field` of
        CpuTicks.

        Raises BrokenError if it is missing."""
        changes: list[int] = []
        for taken in (self.before, self.after):
            text = taken.get("proc_stat")
            if not isinstance(text, str):
                raise BrokenError(f"{self.where}: expected the text of /proc/stat, found none")
            changes.append(int(getattr(cpu_ticks(text, line, self.where), field)))
        return changes[1] - changes[0]

    @property
    def beside(self) -> list[Used] | None:
        """Return the usage of neighbours, by kind; None if the snapshots lack it. Raises
        BrokenError for rows that no labctl wrote."""
        before, after = self.before.get(BESIDE), self.after.get(BESIDE)
        if before is None and after is None:
            return None
        try:
            return [
                Used(
                    workload=str(now["workload"]),
                    cpus=parse_cpus(str(now["cpus"])),
                    cpu_s=max(0, int(now["cpu_ns"]) - int(then["cpu_ns"])) / 1e9,
                )
                for then, now in zip(before or [], after or [], strict=True)
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise BrokenError(
                f"{self.where}: expected the neighbours' usage, found something else ({error!r})"
            ) from error

    @property
    def online(self) -> CpuSet:
        """Return the host's CPUs that /proc/stat lists."""
        return cpus(str(self.before.get("proc_stat")))

    def busy(self, cpus: CpuSet) -> float:
        """Return the CPU seconds per second that were not idle on these CPUs.

        The kernel measures idle time exactly, and samples the rest at its tick
        (kernel/sched/cputime.c). The result includes time taken by a hypervisor below this host.
        """
        idle = sum(self.tick_change(f"cpu{cpu}", "idle") for cpu in cpus)
        return len(cpus) - idle / self.clk_tck / self.seconds


def read_snapshots(raw: TrialFolder) -> Snapshots:
    """Raise BrokenError naming the file if it is missing or does not hold two snapshots."""
    where = str(raw.path / RAW)
    data = raw.read_json(RAW)
    try:
        before, after = data["before"], data["after"]
        seconds = (after["monotonic_ns"] - before["monotonic_ns"]) / 1e9
        siblings = data.get("siblings")
        found = Snapshots(
            where=where,
            kind=str(data["kind"]),
            clk_tck=int(data["clk_tck"]),
            trial_cpus=parse_cpus(str(data["trial_cpus"])),
            siblings=None if siblings is None else parse_cpus(str(siblings)),
            before=before,
            after=after,
            seconds=seconds,
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BrokenError(
            f"{where}: expected two snapshots with 'monotonic_ns' and the trial's CPUs, found "
            f"something else ({error!r})"
        ) from error
    if not seconds > 0 or found.clk_tck <= 0:
        raise BrokenError(f"{where}: expected a window of more than 0 s, found {seconds:g} s")
    return found
