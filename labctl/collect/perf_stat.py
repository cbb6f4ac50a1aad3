"""Hardware counters with perf stat on the host: IPC of a guest's vCPU threads, or natively of the
workload's process tree.

Like is compared with like (METHOD rule 12): user instructions of the guest (`:uG` on the vCPU
threads) with user instructions natively (`:u`), kernel with kernel.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labctl.base.deadline import Deadline
from labctl.base.errors import BrokenError, LabctlError
from labctl.base.process import run
from labctl.base.units import Better, Unit
from labctl.store.samples import Reading, Sample, Unavailable
from labctl.store.trial import TrialFolder

RAW = "perf-stat.txt"

_IPC = "ipc{source=pmu}"
_EVENTS = {
    "guest": ("cycles:uG", "instructions:uG", "cycles:kG", "instructions:kG", "cycles:H"),
    "native": ("cycles:u", "instructions:u", "cycles:k", "instructions:k"),
}
_SUFFIX = {"guest": "G", "native": ""}

# Rounding of perf's own percentage, which has two digits.
_ALL_OF_THE_TIME = 99.995

_CSV_PERCENT = re.compile(r"^\d{1,3}[.,]\d\d$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """One line of perf stat. `value` is None with the `problem` that perf names."""

    event: str
    value: float | None
    running_percent: float
    problem: str = ""


def command(kind: str, ids: Sequence[int]) -> tuple[str, ...]:
    """perf stat until SIGINT, on a guest's vCPU threads, or natively on a process that waits to
    become the workload, with every child that it will have. RAW is its standard error."""
    which = "--tid" if kind == "guest" else "--pid"
    return (*_perf(kind), which, ",".join(str(number) for number in ids))


def _perf(kind: str) -> tuple[str, ...]:
    # No group: one event that isn't supported would fail them all, without naming it.
    return ("perf", "stat", "--json-output", "--event", ",".join(_EVENTS[kind]))


ENVIRONMENT = {"LC_ALL": "C"}
"""Some locales have perf write decimal commas into its JSON."""


def why_unavailable(kind: str) -> str | None:
    """A sentence on why this host can't count the events of a `kind` of machine ("guest" or
    "native"), or None when it can. Probed with these events on a short process."""
    argv = (*_perf(kind), "true")
    try:
        done = run(argv, deadline=Deadline.after(20, "probing perf"), check=False, env=ENVIRONMENT)
    except LabctlError as error:
        return f"perf can't be used: {error.message}."
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        return f"perf can't count here: {said[0] if said else 'it said nothing'}"
    try:
        counters = read_counters(done.stderr, "perf stat")
    except BrokenError as error:
        return f"perf can't be used: {error.message}."
    missing = [c.event for c in counters if c.problem == "<not supported>"]
    if missing or not counters:
        return f"no PMU: perf calls {', '.join(missing) or 'every event'} not supported."
    return None


def parse(raw: TrialFolder, *, kind: str, problem: str | None = None) -> Iterator[Reading]:
    """ipc{source=pmu} (user), ipc{level=kernel,source=pmu}, user_cycles, a guest's host_share.

    `problem`: why nothing was counted (from `why_unavailable`). Events that perf did not count,
    or counted only part of the time, make their ratio unavailable. Raises BrokenError when the
    raw file isn't perf's.
    """
    if not raw.has(RAW):
        reason = problem or "perf stat was not run."
        yield Unavailable(metric=_IPC, reason=reason)
        yield Unavailable(metric="user_cycles", reason=reason)
        return
    totals = _totals(read_counters(raw.read_text(RAW), str(raw.path / RAW)))
    g = _SUFFIX[kind]
    yield _ratio(
        "ipc", totals, f"instructions:u{g}", f"cycles:u{g}", {"source": "pmu"}, Better.HIGHER
    )
    labels = {"source": "pmu", "level": "kernel"}
    yield _ratio("ipc", totals, f"instructions:k{g}", f"cycles:k{g}", labels, Better.NEITHER)
    if kind == "guest":
        yield _host_share(totals)
    yield _user_cycles(totals, f"cycles:u{g}")


def read_counters(text: str, where: str) -> list[Counter]:
    """Counters from perf stat's JSON lines or its CSV (`-x,`), of one or many threads.

    Lines that hold a metric and no counter are skipped. Raises BrokenError for anything else.
    """
    found: list[Counter] = []
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        try:
            counter = _from_json(json.loads(line)) if line[0] == "{" else _from_csv(line)
        except (ValueError, KeyError, TypeError) as error:
            raise BrokenError(
                f"{where}: expected perf stat's JSON or CSV, found {line[:120]!r}"
            ) from error
        if counter is not None:
            found.append(counter)
    return found


def _from_json(entry: Mapping[str, Any]) -> Counter | None:
    if "counter-value" not in entry:
        return None
    return _counter(str(entry["event"]), str(entry["counter-value"]), float(entry["pcnt-running"]))


def _from_csv(line: str) -> Counter | None:
    # value,unit,event,run time,percent[,metric,its unit] (perf-stat(1), "CSV FORMAT")
    fields = line.split(",")
    if len(fields) < 5:
        raise ValueError("too few fields")
    if not fields[0] and not fields[2]:
        return None
    if not _CSV_PERCENT.match(fields[4]):
        raise ValueError("no percentage in field 5")
    return _counter(fields[2], fields[0], float(fields[4]))


def _counter(event: str, value: str, percent: float) -> Counter:
    if not event or not 0 <= percent <= 100.5:
        raise ValueError(f"event '{event}' that ran {percent} % of the time")
    if value.startswith("<"):
        return Counter(event=event, value=None, running_percent=percent, problem=value)
    number = float(value)
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"a count of {value}")
    return Counter(event=event, value=number, running_percent=percent)


def _totals(counters: Sequence[Counter]) -> Mapping[str, Counter]:
    """One counter per event: threads (or intervals) added up, the worst of their problems kept."""
    by_event: dict[str, list[Counter]] = defaultdict(list)
    for counter in counters:
        by_event[counter.event].append(counter)
    totals = {}
    for event, parts in by_event.items():
        values = [part.value for part in parts if part.value is not None]
        totals[event] = Counter(
            event=event,
            value=sum(values) if len(values) == len(parts) else None,
            running_percent=min(part.running_percent for part in parts),
            problem=next((part.problem for part in parts if part.problem), ""),
        )
    return totals


def _values(totals: Mapping[str, Counter], events: Sequence[str]) -> list[float] | str:
    """The events' counts, or a sentence on why one of them can't be used."""
    values = []
    for event in events:
        counter = totals.get(event)
        if counter is None:
            return f"perf printed no count of {event}."
        if counter.value is None:
            return f"perf says {counter.problem} for {event}."
        if counter.running_percent < _ALL_OF_THE_TIME:
            return (
                f"perf counted {event} for {counter.running_percent:g} % of the time only: "
                "there were more events than counters."
            )
        values.append(counter.value)
    return values


def _ratio(
    metric: str,
    totals: Mapping[str, Counter],
    above: str,
    below: str,
    labels: Mapping[str, str],
    better: Better,
) -> Reading:
    key = f"{metric}{{{','.join(f'{k}={v}' for k, v in sorted(labels.items()))}}}"
    found = _values(totals, (above, below))
    if isinstance(found, str):
        return Unavailable(metric=key, reason=found)
    instructions, cycles = found
    if cycles == 0:
        return Unavailable(metric=key, reason=_none_of(below))
    return Sample(
        metric=metric,
        value=instructions / cycles,
        unit=Unit.INSTRUCTIONS_PER_CYCLE,
        better=better,
        labels=labels,
        source=RAW,
    )


def _host_share(totals: Mapping[str, Counter]) -> Reading:
    """Share of the vCPU threads' cycles that the host (QEMU, KVM) spent: H / (G + H)."""
    found = _values(totals, ("cycles:H", "cycles:uG", "cycles:kG"))
    if isinstance(found, str):
        return Unavailable(metric="host_share", reason=found)
    if sum(found) == 0:
        return Unavailable(metric="host_share", reason=_none_of("cycles:uG"))
    return Sample(
        metric="host_share",
        value=found[0] / sum(found),
        unit=Unit.FRACTION,
        better=Better.LOWER,
        source=RAW,
    )


def _user_cycles(totals: Mapping[str, Counter], event: str) -> Reading:
    found = _values(totals, (event,))
    if isinstance(found, str):
        return Unavailable(metric="user_cycles", reason=found)
    if found[0] == 0:
        return Unavailable(metric="user_cycles", reason=_none_of(event))
    return Sample(
        metric="user_cycles",
        value=found[0],
        unit=Unit.COUNT,
        better=Better.NEITHER,
        source=RAW,
    )


def _none_of(event: str) -> str:
    why = ": without KVM a guest is user code to the host" if event.endswith("G") else ""
    return f"perf counted no {event} at all{why}."
