"""What a fleet's hosts say together: who may take a tuning, which hosts and groups differ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np
import pytest

from labctl.analysis.hosts.fleet import (
    GROUPING,
    LEVEL,
    FleetJudgement,
    HostEffect,
    HostFacts,
    HostRow,
    Take,
    Where,
    host_effects,
    host_facts,
)
from labctl.analysis.hosts.judge import ALPHA, ONE_BOOT, judge_fleet
from labctl.analysis.hosts.pool import Hosts, pool
from labctl.analysis.judge import judge
from labctl.analysis.model import Role
from labctl.report.fleet_words import answer_lead, apart_lines, apart_title, controls_sentence
from tests.unit.synthetic import synthetic_run

ALIKE = HostFacts(
    cpu_model="EPYC", kernel="6.12", firmware="0x1", topology="8 cores", accelerator="kvm"
)
EFFECT = HostEffect(
    tuning="pinned",
    against="baseline",
    workload="sysbench-cpu",
    condition="neighbour",
    metric="events_per_s",
    unit="1/s",
    better="higher",
    kind="ratio",
    role="primary",
    estimate=0.0,
    error=0.01,
    units=10,
    boots=5,
    blocks=10,
    verdict="improves",
    margin=0.05,
    no_worse_than=0.05,
    control="passed",
)


def rows(
    estimates: Sequence[float],
    *,
    facts: Sequence[HostFacts] = (),
    **changes: Any,
) -> list[HostRow]:
    return [
        HostRow(
            host=f"h{number}",
            facts=facts[number] if facts else ALIKE,
            effect=replace(EFFECT, estimate=estimate, **changes),
        )
        for number, estimate in enumerate(estimates)
    ]


def spread(mean: float, count: int, sd: float = 0.01, seed: int = 1) -> list[float]:
    rng = np.random.default_rng(seed)
    return [float(value) for value in rng.normal(mean, sd, count)]


def of_level(estimates: Sequence[float], **changes: Any) -> list[HostRow]:
    return rows(estimates, tuning="baseline", against="", kind=LEVEL, verdict=None, **changes)


def codes(judged: FleetJudgement) -> Mapping[str, Take]:
    return {answer.group: answer.code for answer in judged.answers}


def test_a_claim_about_all_hosts_takes_values_from_half_of_them() -> None:
    """Nine hosts of a thousand gain; the others' runs say nothing of it, or only of fio."""
    silent = rows(spread(0.2, 40), control="failed")[9:]
    few = judge_fleet([*rows(spread(0.2, 9)), *silent])
    assert codes(few) == {"all hosts": Take.FEW}
    assert few.answers[0].why.startswith("only 9 of 40 hosts have a value in sysbench-cpu")
    half = judge_fleet([*rows(spread(0.2, 20)), *silent[11:]])
    assert codes(half) == {"all hosts": Take.TAKE}
    assert answer_lead(half.answers[0]).startswith("All hosts (values from 20 of 40) may take")
    assert controls_sentence(half) == "The A/A control failed on 20 of 40 hosts (50 %)"


@pytest.mark.parametrize(("least", "code"), [(0.2, Take.TAKE), (0.5, Take.FEW), (1.0, Take.FEW)])
def test_a_policy_may_declare_another_share(least: float, code: Take) -> None:
    values = [*rows(spread(0.2, 9)), *rows(spread(0.2, 40), control="failed")[9:]]
    judged = judge_fleet(values, least_share=least)
    assert codes(judged) == {"all hosts": code}
    assert judged.least_share == least


def test_no_outlier_is_only_said_of_hosts_that_were_compared() -> None:
    assert apart_title(judge_fleet(rows(spread(0.2, 3))), []) == (
        "Outlier hosts: too few hosts to compare"
    )
    assert apart_title(judge_fleet(rows(spread(0.2, 4))), []) == "No outlier hosts"


def test_hosts_that_all_gain_may_take_the_tuning() -> None:
    judged = judge_fleet(rows(spread(0.2, 6)))
    assert codes(judged) == {"all hosts": Take.TAKE}
    pooled = judged.effects[0].whole.pooled
    assert pooled is not None
    assert pooled.mean == pytest.approx(0.2, abs=0.02)


