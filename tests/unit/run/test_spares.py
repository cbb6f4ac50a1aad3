"""Spare blocks in a run whose trials are made up: when they run, and what they are worth."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from labctl.analysis.judge import judge
from labctl.analysis.model import Comparison, Judgement, Role
from labctl.analysis.verdicts.table import Verdict
from labctl.base.errors import HostError
from labctl.base.events import Note, Progress
from labctl.base.stopping import Looks, Stopping, UntilWidth
from labctl.base.units import Better, Unit
from labctl.run.planning.plan import reached
from labctl.run.trials.engine import Engine
from labctl.store.records.plan_record import PlannedTrial
from labctl.store.samples import Sample
from labctl.store.trial import TrialRecord
from labctl.study.extension import extended, extension
from labctl.study.load_study import Overrides, load_study
from labctl.study.make_plan import make_plan
from labctl.study.plan import Plan
from labctl.study.tunings import load_tunings
from labctl.workloads.registry import checkers
from tests.unit.records import write_plan, write_run_json
from tests.unit.run.engines import World

Fails = Callable[[PlannedTrial, int], bool]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    made = World(monkeypatch, tmp_path)
    made.parse = lambda record: [measured(record)]
    return made


def measured(record: TrialRecord) -> Sample:
    """'pinned' is half as fast again; all differ by a few per mille."""
    factor = 1.5 if record.cell["tuning"] == "pinned" else 1.0
    return Sample(
        metric="events_per_s",
        value=100.0 * factor * (1 + (7 * record.number % 11) / 2000),
        unit=Unit.PER_SECOND,
        better=Better.HIGHER,
        source="stdout.txt",
    )


def planned(
    *, blocks: int | None = 10, spares: int = 2, per_boot: int = 2, rule: Stopping | None = None
) -> Plan:
    """Five arms under one workload: native, baseline, control, known loss and 'pinned'."""
    overrides = Overrides(
        tunings=("pinned",),
        workloads=("sysbench-cpu",),
        conditions=("quiet",),
        blocks=None if rule else blocks,
        blocks_per_boot=per_boot,
        spare_blocks=spares,
        stopping=rule,
    )
    study = load_study("pinning", programs=checkers(), overrides=overrides)
    return make_plan(study, load_tunings(study.tunings), seed=7, host_digest="host")


def fail(world: World, *cells: tuple[int, str], attempts: int = 99) -> None:
    """No attempt at these trials (block, tuning) is valid, or not the first so many."""

    def outcome(trial: PlannedTrial, attempt: int) -> list[str]:
        here = (trial.block, trial.cell["tuning"]) in cells
        return ["too loud"] if here and attempt <= attempts else []

    world.outcome = outcome


def carried_out(world: World, plan: Plan, *, status: str = "done") -> Engine:
    engine = world.engine(plan)
    if not (world.folder.path / "plan.json").exists():
        write_plan(world.folder, plan.to_json())
    engine.run()
    stopped = {"stopped": {"blocks": engine.ended.blocks, "why": "."}} if engine.ended else {}
    write_run_json(world.folder, {"status": status, "accelerator": "kvm", **stopped})
    return engine


def judged(world: World) -> Judgement:
    return judge(world.folder.load())


def the_primary(judgement: Judgement) -> Comparison:
    (found,) = (c for c in judgement.comparisons if c.role is Role.PRIMARY)
    return found


def blocks_of(world: World) -> list[int]:
    return sorted({record.block for record in world.records().values()})


def notes(world: World) -> list[str]:
    return [event.text for event in world.events if isinstance(event, Note)]


def test_without_spares_one_lost_value_leaves_a_demonstration(world: World) -> None:
    fail(world, (4, "pinned"))
    carried_out(world, planned(spares=0))
    assert the_primary(judged(world)).verdict is Verdict.DEMONSTRATION


def test_a_spare_runs_for_a_lost_value_and_the_comparison_has_its_verdict(world: World) -> None:
    fail(world, (4, "pinned"))
    engine = carried_out(world, planned())
    assert blocks_of(world) == list(range(1, 12))
    found = the_primary(judged(world))
    assert (found.verdict, len(found.blocks)) == (Verdict.IMPROVES, 10)
    assert found.left_out == (4,)
    assert engine.counts() == {"planned": 55, "done": 54, "invalid": 3}
    (note,) = notes(world)
    assert note.startswith("Block 11 is a spare block, run because trial ")
    assert "(pinned, sysbench-cpu, quiet) of block 4 has no valid attempt" in note


def test_a_spare_has_a_boot_of_its_own(world: World) -> None:
    fail(world, (4, "pinned"))
    carried_out(world, planned())
    assert sorted(set(world.boots)) == [1, 2, 3, 4, 5, 6]


def test_where_nothing_was_lost_no_spare_runs_whatever_the_values(world: World) -> None:
    """Neither for a trial that was valid at its last attempt, nor for one that measured nothing."""
    fail(world, (4, "pinned"), (6, "baseline"), attempts=2)
    world.parse = lambda record: [measured(record)] if record.block != 5 else []
    engine = carried_out(world, planned())
    assert blocks_of(world) == list(range(1, 11))
    assert engine.counts() == {"planned": 50, "done": 50, "invalid": 4}
    assert notes(world) == []


@pytest.mark.parametrize("factor", [1e-6, 1.0, 1e6])
def test_what_was_measured_does_not_enter(world: World, factor: float) -> None:
    fail(world, (4, "native"))
    world.parse = lambda record: [
        Sample(
            metric="events_per_s",
            value=factor ** (record.number % 3),
            unit=Unit.PER_SECOND,
            better=Better.HIGHER,
            source="stdout.txt",
        )
    ]
    carried_out(world, planned())
    assert blocks_of(world) == list(range(1, 12))


def test_spares_run_as_far_as_they_last_and_the_report_says_when_they_were_too_few(
    world: World,
) -> None:
    fail(world, *((block, "pinned") for block in (2, 4, 8)))
    carried_out(world, planned())
    judgement = judged(world)
    assert blocks_of(world) == list(range(1, 13))
    assert the_primary(judgement).verdict is Verdict.DEMONSTRATION
    assert any(
        "The plan's 2 spare blocks were not enough: 'pinned' has 9 of 10 blocks" in text
        for text in judgement.warnings
    )


def test_a_spare_that_loses_the_value_itself_is_followed_by_another(world: World) -> None:
    fail(world, (4, "pinned"), (11, "pinned"))
    carried_out(world, planned())
    assert blocks_of(world) == list(range(1, 13))
    assert the_primary(judged(world)).verdict is Verdict.IMPROVES


def test_the_report_says_which_blocks_are_spares_and_why_they_ran(world: World) -> None:
    fail(world, (4, "pinned"), (7, "baseline"))
    carried_out(world, planned())
    spares = judged(world).spares
    assert spares is not None
    assert (spares.planned, spares.ran) == (2, (11, 12))
    assert spares.sentence == (
        "Blocks 11 and 12 are spares: they ran because 'pinned' in "
        "sysbench-cpu on a quiet host (block 4) and 'baseline' in sysbench-cpu on a quiet host "
        "(block 7) had no valid attempt."
    )


def test_spares_that_did_not_run_are_counted_and_nothing_is_said(world: World) -> None:
    carried_out(world, planned())
    judgement = judged(world)
    assert judgement.spares is not None
    assert (judgement.spares.planned, judgement.spares.ran) == (2, ())
    assert judgement.spares.sentence is None
    assert (judgement.planned, judgement.done, judgement.blocks) == (50, 50, 10)


def test_progress_knows_of_a_spare_once_it_is_due(world: World) -> None:
    fail(world, (4, "pinned"))
    plan = planned()
    (lost,) = (t.number for t in plan.trials if (t.block, t.cell["tuning"]) == (4, "pinned"))
    carried_out(world, plan)
    told = [event for event in world.events if isinstance(event, Progress)]
    # Three attempts at it, each of which is told before it is made.
    assert [event.planned for event in told[:lost]] == [50] * lost
    assert {event.planned for event in told[lost + 6 :]} == {55}
    assert told[-1].done == 53
    assert told[-1].left_s is not None


def test_an_interrupted_spare_is_gone_on_with(world: World) -> None:
    """Even if what it was for is mended meanwhile: it was decided on before."""
    plan = planned()
    stop = plan.spares[2].number

    def outcome(trial: PlannedTrial, attempt: int) -> list[str] | HostError:
        if trial.number == stop:
            return HostError("no space left")
        return ["too loud"] if (trial.block, trial.cell["tuning"]) == (4, "pinned") else []

    world.outcome = outcome
    with pytest.raises(HostError):
        carried_out(world, plan)
    so_far = reached(plan, world.folder)
    assert not so_far.is_over
    world.outcome = lambda trial, attempt: []
    engine = carried_out(world, plan)
    assert engine.counts() == {"planned": 55, "done": 55, "invalid": 3}
    assert reached(plan, world.folder).is_over
    spares = judged(world).spares
    assert spares is not None
    assert spares.sentence == (
        "Block 11 is a spare: it ran because a planned block had lost a value, which a "
        "later attempt measured."
    )


def test_a_resumed_run_tries_what_was_lost_again_before_it_takes_a_spare(world: World) -> None:
    fail(world, (4, "pinned"))
    plan = planned()
    ended = plan.trials[-1].number

    def outcome(trial: PlannedTrial, attempt: int) -> list[str] | HostError:
        if trial.number == ended:
            return HostError("no space left")
        return ["too loud"] if (trial.block, trial.cell["tuning"]) == (4, "pinned") else []

    world.outcome = outcome
    with pytest.raises(HostError):
        carried_out(world, plan)
    world.outcome = lambda trial, attempt: []
    carried_out(world, plan)
    assert blocks_of(world) == list(range(1, 11))


def test_an_extended_run_has_no_more_spares_and_its_verdicts_rest_on_those_that_ran(
    world: World,
) -> None:
    fail(world, (4, "pinned"), (14, "pinned"))
    plan = planned()
    carried_out(world, plan)
    before = judged(world)
    added = extension(plan, 3, extends=plan.digest)
    world.folder.write_extension(added.to_json())
    carried_out(world, extended(plan, added))
    assert blocks_of(world) == [*range(1, 12), 13, 14, 15]
    after = judged(world)
    assert after.comparisons == before.comparisons
    assert (after.blocks, after.spares) == (11, before.spares)
    assert after.warnings[0] == (
        "Exploratory: blocks 13 to 15 were added after the result was known. "
        "The verdicts rest on the 11 blocks before."
    )


def test_a_run_that_ends_by_its_rule_needs_no_spare(world: World) -> None:
    fail(world, (4, "pinned"))
    world.why_end = lambda blocks: "all were narrow" if blocks == 11 else None
    plan = planned(rule=UntilWidth(width=0.02, most_blocks=12))
    engine = carried_out(world, plan)
    assert blocks_of(world) == list(range(1, 12))
    assert engine.counts() == {"planned": 55, "done": 54, "invalid": 3}
    judgement = judged(world)
    assert (judgement.spares, len(the_primary(judgement).blocks)) == (None, 10)


def test_spares_stand_in_at_the_cap_and_at_the_last_look(world: World) -> None:
    """`World` never ends a run by a rule: this one goes to its last look."""
    fail(world, *((block, "pinned") for block in (1, 2, 4)))
    carried_out(world, planned(spares=3, rule=Looks(at=(10, 12))))
    assert blocks_of(world) == list(range(1, 16))
    judgement = judged(world)
    assert (judgement.added, judgement.blocks) == (None, 15)
    assert len(the_primary(judgement).blocks) == 12
    assert the_primary(judgement).verdict is Verdict.IMPROVES
