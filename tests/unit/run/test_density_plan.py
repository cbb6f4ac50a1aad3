"""Planning a density run: what is refused before anything starts, and how many guests at most."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from labctl.base.errors import HostError, UsageError
from labctl.base.paths import MOST_NEIGHBOURS, StatePaths
from labctl.cli.workload import asked_for
from labctl.host import guest_memory
from labctl.run.planning.density import DensityRequest, Search, limit_of, plan_density
from labctl.workloads.declarations import load_declaration
from labctl.workloads.registry import workload
from tests.unit.domain import hosts
from tests.unit.run.asked import plan_on

MIB = 1024 * 1024


@pytest.fixture(autouse=True)
def _host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with two CPUs and memory for three guests of 1024 MiB."""
    plan_on(monkeypatch, hosts.TWO_CPUS)
    available(monkeypatch, 3 * 1088 + 256)


def available(monkeypatch: pytest.MonkeyPatch, mib: int) -> None:
    monkeypatch.setattr(guest_memory, "memory_available", lambda root: mib * MIB)


def request(tmp_path: Path, name: str = "frame-loop", **fields: Any) -> DensityRequest:
    program = workload(name)
    given: dict[str, Any] = {
        "workload": asked_for(program, program.check_parameters({}), 10.0),
        "limit": limit_of("frame_p95 < 16 ms", workload("frame-loop")),
        "tunings": ("baseline", "vcpupin"),
        "blocks": 2,
        "search": Search.UP,
        "places": StatePaths(tmp_path / "state"),
        "results": tmp_path / "results",
        "seed": 7,
    }
    return DensityRequest(**{**given, **fields})


def test_memory_says_how_many_guests_are_tried(tmp_path: Path) -> None:
    plan = plan_density(request(tmp_path))
    assert (plan.most, plan.most_by, plan.needed_mib) == (3, "the host's memory", 3 * 1088)
    assert plan_density(request(tmp_path, memory_mib=512)).most == 5
    assert list(tmp_path.iterdir()) == []


def test_more_than_memory_has_is_refused_with_both_numbers(tmp_path: Path) -> None:
    with pytest.raises(HostError) as caught:
        plan_density(request(tmp_path, most=4))
    assert "4 guests of 1024 MiB: 4352 MiB needed" in caught.value.message
    assert f"the host has {3 * 1088 + 256} MiB" in caught.value.message
    assert caught.value.hint == "Use --most 3 or less, or smaller guests (--memory)."


def test_a_host_without_memory_for_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    available(monkeypatch, 1200)
    with pytest.raises(HostError, match="1 guest of 1024 MiB: 1088 MiB needed"):
        plan_density(request(tmp_path))


def test_asking_for_fewer_is_what_bounds_the_number(tmp_path: Path) -> None:
    plan = plan_density(request(tmp_path, most=2))
    assert (plan.most, plan.most_by) == (2, "--most")


def test_labctl_has_a_bound_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    available(monkeypatch, 1088 * 5000)
    plan = plan_density(request(tmp_path))
    assert (plan.most, plan.most_by) == (MOST_NEIGHBOURS, "the most guests that labctl starts")
    asked = plan_density(request(tmp_path, most=2000))
    assert (asked.most, asked.most_by) == (MOST_NEIGHBOURS, "the most guests that labctl starts")


@pytest.mark.parametrize(
    ("name", "why"),
    [("fio-random", "the data disk"), ("iperf3", "a peer")],
)
def test_a_workload_of_which_guests_would_share_something_is_refused(
    tmp_path: Path, name: str, why: str
) -> None:
    with pytest.raises(UsageError, match=f"'{name}' can't run in many guests at once.*{why}"):
        plan_density(request(tmp_path, name))


def test_a_workload_of_fixed_work_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "counter.yaml"
    path.write_text(
        "description: counts\ntrial: {kind: once}\ncommand: [seq, '5']\nprimary: last\n"
        "metrics: {last: {regex: '^(\\d+)$', which: last, unit: count, better: higher}}\n"
    )
    counter = load_declaration(path, "counter")
    one = asked_for(counter, counter.check_parameters({}), 10.0)
    with pytest.raises(UsageError, match="no common window"):
        plan_density(request(tmp_path, workload=one))


@pytest.mark.parametrize(
    ("name", "why"), [("native", "not a guest"), ("hugepages-2M", "must boot")]
)
def test_a_tuning_without_clones_is_refused(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(UsageError, match=f"'{name}' has no density: .*{why}"):
        plan_density(request(tmp_path, tunings=("baseline", name)))


def test_orders_are_balanced_and_follow_from_the_seed(tmp_path: Path) -> None:
    plan = plan_density(request(tmp_path))
    orders = [plan.order(block) for block in range(1, 5)]
    assert {order[0] for order in orders[:2]} == {"baseline", "vcpupin"}
    assert {order[0] for order in orders[2:]} == {"baseline", "vcpupin"}
    assert [plan_density(request(tmp_path)).order(block) for block in range(1, 5)] == orders


def test_the_next_guest_gets_the_next_cpu(tmp_path: Path) -> None:
    plan = plan_density(request(tmp_path))
    placed = [next(iter(pins.vcpu_cpus)) for n in range(4) for pins in plan.places.of(n).values()]
    assert placed == [1, 0, 1, 0]
