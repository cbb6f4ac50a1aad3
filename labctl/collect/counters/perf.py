"""Probe, run and parse `perf stat`: JSON lines, or CSV (`-x,`) of an older perf."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from labctl.base.errors import BrokenError, LabctlError
from labctl.base.hostfacts import is_older
from labctl.base.json import parse_json
from labctl.base.process import Deadline, dies_with_labctl, run, running
from labctl.store.trial import TrialFolder

# Parse perf stat's machine-readable output: JSON lines, or CSV (`-x,`) of a perf before 6.0.


# Rounding of perf's own percentage, which has two digits.
_ALL_OF_THE_TIME = 99.995

_JSON_COMMA = re.compile(r"(?<=: )(-?\d+),(\d+)(?=\s*[,}])")
"""`"pcnt-running" : 66,67`: JSON's own comma is followed by a quote."""
_JSON_END = re.compile(r",\s*}$")
_JSON_NAN = re.compile(r"(?<=: )-?(?:nan|inf)(?=\s*[,}])")
"""Metrics without a value, without the quotes that newer versions put around them."""
_COUNT = re.compile(r"\d+(?:\.\d+|,(?:\d{2}|\d{6}))?")
"""Integer or decimal. perf prints two decimals (CSV) or six (JSON), so a comma before three digits
is not a decimal comma."""
_PERCENT = re.compile(r"\d{1,3}[.,]\d\d")
_PLACES_BEFORE = 4
"""Columns before the value in CSV: a time, a thread, a CPU or socket and how many of them."""
_PLACES_OF_METRIC = 6
"""Fewest columns left of a CSV line without its counter."""
_DEVIATION = re.compile(r"\d+[.,]\d\d%")
"""CSV column of the deviation between several runs (-r), after the event's name."""
_OF_CORES = re.compile(r"(?:cpu|cpu_\w+|armv\w+)/([^/:]+)(?::(\w+)/|/(\w*))")
"""An event of one kind of cores, as perf names it on a hybrid host: `cpu_atom/cycles:u/`,
`cpu_core/cycles/u`, `armv8_cortex_a53/cycles/`."""
_OF_KINDS_ROUNDING = 0.0151
"""Largest difference from 100 of the sum of three percentages, each rounded to two digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """Hold one line of perf stat. `value` is None with the `problem` that perf names."""

    event: str
    value: float | None
    running_percent: float
    problem: str = ""

    @property
    def is_whole(self) -> bool:
        """Return whether the event was counted all of the time."""
        return self.value is not None and self.running_percent >= _ALL_OF_THE_TIME


def read_counters(text: str, where: str) -> list[Counter]:
    """Return the counters in perf stat's JSON lines or CSV, of one or many threads, in any locale.

    Lines with a metric and no counter are skipped. Raises BrokenError for anything else.
    """
    found: list[Counter] = []
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        try:
            counter = _from_json(line) if line[0] == "{" else _from_csv(line)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise BrokenError(
                f"{where}: expected perf stat's JSON or CSV, found {line[:120]!r}"
            ) from error
        if counter is not None:
            found.append(counter)
    return found


def totals(counters: Iterable[Counter]) -> Mapping[str, Counter]:
    """Return one counter per event. Threads (or intervals) are added up and the worst of their
    problems is kept; on a hybrid host, a sum over all kinds of cores follows."""
    by_event: dict[str, list[Counter]] = defaultdict(list)
    for counter in counters:
        by_event[counter.event].append(counter)
    summed = {}
    by_kind: dict[str, list[Counter]] = defaultdict(list)
    for event, parts in by_event.items():
        values = [part.value for part in parts if part.value is not None]
        summed[event] = Counter(
            event=event,
            value=sum(values) if len(values) == len(parts) else None,
            running_percent=min(part.running_percent for part in parts),
            problem=next((part.problem for part in parts if part.problem), ""),
        )
        if kind := _OF_CORES.fullmatch(event):
            modifiers = kind[2] or kind[3]
            by_kind[f"{kind[1]}:{modifiers}" if modifiers else kind[1]].append(summed[event])
    return {event: _of_all_cores(event, kinds) for event, kinds in by_kind.items()} | summed


def _of_all_cores(event: str, kinds: Sequence[Counter]) -> Counter:
    """Return the sum over all kinds of cores. Each kind counts a thread only while it runs there,
    and perf scales that count to the whole time (perf_counts_values__scale); this undoes the
    scaling. For whole CPUs each kind is counted all of the time."""
    counted = [kind for kind in kinds if kind.value is not None]
    unsupported = [kind for kind in kinds if kind.problem not in ("", "<not counted>")]
    if not counted or unsupported:
        problem = (unsupported or kinds)[0].problem
        return Counter(event=event, value=None, running_percent=0.0, problem=problem)
    running = sum(kind.running_percent for kind in counted)
    if abs(running - 100) <= _OF_KINDS_ROUNDING:
        running = 100.0
    elif running > 100:
        running = min(kind.running_percent for kind in counted)
    value = sum((kind.value or 0) * kind.running_percent / 100 for kind in counted)
    return Counter(event=event, value=value, running_percent=running)


def counts(summed: Mapping[str, Counter], events: Sequence[str]) -> list[float] | str:
    """Return the events' counts, or a sentence on why one of them cannot be used."""
    values = []
    for event in events:
        counter = summed.get(event)
        if counter is None:
            return f"perf printed no count of {event}."
        if counter.value is None:
            return f"perf says {counter.problem} for {event}."
        if not counter.is_whole:
            return (
                f"perf counted {event} only {counter.running_percent:g} % of the time: there were "
                "more events than counters."
            )
        values.append(counter.value)
    return values


