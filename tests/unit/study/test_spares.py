"""Spare blocks: how they are planned, and when they are due."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import replace

import pytest

from labctl.base.errors import BrokenError, UsageError
from labctl.base.stopping import UntilWidth
from labctl.base.tuning import Tuning
from labctl.study.extension import as_carried_out, extended, extension
from labctl.study.load_study import Overrides
from labctl.study.make_plan import extend, make_plan
from labctl.study.plan import Plan
from labctl.study.spares import losses, spares_due, why_spare
from labctl.study.study import Study
from tests.unit.example import EXAMPLE
from tests.unit.records import extensions_from_files, plan_from_file

MakeStudy = Callable[..., Study]
Tunings = dict[str, Tuning]

SPARES = {"old": "blocks_per_boot: 4\n", "new": "blocks_per_boot: 2\nspare_blocks: 3\n"}


@pytest.fixture
def plan(make_study: MakeStudy, tunings: Tunings) -> Plan:
    """Ten blocks, two to a boot, and three spares."""
    return make_plan(make_study(**SPARES), tunings, seed=7, host_digest="host")


def lost(plan: Plan, *cells: tuple[int, str], workload: str = "cpu") -> set[int]:
    """The numbers of the trials of these blocks and tunings, under `quiet`."""
    found = {
        trial.number
        for trial in plan.in_order
        if (trial.block, trial.cell["tuning"]) in cells
        and (trial.cell["workload"], trial.cell["condition"]) == (workload, "quiet")
    }
    assert len(found) == len(cells)
    return found


def test_spares_come_after_the_planned_blocks_and_change_none_of_them(
    make_study: MakeStudy, tunings: Tunings, plan: Plan
) -> None:
    without = make_plan(
        replace(make_study(**SPARES), spare_blocks=0), tunings, seed=7, host_digest="host"
    )
    assert plan.trials == without.trials
    assert (plan.blocks, plan.boots, plan.spare_blocks) == (10, 5, (11, 12, 13))
    numbers = [trial.number for trial in plan.in_order]
    assert numbers == list(range(1, len(plan.trials) * 13 // 10 + 1))
    assert plan.in_order == plan.trials + plan.spares


def test_a_spare_has_the_order_that_a_block_of_its_number_would_have(
    plan: Plan, make_study: MakeStudy, tunings: Tunings
) -> None:
    longer = make_plan(replace(make_study(), blocks=13), tunings, seed=7, host_digest="host")
    cells = [(t.number, t.block, t.position, t.cell) for t in longer.trials if t.block > 10]
    assert [(t.number, t.block, t.position, t.cell) for t in plan.spares] == cells


def test_a_spare_has_a_boot_of_its_own(plan: Plan) -> None:
    assert {(t.block, t.boot) for t in plan.spares} == {(11, 6), (12, 7), (13, 8)}


def test_where_all_blocks_share_one_boot_a_spare_shares_it(
    make_study: MakeStudy, tunings: Tunings
) -> None:
    """A second boot would leave the intervals of all comparisons one degree of freedom."""
    study = replace(make_study(), blocks_per_boot=10, spare_blocks=2)
    one = make_plan(study, tunings, seed=7, host_digest="host")
    assert {trial.boot for trial in one.in_order} == {1}


def test_a_plan_without_spares_is_the_one_that_it_was_before_there_were_any(
    make_study: MakeStudy, tunings: Tunings
) -> None:
    study = make_study()
    plan = make_plan(study, tunings, seed=7, host_digest="host")
    assert not {"spares", "spare_blocks"} & plan.to_json().keys()
    assert study.digest != replace(study, spare_blocks=1).digest


def test_a_recorded_plan_keeps_its_digest() -> None:
    data = json.loads((EXAMPLE / "plan.json").read_text())
    assert plan_from_file(data).digest == data["digest"]


def test_the_digest_covers_the_spares(plan: Plan) -> None:
    data = json.loads(json.dumps(plan.to_json()))
    assert data["spare_blocks"] == 3
    assert plan_from_file(data) == plan
    for changed in (
        {key: value for key, value in data.items() if key != "spares"},
        {**data, "spares": data["spares"][:-1]},
        {**data, "spare_blocks": 2},
    ):
        with pytest.raises(BrokenError, match="the plan was changed"):
            plan_from_file(changed)


def test_a_longer_plan_has_as_many_spares_after_its_last_block(plan: Plan) -> None:
    longer = extend(plan, 12)
    assert longer.trials[: len(plan.trials)] == plan.trials
    assert longer.spare_blocks == (13, 14, 15)


@pytest.mark.parametrize(
    ("cells", "begun", "due"),
    [
        ([], [], ()),
        ([(4, "pinned")], [], (11,)),
        # One spare stands in for all that is lost in one block, and for one loss of each of two
        # comparisons.
        ([(4, "pinned"), (4, "handicap"), (4, "native")], [], (11,)),
        ([(4, "pinned"), (7, "handicap")], [], (11,)),
        # Of the same comparison two blocks are lost.
        ([(4, "pinned"), (7, "pinned")], [], (11, 12)),
        ([(4, "pinned"), (7, "baseline")], [], (11, 12)),
        ([(4, "pinned"), (7, "control")], [], (11, 12)),
        ([(4, "baseline"), (7, "native")], [], (11, 12)),
        # A spare that has lost a value of the comparison itself doesn't count for it.
        ([(4, "pinned"), (11, "pinned")], [11], (11, 12)),
        ([(4, "pinned"), (11, "handicap")], [11], (11,)),
        # No more than there are.
        ([(b, "pinned") for b in (1, 2, 3, 4)], [], (11, 12, 13)),
        # One that has begun is gone on with, though a later attempt has mended what it was for.
        ([], [11], (11,)),
    ],
)
def test_spares_are_due_until_each_comparison_has_its_blocks(
    plan: Plan, cells: list[tuple[int, str]], begun: Collection[int], due: tuple[int, ...]
) -> None:
    assert spares_due(plan, lost(plan, *cells), begun) == due


def test_a_comparison_is_one_of_a_workload_and_a_condition(plan: Plan) -> None:
    both = lost(plan, (4, "pinned")) | lost(plan, (7, "pinned"), workload="read")
    assert spares_due(plan, both) == (11,)


def test_a_plan_without_spares_has_none_due(make_study: MakeStudy, tunings: Tunings) -> None:
    plan = make_plan(make_study(), tunings, seed=7, host_digest="host")
    assert spares_due(plan, {trial.number for trial in plan.trials}) == ()


def test_why_a_spare_runs_names_the_first_loss_and_counts_the_others(plan: Plan) -> None:
    numbers = lost(plan, (4, "pinned"), (7, "handicap"))
    first = min(numbers)
    assert why_spare(losses(plan, numbers)) == (
        f"trial {first} (pinned, cpu, quiet) of block 4 and 1 other has no valid attempt"
    )


def test_an_extension_is_numbered_after_the_spares_whether_they_ran_or_not(plan: Plan) -> None:
    added = extension(plan, 3, extends=plan.digest)
    assert (added.first_block, added.last_block) == (14, 16)
    assert {(t.block, t.boot) for t in added.trials} == {(14, 9), (15, 9), (16, 10)}
    assert added.trials[0].number == plan.spares[-1].number + 1
    longer = as_carried_out(plan, None, extensions_from_files(added.to_json()))
    assert longer == extended(plan, added)
    assert [t.number for t in longer.in_order] == list(range(1, len(longer.in_order) + 1))
    twice = extension(longer, 1, extends=added.digest)
    assert (twice.first_block, twice.last_block) == (17, 17)


def test_no_spare_is_due_for_what_an_extension_loses(plan: Plan) -> None:
    longer = extended(plan, extension(plan, 2, extends=plan.digest))
    assert spares_due(longer, lost(longer, (14, "pinned"))) == ()
    assert spares_due(longer, lost(longer, (4, "pinned"))) == (11,)


def test_a_run_that_its_rule_ended_has_no_spares_and_is_extended_over_their_numbers(
    plan: Plan,
) -> None:
    ruled = replace(plan, stopping=UntilWidth(width=0.02, most_blocks=10))
    after_nine = as_carried_out(ruled, 9, [])
    assert after_nine.spares == ()
    added = extension(after_nine, 3, extends=ruled.digest)
    assert (added.first_block, added.last_block) == (10, 12)


@pytest.mark.parametrize(
    ("quick", "overrides", "spares"),
    [
        (False, Overrides(), 3),
        (True, Overrides(), 3),
        (False, Overrides(spare_blocks=0), 0),
        (False, Overrides(blocks=12), 3),
        # A demonstration: nothing is judged, so nothing needs a tenth block.
        (False, Overrides(blocks=9), 0),
        (False, Overrides(blocks=2, spare_blocks=1), 1),
    ],
)
def test_a_study_says_how_many_spares_there_are_and_a_command_line_may_say_another_number(
    make_study: MakeStudy, quick: bool, overrides: Overrides, spares: int
) -> None:
    assert make_study(**SPARES, quick=quick, overrides=overrides).spare_blocks == spares


def test_a_quick_selection_may_have_its_own_number(make_study: MakeStudy) -> None:
    new = "  blocks_per_boot: 5\n  spare_blocks: 1\n"
    assert make_study("  blocks_per_boot: 5\n", new, quick=True).spare_blocks == 1


@pytest.mark.parametrize("number", ["-1", "101", "two"])
def test_a_number_that_cannot_be_is_refused(make_study: MakeStudy, number: str) -> None:
    with pytest.raises(UsageError, match="spare_blocks"):
        make_study("blocks_per_boot: 4\n", f"blocks_per_boot: 4\nspare_blocks: {number}\n")
