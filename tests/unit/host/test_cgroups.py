from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from labctl.base.errors import BrokenError
from labctl.host import cgroups
from labctl.host.cgroups import (
    Hierarchy,
    Layout,
    layout_from,
    libvirt_controllers,
)

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
        (2, True, "cpu memory", True, "every group below the root has one"),
        (2, True, "cpuset memory", True, None),
        (2, True, "cpuset memory", False, "labctl runs in such a cgroup"),
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


def test_competitors_are_equal_by_cgroup_where_cgroups_allow_it() -> None:
    assert cgroups.cpu_sharing(layout_from(UNIFIED, UNIFIED_CONTROLLERS), True).by_cgroup


@pytest.mark.parametrize(
    ("autogroup", "words"),
    [
        (True, "autogrouping gives sessions equal weights"),
        (False, "All threads have the same weight"),
    ],
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
        (True, True, "it is in the cpu cgroup /labctl-native, not in the root"),
        (False, False, "it is in the root cpu cgroup, not in its own"),
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
        ("/", False, "it is in the root cpu cgroup, not in its own"),
        ("/machine/guest", False, None),
        ("/machine/guest", True, "it is in the cpu cgroup /machine/guest, not in the root"),
    ],
)
def test_on_a_v1_host_the_cpu_group_is_that_of_its_hierarchy(
    tmp_path: Path, path: str, refuses: bool, problem: str | None
) -> None:
    layout = Layout({"cpu": Hierarchy(1, tmp_path)}, None, refuses)
    found = {"cpu,cpuacct": path, "unified": "/", "autogroup": "/autogroup-13 nice 0"}
    assert cgroups.placement_problems(layout, found) == ([] if problem is None else [problem])
    if refuses and problem is None:
        found["autogroup"] = "/autogroup-13 nice 19"
        said = cgroups.placement_problems(layout, found)
        assert said == ["its autogroup is '/autogroup-13 nice 19', not at nice 0"]
