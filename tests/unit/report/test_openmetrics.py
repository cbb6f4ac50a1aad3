"""Metrics for Prometheus: what prometheus_client's own parsers read of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_of
from prometheus_client.parser import text_string_to_metric_families as plain_of

from labctl.analysis.judge import judge
from labctl.analysis.verdicts.table import Verdict
from labctl.base.units import Better, Unit
from labctl.report.export.openmetrics import openmetrics, prometheus
from labctl.store.records.plan_record import PlanRecord
from labctl.store.records.run_record import RunRecord
from labctl.store.run_folder import LoadedRun
from labctl.store.samples import Sample
from tests.unit.report.conftest import Judged
from tests.unit.synthetic import synthetic_run


def families(run: LoadedRun) -> dict[str, Metric]:
    """The parser refuses a unit that isn't the name's end, a type that its samples don't fit, and
    a series that is there twice."""
    text = openmetrics(run, judge(run)).decode()
    return {family.name: family for family in openmetrics_of(text)}


def values(family: Metric, **labels: str) -> list[float]:
    return [s.value for s in family.samples if labels.items() <= s.labels.items()]


@pytest.fixture(scope="module")
def found(judged: Judged) -> dict[str, Metric]:
    return families(judged[0])


def test_a_level_is_a_gauge_in_its_base_unit_under_its_cell(
    found: dict[str, Metric], judged: Judged
) -> None:
    for name, unit, metric in (
        ("labctl_events_per_second", "per_second", "events_per_s"),
        ("labctl_latency_p95_seconds", "seconds", "latency_p95"),
        ("labctl_host_cpus", "cpus", "host_cpu{thread=vcpu}"),
    ):
        assert (found[name].type, found[name].unit) == ("gauge", unit)
        for level in judged[1].levels:
            if level.metric == metric:
                cell = {"tuning": level.tuning, "workload": level.workload}
                thread = {"thread": "vcpu"} if "{" in metric else {}
                assert values(found[name], **cell, **thread) == [level.typical]
    assert {s.labels["run"] for family in found.values() for s in family.samples} == {"synthetic"}


def test_an_effect_has_its_interval_beside_it(found: dict[str, Metric], judged: Judged) -> None:
    for item in judged[1].comparisons:
        if item.tuning == "pinned+fifo" and item.role == "primary":
            labels = {"tuning": item.tuning, "workload": item.workload, "role": "primary"}
            for name, value in (
                ("labctl_effect_ratio", item.estimate),
                ("labctl_effect_low_ratio", item.low),
                ("labctl_effect_high_ratio", item.high),
            ):
                assert values(found[name], **labels) == [value]


def test_of_all_verdicts_one_is_the_state_of_a_tuning(
    found: dict[str, Metric], judged: Judged
) -> None:
    family = found["labctl_verdict"]
    assert family.type == "stateset"
    for item in judged[1].comparisons:
        if item.verdict is not None:
            states = {
                s.labels["labctl_verdict"]: s.value
                for s in family.samples
                if (s.labels["tuning"], s.labels["workload"]) == (item.tuning, item.workload)
            }
            assert states == {str(v): float(v is item.verdict) for v in Verdict}


def test_a_check_that_could_not_be_made_has_neither_passed_nor_failed() -> None:
    assert families(synthetic_run(blocks=3))["labctl_check_passed"].samples == []
    checks = families(synthetic_run(blocks=10))["labctl_check_passed"].samples
    assert {s.labels["check"] for s in checks} == {"control", "known_loss"}


def test_the_textfile_collector_gets_types_that_it_knows(judged: Judged) -> None:
    text = prometheus(*judged).decode()
    types = {line.split()[3] for line in text.splitlines() if line.startswith("# TYPE")}
    assert types == {"gauge"}
    assert " # " not in text
    assert "EOF" not in text
    ours = sum(len(family.samples) for family in plain_of(text))
    theirs = openmetrics_of(openmetrics(*judged).decode())
    assert ours == sum(len(family.samples) for family in theirs)


def other_readings(
    run: LoadedRun, labels: dict[str, str], value: float, unit: Unit = Unit.MICROSECONDS
) -> Iterator[LoadedRun]:
    for trial in run.trials[:1]:
        odd = Sample(
            metric="odd-one_us",
            value=value,
            unit=unit,
            better=Better.LOWER,
            labels=labels,
            source="x",
        )
        yield replace(run, trials=(replace(trial, readings=(odd,)),))


def test_labels_of_a_metric_keep_out_of_the_way_of_ours() -> None:
    run = synthetic_run(blocks=1, primary_only=True)
    hostile = {"run": 'a"b\nc', "1x": "y"}
    (family,) = [
        families(odd)["labctl_odd_one_seconds"] for odd in other_readings(run, hostile, 5.0)
    ]
    (sample,) = family.samples
    assert sample.value == pytest.approx(5e-6)
    assert sample.labels["run"] == "synthetic"
    assert (sample.labels["metric_run"], sample.labels["metric_1x"]) == ('a"b\nc', "y")


def test_a_unit_of_a_program_s_own_is_spelt_in_letters() -> None:
    run = synthetic_run(blocks=1, primary_only=True)
    for odd in other_readings(run, {}, 5.0, Unit("M°ops/s")):
        family = families(odd)["labctl_odd_one_us_Mub0ops_per_s"]
        assert family.unit == "Mub0ops_per_s"
        assert values(family) == pytest.approx([5.0])


def test_what_is_no_finite_number_is_no_sample() -> None:
    run = synthetic_run(blocks=1, primary_only=True)
    for odd in other_readings(run, {}, float("nan")):
        assert "labctl_odd_one_seconds" not in families(odd)


def test_a_run_of_which_nothing_is_left_is_still_a_text_of_metrics() -> None:
    nothing = families(LoadedRun("r", RunRecord(), PlanRecord(), (), ("run.json is missing",)))
    assert values(nothing["labctl_trials"], state="done") == [0.0]
