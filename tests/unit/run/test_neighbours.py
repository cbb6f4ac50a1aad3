"""Neighbours wait until they are let go, and are ended so that what they did can be read."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from labctl.base.command import CommandResult
from labctl.base.errors import BrokenError, DeadlineError
from labctl.run.trials import beside as module
from labctl.run.trials.beside import PlanNeighbours, Together, _Copy, _OnTheHost
from labctl.study.conditions import Neighbour
from labctl.workloads.beside import Beside

LOOPING = {"hackbench": signal.SIGTERM, "cpu-hog": signal.SIGINT}
"""Workloads, and what tells each to stop."""


@dataclass
class Running:
    """A command of a runner: a process of the test's own."""

    process: subprocess.Popen[bytes]
    stderr: bytes = b""
    went: bool = False
    told: list[int] = field(default_factory=list)

    @property
    def pid(self) -> int:
        return self.process.pid

    def go(self) -> None:
        self.went = True

    def wait_exited(self, within_s: float) -> None:
        try:
            self.process.wait(0.5)
        except subprocess.TimeoutExpired as error:
            raise DeadlineError("it goes on") from error

    def result(self) -> CommandResult:
        return CommandResult(
            returncode=self.process.wait(),
            stdout=b"out",
            stderr=self.stderr,
            files={"hog.yaml": b"---\n"},
            duration_s=3.0,
            counts={"rusage": {"utime_s": 1.5, "stime_s": 0.5}},
        )


class Account:
    """A cgroup whose members are busy from the start."""

    def __init__(self, *, tells: bool = True, starved: int = 0) -> None:
        self.tells = tells
        self.starved = starved

    def oom_kills(self) -> int:
        return self.starved

    def cpu_ns(self) -> int | None:
        return time.monotonic_ns() if self.tells else None


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def some(
    processes: list[subprocess.Popen[bytes]],
    name: str = "cpu-hog",
    code: str = "import time; time.sleep(60)",
    **account: Any,
) -> _OnTheHost:
    """One neighbour that is such a process."""
    argv = [sys.executable, "-c", f"{code}\n"]
    processes.append(subprocess.Popen(argv, start_new_session=True, stdout=subprocess.PIPE))
    process = processes[-1]
    session: Any = SimpleNamespace(pid=process.pid)
    members: Any = Account(**account)
    running: Any = Running(process)
    copy = _Copy(session, members, running)
    return _OnTheHost(0, Beside.of(name, None, {}, 1.0), frozenset({0, 2}), [copy])


def running(of: _OnTheHost) -> Running:
    found: Any = of.copies[0].running
    assert isinstance(found, Running)
    return found


def test_a_neighbour_waits_until_it_is_let_go(processes: Any) -> None:
    found = some(processes)
    assert not running(found).went
    found.start()
    assert running(found).went


def test_one_that_sleeps_most_of_the_time_is_not_waited_for_long(processes: Any) -> None:
    found = some(processes, tells=False)
    began = time.monotonic()
    found.start()
    assert 0.9 < time.monotonic() - began < 5


@pytest.mark.parametrize(("name", "number"), LOOPING.items())
def test_what_tells_it_to_stop_is_what_its_workload_takes(
    processes: Any, name: str, number: int
) -> None:
    code = (
        "import signal, sys, time\n"
        f"signal.signal({int(number)}, lambda *_: sys.exit(7))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)"
    )
    found = some(processes, name, code)
    assert processes[0].stdout is not None
    assert processes[0].stdout.readline() == b"ready\n"
    found.stop()
    (row,) = found.outcome
    assert (row["workload"], row["status"], row["was_killed"]) == (name, 7, False)
    assert row["files"] == {"hog.yaml": "---\n"}
    assert row["cpu_s"] > 0


