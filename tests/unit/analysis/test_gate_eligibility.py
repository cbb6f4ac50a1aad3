"""A gate says no more of a run than its control, its known loss and its stopping rule allow."""

from __future__ import annotations

from typing import Any

import pytest

from labctl.analysis.gate.policy import Policy, Rule, Undecided
from labctl.analysis.gate.rules import Finding, Outcome, gate
from labctl.base.stopping import Looks, Stopping
from tests.unit.synthetic import WORKLOADS, synthetic_run

ARMS = ("baseline", "control", "handicap", "pinned")
ONE = {"sysbench-cpu": WORKLOADS["sysbench-cpu"]}
UNCHECKED = ("baseline", "handicap", "pinned")

WIDE = {"seed": 17, "noise": 0.03}
"""A control whose interval reaches beyond the threshold of 5 % and still holds 0."""


def found(tuning: str = "pinned", against: str = "baseline", **fields: Any) -> Finding:
    """What becomes of one rule; the run's shape beside the rule's limit."""
    limits = ("within", "worse_by_at_most", "better_by_at_least")
    limit = {name: fields.pop(name) for name in limits if name in fields}
    shape = {
        "tunings": ARMS,
        "workloads": ONE,
        "boots": 10,
        "noise": 0.005,
        "primary_only": True,
        **fields,
    }
    metric = "latency_p95" if not shape["primary_only"] else "events_per_s"
    rule = Rule(tuning=tuning, metric=metric, against=against, **limit)
    policy = Policy(undecided=Undecided.PASS, rules=[rule])
    (one,) = gate(synthetic_run(**shape), policy, {}).findings
    return one


@pytest.mark.parametrize("limit", ["within", "worse_by_at_most"])
@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ({"seed": 10, "effects": {"handicap": 1.0}}, "the known loss was not detected"),
        (
            {"seed": 5, "tunings": ("baseline", "control", "pinned"), "effects": {}},
            "the known-loss arm was not checked",
        ),
        (
            {"seed": 5, "tunings": UNCHECKED, "effects": {"handicap": 0.95}},
            "the A/A control could not be checked in sysbench-cpu with a noisy neighbour: the run "
            "has none",
        ),
        ({**WIDE, "effects": {"handicap": 0.93}}, "the A/A control cannot exclude a bias of up to"),
        (
            {**WIDE, "effects": {"handicap": 0.3}},
            "the known loss was detected, but that does not show that a loss as small as",
        ),
    ],
    ids=["blind", "no handicap", "no control", "a wide control", "a huge loss"],
)
def test_no_effect_is_not_shown_by_a_run_that_may_not_say_so(
    limit: str, shape: dict[str, Any], why: str
) -> None:
    one = found(**{limit: "5 %"}, **shape)
    assert one.outcome is Outcome.UNDECIDED
    assert why in one.why
    assert one.estimate is not None


@pytest.mark.parametrize("limit", ["within", "worse_by_at_most"])
def test_no_effect_is_shown_by_a_run_that_found_its_handicap(limit: str) -> None:
    one = found(**{limit: "5 %"}, seed=10, effects={"handicap": 0.95})
    assert (one.outcome, one.why) == (Outcome.HOLDS, "")


@pytest.mark.parametrize(
    ("limit", "effect", "outcome"),
    [
        ({"better_by_at_least": "1 %"}, 1.03, Outcome.UNDECIDED),
        ({"better_by_at_least": "20 %"}, 1.5, Outcome.HOLDS),
        ({"better_by_at_least": "20 %"}, 1.0, Outcome.VIOLATED),
        ({"worse_by_at_most": "5 %"}, 0.9, Outcome.UNDECIDED),
        ({"worse_by_at_most": "5 %"}, 0.7, Outcome.VIOLATED),
        ({"worse_by_at_most": "5 %"}, 1.5, Outcome.HOLDS),
        ({"within": "5 %"}, 0.9, Outcome.UNDECIDED),
        ({"within": "5 %"}, 1.5, Outcome.VIOLATED),
    ],
)
def test_beyond_the_reach_of_a_wide_control_a_rule_is_decided(
    limit: dict[str, str], effect: float, outcome: Outcome
) -> None:
    one = found(**limit, **WIDE, effects={"handicap": 0.8, "pinned": effect})
    assert one.outcome is outcome
    assert ("the A/A control cannot exclude a bias of up to" in one.why) is (
        outcome is Outcome.UNDECIDED
    )


