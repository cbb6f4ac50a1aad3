"""A fresh run confirms advice only where it measured this very advice, anew, and shows it again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from labctl.analysis.answer.grade import evidence
from labctl.analysis.answer.record import AnswerRecord, Grade
from labctl.analysis.judge import judge
from labctl.store.run_folder import LoadedRun
from tests.unit.analysis.alter import with_plan, with_run, with_values
from tests.unit.synthetic import WORKLOADS, synthetic_run


def made(seed: int = 1, pinned: float = 1.5, **changes: Any) -> LoadedRun:
    shape: dict[str, Any] = {
        "seed": seed,
        "noise": 0.01,
        "accelerator": "kvm",
        "boots": 5,
        "tunings": ["baseline", "control", "handicap", "pinned"],
        "effects": {"handicap": 0.95, "pinned": pinned},
        "workloads": {"sysbench-cpu": WORKLOADS["sysbench-cpu"]},
    }
    return synthetic_run(**{**shape, **changes})


FIRST = made()


def again(of: LoadedRun, /, **said: str) -> LoadedRun:
    """`of` as a run that verifies the first one's advice."""
    verifies = {"run": FIRST.name, "tuning": "pinned", "evidence": evidence(FIRST), **said}
    return replace(with_run(of, verifies=verifies), name="fresh")


def decided(*fresh: LoadedRun, first: LoadedRun = FIRST) -> AnswerRecord:
    return judge(first, fresh).decision


def test_a_fresh_run_that_shows_it_again_confirms_it() -> None:
    found = decided(again(made(2)))
    assert found.grade is Grade.CONFIRMED
    assert found.lead == "Roll out 'pinned'."
    assert found.sure == "Confirmed. Fresh run fresh shows it again."
    assert [step.command for step in found.next] == ["labctl advise synthetic"]
    [one] = found.tunings[0].fresh
    assert (one.run, one.evidence) == ("fresh", evidence(again(made(2))))


def test_a_fresh_run_that_does_not_show_it_again_takes_the_grade_away() -> None:
    found = decided(again(made(2, pinned=1.0)))
    assert found.grade is Grade.NOT_SHOWN
    assert "fresh run fresh does not show it again: sysbench-cpu with a noisy" in found.sure


def test_of_several_fresh_runs_every_one_counts() -> None:
    other = replace(again(made(3, pinned=1.0)), name="fresh 2")
    assert decided(again(made(2)), other).grade is Grade.NOT_SHOWN


def test_emulated_guests_confirm_nothing() -> None:
    first = made(accelerator="tcg")
    found = decided(again(made(2, accelerator="tcg"), evidence=evidence(first)), first=first)
    assert found.grade is Grade.CANDIDATE
    assert "Fresh run fresh shows it again." in found.sure


@pytest.mark.parametrize(
    ("fresh", "why"),
    [
        (again(made(2), evidence="0" * 64), "it names a different state of run synthetic"),
        (again(made(1)), "it has the same seed"),
        (again(made(2, status="interrupted")), "it is not finished"),
        (again(made(2, accelerator="tcg")), "its guests ran under tcg"),
        (replace(again(made(2)), problems=("plan.json was changed",)), "its folder is incomplete"),
        (again(with_plan(made(2), conditions=["quiet"])), "its plan differs in conditions"),
        (with_run(again(made(2)), imported={"file": "x.csv"}), "it was not measured by labctl"),
        (again(made(2, boots=2)), "it has only 2 boots"),
    ],
    ids=["foreign", "seed", "unfinished", "emulated", "damaged", "plan", "imported", "boots"],
)
def test_a_run_that_can_say_nothing_leaves_the_grade_as_it_is(fresh: LoadedRun, why: str) -> None:
    found = decided(fresh)
    assert found.grade is Grade.CANDIDATE
    assert f"Run fresh can't confirm it: {why}" in found.sure


def test_neighbours_are_held_to_be_the_same_where_both_plans_say_what_they_are() -> None:
    def hogs(run: LoadedRun, count: int) -> LoadedRun:
        kinds = [{"program": "cpu-hog", "count": count}]
        return with_plan(run, neighbours={"neighbour": {"neighbours": kinds}})

    first = hogs(FIRST, 1)
    of_first = {"evidence": evidence(first)}
    assert decided(again(hogs(made(2), 1), **of_first), first=first).grade is Grade.CONFIRMED
    assert decided(again(made(2), **of_first), first=first).grade is Grade.CONFIRMED
    other = decided(again(hogs(made(2), 2), **of_first), first=first)
    assert "its plan differs in neighbours" in other.sure


def test_a_run_of_other_advice_is_left_out() -> None:
    assert decided(again(made(2), tuning="pinned+fifo")).tunings[0].fresh == ()
    assert decided(again(made(2), run="another")).tunings[0].fresh == ()
    assert decided(made(2)).tunings[0].fresh == ()


def test_what_was_measured_anew_or_changed_is_no_longer_confirmed() -> None:
    changed = with_values(FIRST, "pinned", "events_per_s", lambda _, old: 1.01 * old)
    assert evidence(changed) != evidence(FIRST)
    assert decided(again(made(2)), first=changed).grade is Grade.CANDIDATE
    assert evidence(replace(FIRST, name="other")) == evidence(FIRST)
