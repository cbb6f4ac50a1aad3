"""Blocks that are added to a finished run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from labctl.base.errors import BrokenError, UsageError
from labctl.base.stopping import Looks, UntilWidth
from labctl.base.tuning import Tuning
from labctl.store.records.plan_record import ExtensionRecord
from labctl.store.records.run_record import LeftOut, LookTaken
from labctl.study.extension import Extension, as_carried_out, extended, extension
from labctl.study.make_plan import make_plan
from labctl.study.plan import Plan
from labctl.study.study import Study
from tests.unit.records import extensions_from_files, plan_from_file

MakeStudy = Callable[..., Study]


@pytest.fixture
def plan(make_study: MakeStudy, tunings: dict[str, Tuning]) -> Plan:
    """Ten blocks, four to a boot."""
    return make_plan(make_study(), tunings, seed=7, host_digest="host")


def on_disk(*added: Extension) -> list[ExtensionRecord]:
    return extensions_from_files(*(item.to_json() for item in added))


def test_added_blocks_have_the_order_that_a_longer_plan_would_have_had(
    make_study: MakeStudy, tunings: dict[str, Tuning], plan: Plan
) -> None:
    longer = make_plan(
        replace(make_study(), blocks=15), tunings, seed=7, host_digest="host"
    ).trials[len(plan.trials) :]
    added = extension(plan, 5, extends=plan.digest)
    assert (added.first_block, added.last_block) == (11, 15)
    assert [replace(t, boot=0) for t in added.trials] == [replace(t, boot=0) for t in longer]


def test_added_blocks_have_boots_of_their_own(plan: Plan) -> None:
    """Blocks 9 and 10 have half of boot 3; the saved guest of that is gone."""
    assert {t.boot for t in plan.trials if t.block > 8} == {3}
    added = extension(plan, 5, extends=plan.digest)
    assert {(t.block, t.boot) for t in added.trials} == {
        (11, 4),
        (12, 4),
        (13, 4),
        (14, 4),
        (15, 5),
    }


def test_blocks_added_to_one_boot_have_a_boot_each(plan: Plan) -> None:
    """The second time as well, when the run has more blocks than its plan had to a boot."""
    one = replace(plan, blocks_per_boot=10, trials=tuple(replace(t, boot=1) for t in plan.trials))
    once = extension(one, 3, extends=one.digest)
    assert {(t.block, t.boot) for t in once.trials} == {(11, 2), (12, 3), (13, 4)}
    longer = extended(one, once)
    twice = extension(longer, 2, extends=once.digest)
    assert {(t.block, t.boot) for t in twice.trials} == {(14, 5), (15, 6)}
    assert as_carried_out(one, None, on_disk(once, twice)) == extended(longer, twice)


def test_a_plan_and_its_extensions_survive_their_files(plan: Plan) -> None:
    once = extension(plan, 2, extends=plan.digest)
    longer = extended(plan, once)
    twice = extension(longer, 1, extends=once.digest)
    found = as_carried_out(plan, None, on_disk(once, twice))
    assert found == extended(longer, twice)
    assert [t.number for t in found.trials] == list(range(1, len(found.trials) + 1))
    assert found.blocks == 13
    assert as_carried_out(plan, None, []) == plan


def test_what_a_rule_left_out_comes_first_when_its_run_is_extended(plan: Plan) -> None:
    ruled = replace(plan, stopping=UntilWidth(width=0.02, most_blocks=20))
    after_eight = as_carried_out(ruled, 8, [])
    assert (after_eight.blocks, after_eight.stopping) == (8, None)
    assert after_eight.trials == tuple(t for t in plan.trials if t.block <= 8)
    added = extension(after_eight, 2, extends=ruled.digest)
    assert [replace(t, boot=3) for t in added.trials] == [t for t in plan.trials if t.block > 8]
    assert as_carried_out(ruled, 8, on_disk(added)).blocks == 10


@pytest.mark.parametrize(
    "change",
    [
        {"digest": "0" * 64},
        {"extends": "0" * 64},
        {"first_block": 12},
        {"last_block": 13},
        {"last_block": "13"},
        {"last_block": 10**9},
        {"trials": []},
        {"more": 1},
    ],
)
def test_an_edited_extension_is_refused(plan: Plan, change: dict[str, Any]) -> None:
    data = extension(plan, 2, extends=plan.digest).to_json()
    with pytest.raises(BrokenError, match=r"plan\.2\.json"):
        as_carried_out(plan, None, extensions_from_files({**data, **change}))


def test_an_extension_with_a_key_that_no_trial_has_is_refused(plan: Plan) -> None:
    """A record has no room for it there, so the digest alone would not show it."""
    data = extension(plan, 2, extends=plan.digest).to_json()
    data["trials"][0]["more"] = 1
    with pytest.raises(BrokenError, match=r"plan\.2\.json was changed"):
        extensions_from_files(data)


def test_an_edited_extension_with_a_digest_to_match_is_refused(plan: Plan) -> None:
    added = extension(plan, 2, extends=plan.digest)
    swapped = replace(added, trials=tuple(reversed(added.trials)))
    with pytest.raises(BrokenError, match="was changed"):
        as_carried_out(plan, None, on_disk(swapped))


def test_an_extension_that_is_left_out_is_noticed(plan: Plan) -> None:
    once = extension(plan, 2, extends=plan.digest)
    twice = extension(extended(plan, once), 1, extends=once.digest)
    with pytest.raises(BrokenError, match=r"plan\.2\.json"):
        as_carried_out(plan, None, on_disk(twice))


@pytest.mark.parametrize("blocks", [0, -1, 991])
def test_an_extension_by_a_number_that_cannot_be_is_refused(plan: Plan, blocks: int) -> None:
    with pytest.raises(UsageError, match=f"blocks by {blocks}: expected at least 1"):
        extension(plan, blocks, extends=plan.digest)


@pytest.mark.parametrize("rule", [UntilWidth(width=0.02, most_blocks=40), Looks(at=(10, 15, 20))])
def test_a_plan_holds_its_rule_and_its_digest_covers_it(
    make_study: MakeStudy, tunings: dict[str, Tuning], rule: UntilWidth | Looks
) -> None:
    study = replace(make_study(), blocks=rule.most_blocks, stopping=rule)
    ruled = make_plan(study, tunings, seed=7, host_digest="host")
    assert (ruled.stopping, ruled.blocks) == (rule, rule.most_blocks)
    assert ruled.digest != replace(ruled, stopping=None).digest
    assert study.digest != replace(study, stopping=None).digest
    data = json.loads(json.dumps(ruled.to_json()))
    assert plan_from_file(data) == ruled
    with pytest.raises(BrokenError):
        plan_from_file({key: value for key, value in data.items() if key != "stopping"})
    with pytest.raises(BrokenError):
        plan_from_file({**data, "stopping": {"width": 0.03, "most_blocks": 40}})


def test_a_plan_without_a_rule_is_the_one_that_it_was_before_there_were_rules(plan: Plan) -> None:
    assert "stopping" not in plan.to_json()


def test_an_extension_of_a_run_with_looks_has_what_is_undecided_alone(plan: Plan) -> None:
    """The record on disk is made again from plan, looks and number of blocks."""
    kept = dict(plan.trials[-1].cell)
    others = {tuple(t.cell.values()) for t in plan.trials if t.cell != kept}
    taken = LookTaken(
        blocks=10,
        left_out=tuple(
            LeftOut(tuning=tuning, workload=workload, condition=condition)
            for tuning, workload, condition in sorted(others)
        ),
    )
    whole = as_carried_out(plan, None, (), [taken])
    added = extension(whole, 2, extends=plan.digest)
    assert [t.cell for t in added.trials] == [kept, kept]
    again = as_carried_out(plan, None, on_disk(added), [taken])
    assert again.trials == whole.trials + added.trials
    everything = LookTaken(
        blocks=10,
        left_out=(*taken.left_out, LeftOut(**dict(kept))),  # type: ignore[arg-type]
    )
    decided = as_carried_out(plan, None, (), [everything])
    assert len(extension(decided, 1, extends=plan.digest).trials) == len(others) + 1
