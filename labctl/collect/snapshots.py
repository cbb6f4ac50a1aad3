"""Read host.json: what the host's kernel counted before and after a trial's measured window."""

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
    """Return the line of "cpu" (all) or "cpu1"; raises BrokenError when it isn't there or isn't
    whole.
    """
    for line in text.splitlines():
        fields = line.split()
        if fields and fields[0] == name:
            return _ticks(fields[1:], name, where)
    raise BrokenError(f"{where}: expected a line '{name}' of /proc/stat, found none")


def cpus(text: str) -> CpuSet:
    """Return the CPUs with a line of their own: those that are online."""
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
"""Key of a snapshot: what neighbours have used, a row of each kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """Hold what neighbours of one kind used between the snapshots, and the CPUs that they might
    use."""

    workload: str
    cpus: CpuSet
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshots:
    """Hold two snapshots: `before` and `after` as written; `seconds` of CLOCK_MONOTONIC between the
    two.

    `siblings`: the hardware threads that share a core with one of `trial_cpus`; None where a
    labctl that didn't ask has written them.
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

        Raises BrokenError when it isn't there."""
        changes: list[int] = []
        for taken in (self.before, self.after):
            text = taken.get("proc_stat")
            if not isinstance(text, str):
                raise BrokenError(f"{self.where}: expected the text of /proc/stat, found none")
            changes.append(int(getattr(cpu_ticks(text, line, self.where), field)))
        return changes[1] - changes[0]

    @property
    def beside(self) -> list[Used] | None:
        """Return what neighbours used, by kind; None where the snapshots don't say. Raises
        BrokenError for what no labctl wrote."""
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
                f"{self.where}: expected what neighbours have used, found something else "
                f"({error!r})"
            ) from error

    @property
    def online(self) -> CpuSet:
        """Return the host's CPUs that /proc/stat lists."""
        return cpus(str(self.before.get("proc_stat")))

    def busy(self, cpus: CpuSet) -> float:
        """Return the CPU seconds per second that were not idle on these CPUs.

        Idle time is what the kernel measures exactly; it samples the rest at its tick
        (kernel/sched/cputime.c). It includes what a hypervisor below this host took.
        """
        idle = sum(self.tick_change(f"cpu{cpu}", "idle") for cpu in cpus)
        return len(cpus) - idle / self.clk_tck / self.seconds


def read_snapshots(raw: TrialFolder) -> Snapshots:
    """Raise BrokenError naming the file when it is missing or isn't two snapshots."""
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
