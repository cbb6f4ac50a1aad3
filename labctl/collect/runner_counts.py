"""Parse runner.json: counts of the machine itself (guest or native) while the workload ran."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from labctl.base.errors import BrokenError
from labctl.base.tuning import Kind, Level
from labctl.collect.collector import Collector, Target, reads
from labctl.collect.snapshots import cpu_ticks
from labctl.store.samples import Reading, Unavailable, sample
from labctl.store.trial import TrialFolder
from labctl.trace import files

RAW = files.RUNNER


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerCounts:
    """Hold the workload's process tree: wall and CPU seconds, its servers' included, and context
    switches by kind."""

    where: str
    source: str
    duration_s: float
    cpu_s: float
    switches: Mapping[str, int]
    stat_before: str
    stat_after: str


def read_counts(raw: TrialFolder) -> RunnerCounts:
    """Raise BrokenError naming the file if it is missing or not what the runner writes."""
    source = files.stored(raw, RAW)
    where = str(raw.path / source)
    data: Any = raw.read_json(source)
    try:
        usage = data["rusage"]
        found = RunnerCounts(
            where=where,
            source=source,
            duration_s=float(data["duration_s"]),
            # With its servers' CPU time, in clock ticks; older runners had no servers.
            cpu_s=float(usage["utime_s"])
            + float(usage["stime_s"])
            + float(data.get("servers_s", 0.0)),
            switches={
                "voluntary": int(usage["nvcsw"]),
                "involuntary": int(usage["nivcsw"]),
            },
            stat_before=str(data["before"]["stat"]),
            stat_after=str(data["after"]["stat"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BrokenError(
            f"{where}: expected duration, rusage and /proc/stat from the runner, found something "
            f"else ({error!r})"
        ) from error
    if not 0 < found.duration_s < float("inf") or not found.cpu_s >= 0:
        raise BrokenError(f"{where}: expected a duration of more than 0 s and CPU time")
    return found


def parse(raw: TrialFolder, *, kind: str, accelerator: str) -> Iterator[Reading]:
    """Return duration, ctx_switches{of=workload,...} and steal. `kind`: "guest" or "native";
    `accelerator`: "kvm" or "tcg". Raises BrokenError if runner.json is incomplete."""
    counted = read_counts(raw)
    yield sample("duration", counted.duration_s, source=counted.source)
    for name, count in counted.switches.items():
        yield sample(
            "ctx_switches",
            count / counted.duration_s,
            source=counted.source,
            labels={"of": "workload", "kind": name},
        )
    yield _steal(counted, kind, accelerator)


def _steal(counted: RunnerCounts, kind: str, accelerator: str) -> Reading:
    """Return the guest's steal time as a share of its CPU time. It is not independent evidence: KVM
    fills it from the vCPU threads' run delay (Documentation/virt/kvm/x86/msr.rst,
    MSR_KVM_STEAL_TIME)."""
    if kind == "native":
        return Unavailable(metric="steal", reason="natively there is no guest to steal from.")
    if accelerator == "tcg":
        reason = "emulated: QEMU without KVM gives its guest no steal time, which then counts 0."
        return Unavailable(metric="steal", reason=reason)
    before = cpu_ticks(counted.stat_before, "cpu", counted.where)
    after = cpu_ticks(counted.stat_after, "cpu", counted.where)
    total = after.total - before.total
    if total <= 0:
        raise BrokenError(f"{counted.where}: the guest's /proc/stat did not advance")
    return sample("steal", max(0, after.steal - before.steal) / total, source=counted.source)


def _kills(target: Target) -> Mapping[str, object]:
    """Return how many kills for memory the native cgroup has counted."""
    return target.counters() if target.kind is Kind.NATIVE else {}


WORKLOAD = Collector(
    name="workload",
    order=50,
    level=Level.COUNTERS,
    gives="CPU time, switches of the workload; steal",
    attached=reads(_kills),
    raw=(RAW,),
    parse=lambda trial: parse(trial.folder, kind=trial.kind, accelerator=trial.accelerator),
)