def _from_json(line: str) -> Counter | None:
    try:
        entry: Any = parse_json(line)
    except ValueError:
        # Decimal commas of some locales, and what perf 6.14 prints for a missing metric.
        line = _JSON_NAN.sub("null", _JSON_COMMA.sub(r"\1.\2", line))
        entry = parse_json(_JSON_END.sub("}", line))
    if "counter-value" not in entry:
        return None
    value = entry["counter-value"]
    text = value if isinstance(value, str) else f"{float(value):f}"
    return _counter(str(entry["event"]), text, str(entry["pcnt-running"]))


def _from_csv(line: str) -> Counter | None:
    """Parse value,unit,event,run time,percent[,metric,its unit], preceded by a time, a thread or
    CPUs if perf was asked for them (perf-stat(1), "CSV FORMAT")."""
    fields = [
        field
        for field in line.split(";" if ";" in line else ",")
        if not _DEVIATION.fullmatch(field)
    ]
    if len(fields) < 5:
        raise ValueError("too few fields")
    for at in range(min(_PLACES_BEFORE, len(fields) - 5) + 1):
        value, _, event, run_time, percent = fields[at : at + 5]
        if event and run_time.isdecimal() and _PERCENT.fullmatch(percent):
            return _counter(event, value, percent)
    if any(_is_metric(fields[at:]) for at in range(_PLACES_BEFORE)):
        return None
    raise ValueError("no count with its run time and percentage")


def _is_metric(fields: Sequence[str]) -> bool:
    """Return whether the line has only a metric and its unit, maybe with the run time and
    percentage of the metric's counters."""
    if len(fields) < _PLACES_OF_METRIC or fields[0]:
        return False
    times = fields[1].isdecimal() and _PERCENT.fullmatch(fields[2]) is not None
    return not any(fields[3 if times else 0 : -2])


def _counter(event: str, value: str, percent: str) -> Counter:
    running = float(percent.replace(",", "."))
    if not event or not 0 <= running <= 100.5:
        raise ValueError(f"event '{event}' that ran {percent} % of the time")
    if not value or value.startswith("<"):
        problem = value or "nothing"
        return Counter(event=event, value=None, running_percent=running, problem=problem)
    if not _COUNT.fullmatch(value):
        raise ValueError(f"a count of {value}")
    number = float(value.replace(",", "."))
    return Counter(event=event, value=number, running_percent=running)


# Find which hardware counters this host has, and how many at once, by counting short processes.


ENVIRONMENT = {"LC_ALL": "C"}
"""Some locales have perf write decimal commas into its JSON."""

_JSON_SINCE = "6.0"
"""perf stat's --json-output came with commit df936cadfb58 (August 2022)."""
_PROBING_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Countable:
    """Hold the events that can be counted. `problem`: a sentence on why there are none. Otherwise
    `events`, which the PMU counts all at once, and the others with the reason; `output`: perf's
    options for its format."""

    problem: str | None = None
    events: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    output: tuple[str, ...] = ()


def pmu_countable(
    needed: tuple[str, ...], wanted: Sequence[Sequence[tuple[str, ...]]]
) -> Countable:
    """Return whether this host's PMU counts the `needed` events, and which of the `wanted` ones: of
    each the first choice that fits completely.

    Multiplexed events are useless (METHOD 12: any multiplexing), so each further event is tried
    together with those before it. A process as short as `true` sees no rotation: an event without a
    counter is `<not counted>`.
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
    """Return perf stat's options for machine-readable output: JSON if this perf has it."""
    done = run(("perf", "version"), deadline=Deadline.after(_PROBING_S, "perf's version"))
    version = done.stdout.strip().removeprefix("perf version").strip()
    return ("-x,",) if is_older(version, _JSON_SINCE) else ("--json-output",)


def tried(
    events: Sequence[str], output: Sequence[str], *options: str, program: Sequence[str] = ("true",)
) -> Mapping[str, Counter] | str:
    """Return perf's counts of a short process; a sentence if it refuses."""
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
    """Return a sentence on why these cannot be counted beside those, None if they can."""
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
            ", and multiplexed counts are not used."
        )
    return None


# Run perf stat around a block.


_ATTACH_S = 0.2
_GRACE_S = 5.0


class Printed:
    """Hold perf's output, once it has ended."""

    text = ""


@contextmanager
def counting(
    folder: TrialFolder, can: Countable, command: Sequence[str], *, raw: str, problem: str
) -> Iterator[None]:
    """Run perf stat beside the block and store its output in `raw`; if it cannot count, store the
    reason in `problem`. Raises BrokenError if it ends early."""
    if can.problem is not None:
        folder.write_raw(problem, can.problem)
        yield
        return
    with perf_attached(command) as printed:
        yield
    folder.write_raw(raw, printed.text)


@contextmanager
def perf_attached(command: Sequence[str]) -> Iterator[Printed]:
    """Run perf stat beside the block. Raises BrokenError if it ends early."""
    printed = Printed()
    with running(
        (*dies_with_labctl(), *command),
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
        stop_signal=signal.SIGINT,
    ) as perf:
        # perf does not report when it has attached; its start takes a few milliseconds.
        time.sleep(_ATTACH_S)
        yield printed
        # 0: the last of its threads (natively the command's) ended before perf was told to stop.
        if perf.poll() not in (None, 0):
            raise BrokenError(f"perf stat ended by itself with status {perf.returncode}")
        perf.send_signal(signal.SIGINT)
        try:
            _, counts = perf.communicate(timeout=_GRACE_S)
        except subprocess.TimeoutExpired as error:
            raise BrokenError(f"perf stat did not end within {_GRACE_S:g} s") from error
        printed.text = counts.decode(errors="replace")