def test_one_that_does_not_stop_is_killed_and_that_is_said(processes: Any) -> None:
    code = (
        "import signal, time\n"
        "signal.signal(2, signal.SIG_IGN)\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)"
    )
    found = some(processes, code=code, tells=False)
    assert processes[0].stdout is not None
    processes[0].stdout.readline()
    found.stop()
    (row,) = found.outcome
    assert (row["status"], row["was_killed"]) == (-9, True)
    # Where no cgroup tells: what it has waited for.
    assert row["cpu_s"] == 2.0


@pytest.mark.parametrize("step", ["start", "stop"])
def test_one_that_ended_by_itself_is_an_error_that_repeats_what_it_said(
    processes: Any, step: str
) -> None:
    found = some(processes, code="raise SystemExit(3)")
    running(found).stderr = b"cannot fork"
    processes[0].wait()
    with pytest.raises(BrokenError, match="cpu-hog ended unexpectedly with status 3: cannot fork"):
        getattr(found, step)()


def test_one_that_had_too_little_memory_is_an_error_though_it_went_on(processes: Any) -> None:
    found = some(processes, starved=2)
    with pytest.raises(BrokenError, match="cpu-hog were killed: out of memory"):
        found.stop()


def test_what_they_used_is_told_by_kind_with_the_cpus_that_they_may_use(processes: Any) -> None:
    found = Together([some(processes), some(processes, "hackbench")])
    assert found.pids == [process.pid for process in processes]
    rows: list[Mapping[str, Any]] = list(found.used())
    assert [(row["workload"], row["cpus"]) for row in rows] == [
        ("cpu-hog", "0,2"),
        ("hackbench", "0,2"),
    ]


def test_what_some_of_them_used_is_not_told_as_if_it_were_all(processes: Any) -> None:
    assert Together([some(processes), some(processes, tells=False)]).used() == []


def test_a_trial_without_neighbours_starts_none() -> None:
    nobody = Together()
    nobody.start()
    nobody.stop()
    assert (nobody.pids, nobody.used(), nobody.outcome) == ([], [], [])


NOWHERE: Any = None
PLAN: Any = SimpleNamespace(neighbours={}, conditions=("quiet", "neighbour"))


def trial_of(condition: str) -> Any:
    return SimpleNamespace(cell={"condition": condition})


@dataclass
class Runners:
    """Stand-ins for the runners of a condition's neighbours on the host."""

    started: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    unfit: set[str] = field(default_factory=set)

    @contextmanager
    def start(self, lab: Any, declared: Neighbour, name: str) -> Iterator[list[Any]]:
        number = f"{name} {len(self.started)}"
        self.started.append(number)
        yield [SimpleNamespace(name=number, is_as_new=True)]
        self.ended.append(number)


@pytest.fixture
def runners(monkeypatch: pytest.MonkeyPatch) -> Runners:
    made = Runners()
    monkeypatch.setattr(module, "_runners", made.start)
    return made


def test_runners_stay_from_trial_to_trial_and_end_with_the_plan(runners: Runners) -> None:
    quiet, busy = trial_of("quiet"), trial_of("neighbour")
    with PlanNeighbours(NOWHERE, NOWHERE, PLAN) as found:
        found.make_ready([quiet])
        assert runners.started == []
        found.make_ready([busy, quiet])
        found.make_ready([busy])
        assert (runners.started, runners.ended) == (["neighbour-0 0"], [])
        assert found.are_fit()
    assert runners.ended == runners.started


def test_a_runner_with_something_left_of_a_command_is_replaced_before_the_next_machine(
    runners: Runners,
) -> None:
    with PlanNeighbours(NOWHERE, NOWHERE, PLAN) as found:
        found.make_ready([trial_of("neighbour")])
        (kept,) = found._runners.values()
        kept[0].is_as_new = False
        assert not found.are_fit()
        assert runners.ended == []  # it stays while a machine that began after it is there
        found.make_ready([trial_of("neighbour")])
        assert runners.ended == ["neighbour-0 0"]
        assert found.are_fit()
    assert runners.ended == ["neighbour-0 0", "neighbour-0 1"]