def test_a_mean_gain_is_not_enough_where_a_host_may_lose_what_counts_as_harm() -> None:
    judged = judge_fleet(rows([0.9, 0.0, 0.5, -0.1, 0.4, 0.6, 0.2, 0.1]))
    pooled = judged.effects[0].whole.pooled
    assert pooled is not None
    assert pooled.low > 0  # the mean does gain
    assert pooled.new_low < -math.log(1.05)
    assert codes(judged) == {"all hosts": Take.OPEN}


def test_a_loss_in_one_place_outweighs_a_gain_in_another() -> None:
    gain = rows(spread(0.2, 6))
    loss = rows(spread(-0.2, 6, seed=2), workload="fio-randread")
    assert codes(judge_fleet(gain + loss)) == {"all hosts": Take.HARM}
    nothing = rows(spread(0.0, 6, seed=3), workload="fio-randread")
    assert codes(judge_fleet(gain + nothing)) == {"all hosts": Take.TAKE}


def test_of_latencies_less_is_the_better_direction() -> None:
    assert codes(judge_fleet(rows(spread(-0.2, 6), better="lower"))) == {"all hosts": Take.TAKE}
    assert codes(judge_fleet(rows(spread(0.2, 6), better="lower"))) == {"all hosts": Take.HARM}


def test_without_a_loss_that_counts_as_harm_none_is_made_up() -> None:
    judged = judge_fleet(rows(spread(0.2, 6), no_worse_than=None))
    assert judged.effects[0].no_worse_than is None
    assert codes(judged) == {"all hosts": Take.OPEN}


def test_differences_are_judged_in_their_unit() -> None:
    judged = judge_fleet(
        rows(spread(0.2, 6), kind="difference", unit="CPU-s/s", margin=0.1, no_worse_than=0.1)
    )
    assert codes(judged) == {"all hosts": Take.TAKE}
    unknown = rows(spread(0.2, 6), kind="difference", margin=None, no_worse_than=None)
    assert codes(judge_fleet(unknown)) == {"all hosts": Take.OPEN}


def test_where_no_direction_is_better_nothing_is_advised() -> None:
    assert codes(judge_fleet(rows(spread(0.2, 6), better="neither"))) == {"all hosts": Take.OPEN}


@pytest.mark.parametrize("count", [1, 2])
def test_two_hosts_are_too_few(count: int) -> None:
    judged = judge_fleet(rows(spread(0.2, count)))
    assert codes(judged) == {"all hosts": Take.FEW}
    assert judged.effects[0].whole.why == "at least 3 hosts are needed"


def test_an_empty_fleet_has_no_answer() -> None:
    judged = judge_fleet([])
    assert (judged.effects, judged.answers, judged.measured) == ((), (), 0)


def test_groups_that_differ_get_an_answer_each() -> None:
    old = replace(ALIKE, kernel="6.1")
    facts = [old] * 6 + [ALIKE] * 6
    judged = judge_fleet(rows(spread(-0.2, 6) + spread(0.2, 6), facts=facts))
    assert codes(judged) == {"6.1": Take.HARM, "6.12": Take.TAKE}
    assert {answer.by for answer in judged.answers} == {"kernel"}
    differing = [split.fact for split in judged.effects[0].splits if split.differs]
    assert differing == ["kernel"]


def test_a_place_that_one_group_alone_measured_counts_for_its_answer() -> None:
    facts = [replace(ALIKE, kernel="6.1")] * 6 + [ALIKE] * 6
    both = rows(spread(-0.2, 6) + spread(0.2, 6), facts=facts)
    alone = rows(spread(-0.2, 12), facts=facts, workload="fio-randread")[6:]
    judged = judge_fleet([*both, *alone])
    assert codes(judged) == {"6.1": Take.HARM, "6.12": Take.HARM}
    one_group = judged.effects[1].splits
    assert [(split.fact, split.p, len(split.groups)) for split in one_group] == [
        ("kernel", None, 1)
    ]
    gains = rows(spread(0.2, 12), facts=facts, workload="fio-randread")[6:]
    assert codes(judge_fleet([*both, *gains])) == {"6.1": Take.HARM, "6.12": Take.TAKE}


