from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from labctl.base.errors import HostError
from labctl.host.preflight import check, memory_available, preflight

GIB = 1 << 30


class Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with 2 CPUs, 2 GiB of memory available, 10 GiB of disk, everything installed."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    2097152 kB\n")
    (tmp_path / "proc/self").mkdir()
    (tmp_path / "proc/self/mountinfo").write_text("")
    (tmp_path / "dev/shm").mkdir(parents=True)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10 * GIB, 0, 10 * GIB))
    monkeypatch.setattr(shutil, "which", lambda tool: f"/usr/bin/{tool}")
    return tmp_path


@pytest.fixture
def problems(host: Path) -> Callable[..., list[HostError]]:
    def ask(
        disk: int = GIB, memory: int = GIB, vcpus: int = 1, needs_root: tuple[str, ...] = ()
    ) -> list[HostError]:
        return preflight(
            state_folder=host / "not/made/yet",
            disk_bytes=disk,
            memory_bytes=memory,
            vcpus=vcpus,
            needs_root=needs_root,
            root=host,
        )

    return ask


Ask = Callable[..., list[HostError]]


def test_a_host_that_has_everything_has_no_problems(problems: Ask) -> None:
    assert problems() == []
    check([])


def test_memory_that_is_not_there_is_told_with_both_sizes(problems: Ask) -> None:
    [problem] = problems(memory=4 * GIB)
    assert "2048 MiB of memory available, but the sweep needs 4096 MiB" in problem.message
    assert "less memory" in (problem.hint or "")


def test_a_guest_may_not_have_the_very_last_of_the_memory(problems: Ask) -> None:
    assert len(problems(memory=2 * GIB)) == 1


def test_a_full_disk_is_told_for_the_folder_that_exists(problems: Ask, host: Path) -> None:
    [problem] = problems(disk=11 * GIB)
    assert problem.message.startswith(f"{host} has 10240 MiB free, but the sweep needs 11264 MiB")
    assert "--state-dir" in (problem.hint or "")


def test_more_vcpus_than_cpus_are_refused(problems: Ask) -> None:
    [problem] = problems(vcpus=3)
    assert problem.message == "the guest has 3 vCPUs, but labctl may use only 2 CPUs of this host"


def test_a_tool_that_is_not_installed_is_named(
    problems: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool.startswith("qemu-s") else tool)
    assert [p.message for p in problems()] == ["'qemu-system-x86_64' is not installed"]


def test_without_root_nothing_is_started(problems: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    (problem,) = problems(needs_root=("'a' turns a setting", "every guest needs cgroups"))
    assert problem.message == "this needs root: 'a' turns a setting; every guest needs cgroups"
    assert "Without root, '--plan-only'" in (problem.hint or "")
    assert problems() == []


def test_missing_shared_memory_is_told(problems: Ask, host: Path) -> None:
    (host / "dev/shm").rmdir()
    assert "dev/shm" in problems()[0].message


def test_a_host_on_which_no_run_could_have_its_policies_is_refused(
    problems: Ask, host: Path
) -> None:
    mount = host / "sys/fs/cgroup"
    mount.mkdir(parents=True)
    (mount / "cgroup.controllers").write_text("cpu memory\n")
    (mount / "cgroup.subtree_control").write_text("memory\n")
    (host / "proc/self/mountinfo").write_text(
        "35 24 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    )
    (host / "proc/sys/kernel").mkdir(parents=True)
    (host / "proc/sys/kernel/osrelease").write_text("6.18.0\n")
    (host / "boot").mkdir()
    (host / "boot/config-6.18.0").write_text("CONFIG_RT_GROUP_SCHED=y\n")
    assert problems() == []
    (mount / "cgroup.subtree_control").write_text("cpu memory\n")
    [problem] = problems()
    assert "every group below the root has one" in problem.message


def test_several_problems_are_told_at_once(problems: Ask) -> None:
    with pytest.raises(HostError) as caught:
        check(problems(memory=4 * GIB, vcpus=3))
    assert "3 vCPUs" in caught.value.message
    assert "4096 MiB" in caught.value.message


def test_one_problem_is_raised_as_it_is() -> None:
    problem = HostError("no", hint="do")
    with pytest.raises(HostError) as caught:
        check([problem])
    assert caught.value is problem


def test_a_kernel_that_does_not_tell_what_is_available_is_no_problem(
    problems: Ask, host: Path
) -> None:
    (host / "proc/meminfo").write_text("MemTotal: 9 kB\n")
    assert memory_available(host) is None
    assert problems() == []


def test_only_a_sweep_that_sends_packets_needs_a_tap_device(host: Path) -> None:
    asked = {"state_folder": host, "disk_bytes": GIB, "memory_bytes": GIB, "vcpus": 1}
    assert preflight(**asked, root=host) == []
    [problem] = preflight(**asked, root=host, has_link=True)
    assert "/dev/net/tun" in problem.message
    (host / "dev/net").mkdir()
    (host / "dev/net/tun").touch()
    assert preflight(**asked, root=host, has_link=True) == []
