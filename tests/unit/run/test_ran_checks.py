"""A command's own policy and cgroup, as they were asked and as they were read back."""

from __future__ import annotations

from typing import Any

import pytest

from labctl.base.command import Command, CommandCgroup
from labctl.base.tuning import Policy, Sched
from labctl.domain.asked import expected_workload
from labctl.run.trials.trial import not_in_force
from labctl.run.trials.window_checks import held
from tests.unit.run.test_held import told

NAME = "labctl-command-7"
ASKED = CommandCgroup(weight=50, memory_mib=64)
V1 = f"4:memory:/{NAME}\n3:cpuset:/\n1:cpu,cpuacct:/{NAME}\n0::/\n"
V2 = f"0::/{NAME}\n"
FILES = {
    "/run/labctl-cgroups/cpu/cpu.shares": {"set": "512", "found": "512"},
    "/run/labctl-cgroups/memory/memory.limit_in_bytes": {"set": "67108864", "found": "67108864"},
}


def problems(**changed: Any) -> list[str]:
    found = {"member": V1, "files": FILES, "oom_kills": 0, "cpu_stat": "", **changed}
    return [*not_in_force(ASKED, NAME, found)]


@pytest.mark.parametrize("member", [V1, V2])
def test_limits_in_force_are_no_reason(member: str) -> None:
    assert problems(member=member) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"member": V1.replace(f"memory:/{NAME}", "memory:/")}, "in the memory cgroup /, not"),
        ({"member": "0::/system.slice/runner\n"}, "in the cpu cgroup /system.slice/runner, not"),
        ({"member": ""}, "in the cpu cgroup /, not"),
        ({"member": "nothing\n1:cpu\n:::\n"}, "in the cpu cgroup :, not"),
        ({"files": dict([*FILES.items()][:1])}, "no limits of the memory controller"),
        ({"oom_kills": 2}, "2 processes were killed"),
        (
            {"files": {**FILES, "/x/cpu.shares": {"set": "512", "found": "1024"}}},
            "expected 512 in /x/cpu.shares, got 1024",
        ),
    ],
)
def test_a_limit_that_was_not_in_force_is_a_reason(changed: Any, said: str) -> None:
    assert said in problems(**changed)[0]


FIFO = Command(
    argv=("game",),
    sched=Sched(policy=Policy.FIFO, priority=1),
    cgroup=CommandCgroup(cpus=frozenset({1})),
)


def checked(thread: dict[str, Any], *, native: bool) -> list[str]:
    host: dict[str, Any] = {at: {"threads": []} for at in ("before", "after")}
    asked = [expected_workload(frozenset({0, 1}), None)] if native else []
    threads = {"before": [thread], "after": [thread]}
    return held(asked, host, threads, places_itself=False, command=FIFO)[1]


@pytest.mark.parametrize("native", [True, False])
def test_a_command_has_its_own_policy_and_cpus(native: bool) -> None:
    assert checked(told(9, "1", "fifo", 1), native=native) == []
    assert "SCHED_OTHER" in checked(told(9, "1", "other"), native=native)[0]
    assert "expected CPU 1, got 0-1" in checked(told(9, "0-1", "fifo", 1), native=native)[0]
