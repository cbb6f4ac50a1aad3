"""Find the owners of a trace's threads, and which are the workload's, and number them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labctl.base.errors import FileError
from labctl.store.samples import Reading, Sample
from labctl.store.trial import TrialFolder
from labctl.trace import files
from labctl.trace.coverage import Own
from labctl.trace.model import FORK, SWITCH, WAKEUPS, Trace

# Find which of a trace's threads are a workload's.


def process_tree(trace: Trace, root: int) -> frozenset[int]:
    """Return the threads of process `root` and of its descendants, as far as the trace contains
    their start. The kernel calls a new thread a fork, too (include/trace/events/sched.h)."""
    found = {root, *(tid for tid, pid in trace.processes.items() if pid == root)}
    for parent, child in _forks(trace):
        if parent in found:
            found.add(child)
    return frozenset(found)


def _forks(trace: Trace) -> Iterable[tuple[int, int]]:
    if FORK not in trace.events:
        return ()
    fields = trace.events[FORK].fields
    return zip(fields["parent_pid"].tolist(), fields["child_pid"].tolist(), strict=True)


# Find the owners of a trace's threads, and which of them are the workload's.


_LATEST_NS = 2**62
CYCLICTEST = "cyclictest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """Describe a thread. `role`: vcpu, emulator, iothread, vhost or workload. `index`: among those
    of its role.
    """

    tid: int
    pid: int
    role: str
    index: int
    name: str


def stored_threads(raw: TrialFolder) -> list[Thread]:
    """Read a trial's threads. Raises BrokenError naming the file if it is missing or invalid."""
    data: Any = raw.read_json(files.THREADS)
    try:
        return [
            Thread(
                tid=int(row["tid"]),
                pid=int(row["pid"]),
                role=str(row["role"]),
                index=int(row["index"]),
                name=str(row["name"]),
            )
            for row in data
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(
            f"{raw.path / files.THREADS}: expected threads with tid, pid, role, index and name, "
            f"found something else ({error!r})"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Hold what the runner started. `name`: the beginning of its threads' names. `pid`: its first
    process. `window_ns`: when that ran, by the clock of its machine. `own`: its own report on its
    wake-ups. None if unknown."""

    name: str
    pid: int | None = None
    window_ns: tuple[int, int] | None = None
    own: Own | None = None

    def tids(self, trace: Trace) -> list[int]:
        """Return its threads in a trace of its machine; or, if the trace lacks its process, those
        of its name. The first thread of a process that has others is left out: it only starts them
        and waits (cyclictest's measuring threads)."""
        found = (
            [] if self.pid is None else sorted(process_tree(trace, self.pid) & trace.names.keys())
        )
        if not found:
            found = [tid for tid, own in trace.names.items() if tid and own.startswith(self.name)]
        others = [tid for tid in found if trace.processes.get(tid, tid) != tid]
        return others or found


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Name the workload's first process, and when it ran, by the CLOCK_MONOTONIC of its machine."""

    pid: int
    start_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


def stored_window(raw: TrialFolder) -> Window:
    """Read a trial's window. Raises BrokenError naming the file if it is missing or invalid."""
    name = files.stored(raw, files.RUNNER)
    data: Any = raw.read_json(name)
    try:
        # Its counters are read when the workload has ended; before, it waits for others to attach.
        end_ns = int(data["after"]["monotonic_ns"])
        start_ns = end_ns - round(float(data["duration_s"]) * 1e9)
        pid = int(data["pid"])
        if not 0 <= start_ns < end_ns < _LATEST_NS:
            raise ValueError(f"from {start_ns} to {end_ns} ns")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise FileError(
            f"{raw.path / name}: expected the workload's pid, duration and clock from the "
            f"runner, found something else ({error!r})"
        ) from error
    return Window(pid=pid, start_ns=start_ns, end_ns=end_ns)


def stored_workload(raw: TrialFolder, program: str, readings: Iterable[Reading] = ()) -> Workload:
    """Read a trial's workload. `program`: labctl's name for it. `readings`: of its own output.
    Raises as `stored_window` does."""
    ran = stored_window(raw)
    # The program of sysbench-cpu is sysbench.
    name = program.split("-")[0]
    window = ran.start_ns, ran.end_ns
    return Workload(name=name, pid=ran.pid, window_ns=window, own=_own(name, readings))


def _own(name: str, readings: Iterable[Reading]) -> Own | None:
    """Return the program's own latencies; other programs' are not those of their own threads'
    wake-ups."""
    if name != CYCLICTEST:
        return None
    told: dict[str, list[float]] = {"wakeups": [], "latency_max": []}
    for one in readings:
        if isinstance(one, Sample) and one.metric in told:
            told[one.metric].append(one.value)
    if not all(told.values()):
        return None
    worst_s = max(told["latency_max"])
    wakeups = round(sum(told["wakeups"]))
    return Own(program=name, wakeups=wakeups, worst_ns=round(worst_s * 1e9))


# Choose the threads to search a trace's scheduler events for, and number them.


_PART = 1 << 16
"""Events processed at a time, to bound the memory."""

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Numbering:
    """Number threads from 0, in order of their ids. `number_of[tid]` is -1 for all others."""

    tids: NDArray[np.int32]
    number_of: NDArray[Any]

    def within(self, tids: NDArray[Any]) -> NDArray[Any]:
        """Return the keys, with 0 for those that are too large for the table."""
        return np.where(tids < len(self.number_of), tids, 0)

    @classmethod
    def of(cls, trace: Trace, tids: Collection[int] | None = None) -> Numbering:
        """Number these threads, or all in a trace's scheduler events; never the idle task (0)."""
        columns = [trace.events[SWITCH].fields[name] for name in ("prev_pid", "next_pid")]
        columns += [trace.events[name].fields["pid"] for name in WAKEUPS if name in trace.events]
        highest = max((int(column.max()) for column in columns if len(column)), default=0)
        is_wanted = np.zeros(highest + 1, dtype=bool)
        if tids is None:
            for column in columns:
                for begin in range(0, len(column), _PART):
                    # NumPy takes half the time for indices of its own type.
                    is_wanted[column[begin : begin + _PART].astype(np.intp)] = True
        else:
            is_wanted[[tid for tid in tids if 0 < tid <= highest]] = True
        is_wanted[0] = False
        found = np.flatnonzero(is_wanted).astype(np.int32)
        # Few threads have numbers of 16 bits.
        number_of = np.full(highest + 1, -1, np.int16 if len(found) < 2**15 else np.int32)
        number_of[found] = np.arange(len(found))
        return cls(found, number_of)
