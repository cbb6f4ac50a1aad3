"""When a run may end before its last block, and at what error."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from labctl.analysis.effects.intervals import quantile
from labctl.analysis.judge import judge
from labctl.analysis.model import EffectKind, Judgement, Role
from labctl.analysis.verdicts.decide import decide, look_at
from labctl.analysis.verdicts.looks import (
    Stop,
    half_width,
    nominal_level,
    share_of,
    stop_after,
    until,
    widest,
    without,
)
from labctl.analysis.verdicts.table import Verdict
from labctl.base.errors import UsageError
from labctl.base.stopping import Looks, UntilWidth, looks, stopping_of, until_width
from labctl.store.records.run_record import LookTaken
from labctl.store.run_folder import LoadedRun
from tests.unit.analysis.alter import primaries, scaled
from tests.unit.synthetic import synthetic_run

SMALL: dict[str, Any] = {
    "tunings": ["baseline", "control", "handicap", "one", "other"],
    "effects": {"handicap": 0.95},
    "primary_only": True,
    "noise": 0.01,
}


def judged(blocks: int = 10, **options: Any) -> Judgement:
    return judge(synthetic_run(**{**SMALL, "blocks": blocks, **options}))


def test_the_half_width_is_what_the_interval_reaches_beyond_the_estimate() -> None:
    for c in judged().comparisons:
        assert c.low is not None
        assert c.high is not None
        width = half_width(c)
        assert width is not None
        assert c.high == pytest.approx(c.estimate * (1 + width))
        assert c.low == pytest.approx(c.estimate / (1 + width))


def test_what_has_no_share_or_is_not_judged_has_no_width() -> None:
    found = primaries(judged())[0]
    assert half_width(replace(found, kind=EffectKind.DIFFERENCE)) is None
    assert half_width(replace(found, low=None)) is None
    assert half_width(replace(found, low=0.0)) == math.inf
    assert widest([found]) == half_width(found)
    assert widest([replace(found, verdict=Verdict.DIFFERENT_DURABILITY)]) is None


def test_a_run_until_a_width_ends_when_its_widest_primary_interval_is_narrow_enough() -> None:
    judgement = judged()
    wide = widest(judgement.comparisons)
    assert wide == max(
        w for c in judgement.comparisons if c.role is Role.PRIMARY and (w := half_width(c))
    )
    ends = stop_after(judgement, until_width(wide * 1.01), 10)
    assert ends is not None
    assert ends.blocks == 10
    assert "every primary interval was within ±" in ends.why
    assert stop_after(judgement, until_width(wide * 0.99), 10) is None


def test_widths_are_not_asked_for_before_ten_blocks_nor_at_the_cap() -> None:
    rule = UntilWidth(width=0.5, most_blocks=12)
    assert [n for n in range(15) if stop_after(judged(), rule, n)] == [10, 11]


def test_a_comparison_that_has_fewer_blocks_than_a_verdict_takes_keeps_the_run_going() -> None:
    gap = [("one", "sysbench-cpu", block) for block in (3, 4)]
    rule = UntilWidth(width=0.5, most_blocks=40)
    assert stop_after(judged(11), rule, 11)
    assert stop_after(judged(11, invalid=gap), rule, 11) is None


def test_looks_end_a_run_when_every_primary_comparison_has_a_verdict() -> None:
    rule = Looks(at=(10, 15, 20), drops=False)
    clear = judged(effects={"handicap": 0.95, "one": 1.3, "other": 0.7}, stopping=rule)
    assert {c.verdict for c in clear.comparisons if c.role is Role.PRIMARY} == {
        Verdict.IMPROVES,
        Verdict.REGRESSES,
    }
    ends = stop_after(clear, rule, 10)
    assert ends is not None
    assert ends.why == "at look 1 of 3 every primary comparison had a verdict"
    open_still = judged(
        effects={"handicap": 0.95, "one": 1.3, "other": 1.05}, noise=0.05, stopping=rule
    )
    assert stop_after(open_still, rule, 10) is None


def test_looks_end_a_run_at_looks_alone_and_the_last_one_ends_it_anyway() -> None:
    rule = Looks(at=(10, 15, 20))
    clear = judged(effects={"handicap": 0.95, "one": 1.3, "other": 0.7}, stopping=rule)
    assert [n for n in range(25) if stop_after(clear, rule, n)] == [10, 15]


def test_a_run_that_may_end_early_tests_at_a_share_of_alpha() -> None:
    """m = 4 here: two tunings under two workloads."""
    once, thrice = judged(), judged(stopping=Looks(at=(10, 15, 20), drops=False))
    until_narrow = judged(stopping=UntilWidth(width=0.02, most_blocks=40))

    def alphas(judgement: Judgement) -> set[float]:
        found = (c.confidence for c in judgement.comparisons if c.role is Role.PRIMARY)
        return {round(1 - confidence, 12) for confidence in found}

    assert alphas(once) == {0.05 / 4}
    assert alphas(until_narrow) == {round(0.7 * 0.05 / 4, 12)}
    assert alphas(thrice) == {round(0.05 / 12, 12)}
    dropping = judged(stopping=Looks(at=(10, 15, 20)))
    assert alphas(dropping) == {round(nominal_level((10, 15, 20), 0.05 / 4), 12)}


def test_a_run_that_has_nothing_to_judge_goes_on() -> None:
    nothing = judged(tunings=["baseline", "control", "handicap"])
    assert stop_after(nothing, UntilWidth(width=0.9, most_blocks=40), 10) is None
    assert stop_after(nothing, Looks(at=(10, 20)), 10) is None
    assert widest(nothing.comparisons) is None


def test_ties_have_no_width_and_do_not_end_a_run() -> None:
    tied = judged(noise=0.0, block_noise=0.0)
    assert widest(tied.comparisons) == math.inf
    assert stop_after(tied, UntilWidth(width=0.9, most_blocks=40), 10) is None


def test_a_run_cut_to_its_first_blocks_is_judged_as_if_it_had_no_others() -> None:
    short, long = synthetic_run(**SMALL), synthetic_run(**{**SMALL, "blocks": 14})
    cut = judge(until(long, 10))
    assert (cut.blocks, cut.planned, cut.done) == (10, 100, 100)
    assert set(cut.comparisons[0].blocks) == set(range(1, 11))
    assert until(short, 10).trials == short.trials


@pytest.mark.parametrize("rule", [UntilWidth(width=0.02, most_blocks=40), Looks(at=(10, 20))])
def test_a_rule_survives_its_plan(rule: UntilWidth | Looks) -> None:
    assert stopping_of({"stopping": rule.to_json()}) == rule
    assert stopping_of({}) is None


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: until_width(0.0), "expected a width"),
        (lambda: until_width(1.5), "expected a width"),
        (lambda: until_width(math.nan), "expected a width"),
        (lambda: until_width(0.02, 10), "at most 10 blocks: that must be from 11"),
        (lambda: until_width(0.02, 1001), "at most 1001 blocks"),
        (lambda: looks([10]), "looks after 10 blocks: at least two"),
        (lambda: looks([]), "looks after none blocks"),
        (lambda: looks([5, 10]), "looks after 5, 10 blocks: they must be from 10 to 1000"),
        (lambda: looks([10, 20, 15]), "each must come after the one before it"),
        (lambda: looks([10, 10]), "each must come after the one before it"),
        (lambda: looks([10, 2000]), "they must be from 10 to 1000"),
    ],
)
def test_a_rule_that_contradicts_itself_is_refused(make: Any, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        make()
    assert sentence in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("blocks", [14, 20, 28])
def test_the_intervals_of_a_run_until_a_width_keep_their_promise_by_their_share(
    blocks: int,
) -> None:
    """One comparison that decides alone, the worst case, and a width that takes so many blocks.
    20,000 runs: the rates have a standard error of 0.0015."""
    rule, alpha = UntilWidth(width=0.5, most_blocks=40), 0.05
    effects = np.random.default_rng(blocks).standard_normal((20_000, rule.most_blocks))
    n = np.arange(1, rule.most_blocks + 1)
    mean = effects.cumsum(axis=1) / n
    variance = ((effects**2).cumsum(axis=1) - n * mean**2) / np.maximum(n - 1, 1)

    def missed(level: float) -> float:
        # One block has no interval; nothing is asked there.
        t = np.array([0.0, *(quantile(1 - level / 2, k - 1) for k in n[1:])])
        half = t * np.sqrt(np.maximum(variance, 0.0) / n)
        ends = half <= t[blocks - 1] / math.sqrt(blocks)
        ends &= [rule.may_end_after(k) for k in n]
        ends[:, -1] = True
        last = ends.argmax(axis=1)
        run = np.arange(len(effects))
        return float((np.abs(mean[run, last]) > half[run, last]).mean())

    assert missed(alpha) > 0.055
    assert missed(alpha * share_of(rule, alpha)) <= alpha


def cells(taken: LookTaken, every: int = 0) -> set[tuple[str, str]]:
    return {(one.tuning, one.workload) for one in taken.left_out if one.every == every}


def looked(run: LoadedRun, blocks: int) -> LookTaken:
    taken = look_at(run, blocks)
    assert isinstance(taken, LookTaken)
    return taken


def test_nominal_levels_are_pococks() -> None:
    """Table 2.1 of Jennison and Turnbull, Group Sequential Methods (2000): constants of 2.178,
    2.289 and 2.361 for two, three and four looks at alpha 0.05."""
    for looks_, constant in ((2, 2.178), (3, 2.289), (4, 2.361)):
        at = tuple(range(10, 10 * looks_ + 1, 10))
        assert nominal_level(at, 0.05) == pytest.approx(2 * stats.norm.sf(constant), rel=2e-3)


def test_a_look_drops_what_is_decided_and_keeps_what_the_rest_needs() -> None:
    """`one` gains in both workloads; `other` is left open in fio alone, so sysbench is over."""
    run = synthetic_run(
        blocks=30,
        tunings=["native", "baseline", "control", "handicap", "one", "other"],
        effects={
            "native": 2.0,
            "handicap": 0.7,
            "one": 1.6,
            "other": {"sysbench-cpu": 0.6, "fio-randread": 1.05},
        },
        noise=0.06,
        stopping=looks((10, 20, 30)),
    )
    taken = looked(run, 10)
    assert {("baseline", "sysbench-cpu"), ("native", "sysbench-cpu")} <= cells(taken)
    assert ("one", "fio-randread") in cells(taken)
    kept = {"baseline", "control", "other"}
    assert not any((arm, "fio-randread") in cells(taken) for arm in kept)
    shorter = without(run, [taken])
    later = {t.record.cell["tuning"] for t in shorter.trials if t.record.block > 10}
    assert kept <= later <= kept | {"native", "handicap"}
    assert len(shorter.plan.trials) < len(run.plan.trials)


def test_native_arms_go_on_in_every_second_block_until_they_are_narrow() -> None:
    shape: dict[str, Any] = {
        "blocks": 20,
        "tunings": ["native", "baseline", "control", "handicap", "one"],
        "effects": {"native": 2.0, "handicap": 0.95, "one": 1.05},
        "noise": 0.1,
    }
    narrow = synthetic_run(**shape, stopping=looks((10, 20), native_width=0.9))
    assert ("native", "sysbench-cpu") in cells(looked(narrow, 10), every=0)
    wide = synthetic_run(**shape, stopping=looks((10, 20), native_width=0.01))
    taken = looked(wide, 10)
    assert ("native", "sysbench-cpu") in cells(taken, every=2)
    blocks = {
        t.record.block for t in without(wide, [taken]).trials if t.record.cell["tuning"] == "native"
    }
    assert blocks == {*range(1, 11), 12, 14, 16, 18, 20}


@pytest.mark.parametrize(("noise", "is_dropped"), [(0.02, True), (0.1, False)])
def test_the_known_loss_is_measured_until_it_is_detected(noise: float, is_dropped: bool) -> None:
    run = synthetic_run(
        blocks=20,
        tunings=["baseline", "control", "handicap", "one"],
        effects={"handicap": 0.95, "one": 1.035},
        noise=noise,
        stopping=looks((10, 20)),
    )
    taken = looked(run, 10)
    assert ("baseline", "sysbench-cpu") not in cells(taken)
    assert (("handicap", "sysbench-cpu") in cells(taken)) is is_dropped


def test_a_run_whose_arms_are_all_decided_at_the_first_look_ends_there() -> None:
    run = synthetic_run(
        blocks=30,
        tunings=["baseline", "control", "handicap", "one"],
        effects={"handicap": 0.95, "one": 1.6},
        noise=0.01,
        seed=2,
        stopping=looks((10, 20, 30)),
    )
    assert look_at(run, 10) == Stop(10, "at look 1 of 3 every primary comparison had a verdict")


CLEAR = {"handicap": 0.95, "one": 1.3, "other": 0.7}


@pytest.mark.parametrize(
    ("rule", "other", "ends"),
    [
        (Looks(at=(10, 20), drops=False), 0.7, True),
        (Looks(at=(10, 20), drops=False), 1.05, False),
        (UntilWidth(width=0.5, most_blocks=40), 0.7, True),
        (UntilWidth(width=0.001, most_blocks=40), 0.7, False),
    ],
)
def test_rules_that_drop_nothing_end_a_run_or_leave_it_as_it_is(
    rule: Looks | UntilWidth, other: float, ends: bool
) -> None:
    effects = {**CLEAR, "other": other}
    run = synthetic_run(**{**SMALL, "noise": 0.05, "effects": effects, "stopping": rule})
    stop = look_at(run, 10)
    assert isinstance(stop, Stop) if ends else stop is None


def test_looks_that_drop_act_at_looks_before_the_last_and_on_something_to_judge() -> None:
    shape = {**SMALL, "blocks": 20, "effects": CLEAR, "stopping": looks((10, 20))}
    run = synthetic_run(**shape)
    assert [n for n in (10, 12, 20) if look_at(run, n)] == [10]
    nothing = synthetic_run(**{**shape, "tunings": ["baseline", "control", "handicap"]})
    assert look_at(nothing, 10) is None


def test_a_tuning_that_the_plan_leaves_out_of_a_place_keeps_it_not_open() -> None:
    run = synthetic_run(**{**SMALL, "effects": CLEAR, "stopping": looks((10, 20))})

    def is_there(cell: Mapping[str, str]) -> bool:
        return (cell["tuning"], cell["workload"]) != ("other", "fio-randread")

    run = replace(
        run,
        plan=run.plan.but(trials=tuple(t for t in run.plan.trials if is_there(t.cell))),
        trials=tuple(t for t in run.trials if is_there(t.record.cell)),
    )
    assert isinstance(look_at(run, 10), Stop)


def test_a_verdict_stays_as_it_fell_whatever_comes_later() -> None:
    """`one` gains 60 % in ten blocks, and nothing in the blocks after them, which nobody measures
    in a real run."""
    run = synthetic_run(
        blocks=20,
        tunings=["baseline", "control", "handicap", "one"],
        effects={"handicap": 0.95, "one": 1.6},
        stopping=looks((10, 20)),
    )
    run = scaled(
        run, lambda t: 1 / 1.6 if t.record.cell["tuning"] == "one" and t.record.block > 10 else 1.0
    )
    for one in decide(run).made:
        if one.is_primary:
            assert one.comparison.verdict is Verdict.IMPROVES
            assert (one.comparison.look, len(one.comparison.blocks)) == (10, 10)


def test_a_control_that_fails_later_suspends_what_fell_before() -> None:
    run = synthetic_run(
        blocks=20,
        tunings=["baseline", "control", "handicap", "one"],
        effects={"handicap": 0.95, "one": 1.6},
        noise=0.01,
        stopping=looks((10, 20)),
    )
    assert {c.verdict for c in primaries(decide(until(run, 10)))} == {Verdict.IMPROVES}
    run = scaled(
        run,
        lambda t: 1.5 if t.record.cell["tuning"] == "control" and t.record.block > 10 else 1.0,
    )
    assert {c.verdict for c in primaries(decide(run))} == {Verdict.SUSPENDED}


def test_a_verdict_that_falls_at_the_last_look_names_it() -> None:
    """`one` swings by a factor of 1.65 from block to block, too much for ten of them."""
    run = synthetic_run(
        blocks=20,
        tunings=["baseline", "control", "handicap", "one"],
        effects={"handicap": 0.95, "one": 1.6},
        noise=0.01,
        stopping=looks((10, 20)),
    )
    run = scaled(
        run, lambda t: 1.65 ** (-1) ** t.record.block if t.record.cell["tuning"] == "one" else 1.0
    )
    assert {c.verdict for c in primaries(decide(until(run, 10)))} == {Verdict.INCONCLUSIVE}
    for c in primaries(decide(run)):
        assert (c.verdict, c.look, len(c.blocks)) == (Verdict.IMPROVES, 20, 20)


def test_older_plans_with_looks_drop_nothing() -> None:
    rule = stopping_of({"stopping": {"looks": [10, 20]}})
    assert isinstance(rule, Looks)
    assert not rule.drops
    assert rule.to_json() == {"looks": [10, 20]}
    assert stopping_of({"stopping": looks((10, 20)).to_json()}) == looks((10, 20))
    run = synthetic_run(blocks=20, effects={"pinned": 1.6}, stopping=rule)
    assert {(c.look, len(c.blocks)) for c in primaries(decide(run))} == {(None, 20)}
