"""What a run with tunings both restored and booted says of the restore (METHOD 8)."""

from __future__ import annotations

from typing import Any

import pytest

from labctl.analysis.judge import judge
from labctl.analysis.model import RunCheck
from labctl.analysis.verdicts.decide import look_at
from labctl.analysis.verdicts.looks import Stop
from labctl.base.stopping import looks
from labctl.store.records.run_record import LookTaken
from labctl.store.run_folder import LoadedRun
from tests.unit.analysis.alter import with_plan, with_run
from tests.unit.synthetic import WORKLOADS, synthetic_run

ARMS = ("baseline", "control", "handicap", "booted", "pinned", "pinned+booted")
RESTORED_AS = {"booted": "baseline", "pinned+booted": "pinned"}
SYSBENCH = {"sysbench-cpu": WORKLOADS["sysbench-cpu"]}


def both_ways(effects: dict[str, float], **options: Any) -> LoadedRun:
    run = synthetic_run(
        tunings=ARMS, workloads=SYSBENCH, effects={"handicap": 0.95, **effects}, **options
    )
    tunings = {
        name: {**entry, "restored_as": RESTORED_AS.get(name), "restore": name not in RESTORED_AS}
        for name, entry in run.plan.to_json()["tunings"].items()
    }
    return with_run(with_plan(run, tunings=tunings), restored_state=True)


def check(run: LoadedRun) -> RunCheck:
    (found,) = judge(run).restored
    return found


def test_an_effect_that_is_the_same_either_way_passes() -> None:
    found = check(both_ways({"pinned": 1.3, "pinned+booted": 1.3}, noise=0.005))
    assert found.passed is True
    assert found.name == "pinned"
    assert found.estimate == pytest.approx(1, abs=0.02)
    assert "has the effect of a booted guest" in found.sentence


def test_a_boot_that_is_faster_for_all_changes_no_effect() -> None:
    """The interaction counts: what booting does to baseline as well is nobody's effect."""
    effects = {"pinned": 1.3, "booted": 1.2, "pinned+booted": 1.3 * 1.2}
    assert check(both_ways(effects, noise=0.005)).passed is True


def test_an_effect_that_only_restored_guests_have_does_not_pass() -> None:
    found = check(both_ways({"pinned": 1.3, "pinned+booted": 1.0}, noise=0.005))
    assert found.passed is False
    assert found.estimate == pytest.approx(1.3, rel=0.02)
    assert (
        "'pinned' in sysbench-cpu with a noisy neighbour does not have the effect of"
        in found.sentence
    )


def test_noise_beyond_half_the_margin_shows_nothing_either_way() -> None:
    found = check(both_ways({"pinned": 1.3, "pinned+booted": 1.3}, noise=0.1))
    assert found.passed is False
    assert "has not been shown to have the effect" in found.sentence


def test_a_run_that_is_blind_to_the_handicap_calls_nothing_equal() -> None:
    effects = {"pinned": 1.3, "pinned+booted": 1.3, "handicap": 1.0}
    found = check(both_ways(effects, noise=0.005))
    assert found.passed is None
    assert "do not allow this run to call things equal" in found.sentence
    assert found.estimate == pytest.approx(1, abs=0.02), "what was found is told all the same"


def test_a_baseline_that_differs_from_itself_lets_no_restore_pass() -> None:
    found = check(both_ways({"pinned": 1.3, "pinned+booted": 1.3, "control": 1.1}, noise=0.005))
    assert found.passed is None
    assert "the A/A control does not allow it" in found.sentence


def test_the_answer_begins_with_what_the_study_asked() -> None:
    same = judge(both_ways({"pinned": 1.3, "pinned+booted": 1.3}, noise=0.005)).answer
    other = judge(both_ways({"pinned": 1.3, "pinned+booted": 1.0}, noise=0.005)).answer
    noisy = judge(both_ways({"pinned": 1.3, "pinned+booted": 1.3}, noise=0.1)).answer
    assert same.startswith(
        "Restored and booted guests have the same effect, within the limits: 'pinned' ("
    )
    assert other.startswith(
        "Restoring changes the effect of 'pinned' (sysbench-cpu with a noisy neighbour)"
    )
    assert noisy.startswith(
        "It was not shown that 'pinned' (sysbench-cpu with a noisy neighbour) has the same effect"
    )


