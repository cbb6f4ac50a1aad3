"""A CPU of this host that is taken offline under a thread that is pinned to it, and put back at
once. `make faults` alone does it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from labctl.domain.readback import native_mismatches

CPU = max(os.sched_getaffinity(0))
ONLINE = Path(f"/sys/devices/system/cpu/cpu{CPU}/online")

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(
        not (os.access(ONLINE, os.W_OK) and len(os.sched_getaffinity(0)) > 1),
        reason="no CPU of this host can be taken offline",
    ),
]


@contextmanager
def offline() -> Iterator[None]:
    """cgroup v1 takes the CPU out of each cpuset, and leaves it out (cpusets.rst, 1.4)."""
    cpusets = Path("/sys/fs/cgroup/cpuset").glob("*/**/cpuset.cpus")
    before = {path: path.read_text() for path in sorted(cpusets)}
    try:
        try:
            ONLINE.write_text("0")
        except OSError as error:
            pytest.skip(f"the kernel refuses to take a CPU offline: {error}")
        yield
    finally:
        ONLINE.write_text("1")
        for path, cpus in before.items():  # parents first
            with suppress(OSError):  # its processes have ended
                path.write_text(cpus)


def test_a_thread_whose_cpu_goes_offline_is_found_elsewhere() -> None:
    """This is the check before and after each trial: the trial becomes invalid."""
    program = subprocess.Popen(["sh", "-c", "while :; do :; done"])  # a sleeper would not move
    try:
        os.sched_setaffinity(program.pid, {CPU})
        assert native_mismatches(program.pid, frozenset({CPU}), None) == []
        with offline():
            (said,) = native_mismatches(program.pid, frozenset({CPU}), None)
            assert f"expected CPU {CPU}, got " in said
    finally:
        program.kill()
        program.wait()
