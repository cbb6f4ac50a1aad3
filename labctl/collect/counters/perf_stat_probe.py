"""Find which hardware counters this host has, and how many of them at once: tried on short
processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from labctl.base.deadline import Deadline
from labctl.base.errors import BrokenError, LabctlError
from labctl.base.process import run
from labctl.base.versions import is_older
from labctl.collect.counters.perf_stat_text import Counter, counts, read_counters, totals

ENVIRONMENT = {"LC_ALL": "C"}
"""Some locales have perf write decimal commas into its JSON."""

_JSON_SINCE = "6.0"
"""perf stat's --json-output came with commit df936cadfb58 (August 2022)."""
_PROBING_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Countable:
    """Hold the events that can be counted. `problem`: a sentence on why there are none. Else
    `events`, which the PMU counts all at once, and the others with the reason; `output`: perf's
    options for its format."""

    problem: str | None = None
    events: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    output: tuple[str, ...] = ()


def pmu_countable(
    needed: tuple[str, ...], wanted: Sequence[Sequence[tuple[str, ...]]]
) -> Countable:
    """Return whether this host's PMU counts the events that are `needed`, and which of those that
    are `wanted`: of each the first choice that fits whole.

    Events that share a counter are worth nothing (METHOD 12: any multiplexing), so each further
    event is tried together with those before it. On a process as short as `true` nothing is
    rotated: what finds no counter is `<not counted>`.
    """
    try:
        output = output_options()
        found = tried(needed, output)
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
    return _with_wanted(needed, wanted, output)


def output_options() -> tuple[str, ...]:
    """Return perf stat's options for output that programs read: JSON where it has that."""
    done = run(("perf", "version"), deadline=Deadline.after(_PROBING_S, "perf's version"))
    version = done.stdout.strip().removeprefix("perf version").strip()
    return ("-x,",) if is_older(version, _JSON_SINCE) else ("--json-output",)


def tried(
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


def _with_wanted(
    needed: tuple[str, ...],
    wanted: Sequence[Sequence[tuple[str, ...]]],
    output: tuple[str, ...],
) -> Countable:
    events = needed
    left_out: dict[str, str] = {}
    for choices in wanted:
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
        found = tried((*events, *choice), output)
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
