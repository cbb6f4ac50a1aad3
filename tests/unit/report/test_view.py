from __future__ import annotations

from dataclasses import replace

import pytest

from labctl.analysis.answer.view import View, series_name
from labctl.analysis.answer.worse import side_costs_of
from labctl.analysis.effects.cells import Scenario
from labctl.analysis.model import MissingMetric
from tests.unit.report.conftest import Judged

PLACE = Scenario("fio-randread", "neighbour")


@pytest.mark.parametrize(
    ("metric", "name"),
    [
        ("iops", "iops"),
        ("ipc{source=pmu}", "ipc"),
        ("latency_p95{direction=read}", "latency_p95{direction=read}"),
        ("x{a=1,source=pmu}", "x{a=1}"),
    ],
)
def test_the_source_of_a_number_makes_no_series_of_its_own(metric: str, name: str) -> None:
    assert series_name(metric) == name


def test_arms_come_native_first_then_baseline_then_its_checks_then_tunings(
    judged: Judged,
) -> None:
    assert View(*judged).tunings == [
        "native",
        "native+pinned",
        "native+fifo",
        "baseline",
        "control",
        "handicap",
        "pinned",
        "pinned+fifo",
    ]


def test_a_metric_known_only_by_label_has_a_column_for_each(judged: Judged) -> None:
    run, judgement = judged
    levels = [level for level in judgement.levels if level.metric != "latency_p95"]
    p95 = next(level for level in judgement.levels if level.metric == "latency_p95")
    for way in ("read", "write"):
        metric = f"latency_p95{{direction={way}}}"
        levels.append(replace(p95, metric=metric, workload="fio-randread"))
    view = View(run, replace(judgement, levels=tuple(levels)))
    titles = [column.title for column in view.columns("fio-randread")]
    assert titles == ["IOPS", "IPC", "p95 latency (read)", "p95 latency (write)", "VM exits"]
    assert "p95 latency" in [column.title for column in view.columns("sysbench-cpu")]


def test_stall_time_has_a_column_where_it_was_measured(judged: Judged) -> None:
    run, judgement = judged
    p95 = next(level for level in judgement.levels if level.metric == "latency_p95")
    stalls = replace(p95, metric="stall_time", workload="fio-randread")
    view = View(run, replace(judgement, levels=(*judgement.levels, stalls)))
    assert [column.title for column in view.columns("fio-randread")][-1] == "stall time"
    assert "stall time" not in [column.title for column in view.columns("sysbench-cpu")]


def test_an_open_loop_latency_has_columns_beside_the_closed_loops(judged: Judged) -> None:
    """p95 is in every table, corrected and as the tool gives it; stall time is then no news."""
    run, judgement = judged
    p95 = next(level for level in judgement.levels if level.metric == "latency_p95")
    names = ("open_latency_mean", "open_latency_p95", "stall_time")
    more = [replace(p95, metric=name, workload="fio-randread") for name in names]
    levels = (*judgement.levels, *more)

    def titles(primary: str) -> list[str]:
        chosen = {**judgement.primaries, "fio-randread": primary}
        view = View(run, replace(judgement, levels=levels, primaries=chosen))
        assert "p95 latency" in [column.title for column in view.columns("sysbench-cpu")]
        return [column.title for column in view.columns("fio-randread")]

    mean, corrected, closed = (
        "open-loop mean latency",
        "open-loop p95 latency",
        "closed-loop p95 latency",
    )
    assert titles("open_latency_mean") == [mean, "IPC", corrected, closed, "VM exits"]
    assert titles("latency_p95") == [closed, "IPC", mean, corrected, "VM exits"]


def test_a_corrected_percentile_of_which_no_trial_has_enough_is_a_column_all_the_same(
    judged: Judged,
) -> None:
    run, judgement = judged
    lacking = MissingMetric(
        metric="open_latency_p95",
        reason="it is short",
        trials=1,
        tunings=("pinned",),
        workloads=("fio-randread",),
    )
    view = View(run, replace(judgement, unavailable=(lacking,)))
    [column] = [c for c in view.columns("fio-randread") if c.title == "open-loop p95 latency"]
    assert view.reason("pinned", PLACE, column) == "open-loop p95 latency: it is short"


def test_one_exit_reason_never_stands_for_all_exits(judged: Judged) -> None:
    run, judgement = judged
    level = next(item for item in judgement.levels if item.tuning == "pinned")
    reasons = [replace(level, metric=f"exits{{reason={name}}}") for name in ("HLT", "IO", "MSR")]
    view = View(run, replace(judgement, levels=tuple(reasons), unavailable=()))
    column = view.columns(level.workload)[-1]
    assert view.level("pinned", Scenario(level.workload, level.condition), column) is None


def test_the_reason_for_a_gap_is_the_one_of_that_arm(judged: Judged) -> None:
    view = View(*judged)
    exits = view.columns("fio-randread")[-1]
    assert view.reason("pinned", PLACE, exits) == "VM exits: emulated: no VM exits"
    assert "a native run has none" in view.reason("native", PLACE, exits)


def test_the_bill_names_guest_neighbour_host_and_what_a_cpu_second_yields(
    judged: Judged,
) -> None:
    paid = {price.who: price.change for price in side_costs_of(View(*judged), "pinned+fifo", PLACE)}
    assert list(paid) == ["guest", "neighbour", "host CPU", "work per host CPU-second"]
    assert paid["guest"].startswith("×2.")
    assert paid["neighbour"].startswith("−")


def test_a_bill_with_nothing_but_the_guests_own_change_is_none(judged: Judged) -> None:
    run, judgement = judged
    own = tuple(item for item in judgement.comparisons if item.metric == "iops")
    view = View(run, replace(judgement, comparisons=own, levels=()))
    assert side_costs_of(view, "pinned+fifo", PLACE) == []