def test_groups_of_equal_effects_are_one_answer() -> None:
    facts = [replace(ALIKE, kernel="6.1")] * 6 + [ALIKE] * 6
    judged = judge_fleet(rows(spread(0.2, 12), facts=facts))
    assert codes(judged) == {"all hosts": Take.TAKE}


def test_a_host_apart_in_its_effect_is_named_alone() -> None:
    judged = judge_fleet(rows([*spread(0.2, 6), -0.6]))
    assert [point.host for point in judged.effects[0].points if point.is_apart] == ["h6"]


def test_a_host_is_held_against_its_own_group_where_groups_differ() -> None:
    """Against both groups together it lies in the middle."""
    facts = [replace(ALIKE, kernel="6.1")] * 8 + [ALIKE] * 8
    estimates = [*spread(-0.5, 7), 0.0, *spread(0.5, 8)]
    judged = judge_fleet(rows(estimates, facts=facts))
    [point] = [point for point in judged.effects[0].points if point.is_apart]
    assert point.host == "h7"
    assert point.typical == pytest.approx(np.median(estimates[:7]))
    [line] = apart_lines(judged)
    assert (line.others, line.change) == ("\N{MINUS SIGN}39 %", "+64 %")


def test_points_are_sorted_by_effect_also_over_groups() -> None:
    facts = [replace(ALIKE, kernel="6.1"), ALIKE] * 6
    judged = judge_fleet(rows(spread(0.2, 12, sd=0.1), facts=facts))
    found = [point.estimate for point in judged.effects[0].points]
    assert found == sorted(found)


def test_a_slow_host_shows_in_its_level_and_not_in_its_effects() -> None:
    effects = rows(spread(0.2, 5))
    levels = of_level([*spread(6.0, 4, sd=0.02), 6.0 - math.log(2)])
    judged = judge_fleet(effects + levels)
    assert [p.host for p in judged.levels[0].points if p.is_apart] == ["h4"]
    assert not any(point.is_apart for point in judged.effects[0].points)


@pytest.mark.parametrize("seed", range(5))
def test_a_host_at_half_speed_is_named_in_a_fleet_of_five_runs(seed: int) -> None:
    """From simulated runs on, so that levels have the noise of their blocks and boots."""
    found = []
    for number in range(5):
        speed = 0.5 if number == 2 else 1.0
        arms = ("baseline", "control", "handicap", "pinned")
        run = synthetic_run(
            seed=100 * seed + number,
            blocks=10,
            boots=5,
            tunings=arms,
            primary_only=True,
            effects={arm: speed * (1.2 if arm == "pinned" else 1.0) for arm in arms},
        )
        found += [
            HostRow(host=f"h{number}", facts=host_facts(run), effect=one)
            for one in host_effects(run)
        ]
    judged = judge_fleet(found)
    named = {p.host for level in judged.levels for p in level.points if p.is_apart}
    assert named == {"h2"}
    assert not any(point.is_apart for one in judged.effects for point in one.points)


@pytest.mark.parametrize("field", ["cpu_model", "kernel", "topology"])
def test_levels_are_compared_among_hosts_alike_alone(field: str) -> None:
    other = replace(ALIKE, **{field: "other"})
    levels = of_level([*spread(6.0, 5), 5.0], facts=[ALIKE] * 5 + [other])
    judged = judge_fleet(levels)
    assert not any(point.is_apart for level in judged.levels for point in level.points)
    assert [level.why for level in judged.levels if len(level.points) == 1] == [
        "at least 4 similar hosts are needed"
    ]


def test_with_one_boot_per_host_it_is_not_said_that_hosts_differ() -> None:
    judged = judge_fleet(rows([0.0, 0.2, 0.4, 0.6], boots=1))
    effect = judged.effects[0]
    assert (effect.p, effect.differ, effect.why_no_test) == (None, False, ONE_BOOT)
    assert any("only one boot" in warning for warning in judged.warnings)
    two = judge_fleet(rows([0.0, 0.2, 0.4, 0.6], boots=2))
    assert two.effects[0].differ


