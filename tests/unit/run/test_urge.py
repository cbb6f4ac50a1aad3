"""Nice values and time slices of threads, given by the kernel of the machine that runs the
tests."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from labctl.base.errors import BrokenError
from labctl.base.tuning import Kind, Tuning
from labctl.run.guests.bench import urge

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


def test_threads_that_have_ended_are_passed_over(
    process: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(which: int, who: int, value: int) -> None:
        raise ProcessLookupError

    monkeypatch.setattr(os, "setpriority", gone)
    urge(LOWERED, process, [])
