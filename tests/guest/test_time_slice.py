"""A time slice of their own for vCPUs, and natively for the workload: what the kernel shows of the
threads while trials run, and that nothing else has it."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from tests.guest.conftest import QUIET, TINY, Sandbox, native_pids

ARMS = ("--tuning=vcpu-slice-3ms", "--tuning=native+vcpu-slice-3ms")
SLICE_NS = 3_000_000
_SLICE = re.compile(r"^se\.slice\s+:\s+(\d+)$", re.M)


def shown(pid: int) -> dict[str, int]:
    """Each thread's slice as /proc shows it, which labctl doesn't read, by its name."""
    found = {}
    for folder in Path(f"/proc/{pid}/task").glob("*"):
        try:
            if match := _SLICE.search((folder / "sched").read_text()):
                found[(folder / "comm").read_text().strip()] = int(match[1])
        except OSError:
            continue
    return found


def test_vcpus_and_the_native_workload_have_the_slice_and_nothing_else(sandbox: Sandbox) -> None:
    if (own := next(iter(shown(os.getpid()).values()), None)) is None:
        pytest.skip("this kernel has no slice of each thread's, or shows none (Linux 6.12)")
    running = sandbox.start("sweep", str(TINY), *QUIET, *ARMS, "--quiet")
    guests: list[dict[str, int]] = []
    natives: list[int] = []
    while running.poll() is None:
        for pid in sandbox.guest_pids():
            guests.append(shown(pid))
        for pid in native_pids("sysbench", running):
            natives += shown(pid).values()
        time.sleep(0.05)
    assert running.returncode == 0
    vcpus = {value for one in guests for name, value in one.items() if name.startswith("CPU ")}
    assert vcpus == {own, SLICE_NS}  # baseline's, and the tuning's
    assert {value for one in guests for name, value in one.items() if "CPU " not in name} == {own}
    assert set(natives) == {own, SLICE_NS}
    (run,) = sandbox.runs()
    assert {trial["status"] for trial in sandbox.trials(run)} == {"done"}
    assert sandbox.leftovers() == []
