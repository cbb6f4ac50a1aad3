"""CPU weights of guests and commands, by cgroups and by autogroups."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from labctl.base.errors import BrokenError
from labctl.host import cpu_weight
from labctl.host.cgroups import Hierarchy, Layout
from labctl.host.own_cgroups import Cgroup, CpuLimits

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="raising a weight takes root")

V1 = Layout({"cpu": Hierarchy(1, Path("/cpu"))}, None, rt_group_sched=False)
V2 = Layout({"cpu": Hierarchy(2, Path("/unified"))}, Path("/unified"), rt_group_sched=False)
SESSIONS = Layout({"cpu": Hierarchy(1, Path("/cpu"))}, None, rt_group_sched=True)


@pytest.mark.parametrize(
    ("weight", "nice"), [(None, 0), (100, 0), (400, -6), (25, 6), (10000, -20), (1, 19), (125, -1)]
)
def test_an_autogroups_nice_value_is_the_nearest_to_a_weight(weight: int | None, nice: int) -> None:
    assert cpu_weight.autogroup_nice(weight) == nice


@pytest.mark.parametrize(("layout", "shares"), [(V1, 4096), (V2, 400), (SESSIONS, None)])
def test_libvirts_shares_are_the_number_of_the_hierarchys_own_file(
    layout: Layout, shares: int | None
) -> None:
    assert cpu_weight.libvirt_shares(layout, 400) == shares


def test_only_cgroups_are_given_limits() -> None:
    assert cpu_weight.group_limits(V2, 25) == CpuLimits(weight=25)
    assert cpu_weight.group_limits(V2, None) is None
    assert cpu_weight.group_limits(SESSIONS, 25) is None


@pytest.mark.parametrize(
    ("layout", "autogroups", "host", "has"),
    [
        (V1, False, {}, True),
        (SESSIONS, True, {}, True),
        (SESSIONS, False, {}, False),
        (SESSIONS, True, {"sched-autogroup": "0"}, False),
        (V2, True, {"sched-autogroup": "0"}, True),
    ],
)
def test_a_host_without_groups_and_autogroups_has_no_weights(
    layout: Layout, autogroups: bool, host: dict[str, str], has: bool
) -> None:
    why = cpu_weight.why_no_weight(layout, autogroups, host)
    assert (why is None) is has


def test_a_groups_weight_is_read_back(tmp_path: Path) -> None:
    group = Cgroup({"cpu": tmp_path}, None, None)
    assert cpu_weight.group_problems(SESSIONS, group, 400) == []
    assert cpu_weight.group_problems(V2, group, 400) == [
        f"{tmp_path}/cpu.weight: expected 400, got No such file or directory"
    ]
    (tmp_path / "cpu.weight").write_text("100\n")
    assert cpu_weight.group_problems(V2, group, 400) == [
        f"{tmp_path}/cpu.weight: expected 400, got 100"
    ]
    (tmp_path / "cpu.weight").write_text("400\n")
    assert cpu_weight.group_problems(V2, group, 400) == []


@pytest.fixture
def process() -> Iterator[int]:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as sleeping:
        yield sleeping.pid
        sleeping.kill()


@needs_root
def test_a_session_weighs_what_was_asked_and_a_difference_is_told(process: int) -> None:
    shown = Path(f"/proc/{process}/autogroup")
    if not shown.exists():
        pytest.skip("this kernel has no autogroups")
    before, own = shown.read_text(), Path("/proc/self/autogroup").read_text()
    cpu_weight.weigh_session(V2, process, 400)
    assert shown.read_text() == before  # its cgroup weighs there
    cpu_weight.weigh_session(SESSIONS, process, 400)
    assert shown.read_text().endswith(" nice -6\n")
    assert Path("/proc/self/autogroup").read_text() == own
    (said,) = cpu_weight.session_problems(SESSIONS, process, None)
    assert said.endswith("nice -6', not at nice 0")
    assert cpu_weight.session_problems(SESSIONS, process, 400) == []


def test_a_session_that_is_gone_is_an_error() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    with pytest.raises(BrokenError, match="can't have the nice value 6: No such file"):
        cpu_weight.weigh_session(SESSIONS, gone.pid, 25)
