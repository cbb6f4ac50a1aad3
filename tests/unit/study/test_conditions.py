"""Conditions are files, or parts of a study; what is wrong in one is placed in its file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from labctl.base.errors import HostError, UsageError
from labctl.base.tuning import Tuning
from labctl.store.records.plan_record import PlanRecord
from labctl.study.conditions import Condition, Kind, Neighbour, condition_names, load_condition
from labctl.study.load_study import Overrides, load_study
from labctl.study.make_plan import make_plan
from labctl.study.plan import Plan
from labctl.study.study import Study
from labctl.workloads.registry import checkers
from tests.unit.example import EXAMPLE

from .small import PROGRAMS

MakeStudy = Callable[..., Study]
Tunings = dict[str, Tuning]

HALF = """\
description: hogs that get half of a CPU each
neighbours:
  - {workload: cpu-hog, parameters: {method: pi}, count: 2, cpus: vcpus, as: cgroup, weight: 300,
     quota_percent: 50, memory_mib: 64}
  - {workload: sysbench-cpu, cpus: 3, run_s: 0.5}
"""
OWN = """\
conditions:
  quiet:
  half:
    description: half of a CPU
    neighbours: [{workload: cpu-hog, as: cgroup, quota_percent: 50}]
"""


def write(folder: Path, text: str) -> str:
    path = folder / "mine.yaml"
    path.write_text(text)
    return str(path)


def refused(folder: Path, text: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        load_condition(write(folder, text), PROGRAMS)
    return caught.value


def test_a_file_says_what_runs_how_often_where_and_as_what(tmp_path: Path) -> None:
    found = load_condition(write(tmp_path, HALF), PROGRAMS)
    assert (found.name, found.description) == ("mine", "hogs that get half of a CPU each")
    assert found.neighbours == (
        Neighbour(
            program="cpu-hog",
            parameters={"method": "pi"},
            count=2,
            cpus="vcpus",
            kind=Kind.CGROUP,
            weight=300,
            quota_percent=50,
            memory_mib=64,
        ),
        Neighbour(program="sysbench-cpu", parameters={"max_prime": 2000}, cpus="3", run_s=0.5),
    )


def test_a_neighbour_s_workload_may_stand_where_it_is_named(tmp_path: Path) -> None:
    text = (
        "description: mine\nneighbours:\n  - workload: spin\n    run_s: 2\n    define:\n"
        "      description: spins\n      command: [/usr/bin/spin, '{{ duration }}']\n"
        "      primary: elapsed\n"
    )
    (one,) = load_condition(write(tmp_path, text), checkers()).neighbours
    assert one.program == "spin"
    assert one.definition is not None
    assert one.definition["command"] == ["/usr/bin/spin", "{{ duration }}"]
    with pytest.raises(UsageError, match=r"mine\.yaml:8: .*'primary'"):
        load_condition(write(tmp_path, text.replace("elapsed", "rate")), checkers())


def test_a_study_s_own_condition_may_define_its_neighbour(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(
        "title: Mine?\ntunings: [pinned]\nworkloads: [sysbench-cpu]\nconditions:\n  mine:\n"
        "    description: mine\n    neighbours:\n      - workload: spin\n        define:\n"
        "          description: spins\n          command: [/usr/bin/spin]\n"
        "          primary: elapsed\n"
    )
    study = load_study(str(path), programs=checkers())
    assert study.neighbours["mine"].neighbours[0].definition is not None


def test_labctl_brings_a_quiet_host_and_a_hog_for_each_cpu() -> None:
    assert {"quiet", "neighbour"} <= set(condition_names())
    assert load_condition("quiet", PROGRAMS).neighbours == ()
    (hog,) = load_condition("neighbour", PROGRAMS).neighbours
    assert (hog.program, hog.count, hog.cpus, hog.kind) == (
        "cpu-hog",
        None,
        "everywhere",
        Kind.PROCESS,
    )


def test_a_name_that_nobody_knows_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="no condition 'neighbor'") as caught:
        load_condition("neighbor", PROGRAMS)
    assert "neighbour" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("one", "said"),
    [
        ("{workload: cpu-hgo}", "mine.yaml:3: no workload 'cpu-hgo'"),
        ("{workload: cpu-hog, parameters: {method: e}}", "mine.yaml:3: 'method' is 'e'"),
        ("{workload: cpu-hog, weight: 5}", "'weight' needs neighbours 'as: cgroup'"),
        ("{workload: cpu-hog, as: cgroup}", "need 'weight' or 'quota_percent'"),
        ("{workload: cpu-hog, as: guests}", "need 'guests', the number of guests"),
        ("{workload: cpu-hog, guests: 4}", "'guests' needs neighbours 'as: guests'"),
        ("{workload: cpu-hog, cpus: vcpu}", "one of everywhere, vcpus, siblings, emulator"),
        ("{workload: cpu-hog, cpus: 3-1}", "3-1"),
        ("{workload: cpu-hog, count: 0}", "mine.yaml:3: 'neighbours.0.count'"),
        ("{workload: cpu-hog, count: some}", "mine.yaml:3: 'neighbours.0.count'"),
        ("{workload: cpu-hog, weight: 10001, as: cgroup}", "10000"),
        ("{workload: cpu-hog, nice: 5}", "nice"),
        ("{count: 5}", "workload"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, one: str, said: str) -> None:
    error = refused(tmp_path, f"description: mine\nneighbours:\n  - {one}\n")
    assert said in error.message


def test_a_workload_that_cannot_run_beside_a_trial_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        type(PROGRAMS["cpu-hog"]), "why_no_neighbour", lambda *_: "it talks to a peer"
    )
    text = "description: mine\nneighbours:\n  - workload: cpu-hog\n"
    error = refused(tmp_path, text)
    assert error.message.endswith("mine.yaml:3: 'cpu-hog' can't be a neighbour: it talks to a peer")


def test_a_study_names_conditions_or_defines_its_own(make_study: MakeStudy) -> None:
    study = make_study("conditions: [quiet, neighbour]\n", OWN.replace("quiet:", "neighbour:"))
    with pytest.raises(UsageError, match="no condition of the study 'nobody'"):
        make_study("  conditions: [neighbour]\n", "  conditions: [nobody]\n")
    assert study.conditions == ("neighbour", "half")
    assert set(study.neighbours) == {"neighbour", "half"}
    assert study.neighbours["half"].neighbours[0].quota_percent == 50


def test_what_is_wrong_in_a_study_s_own_condition_has_its_line(make_study: MakeStudy) -> None:
    wrong = OWN.replace("quiet:", "neighbour:").replace("as: cgroup, ", "")
    with pytest.raises(UsageError, match=r"small\.yaml:26: 'quota_percent' needs neighbours"):
        make_study("conditions: [quiet, neighbour]\n", wrong)


def test_a_condition_that_a_study_names_twice_is_refused(make_study: MakeStudy) -> None:
    with pytest.raises(UsageError, match="'quiet' appears twice"):
        make_study("conditions: [quiet, neighbour]", "conditions: [quiet, quiet, neighbour]")


def test_the_digest_of_a_study_changes_with_its_neighbours(make_study: MakeStudy) -> None:
    own = OWN.replace("quiet:", "neighbour:")
    half = make_study("conditions: [quiet, neighbour]\n", own)
    third = make_study("conditions: [quiet, neighbour]\n", own.replace(": 50", ": 33"))
    assert half.digest != third.digest


def test_a_study_on_a_quiet_host_has_the_digest_that_it_ever_had(make_study: MakeStudy) -> None:
    """Those of older labctls say nothing of neighbours."""
    study = make_study(overrides=Overrides(conditions=["quiet"]))
    assert study.neighbours == {}
    assert study.digest == ("b5f3f246611a7cb878512e53752d9499e11c1c3b6d0d0ae966bceedc5590b807")


def planned(make_study: MakeStudy, tunings: Tunings, **given: Any) -> Plan:
    study = make_study("conditions: [quiet, neighbour]\n", OWN.replace("quiet:", "neighbour:"))
    return make_plan(study, tunings, seed=7, host_digest="host", **given)


def test_a_plan_keeps_what_its_neighbours_are(make_study: MakeStudy, tunings: Tunings) -> None:
    plan = planned(make_study, tunings)
    again = Plan.of(PlanRecord.model_validate(json.loads(json.dumps(plan.to_json()))))
    assert again == plan
    assert again.neighbours["half"] == Condition(
        name="half",
        description="half of a CPU",
        neighbours=(
            Neighbour(
                program="cpu-hog",
                parameters={"method": "int64"},
                kind=Kind.CGROUP,
                quota_percent=50,
            ),
        ),
    )


def test_a_condition_that_the_host_cannot_have_is_left_out_with_the_reason(
    make_study: MakeStudy, tunings: Tunings
) -> None:
    plan = planned(make_study, tunings, skipped_conditions={"half": "there is no cgroup"})
    assert plan.conditions == ("neighbour",)
    assert {trial.cell["condition"] for trial in plan.trials} == {"neighbour"}
    assert set(plan.neighbours) == {"neighbour"}
    assert plan.record().skipped_conditions == {"half": "there is no cgroup"}


def test_a_host_that_can_have_none_of_them_is_said_so(
    make_study: MakeStudy, tunings: Tunings
) -> None:
    why = "there is no cgroup"
    with pytest.raises(HostError, match=f"any condition of the study: {why}"):
        planned(make_study, tunings, skipped_conditions={"half": why, "neighbour": why})


def test_a_plan_of_an_older_labctl_is_the_plan_that_it_was() -> None:
    record = PlanRecord.model_validate(json.loads((EXAMPLE / "plan.json").read_text()))
    assert "neighbour" in record.conditions
    assert record.neighbours == {}
    assert Plan.of(record).digest == record.digest


def test_a_factor_s_levels_choose_any_condition_of_the_study(make_study: MakeStudy) -> None:
    factors = (
        "factors:\n  beside:\n    levels:\n"
        "      none: {condition: quiet}\n      half: {condition: half}\n"
    )
    study = make_study(
        "conditions: [quiet, neighbour]\n", f"{OWN.replace('quiet:', 'neighbour:')}{factors}"
    )
    assert study.conditions == ("half", "quiet")
    assert set(study.neighbours) == {"half"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "one cpu-hog per CPU, everywhere"),
        ({"count": 2, "cpus": "0-3"}, "2 x cpu-hog, on CPUs 0-3"),
        (
            {"count": 1, "cpus": "siblings", "weight": 50, "quota_percent": 20},
            "1 x cpu-hog, on the other threads of the vCPUs' cores, each in a cgroup: weight 50, "
            "at most 20 % of a CPU",
        ),
        (
            {"count": 1, "guests": 3, "parameters": {"method": "pi"}},
            "1 x cpu-hog method=pi, everywhere, in each of 3 guests",
        ),
        ({"guests": 1}, "one cpu-hog per vCPU, everywhere, in another guest"),
    ],
)
def test_neighbours_are_said_in_words(given: dict[str, Any], words: str) -> None:
    assert Neighbour(program="cpu-hog", **given).record().words == words
