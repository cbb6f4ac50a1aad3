"""What the verdicts rest on in a run that was extended, or that looks at its result."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from labctl.analysis.across import compare_runs
from labctl.analysis.added import confirmatory
from labctl.analysis.gate import gate
from labctl.analysis.judge import judge
from labctl.analysis.model import Role
from labctl.analysis.policy import Policy, Rule, Undecided
from labctl.analysis.stopping import ending, until
from labctl.base.stopping import Looks, Stopping, UntilWidth
from labctl.store.run_folder import LoadedRun
from tests.unit.analysis.alter import with_plan, with_run
from tests.unit.synthetic import synthetic_run

LOOKS = Looks(at=(10, 15, 20))


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
    assert (after.control, after.handicap) == (before.control, before.handicap)
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
            "exploratory: blocks 11 to 14 come before the look at 15, not reached yet"
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
    assert said.startswith("The run went to its cap of 12 blocks: the widest primary interval is ±")
    assert ending(run) == "The run went to its cap of 12 blocks."
    ended = with_run(run, stopped={"blocks": 10, "why": "every one was narrow"})
    assert ending(ended) == "The run ended after 10 of up to 12 blocks: every one was narrow."
    going = with_run(run, status="running")
    assert ending(going) == (
        "The run ends when every primary interval is within ±2 %, asked after each block from the "
        "10th on; at most 12 blocks."
    )
    looked = ending(made(20, stopping=LOOKS))
    assert looked == (
        "The run went to the last of its looks, after 20 blocks. "
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
