from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from labctl.base.errors import BrokenError, HostError
from labctl.host import cgroups
from labctl.host.cgroups import (
    CpuLimits,
    Hierarchy,
    Layout,
    layout_from,
    libvirt_controllers,
)
from labctl.host.settings.journal import Journal

HYBRID = """\
23 27 0:22 / /sys rw,relatime - sysfs sysfs rw
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
36 31 0:33 / /sys/fs/cgroup/devices rw,relatime - cgroup cgroup rw,devices
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
# Debian 12 with systemd 252.
UNIFIED = """\
24 29 0:22 / /sys rw,nosuid,nodev,noexec,relatime shared:7 - sysfs sysfs rw
35 24 0:30 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 \
rw,nsdelegate,memory_recursiveprot
"""
UNIFIED_CONTROLLERS = "cpuset cpu io memory hugetlb pids rdma misc\n"
JOINED = (
    "33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:15 - cgroup cgroup rw,cpu,cpuacct\n"
)


def with_rt(layout: Layout) -> Layout:
    return Layout(layout.controllers, layout.unified, rt_group_sched=True)


def test_a_hybrid_host_has_v1_controllers_and_a_unified_mount() -> None:
    layout = layout_from(HYBRID, "hugetlb\n")
    assert layout.name == "hybrid"
    assert layout.unified == Path("/sys/fs/cgroup/unified")
    assert layout.controllers["memory"] == Hierarchy(1, Path("/sys/fs/cgroup/memory"))
    assert layout.controllers["hugetlb"] == Hierarchy(2, Path("/sys/fs/cgroup/unified"))
    assert set(layout.controllers) == {"cpu", "cpuacct", "cpuset", "memory", "devices", "hugetlb"}


def test_a_unified_host_has_v2_controllers_only() -> None:
    layout = layout_from(UNIFIED, UNIFIED_CONTROLLERS)
    assert layout.name == "v2"
    assert layout.controllers["cpu"] == Hierarchy(2, Path("/sys/fs/cgroup"))


def test_controllers_that_share_a_v1_mount_are_both_found() -> None:
    controllers = layout_from(JOINED, "").controllers
    assert controllers["cpu"] == controllers["cpuacct"]


@pytest.mark.parametrize("text", ["", "garbage\n", "35 24 0:30 / /sys/fs/cgroup - \n", " - \n"])
def test_a_mountinfo_without_cgroups_has_none(text: str) -> None:
    assert layout_from(text, "").name == "none"


def test_libvirt_is_kept_out_of_cpu_groups_that_refuse_real_time_policies() -> None:
    layout = layout_from(HYBRID, "hugetlb")
    assert libvirt_controllers(with_rt(layout)) == ["cpuset", "memory", "devices"]
    assert libvirt_controllers(layout) == ["cpu", "cpuset", "memory", "devices"]


def test_libvirt_uses_what_a_unified_host_has() -> None:
    layout = layout_from(UNIFIED, UNIFIED_CONTROLLERS)
    assert libvirt_controllers(layout) == ["cpu", "cpuset", "memory", "devices"]


def test_libvirt_makes_no_groups_on_a_unified_host_whose_cpu_groups_refuse_real_time_policies() -> (
    None
):
    layout = with_rt(layout_from(UNIFIED, UNIFIED_CONTROLLERS))
    assert libvirt_controllers(layout) == []
    assert cgroups.libvirt_setting(layout) == "cgroup_controllers = []"


@pytest.mark.parametrize(
    ("version", "refuses", "enabled", "is_root", "says"),
    [
        (2, True, "cpu memory", True, "every group below the root is in one"),
        (2, True, "cpuset memory", True, None),
        (2, True, "cpuset memory", False, "labctl is in one of the host's"),
        (2, False, "cpu memory", False, None),
        (1, True, "cpu memory", True, None),
    ],
)
def test_a_unified_host_refuses_real_time_policies_where_every_group_is_a_cpu_group(
    tmp_path: Path, version: int, refuses: bool, enabled: str, is_root: bool, says: str | None
) -> None:
    (tmp_path / "sys").mkdir()
    (tmp_path / "sys/cgroup.subtree_control").write_text(f"{enabled}\n")
    if not is_root:
        (tmp_path / "sys/cgroup.type").write_text("domain\n")
    layout = Layout({"cpu": Hierarchy(version, Path("/sys"))}, Path("/sys"), refuses)
    found = cgroups.realtime_problem(layout, tmp_path)
    assert (found is None) is (says is None)
    if found is not None:
        assert (says or "") in found.message
        assert "rt_group_sched=0" in (found.hint or "")
        assert ("echo -cpu > /sys/cgroup.subtree_control" in (found.hint or "")) is is_root


def test_labctl_makes_no_cpu_group_that_makes_cpu_groups_of_all_others(
    fake_kernel: Path, tmp_path: Path
) -> None:
    (fake_kernel / "cgroup.subtree_control").write_text("memory\n")
    layout = Layout({n: Hierarchy(2, fake_kernel) for n in ("cpu", "memory")}, fake_kernel, True)
    limits = CpuLimits(weight=300)
    with (
        pytest.raises(HostError, match="would take real-time policies"),
        cgroups.group(layout, Journal(tmp_path / "j"), "neighbour-0", limits=limits),
    ):
        pytest.fail("its weight would make cpu groups of native runs")
    assert cgroups.why_no_command_cgroup(layout, ("memory",)) is None
    assert "would take" in (cgroups.why_no_command_cgroup(layout, ("cpu",)) or "")


def test_competitors_are_equal_by_cgroup_where_cgroups_allow_it() -> None:
    assert cgroups.cpu_sharing(layout_from(UNIFIED, UNIFIED_CONTROLLERS), True).by_cgroup


@pytest.mark.parametrize(
    ("autogroup", "words"),
    [(True, "autogrouping gives each session one weight"), (False, "Every thread weighs the same")],
)
def test_competitors_are_equal_by_session_where_the_kernel_refuses_cpu_groups(
    autogroup: bool, words: str
) -> None:
    sharing = cgroups.cpu_sharing(with_rt(layout_from(HYBRID, "")), autogroup)
    assert not sharing.by_cgroup
    assert words in sharing.sentence
    assert "CONFIG_RT_GROUP_SCHED" in sharing.sentence


@pytest.mark.parametrize("refuses", [True, False])
def test_a_budget_file_of_the_root_cpu_group_tells_that_it_refuses(
    tmp_path: Path, refuses: bool
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(HYBRID)
    (tmp_path / "sys/fs/cgroup/cpu").mkdir(parents=True)
    if refuses:
        (tmp_path / "sys/fs/cgroup/cpu/cpu.rt_runtime_us").write_text("950000")
    assert cgroups.detect(tmp_path).rt_group_sched is refuses


_ON = "# CONFIG_RT_GROUP_SCHED_DEFAULT_DISABLED is not set"
_OFF = "CONFIG_RT_GROUP_SCHED_DEFAULT_DISABLED=y"


@pytest.mark.parametrize(
    ("options", "command_line", "refuses"),
    [
        ("# CONFIG_RT_GROUP_SCHED is not set", "", False),
        ("# CONFIG_RT_GROUP_SCHED is not set", "rt_group_sched=1", False),
        ("CONFIG_RT_GROUP_SCHED=y", "rt_group_sched=0", True),  # before 6.16
        (f"CONFIG_RT_GROUP_SCHED=y\n{_ON}", "quiet", True),
        (f"CONFIG_RT_GROUP_SCHED=y\n{_ON}", "rt_group_sched=0", False),
        (f"CONFIG_RT_GROUP_SCHED=y\n{_ON}", "rt_group_sched=0 rt_group_sched=1", True),
        (f"CONFIG_RT_GROUP_SCHED=y\n{_ON}", "rt_group_sched=0 rt_group_sched=y", False),
        (f"CONFIG_RT_GROUP_SCHED=y\n{_OFF}", "quiet", False),
        (f"CONFIG_RT_GROUP_SCHED=y\n{_OFF}", "rt_group_sched=1", True),
    ],
)
def test_on_a_unified_host_configuration_and_command_line_tell(
    tmp_path: Path, options: str, command_line: str, refuses: bool
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(UNIFIED)
    (tmp_path / "proc/cmdline").write_text(f"{command_line}\n")
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/osrelease").write_text("6.1.0-56-amd64\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cgroup.controllers").write_text(UNIFIED_CONTROLLERS)
    (tmp_path / "boot").mkdir()
    (tmp_path / "boot/config-6.1.0-56-amd64").write_text(f"CONFIG_SMP=y\n{options}\n")
    assert cgroups.detect(tmp_path).rt_group_sched is refuses


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
    with cgroups.group(layout, journal, "native", memory_bytes=1 << 30) as group:
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
    with cgroups.group(layout, journal, "native", memory_bytes=1 << 30) as group:
        group.add(4242)
    assert (fake_kernel / "cpu/cgroup.procs").read_text() == "4242"
    assert not (fake_kernel / "cpu/labctl-native").exists()


def test_a_v2_group_is_one_folder_without_swap(
    fake_kernel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (fake_kernel / "cgroup.subtree_control").write_text("cpu memory\n")
    layout = Layout({n: Hierarchy(2, fake_kernel) for n in ("cpu", "memory")}, fake_kernel, False)
    journal = Journal(tmp_path / "journal.jsonl")
    with cgroups.group(layout, journal, "native", memory_bytes=1 << 30) as group:
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
        cgroups.group(layout, Journal(tmp_path / "j"), "native", memory_bytes=1),
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
        cgroups.oom_kill_count(text, Path("memory.oom_control"))


@contextmanager
def process_files(root: Path, cgroup: str, autogroup: str | None) -> Iterator[None]:
    folder = root / "proc/7"
    folder.mkdir(parents=True)
    (folder / "cgroup").write_text(cgroup)
    if autogroup:
        (folder / "autogroup").write_text(autogroup)
    yield


def test_placement_names_every_hierarchy_and_the_autogroup(tmp_path: Path) -> None:
    text = "9:name=systemd:/\n4:memory:/labctl-native\n1:cpu,cpuacct:/a:b\n0::/\n"
    with process_files(tmp_path, text, "/autogroup-13 nice 0\n"):
        assert cgroups.placement(7, tmp_path) == {
            "name=systemd": "/",
            "memory": "/labctl-native",
            "cpu,cpuacct": "/a:b",
            "unified": "/",
            "autogroup": "/autogroup-13 nice 0",
        }


def test_a_process_that_is_gone_has_no_placement(tmp_path: Path) -> None:
    with pytest.raises(BrokenError, match="process 7 is gone"):
        cgroups.placement(7, tmp_path)


@pytest.mark.parametrize(
    ("refuses", "has_cpu", "problem"),
    [
        (True, False, None),
        (True, True, "it is in the cpu cgroup /labctl-native and not in the root"),
        (False, False, "it is in the root cpu cgroup and not in one of its own"),
        (False, True, None),
    ],
)
def test_on_a_unified_host_the_cpu_group_is_the_nearest_that_has_the_controller(
    tmp_path: Path, refuses: bool, has_cpu: bool, problem: str | None
) -> None:
    for folder, has in (("labctl-native/inner", False), ("labctl-native", has_cpu)):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        controllers = "cpuset cpu memory\n" if has else "memory\n"
        (tmp_path / folder / "cgroup.controllers").write_text(controllers)
    (tmp_path / "cgroup.controllers").write_text(UNIFIED_CONTROLLERS)
    layout = Layout({n: Hierarchy(2, tmp_path) for n in ("cpu", "memory")}, tmp_path, refuses)
    found = cgroups.placement_problems(layout, {"unified": "/labctl-native/inner"})
    assert found == ([] if problem is None else [problem])


@pytest.mark.parametrize(
    ("path", "refuses", "problem"),
    [
        ("/", True, None),
        ("/", False, "it is in the root cpu cgroup and not in one of its own"),
        ("/machine/guest", False, None),
        ("/machine/guest", True, "it is in the cpu cgroup /machine/guest and not in the root"),
    ],
)
def test_on_a_v1_host_the_cpu_group_is_that_of_its_hierarchy(
    tmp_path: Path, path: str, refuses: bool, problem: str | None
) -> None:
    layout = v1_layout(tmp_path, rt=refuses)
    found = {"cpu,cpuacct": path, "unified": "/", "autogroup": "/autogroup-13 nice 0"}
    assert cgroups.placement_problems(layout, found) == ([] if problem is None else [problem])
    if refuses and problem is None:
        found["autogroup"] = "/autogroup-13 nice 19"
        said = cgroups.placement_problems(layout, found)
        assert said == ["its autogroup is '/autogroup-13 nice 19' and not at nice 0"]


def test_limits_put_a_group_into_a_cpu_cgroup_even_where_that_takes_no_real_time_policy(
    fake_kernel: Path, tmp_path: Path
) -> None:
    layout = v1_layout(fake_kernel, rt=True)
    (fake_kernel / "cpu/cpu.cfs_quota_us").write_text("-1")
    limits = CpuLimits(weight=50, quota_percent=150)
    with cgroups.group(layout, Journal(tmp_path / "j"), "neighbour-0", limits=limits) as group:
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
    with cgroups.group(
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
    with cgroups.group(layout, Journal(tmp_path / "j"), "neighbour-0", accounted=True) as group:
        usage = fake_kernel / "cpuacct/labctl-neighbour-0/cpuacct.usage"
        usage.write_text("1234\n")
        assert group.cpu_ns() == 1234
        usage.unlink()
        with pytest.raises(BrokenError, match=r"cpuacct\.usage cannot be read"):
            group.cpu_ns()


def test_where_nothing_accounts_a_group_does_not_tell(fake_kernel: Path, tmp_path: Path) -> None:
    layout = v1_layout(fake_kernel, rt=False)
    with cgroups.group(layout, Journal(tmp_path / "j"), "neighbour-0", accounted=True) as group:
        assert group.cpu_ns() is None


def test_limits_on_a_host_without_cpu_cgroups_are_refused(tmp_path: Path) -> None:
    nothing = Layout({}, None, False)
    with (
        pytest.raises(HostError, match="no cpu cgroups"),
        cgroups.group(nothing, Journal(tmp_path / "j"), "neighbour-0", limits=CpuLimits()),
    ):
        pytest.fail("there is nothing to set a weight in")


def test_a_command_s_group_is_in_the_journal_in_each_hierarchy_that_it_needs(
    fake_kernel: Path, tmp_path: Path
) -> None:
    layout = v1_layout(fake_kernel, rt=True)
    journal = Journal(tmp_path / "journal.jsonl")
    with cgroups.command_cgroup(layout, journal, "labctl-command-7", ("cpu", "memory")):
        folders = {fake_kernel / f"{name}/labctl-command-7" for name in ("cpu", "memory")}
        assert all(folder.is_dir() for folder in folders)
        assert {Path(entry.arguments["path"]) for entry in journal.pending()} == folders
    assert not list(fake_kernel.glob("*/labctl-*"))
    with (
        pytest.raises(HostError, match="no cgroup controller 'cpuset'"),
        cgroups.command_cgroup(layout, journal, "labctl-command-7", ("cpuset",)),
    ):
        pytest.fail("there is no such hierarchy")


def test_a_command_s_group_needs_no_controller_that_v2_lacks(
    fake_kernel: Path, tmp_path: Path
) -> None:
    (fake_kernel / "cgroup.subtree_control").write_text("cpu cpuset\n")
    layout = Layout({n: Hierarchy(2, fake_kernel) for n in ("cpu", "cpuset")}, fake_kernel, False)
    journal = Journal(tmp_path / "journal.jsonl")
    with cgroups.command_cgroup(layout, journal, "labctl-command-7", ("cpuset",)):
        assert (fake_kernel / "labctl-command-7").is_dir()
    with cgroups.command_cgroup(layout, journal, "labctl-command-7", ()):
        assert not (fake_kernel / "labctl-command-7").exists()


def test_a_command_s_group_of_v2_has_memory_s_controller_as_well(
    fake_kernel: Path, tmp_path: Path
) -> None:
    (fake_kernel / "cgroup.subtree_control").write_text("cpu cpuset memory\n")
    names = ("cpu", "cpuset", "memory")
    layout = Layout({n: Hierarchy(2, fake_kernel) for n in names}, fake_kernel, False)
    journal = Journal(tmp_path / "journal.jsonl")
    with cgroups.command_cgroup(layout, journal, "labctl-command-7", ("cpuset",)):
        assert [Path(entry.arguments["path"]).name for entry in journal.pending()] == [
            "labctl-command-7"
        ]