def test_a_blind_run_does_not_break_a_rule_that_asks_for_a_gain() -> None:
    one = found(better_by_at_least="5 %", seed=10, effects={"handicap": 1.0})
    assert one.outcome is Outcome.UNDECIDED
    assert "the known loss was not detected" in one.why


def test_what_is_worse_needs_no_handicap_to_be_no_gain() -> None:
    one = found(better_by_at_least="5 %", seed=10, effects={"handicap": 1.0, "pinned": 0.7})
    assert one.outcome is Outcome.VIOLATED


def test_what_is_better_needs_no_handicap_to_be_no_worse() -> None:
    one = found(worse_by_at_most="5 %", seed=10, effects={"handicap": 1.0, "pinned": 1.3})
    assert one.outcome is Outcome.HOLDS


def test_a_metric_that_is_no_primary_has_no_check_of_its_own() -> None:
    one = found(within="5 %", primary_only=False, seed=5, tunings=UNCHECKED, effects={})
    assert (one.metric, one.outcome) == ("latency_p95", Outcome.HOLDS)


def test_against_the_control_the_same_is_asked_as_against_baseline() -> None:
    one = found(against="control", within="5 %", seed=10, effects={"handicap": 1.0})
    assert one.why.startswith("the known loss was not detected")


@pytest.mark.parametrize(("tuning", "against"), [("control", "baseline"), ("baseline", "control")])
def test_the_control_is_held_against_the_whole_difference(tuning: str, against: str) -> None:
    effects = {"control": 1.08, "handicap": 0.95}
    one = found(tuning, against, within="5 %", noise=0.01, effects=effects)
    assert one.outcome is Outcome.VIOLATED
    assert one.estimate == pytest.approx(1.08 if tuning == "control" else 1 / 1.08, abs=0.02)


@pytest.mark.parametrize("name", ["baseline", "control", "pinned"])
def test_an_arm_against_itself_shows_nothing(name: str) -> None:
    one = found(name, name, within="5 %", effects={"handicap": 0.95})
    assert (one.outcome, one.why) == (
        Outcome.UNDECIDED,
        f"{name} cannot be compared with itself",
    )
    assert one.counts_as is Undecided.OPEN


def test_a_run_that_a_rule_may_end_pays_for_it_where_a_rule_is_kept() -> None:
    """0.5 % at each of ten looks: what lies within the limit at 5 % need not do so then."""
    shape = {"seed": 1, "noise": 0.025, "effects": {"handicap": 0.8}}
    plain = found(within="4 %", **shape)
    looked = found(within="4 %", stopping=Looks(at=tuple(range(10, 20)), drops=False), **shape)
    assert (plain.outcome, looked.outcome) == (Outcome.HOLDS, Outcome.UNDECIDED)
    assert looked.why == "the interval includes both"


@pytest.mark.parametrize(
    ("limit", "effect", "outcome"),
    [
        ({"within": "20 %"}, 1.0, Outcome.HOLDS),
        ({"within": "20 %"}, 0.88, Outcome.UNDECIDED),
        ({"within": "20 %"}, 0.5, Outcome.VIOLATED),
        ({"worse_by_at_most": "20 %"}, 0.97, Outcome.HOLDS),
        ({"worse_by_at_most": "20 %"}, 0.78, Outcome.UNDECIDED),
        ({"worse_by_at_most": "20 %"}, 0.5, Outcome.VIOLATED),
        ({"better_by_at_least": "20 %"}, 1.24, Outcome.UNDECIDED),
    ],
)
def test_a_wide_control_is_held_against_the_rule_s_own_limit(
    limit: dict[str, str], effect: float, outcome: Outcome
) -> None:
    """A bias that the control leaves open lies between the threshold of 5 % and the limit."""
    one = found(**limit, **WIDE, effects={"handicap": 0.8, "pinned": effect})
    assert one.outcome is outcome
    assert ("the A/A control cannot exclude a bias of up to" in one.why) is (
        outcome is Outcome.UNDECIDED
    )


