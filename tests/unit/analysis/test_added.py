"""What the verdicts rest on in a run that was extended, or that looks at its result."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from labctl.analysis.compare.two_runs import compare_runs
from labctl.analysis.gate.policy import Policy, Rule, Undecided
from labctl.analysis.gate.rules import Outcome, gate
from labctl.analysis.judge import judge
from labctl.analysis.model import Role
from labctl.analysis.verdicts.decide import confirmatory
from labctl.analysis.verdicts.looks import ending, until
from labctl.analysis.verdicts.table import Verdict
from labctl.base.stopping import Looks, Stopping, UntilWidth
from labctl.store.run_folder import LoadedRun
from tests.unit.analysis.alter import primaries, with_plan, with_run
from tests.unit.synthetic import synthetic_run

LOOKS = Looks(at=(10, 15, 20), drops=False)


def made(blocks: int, **options: Any) -> LoadedRun:
    return synthetic_run(
        tunings=["baseline", "control", "handicap", "one"],
        effects={"handicap": 0.95, "one": 1.2},
        noise=0.01,
        primary_only=True,
        blocks=blocks,
        **options,
    )


def extended(first: int, last: int, stopping: Stopping | None = None) -> LoadedRun:
    """A run of `last` blocks, of which those from `first` on are an extension."""
    added = [{"first_block": first, "last_block": last}]
    return with_plan(made(last, stopping=stopping), extensions=added)


def test_the_verdicts_of_an_extended_run_are_those_that_it_had_before() -> None:
    run = extended(11, 15)
    before, after = judge(until(run, 10)), judge(run)
    assert after.comparisons == before.comparisons
    assert (after.control, after.known_loss) == (before.control, before.known_loss)
    assert (after.answer, after.blocks) == (before.answer, 10)
    assert (before.added, before.ending) == (None, None)


def test_the_estimates_over_all_blocks_stand_apart_and_have_no_verdict() -> None:
    judgement = judge(extended(11, 15))
    added = judgement.added
    assert added is not None
    assert added.label == "exploratory: blocks 11 to 15 were added after the result was known"
    assert judgement.warnings[0] == (
        "Exploratory: blocks 11 to 15 were added after the result was known. "
        "The verdicts rest on the 10 blocks before."
    )
    at_once = [c for c in judge(made(15)).comparisons if c.role is Role.PRIMARY]
    assert [c.estimate for c in added.comparisons] == [c.estimate for c in at_once]
    assert {(c.verdict, c.role, len(c.blocks)) for c in added.comparisons} == {
        (None, Role.EXPLORATORY, 15)
    }
    # Trials are counted over the whole run.
    assert (judgement.planned, judgement.done) == (120, 120)


def test_an_extension_that_goes_on_is_not_the_planned_blocks_being_unfinished() -> None:
    whole = with_run(extended(11, 15), status="interrupted")
    run = replace(whole, trials=tuple(t for t in whole.trials if t.record.block <= 12))
    judgement = judge(run)
    assert judgement.blocks == 10
    assert any("96 of 120 planned trials" in text for text in judgement.warnings)
    assert judgement.added is not None
    assert judgement.added.last == 12


@pytest.mark.parametrize(
    ("blocks", "rests_on"), [(9, 9), (10, 10), (14, 10), (15, 15), (19, 15), (20, 20)]
)
def test_with_looks_the_verdicts_rest_on_the_last_one_that_was_reached(
    blocks: int, rests_on: int
) -> None:
    whole = made(20, stopping=LOOKS)
    run = replace(whole, trials=tuple(t for t in whole.trials if t.record.block <= blocks))
    judgement = judge(run)
    assert judgement.blocks == rests_on
    assert (judgement.added is None) == (blocks == rests_on)
    if blocks == 14:
        assert judgement.added is not None
        assert judgement.added.label == (
            "exploratory: blocks 11 to 14 come before the look at 15, which is not reached yet"
        )


def test_a_look_is_reached_when_its_last_block_is_whole() -> None:
    run = made(20, stopping=LOOKS)
    until_15 = [t for t in run.trials if t.record.block <= 15]
    assert judge(replace(run, trials=tuple(until_15))).blocks == 15
    assert judge(replace(run, trials=tuple(until_15[:-1]))).blocks == 10


def test_an_extension_to_a_declared_look_decides_and_one_beyond_it_does_not() -> None:
    """A run that ended at its look after ten blocks, and was given more."""
    to_a_look, beyond = extended(11, 15, LOOKS), extended(11, 17, LOOKS)
    assert confirmatory(to_a_look) is to_a_look
    assert judge(to_a_look).added is None
    ended = ending(with_run(to_a_look, stopped={"blocks": 10, "why": "all had a verdict"}))
    assert ended is not None
    assert ended.endswith(
        "Blocks 11 to 15 were added since: verdicts rest on those up to the last declared look."
    )
    judgement = judge(beyond)
    assert judgement.blocks == 15
    assert judgement.added is not None
    assert judgement.added.label == (
        "exploratory: blocks 16 to 17 were added after the result was known"
    )
    confidences = {c.confidence for c in judgement.comparisons if c.role is Role.PRIMARY}
    assert confidences == {1 - 0.05 / 6}


def test_what_a_run_says_of_its_end() -> None:
    narrow = UntilWidth(width=0.02, most_blocks=12)
    run = made(12, stopping=narrow)
    said = judge(run).ending
    assert said is not None
    assert said.startswith(
        "The run reached its limit of 12 blocks: the widest primary interval is ±"
    )
    assert ending(run) == "The run reached its limit of 12 blocks."
    ended = with_run(run, stopped={"blocks": 10, "why": "every one was narrow"})
    assert ending(ended) == "The run ended after 10 of up to 12 blocks: every one was narrow."
    going = with_run(run, status="running")
    assert ending(going) == (
        "The run ends when every primary interval is within ±2 %, asked after each block from the "
        "10th on; at most 12 blocks."
    )
    looked = ending(made(20, stopping=LOOKS))
    assert looked == (
        "The run reached the last of its looks, after 20 blocks. "
        "Each of the 3 looks tests at alpha/3."
    )
    assert ending(made(10)) is None


def test_gates_and_comparisons_of_runs_rest_on_the_same_blocks() -> None:
    given = Rule(
        workload="sysbench-cpu",
        metric="events_per_s",
        tuning="one",
        against="baseline",
        within="5 %",
    )
    policy = Policy(undecided=Undecided.OPEN, rules=[given])
    run, before = extended(11, 15), until(extended(11, 15), 10)
    assert gate(run, policy, {}) == gate(before, policy, {})
    other = made(12)
    assert {item.blocks_a for item in compare_runs(run, other).effects} == {10}
    assert compare_runs(other, run).effects == compare_runs(other, before).effects


def cut(run: LoadedRun, blocks: int) -> LoadedRun:
    """The run while it goes on: the plan is whole, its first blocks have trials."""
    done = tuple(t for t in run.trials if t.record.block <= blocks)
    return replace(with_run(run, status="running"), trials=done)


def lost(run: LoadedRun, block: int) -> LoadedRun:
    """The run without the record of one trial of a block."""
    first = next(t for t in run.trials if t.record.block == block)
    return replace(run, trials=tuple(t for t in run.trials if t is not first))


def test_before_the_first_look_there_are_intervals_and_no_verdict() -> None:
    whole = made(20, stopping=Looks(at=(15, 20), drops=False))
    judgement = judge(cut(whole, 14))
    assert {c.verdict for c in primaries(judgement)} == {Verdict.BEFORE_LOOK}
    assert all(c.low is not None and len(c.blocks) == 14 for c in primaries(judgement))
    assert judgement.decision.lead.startswith("No verdict before the first look")
    assert (
        "No verdict: the plan's first look is after 15 blocks, and block 15 lacks trials."
    ) in judgement.warnings
    assert {c.verdict for c in primaries(judge(cut(whole, 15)))} == {Verdict.IMPROVES}
    assert {c.verdict for c in primaries(judge(cut(whole, 9)))} == {Verdict.DEMONSTRATION}


def test_blocks_that_were_added_decide_nothing_where_a_lost_trial_leaves_no_look_reached() -> None:
    run = lost(extended(21, 25, Looks(at=(10, 20), drops=False)), block=3)
    judgement = judge(run)
    assert judgement.blocks == 20
    assert {c.verdict for c in primaries(judgement)} == {Verdict.BEFORE_LOOK}
    assert judgement.added is not None
    assert (judgement.added.first, judgement.added.last) == (21, 25)
    assert judgement.warnings[0].endswith(
        "added after the result was known. Everything else here rests on the 20 blocks before."
    )
    assert any("block 3 lacks trials" in text for text in judgement.warnings)


def test_a_lost_trial_after_a_look_leaves_that_look_reached() -> None:
    run = lost(extended(21, 25, Looks(at=(10, 20), drops=False)), block=13)
    assert judge(run).blocks == 10
    assert {c.verdict for c in primaries(judge(run))} == {Verdict.IMPROVES}


def test_a_planned_trial_of_no_known_block_that_was_not_tried_leaves_no_look_reached() -> None:
    run = made(20, stopping=LOOKS)
    stray = {**run.plan.to_json()["trials"][0], "number": 9999}
    del stray["block"]
    strayed = with_plan(run, trials=[*run.plan.to_json()["trials"], stray])
    assert {c.verdict for c in primaries(judge(strayed))} == {Verdict.BEFORE_LOOK}


def test_an_invalid_trial_was_tried_so_the_look_behind_it_is_reached() -> None:
    run = made(20, stopping=Looks(at=(11, 20), drops=False), invalid=[("one", "sysbench-cpu", 3)])
    judgement = judge(cut(run, 11))
    assert {c.verdict for c in primaries(judgement)} == {Verdict.IMPROVES}
    assert {len(c.blocks) for c in primaries(judgement)} == {10, 11}


def test_before_the_first_look_no_gate_and_no_comparison_of_runs_decides() -> None:
    rule = Rule(
        workload="sysbench-cpu",
        metric="events_per_s",
        tuning="one",
        against="baseline",
        better_by_at_least="1 %",
    )
    policy = Policy(undecided=Undecided.OPEN, rules=[rule])
    whole = made(20, stopping=Looks(at=(15, 20), drops=False))
    early, late = cut(whole, 14), cut(whole, 15)
    (held,), (open_still,) = (gate(run, policy, {}).findings for run in (late, early))
    assert (held.outcome, open_still.outcome) == (Outcome.HOLDS, Outcome.UNDECIDED)
    assert open_still.why == "before the first look that the plan declares"
    assert open_still.estimate is not None
    other = made(12, seed=2)
    assert {item.finding for item in compare_runs(early, other).effects} == {
        "before the first look"
    }
    assert {item.finding for item in compare_runs(late, other).effects} == {"the same"}
