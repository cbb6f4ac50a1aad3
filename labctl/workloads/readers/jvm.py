"""Read a Java VM's unified log (`-Xlog:gc,gc+phases,safepoint,jit+compilation=debug:file=…`, with
`timenanos,level,tags`): how often and how long it stopped the program in the measured part, and
what it compiled before and during it.

The program writes a table of marks beside it, by System.nanoTime(), which is the clock of
`timenanos`: `steady`, when the measured part began, and `over`.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from labctl.base.errors import BrokenError
from labctl.store.samples import Reading, Unavailable, sample

JIT = "jit,compilation"
MILLISECOND_NS = 1_000_000
SECOND_NS = 1_000_000_000
_LINE = re.compile(r"\[(\d{1,19})ns\]\[[a-z ]+\]\[([a-z0-9,]+) *\] (.*)", re.ASCII)
# ZGC's generations begin with their letter; a heap's size precedes the time.
_PAUSE = re.compile(r"GC\(\d+\) (?:[YyOo]: )?Pause .*?(\d{1,9}\.\d{1,6})ms", re.ASCII)
_STALL = re.compile(r"Allocation Stall \(.*\) \d{1,9}\.\d{1,6}ms", re.ASCII)
# Formats of Java 17 and later, and of Java 11.
_STOPPED = re.compile(r'Safepoint ".*", .*\bTotal: (\d{1,15}) ns\b.*', re.ASCII)
_STOPPED_11 = re.compile(
    r"Total time for which application threads were stopped: (\d{1,9}\.\d{1,12}) seconds, .*",
    re.ASCII,
)
# "made not entrant" and, until Java 19, "made zombie", with a reason in Java 25.
_DISCARDED = re.compile(r".* made not entrant(?:: .*)?", re.ASCII)
_ZOMBIE = " made zombie"
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Marks:
    """Hold the limits of the measured part, in nanoseconds."""

    steady_ns: int
    over_ns: int


@dataclass(slots=True)
class _Counted:
    """Hold a log's counts of the measured part; `compiled_before`: until it began."""

    pauses_s: list[float] = field(default_factory=list)
    stopped_s: float = 0.0
    stalls: int = 0
    compiled: int = 0
    discarded: int = 0
    compiled_before: int = 0

    def add(self, tags: str, message: str) -> None:
        if tags in ("gc", "gc,phases") and (pause := _PAUSE.fullmatch(message)):
            self.pauses_s.append(float(pause[1]) * MILLISECOND_NS / SECOND_NS)
        elif tags == "gc" and _STALL.fullmatch(message):
            self.stalls += 1
        elif tags == "safepoint" and (stop := _STOPPED.fullmatch(message)):
            self.stopped_s += int(stop[1]) / SECOND_NS
        elif tags == "safepoint" and (stop := _STOPPED_11.fullmatch(message)):
            self.stopped_s += float(stop[1])
        elif tags == JIT and _is_compilation(message):
            self.compiled += 1
        elif tags == JIT and _DISCARDED.fullmatch(message):
            self.discarded += 1

    def add_before(self, tags: str, message: str) -> None:
        self.compiled_before += tags == JIT and _is_compilation(message)


def _is_compilation(message: str) -> bool:
    return not _DISCARDED.fullmatch(message) and _ZOMBIE not in message


def readings(log: str, marks: str, where: tuple[str, str], source: str) -> Iterator[Reading]:
    """Yield every metric of a log. `where`: log and marks, for errors. A pause counts if it ended
    in the measured part. Raises BrokenError."""
    log_where, marks_where = where
    part = _marks(marks, marks_where)
    found, last, seen = _Counted(), 0, set[str]()
    for at, tags, message in _lines(log, log_where):
        last = max(last, at)
        seen.update(tags.split(","))
        if at < part.steady_ns:
            found.add_before(tags, message)
        elif at < part.over_ns:
            found.add(tags, message)
    if last < part.over_ns:
        raise BrokenError(
            f"{log_where}: its last line is of {part.over_ns - last} ns before the program was "
            "over, so it may be cut"
        )
    if "gc" in seen:
        yield from _collections(found, source)
    else:
        why = "the log has no 'gc' lines: it needs 'gc=info'."
        for metric in ("gc_pauses", "gc_pause_time", "gc_pause_max", "gc_stalls"):
            yield Unavailable(metric=metric, reason=why)
    if "safepoint" in seen:
        yield sample("jvm_stopped", found.stopped_s, source=source)
    else:
        why = "the log has no 'safepoint' lines: it needs 'safepoint=info'."
        yield Unavailable(metric="jvm_stopped", reason=why)
    if not found.compiled_before:
        why = "the log has no compilation lines: it needs 'jit+compilation=debug'."
        for metric in ("jit_compiled", "jit_compiled_before", "jit_discarded"):
            yield Unavailable(metric=metric, reason=why)
        return
    yield sample("jit_compiled", found.compiled, source=source)
    yield sample("jit_compiled_before", found.compiled_before, source=source)
    yield sample("jit_discarded", found.discarded, source=source)


def _collections(found: _Counted, source: str) -> Iterator[Reading]:
    pauses = found.pauses_s
    yield sample("gc_pauses", len(pauses), source=source)
    yield sample("gc_pause_time", sum(pauses), source=source)
    if pauses:
        yield sample("gc_pause_max", max(pauses), source=source)
    else:
        yield Unavailable(metric="gc_pause_max", reason="no collection stopped the program.")
    yield sample("gc_stalls", found.stalls, source=source)


def _lines(log: str, where: str) -> Iterator[tuple[int, str, str]]:
    """Yield time, tags and message of each line."""
    if not log.endswith("\n"):
        raise BrokenError(f"{where}: its last line has no end, so it is cut")
    # Not splitlines(): a message is the JVM's, and other line separators belong to it.
    for number, line in enumerate(log[:-1].split("\n"), start=1):
        if (found := _LINE.fullmatch(line)) is None:
            raise BrokenError(
                f"{where}, line {number}: expected '[…ns][level][tags] message' of a Java VM's "
                f"log, found {line[:_SHOWN]!r}",
                hint="Log with '-Xlog:…:file=…:timenanos,level,tags:filecount=0'.",
            )
        yield int(found[1]), found[2], found[3]


def _marks(text: str, where: str) -> Marks:
    if not text.endswith("\n"):
        raise BrokenError(f"{where}: its last line has no end, so it is cut")
    found: dict[str, int] = {}
    for row in list(csv.reader(text.splitlines()))[1:]:
        if len(row) != 2 or not re.fullmatch(r"\d{1,19}", row[1], re.ASCII) or row[0] in found:
            raise BrokenError(f"{where}: expected a mark and nanoseconds, found {row!r:.80}")
        found[row[0]] = int(row[1])
    for name in ("steady", "over"):
        if name not in found:
            raise BrokenError(f"{where}: no mark '{name}'")
    if found["over"] <= found["steady"]:
        raise BrokenError(f"{where}: it ended before it was steady")
    return Marks(steady_ns=found["steady"], over_ns=found["over"])
