"""Take snapshots of the kernel's counters of threads at the edges of the measured window.

Finding threads and reading what is not a counter takes milliseconds of labctl's CPU time, so it
comes first before the window, and last after it. Only the counters are read next to the window. The
thread that reads them reads its own last before the window and first after it (METHOD rule 11).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from labctl.base.placement import known_slice_ns
from labctl.collect.collector import Edge, Snapshot, Target, ThreadRef
from labctl.collect.snapshots import BESIDE

OWN = "labctl"
"""Role of labctl's own threads."""

# Keep only these lines of /proc/stat and of status: a run has thousands of snapshots, and the
# interrupts' line alone is kilobytes.
_STAT_LINES = ("cpu", "ctxt ", "procs_")
_STATUS_LINES = ("Cpus_allowed_list:", "voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:")
_PROC = Path("/proc")
_FILES = ("status", "comm", "stat")

Find = Callable[[], Sequence[ThreadRef]]
"""Return the threads as they are now."""

Beside = Callable[[], Sequence[Mapping[str, object]]]
"""Return the usage of neighbours so far, if their cgroups account for it."""

_Counts = dict[int, str]
"""Text of schedstat by thread id."""
_Row = dict[str, object]


@contextmanager
def attached(target: Target) -> Iterator[Snapshot]:
    """Yield the snapshots of a trial's known threads."""
    yield ThreadSnapshots(target.known_threads, beside=target.beside)


class ThreadSnapshots:
    """Take a snapshot at each edge of the window, in the form of host.json.

    A thread that has ended is left out. Its usage is in the times of its process, which the kernel
    keeps.
    """

    def __init__(self, find: Find, proc_root: Path = _PROC, beside: Beside | None = None) -> None:
        self._find = find
        self._beside = beside or list
        self._proc = proc_root
        self._known: Sequence[ThreadRef] = ()

    def __call__(self, edge: Edge) -> Mapping[str, object]:
        return self._before() if edge is Edge.OPENS else self._after()

    def _before(self) -> dict[str, object]:
        self._known = threads = self._find()
        rows = self._rows(threads)
        processes = self._process_stats(threads)
        counts = self._counts(_others(threads))
        whole = self._host()
        counts |= self._counts(reversed(_own(threads)))
        return {**whole, "threads": _with_counts(rows, counts), "processes": processes}

    def _after(self) -> dict[str, object]:
        counts = self._counts(_own(self._known))
        whole = self._host()
        counts |= self._counts(_others(self._known))
        threads = self._find()
        counts |= self._counts(ref for ref in threads if ref.tid not in counts)
        rows = self._rows(threads)
        processes = self._process_stats(threads)
        return {**whole, "threads": _with_counts(rows, counts), "processes": processes}

    def _host(self) -> dict[str, object]:
        now = time.monotonic_ns()
        text = (self._proc / "stat").read_text()
        beside = self._beside()
        return {
            "monotonic_ns": now,
            "proc_stat": _kept(text, _STAT_LINES),
            **({BESIDE: beside} if beside else {}),
        }

    def _counts(self, threads: Iterable[ThreadRef]) -> _Counts:
        found: _Counts = {}
        for ref in threads:
            path = self._folder(ref) / "schedstat"
            # The file shows a running thread's time as of the last tick, up to 10 ms ago. Reading
            # one's own time updates it (task_sched_runtime in kernel/sched/core.c).
            time.thread_time_ns()
            try:
                found[ref.tid] = path.read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
        return found

    def _rows(self, threads: Iterable[ThreadRef]) -> list[_Row]:
        """Return each thread's row without its counters."""
        found: list[_Row] = []
        for ref in threads:
            folder = self._folder(ref)
            try:
                texts = {name: (folder / name).read_text(errors="replace") for name in _FILES}
            except (FileNotFoundError, ProcessLookupError):
                continue
            found.append(
                {
                    "pid": ref.pid,
                    "tid": ref.tid,
                    "role": ref.role,
                    "index": ref.index,
                    "comm": texts["comm"].strip(),
                    "status": _kept(texts["status"], _STATUS_LINES),
                    # Its policy and priority, and a vCPU's page faults.
                    "stat": texts["stat"],
                    **self._slice(ref.tid),
                }
            )
        return found

    def _slice(self, tid: int) -> dict[str, int]:
        """Return a thread's time slice, which is not in /proc."""
        found = known_slice_ns(tid) if self._proc == _PROC else None
        return {} if found is None else {"slice_ns": found}

    def _process_stats(self, threads: Iterable[ThreadRef]) -> dict[str, str]:
        found = {}
        for pid in sorted({ref.pid for ref in threads}):
            try:
                found[str(pid)] = (self._proc / str(pid) / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
        return found

    def _folder(self, ref: ThreadRef) -> Path:
        return self._proc / str(ref.pid) / "task" / str(ref.tid)


def _own(threads: Iterable[ThreadRef]) -> list[ThreadRef]:
    """Return labctl's threads, the calling one first."""
    own = [ref for ref in threads if ref.role == OWN]
    return sorted(own, key=lambda ref: ref.tid != threading.get_native_id())


def _others(threads: Iterable[ThreadRef]) -> list[ThreadRef]:
    return [ref for ref in threads if ref.role != OWN]


def _with_counts(rows: Iterable[_Row], counts: _Counts) -> list[_Row]:
    return [{**row, "schedstat": counts[row["tid"]]} for row in rows if row["tid"] in counts]


def _kept(text: str, starts: tuple[str, ...]) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if line.startswith(starts))
