"""A metric over runs: which are one series, where it changed, and what changed with it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from labctl.analysis.compare.history import Choice, History, RunSeries, history
from labctl.store.records.plan_record import PlanRecord
from labctl.store.records.run_record import RunRecord
from labctl.store.run_folder import LoadedRun
from tests.unit.records import plan_of, run_of
from tests.unit.synthetic import synthetic_run

ARMS = ["baseline", "control", "pinned"]
PINNED = Choice(metric="events_per_s", tuning="pinned")
HOST = {"cpu_model": "A", "topology": {"cores": 2}, "kernel_release": "6.1", "microcode": "0x1"}


def run(
    day: int, speed: float = 1.0, host: dict[str, Any] | None = None, **other: Any
) -> LoadedRun:
    made = synthetic_run(
        seed=day,
        blocks=2,
        tunings=ARMS,
        effects={"pinned": speed},
        block_noise=0.01,
        noise=0.01,
        primary_only=True,
        accelerator=other.pop("accelerator", "tcg"),
    )
    about = {"started_at": f"2024-01-{day:02d}T00:00:00+00:00", "host": {**HOST, **(host or {})}}
    return replace(made, name=f"run-{day}", run=run_of({**made.run.to_json(), **about, **other}))


def only(found: History) -> RunSeries:
    (series,) = found.series
    return series


def regressed(at: int, days: int = 12, **later: Any) -> Iterator[LoadedRun]:
    for day in range(1, days + 1):
        yield run(day, 0.8, **later) if day >= at else run(day)


def test_a_change_stands_where_it_is_with_both_levels_and_what_else_changed() -> None:
    later = {"kernel_release": "6.6", "microcode": "0x2"}
    series = only(history(regressed(7, host=later), PINNED))
    (change,) = series.changes
    assert (change.run, change.index) == ("run-7", 6)
    assert change.after / change.before == pytest.approx(0.8, rel=0.02)
    assert change.p <= 0.05
    assert [(f.fact.name, f.fact.a, f.fact.b, f.distance) for f in change.facts] == [
        ("kernel", "6.1", "6.6", 0),
        ("microcode", "0x1", "0x2", 0),
    ]


@pytest.mark.parametrize("early", [0, 1, 2, 3])
def test_facts_that_changed_within_two_runs_of_a_mark_stand_beside_it(early: int) -> None:
    """A small change may be marked late."""
    runs = [
        run(
            day,
            0.8 if day >= 7 else 1.0,
            host={"microcode": "0x2" if day >= 7 - early else "0x1",
                  "kernel_release": "6.6" if day >= 9 else "6.1"},
        )
        for day in range(1, 13)
    ]  # fmt: skip
    (change,) = only(history(runs, PINNED)).changes
    found = {near.fact.name: (near.run, near.distance) for near in change.facts}
    assert found["kernel"] == ("run-9", 2)
    assert found.get("microcode") == (None if early > 2 else (f"run-{7 - early}", -early))


def test_a_slide_is_a_trend_in_the_metrics_own_unit() -> None:
    rng = np.random.default_rng(3)
    slide = [math.exp(math.log(0.84) * day / 39 + rng.normal(0, 0.05)) for day in range(40)]
    made = [
        replace(one, run=one.run.but(started_at=f"2024-{1 + day // 28:02d}-{1 + day % 28:02d}"))
        for day, one in enumerate(run(1, speed) for speed in slide)
    ]
    series = only(
        history([replace(one, name=f"run-{d:02d}") for d, one in enumerate(made)], PINNED)
    )
    assert series.changes == ()
    assert series.trend is not None
    assert series.trend.last / series.trend.first == pytest.approx(0.84, rel=0.06)
    assert min(p.value for p in series.points) < series.trend.last < series.trend.first


def test_without_a_change_nothing_is_marked() -> None:
    series = only(history((run(day) for day in range(1, 13)), PINNED))
    assert (series.changes, series.unmarked) == ((), None)
    assert [point.run for point in series.points] == [f"run-{day}" for day in range(1, 13)]


def test_runs_are_in_the_order_in_which_they_started() -> None:
    series = only(history([run(3), run(1), run(2)], PINNED))
    assert [point.run for point in series.points] == ["run-1", "run-2", "run-3"]
    assert series.unmarked == "3 of the 8 runs that a change needs"


def beside(day: int, condition: str, quota: int) -> LoadedRun:
    """A run whose trials have a neighbour with a quota under this condition."""
    made = synthetic_run(seed=day, blocks=2, tunings=ARMS, conditions=(condition,))
    kinds = [{"program": "cpu-hog", "kind": "cgroup", "quota_percent": quota}]
    plan = {**made.plan.to_json(), "neighbours": {condition: {"neighbours": kinds}}}
    about = {"started_at": f"2024-01-{day:02d}T00:00:00+00:00", "host": HOST}
    of_run = run_of({**made.run.to_json(), **about})
    return replace(made, name=f"run-{day}", run=of_run, plan=plan_of(plan))


def test_other_neighbours_under_one_name_are_a_series_of_their_own() -> None:
    choice = Choice(metric="events_per_s", tuning="pinned", workload="sysbench-cpu")
    found = history([beside(1, "half", 50), beside(2, "half", 50), beside(3, "half", 33)], choice)
    assert [len(series.points) for series in found.series] == [2, 1]
    assert all(series.apart.startswith("neighbours ") for series in found.series)


def test_the_hogs_that_every_labctl_knew_are_one_series_whether_a_plan_has_them_or_not() -> None:
    choice = Choice(metric="events_per_s", tuning="pinned", workload="sysbench-cpu")
    older = beside(1, "neighbour", 100)
    older = replace(older, plan=older.plan.but(neighbours={}))
    assert len(only(history([older, beside(2, "neighbour", 100)], choice)).points) == 2


@pytest.mark.parametrize(
    ("other", "apart"),
    [
        ({"accelerator": "kvm"}, ""),
        ({"host": {"cpu_model": "B"}}, "on B, 2 cores"),
        ({"binaries": {"sysbench": {"guest": "b" * 64}}}, 'programs {"sysbench":"'),
    ],
)
def test_what_cannot_be_compared_is_a_series_of_its_own(other: dict[str, Any], apart: str) -> None:
    found = history([run(1), run(2), run(3, **other)], PINNED)
    assert [len(series.points) for series in found.series] == [2, 1]
    assert found.series[1].apart.startswith(apart)


def test_a_tuning_that_was_defined_otherwise_is_another_one() -> None:
    def defined(day: int, digest: str) -> LoadedRun:
        made = run(day)
        tunings = {**made.plan.to_json()["tunings"], "pinned": {"kind": "guest", "digest": digest}}
        return replace(made, plan=plan_of({**made.plan.to_json(), "tunings": tunings}))

    found = history([defined(1, "a" * 64), defined(2, "b" * 64)], PINNED)
    assert [series.apart for series in found.series] == [
        f"definition {'a' * 12}",
        f"definition {'b' * 12}",
    ]


def test_kernel_and_microcode_may_change_on_a_host() -> None:
    only(history([run(1), run(2, host={"kernel_release": "7.0", "microcode": "0x9"})], PINNED))


def test_a_metric_without_labels_is_all_of_its_labels() -> None:
    runs = [synthetic_run(seed=seed, blocks=1, tunings=ARMS) for seed in (1, 2)]
    every = history(runs, Choice(metric="host_cpu", tuning="pinned", workload="sysbench-cpu"))
    assert {series.metric for series in every.series} == {
        f"host_cpu{{thread={thread}}}" for thread in ("vcpu", "emulator", "iothread")
    }
    one = history(runs, Choice(metric="host_cpu{thread=vcpu}", workload="sysbench-cpu"))
    assert {series.tuning for series in one.series} == set(ARMS)


def test_the_chance_of_a_mark_is_shared_by_all_series() -> None:
    runs = list(regressed(7))
    assert history(runs, PINNED).alpha == pytest.approx(0.05)
    assert history(runs, Choice(metric="events_per_s")).alpha == pytest.approx(0.05 / 3)


def test_values_of_0_or_less_are_looked_at_as_they_are() -> None:
    def with_zero(day: int) -> LoadedRun:
        made = run(day)
        changed = tuple(
            replace(trial, readings=tuple(replace(r, value=0.0) for r in trial.readings))
            for trial in made.trials
        )
        return replace(made, trials=changed)

    series = only(history((with_zero(day) for day in range(1, 11)), PINNED))
    assert series.changes == ()
    assert {point.value for point in series.points} == {0.0}


def test_nothing_to_see_says_what_there_would_have_been() -> None:
    found = history([run(1)], Choice(metric="latency_p96"))
    assert (found.series, found.metrics) == ((), ("events_per_s", "iops"))
    assert history([run(1)], Choice(metric="iops", study="other")).runs == 0
    empty = LoadedRun("r", RunRecord(), PlanRecord(), (), ("run.json is missing",))
    assert history([empty], PINNED).left_out == ("r has no valid value for it.",)


def test_an_accelerator_nobody_knows_is_no_crash() -> None:
    made = run(1)
    odd = replace(
        made, run=run_of({**made.run.to_json(), "accelerator": None, "host": {}, "binaries": None})
    )
    series = only(history([odd], PINNED))
    assert series.accelerator == "an unknown accelerator"
    assert math.isfinite(series.points[0].value)
