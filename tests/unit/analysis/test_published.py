"""A published result and this run's own: the ratio, and whether the direction is the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from labctl.analysis.judge import judge
from labctl.analysis.studies import Agreement, Published, Repeated, published
from labctl.analysis.verdicts.looks import until
from labctl.base.stopping import Looks
from labctl.store.records.plan_record import PlanRecord
from labctl.store.run_folder import LoadedRun
from tests.unit.analysis.alter import only, with_plan, with_values
from tests.unit.synthetic import WORKLOADS, synthetic_run

SPEED = {"tuning": "pinned", "against": "baseline", "metric": "events_per_s"}


def run(**shape: Any) -> LoadedRun:
    return synthetic_run(workloads={"sysbench-cpu": WORKLOADS["sysbench-cpu"]}, **shape)


def beside(of: LoadedRun, *results: dict[str, Any]) -> Published:
    given = [{"direction": "higher", **SPEED, **item} for item in results]
    for item in given:
        if "against_workload" in item:
            item["against"] = item["tuning"]
    return published(with_plan(of, published=[{"source": "A study.", "results": given}]))


def only_one(of: LoadedRun, **result: Any) -> Repeated:
    (found,) = beside(of, result).results
    return found


@pytest.mark.parametrize(
    ("effect", "direction", "agreement"),
    [
        (1.3, "higher", Agreement.SAME),
        (1.3, "lower", Agreement.OTHER),
        (0.7, "lower", Agreement.SAME),
        (0.7, "higher", Agreement.OTHER),
    ],
)
def test_the_direction_is_the_runs_own_where_its_interval_shows_one(
    effect: float, direction: str, agreement: Agreement
) -> None:
    found = only_one(run(effects={"pinned": effect}), direction=direction, ratio=2.0)
    assert found.agreement is agreement
    assert found.ratio == pytest.approx(effect, rel=0.05)
    assert found.published == 2.0


def test_the_ratio_is_the_one_that_the_report_has() -> None:
    measured = run(effects={"pinned": 1.3})
    theirs = only(judge(measured), "pinned", "baseline", "events_per_s")
    assert only_one(measured).ratio == pytest.approx(theirs.estimate)


def test_noise_shows_no_direction() -> None:
    found = only_one(run(effects={}, noise=0.3))
    assert (found.agreement, found.why) == (Agreement.NOT_SHOWN, "the interval includes no change")


def test_fewer_than_ten_blocks_show_no_direction() -> None:
    found = only_one(run(effects={"pinned": 3.0}, blocks=9))
    assert (found.agreement, found.why) == (
        Agreement.NOT_SHOWN,
        "9 of the 10 blocks that it needs",
    )
    assert found.ratio == pytest.approx(3.0, rel=0.05)


def test_labels_named_in_part_are_summed() -> None:
    measured = run()
    for kind, value in (("voluntary", 30.0), ("involuntary", 10.0)):
        key = f"ctx_switches{{kind={kind},of=workload}}"
        measured = with_values(measured, "pinned", key, lambda block, _, v=value: v + block)
        for arm in ("baseline", "control"):
            measured = with_values(measured, arm, key, lambda block, _, v=value: 2 * (v + block))
    found = only_one(measured, metric="ctx_switches{of=workload}", direction="lower", ratio=0.7)
    assert found.ratio == pytest.approx(0.5)


def test_a_total_beside_its_parts_is_not_summed_with_them() -> None:
    measured = run(accelerator="kvm", exit_reasons={"HLT": 900.0}, noise=0.001)
    measured = with_values(measured, "pinned", "exits", lambda _, value: value / 2)
    found = only_one(measured, metric="exits", direction="lower")
    assert found.ratio == pytest.approx(0.5, rel=0.01)


def test_a_zero_has_no_ratio() -> None:
    measured = with_values(run(), "pinned", "events_per_s", lambda block, old: 0.0)
    found = only_one(measured)
    assert (found.agreement, found.ratio) == (Agreement.NOT_MEASURED, None)
    assert found.why == "it is 0 or less in some block"


@pytest.mark.parametrize(
    ("result", "why"),
    [
        ({"metric": "exits"}, "emulated: no VM exits"),
        ({"metric": "watts"}, "pinned has no value of it"),
        ({"tuning": "isolcpus"}, "needs a reboot"),
    ],
)
def test_what_is_not_measured_says_why(result: dict[str, Any], why: str) -> None:
    measured = with_plan(run(), skipped={"isolcpus": "needs a reboot"})
    found = only_one(measured, **result)
    assert (found.agreement, found.why) == (Agreement.NOT_MEASURED, why)


def test_results_stand_under_the_workloads_and_conditions_that_they_name() -> None:
    measured = synthetic_run(conditions=("quiet", "neighbour"), blocks=2)
    found = beside(measured, {"workload": "sysbench-cpu", "condition": "quiet"}, {}).results
    assert len(found) == 1 + 4


def test_a_run_without_them_has_none() -> None:
    assert published(run(blocks=1)) == Published(sources=(), results=())
    nothing = replace(run(blocks=1), plan=PlanRecord())
    assert published(nothing).results == ()


def test_blocks_that_decide_nothing_are_not_in_it() -> None:
    extended = with_plan(
        run(effects={"pinned": 1.3}, blocks=15), extensions=[{"first_block": 11, "last_block": 15}]
    )
    before = only_one(until(extended, 10))
    assert before.blocks == 10
    assert only_one(extended) == before


def test_where_a_rule_may_end_the_run_the_interval_is_as_wide_as_that_takes() -> None:
    """With looks a direction may not be had from the luckiest of several days."""
    plain, looked = (only_one(run(blocks=15, stopping=r)) for r in (None, Looks(at=(10, 15))))
    assert (looked.ratio, looked.blocks) == (plain.ratio, plain.blocks)
    assert _width(looked) > _width(plain)


def _width(of: Repeated) -> float:
    assert of.low is not None
    assert of.high is not None
    return of.high - of.low


def test_before_the_first_declared_look_no_direction_is_shown() -> None:
    found = only_one(run(effects={"pinned": 3.0}, stopping=Looks(at=(11, 20))))
    assert (found.agreement, found.why) == (
        Agreement.NOT_SHOWN,
        "before the first look that the plan declares",
    )
    assert found.ratio == pytest.approx(3.0, rel=0.05)


def test_where_the_control_failed_no_direction_against_baseline_is_shown() -> None:
    measured = run(effects={"pinned": 3.0, "control": 1.5})
    against_baseline = only_one(measured)
    assert (against_baseline.agreement, against_baseline.why) == (
        Agreement.NOT_SHOWN,
        "the A/A control failed: baseline differs from itself",
    )
    assert only_one(measured, against="handicap").agreement is Agreement.SAME


def test_an_arm_is_no_reference_of_its_own() -> None:
    """A control at half of baseline is at half of it, not at 0.5 / sqrt(0.5) of their mean."""
    measured = run(effects={"control": 0.5})
    assert only_one(measured, tuning="control").ratio == pytest.approx(0.5, rel=0.05)
    itself = only_one(measured, tuning="baseline")
    assert (itself.agreement, itself.ratio) == (Agreement.NOT_MEASURED, None)


def test_levels_of_a_factor_are_compared_in_one_arm() -> None:
    cells = {f"matrix[policy={level}]": WORKLOADS["sysbench-cpu"] for level in ("fifo", "other")}
    measured = synthetic_run(workloads=cells)
    (found,) = beside(
        measured,
        {
            "tuning": "baseline",
            "workload": "matrix[policy=fifo]",
            "against_workload": "matrix[policy=other]",
        },
    ).results
    assert (found.against, found.against_workload) == ("baseline", "matrix[policy=other]")
    assert found.blocks == 10
    assert found.ratio == pytest.approx(1.0, rel=0.2)
