"""Read VM exits and halt polling from KVM's own counters, through QEMU's query-stats."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from labctl.base.errors import BrokenError
from labctl.base.tuning import Kind, Level
from labctl.collect.collector import Collector, Here, RawTrial, reads
from labctl.collect.snapshots import RAW, Snapshots, read_snapshots
from labctl.store.samples import (
    Reading,
    Sample,
    Unavailable,
    base_name,
    sample,
    sample_key,
)
from labctl.store.trial import TrialFolder

EMULATED = "emulated: no VM exits."
_UNKNOWN = "it is unknown whether KVM works here: 'labctl host accel' finds out."

KEY = "query_stats"
TOTAL = "exits"
METRICS = (TOTAL, "halt_poll", "halt_poll_time", "kvm_stat")

# KVM counts attempted and successful polls (virt/kvm/kvm_main.c, kvm_vcpu_halt); the rest failed.
_POLLS, _SUCCESSES = "halt_attempted_poll", "halt_successful_poll"
_POLL_NS = {"success": "halt_poll_success_ns", "fail": "halt_poll_fail_ns"}

# Other counters that show where a guest's time went (arch/x86/kvm/x86.c, kvm_vcpu_stats_desc and
# kvm_vm_stats_desc; arm64 has a few of them): all only grow. The remaining ones are sizes, or of no
# use here.
_OTHERS = (
    *("halt_wakeup", "signal_exits", "io_exits", "mmio_exits", "halt_exits", "irq_exits"),
    *("irq_window_exits", "request_irq_exits", "hypercalls", "irq_injections", "nmi_injections"),
    *("insn_emulation", "req_event", "pf_taken", "pf_fixed", "pf_emulate", "tlb_flush"),
    *("l1d_flush", "host_state_reload", "fpu_reload", "nested_run", "preemption_reported"),
    *("preemption_other", "directed_yield_attempted", "directed_yield_successful"),
    *("remote_tlb_flush", "mmu_shadow_zapped", "mmu_cache_miss", "nx_lpage_splits"),
)

Stats = Mapping[str, Mapping[str, int]]
"""vCPU (its QOM path; "" is the VM itself) to its cumulative counters."""


def parse(raw: TrialFolder, *, accelerator: str) -> Iterator[Reading]:
    """Return exits, halt_poll{result=...}, halt_poll_time{result=...} and kvm_stat{name=...}, over
    all vCPUs of the VM, and exits{vcpu=...} of each.

    `accelerator`: "kvm" or "tcg". Raises BrokenError if host.json is incomplete.
    """
    snapshots = read_snapshots(raw)
    if snapshots.is_native:
        # No guest, no exits: the one metric that is 0 by definition.
        yield _per_second("exits", 0, snapshots, {})
        return
    if accelerator == "tcg":
        yield from _unavailable(EMULATED)
        return
    if KEY not in snapshots.before or KEY not in snapshots.after:
        yield from _unavailable("QEMU was not queried for KVM's statistics.")
        return
    before, after = (
        _stats(taken[KEY], snapshots.where) for taken in (snapshots.before, snapshots.after)
    )
    if not _vcpus(before) or before.keys() != after.keys():
        yield from _unavailable(
            "This host's KVM gives QEMU no statistics (Linux before 5.14), or its vCPUs changed."
        )
        return
    changes = {
        of: {name: count - before[of][name] for name, count in stats.items() if name in before[of]}
        for of, stats in after.items()
    }
    wanted = ("exits", _POLLS, _SUCCESSES, *_POLL_NS.values(), *_OTHERS)
    if any(changed.get(name, 0) < 0 for changed in changes.values() for name in wanted):
        yield from _unavailable("KVM's counters went backwards: the guest was restarted.")
        return
    yield from _readings(_sums(changes, wanted), snapshots)
    for number, vcpu in enumerate(_vcpus(changes)):
        if "exits" in changes[vcpu]:
            labels = {"vcpu": str(number)}
            yield _per_second("exits", changes[vcpu]["exits"], snapshots, labels)


def why_no_exits(at: Here) -> str | None:
    """Return why a guest has no VM exits here, a sentence, or None."""
    if at.accelerator is None:
        return _UNKNOWN
    return EMULATED if at.accelerator == "tcg" else None


def exits_by_vcpu(counters: Mapping[str, object]) -> Mapping[str, int] | None:
    """Return KVM's `exits` so far by vCPU, from a bench's counts; None if it reports none."""
    stats = _stats(counters.get(KEY, []), KEY)
    vcpus = _vcpus(stats)
    if not vcpus or not all("exits" in stats[vcpu] for vcpu in vcpus):
        return None
    return {vcpu: stats[vcpu]["exits"] for vcpu in vcpus}


def page_faults(counters: Mapping[str, object]) -> int | None:
    """Return the faults on guest memory that KVM has fixed so far, over all vCPUs; None if it
    reports none."""
    stats = _stats(counters.get(KEY, []), KEY)
    by_vcpu = [stats[vcpu].get("pf_fixed") for vcpu in _vcpus(stats)]
    known = [count for count in by_vcpu if count is not None]
    return sum(known) if known and len(known) == len(by_vcpu) else None


def _vcpus(stats: Stats) -> list[str]:
    """Order vCPUs by number: device[2] comes before device[10]."""
    return sorted(
        (of for of in stats if of), key=lambda path: [int(n) for n in re.findall(r"\d+", path)]
    )


def _sums(changes: Stats, names: Iterable[str]) -> dict[str, int]:
    """Return the sum over all that count it (every vCPU, or the VM)."""
    vcpus = _vcpus(changes)
    sums = {}
    for name in names:
        by_vcpu = [changes[vcpu][name] for vcpu in vcpus if name in changes[vcpu]]
        if len(by_vcpu) == len(vcpus):
            sums[name] = sum(by_vcpu)
        elif name in changes.get("", {}):
            sums[name] = changes[""][name]
    return sums


def _readings(changes: Mapping[str, int], snapshots: Snapshots) -> Iterator[Reading]:
    if "exits" in changes:
        yield _per_second("exits", changes["exits"], snapshots, {})
    else:
        yield Unavailable(metric="exits", reason="KVM of this host doesn't count 'exits'.")
    if _POLLS in changes and _SUCCESSES in changes:
        succeeded = changes[_SUCCESSES]
        for result, count in (("success", succeeded), ("fail", changes[_POLLS] - succeeded)):
            yield _per_second("halt_poll", count, snapshots, {"result": result})
    else:
        yield Unavailable(metric="halt_poll", reason="KVM of this host doesn't count halt polls.")
    for result, name in _POLL_NS.items():
        if name in changes:
            yield sample(
                "halt_poll_time",
                changes[name] / 1e9 / snapshots.seconds,
                source=RAW,
                labels={"result": result},
            )
        else:
            reason = f"KVM of this host doesn't count '{name}'."
            key = sample_key("halt_poll_time", {"result": result})
            yield Unavailable(metric=key, reason=reason)
    for name in _OTHERS:
        if name in changes:
            yield _per_second("kvm_stat", changes[name], snapshots, {"name": name})


def _stats(answers: Any, where: str) -> Stats:
    """Counters by vCPU, and the VM's, from the answers to query-stats for both targets.

    QEMU's schema: a list of {provider, qom-path (for vCPUs), stats: [{name, value}]}; a value
    is a number, a truth value, or a list (a histogram).
    """
    found: dict[str, dict[str, int]] = {}
    try:
        entries = [entry for answer in answers for entry in answer]
        for entry in entries:
            if entry["provider"] != "kvm":
                continue
            found[entry.get("qom-path", "")] = {
                stat["name"]: stat["value"] for stat in entry["stats"] if type(stat["value"]) is int
            }
    except (KeyError, TypeError) as error:
        raise BrokenError(
            f"{where}: expected QEMU's answers to query-stats in '{KEY}', found something else "
            f"({error!r})"
        ) from error
    return found


def _unavailable(reason: str) -> Iterator[Reading]:
    for metric in METRICS:
        yield Unavailable(metric=metric, reason=reason)


def _per_second(metric: str, count: int, snapshots: Snapshots, labels: Mapping[str, str]) -> Sample:
    return sample(metric, count / snapshots.seconds, source=RAW, labels=labels)


def _parsed(trial: RawTrial) -> Iterator[Reading]:
    """Leave out the exits if a trial has them by reason; their sum is reported then, of its
    window."""
    has_reasons = any(isinstance(one, Sample) and one.metric == TOTAL for one in trial.readings)
    for reading in parse(trial.folder, accelerator=trial.accelerator):
        if not has_reasons or base_name(reading.metric) != TOTAL:
            yield reading


KVM_STATS = Collector(
    name="kvm-stats",
    order=105,
    level=Level.COUNTERS,
    gives="all VM exits, halt polling",
    sides=(Kind.GUEST,),
    why_unavailable=why_no_exits,
    attached=reads(lambda target: target.counters()),
    parse=_parsed,
)
