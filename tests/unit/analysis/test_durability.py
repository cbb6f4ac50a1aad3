"""A disk of different durability gets no verdict for being faster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labctl.analysis.gate.policy import Policy, Rule, Undecided
from labctl.analysis.gate.rules import Finding, Outcome, gate
from labctl.analysis.judge import judge
from labctl.analysis.model import AnswerCode, Judgement, Role
from labctl.analysis.verdicts.table import Verdict
from labctl.base.tuning import Disk
from labctl.rollout.advice import advise
from labctl.store.run_folder import LoadedRun
from tests.unit.records import plan_of
from tests.unit.synthetic import synthetic_run


def judged(durability: str | None, effects: dict[str, float]) -> Judgement:
    return judge(made(durability, effects))


def made(durability: str | None, effects: dict[str, float]) -> LoadedRun:
    """A run in which 'pinned' has a disk of the given class, and fio is on the data disk."""
    run = synthetic_run(effects=effects, noise=0.01)
    tunings = {
        name: {**entry, "durability": "writeback"} if entry["kind"] == "guest" else entry
        for name, entry in run.plan.to_json()["tunings"].items()
    }
    tunings["pinned"] = {**tunings["pinned"], "durability": durability}
    workloads = {
        name: {**entry, "uses_data_disk": entry["program"] == "fio"}
        for name, entry in run.plan.to_json()["workloads"].items()
    }
    return replace(
        run, plan=plan_of({**run.plan.to_json(), "tunings": tunings, "workloads": workloads})
    )


def verdicts(found: Judgement, tuning: str = "pinned") -> dict[str, Verdict | None]:
    return {
        c.workload: c.verdict
        for c in found.comparisons
        if c.role is Role.PRIMARY and c.tuning == tuning
    }


FASTER = {"pinned": 1.5, "pinned+fifo": 1.5, "handicap": 0.9}


@pytest.mark.parametrize(
    ("durability", "cpu", "disk"),
    [
        ("writeback", Verdict.IMPROVES, Verdict.IMPROVES),
        (None, Verdict.IMPROVES, Verdict.IMPROVES),
        ("none", Verdict.IMPROVES, Verdict.DIFFERENT_DURABILITY),
        ("writethrough", Verdict.IMPROVES, Verdict.DIFFERENT_DURABILITY),
        ("unsafe", Verdict.DIFFERENT_DURABILITY, Verdict.DIFFERENT_DURABILITY),
    ],
)
def test_a_verdict_takes_the_same_durability(
    durability: str | None, cpu: Verdict, disk: Verdict
) -> None:
    found = judged(durability, FASTER)
    assert verdicts(found) == {"sysbench-cpu": cpu, "fio-randread": disk}
    assert set(verdicts(found, "pinned+fifo").values()) == {Verdict.IMPROVES}


@pytest.mark.parametrize("durability", ["none", "unsafe"])
def test_a_tuning_of_different_durability_is_never_advised(durability: str, tmp_path: Path) -> None:
    run = made(durability, FASTER)
    found = judge(run)
    codes = {of.tuning: of.code for of in found.standings}
    assert codes == {"pinned": AnswerCode.NONE, "pinned+fifo": AnswerCode.RECOMMENDED}
    advice = advise(run, found, tmp_path)
    assert [one.tuning for one in advice.advised] == ["pinned+fifo"]
    assert [(one.tuning, one.why) for one in advice.left] == [
        ("pinned", "no verdict: its disk has a different durability guarantee")
    ]


def test_the_report_says_which_and_why() -> None:
    (said,) = [text for text in judged("none", FASTER).warnings if "cache modes" in text]
    assert "'pinned' (none)" in said
    assert "baseline's (writeback)" in said
    assert not [text for text in judged("writeback", FASTER).warnings if "cache modes" in text]


def test_tests_that_are_never_made_do_not_widen_the_others() -> None:
    def confidence(found: Judgement) -> float:
        return next(c.confidence for c in found.comparisons if c.role is Role.PRIMARY)

    assert confidence(judged("none", FASTER)) == pytest.approx(1 - 0.05 / 3)
    assert confidence(judged("writeback", FASTER)) == pytest.approx(1 - 0.05 / 4)


@pytest.mark.parametrize(
    ("cache", "durability"),
    [
        (None, "writeback"),
        ("writeback", "writeback"),
        ("none", "none"),
        ("writethrough", "writethrough"),
        ("directsync", "writethrough"),
        ("unsafe", "unsafe"),
    ],
)
def test_each_cache_mode_has_its_class(cache: str | None, durability: str) -> None:
    assert Disk(cache=cache).durability == durability


def gated(durability: str | None, effect: float, **fields: Any) -> Finding:
    """What a rule about 'pinned' says of a run in which its disk has that durability."""
    run = made(durability, {"pinned": effect, "handicap": 0.9})
    limit = {"worse_by_at_most": "10 %"} if not fields.keys() & {"below", "like"} else {}
    rule = Rule(**{"tuning": "pinned", "metric": "iops", **limit, **fields})
    other = made("none" if durability == "unsafe" else "unsafe", {"pinned": effect})
    (one,) = gate(run, Policy(undecided=Undecided.PASS, rules=[rule]), {"fleet": other}).findings
    return one


@pytest.mark.parametrize(
    ("durability", "effect", "outcome"),
    [
        ("writeback", 1.5, Outcome.HOLDS),
        ("writeback", 0.5, Outcome.VIOLATED),
        ("unsafe", 1.5, Outcome.UNDECIDED),
        ("unsafe", 0.5, Outcome.UNDECIDED),
        ("none", 1.5, Outcome.UNDECIDED),
    ],
)
def test_a_gate_takes_the_same_durability(durability: str, effect: float, outcome: Outcome) -> None:
    """What is undecided for that reason is left open, even where the policy says 'pass'."""
    one = gated(durability, effect, against="baseline")
    assert one.outcome is outcome
    if outcome is Outcome.UNDECIDED:
        assert f"disk ({durability}) differs from baseline's" in one.why
        assert one.counts_as is Undecided.OPEN


def test_two_tunings_are_held_against_each_other_by_their_own_durability() -> None:
    """Neither of them is baseline, and a processor's work knows no disk."""
    other = {"against": "pinned+fifo", "workload": "*"}
    assert gated("none", 1.5, **other).outcome is Outcome.UNDECIDED
    assert gated("none", 6.0, **other, metric="events_per_s").outcome is Outcome.HOLDS
    assert gated("unsafe", 6.0, **other, metric="events_per_s").outcome is Outcome.UNDECIDED


def test_a_value_by_itself_compares_no_durability() -> None:
    assert gated("unsafe", 1.5, below=1e9).outcome is Outcome.HOLDS


def test_a_native_arm_has_no_durability_to_compare() -> None:
    assert "durability" not in gated("none", 1.5, against="twin").why


def test_another_run_s_tuning_of_that_name_must_have_the_same_durability() -> None:
    one = gated("unsafe", 1.0, like="fleet", within="50 %")
    assert one.outcome is Outcome.UNDECIDED
    assert "from fleet's (none)" in one.why
