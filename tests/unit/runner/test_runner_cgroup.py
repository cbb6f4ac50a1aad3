"""A command's own policy and cgroup: on fake hierarchies of both versions, and on this host's."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labctl.base import runner_messages
from labctl.base.channel import RefusedError
from labctl.base.command import Command, CommandCgroup, CommandResult
from labctl.base.runner_messages import cgroup_name
from labctl.runner import cgroup
from tests.unit.runner.runners import Runner

CGROUPS = "#subsys_name\thierarchy\tnum_cgroups\tenabled\n"
V1 = (
    CGROUPS + "cpuset\t3\t1\t1\ncpu\t1\t1\t1\ncpuacct\t1\t1\t1\nmemory\t4\t1\t1\nhugetlb\t5\t1\t0\n"
)
V2 = CGROUPS + "cpuset\t0\t9\t1\ncpu\t0\t9\t1\nmemory\t0\t9\t1\npids\t0\t9\t1\n"
ASKED: Mapping[str, Any] = {
    "name": "labctl-command-7",
    "weight": 50,
    "quota_percent": 150,
    "memory": 64 << 20,
    "cpus": "0",
}


class Proc:
    """Answer for /proc as a machine of that kind would."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts
        self.read = cgroup.read_text

    def __call__(self, path: str) -> str | None:
        return self.texts.get(path) if path.startswith("/proc/") else self.read(path)


@pytest.fixture
def v1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a host of v1, with a budget for real-time policies and accounts of swap."""
    for name in ("cpu", "cpuset", "memory"):
        (tmp_path / name).mkdir()
    (tmp_path / "cpu/cpu.rt_runtime_us").write_text("950000\n")
    (tmp_path / "cpuset/cpuset.mems").write_text("0\n")
    mounts = "".join(
        f"30 29 0:2{n} / {tmp_path}/{name} rw - cgroup cgroup rw,{options}\n"
        for n, (name, options) in enumerate(
            {"cpu": "cpu,cpuacct", "cpuset": "cpuset", "memory": "memory"}.items()
        )
    )
    texts = {
        "/proc/cgroups": V1,
        "/proc/self/mountinfo": mounts,
        "/proc/self/cgroup": "4:memory:/labctl-native-7\n1:cpu,cpuacct:/\n",
    }
    monkeypatch.setattr(cgroup, "read_text", Proc(texts))
    return tmp_path


@pytest.fixture
def v2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a machine of v2 whose runner has a limit of its own, as one on a host has."""
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu memory pids\n")
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory pids\n")
    own = tmp_path / "labctl-native-7"
    own.mkdir()
    (own / "memory.max").write_text(f"{32 << 20}\n")
    texts = {
        "/proc/cgroups": V2,
        "/proc/self/mountinfo": f"30 29 0:26 / {tmp_path} rw - cgroup2 cgroup2 rw\n",
        "/proc/self/cgroup": "0::/labctl-native-7\n",
    }
    monkeypatch.setattr(cgroup, "read_text", Proc(texts))
    return tmp_path


def values(made: cgroup.Cgroup) -> dict[str, str]:
    return {path.rpartition("/")[2]: value for path, value in made.values.items()}


def test_v1_has_shares_of_a_weight_a_budget_for_fifo_and_the_nodes_of_its_root(v1: Path) -> None:
    made = cgroup.Cgroup(dict(ASKED), True)
    assert values(made) == {
        "cpu.shares": "512",
        "cpu.cfs_period_us": "100000",
        "cpu.cfs_quota_us": "150000",
        "cpu.rt_runtime_us": "950000",
        "memory.limit_in_bytes": str(64 << 20),
        "cpuset.mems": "0",
        "cpuset.cpus": "0",
    }
    assert (v1 / "cpu/labctl-command-7/cpu.shares").read_text() == "512"
    other = cgroup.Cgroup({**ASKED, "name": "labctl-command-8"}, False)
    assert "cpu.rt_runtime_us" not in values(other), "a budget is the real-time policies' alone"


