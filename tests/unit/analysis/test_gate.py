"""Rules held against runs whose effects are known."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labctl.analysis.gate.policy import Policy, Rule, Undecided, load_policy
from labctl.analysis.gate.rules import Finding, GateResult, Outcome, gate
from labctl.base.errors import UsageError
from labctl.store.records.plan_record import PlanRecord
from tests.unit.records import plan_of, run_of
from tests.unit.synthetic import WORKLOADS, synthetic_run

SPEED = {"workload": "sysbench-cpu", "metric": "events_per_s"}


def rule(**fields: Any) -> Rule:
    return Rule(**{**SPEED, **fields})


def held(given: Rule, undecided: Undecided = Undecided.OPEN, **shape: Any) -> GateResult:
    return gate(synthetic_run(**shape), Policy(undecided=undecided, rules=[given]), {})


def finding(given: Rule, **shape: Any) -> Finding:
    (one,) = held(given, **shape).findings
    return one


@pytest.mark.parametrize(
    ("effect", "limit", "outcome"),
    [
        (1.3, {"better_by_at_least": "20 %"}, Outcome.HOLDS),
        (1.1, {"better_by_at_least": "20 %"}, Outcome.VIOLATED),
        (1.205, {"better_by_at_least": "20 %"}, Outcome.UNDECIDED),
        (0.8, {"worse_by_at_most": "10 %"}, Outcome.VIOLATED),
        (0.99, {"worse_by_at_most": "10 %"}, Outcome.HOLDS),
        (3.0, {"worse_by_at_most": "10 %"}, Outcome.HOLDS),
        (1.0, {"within": "5 %"}, Outcome.HOLDS),
        (1.2, {"within": "5 %"}, Outcome.VIOLATED),
        (0.8, {"within": "5 %"}, Outcome.VIOLATED),
    ],
)
def test_a_known_effect_is_decided_as_the_rule_says(
    effect: float, limit: dict[str, Any], outcome: Outcome
) -> None:
    given = rule(tuning="pinned", against="baseline", **limit)
    effects = {"handicap": 0.95, "pinned": effect}
    assert finding(given, effects=effects, noise=0.01).outcome is outcome


@pytest.mark.parametrize(("slower", "outcome"), [(1.3, Outcome.HOLDS), (0.7, Outcome.VIOLATED)])
def test_of_a_latency_less_is_better(slower: float, outcome: Outcome) -> None:
    given = Rule(
        workload="sysbench-cpu",
        metric="latency_p95",
        tuning="pinned",
        against="baseline",
        worse_by_at_most="10 %",
    )
    found = finding(given, effects={"pinned": slower}, noise=0.01)
    assert found.outcome is outcome
    assert found.estimate is not None
    assert (found.estimate < 1) is (slower > 1)


@pytest.mark.parametrize(
    ("limit", "outcome"),
    [
        ({"above": 300}, Outcome.HOLDS),
        ({"above": 600}, Outcome.VIOLATED),
        ({"below": 600}, Outcome.HOLDS),
        ({"below": 300}, Outcome.VIOLATED),
    ],
)
def test_a_value_is_held_against_a_number(limit: dict[str, Any], outcome: Outcome) -> None:
    given = rule(tuning="baseline", **limit)
    assert finding(given, block_noise=0.02).outcome is outcome


def test_a_pattern_speaks_of_what_may_be_rolled_out_alone() -> None:
    found = held(rule(tuning="*", against="baseline", worse_by_at_most="50 %")).findings
    assert [one.tuning for one in found] == ["pinned", "pinned+fifo"]


@pytest.mark.parametrize(
    ("workload", "found"),
    [("it[policy=fifo]", 1), ("it*", 2), ("it[[]policy=f*", 1), ("*", 2)],
)
def test_a_cell_of_factors_is_named_as_it_is_or_by_a_pattern(workload: str, found: int) -> None:
    entry = next(iter(WORKLOADS.values()))
    cells = dict.fromkeys(["it[policy=fifo]", "it[policy=rr]"], entry)
    given = rule(workload=workload, tuning="pinned", against="baseline", within="50 %")
    assert len(held(given, workloads=cells).findings) == found


def test_twin_is_each_tunings_own() -> None:
    found = held(rule(tuning="pin*", against="twin", within="10 %")).findings
    assert [one.against for one in found] == ["native+pinned", "native+fifo"]


@pytest.mark.parametrize(
    ("undecided", "passed"),
    [(Undecided.FAIL, False), (Undecided.PASS, True), (Undecided.OPEN, None)],
)
@pytest.mark.parametrize(
    "given",
    [
        rule(tuning="pinned", against="baseline", within="5 %"),
        Rule(tuning="baseline", metric="exits", workload="sysbench-cpu", below=1.0),
    ],
    ids=["too few blocks", "unavailable"],
)
def test_what_is_undecided_counts_as_the_policy_says(
    given: Rule, undecided: Undecided, passed: bool | None
) -> None:
    result = held(given, undecided, blocks=3)
    assert result.findings[0].outcome is Outcome.UNDECIDED
    assert result.passed is passed


@pytest.mark.parametrize(
    ("limit", "amount", "is_share"),
    [
        ({"below": "3 ms"}, 0.003, False),
        ({"above": "2 MB/s"}, 2e6, False),
        ({"below": "57 %"}, 0.57, False),
        ({"below": 3.0}, 3, False),
        ({"within": "57 %", "against": "baseline"}, 0.57, True),
        ({"within": "3 us", "against": "baseline"}, 3e-6, False),
    ],
)
def test_a_limit_may_have_a_unit(limit: dict[str, Any], amount: float, is_share: bool) -> None:
    found = Rule(metric="latency_p95", **limit)
    assert (found.amount, found.is_share) == (pytest.approx(amount, rel=1e-15), is_share)


def test_a_limit_in_milliseconds_is_the_same_in_seconds() -> None:
    made = [
        held(Rule(tuning="pinned", metric="latency_p95", below=below)).findings[0]
        for below in ("900 ms", 0.9)
    ]
    assert made[0].outcome is made[1].outcome
    assert made[0].outcome is not Outcome.UNDECIDED


def test_a_rule_may_say_otherwise_than_its_policy() -> None:
    given = rule(tuning="pinned", above=1, undecided="pass")
    assert held(given, Undecided.FAIL, blocks=3).passed is True


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (rule(tuning="pined", above=1), "the run has no tuning 'pined', and a rule that matches"),
        (rule(tuning="pined", above=1), "Did you mean 'pinned'?"),
        (rule(workload="sysbenchcpu", above=1), "no workload 'sysbenchcpu'"),
        (rule(condition="quite", above=1), "no condition 'quite'"),
        (rule(metric="event_per_s", above=1), "Did you mean 'events_per_s'?"),
        (rule(tuning="pinned", against="basline", within="5 %"), "Did you mean 'baseline'?"),
        (rule(tuning="pinned", against="baseline", within=5), "the limit must be a share"),
        (rule(tuning="pinned", below="3 ms"), "events_per_s is in 1/s, but the limit is in s"),
        (rule(tuning="pinned", metric="latency_max", above=1), "only be compared with 'below'"),
        (
            Rule(
                tuning="pinned", metric="ctx_switches", against="baseline", better_by_at_least=1.0
            ),
            "has no better direction",
        ),
    ],
)
def test_a_rule_with_a_slip_does_not_pass_whatever_the_policy_says(given: Rule, why: str) -> None:
    result = held(given, Undecided.PASS)
    assert result.passed is None
    assert why in result.findings[0].why
    assert held(given, Undecided.FAIL).passed is False


def test_a_run_without_trials_passes_nothing() -> None:
    policy = Policy(undecided=Undecided.PASS, rules=[rule(tuning="pinned", above=1)])
    nothing = replace(synthetic_run(), plan=PlanRecord(), trials=())
    result = gate(nothing, policy, {})
    assert (result.passed, result.findings[0].why) == (None, "the run has no trials")


def test_what_a_run_skipped_is_no_slip() -> None:
    run = synthetic_run()
    skipping = replace(
        run, plan=plan_of({**run.plan.to_json(), "skipped": {"isolcpus": "needs a reboot"}})
    )
    policy = Policy(undecided=Undecided.PASS, rules=[rule(tuning="isolcpus", above=1)])
    result = gate(skipping, policy, {})
    assert result.passed is True
    assert result.findings[0].why == "'isolcpus' was skipped: needs a reboot"


@pytest.mark.parametrize(("tuning", "side"), [("native", "native"), ("pinned", "guest")])
def test_a_workload_that_a_side_cannot_run_is_no_slip_there(tuning: str, side: str) -> None:
    run = synthetic_run()
    lacks = {"timerlat": {side: f"its kernel has no tracer ({side})"}}
    skipping = replace(run, plan=plan_of({**run.plan.to_json(), "skipped_workloads": lacks}))
    given = rule(tuning=tuning, workload="timerlat", metric="latency_p95", below=1)
    result = gate(skipping, Policy(undecided=Undecided.PASS, rules=[given]), {})
    assert result.passed is True
    assert result.findings[0].why == f"'timerlat' was skipped: its kernel has no tracer ({side})"


def test_a_condition_that_the_host_cannot_have_is_no_slip() -> None:
    run = synthetic_run()
    lacks = {"beside": "no core has two threads"}
    skipping = replace(run, plan=plan_of({**run.plan.to_json(), "skipped_conditions": lacks}))
    given = rule(tuning="pinned", condition="beside", metric="latency_p95", below=1)
    result = gate(skipping, Policy(undecided=Undecided.PASS, rules=[given]), {})
    assert result.passed is True
    assert result.findings[0].why == "'beside' was skipped: no core has two threads"


def test_a_rule_about_every_tuning_does_not_forget_one_that_failed_to_run() -> None:
    invalid = [("pinned", "sysbench-cpu", block) for block in range(1, 11)]
    given = rule(tuning="*", against="baseline", worse_by_at_most="50 %")
    result = held(given, invalid=invalid)
    assert result.passed is None
    assert [(f.tuning, f.outcome) for f in result.findings] == [
        ("pinned+fifo", Outcome.HOLDS),
        ("pinned", Outcome.UNDECIDED),
    ]
    assert result.findings[1].why == "no valid trial of it has events_per_s"


def test_a_rule_about_every_condition_does_not_forget_one_that_gave_nothing() -> None:
    run = synthetic_run(conditions=("quiet", "neighbour"))
    quiet = tuple(t for t in run.trials if t.record.cell["condition"] == "quiet")
    policy = Policy(
        undecided=Undecided.OPEN, rules=[rule(tuning="pinned", against="baseline", within="900 %")]
    )
    result = gate(replace(run, trials=quiet), policy, {})
    assert [(f.condition, f.outcome) for f in result.findings] == [
        ("quiet", Outcome.HOLDS),
        ("neighbour", Outcome.UNDECIDED),
    ]


def test_a_rule_about_every_workload_leaves_those_alone_that_have_no_such_metric() -> None:
    given = rule(workload="*", tuning="pinned", against="baseline", within="900 %")
    assert [f.workload for f in held(given).findings] == ["sysbench-cpu"]


def facts(*names: str) -> Rule:
    return Rule(facts=list(names), like="fleet")


@pytest.mark.parametrize(
    ("names", "theirs", "outcome", "why"),
    [
        (["kernel_release"], {"kernel_release": "6.1"}, Outcome.HOLDS, ""),
        (["all"], {"kernel_release": "6.1", "qemu": "7.2"}, Outcome.HOLDS, ""),
        (
            ["kernel_release"],
            {"kernel_release": "6.12"},
            Outcome.VIOLATED,
            "kernel is 6.1, there 6.12",
        ),
        (["all"], {"kernel_release": "6.12"}, Outcome.VIOLATED, "kernel is 6.1, there 6.12"),
        (["microcode"], {}, Outcome.UNDECIDED, "microcode is unknown for synthetic and fleet"),
        (
            ["kernel_release", "qemu"],
            {"kernel_release": "6.1"},
            Outcome.UNDECIDED,
            "QEMU is unknown for fleet",
        ),
        (
            ["qemu"],
            {"qemu": {"unavailable": "no program"}},
            Outcome.UNDECIDED,
            "QEMU is unknown for fleet",
        ),
        (["accelerator"], {}, Outcome.HOLDS, ""),
        (["guest.kernel_release"], {}, Outcome.UNDECIDED, "the guest's kernel is unknown"),
    ],
)
def test_facts_are_held_against_those_of_another_run(
    names: list[str], theirs: dict[str, Any], outcome: Outcome, why: str
) -> None:
    run = synthetic_run()
    us = replace(
        run, run=run_of({**run.run.to_json(), "host": {"kernel_release": "6.1", "qemu": "7.2"}})
    )
    them = replace(run, name="fleet", run=run_of({**run.run.to_json(), "host": theirs}))
    policy = Policy(undecided=Undecided.OPEN, rules=[facts(*names)])
    (found,) = gate(us, policy, {"fleet": them}).findings
    assert found.outcome is outcome
    assert why in found.why


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"accelerator": "kvm"}, "one is emulated"),
        ({"imported": {"file": "x.csv"}}, "was imported"),
    ],
)
def test_values_that_say_nothing_of_each_other_decide_nothing(
    change: dict[str, Any], why: str
) -> None:
    run = synthetic_run(block_noise=0.02, noise=0.01)
    other = replace(run, name="fleet", run=run_of({**run.run.to_json(), **change}))
    policy = Policy(
        undecided=Undecided.OPEN, rules=[rule(tuning="baseline", like="fleet", within="20 %")]
    )
    (found,) = gate(run, policy, {"fleet": other}).findings
    assert found.outcome is Outcome.UNDECIDED
    assert why in found.why


def test_a_tuning_of_another_definition_decides_nothing() -> None:
    run = synthetic_run(block_noise=0.02, noise=0.01)
    tunings = {
        **run.plan.to_json()["tunings"],
        "pinned": {**run.plan.to_json()["tunings"]["pinned"], "digest": "x"},
    }
    other = replace(run, name="fleet", plan=plan_of({**run.plan.to_json(), "tunings": tunings}))
    policy = Policy(
        undecided=Undecided.OPEN, rules=[rule(tuning="pinned", like="fleet", within="20 %")]
    )
    (found,) = gate(run, policy, {"fleet": other}).findings
    assert found.why == "pinned has a different definition in fleet"


def test_a_violation_is_stronger_than_what_is_open() -> None:
    policy = Policy(
        undecided=Undecided.OPEN,
        rules=[rule(tuning="nowhere", above=1), rule(tuning="baseline", above=1e6)],
    )
    assert gate(synthetic_run(), policy, {}).passed is False


def test_a_failed_control_leaves_what_is_against_baseline_undecided() -> None:
    given = rule(tuning="pinned", against="baseline", better_by_at_least="20 %")
    found = finding(given, effects={"pinned": 3.0, "control": 1.3}, noise=0.01)
    assert (found.outcome, found.why) == (
        Outcome.UNDECIDED,
        "the A/A control failed: baseline differs from itself",
    )


def test_a_share_of_what_is_compared_by_difference_decides_nothing() -> None:
    given = Rule(
        workload="sysbench-cpu",
        metric="host_cpu{thread=vcpu}",
        tuning="pinned",
        against="baseline",
        within="5 %",
    )
    found = finding(given)
    assert found.outcome is Outcome.UNDECIDED
    assert "the limit must be a number" in found.why


def test_another_run_is_compared_by_its_values() -> None:
    policy = Policy(
        undecided=Undecided.OPEN, rules=[rule(tuning="baseline", like="fleet", within="20 %")]
    )
    quiet = {"block_noise": 0.02, "noise": 0.01}
    same, slow = synthetic_run(seed=2, **quiet), synthetic_run(seed=3, **quiet)
    assert gate(same, policy, {"fleet": synthetic_run(seed=9, **quiet)}).passed is True
    faster = synthetic_run(seed=4, effects={"baseline": 2.0, "control": 2.0}, **quiet)
    assert gate(slow, policy, {"fleet": faster}).passed is False


def test_equal_arms_rarely_violate_any_of_many_rules() -> None:
    """At 5 % for the whole gate: of 300 gates at most 25 fail, which 15 would on average."""
    rng = random.Random(5)
    rules = [rule(tuning="*", against="baseline", within=f"{n / 1000} %") for n in range(1, 9)]
    policy = Policy(undecided=Undecided.PASS, rules=rules)
    failed = sum(
        gate(
            synthetic_run(seed=rng.randrange(10**6), effects={}, primary_only=True, noise=0.05),
            policy,
            {},
        ).passed
        is False
        for _ in range(300)
    )
    assert failed <= 25


def test_the_policy_in_the_docs_is_one(tmp_path: Path) -> None:
    docs = Path(__file__).parents[3] / "docs" / "gate.md"
    path = tmp_path / "policy.yaml"
    path.write_text(docs.read_text().partition("```yaml\n")[2].partition("```")[0])
    assert len(load_policy(path).rules) == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rules: [{metric: x, above: 1}]", "key 'undecided' is missing"),
        ("undecided: maybe\nrules: [{metric: x, above: 1}]", "'undecided' is 'maybe'"),
        ("undecided: fail\nrules: []", "'rules'"),
        ("undecided: fail\nrules:\n  - metric: x", "policy.yaml:3: 'rules.0'"),
        ("undecided: fail\nrules:\n  - {metric: x, above: 1, below: 2}", "exactly one of"),
        ("undecided: fail\nrules:\n  - {metric: x, within: 5 %}", "'against' or 'like'"),
        ("undecided: fail\nrules:\n  - {metric: x, above: 1, against: y}", "value itself"),
        (
            "undecided: fail\nrules:\n  - {metric: x, within: 5, against: y, like: z}",
            "not both",
        ),
        ("undecided: fail\nrules:\n  - {metric: x, within: -5 %, against: y}", "a share such"),
        ("undecided: fail\nrules:\n  - {metric: x, within: -5.0, against: y}", "above 0"),
        ("undecided: fail\nrules:\n  - {metrik: x, above: 1}", "metric"),
        (
            "undecided: fail\nrules:\n  - {above: 1}",
            "a rule needs a 'metric', 'facts' or a 'grade'",
        ),
        ("undecided: fail\nrules:\n  - {facts: [kernel], like: x}", "Did you mean"),
        ("undecided: fail\nrules:\n  - {facts: [all]}", "another run: add 'like'"),
        ("undecided: fail\nrules:\n  - {facts: [all], like: x, within: 5}", "leave out 'within'"),
        ("undecided: fail\nrules:\n  - {facts: [all], like: x, tuning: y}", "leave out 'tuning'"),
        ("undecided: fail\nrules:\n  - {grade: candidate}", "needs one 'tuning', named"),
        ("undecided: fail\nrules:\n  - {grade: candidate, tuning: 'p*'}", "without a pattern"),
        (
            "undecided: fail\nrules:\n  - {grade: confirmed, tuning: p, below: 5}",
            "leave out 'below'",
        ),
        ("undecided: fail\nrules:\n  - {grade: sure, tuning: p}", "grade"),
    ],
)
def test_a_wrong_policy_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as raised:
        load_policy(path)
    assert message in str(raised.value.message)
    assert str(path) in str(raised.value.message)


def test_a_run_without_a_plan_that_can_be_read_keeps_no_rule_by_accident() -> None:
    """Nothing tells which arm is the control, so it drops out of what a tuning is held against."""
    given = rule(tuning="pinned+fifo", against="baseline", worse_by_at_most="5 %")
    whole = synthetic_run(noise=0.005)
    policy = Policy(undecided=Undecided.OPEN, rules=[given])
    assert gate(whole, policy, {}).passed is True
    cut = replace(whole, plan=PlanRecord(), problems=("plan.json cannot be read",))
    result = gate(cut, policy, {})
    assert result.passed is None
    assert result.cautions == ("plan.json cannot be read",)


def test_a_gate_says_that_its_run_was_imported() -> None:
    run = synthetic_run()
    given = rule(tuning="pinned", against="baseline", worse_by_at_most="5 %")
    source = {"file": "trials.csv", "sha256": "0" * 64, "rows": 3}
    imported = replace(run, run=run_of({**run.run.to_json(), "imported": source}))
    (caution,) = gate(imported, Policy(undecided=Undecided.OPEN, rules=[given]), {}).cautions
    assert caution.startswith("Imported from 'trials.csv'")
