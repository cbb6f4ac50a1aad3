"""A tuning that isolates CPUs is planned only where nothing else has to run on them."""

from __future__ import annotations

from pathlib import Path

import pytest

from labctl.base.errors import HostError, UsageError
from labctl.host.cgroups import Hierarchy, Layout
from labctl.run.planning import requirements
from labctl.run.planning.plan import plan_sweep
from labctl.study.load_study import Overrides
from tests.unit.domain import hosts
from tests.unit.run.asked import plan_on, request
from tests.unit.run.test_density_plan import plan_density
from tests.unit.run.test_density_plan import request as density_request

NAME = "cpu-partition-isolated"


def layout(version: int) -> Layout:
    folder = Path("/sys/fs/cgroup")
    return Layout({"cpuset": Hierarchy(version, folder)}, folder, rt_group_sched=False)


@pytest.fixture(autouse=True)
def _host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with cgroup v2, Linux 6.12 and two CPUs."""
    plan_on(monkeypatch, hosts.TWO_CPUS)
    monkeypatch.setattr(requirements.cgroups, "detect", lambda: layout(2))
    monkeypatch.setitem(requirements._VERSIONS, "kernel", lambda: "6.12.0")  # type: ignore[index]


def planned(tmp_path: Path, *conditions: str, vcpus: int = 1) -> dict[str, str]:
    """What is left out, with the reason."""
    overrides = Overrides(tunings=(NAME,), conditions=conditions, vcpus=vcpus)
    plan = plan_sweep(request(tmp_path, overrides=overrides)).plan
    assert NAME in plan.tunings
    return {name: str(why) for name, why in plan.skipped.items()}


def test_beside_no_neighbours_it_is_planned(tmp_path: Path) -> None:
    assert planned(tmp_path, "quiet") == {}


def test_a_condition_with_neighbours_on_its_cpus_is_refused(tmp_path: Path) -> None:
    said = (
        f"'{NAME}' cannot be measured: the condition 'neighbour' has neighbours on CPU 1, which "
        "the tuning isolates for the vCPUs"
    )
    with pytest.raises(UsageError, match=said) as caught:
        planned(tmp_path, "quiet", "neighbour")
    assert "--condition quiet" in (caught.value.hint or "")


def test_a_study_leaves_it_out_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = Path("benchmarks/pinning.yaml").read_text().replace("  - vcpupin\n", f"  - {NAME}\n", 1)
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks/mine.yaml").write_text(text.replace("vcpupin:", f"{NAME}:", 1))
    monkeypatch.setenv("LABCTL_LAB", str(tmp_path))
    plan = plan_sweep(request(tmp_path, study="mine", quick=False)).plan
    assert "neighbours on CPU 1" in plan.skipped[NAME]


def test_an_emulator_that_shares_a_vcpu_s_cpu_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="the emulator or an iothread has CPU 0 as well"):
        planned(tmp_path, "quiet", vcpus=2)


def test_cgroup_v1_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements.cgroups, "detect", lambda: layout(1))
    with pytest.raises(HostError, match="the cpuset controller of cgroup v2, and cgroup v1 has it"):
        planned(tmp_path, "quiet")


def test_it_has_no_density(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"'{NAME}' has no density: its partition leaves"):
        plan_density(density_request(tmp_path, tunings=("baseline", NAME)))
