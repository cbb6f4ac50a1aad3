"""Two runs against each other: what differs, what can't be compared, what the numbers say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from labctl.analysis.compare.two_runs import Difference, RunComparison, compare_runs
from labctl.store.records.plan_record import PlanRecord
from labctl.store.records.run_record import RunRecord
from labctl.store.run_folder import LoadedRun
from tests.unit.analysis.alter import with_plan, with_values
from tests.unit.records import plan_of, run_of
from tests.unit.synthetic import synthetic_run

QUIET = {"block_noise": 0.02, "noise": 0.01}


def changed(run: LoadedRun, name: str, **top: Any) -> LoadedRun:
    """`run` under another name; mappings among `top` are laid over those of run.json."""
    merged = {
        key: {**run.run.to_json().get(key, {}), **value} if isinstance(value, Mapping) else value
        for key, value in top.items()
    }
    return replace(run, name=name, run=run_of({**run.run.to_json(), **merged}))


def effect(found: RunComparison, tuning: str) -> Difference:
    (one,) = (
        row for row in found.effects if row.tuning == tuning and row.workload == "sysbench-cpu"
    )
    return one


def test_what_a_host_does_to_all_arms_is_in_the_values_and_not_in_the_effects() -> None:
    everywhere = {"native": 1.5, "baseline": 1.5, "control": 1.5, "handicap": 1.35, "pinned": 1.8}
    a = synthetic_run(seed=1, effects={"pinned": 1.2, "handicap": 0.9}, **QUIET)
    b = synthetic_run(seed=2, effects=everywhere, **QUIET)
    found = compare_runs(a, b)
    level = next(r for r in found.levels if r.tuning == "baseline" and r.workload == "sysbench-cpu")
    assert level.estimate == pytest.approx(1.5, rel=0.05)
    assert level.finding == "differs"
    assert effect(found, "pinned").estimate == pytest.approx(1.0, rel=0.05)
    assert effect(found, "pinned").finding == "the same"
    assert (level.blocks_a, level.blocks_b) == (10, 10)


def test_what_is_left_open_says_how_many_blocks_would_decide_it() -> None:
    """Four times the blocks halve the interval; what is decided needs none."""
    noisy: dict[str, Any] = {"effects": {"pinned": 1.2, "handicap": 0.92}, "noise": 0.05}
    few = effect(
        compare_runs(synthetic_run(seed=1, **noisy), synthetic_run(seed=2, **noisy)), "pinned"
    )
    assert few.finding == "not shown"
    assert few.blocks_needed is not None
    assert few.blocks_needed > 10
    many = {**noisy, "blocks": 4 * few.blocks_needed}
    enough = effect(
        compare_runs(synthetic_run(seed=1, **many), synthetic_run(seed=2, **many)), "pinned"
    )
    assert (enough.finding, enough.blocks_needed) == ("the same", None)


def test_an_effect_that_another_host_does_not_have_differs() -> None:
    a = synthetic_run(seed=1, effects={"pinned": 1.2}, **QUIET)
    b = synthetic_run(seed=2, effects={"pinned": 0.9}, **QUIET)
    found = effect(compare_runs(a, b), "pinned")
    assert found.finding == "differs"
    assert (found.in_a, found.in_b) == pytest.approx((1.2, 0.9), rel=0.03)


def test_effects_are_the_same_only_where_both_runs_can_see_a_loss() -> None:
    sees = synthetic_run(seed=1, effects={"handicap": 0.9}, **QUIET)
    blind = replace(synthetic_run(seed=2, effects={}, **QUIET), name="blind")
    found = compare_runs(sees, blind)
    assert effect(found, "pinned").finding == "not shown"
    assert any(text.startswith("blind: The known loss was not detected") for text in found.cautions)


def test_a_run_whose_control_failed_shows_nothing_of_effects() -> None:
    sound = synthetic_run(seed=1, effects={"handicap": 0.9, "pinned": 1.2}, **QUIET)
    failed = with_values(
        replace(synthetic_run(seed=2, effects={"handicap": 0.9}, **QUIET), name="failed"),
        "control",
        "events_per_s",
        lambda block, old: 0.8 * old,
    )
    found = compare_runs(sound, failed)
    assert effect(found, "pinned").finding == "not shown"
    assert any(text.startswith("failed: The A/A control failed") for text in found.cautions)


def test_a_share_is_no_margin_of_a_difference() -> None:
    runs = [
        with_values(run, "baseline", "events_per_s", lambda block, old: 0.0 if block == 1 else old)
        for run in (synthetic_run(seed=seed, effects={"handicap": 0.9}) for seed in (1, 2))
    ]
    assert effect(compare_runs(*runs), "pinned").margin is None


def test_noise_shows_nothing() -> None:
    a, b = (synthetic_run(seed=seed, effects={}, noise=0.3) for seed in (1, 2))
    assert effect(compare_runs(a, b), "pinned").finding == "not shown"


def test_one_block_has_no_interval() -> None:
    a, b = (synthetic_run(seed=seed, blocks=1) for seed in (1, 2))
    found = effect(compare_runs(a, b), "pinned")
    assert (found.low, found.high, found.finding) == (None, None, "not shown")


def test_equal_runs_rarely_differ() -> None:
    """The intervals of both tables hold together in 95 of 100 pairs: of 200, at most 18 may not."""
    wrong = 0
    for seed in range(200):
        a, b = (synthetic_run(seed=2 * seed + one, effects={}, primary_only=True) for one in (0, 1))
        found = compare_runs(a, b)
        wrong += any(row.finding == "differs" for row in (*found.effects, *found.levels))
    assert wrong <= 18


def test_the_rows_of_each_table_share_half_of_the_level() -> None:
    found = compare_runs(*(synthetic_run(seed=seed, primary_only=True) for seed in (1, 2)))
    for rows in (found.effects, found.levels):
        expected = 1 - 0.025 / len(rows)
        assert [row.confidence for row in rows] == pytest.approx([expected] * len(rows))


def test_facts_that_differ_are_named_the_kernel_first() -> None:
    a = changed(synthetic_run(), "a", host={"kernel_release": "6.1", "thp": "always", "qemu": "7"})
    b = changed(synthetic_run(), "b", host={"kernel_release": "6.12", "thp": "never", "qemu": "7"})
    found = compare_runs(a, b).facts
    assert [(fact.name, fact.a, fact.b) for fact in found] == [
        ("kernel", "6.1", "6.12"),
        ("transparent huge pages", "always", "never"),
    ]


def test_a_fact_that_only_one_run_has_is_a_difference() -> None:
    a = changed(synthetic_run(), "a", host={"microcode": "0x1"})
    found = compare_runs(a, synthetic_run()).facts
    assert ("microcode", "0x1", None) in [(fact.name, fact.a, fact.b) for fact in found]


def test_emulation_is_not_compared_with_virtualization() -> None:
    found = compare_runs(synthetic_run(accelerator="tcg"), synthetic_run(accelerator="kvm"))
    assert len(found.refusals) == 1
    assert "TCG" in found.refusals[0]


def test_other_builds_of_a_program_are_not_compared() -> None:
    a = changed(synthetic_run(), "a", binaries={"sysbench": {"guest": "1"}, "perf": {"guest": "1"}})
    b = changed(synthetic_run(), "b", binaries={"sysbench": {"guest": "2"}, "perf": {"guest": "2"}})
    found = compare_runs(a, b).refusals
    assert found == (
        "the guests ran different builds of sysbench, so a difference may be the program's",
    )


def test_what_only_one_run_has_is_left_out_by_name() -> None:
    a = synthetic_run(tunings=("native", "baseline", "control", "handicap", "pinned"))
    found = compare_runs(a, synthetic_run())
    assert "Tuning 'pinned+fifo' is only in synthetic." in found.left_out
    assert {row.tuning for row in found.effects} == {"pinned"}


def test_a_tuning_that_means_something_else_is_left_out() -> None:
    a = synthetic_run()
    tunings = {
        **a.plan.to_json()["tunings"],
        "pinned": {**a.plan.to_json()["tunings"]["pinned"], "digest": "other"},
    }
    b = replace(a, name="b", plan=plan_of({**a.plan.to_json(), "tunings": tunings}))
    found = compare_runs(a, b)
    assert "Tuning 'pinned' has a different definition in b." in found.left_out
    assert {row.tuning for row in found.effects} == {"pinned+fifo"}


def test_a_workload_that_ran_otherwise_is_left_out() -> None:
    a = synthetic_run()
    longer = {**a.plan.to_json()["workloads"]["sysbench-cpu"], "duration_s": 9.0}
    b = replace(
        a,
        name="b",
        plan=plan_of(
            {
                **a.plan.to_json(),
                "workloads": {**a.plan.to_json()["workloads"], "sysbench-cpu": longer},
            }
        ),
    )
    found = compare_runs(a, b)
    assert "Workload 'sysbench-cpu' ran differently in b (duration_s)." in found.left_out
    assert {row.workload for row in found.levels} == {"fio-randread"}


def neighbours(count: int) -> dict[str, Any]:
    kinds = [{"program": "cpu-hog", "count": count}]
    return {"neighbour": {"description": "hogs", "neighbours": kinds}}


def test_a_condition_with_other_neighbours_is_left_out() -> None:
    a = with_plan(synthetic_run(), neighbours=neighbours(1))
    b = replace(with_plan(a, neighbours=neighbours(2)), name="b")
    found = compare_runs(a, b)
    assert "Condition 'neighbour' has other neighbours in b." in found.left_out
    assert "neighbour" not in {row.condition for row in found.levels}


def test_a_run_that_says_nothing_of_its_neighbours_is_compared_as_ever() -> None:
    a = with_plan(synthetic_run(), neighbours=neighbours(1))
    assert not any("Condition" in said for said in compare_runs(a, synthetic_run()).left_out)


@pytest.mark.parametrize("first", [True, False])
def test_a_run_without_a_plan_is_named_and_not_blamed_for_each_arm(first: bool) -> None:
    whole, bare = synthetic_run(), replace(synthetic_run(), name="bare", plan=PlanRecord())
    found = compare_runs(bare, whole) if first else compare_runs(whole, bare)
    assert found.left_out == ("bare has no plan: its arms are unknown.",)
    assert found.levels == ()


def test_an_accelerator_that_is_not_known_may_be_either() -> None:
    found = compare_runs(synthetic_run(), changed(synthetic_run(), "b", accelerator=None))
    assert found.refusals == (
        "the guests of synthetic ran under TCG and those of b under an unknown accelerator: one "
        "may be emulated",
    )


@pytest.mark.parametrize("blocks", [(9, 10), (10, 9)])
def test_fewer_blocks_than_a_verdict_takes_find_nothing(blocks: tuple[int, int]) -> None:
    a, b = (
        synthetic_run(seed=seed, blocks=n, effects={"pinned": size}, **QUIET)
        for seed, n, size in zip((1, 2), blocks, (1.0, 3.0), strict=True)
    )
    found = compare_runs(a, b)
    assert effect(found, "pinned").finding == "too few blocks"
    assert any("has 9 blocks; a finding needs 10" in text for text in found.cautions)


@pytest.mark.parametrize("empty", ["plan", "run", "trials"])
def test_a_run_that_is_not_whole_raises_nothing(empty: str) -> None:
    nothing = {"plan": PlanRecord(), "run": RunRecord(), "trials": ()}
    broken = replace(synthetic_run(), **{empty: nothing[empty]})
    found = compare_runs(synthetic_run(), broken)
    assert found.effects == () or empty == "run"
