"""Workloads that need a tracer of the kernel: left out beforehand, or an error when asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from labctl.base.errors import HostError
from labctl.base.tuning import Kind
from labctl.guest.images import Image
from labctl.guest.recipe import load_recipe
from labctl.host.cgroups import Hierarchy, Layout
from labctl.run.planning import requirements
from labctl.run.planning.plan import plan_sweep
from labctl.run.planning.requirements import Kernels, lacking
from labctl.study.load_study import Overrides, load_study
from labctl.study.make_plan import extend
from labctl.study.plan import Plan
from labctl.workloads.registry import checkers
from tests.unit.domain import hosts
from tests.unit.records import plan_from_file
from tests.unit.run.asked import plan_on, request

STUDY = """\
title: Who is late?
roles: {native: native, baseline: baseline}
tunings: [native, baseline, pinned]
workloads:
  timer: {program: timerlat, duration_s: 1, primary: latency_p95, margin_percent: 10}
  cpu: {program: sysbench-cpu, duration_s: 1, primary: events_per_s, margin_percent: 5}
conditions: [quiet]
blocks: 2
blocks_per_boot: 2
guest: {image: debian-13, memory_mib: 512}
limits: {attempts: 3, other_cpu: 0.1, warmup_cap_s: 30}
exercises: {pinned: [timer, cpu]}
"""

Planning = Callable[..., Plan]


@pytest.fixture
def study(tmp_path: Path) -> str:
    path = tmp_path / "late.yaml"
    path.write_text(STUDY)
    return str(path)


def image_with(folder: Path, config: str) -> Image:
    boot = folder / "image/tree/boot"
    boot.mkdir(parents=True)
    (boot / "config-6.1.0").write_text(config)
    return Image(folder / "image", {})


@pytest.fixture
def planned(tmp_path: Path, study: str, monkeypatch: pytest.MonkeyPatch) -> Planning:
    """A plan for a host and an image whose kernels have the tracer, or not."""
    plan_on(monkeypatch, hosts.TWO_CPUS)

    def make(native: bool | None, guest: bool | None, **overrides: object) -> Plan:
        config = "CONFIG_TIMERLAT_TRACER=y\n" if guest else "# nothing\n"
        image = None if guest is None else image_with(tmp_path, config)
        monkeypatch.setattr(requirements, "has_tracer", lambda tracer: native)
        monkeypatch.setattr(requirements, "find", lambda recipe, places: image)
        asked = request(tmp_path, study=study, quick=False, overrides=Overrides(**overrides))  # type: ignore[arg-type]
        found = plan_sweep(asked)
        assert found.hangs_on_image == (("timer",) if guest is None else ())
        return found.plan

    return make


def cells(plan: Plan) -> set[tuple[str, str]]:
    return {(trial.cell["tuning"], trial.cell["workload"]) for trial in plan.trials}


def test_kernels_that_have_the_tracer_run_everything(planned: Planning) -> None:
    plan = planned(native=True, guest=True)
    assert len(cells(plan)) == 6
    assert "skipped_workloads" not in plan.to_json()


def test_a_side_that_lacks_it_is_left_out_and_the_other_is_measured(planned: Planning) -> None:
    plan = planned(native=False, guest=True)
    assert cells(plan) == {
        *(("native", "cpu"), ("baseline", "cpu"), ("pinned", "cpu")),
        *(("baseline", "timer"), ("pinned", "timer")),
    }
    why = plan.skipped_workloads["timer"]
    assert set(why) == {"native"}
    assert "CONFIG_TIMERLAT_TRACER" in why["native"]
    assert [trial.number for trial in plan.trials] == list(range(1, 11))


def test_what_no_side_can_have_is_out_of_the_study(planned: Planning) -> None:
    plan = planned(native=False, guest=False)
    assert set(plan.workloads) == {"cpu"}
    assert plan.tunings["pinned"].exercised_by == ("cpu",)
    assert set(plan.skipped_workloads["timer"]) == {"guest", "native"}
    assert "the image 'debian-13'" in plan.skipped_workloads["timer"]["guest"]


def test_asked_for_by_name_that_is_an_error_with_the_remedies(planned: Planning) -> None:
    with pytest.raises(HostError, match="workload 'timer' can't run here") as caught:
        planned(native=False, guest=False, workloads=("timer",))
    assert "debian-13-rt" in str(caught.value.hint)
    assert "Boot the host" in str(caught.value.hint)


def test_asked_for_by_name_one_side_is_enough(planned: Planning) -> None:
    plan = planned(native=False, guest=True, workloads=("timer",))
    assert cells(plan) == {("baseline", "timer"), ("pinned", "timer")}


def test_a_kernel_of_which_nothing_is_known_is_left_to_the_trial(planned: Planning) -> None:
    assert len(cells(planned(native=None, guest=None))) == 6


def test_a_plan_keeps_what_it_left_out_and_so_do_its_later_blocks(planned: Planning) -> None:
    plan = planned(native=False, guest=True)
    again = plan_from_file(json.loads(json.dumps(plan.to_json())))
    assert again == plan
    assert cells(extend(again, 4)) == cells(plan)


def test_of_a_domain_of_ones_own_only_its_guest_can_tell(tmp_path: Path, study: str) -> None:
    own = Kernels(
        recipe=load_recipe("debian-13"), image=image_with(tmp_path, ""), is_own_domain=True
    )
    asked = load_study(study, programs=checkers())
    assert lacking(asked, {Kind.GUEST}, own) == {}
    assert not own.guests_are_unknown


def test_a_competitor_whose_congestion_control_the_host_lacks_is_left_out_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requirements, "has_congestion_control", lambda name: name != "bbr")
    study = load_study("stream-congestion", programs=checkers())
    kernels = Kernels(recipe=load_recipe("debian-13"), image=None)
    found = lacking(study, {Kind.NATIVE, Kind.GUEST}, kernels)
    assert found
    assert all("competitor=bbr" in name for name in found)
    assert len(found) == sum("competitor=bbr" in name for name in study.workloads)
    for sides in found.values():
        assert {*sides} == {Kind.NATIVE, Kind.GUEST}
        assert all("congestion control bbr" in unmet.text for unmet in sides.values())


GAME = """\
title: Is it smooth?
workloads:
  frames: {program: frame-loop, duration_s: 7, primary: frame_p95, margin_percent: 5}