def test_emulated_hosts_are_never_pooled_with_others() -> None:
    facts = [replace(ALIKE, accelerator="tcg")] * 4 + [ALIKE] * 4
    judged = judge_fleet(rows(spread(0.2, 8), facts=facts))
    assert [(one.place.accelerator, len(one.points)) for one in judged.effects] == [
        ("tcg", 4),
        ("kvm", 4),
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"verdict": "different durability"},
        {"verdict": "before the first look"},
        {"control": "failed"},
        {"control": "missing"},
    ],
)
def test_what_a_host_could_not_judge_is_not_pooled(changes: dict[str, str]) -> None:
    good, bad = rows(spread(0.2, 4)), rows([9.0], **changes)
    judged = judge_fleet([*good, replace(bad[0], host="bad")])
    assert [host for host, _ in judged.effects[0].left_out] == ["bad"]
    assert len(judged.effects[0].points) == 4
    assert any("bad" in warning for warning in judged.warnings)


def test_a_verdict_that_hangs_on_the_effect_leaves_no_host_out() -> None:
    """Else hosts with small effects would go, and the mean would be of those with large ones."""
    judged = judge_fleet(rows(spread(0.02, 6), verdict="suspended", control="open"))
    assert judged.effects[0].left_out == ()


def test_a_runs_control_is_told_apart_from_its_verdicts() -> None:
    def controls(**options: Any) -> set[str | None]:
        run = synthetic_run(blocks=10, boots=5, **options)
        return {one.control for one in host_effects(run) if one.role == "primary"}

    assert "failed" in controls(effects={"control": 0.5, "pinned": 1.2})
    assert controls(tunings=("native", "baseline", "pinned")) == {"missing", None}
    assert "open" in controls(noise=0.5)


def test_a_host_without_a_spread_is_left_out_with_the_reason() -> None:
    good, tied = rows(spread(0.2, 4)), rows([0.2], error=None)
    judged = judge_fleet([*good, replace(tied[0], host="tied")])
    assert judged.effects[0].left_out == (("tied", "its blocks show no spread"),)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("estimate", "error"),
    [(1e300, 0.01), (-math.inf, 0.01), (math.nan, 0.01), (0.2, 1e-300), (0.2, math.inf)],
)
def test_numbers_of_no_measurement_are_left_out(estimate: float, error: float) -> None:
    good, wild = rows(spread(0.2, 4)), rows([estimate], error=error)
    judged = judge_fleet([*good, replace(wild[0], host="wild")])
    assert [host for host, _ in judged.effects[0].left_out] == ["wild"]
    assert codes(judged) == {"all hosts": Take.TAKE}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("estimate", "error"), [(1e59, 0.01), (0.2, 1e-59), (0.2, 1e59)])
def test_the_largest_and_smallest_numbers_leave_the_others_judged(
    estimate: float, error: float
) -> None:
    good, wild = rows(spread(0.2, 4)), rows([estimate], error=error)
    pooled = judge_fleet([*good, replace(wild[0], host="wild")]).effects[0].whole.pooled
    assert pooled is not None
    assert math.isfinite(pooled.new_low)


def test_hosts_of_one_and_the_same_run_have_no_spread_between_them() -> None:
    judged = judge_fleet(rows([0.2] * 4))
    pooled = judged.effects[0].whole.pooled
    assert pooled is not None
    assert pooled.tau == 0.0
    assert not judged.effects[0].differ


def test_one_machine_under_two_names_is_told() -> None:
    boots = [replace(ALIKE, boot_id=boot) for boot in ("a", "b", "b", None, None)]
    (warning,) = judge_fleet(rows(spread(0.2, 5), facts=boots)).warnings
    assert "2 of the hosts recorded the same boot of one kernel (h1, h2)" in warning
    alone = [replace(ALIKE, boot_id=boot) for boot in "abcde"]
    assert judge_fleet(rows(spread(0.2, 5), facts=alone)).warnings == ()


