"""Groups of labctl's own have what was asked for, and are gone afterwards."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from labctl.base.errors import BrokenError, HostError
from labctl.host import cgroups, own_cgroups
from labctl.host.cgroups import Hierarchy, Layout
from labctl.host.own_cgroups import CpuLimits
from labctl.host.settings.journal import Journal


def test_labctl_makes_no_cpu_group_that_makes_cpu_groups_of_all_others(
    fake_kernel: Path, tmp_path: Path
) -> None:
    (fake_kernel / "cgroup.subtree_control").write_text("memory\n")
    layout = Layout({n: Hierarchy(2, fake_kernel) for n in ("cpu", "memory")}, fake_kernel, True)
    limits = CpuLimits(weight=300)
    with (
        pytest.raises(HostError, match="would take real-time policies"),
        own_cgroups.group(layout, Journal(tmp_path / "j"), "neighbour-0", limits=limits),
    ):
        pytest.fail("its weight would make cpu groups of native runs")
    assert own_cgroups.why_no_command_cgroup(layout, ("memory",)) is None
    assert "would take" in (own_cgroups.why_no_command_cgroup(layout, ("cpu",)) or "")


@pytest.fixture
def fake_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose rmdir, as cgroupfs's does, takes the control files with it."""
    real_rmdir = os.rmdir

    def rmdir(path: str) -> None:
        for file in Path(path).iterdir():
            file.unlink()
        real_rmdir(path)

    monkeypatch.setattr("labctl.host.settings.tunables.os.rmdir", rmdir)
    monkeypatch.setattr("labctl.host.settings.tunables._kill", lambda pid: None)
    folder = tmp_path / "cgroup"
    folder.mkdir()
    return folder


def v1_layout(folder: Path, *, rt: bool) -> Layout:
    for name in ("cpu", "memory"):
        (folder / name).mkdir()
    controllers = {name: Hierarchy(1, folder / name) for name in ("cpu", "memory")}
    return Layout(controllers, None, rt)


def test_a_v1_group_has_its_limit_and_weight_and_is_gone_afterwards(
    fake_kernel: Path, tmp_path: Path
) -> None:
    layout = v1_layout(fake_kernel, rt=False)
    journal = Journal(tmp_path / "journal.jsonl")
    memory = fake_kernel / "memory/labctl-native"
    with own_cgroups.group(layout, journal, "native", memory_bytes=1 << 30) as group:
        assert (memory / "memory.limit_in_bytes").read_text() == str(1 << 30)
        assert (fake_kernel / "cpu/labctl-native/cpu.shares").read_text() == "1024"
        assert len(journal.pending()) == 2
        group.add(4242)
        assert (memory / "cgroup.procs").read_text() == "4242"
        assert (fake_kernel / "cpu/labctl-native/cgroup.procs").read_text() == "4242"
        (memory / "memory.oom_control").write_text("under_oom 0\noom_kill 3\n")
        assert group.oom_kills() == 3
    assert not list(fake_kernel.glob("*/labctl-*"))
    assert journal.pending() == []


def test_a_group_leaves_its_members_in_the_root_cpu_group_that_allows_real_time_policies(
    fake_kernel: Path, tmp_path: Path
) -> None:
    layout = v1_layout(fake_kernel, rt=True)
    journal = Journal(tmp_path / "journal.jsonl")
    with own_cgroups.group(layout, journal, "native", memory_bytes=1 << 30) as group:
        group.add(4242)
    assert (fake_kernel / "cpu/cgroup.procs").read_text() == "4242"
    assert not (fake_kernel / "cpu/labctl-native").exists()