tunings: [native, baseline]
roles: {native: native, baseline: baseline}
factors:
  isolation: {levels: [none, cgroup]}
  scheduler: {levels: [other, fifo]}
conditions: [quiet]
blocks: 2
guest: {image: debian-13, memory_mib: 512}
"""


@pytest.mark.parametrize(
    ("controllers", "left_out", "why"),
    [
        ({"cpu": 1, "memory": 1, "cpuset": 1}, [], ""),
        ({"cpu": 1, "cpuset": 1}, ["other", "fifo"], "no cgroup controller 'memory'"),
        ({"cpu": 2, "memory": 2, "cpuset": 2}, ["other", "fifo"], "would take real-time policies"),
    ],
)
def test_a_cgroup_that_this_host_cannot_make_leaves_its_native_cells_out(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    controllers: dict[str, int],
    left_out: list[str],
    why: str,
) -> None:
    hierarchies = {name: Hierarchy(version, tmp_path) for name, version in controllers.items()}
    layout = Layout(hierarchies, None, rt_group_sched=True)
    monkeypatch.setattr("labctl.host.cgroups.detect", lambda: layout)
    path = tmp_path / "game.yaml"
    path.write_text(GAME)
    study = load_study(str(path), programs=checkers())
    kernels = Kernels(recipe=load_recipe("debian-13"), image=None)
    found = lacking(study, {Kind.NATIVE, Kind.GUEST}, kernels)
    assert sorted(found) == sorted(
        f"frames[isolation=cgroup,scheduler={name}]" for name in left_out
    )
    for reasons in found.values():
        assert why in reasons[Kind.NATIVE].text
        assert Kind.GUEST not in reasons