def test_a_redacted_run_has_no_boot_of_its_own() -> None:
    run = synthetic_run(blocks=2)
    known = run.run.but(host={"boot_id": "0f17"})
    redacted = {"at": "", "labctl": "0", "taken_out": {}, "left_out": 0}
    assert host_facts(replace(run, run=known)).boot_id == "0f17"
    assert host_facts(replace(run, run=known.but(redacted=redacted))).boot_id is None


def test_claims_are_shared_among_all_places() -> None:
    both = rows(spread(0.2, 4)) + rows(spread(0.2, 4), workload="fio-randread")
    assert judge_fleet(both).confidence == pytest.approx(0.975)


def test_intervals_of_groups_hold_together_over_facts_and_groups() -> None:
    """Else one of many groups would be said to gain by chance."""
    facts = [replace(ALIKE, kernel="6.1")] * 6 + [ALIKE] * 6
    estimates = spread(0.2, 12)
    [effect] = judge_fleet(rows(estimates, facts=facts)).effects
    [split] = [split for split in effect.splits if split.fact == "kernel"]
    hosts = Hosts(np.array(sorted(estimates[:6])), np.full(6, 0.01), np.full(6, 10.0))
    wanted = pool(hosts, ALPHA / (2 * len(GROUPING)), ALPHA)
    found = next(group.pooled for group in split.groups if group.group == "6.1")
    assert found is not None
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high))
    assert (found.new_low, found.new_high) == pytest.approx((wanted.new_low, wanted.new_high))


def test_a_place_is_where_its_effects_are() -> None:
    [effect] = judge_fleet(rows(spread(0.2, 4))).effects
    names = [field.name for field in fields(Where)]
    assert [getattr(effect.place, name) for name in names] == [
        getattr(EFFECT, name) for name in names
    ]


def test_exploratory_comparisons_are_passed_over() -> None:
    assert judge_fleet(rows(spread(0.2, 4), role=str(Role.EXPLORATORY))).effects == ()


def test_a_run_adds_what_its_own_report_says() -> None:
    run = synthetic_run(blocks=10, boots=5, boot_noise={"pinned": 0.05})
    primary = [one for one in host_effects(run) if one.role == "primary" and one.kind == "ratio"]
    reported = {
        (one.tuning, one.workload): one
        for one in judge(run).comparisons
        if one.role is Role.PRIMARY
    }
    assert len(primary) == len(reported) > 0
    for one in primary:
        said = reported[one.tuning, one.workload]
        assert math.exp(one.estimate) == pytest.approx(said.estimate)
        assert (one.error, one.units, one.boots) == (said.error, said.units, said.boots)
        assert one.verdict == said.verdict


def test_the_level_of_a_run_is_its_baselines_typical_value() -> None:
    run = synthetic_run(blocks=10, boots=5)
    levels = {one.workload: one.estimate for one in host_effects(run) if one.kind == LEVEL}
    typical = {
        one.workload: one.typical
        for one in judge(run).levels
        if one.tuning == "baseline" and one.metric in ("events_per_s", "iops")
    }
    assert {name: math.exp(value) for name, value in levels.items()} == pytest.approx(typical)


def test_facts_that_were_not_recorded_are_a_group_of_their_own() -> None:
    run = synthetic_run(blocks=2)
    record = run.run.but(host={"cpu_model": {"unavailable": "no /proc/cpuinfo"}, "smt": "on"})
    facts = host_facts(replace(run, run=record))
    assert (facts.cpu_model, facts.kernel) == ("not recorded", "not recorded")


def test_facts_of_a_host_that_says_anything_are_short_texts_that_a_table_holds() -> None:
    run = synthetic_run(blocks=2)
    odd = "\ud800" * 10_000
    host = {
        "cpu_model": odd,
        "kernel_release": [odd],
        "microcode": {"unit": odd},
        "topology": {odd: {"x": odd}},
        "boot_id": odd,
    }
    facts = asdict(host_facts(replace(run, run=run.run.but(host=host))))
    assert {len(text) <= 200 for text in facts.values()} == {True}
    for text in facts.values():
        text.encode()
