"""Find which hardware counters this host has, and how many of them at once: tried on short
processes."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from labctl.base.deadline import Deadline
from labctl.base.errors import BrokenError, LabctlError
from labctl.base.process import run
from labctl.base.versions import is_older
from labctl.collect import host_cpus
from labctl.collect.perf_stat import ENVIRONMENT, user_events, wanted_events
from labctl.collect.perf_stat_text import Counter, counts, read_counters, totals

_JSON_SINCE = "6.0"
"""perf stat's --json-output came with commit df936cadfb58 (August 2022)."""
_PROBING_S = 20.0
_MSR = Path("/sys/bus/event_source/devices/msr/events")
_SPIN = "import time\nend = time.monotonic() + 0.5\nwhile time.monotonic() < end: pass"


@dataclass(frozen=True, slots=True, kw_only=True)
class Countable:
    """Hold the events that can be counted. `problem`: a sentence on why there are none. Else
    `events`, which the PMU counts all at once, and the others with the reason; `output`: perf's
    options for its format."""

    problem: str | None = None
    events: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    output: tuple[str, ...] = ()


def countable(kind: str) -> Countable:
    """Return what this host can count of a `kind` of machine ("guest" or "native").

    Events that share a counter are worth nothing (METHOD 12: any multiplexing), so each further
    event is tried together with those before it. On a process as short as `true` nothing is
    rotated: what finds no counter is `<not counted>`.
    """
    try:
        output = output_options()
        needed = user_events(kind)
        found = _tried(needed, output)
    except LabctlError as error:
        return Countable(problem=f"perf can't be used: {error.message}.")
    if isinstance(found, str):
        return Countable(problem=found)
    missing = [c.event for c in found.values() if c.problem == "<not supported>"]
    if missing or not found:
        named = ", ".join(missing) or "every event"
        return Countable(problem=f"no PMU: perf calls {named} not supported.")
    if isinstance(why := counts(found, needed), str):
        return Countable(problem=f"the PMU has too few counters: {why}")
    return _with_wanted(kind, needed, output)


def frequency_countable(msr: Path = _MSR) -> Countable:
    """Return whether perf can read the registers that tell the CPUs' true frequency, on all of
    them."""
    if not (msr / "aperf").exists():
        return Countable(
            problem="the kernel offers no APERF and MPERF (perf's 'msr' events), as in most "
            "virtual machines."
        )
    try:
        output = output_options()
        found = _tried(host_cpus.EVENTS, output, "--all-cpus")
    except LabctlError as error:
        return Countable(problem=f"perf can't be used: {error.message}.")
    if isinstance(found, str):
        return Countable(problem=found)
    if isinstance(why := counts(found, host_cpus.EVENTS), str):
        return Countable(problem=why)
    return Countable(events=host_cpus.EVENTS, output=output)


def measured_tsc_hz(cpu: int, msr: Path = _MSR) -> float | None:
    """Return the rate of a busy CPU's time-stamp counter in Hz, for hosts that don't declare it
    constant: it may follow the CPU's clock and stop while the CPU sleeps. None where perf can't
    read the counter."""
    if not (msr / "tsc").exists():
        return None
    events = (host_cpus.TSC, host_cpus.TIME)
    try:
        found = _tried(events, output_options(), "--cpu", str(cpu), program=_busy(cpu))
    except LabctlError:
        return None
    read = found if isinstance(found, str) else counts(found, events)
    if isinstance(read, str):
        return None
    ticks, time_ms = read
    return ticks / (time_ms / 1000) if ticks > 0 and time_ms > 0 else None


def _busy(cpu: int) -> tuple[str, ...]:
    return ("taskset", "--cpu-list", str(cpu), sys.executable, "-I", "-c", _SPIN)


def output_options() -> tuple[str, ...]:
    """Return perf stat's options for output that programs read: JSON where it has that."""
    done = run(("perf", "version"), deadline=Deadline.after(_PROBING_S, "perf's version"))
    version = done.stdout.strip().removeprefix("perf version").strip()
    return ("-x,",) if is_older(version, _JSON_SINCE) else ("--json-output",)


def _with_wanted(kind: str, needed: tuple[str, ...], output: tuple[str, ...]) -> Countable:
    events = needed
    left_out: dict[str, str] = {}
    for choices in wanted_events(kind):
        refused: dict[str, str] = {}
        for choice in choices:
            why = _why_not(events, choice, output)
            if why is None:
                events += choice
                break
            refused |= dict.fromkeys(choice, why)
        left_out |= {event: why for event, why in refused.items() if event not in events}
    return Countable(events=events, left_out=left_out, output=output)


def _why_not(events: tuple[str, ...], choice: tuple[str, ...], output: Sequence[str]) -> str | None:
    """Return a sentence on why these can't be counted beside those, None when they can."""
    try:
        found = _tried((*events, *choice), output)
    except LabctlError as error:
        return f"perf can't be used: {error.message}."
    if isinstance(found, str):
        return found
    for event in choice:
        if event in found and found[event].problem == "<not supported>":
            return f"this PMU doesn't count {event}: perf calls it not supported."
    if isinstance(counts(found, (*events, *choice)), str):
        return (
            f"the PMU has no counter left for {', '.join(choice)} beside {len(events)} other events"
            ", and shared counters are worth nothing."
        )
    return None


def _tried(
    events: Sequence[str], output: Sequence[str], *options: str, program: Sequence[str] = ("true",)
) -> Mapping[str, Counter] | str:
    """Return what perf counts of a short process; a sentence when it refuses."""
    argv = ("perf", "stat", *output, *options, "--event", ",".join(events), *program)
    deadline = Deadline.after(_PROBING_S, "probing perf")
    done = run(argv, deadline=deadline, check=False, env=ENVIRONMENT)
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        return f"perf can't count here: {said[0] if said else 'it said nothing'}"
    try:
        return totals(read_counters(done.stderr, "perf stat"))
    except BrokenError as error:
        return f"perf can't be used: {error.message}."
