"""Nice values and time slices of threads, given by the kernel of the machine that runs the
tests."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from labctl.base.errors import BrokenError
from labctl.base.tuning import Kind, Tuning
from labctl.run.guests.bench import pin_vhost, urge

LOWERED = Tuning(name="lowered", description="", kind=Kind.GUEST, nice=5)


@pytest.fixture
def process() -> Iterator[int]:
    with subprocess.Popen(["sleep", "60"]) as sleeping:
        yield sleeping.pid
        sleeping.kill()


def test_all_threads_of_a_process_get_the_nice_value(process: int) -> None:
    urge(LOWERED, process, [])
    assert os.getpriority(os.PRIO_PROCESS, process) == 5


def test_a_tuning_without_a_nice_value_leaves_it(process: int) -> None:
    urge(Tuning(name="plain", description="", kind=Kind.GUEST), process, [process])
    assert os.getpriority(os.PRIO_PROCESS, process) == os.getpriority(os.PRIO_PROCESS, 0)


def test_a_refusal_names_the_thread_and_the_value(
    process: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(which: int, who: int, value: int) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "setpriority", refused)
    with pytest.raises(BrokenError, match=f"thread {process} can't have the nice value 5: Perm"):
        urge(LOWERED, process, [])


@pytest.fixture
def worker() -> Iterator[int]:
    """A thread of our own that is called as vhost's workers are."""
    over, ready = threading.Event(), threading.Event()

    def work() -> None:
        Path("/proc/thread-self/comm").write_text(f"vhost-{os.getpid()}")
        ready.set()
        over.wait()

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait()
    assert thread.native_id is not None
    yield thread.native_id
    over.set()
    thread.join()


def test_vhosts_workers_are_pinned_and_nothing_else(worker: int) -> None:
    before = os.sched_getaffinity(0)
    wanted = frozenset({min(before)})
    pin_vhost(os.getpid(), None)
    assert os.sched_getaffinity(worker) == before
    pin_vhost(os.getpid(), wanted)
    assert os.sched_getaffinity(worker) == wanted
    assert os.sched_getaffinity(0) == before


def test_a_cpu_that_vhosts_workers_cannot_have_is_named(worker: int) -> None:
    with pytest.raises(BrokenError, match=f"vhost's thread {worker} can't run on CPU 1023: Inv"):
        pin_vhost(os.getpid(), frozenset({1023}))


def test_threads_that_have_ended_are_passed_over(
    process: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(which: int, who: int, value: int) -> None:
        raise ProcessLookupError

    monkeypatch.setattr(os, "setpriority", gone)
    urge(LOWERED, process, [])