def test_the_budget_of_a_group_that_was_just_removed_is_waited_for(
    v1: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, asked = cgroup.write_value, []

    def refused_at_first(path: str, value: str) -> None:
        if path.endswith("/cpu.rt_runtime_us"):
            asked.append(value)
            if len(asked) <= 3:
                raise OSError("Invalid argument")
        write(path, value)

    monkeypatch.setattr(cgroup, "write_value", refused_at_first)
    monkeypatch.setattr(cgroup, "EMPTYING_S", 60)
    cgroup.Cgroup(dict(ASKED), True)
    assert (v1 / "cpu/labctl-command-7/cpu.rt_runtime_us").read_text() == "950000"


def test_v2_has_one_group_whose_memory_is_no_more_than_its_runner_has(v2: Path) -> None:
    made = cgroup.Cgroup(dict(ASKED), True)
    assert {*made.folders.values()} == {str(v2 / "labctl-command-7")}
    assert values(made) == {
        "cpu.weight": "50",
        "cpu.max": "150000 100000",
        "memory.max": str(32 << 20),
        "cpuset.cpus": "0",
    }
    assert made.enabled == [(str(v2 / "cgroup.subtree_control"), "cpuset")]


def test_a_v2_group_for_cpus_alone_does_not_leave_the_limit_of_its_runner(v2: Path) -> None:
    asked = {"name": "labctl-command-7", "cpus": "0"}
    assert values(cgroup.Cgroup(asked, False)) == {
        "memory.max": str(32 << 20),
        "cpuset.cpus": "0",
    }


def test_without_a_quota_there_is_none(v1: Path) -> None:
    made = cgroup.Cgroup({**ASKED, "quota_percent": None}, False)
    assert values(made)["cpu.cfs_quota_us"] == "-1"


@pytest.mark.parametrize("missing", ["cpuset", "hugetlb"])
def test_a_machine_without_the_controller_says_so(
    v1: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    (v1 / "cgroup.controllers").write_text("pids\n")
    texts = {
        "/proc/cgroups": V1.replace("cpuset\t3\t1\t1\n", ""),
        "/proc/self/mountinfo": f"30 29 0:26 / {v1} rw - cgroup2 cgroup2 rw\n",
    }
    monkeypatch.setattr(cgroup, "read_text", Proc(texts))
    with pytest.raises(OSError, match=f"no cgroup controller '{missing}'"):
        cgroup.hierarchy(missing)


def test_a_controller_that_v1_does_not_have_is_found_though_the_kernel_lists_v1_s_alone(
    v2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {
        "/proc/cgroups": CGROUPS + "pids\t0\t9\t1\n",
        "/proc/self/mountinfo": f"30 29 0:26 / {v2} rw - cgroup2 cgroup2 rw\n",
    }
    monkeypatch.setattr(cgroup, "read_text", Proc(texts))
    assert cgroup.hierarchy("memory") == (2, str(v2))


def test_a_value_that_is_refused_removes_what_was_made(
    v2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: str, value: str) -> None:
        raise OSError(f"cannot set {path} to {value}: Invalid argument")

    monkeypatch.setattr(cgroup, "write_value", refused)
    with pytest.raises(OSError, match=r"cpu\.weight to 50: Invalid argument"):
        cgroup.Cgroup({"name": "labctl-command-7", "weight": 50}, False)
    assert not (v2 / "labctl-command-7").exists()


needs_cgroups = pytest.mark.skipif(
    os.geteuid() != 0 or "cpu\t" not in Path("/proc/cgroups").read_text(),
    reason="makes cgroups of this host",
)
PATH = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
LIMITS = CommandCgroup(weight=50, quota_percent=100, memory_mib=64, cpus=frozenset({0}))


def shell(script: str, **fields: Any) -> Command:
    command = Command(argv=("sh", "-c", script), environment=PATH, scratch_mib=1, user=65_534)
    return replace(command, **fields)


def ours() -> list[str]:
    # Not glob: it stumbles over what others take away meanwhile.
    walked = os.walk("/sys/fs/cgroup")
    return [f"{folder}/{cgroup_name()}" for folder, names, _ in walked if cgroup_name() in names]


def ran(runner: Runner, command: Command) -> CommandResult:
    result = runner.channel.run(command, seconds=20)
    assert result.returncode == 0, result.stderr
    return result


@needs_cgroups
def test_a_command_is_in_a_cgroup_of_its_own_with_its_limits_and_leaves_none(
    runner: Runner,
) -> None:
    command = shell("cat /proc/self/cgroup; grep Cpus_allowed_list /proc/self/status")
    result = ran(runner, replace(command, cgroup=LIMITS))
    said = result.stdout.decode()
    assert cgroup_name() in said
    assert said.splitlines()[-1].split()[1] == "0"
    told = result.counts["cgroup"]
    assert cgroup_name() in told["member"]
    assert told["files"]
    assert all(value["set"] == value["found"] for value in told["files"].values())
    assert told["oom_kills"] == 0
    assert ours() == []


@needs_cgroups
def test_a_kill_for_memory_is_told(runner: Runner) -> None:
    script = "head -c 100000000 /dev/zero | tail >/dev/null; true"
    limits = CommandCgroup(memory_mib=16)
    told = ran(runner, shell(script, cgroup=limits)).counts["cgroup"]
    assert told["oom_kills"] == 1


@needs_cgroups
def test_what_a_command_leaves_in_its_cgroup_ends_with_it(runner: Runner) -> None:
    ran(runner, shell("setsid sleep 60 >/dev/null 2>&1 & true", cgroup=LIMITS))
    assert ours() == []


@needs_cgroups
def test_a_limit_that_the_kernel_refuses_names_file_and_value(runner: Runner) -> None:
    limits = CommandCgroup(cpus=frozenset({4000}))
    with pytest.raises(RefusedError, match=r"cannot set .*cpuset\.cpus to 4000"):
        runner.channel.run(shell("true", cgroup=limits), seconds=20)
    assert ours() == []
    assert runner.process.poll() is None, signal.strsignal(runner.process.poll() or 0)


TOLD: dict[str, Any] = {
    "files": {"cpu.weight": {"set": "50", "found": "50"}},
    "member": "0::/x\n",
    "cpu_stat": "",
    "oom_kills": 0,
}


def test_what_a_runner_says_of_a_cgroup_is_text_and_a_count() -> None:
    assert runner_messages.cgroup(TOLD) == TOLD
    long = {**TOLD, "member": "x" * 200_000}
    assert len(runner_messages.cgroup(long)["member"]) == 1 << 16


@pytest.mark.parametrize(
    "told",
    [
        *(None, [], "files", {**TOLD, "files": []}, {**TOLD, "member": None}),
        *({**TOLD, "files": {"cpu.weight": "50"}}, {**TOLD, "oom_kills": True}, {"files": {}}),
        {**TOLD, "files": {"cpu.weight": {"set": "50"}}},
        {**TOLD, "files": {str(n): {"set": "", "found": ""} for n in range(6000)}},
    ],
)
def test_what_no_runner_says_is_refused(told: Any) -> None:
    with pytest.raises((ValueError, TypeError, KeyError, AttributeError)):
        runner_messages.cgroup(told)