def test_a_v2_group_is_one_folder_without_swap(
    fake_kernel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (fake_kernel / "cgroup.subtree_control").write_text("cpu memory\n")
    layout = Layout({n: Hierarchy(2, fake_kernel) for n in ("cpu", "memory")}, fake_kernel, False)
    journal = Journal(tmp_path / "journal.jsonl")
    with own_cgroups.group(layout, journal, "native", memory_bytes=1 << 30) as group:
        folder = fake_kernel / "labctl-native"
        assert set(group.folders.values()) == {folder}
        assert (folder / "memory.max").read_text() == str(1 << 30)
        assert (folder / "cpu.weight").read_text() == "100"
        (folder / "memory.events").write_text("low 0\noom 0\noom_kill 0\noom_group_kill 7\n")
        assert group.oom_kills() == 0
    assert not folder.exists()


def test_a_host_without_memory_cgroups_is_refused(tmp_path: Path) -> None:
    layout = Layout({}, None, False)
    with (
        pytest.raises(HostError, match="no memory cgroups"),
        own_cgroups.group(layout, Journal(tmp_path / "j"), "native", memory_bytes=1),
    ):
        pytest.fail("there is nothing to limit memory with")


def test_missing_controllers_are_enabled_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cgroup.subtree_control"
    path.write_text("pids\n")

    def kernel_write(self: object, value: str) -> None:
        present = set(path.read_text().split())
        change = present.add if value[0] == "+" else present.discard
        change(value[1:])
        path.write_text(" ".join(present))

    monkeypatch.setattr("labctl.host.settings.tunables.FileValue.write", kernel_write)
    layout = Layout({n: Hierarchy(2, tmp_path) for n in ("cpu", "memory")}, tmp_path, False)
    with cgroups.controllers_enabled(layout, Journal(tmp_path / "journal")):
        assert set(path.read_text().split()) == {"cpu", "memory", "pids"}
    assert path.read_text().split() == ["pids"]


@pytest.mark.parametrize("text", ["", "oom_kill_disable 0\nunder_oom 0\n", "oom_kill many\n"])
def test_a_kernel_that_counts_no_kills_is_not_taken_for_none(text: str) -> None:
    with pytest.raises(BrokenError, match="oom_kill"):
        own_cgroups.oom_kill_count(text, Path("memory.oom_control"))


def test_limits_put_a_group_into_a_cpu_cgroup_even_where_that_takes_no_real_time_policy(
    fake_kernel: Path, tmp_path: Path
) -> None:
    layout = v1_layout(fake_kernel, rt=True)
    (fake_kernel / "cpu/cpu.cfs_quota_us").write_text("-1")
    limits = CpuLimits(weight=50, quota_percent=150)
    with own_cgroups.group(layout, Journal(tmp_path / "j"), "neighbour-0", limits=limits) as group:
        folder = fake_kernel / "cpu/labctl-neighbour-0"
        assert (folder / "cpu.shares").read_text() == "512"
        assert (folder / "cpu.cfs_period_us").read_text() == "100000"
        assert (folder / "cpu.cfs_quota_us").read_text() == "150000"
        group.add(4242)
        assert (folder / "cgroup.procs").read_text() == "4242"
    assert (fake_kernel / "cpu/cgroup.procs").exists() is False
    assert not folder.exists()


def test_a_v2_group_has_its_weight_and_its_quota(fake_kernel: Path, tmp_path: Path) -> None:
    (fake_kernel / "cgroup.subtree_control").write_text("cpu memory\n")
    layout = Layout({n: Hierarchy(2, fake_kernel) for n in ("cpu", "memory")}, fake_kernel, False)
    limits = CpuLimits(weight=300, quota_percent=50)
    with own_cgroups.group(
        layout, Journal(tmp_path / "j"), "neighbour-0", limits=limits, accounted=True
    ) as group:
        folder = fake_kernel / "labctl-neighbour-0"
        assert (folder / "cpu.weight").read_text() == "300"
        assert (folder / "cpu.max").read_text() == "50000 100000"
        (folder / "cpu.stat").write_text("usage_usec 1500\nuser_usec 1000\n")
        assert group.cpu_ns() == 1_500_000


def test_a_v1_group_tells_what_it_used_by_the_accounting_controller(
    fake_kernel: Path, tmp_path: Path
) -> None:
    layout = v1_layout(fake_kernel, rt=True)
    (fake_kernel / "cpuacct").mkdir()
    accounting = {"cpuacct": Hierarchy(1, fake_kernel / "cpuacct")}
    layout = Layout({**layout.controllers, **accounting}, None, True)
    with own_cgroups.group(layout, Journal(tmp_path / "j"), "neighbour-0", accounted=True) as group:
        usage = fake_kernel / "cpuacct/labctl-neighbour-0/cpuacct.usage"
        usage.write_text("1234\n")
        assert group.cpu_ns() == 1234
        usage.unlink()
        with pytest.raises(BrokenError, match=r"cpuacct\.usage cannot be read"):
            group.cpu_ns()


def test_where_nothing_accounts_a_group_does_not_tell(fake_kernel: Path, tmp_path: Path) -> None:
    layout = v1_layout(fake_kernel, rt=False)
    with own_cgroups.group(layout, Journal(tmp_path / "j"), "neighbour-0", accounted=True) as group:
        assert group.cpu_ns() is None


def test_limits_on_a_host_without_cpu_cgroups_are_refused(tmp_path: Path) -> None:
    nothing = Layout({}, None, False)
    with (
        pytest.raises(HostError, match="no cpu cgroups"),
        own_cgroups.group(nothing, Journal(tmp_path / "j"), "neighbour-0", limits=CpuLimits()),
    ):
        pytest.fail("there is nothing to set a weight in")


def test_a_command_s_group_is_in_the_journal_in_each_hierarchy_that_it_needs(
    fake_kernel: Path, tmp_path: Path
) -> None:
    layout = v1_layout(fake_kernel, rt=True)
    journal = Journal(tmp_path / "journal.jsonl")
    with own_cgroups.command_cgroup(layout, journal, "labctl-command-7", ("cpu", "memory")):
        folders = {fake_kernel / f"{name}/labctl-command-7" for name in ("cpu", "memory")}
        assert all(folder.is_dir() for folder in folders)
        assert {Path(entry.arguments["path"]) for entry in journal.pending()} == folders
    assert not list(fake_kernel.glob("*/labctl-*"))
    with (
        pytest.raises(HostError, match="no cgroup controller 'cpuset'"),
        own_cgroups.command_cgroup(layout, journal, "labctl-command-7", ("cpuset",)),
    ):
        pytest.fail("there is no such hierarchy")


def test_a_command_s_group_needs_no_controller_that_v2_lacks(
    fake_kernel: Path, tmp_path: Path
) -> None:
    (fake_kernel / "cgroup.subtree_control").write_text("cpu cpuset\n")
    layout = Layout({n: Hierarchy(2, fake_kernel) for n in ("cpu", "cpuset")}, fake_kernel, False)
    journal = Journal(tmp_path / "journal.jsonl")
    with own_cgroups.command_cgroup(layout, journal, "labctl-command-7", ("cpuset",)):
        assert (fake_kernel / "labctl-command-7").is_dir()
    with own_cgroups.command_cgroup(layout, journal, "labctl-command-7", ()):
        assert not (fake_kernel / "labctl-command-7").exists()


def test_a_command_s_group_of_v2_has_memory_s_controller_as_well(
    fake_kernel: Path, tmp_path: Path
) -> None:
    (fake_kernel / "cgroup.subtree_control").write_text("cpu cpuset memory\n")
    names = ("cpu", "cpuset", "memory")
    layout = Layout({n: Hierarchy(2, fake_kernel) for n in names}, fake_kernel, False)
    journal = Journal(tmp_path / "journal.jsonl")
    with own_cgroups.command_cgroup(layout, journal, "labctl-command-7", ("cpuset",)):
        assert [Path(entry.arguments["path"]).name for entry in journal.pending()] == [
            "labctl-command-7"
        ]