TIGHT = {"seed": 3, "blocks": 30, "boots": 30, "noise": 0.012, "effects": {"handicap": 0.8}}
"""A control that keeps to the threshold, but not to 0.5 %, which would not be seen either."""


@pytest.mark.parametrize(
    ("limit", "effect", "outcome"),
    [
        ("5 %", 1.0, Outcome.HOLDS),
        ("0.5 %", 1.0, Outcome.UNDECIDED),
        ("0.5 %", 0.97, Outcome.VIOLATED),
        ("0.5 %", 1.005, Outcome.HOLDS),
    ],
)
def test_a_rule_that_asks_for_less_than_the_threshold_takes_a_run_that_sees_less(
    limit: str, effect: float, outcome: Outcome
) -> None:
    effects = {"handicap": 0.8, "pinned": effect}
    one = found(worse_by_at_most=limit, **{**TIGHT, "effects": effects})
    assert one.outcome is outcome
    why = "the known loss was detected, but that does not show that a loss as small as"
    assert (why in one.why) is (outcome is Outcome.UNDECIDED)


@pytest.mark.parametrize(("limit", "outcome"), [("5 %", Outcome.HOLDS), ("3 %", Outcome.UNDECIDED)])
def test_and_a_control_that_shows_less(limit: str, outcome: Outcome) -> None:
    """Its reach of 4 % is below the threshold, and a loss of 3 % would have been seen."""
    one = found(worse_by_at_most=limit, seed=17, noise=0.02, effects={"handicap": 0.95})
    assert one.outcome is outcome
    assert ("the A/A control cannot exclude a bias of up to 4 %" in one.why) is (
        outcome is Outcome.UNDECIDED
    )


def like(ours: Stopping | None, theirs: Stopping | None, effect: float = 1.0) -> Finding:
    """Baseline against that of a run that is the same but for its seed and its own rule."""
    shape: dict[str, Any] = {"tunings": ARMS, "primary_only": True, "noise": 0.02, "blocks": 20}
    shape |= {"boots": 20, "block_noise": 0.02, "workloads": ONE}
    run = synthetic_run(seed=4, stopping=ours, effects={"baseline": effect}, **shape)
    other = synthetic_run(seed=5, stopping=theirs, effects={}, **shape)
    rule = Rule(tuning="baseline", metric="events_per_s", like="fleet", within="5 %")
    policy = Policy(undecided=Undecided.OPEN, rules=[rule])
    (one,) = gate(run, policy, {"fleet": other}).findings
    return one


@pytest.mark.parametrize(
    ("effect", "outcome"),
    [(1.0, Outcome.HOLDS), (1.2, Outcome.VIOLATED), (1.05, Outcome.UNDECIDED)],
)
def test_another_run_decides_by_its_values(effect: float, outcome: Outcome) -> None:
    assert like(None, None, effect).outcome is outcome


def test_what_rests_on_two_runs_pays_for_the_looks_of_both() -> None:
    looks = Looks(at=(10, 20), drops=False)
    plain, mine, yours, both = (
        like(*rules) for rules in ((None, None), (looks, None), (None, looks), (looks, looks))
    )
    widths = [one.high / one.low for one in (plain, mine, yours, both) if one.high and one.low]
    assert widths == sorted(widths)
    assert widths[1] == pytest.approx(widths[2])
    assert widths[0] + 0.005 < widths[1] < widths[3] - 0.005


def test_looks_of_the_other_run_alone_can_leave_a_rule_undecided() -> None:
    assert like(None, None, 1.015).outcome is Outcome.HOLDS
    many = Looks(at=tuple(range(10, 21)), drops=False)
    assert like(None, many, 1.015).outcome is Outcome.UNDECIDED
