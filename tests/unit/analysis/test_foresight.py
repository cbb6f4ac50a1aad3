"""What a plan says beforehand that it will exclude, it excludes as often as it says."""

from __future__ import annotations

from dataclasses import replace
from math import expm1, log
from typing import Any

import numpy as np
import pytest

from labctl.analysis.effects.cells import Scenario
from labctl.analysis.foresight import Spreading, foresee, spreads
from labctl.analysis.model import EffectKind, Role
from labctl.analysis.verdicts.decide import decide
from labctl.store.records.plan_record import PlanRecord
from tests.unit.analysis.alter import with_plan
from tests.unit.records import plan_of
from tests.unit.synthetic import synthetic_run
from tools.calibrate.sweeps import LATENCY, Latency, Sweep, paired, simulate, verdicts

SWEEP = Sweep(effects={"one": 1.62, "other": 1.62}, workloads=1, conditions=1)
PLACE = Scenario("workload 2", "condition 1")


def planned(sweep: Sweep) -> PlanRecord:
    [run] = simulate(sweep, runs=1, seed=1, name="planned")
    return run.plan


@pytest.mark.parametrize(
    ("blocks", "per_boot", "allowed"), [(10, 1, 0.5), (10, 2, 0.5), (20, 1, 0.1), (13, 1, 1.5)]
)
def test_at_the_foreseen_spread_a_loss_is_excluded_in_80_percent_of_runs(
    blocks: int, per_boot: int, allowed: float
) -> None:
    latency = Latency(effects={}, sd=1.0, no_worse_than=allowed, margin=0.05)
    sweep = replace(SWEEP, blocks=blocks, blocks_per_boot=per_boot, latencies=[latency])
    foreseen = {item.workload: item for item in foresee(planned(sweep), {})}
    there = replace(latency, sd=paired(foreseen["workload 2"].spread))
    runs = verdicts(replace(sweep, latencies=[there]), runs=500, seed=20, name="foreseen")
    shown = [c.no_worse for of in runs for c in of.comparisons if c.metric == LATENCY]
    shown = [one for one in shown if one is not None]
    assert len(shown) == 1000
    assert np.mean(shown) == pytest.approx(0.8, abs=0.05)


def test_a_wider_margin_and_more_blocks_allow_more_noise() -> None:
    def spread(blocks: int, allowed: float) -> float:
        latency = Latency(effects={}, sd=0.1, no_worse_than=allowed)
        plan = planned(replace(SWEEP, blocks=blocks, latencies=[latency]))
        return next(item.spread for item in foresee(plan, {}) if item.workload == "workload 2")

    assert spread(10, 0.2) < spread(10, 0.5) < spread(20, 0.5)


def test_an_earlier_run_tells_how_much_the_plan_could_exclude() -> None:
    """At the largest spread at which the loss is excluded, just that loss is."""
    latency = Latency(effects={}, sd=0.1, no_worse_than=0.5)
    plan = planned(replace(SWEEP, latencies=[latency]))
    foreseen = {item.workload: item for item in foresee(plan, {})}["workload 2"]
    assert foreseen.earlier is None
    then = {PLACE: Spreading("before", foreseen.spread, EffectKind.RATIO)}
    [_, again] = foresee(plan, then)
    assert again.earlier is not None
    assert again.earlier.run == "before"
    assert again.earlier.excludes == pytest.approx(0.5)
    wider = {PLACE: Spreading("before", 2 * foreseen.spread, EffectKind.RATIO)}
    [_, noisy] = foresee(plan, wider)
    assert noisy.earlier is not None
    assert noisy.earlier.excludes == pytest.approx(expm1(2 * log(1.5)))


def test_the_spread_of_an_earlier_run_is_that_of_its_blocks_effects() -> None:
    run = synthetic_run(boots=10, tunings=["baseline", "control", "handicap", "pinned"])
    found = spreads(run, run.plan)
    assert set(found) == {
        Scenario("sysbench-cpu", "neighbour"),
        Scenario("fio-randread", "neighbour"),
    }
    for c in decide(run).comparisons:
        if c.role is Role.PRIMARY:
            own = np.std([log(effect) for effect in c.blocks.values()], ddof=1)
            assert found[Scenario(c.workload, c.condition)].spread == pytest.approx(own)


@pytest.mark.parametrize(
    "changed", [{"duration_s": 10.0}, {"primary": "latency_p95"}, {"parameters": {}}]
)
def test_what_an_earlier_run_measured_otherwise_says_nothing(changed: dict[str, Any]) -> None:
    run = synthetic_run(boots=10)
    workloads = {**run.plan.to_json()["workloads"]}
    workloads["sysbench-cpu"] = {**workloads["sysbench-cpu"], **changed}
    assert set(spreads(run, plan_of({**run.plan.to_json(), "workloads": workloads}))) == {
        Scenario("fio-randread", "neighbour")
    }


@pytest.mark.parametrize("lacking", ["control", "blocks", "tunings"])
def test_a_plan_that_can_recommend_nothing_foresees_nothing(lacking: str) -> None:
    tunings = ["baseline", "control", "handicap", "pinned"]
    without = {
        "control": synthetic_run(tunings=["baseline", "handicap", "pinned"]),
        "blocks": synthetic_run(blocks=9, tunings=tunings),
        "tunings": synthetic_run(tunings=tunings[:-1]),
    }
    assert foresee(synthetic_run(tunings=tunings).plan, {}) != []
    assert foresee(without[lacking].plan, {}) == []


def test_an_earlier_run_without_a_plan_says_nothing() -> None:
    run = synthetic_run()
    assert spreads(with_plan(replace(run, plan=PlanRecord()), trials=[]), run.plan) == {}
