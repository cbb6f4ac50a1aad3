"""Which hosts of a fleet may take a tuning, why others must not, and what it costs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from labctl.analysis.hosts.fleet import HostRow, HostState, Take
from labctl.analysis.hosts.judge import (
    advised_tunings,
    hosts_that_may,
    judge_fleet,
    look_first,
    price,
)
from tests.unit.analysis.test_fleet_judge import ALIKE, codes, of_level, rows, spread

SIX = tuple(f"h{number}" for number in range(6))


def states(count: int, **others: str) -> list[HostState]:
    """h0 to hN done, and others with a status of their own."""
    done = [HostState(host=f"h{number}", status="done") for number in range(count)]
    lost = [HostState(host=host, status=status, reason="why") for host, status in others.items()]
    return [*done, *lost]


def test_all_hosts_may_where_the_answer_is_one_for_all() -> None:
    taken = hosts_that_may(judge_fleet(rows(spread(0.2, 6)), states(6)), "pinned")
    assert (taken.hosts, taken.others) == (SIX, ())
    assert (taken.tuning, taken.accelerator) == ("pinned", "kvm")


def test_only_the_hosts_of_the_group_that_may() -> None:
    facts = [replace(ALIKE, kernel="6.1")] * 6 + [ALIKE] * 6
    judged = judge_fleet(rows(spread(-0.2, 6) + spread(0.2, 6), facts=facts))
    taken = hosts_that_may(judged, "pinned")
    assert set(taken.hosts) == {f"h{number}" for number in range(6, 12)}
    others = dict(taken.others)
    assert set(others) == set(SIX)
    assert others["h0"].startswith("does harm for hosts with kernel 6.1: its mean effect is a loss")


@pytest.mark.parametrize("estimate", [0.3, 0.1])
def test_a_host_apart_is_left_out_whichever_way_it_is(estimate: float) -> None:
    judged = judge_fleet(rows([*spread(0.2, 20, sd=0.003), estimate], error=0.003), states(21))
    assert codes(judged) == {"all hosts": Take.TAKE}
    taken = hosts_that_may(judged, "pinned")
    assert "h20" not in taken.hosts
    assert len(taken.hosts) == 20
    [(host, why)] = taken.others
    assert host == "h20"
    assert why.startswith("is an outlier: +")
    assert why.endswith("in events/s, sysbench-cpu with a noisy neighbour, on others +22 %")


def test_a_host_apart_in_another_tuning_may_take_this_one() -> None:
    other = rows([*spread(0.2, 20, sd=0.003), 0.1], error=0.003, tuning="other")
    judged = judge_fleet([*rows(spread(0.2, 21)), *other])
    assert "h20" in hosts_that_may(judged, "pinned").hosts
    assert "h20" not in hosts_that_may(judged, "other").hosts


def test_hosts_that_are_not_done_are_left_out_with_their_status() -> None:
    judged = judge_fleet(rows(spread(0.2, 6)), states(6, h6="unreachable", h7="waiting"))
    taken = hosts_that_may(judged, "pinned")
    assert taken.hosts == SIX
    assert dict(taken.others) == {
        "h6": "was not measured: unreachable, why",
        "h7": "was not measured: waiting, why",
    }


def test_a_done_host_that_was_taken_in_and_is_no_more_done_is_left_out() -> None:
    gone = [HostState(host="h0", status="failed"), *states(6)[1:]]
    taken = hosts_that_may(judge_fleet(rows(spread(0.2, 6)), gone), "pinned")
    assert dict(taken.others) == {"h0": "was not measured: failed"}


def test_a_host_that_lacks_a_place_is_left_out_with_the_place() -> None:
    everywhere = rows(spread(0.2, 6))
    elsewhere = rows(spread(0.2, 6), workload="fio-randread")[1:]
    failed = replace(elsewhere[0], effect=replace(elsewhere[0].effect, control="failed"))
    taken = hosts_that_may(judge_fleet([*everywhere, failed, *elsewhere[1:]]), "pinned")
    assert taken.hosts == SIX[2:]
    there = "was not measured in fio-randread with a noisy neighbour"
    assert dict(taken.others) == {
        "h0": there,
        "h1": f"{there}: its A/A control failed: baseline differs from itself",
    }


def test_a_done_host_without_the_tuning_is_left_out() -> None:
    taken = hosts_that_may(judge_fleet(rows(spread(0.2, 6)), states(7)), "pinned")
    assert dict(taken.others) == {"h6": "its run has no primary value of 'pinned'"}


@pytest.mark.parametrize("count", [0, 1, 2])
def test_no_host_may_take_what_too_few_measured(count: int) -> None:
    taken = hosts_that_may(judge_fleet(rows(spread(0.2, count))), "pinned")
    assert taken.hosts == ()
    assert len(taken.others) == count


def test_no_host_may_take_what_was_not_measured() -> None:
    taken = hosts_that_may(judge_fleet(rows(spread(0.2, 6)), states(6)), "other")
    assert (taken.hosts, taken.accelerator) == ((), "")
    assert len(taken.others) == 6


def test_each_accelerators_hosts_have_its_answer() -> None:
    facts = [ALIKE] * 6 + [replace(ALIKE, accelerator="tcg")] * 6
    judged = judge_fleet(rows(spread(0.2, 6) + spread(0.0, 6), facts=facts))
    taken = hosts_that_may(judged, "pinned")
    assert (taken.hosts, taken.accelerator) == (SIX, "kvm, tcg")


def _of(tunings: dict[str, float], **changes: Any) -> list[HostRow]:
    return [
        row
        for tuning, mean in tunings.items()
        for row in rows(spread(mean, 6), tuning=tuning, **changes)
    ]


def test_the_tuning_with_the_largest_effect_is_advised_first() -> None:
    judged = judge_fleet(_of({"small": 0.1, "large": 0.4, "none": 0.0, "harm": -0.2}))
    assert advised_tunings(judged) == ("large", "small")


def test_gains_in_two_places_come_before_a_larger_one() -> None:
    here = _of({"one": 0.4, "two": 0.1})
    there = _of({"one": 0.0, "two": 0.1}, workload="fio-randread")
    assert advised_tunings(judge_fleet([*here, *there])) == ("two", "one")


def test_effects_of_different_metrics_are_compared_in_margins() -> None:
    ratio = rows(spread(0.2, 6), tuning="ratio")
    difference = rows(
        spread(3.0, 6), tuning="difference", kind="difference", margin=2.0, no_worse_than=2.0
    )
    assert advised_tunings(judge_fleet([*difference, *ratio])) == ("ratio", "difference")


def test_a_host_whose_own_run_shows_harm_is_to_be_looked_at() -> None:
    members = rows(spread(0.2, 6))
    lossy = replace(members[2], effect=replace(members[2].effect, verdict="regresses"))
    judged = judge_fleet([*members[:2], lossy, *members[3:]], states(6))
    [(host, why)] = look_first(judged, hosts_that_may(judged, "pinned"))
    assert host == "h2"
    assert why.startswith("its run shows a loss of")
    assert why.endswith(" in events/s, sysbench-cpu with a noisy neighbour")


def test_a_slow_host_and_one_with_a_remark_are_to_be_looked_at() -> None:
    levels = of_level([*spread(6.0, 5, sd=0.02), 5.3])
    remark = HostState(host="h0", status="done", reason="its gate did not pass")
    judged = judge_fleet([*rows(spread(0.2, 6)), *levels], [remark, *states(6)[1:]])
    found = dict(look_first(judged, hosts_that_may(judged, "pinned")))
    assert set(found) == {"h5", "h0"}
    assert found["h5"].startswith("its baseline is an outlier among similar hosts: −5")
    assert found["h0"] == "its gate did not pass"


def _exploratory(estimates: Sequence[float], metric: str, **changes: Any) -> list[HostRow]:
    return rows(estimates, metric=metric, role="exploratory", verdict=None, **changes)


def test_the_price_is_what_got_worse_primary_metrics_first() -> None:
    loss = rows(spread(-0.01, 6, sd=0.002), workload="fio-randread", error=0.002)
    judged = judge_fleet([*rows(spread(0.2, 6)), *loss])
    assert codes(judged) == {"all hosts": Take.TAKE}
    others = [
        *_exploratory(spread(-0.2, 6), "neighbour_ops_per_s"),
        *_exploratory(spread(0.2, 6), "latency_p95", better="lower", unit="s"),
        *_exploratory(spread(0.2, 6), "latency_p99", better="higher"),
        *_exploratory(spread(0.0, 6), "latency_p50", better="lower"),
        *_exploratory(spread(-0.2, 6), "exits"),
        *_exploratory(spread(-0.2, 6), "ops_per_cpu_s", against="native"),
        *_exploratory(spread(-0.2, 2), "ops_per_cpu_s"),
    ]
    found = price(judged, "pinned", others)
    assert [(one.place.metric, one.place.workload, one.judged) for one in found] == [
        ("events_per_s", "fio-randread", True),
        ("neighbour_ops_per_s", "sysbench-cpu", False),
        ("latency_p95", "sysbench-cpu", False),
    ]
    assert found[1].pooled.mean == pytest.approx(-0.2, abs=0.02)
    assert price(judged, "other", others) == ()
