"""Who pays for a tuning: of several neighbours, each by its workload."""

from __future__ import annotations

from dataclasses import replace

from labctl.analysis.answer.view import View
from labctl.analysis.answer.worse import side_costs_of
from labctl.analysis.judge import judge
from labctl.store.run_folder import LoadedRun, LoadedTrial
from labctl.store.samples import Reading, Sample
from tests.unit.analysis.alter import with_readings
from tests.unit.synthetic import WORKLOADS, synthetic_run

RUN = synthetic_run(
    seed=1,
    noise=0.01,
    boots=5,
    effects={"pinned": 1.5, "handicap": 0.95},
    tunings=["baseline", "control", "handicap", "pinned"],
    workloads={"sysbench-cpu": WORKLOADS["sysbench-cpu"]},
)


def apart(run: LoadedRun) -> LoadedRun:
    """The run with a hog and hackbench as neighbours: hackbench loses nothing."""

    def split(trial: LoadedTrial, reading: Reading) -> Reading:
        if not isinstance(reading, Sample) or reading.metric != "neighbour_ops_per_s":
            return reading
        return replace(reading, labels={"workload": "cpu-hog"})

    made = with_readings(run, split)
    trials = []
    for trial in made.trials:
        beside = [
            replace(reading, value=5.0, labels={"workload": "hackbench"})
            for reading in trial.readings
            if isinstance(reading, Sample) and reading.metric == "neighbour_ops_per_s"
        ]
        trials.append(replace(trial, readings=(*trial.readings, *beside)))
    return replace(made, trials=tuple(trials))


def payers(run: LoadedRun) -> dict[str, str]:
    view = View(run, judge(run))
    return {price.who: price.change for price in side_costs_of(view, "pinned", view.places[0])}


def test_one_kind_of_neighbour_is_the_neighbour() -> None:
    assert payers(RUN)["neighbour"].startswith("−")


def test_each_of_several_neighbours_is_called_by_its_workload() -> None:
    found = payers(apart(RUN))
    assert "neighbour" not in found
    assert found["neighbour cpu-hog"] == payers(RUN)["neighbour"]
    assert found["neighbour hackbench"] not in ("", found["neighbour cpu-hog"])


def test_the_answer_names_what_the_one_that_loses_most_loses() -> None:
    assert judge(apart(RUN)).decision.price == judge(RUN).decision.price != ""
