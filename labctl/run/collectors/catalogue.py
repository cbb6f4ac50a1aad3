"""List every collector, and whether it works on this host."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from labctl.base.levels import Level
from labctl.base.paths import StatePaths
from labctl.base.tuning import Kind, Tuning
from labctl.collect import task_clock
from labctl.collect.exits import EMULATED
from labctl.guest.images import find
from labctl.guest.recipe import load_recipe
from labctl.host.accelerator import Requested, known_accelerator
from labctl.run.collectors.counting import countable, frequency_countable
from labctl.run.collectors.exit_counting import why_no_bpf
from labctl.run.collectors.perf_record import recording
from labctl.trace.tracepoints import EXIT, SWITCH

_UNKNOWN = "nobody knows yet whether KVM works here: 'labctl host accel' finds out."
_NO_GUEST_CODE = (
    "guests are emulated here: guest-only events count nothing, as to the host a guest is user "
    "code."
)
_TRIED_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """Hold what guests run under ("kvm", "tcg", or None where only a boot can tell), and the
    image."""

    accelerator: str | None
    tree: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCollector:
    """Describe a collector. `gives`: its metrics in words. `why_unavailable`: a sentence, or None
    where it works.
    """

    name: str
    level: Level
    gives: str
    why_unavailable: Callable[[Here], str | None]


def here(places: StatePaths, accel: Requested, image: str) -> Here:
    """Find out, without booting anything, whether each collector works here."""
    found = find(load_recipe(image), places)
    return Here(
        accelerator=known_accelerator(accel, found.kernel if found else None, places),
        tree=found.tree if found else None,
    )


def _always(_: Here) -> None:
    return None


def _no_schedstat(_: Here) -> str | None:
    if Path("/proc/self/schedstat").exists():
        return None
    return "the kernel has no /proc/PID/schedstat (CONFIG_SCHED_INFO)."


def _no_task_clock(_: Here) -> str | None:
    return task_clock.why_unavailable()


def _no_exits(at: Here) -> str | None:
    if at.accelerator is None:
        return _UNKNOWN
    return EMULATED if at.accelerator == "tcg" else None


def _no_exit_reasons(at: Here) -> str | None:
    """BPF or, where that is refused, perf must be able to count; KVM in software tells a trial."""
    if (problem := _no_exits(at)) or (no_bpf := why_no_bpf()) is None:
        return problem
    no_perf = _no_recording(["-e", EXIT])
    return f"{no_bpf} {no_perf}" if no_perf else None


def _no_guest_pmu(at: Here) -> str | None:
    problem = countable(str(Kind.GUEST)).problem
    return problem or (_NO_GUEST_CODE if at.accelerator == "tcg" else None)


def _no_native_pmu(_: Here) -> str | None:
    return countable(str(Kind.NATIVE)).problem


def _no_frequency(_: Here) -> str | None:
    return frequency_countable().problem


def _no_image(at: Here) -> str | None:
    return None if at.tree else "no guest image is built yet: 'labctl image build'."


def _no_host_trace(_: Here) -> str | None:
    return _no_recording(["-e", SWITCH])


def _no_recording(events: Sequence[str]) -> str | None:
    """Tried: what perf may record hangs on the kernel, its settings and the container."""
    if os.geteuid() != 0:
        return "only root can record."
    with tempfile.TemporaryDirectory() as folder:
        cpus = frozenset(os.sched_getaffinity(0))
        with recording(Path(folder, "perf.data"), events, cpus=cpus) as recorded:
            time.sleep(_TRIED_S)
    return recorded.problem


def _no_guest_trace(at: Here) -> str | None:
    if at.tree is None:
        return _no_image(at)
    if not (at.tree / "usr/bin/perf").exists():
        return "the guest image has no perf."
    return None


COLLECTORS = (
    KnownCollector(
        name="threads",
        level=Level.COUNTERS,
        gives="CPU time, run delay, switches of QEMU's",
        why_unavailable=_no_schedstat,
    ),
    KnownCollector(
        name="task-clock",
        level=Level.COUNTERS,
        gives="which CPUs unbound threads used",
        why_unavailable=_no_task_clock,
    ),
    KnownCollector(
        name="workload",
        level=Level.COUNTERS,
        gives="CPU time, switches of the workload; steal",
        why_unavailable=_always,
    ),
    KnownCollector(
        name="kvm-stats",
        level=Level.COUNTERS,
        gives="all VM exits, halt polling",
        why_unavailable=_no_exits,
    ),
    KnownCollector(
        name="perf-stat (guest)",
        level=Level.COUNTERS,
        gives="IPC, cache and branch misses, stalls",
        why_unavailable=_no_guest_pmu,
    ),
    KnownCollector(
        name="perf-stat (native)",
        level=Level.COUNTERS,
        gives="IPC, cache and branch misses, stalls",
        why_unavailable=_no_native_pmu,
    ),
    KnownCollector(
        name="frequency",
        level=Level.COUNTERS,
        gives="the CPUs' true frequency",
        why_unavailable=_no_frequency,
    ),
    KnownCollector(
        name="calibrated",
        level=Level.COUNTERS,
        gives="IPC without a PMU",
        why_unavailable=_no_image,
    ),
    KnownCollector(
        name="exits",
        level=Level.EXITS,
        gives="VM exits by reason, and their time",
        why_unavailable=_no_exit_reasons,
    ),
    KnownCollector(
        name="host-trace",
        level=Level.TRACE,
        gives="the host's scheduler: who waited for whom",
        why_unavailable=_no_host_trace,
    ),
    KnownCollector(
        name="guest-trace",
        level=Level.TRACE,
        gives="the guest's scheduler",
        why_unavailable=_no_guest_trace,
    ),
)
"""Collectors by level. One that works here may still be refused in a trial, which then says so."""


def lacking(level: Level, at: Here) -> list[str]:
    """Return a sentence for each collector that `level` adds to counters and that can't work
    here."""
    added = (known for known in COLLECTORS if known.level != Level.COUNTERS)
    reasons = {known: known.why_unavailable(at) for known in added if level.holds(known.level)}
    return [
        f"'{known.name}' ({known.gives.partition(':')[0]}) collects nothing here: {reason}"
        for known, reason in reasons.items()
        if reason is not None
    ]


def without_clocks(conditions: Collection[str], tunings: Iterable[Tuning]) -> list[str]:
    """Return what it costs a run that this kernel lets nobody ask where neighbours ran; [] where it
    costs nothing."""
    pinned = [tuning.name for tuning in tunings if tuning.pin.vcpus is not None]
    if "neighbour" not in conditions or not pinned:
        return []
    problem = task_clock.why_unavailable()
    if problem is None:
        return []
    return [
        "Beside neighbours, trials of arms with fewer CPUs than those may be invalid "
        f"({', '.join(pinned)}), as nobody can tell what others take of their CPUs: {problem}"
    ]
