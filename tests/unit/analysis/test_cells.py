import math
from dataclasses import replace

import pytest

from labctl.analysis.caveats.run import count_trials
from labctl.analysis.effects.cells import Cell, Scenario, cell_of, read_cells
from labctl.analysis.judge import judge
from labctl.base.units import Better, Unit
from labctl.store.run_folder import LoadedTrial
from labctl.store.samples import Reading, Sample
from tests.unit.analysis.alter import with_readings, with_values
from tests.unit.synthetic import synthetic_run

SYSBENCH = Scenario("sysbench-cpu", "neighbour")


def test_every_value_is_found_under_its_cell_block_and_metric_key() -> None:
    run = synthetic_run(blocks=3)
    found = read_cells(run).get("pinned", SYSBENCH, "events_per_s")
    expected = {
        trial.record.block: reading.value
        for trial in run.trials
        for reading in trial.readings
        if trial.record.cell["tuning"] == "pinned"
        and trial.record.cell["workload"] == "sysbench-cpu"
        and isinstance(reading, Sample)
        and reading.key == "events_per_s"
    }
    assert found is not None
    assert found.values == expected
    assert len(expected) == 3


def test_an_invalid_trial_gives_no_value() -> None:
    run = synthetic_run(blocks=3, invalid=[("pinned", "sysbench-cpu", 2)])
    cells = read_cells(run)
    found = cells.get("pinned", SYSBENCH, "events_per_s")
    assert found is not None
    assert sorted(found.values) == [1, 3]
    assert cells.tried[Cell("pinned", SYSBENCH)] == {1, 2, 3}
    assert count_trials(run).done == 3 * 16 - 1


def test_the_last_valid_attempt_counts() -> None:
    """Even when an invalid one came after it, and whatever order the folder lists them in."""
    run = synthetic_run(blocks=1, repeated=[("pinned", "sysbench-cpu", 1)])
    (again,) = [t for t in run.trials if t.record.attempt == 2]

    def attempt(number: int, value: float) -> LoadedTrial:
        readings: tuple[Reading, ...] = tuple(
            replace(r, value=value) for r in again.readings if isinstance(r, Sample)
        )
        return replace(again, record=replace(again.record, attempt=number), readings=readings)

    (first,) = [
        t for t in run.trials if t.record.number == again.record.number and t.record.attempt == 1
    ]
    late = replace(first, record=replace(first.record, attempt=4), readings=())
    run = replace(run, trials=(late, attempt(3, 3.0), attempt(2, 2.0), first))
    found = read_cells(run).get("pinned", SYSBENCH, "events_per_s")
    assert found is not None
    assert found.values == {1: 3.0}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_no_finite_number_is_left_out_with_a_sentence(bad: float) -> None:
    run = with_values(
        synthetic_run(blocks=3), "pinned", "iops", lambda block, old: bad if block == 2 else old
    )
    cells = read_cells(run)
    found = cells.get("pinned", Scenario("fio-randread", "neighbour"), "iops")
    assert found is not None
    assert sorted(found.values) == [1, 3]
    assert any("iops in 'pinned'" in problem for problem in cells.problems)


def test_a_metric_that_changes_its_unit_is_left_out_where_it_differs() -> None:
    def in_microseconds(trial: LoadedTrial, reading: Reading) -> Reading:
        if (
            isinstance(reading, Sample)
            and reading.key == "latency_p95"
            and trial.record.block == 2
            and trial.record.cell["tuning"] == "pinned"
        ):
            return replace(reading, unit=Unit.MICROSECONDS, value=reading.value * 1e6)
        return reading

    cells = read_cells(with_readings(synthetic_run(blocks=3), in_microseconds))
    found = cells.get("pinned", SYSBENCH, "latency_p95")
    assert found is not None
    assert sorted(found.values) == [1, 3]
    assert any("a different unit" in problem for problem in cells.problems)


def test_further_factors_are_part_of_the_condition() -> None:
    cell = {"tuning": "a", "workload": "w", "condition": "quiet", "java": "17", "heap": "1g"}
    assert cell_of(cell) == Cell("a", Scenario("w", "quiet, heap=1g, java=17"))
    assert cell_of({"tuning": "a", "workload": "w"}) == Cell("a", Scenario("w", "any condition"))
    assert cell_of({"workload": "w"}) is None


def test_typical_is_the_geometric_mean_of_positive_values_and_else_the_mean() -> None:
    run = synthetic_run(blocks=2)
    values = {1: 1.0, 2: 4.0}
    positive = read_cells(with_values(run, "pinned", "iops", lambda b, old: values[b]))
    zero = read_cells(with_values(run, "pinned", "iops", lambda b, old: values[b] - 1.0))
    fio = Scenario("fio-randread", "neighbour")
    for cells, expected in ((positive, 2.0), (zero, 1.5)):
        found = cells.get("pinned", fio, "iops")
        assert found is not None
        assert found.typical == pytest.approx(expected)


def test_of_a_maximum_the_largest_stands_and_nothing_is_averaged() -> None:
    run = synthetic_run(blocks=2)
    maxima = {1: 1.0, 2: 4.0}
    run = with_values(run, "pinned", "latency_max", lambda block, old: maxima[block])
    found = read_cells(run).get("pinned", SYSBENCH, "latency_max")
    assert found is not None
    assert found.typical == 4.0
    assert not [c for c in judge(run).comparisons if c.metric == "latency_max"]


def test_a_missing_metric_is_counted_by_reason() -> None:
    (steal,) = [m for m in read_cells(synthetic_run(blocks=3)).missing if m.metric == "steal"]
    assert steal.trials == 3 * 5 * 2
    assert "native" not in steal.tunings
    assert set(steal.workloads) == {"sysbench-cpu", "fio-randread"}


def test_a_bins_width_belongs_to_its_percentile_and_is_no_metric() -> None:
    def sample(metric: str, value: float, unit: Unit, **labels: str) -> Sample:
        return Sample(
            metric=metric,
            value=value,
            unit=unit,
            better=Better.LOWER,
            labels=labels,
            source="fio.json",
        )

    run = synthetic_run(blocks=1, primary_only=True)
    readings = (
        sample("latency_p95", 0.002, Unit.SECONDS, direction="read"),
        sample("bin_width", 0.03, Unit.FRACTION, direction="read", of="latency_p95"),
    )
    run = replace(run, trials=(replace(run.trials[0], readings=readings),))
    (found,) = read_cells(run).series.values()
    assert list(found) == ["latency_p95{direction=read}"]
    assert found["latency_p95{direction=read}"].bin_widths == {1: 0.03}
