"""A published result and this run's own: the ratio, and whether the direction is the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from labctl.analysis.judge import judge
from labctl.analysis.published import Agreement, Published, Repeated, published
from labctl.store.run_folder import LoadedRun
from tests.unit.analysis.alter import only, with_plan, with_values
from tests.unit.synthetic import WORKLOADS, synthetic_run

SPEED = {"tuning": "pinned", "against": "baseline", "metric": "events_per_s"}


def run(**shape: Any) -> LoadedRun:
    return synthetic_run(workloads={"sysbench-cpu": WORKLOADS["sysbench-cpu"]}, **shape)


def beside(of: LoadedRun, *results: dict[str, Any]) -> Published:
    given = [{"direction": "higher", **SPEED, **item} for item in results]
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
    assert (found.agreement, found.why) == (Agreement.NOT_SHOWN, "the interval holds no change")


def test_fewer_than_ten_blocks_show_no_direction() -> None:
    found = only_one(run(effects={"pinned": 3.0}, blocks=9))
    assert (found.agreement, found.why) == (
        Agreement.NOT_SHOWN,
        "9 of the 10 blocks that it takes",
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
    nothing = replace(run(blocks=1), plan={})
    assert published(nothing).results == ()