def test_fewer_than_ten_blocks_tell_nothing() -> None:
    found = check(both_ways({}, noise=0.001, blocks=9))
    assert found.passed is None
    assert "9 of the 10 blocks" in found.sentence


def test_restored_state_is_warned_of_until_it_is_shown_to_be_harmless() -> None:
    same = judge(both_ways({"pinned": 1.3, "pinned+booted": 1.3}, noise=0.005))
    other = judge(both_ways({"pinned": 1.3, "pinned+booted": 1.0}, noise=0.005))
    assert not any("Restored state" in warning for warning in same.warnings)
    assert any("Restored state" in warning for warning in other.warnings)
    assert any("does not have the effect" in warning for warning in other.warnings)


def warned(*shown: str) -> list[str]:
    """What a run of two restored tunings says of them, where these had been shown before."""
    place = {"workload": "sysbench-cpu", "condition": "neighbour", "run": "r0"}
    run = synthetic_run(workloads=SYSBENCH)
    known = [{"tuning": name, **place} for name in shown]
    warnings = judge(with_run(run, restored_state=True, restores_shown=known)).warnings
    return [warning for warning in warnings if "Restored state" in warning]


def test_what_earlier_runs_have_shown_is_named_until_it_is_everything() -> None:
    assert warned() == [
        "Restored state: tunings were restored from a snapshot, and it was not tested on this "
        "host that this equals booting them."
    ]
    (some,) = warned("pinned")
    assert some.endswith("except for 'pinned' in sysbench-cpu with a noisy neighbour (run r0).")
    assert warned("pinned", "pinned+fifo") == []


def test_a_run_that_boots_no_baseline_checks_no_restore() -> None:
    assert judge(synthetic_run(workloads=SYSBENCH)).restored == ()


def left_out(run: LoadedRun) -> set[str]:
    """The arms that a look after ten blocks drops."""
    taken = look_at(run, 10)
    assert isinstance(taken, LookTaken)
    return {one.tuning for one in taken.left_out if one.every == 0}


LOOKS: dict[str, Any] = {"blocks": 20, "stopping": looks((10, 20))}


def test_a_look_keeps_both_ways_of_a_tuning_until_they_are_compared() -> None:
    """30 % is an effect at once; that it is the same either way is open in such noise."""
    run = both_ways({"pinned": 1.3, "pinned+booted": 1.3}, noise=0.04, **LOOKS)
    (found,) = [c for c in judge(run).comparisons if c.tuning == "pinned" and c.verdict]
    assert found.look == 10
    assert left_out(run) <= {"handicap"}


def test_a_look_drops_the_booted_arms_once_they_have_answered() -> None:
    """4 % is too near the threshold for a verdict, and plainly the same either way."""
    run = both_ways({"pinned": 1.045, "pinned+booted": 1.045}, noise=0.008, **LOOKS)
    assert {"booted", "pinned+booted"} <= left_out(run)
    assert not left_out(run) & {"baseline", "control", "pinned"}


@pytest.mark.parametrize("booted", [1.3, 1.0])
def test_a_run_ends_at_the_look_that_has_answered_everything(booted: float) -> None:
    run = both_ways({"pinned": 1.3, "pinned+booted": booted}, noise=0.005, **LOOKS)
    stop = look_at(run, 10)
    assert isinstance(stop, Stop)
    assert stop.why.endswith("every primary comparison had a verdict, and so had every restore")


def test_what_boots_for_the_sake_of_comparison_is_never_recommended() -> None:
    run = both_ways({"pinned": 1.0, "pinned+booted": 1.5, "booted": 1.5}, noise=0.005)
    judgement = judge(run)
    judged = {c.tuning for c in judgement.comparisons if c.verdict is not None}
    assert judged == {"pinned"}
    assert "roll out 'pinned+booted'" not in judgement.answer.lower()
    shown = {c.tuning for c in judgement.comparisons if c.against == "baseline"}
    assert {"booted", "pinned+booted"} <= shown
