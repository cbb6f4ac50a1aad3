"""B against A: the verdict, the interaction of the two sides, and the status for `git bisect`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labctl.analysis.ab import ab_because, ab_lead, compare_ab, status_of
from labctl.analysis.answer.json import ab_json
from labctl.analysis.judge import judge
from labctl.analysis.model import AbAnswer, Depends, Outcome
from labctl.analysis.verdicts.decide import decide
from labctl.analysis.verdicts.table import Verdict
from labctl.base.errors import ExitCode, UsageError
from labctl.rollout.advice import of_tuning
from labctl.store.records.plan_record import AbLabels
from labctl.store.run_folder import LoadedRun
from tests.unit.analysis.alter import with_plan
from tests.unit.synthetic import WORKLOADS, synthetic_run

LABELS = AbLabels(a="./old", b="./new", arm="pinned")
ARMS = ("native", "native+pinned", "baseline", "control", "handicap", "pinned")


def ab_run(guest: float, natively: float, **shape: Any) -> LoadedRun:
    """A run in which B is so many times as fast as A, in the guest and natively."""
    effects = {"native": 10.0, "native+pinned": 10.0 * natively, "handicap": 0.95, "pinned": guest}
    given = {
        "tunings": ARMS,
        "workloads": {"sysbench-cpu": WORKLOADS["sysbench-cpu"]},
        "effects": effects,
        "noise": 0.01,
        "primary_only": True,
        "boots": 10,
    }
    return with_plan(synthetic_run(**{**given, **shape}), ab=LABELS)


def answer(guest: float, natively: float, **shape: Any) -> AbAnswer:
    found = judge(ab_run(guest, natively, **shape)).ab
    assert found is not None
    return found


def test_a_gain_on_both_sides_does_not_depend_on_virtualization() -> None:
    found = answer(1.12, 1.12)
    (place,) = found.places
    assert found.outcome is Outcome.BETTER
    assert place.native is not None
    assert place.interaction is not None
    assert place.interaction.low is not None
    assert place.interaction.high is not None
    assert place.interaction.low < 1 < place.interaction.high
    assert place.depends is Depends.NO
    assert ab_lead(found) == "B is faster than A."
    said = ab_because(found)
    assert said.startswith("A: ./old. B: ./new. ")
    assert "the change does not depend on virtualization (interaction" in said
    assert "95 % CI" in said


def test_a_gain_in_the_guest_alone_depends_on_virtualization() -> None:
    found = answer(1.12, 1.0)
    (place,) = found.places
    assert place.depends is Depends.YES
    assert place.interaction is not None
    assert place.interaction.estimate == pytest.approx(1.12, rel=0.02)
    assert "the change depends on virtualization" in ab_because(found)


def test_the_interaction_is_the_ratio_of_the_two_ratios_block_by_block() -> None:
    (place,) = answer(1.3, 1.1).places
    assert place.native is not None
    assert place.interaction is not None
    ratio = place.guest.estimate / place.native.estimate
    assert place.interaction.estimate == pytest.approx(ratio, rel=1e-9)
    assert place.interaction.blocks == 10


@pytest.mark.parametrize(
    ("guest", "outcome", "status"),
    [
        (1.2, Outcome.BETTER, ExitCode.DONE),
        (1.0, Outcome.NOT_WORSE, ExitCode.DONE),
        (0.8, Outcome.WORSE, ExitCode.FOUND),
    ],
)
def test_the_status_is_what_bisect_expects(
    guest: float, outcome: Outcome, status: ExitCode
) -> None:
    found = answer(guest, guest)
    assert found.outcome is outcome
    assert status_of(found) == status


def test_nothing_is_told_by_few_blocks_a_failed_control_or_much_noise() -> None:
    few = answer(0.8, 0.8, blocks=9, boots=9)
    biased = answer(0.8, 0.8, effects={"control": 1.2, "pinned": 0.8})
    noisy = answer(1.0, 1.0, noise=0.3)
    for found in (few, biased, noisy):
        assert (found.outcome, status_of(found)) == (Outcome.OPEN, ExitCode.OPEN)
        assert found.places[0].depends is Depends.OPEN
        assert ab_lead(found) == "Undecided whether B is faster or slower than A."
    assert status_of(None) is ExitCode.OPEN


def test_without_a_known_loss_no_two_effects_are_called_the_same() -> None:
    arms = tuple(arm for arm in ARMS if arm != "handicap")
    (place,) = answer(1.12, 1.12, tunings=arms, noise=0.03).places
    assert place.depends is Depends.OPEN


def test_without_a_native_arm_of_its_own_b_has_no_interaction() -> None:
    arms = tuple(arm for arm in ARMS if arm != "native+pinned")
    (place,) = answer(1.12, 1.12, tunings=arms).places
    assert (place.native, place.interaction, place.depends) == (None, None, None)


def test_the_answer_and_json_of_a_run_are_about_a_and_b() -> None:
    judgement = judge(ab_run(1.12, 1.12))
    assert judgement.decision.lead == "B is faster than A."
    assert all("labctl advise" not in str(one.command) for one in judgement.decision.next)
    assert judgement.ab is not None
    content = ab_json(judgement.ab)
    assert (content["a"], content["b"], content["outcome"]) == ("./old", "./new", "better")
    assert judge(synthetic_run()).ab is None


def test_an_arm_that_has_no_file_is_not_advised(tmp_path: Path) -> None:
    run = with_plan(ab_run(1.12, 1.12), define={"pinned": {"extends": "baseline"}})
    with pytest.raises(UsageError, match="has no file that could be rolled out"):
        of_tuning(run, judge(run), tmp_path, None, "pinned")


RUNS = 300


def test_equal_effects_are_seldom_called_different() -> None:
    """The interval errs in 5 % of runs: at most 26 of 300, but for one series in a thousand."""
    wrong = 0
    for seed in range(RUNS):
        run = ab_run(1.1, 1.1, seed=seed, noise=0.03)
        of = decide(run)
        found = compare_ab(LABELS, of.design, of.cells, of.comparisons, of.eligibilities)
        assert found is not None
        wrong += found.places[0].depends is Depends.YES
    assert wrong <= 26


def test_where_the_verdict_is_suspended_the_dependence_is_open() -> None:
    of = decide(ab_run(1.12, 1.0))
    suspended = [replace(one, verdict=Verdict.SUSPENDED) for one in of.comparisons]
    found = compare_ab(LABELS, of.design, of.cells, suspended, of.eligibilities)
    assert found is not None
    assert found.places[0].depends is Depends.OPEN


def test_of_two_images_the_kernels_are_a_cause_too() -> None:
    found = answer(1.2, 1.5)
    labels = AbLabels(a="debian-12", b="debian-13", arm="pinned", are_images=True)
    said = ab_because(replace(found, labels=labels))
    assert "the change depends on virtualization or the guests' kernels (interaction" in said
