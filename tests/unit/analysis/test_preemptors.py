"""Who had the CPUs that threads waited for, compared over the trials of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from labctl.analysis.effects.cells import MOST, Scenario, by_same_names, read_cells
from labctl.base.units import Better, Unit
from labctl.store.run_folder import LoadedTrial
from labctl.store.samples import Reading, Sample, Unavailable
from tests.unit.synthetic import synthetic_run

RUN = synthetic_run(blocks=2)
TRIAL = RUN.trials[0]


def sample(metric: str, value: float, **labels: str) -> Sample:
    return Sample(
        metric=metric,
        value=value,
        unit=Unit.CPUS,
        better=Better.LOWER,
        labels=labels,
        source="trace/host.perf.data",
    )


def traced(by: Mapping[str, float], *more: Reading, of: str = "vcpu") -> LoadedTrial:
    named = [sample("preempted_time", value, by=name, of=of) for name, value in by.items()]
    return replace(TRIAL, readings=(sample("sched_delay", 0.5, of=of), *more, *named))


def names(trial: LoadedTrial, of: str = "vcpu") -> dict[str, float]:
    return {
        one.labels["by"]: one.value
        for one in trial.readings
        if isinstance(one, Sample) and one.metric == "preempted_time" and one.labels["of"] == of
    }


def test_a_name_that_a_trial_lacks_had_nothing_there() -> None:
    one, other = by_same_names([traced({"hog": 0.2, "idle": 0.1}), traced({"idle": 0.3})])
    assert names(one) == {"hog": 0.2, "idle": 0.1, "others": 0}
    assert names(other) == {"hog": 0, "idle": 0.3, "others": 0}


def test_a_trial_in_which_nobody_was_waited_for_is_zero_throughout() -> None:
    _, other = by_same_names([traced({"hog": 0.2}), traced({})])
    assert names(other) == {"hog": 0, "others": 0}


def test_names_are_those_that_had_most_in_any_trial_and_nothing_is_lost() -> None:
    many = {f"t{number:02}": 0.01 * number for number in range(1, MOST + 3)}
    one, other = by_same_names([traced(many), traced({"t01": 0.5, "t02": 0.001})])
    assert names(one).keys() == names(other).keys()
    assert len(names(one)) == MOST + 1
    assert {"t01", f"t{MOST + 2}"} < names(one).keys()
    assert "t02" not in names(one)
    assert sum(names(one).values()) == pytest.approx(sum(many.values()))
    assert names(other)["others"] == 0.001


def test_of_the_guests_own_threads_there_are_other_names() -> None:
    (trial,) = by_same_names([traced({"hog": 0.2}, *traced({"sshd": 0.1}, of="workload").readings)])
    assert names(trial) == {"hog": 0.2, "others": 0}
    assert names(trial, "workload") == {"sshd": 0.1, "others": 0}


@pytest.mark.parametrize(
    "trial",
    [
        replace(
            TRIAL, readings=(Unavailable(metric="preempted_time{of=vcpu}", reason="no perf."),)
        ),
        traced({"a": 0.2, "others": 0.1}),
        traced({"a": 0.2, "unknown": 0.1}),
        RUN.trials[1],
    ],
)
def test_a_trial_that_does_not_tell_of_all_who_ran_keeps_what_it_has(trial: LoadedTrial) -> None:
    kept, _ = by_same_names([trial, traced({"hog": 0.2})])
    assert list(kept.readings) == list(trial.readings)


def test_other_readings_stay_in_their_places() -> None:
    gone = Unavailable(metric="steal", reason="no guest.")
    (trial,) = by_same_names([traced({"hog": 0.2}, gone, sample("ipc", 1.0))])
    assert list(trial.readings)[:3] == [
        sample("sched_delay", 0.5, of="vcpu"),
        gone,
        sample("ipc", 1.0),
    ]


def test_a_comparison_has_both_sides_of_a_name_that_one_tuning_alone_had() -> None:
    trials = tuple(
        replace(
            one,
            readings=traced({"hog": 0.2} if one.record.cell["tuning"] == "pinned" else {}).readings,
        )
        for one in RUN.trials
    )
    cells = read_cells(replace(RUN, trials=trials))
    place = Scenario("sysbench-cpu", "neighbour")
    for tuning, value in (("pinned", 0.2), ("baseline", 0.0)):
        found = cells.get(tuning, place, "preempted_time{by=hog,of=vcpu}")
        assert found is not None
        assert set(found.numbers.array.tolist()) == {value}
