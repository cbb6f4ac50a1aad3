"""The kernel's own clock on real processes, as it counts for unprivileged users too."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from labctl.base.cpus import CpuSet
from labctl.collect.collector import ThreadRef
from labctl.collect.threads import task_clock

CPUS = sorted(os.sched_getaffinity(0))

NEEDS_CLOCK = pytest.mark.skipif(
    task_clock.why_unavailable() is not None, reason=str(task_clock.why_unavailable())
)
NEEDS_TWO_CPUS = pytest.mark.skipif(len(CPUS) < 2, reason="a thread can't roam over one CPU")

# Burns CPU time on one CPU, then on another, there in a child as well that ends before it does.
PROGRAM = """
import os, sys, time
first, second = map(int, sys.argv[1:])

def burn(cpu, seconds):
    os.sched_setaffinity(0, {cpu})
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass

print("ready", flush=True)
sys.stdin.readline()
burn(first, 0.3)
if os.fork() == 0:
    burn(second, 0.1)
    os._exit(0)
os.wait()
burn(second, 0.1)
print("burnt", flush=True)
sys.stdin.readline()
"""


@contextmanager
def burning(first: int, second: int) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-c", PROGRAM, str(first), str(second)]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def burn(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    assert process.stdout.readline() == "burnt\n"


def ref(pid: int, role: str = "neighbour") -> ThreadRef:
    return ThreadRef(pid=pid, tid=pid, role=role, index=0)


def change(before: dict[str, Any], after: dict[str, Any]) -> tuple[float, dict[int, float]]:
    """Seconds everywhere, and on each CPU that was counted."""
    (then,), (now,) = before[task_clock.KEY], after[task_clock.KEY]
    on = {int(cpu): (now["on"][cpu] - then["on"][cpu]) / 1e9 for cpu in now["on"]}
    return (now["everywhere"] - then["everywhere"]) / 1e9, on


@NEEDS_CLOCK
@NEEDS_TWO_CPUS
def test_the_time_on_each_cpu_is_counted_a_childs_included() -> None:
    first, second = CPUS[:2]
    with (
        burning(first, second) as process,
        task_clock.counting([ref(process.pid)], frozenset({second})) as clocks,
    ):
        before = clocks.read()
        burn(process)
        everywhere, on = change(before, clocks.read())
    # The clock goes on where a hypervisor takes the CPU away, so neither is exact.
    assert everywhere >= 0.49
    assert on[second] / everywhere == pytest.approx(0.4, abs=0.1)


@NEEDS_CLOCK
@NEEDS_TWO_CPUS
def test_what_a_process_ran_is_known_after_its_end() -> None:
    first, second = CPUS[:2]
    with (
        burning(first, second) as process,
        task_clock.counting([ref(process.pid)], frozenset({second})) as clocks,
    ):
        before = clocks.read()
        burn(process)
        process.send_signal(signal.SIGKILL)
        process.wait()
        everywhere, on = change(before, clocks.read())
    assert everywhere >= 0.49
    assert on[second] >= 0.19


@NEEDS_CLOCK
@NEEDS_TWO_CPUS
def test_a_thread_whose_affinity_says_it_has_no_clock() -> None:
    def counted(cpus: CpuSet) -> int:
        with task_clock.counting([ref(os.getpid())], cpus) as clocks:
            return len(clocks.read()[task_clock.KEY])

    beyond = max(CPUS) + 1
    assert counted(frozenset(CPUS)) == 0
    assert counted(frozenset({beyond})) == 0
    assert counted(frozenset(CPUS[:1])) == 1


@NEEDS_TWO_CPUS
def test_few_events_are_opened_on_a_host_of_many_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    def open_event(tid: int, cpu: int) -> int:
        opened.append(cpu)
        return os.open("/dev/zero", os.O_RDONLY)

    many = frozenset(range(64))
    monkeypatch.setattr(os, "sched_getaffinity", lambda tid: set(many))
    for trial in (many - {7}, frozenset({7})):
        opened.clear()
        with task_clock.counting([ref(1)], trial, open_event) as clocks:
            assert [row["on"].keys() for row in clocks.read()[task_clock.KEY]] == [{"7"}]
        assert opened == [-1, 7]


@NEEDS_TWO_CPUS
def test_one_refusal_leaves_no_clocks_and_its_reason() -> None:
    opened = []

    def open_event(tid: int, cpu: int) -> int:
        if opened:
            raise OSError(errno.EACCES, "Permission denied")
        opened.append(os.open("/dev/zero", os.O_RDONLY))
        return opened[0]

    with task_clock.counting([ref(os.getpid())], frozenset(CPUS[:1]), open_event) as clocks:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(opened[0])
        assert clocks.read() == {
            task_clock.KEY: {"unavailable": "perf_event_open is refused (Permission denied)."}
        }


def test_a_thread_that_has_ended_by_then_is_left_out() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    with task_clock.counting([ref(process.pid)], frozenset(CPUS[:1])) as clocks:
        assert clocks.read() == {task_clock.KEY: []}


@NEEDS_TWO_CPUS
def test_more_clocks_than_a_process_may_have_files_change_no_limit_for_others() -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    within = []

    def open_event(tid: int, cpu: int) -> int:
        within.append(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        return os.open("/dev/zero", os.O_RDONLY)

    resource.setrlimit(resource.RLIMIT_NOFILE, (limit[1] // 2, limit[1]))
    try:
        with task_clock.counting([ref(os.getpid())], frozenset(CPUS[:1]), open_event):
            assert within == [limit[1] // 2 + 2] * 2
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == limit[1] // 2
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
