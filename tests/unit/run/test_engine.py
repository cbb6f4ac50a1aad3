"""What the engine does with trials that go wrong, machines that die and runs that go on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from labctl.base.errors import BrokenError, HostError
from labctl.base.events import Note, Progress
from labctl.base.stopping import Looks, UntilWidth
from labctl.base.units import Better, Unit
from labctl.run.guests.boots import BootError
from labctl.run.trials import engine as module
from labctl.run.trials.engine import Ended
from labctl.store.records.plan_record import PlannedTrial
from labctl.store.records.run_record import LeftOut, LookTaken
from labctl.store.samples import Sample
from labctl.store.trial import TrialStatus
from labctl.study.extension import as_carried_out
from labctl.study.plan import Plan
from tests.unit.run.engines import World, small_plan


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    return World(monkeypatch, tmp_path)


def fail_first(*numbers: int, reason: str = "too loud") -> object:
    def outcome(planned: PlannedTrial, attempt: int) -> list[str]:
        return [reason] if planned.number in numbers and attempt == 1 else []

    return outcome


def test_trials_run_in_the_plans_order_one_machine_per_tuning_and_block(world: World) -> None:
    plan = small_plan(blocks=2)
    world.engine(plan).run()
    assert [number for number, _, _ in world.trials] == [trial.number for trial in plan.trials]
    assert world.benches == ["native", "baseline", "pinned"] * 2
    assert world.ended == world.benches
    assert {record.status for record in world.records().values()} == {TrialStatus.DONE}


def test_an_invalid_trial_is_kept_and_repeated_on_a_fresh_machine(world: World) -> None:
    world.outcome = fail_first(3)  # type: ignore[assignment]
    world.engine(small_plan()).run()
    # Its neighbour in the same restore goes on; then a machine of its own for the repetition.
    assert world.trials[2:5] == [(3, 1, 2), (4, 1, 2), (3, 2, 3)]
    records = world.records()
    assert records["0003"].status is TrialStatus.INVALID
    assert records["0003"].reasons == ("too loud",)
    assert records["0003.2"].status is TrialStatus.DONE
    kept = world.folder.trial(3).path / "stdout.txt"
    assert kept.read_text() == "3.1"


def test_what_is_odd_about_a_program_is_told_after_its_trial(world: World) -> None:
    world.odd = lambda number: ["it left processes running"] if number < 3 else []
    world.engine(small_plan()).run()
    assert world.noted == [("it left processes running", False)] * 2
    assert {record.status for record in world.records().values()} == {TrialStatus.DONE}


def test_attempts_end_at_the_studys_limit_and_the_run_goes_on(world: World) -> None:
    world.outcome = lambda planned, attempt: ["too loud"] if planned.number == 3 else []
    engine = world.engine(small_plan(attempts=2))
    engine.run()
    assert [t for t in world.trials if t[0] == 3] == [(3, 1, 2), (3, 2, 3)]
    assert engine.counts() == {"planned": 6, "done": 5, "invalid": 2}


def test_a_trial_whose_samples_show_a_disturbance_is_invalid_and_keeps_them(world: World) -> None:
    other = Sample(
        metric="host_cpu",
        value=0.5,
        unit=Unit.FRACTION,
        better=Better.NEITHER,
        labels={"thread": "other"},
        source="host.json",
    )
    world.parse = lambda record: [other] if (record.number, record.attempt) == (1, 1) else []
    world.engine(small_plan()).run()
    records = world.records()
    assert "others took 0.50 CPU seconds" in records["0001"].reasons[0]
    assert list(world.folder.trial(1).read_readings()) == [other]
    assert records["0001.2"].status is TrialStatus.DONE


def test_a_trial_whose_output_cannot_be_parsed_is_invalid(world: World) -> None:
    def parse(record: object) -> list[object]:
        if len(world.trials) == 1:
            raise BrokenError("stdout.txt: expected a line 'events per second:'")
        return []

    world.parse = parse  # type: ignore[assignment]
    world.engine(small_plan()).run()
    assert world.records()["0001"].reasons == ("stdout.txt: expected a line 'events per second:'",)
    assert world.records()["0001.2"].status is TrialStatus.DONE


def test_a_machine_that_dies_costs_one_attempt_and_the_rest_gets_another(world: World) -> None:
    world.outcome = fail_first(3, reason="the guest ended")  # type: ignore[assignment]
    world.dies = lambda number: len(world.trials) == 3
    world.engine(small_plan()).run()
    # Trial 4 was never reached on the machine that died, so it has one attempt.
    assert world.trials[2:] == [(3, 1, 2), (3, 2, 3), (4, 1, 3), (5, 1, 4), (6, 1, 4)]
    assert sorted(world.records()) == ["0001", "0002", "0003", "0003.2", "0004", "0005", "0006"]


def test_a_machine_that_never_comes_costs_its_first_trial_one_attempt(world: World) -> None:
    refused: list[str] = []

    def refuse(tuning: str) -> BrokenError | None:
        if tuning == "baseline" and not refused:
            refused.append(tuning)
            return BrokenError("the guest did not answer within 60 s")
        return None

    world.refuse = refuse
    world.engine(small_plan()).run()
    records = world.records()
    assert records["0003"].reasons == ("the guest did not answer within 60 s",)
    assert records["0003.2"].status is TrialStatus.DONE
    assert "0004.2" not in records
    assert records["0004"].status is TrialStatus.DONE


def test_what_the_host_cannot_do_ends_the_run_and_the_machine(world: World) -> None:
    world.outcome = lambda planned, attempt: HostError("no space left")
    with pytest.raises(HostError, match="no space left"):
        world.engine(small_plan()).run()
    assert len(world.trials) == 1
    assert world.ended == ["native"]


def test_a_failed_end_of_a_machine_is_said_and_costs_no_attempt(world: World) -> None:
    world.fail_at_end = lambda tuning: BrokenError(f"cannot put {tuning} back")
    world.engine(small_plan()).run()
    assert world.warnings() == [f"cannot put {t} back" for t in ("native", "baseline", "pinned")]
    assert sorted(world.records()) == [f"{number:04d}" for number in range(1, 7)]


@pytest.mark.parametrize("attempts", [1, 2, 3, 4])
def test_a_hopeless_run_stops_after_twelve_attempts_and_says_how_to_go_on(
    world: World, attempts: int
) -> None:
    world.outcome = lambda planned, attempt: ["the tool prints garbage"]
    with pytest.raises(BrokenError, match="first 12 attempts were all invalid") as caught:
        world.engine(small_plan(blocks=5, attempts=attempts)).run()
    assert "the tool prints garbage" in caught.value.message
    assert "labctl sweep --resume run" in str(caught.value.hint)
    assert len(world.trials) == 12
    # Each record is of a trial that was tried: the end itself is no attempt of anybody's.
    assert len(world.records()) == 12
    assert world.ended == world.benches


def test_one_valid_trial_is_hope(world: World) -> None:
    world.outcome = lambda planned, attempt: [] if planned.number == 1 else ["too loud"]
    engine = world.engine(small_plan(blocks=3))
    engine.run()
    assert engine.counts() == {"planned": 18, "done": 1, "invalid": 51}


def test_a_resumed_run_does_what_is_left_and_touches_nothing_else(world: World) -> None:
    def outcome(planned: PlannedTrial, attempt: int) -> list[str]:
        if planned.number == 4:
            raise KeyboardInterrupt
        return []

    world.outcome = outcome
    with pytest.raises(KeyboardInterrupt):
        world.engine(small_plan()).run()
    assert not world.folder.trial(4).has("trial.json")
    before = {
        path: path.read_bytes()
        for number in (1, 2, 3)
        for path in world.folder.trial(number).path.iterdir()
    }
    world.trials.clear()
    world.outcome = lambda planned, attempt: []
    world.measuring = False
    engine = world.engine(small_plan())
    engine.run()
    assert [(number, attempt) for number, attempt, _ in world.trials] == [(4, 1), (5, 1), (6, 1)]
    assert {path: path.read_bytes() for path in before} == before
    assert engine.counts() == {"planned": 6, "done": 6, "invalid": 0}


@pytest.mark.parametrize("text", ['{"schema": 1', "null", "another cell"])
def test_a_damaged_record_is_no_trial_and_the_resumed_run_does_it_again(
    world: World, text: str
) -> None:
    world.engine(small_plan()).run()
    path = world.folder.trial(3).path / "trial.json"
    whole = path.read_text()
    other = whole.replace('"tuning": "', '"tuning": "another-')
    path.write_text(other if text == "another cell" else text)
    damaged = path.read_text()
    world.trials.clear()
    engine = world.engine(small_plan())
    assert "trial 0003 does not count and is repeated" in world.warnings()[-1]
    engine.run()
    assert [(number, attempt) for number, attempt, _ in world.trials] == [(3, 2)]
    assert path.read_text() == damaged
    assert engine.counts() == {"planned": 6, "done": 6, "invalid": 0}


def test_a_trial_s_record_has_the_digests_of_its_files(world: World) -> None:
    world.engine(small_plan()).run()
    place = world.folder.trial(3)
    digests = place.read_record().digests
    assert digests == place.digests()
    assert digests is not None
    assert digests.samples is not None
    assert list(digests.raw) == ["stdout.txt"]


def test_a_resumed_run_counts_the_attempts_that_were_made_before(world: World) -> None:
    def outcome(planned: PlannedTrial, attempt: int) -> list[str]:
        if planned.number == 3 and attempt == 2:
            raise KeyboardInterrupt
        return ["too loud"] if planned.number == 3 else []

    world.outcome = outcome
    with pytest.raises(KeyboardInterrupt):
        world.engine(small_plan(attempts=2)).run()
    world.trials.clear()
    world.measuring = False
    world.outcome = lambda planned, attempt: []
    world.engine(small_plan(attempts=2)).run()
    # The attempt that was cut off is made again under its number; the first one stays.
    assert [(number, attempt) for number, attempt, _ in world.trials] == [(3, 2), (5, 1), (6, 1)]
    assert world.records()["0003"].status is TrialStatus.INVALID
    assert world.records()["0003.2"].status is TrialStatus.DONE


def test_an_attempt_that_was_cut_off_leaves_no_file_in_the_next_one(world: World) -> None:
    plan = small_plan()
    world.engine(plan)
    left = world.folder.new_trial(1, 1)
    left.write_raw("perf-stat.txt", "of the attempt that was cut off")
    (left.path / ".trial.json.new").write_text('{"number": 1, "att')
    world.engine(plan).run()
    assert {path.name for path in left.path.iterdir()} == {
        "stdout.txt",
        "samples.json",
        "trial.json",
    }


def test_a_finished_run_that_is_resumed_starts_no_machine(world: World) -> None:
    world.engine(small_plan()).run()
    world.benches.clear()
    world.engine(small_plan()).run()
    assert world.benches == []


def test_progress_is_told_before_each_trial_and_never_while_one_is_measured(world: World) -> None:
    # World's listener fails when an event comes while a trial is measured.
    world.outcome = fail_first(2)  # type: ignore[assignment]
    world.engine(small_plan()).run()
    told = [event for event in world.events if isinstance(event, Progress)]
    assert [event.done for event in told] == [0, 1, 1, 2, 3, 4, 5]
    assert told[0].left_s is None
    assert told[0].doing == "block 1: native · cpu · quiet"
    assert told[2].invalid == 1
    assert all(event.planned == 6 for event in told)
    assert len(world.told()) == 7
    assert world.told()[1] == "trial 2 (native, wake, quiet): too loud"


def test_two_boots_that_fail_in_a_row_end_the_run(world: World) -> None:
    error = BootError("the guest did not answer within 180 s", hint="Look at its image.")
    world.refuse = lambda tuning: None if tuning == "native" else error
    with pytest.raises(BrokenError, match="failed to boot 2 times in a row.*180 s") as caught:
        world.engine(small_plan()).run()
    assert caught.value.hint == "Look at its image. Then run: labctl sweep --resume run"
    invalid = [r for r in world.records().values() if r.status is TrialStatus.INVALID]
    assert [record.reasons for record in invalid] == [(error.message,)] * 2


def test_a_boot_that_fails_now_and_then_costs_one_attempt(world: World) -> None:
    failures = iter([True, False, True, False, False, False])

    def refuse(tuning: str) -> BootError | None:
        return BootError("no answer") if tuning != "native" and next(failures) else None

    world.refuse = refuse
    engine = world.engine(small_plan(blocks=2))
    engine.run()
    assert engine.counts() == {"planned": 12, "done": 12, "invalid": 2}


def until_narrow(blocks: int) -> Plan:
    return replace(small_plan(blocks=blocks), stopping=UntilWidth(width=0.02, most_blocks=blocks))


def test_a_rule_ends_a_run_after_whole_blocks_and_is_asked_after_each_from_the_tenth(
    world: World,
) -> None:
    asked: list[tuple[int, int]] = []

    def why_end(blocks: int) -> str | None:
        asked.append((blocks, len(world.trials)))
        return "it was narrow" if blocks == 12 else None

    world.why_end = why_end
    engine = world.engine(until_narrow(14))
    engine.run()
    assert asked == [(10, 60), (11, 66), (12, 72)]
    assert engine.ended == Ended(12, "it was narrow")
    assert engine.counts() == {"planned": 72, "done": 72, "invalid": 0}
    assert "Stopped after 12 of 14 blocks: it was narrow." in [
        event.text for event in world.events if isinstance(event, Note)
    ]
    progress = [event for event in world.events if isinstance(event, Progress)]
    assert all(event.at_most and event.planned == 84 for event in progress)


def test_a_run_that_its_rule_does_not_end_goes_to_the_cap(world: World) -> None:
    engine = world.engine(until_narrow(12))
    engine.run()
    assert engine.ended is None
    assert engine.counts() == {"planned": 72, "done": 72, "invalid": 0}


def test_a_plan_without_a_rule_asks_nobody(world: World) -> None:
    def why_end(blocks: int) -> str | None:
        raise AssertionError("asked")

    world.why_end = why_end
    world.engine(small_plan(blocks=12)).run()
    assert len(world.trials) == 72


def test_a_resumed_run_asks_again_where_it_was_not_decided_and_not_where_it_was(
    world: World,
) -> None:
    """Interrupted in block 12: going on after blocks 10 and 11 was decided."""
    world.outcome = lambda planned, attempt: (
        HostError("no space left") if planned.number == 68 else []
    )
    with pytest.raises(HostError):
        world.engine(until_narrow(14)).run()
    asked: list[int] = []
    world.outcome = lambda planned, attempt: []
    world.why_end = lambda blocks: asked.append(blocks) or "narrow"  # type: ignore[func-returns-value]
    engine = world.engine(until_narrow(14))
    engine.run()
    assert asked == [12]
    assert engine.ended == Ended(12, "narrow")


LOOKS = Looks(at=(10, 12))


def without(tuning: str, blocks: int, every: int = 0) -> LookTaken:
    plan = small_plan(blocks=1)
    out = [
        LeftOut(tuning=tuning, workload=workload, condition="quiet", every=every)
        for workload in plan.workloads
    ]
    return LookTaken(blocks=blocks, left_out=tuple(out))


def tunings_of(world: World, block: int) -> set[str]:
    numbers = {number for number, _, _ in world.trials}
    trials = small_plan(blocks=12).trials
    return {t.cell["tuning"] for t in trials if t.block == block and t.number in numbers}


def last_block(world: World) -> int:
    return max(record.block for record in world.records().values())


def test_what_a_look_leaves_out_runs_no_more(world: World) -> None:
    world.why_end = lambda blocks: without("pinned", 10) if blocks == 10 else None
    engine = world.engine(replace(small_plan(blocks=12), stopping=LOOKS))
    engine.run()
    assert world.looks == [without("pinned", 10)]
    assert "pinned" in tunings_of(world, 10)
    assert tunings_of(world, 11) == tunings_of(world, 12) == tunings_of(world, 10) - {"pinned"}
    left = len(world.trials)
    assert engine.counts() == {"planned": left, "done": left, "invalid": 0}
    assert engine.ended is None
    (look,) = [one.text for one in world.events if isinstance(one, Note) and "Look" in one.text]
    assert look == (
        "Look after 10 blocks: no more of pinned in cpu, pinned in wake. "
        f"So far: labctl report {world.folder.path}"
    )


def test_what_runs_in_every_second_block_runs_in_those(world: World) -> None:
    world.why_end = lambda blocks: without("native", 10, every=2) if blocks == 10 else None
    world.engine(replace(small_plan(blocks=12), stopping=LOOKS)).run()
    assert "native" not in tunings_of(world, 11)
    assert "native" in tunings_of(world, 12)


@pytest.mark.parametrize(
    ("seconds", "blocks"),
    [
        # Each trial takes 10 s, so that ten blocks take 600 s and twelve 720 s.
        (2000.0, 12),
        (720.0, 12),
        (719.0, 10),
        (1.0, 10),
    ],
)
def test_looks_with_a_time_end_where_the_next_look_would_come_too_late(
    world: World, monkeypatch: pytest.MonkeyPatch, seconds: float, blocks: int
) -> None:
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 10.0 * len(world.trials)))
    plan = replace(small_plan(blocks=12), stopping=replace(LOOKS, within_s=seconds))
    engine = world.engine(plan)
    engine.run()
    assert last_block(world) == blocks
    if blocks == 12:
        assert engine.ended is None
    else:
        assert engine.ended is not None
        assert "the next look, after 12 blocks, would have come after about 12 min" in (
            engine.ended.why
        )


def test_what_a_look_leaves_out_takes_no_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four of six trials of a block are left, so that twelve blocks take 680 s."""
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 10.0 * len(world.trials)))
    world.why_end = lambda blocks: without("pinned", 10) if blocks == 10 else None
    plan = replace(small_plan(blocks=12), stopping=replace(LOOKS, within_s=690.0))
    world.engine(plan).run()
    assert last_block(world) == 12


def test_a_run_that_is_killed_after_a_look_goes_on_by_what_was_recorded(world: World) -> None:
    """It was killed in block 11; whoever judges now is not asked about block 10 again."""
    world.why_end = lambda blocks: without("pinned", 10) if blocks == 10 else None
    first = small_plan(blocks=12).trials
    cut = next(t.number for t in first if t.block == 11 and t.cell["tuning"] != "pinned")
    world.outcome = lambda planned, attempt: (
        HostError("no space left") if planned.number == cut else []
    )
    plan = replace(small_plan(blocks=12), stopping=LOOKS)
    with pytest.raises(HostError):
        world.engine(plan).run()
    asked: list[int] = []
    world.outcome = lambda planned, attempt: []
    world.why_end = lambda blocks: asked.append(blocks)  # type: ignore[func-returns-value]
    world.engine(as_carried_out(plan, None, (), world.looks)).run()
    assert asked == [12]
    assert "pinned" not in tunings_of(world, 11)


def test_a_machine_whose_threads_were_changed_serves_no_further_trial(world: World) -> None:
    """Each would be invalid; on a fresh machine they aren't, and so it is no attempt of theirs."""
    world.outcome = fail_first(3, reason="vCPU 0: expected policy")  # type: ignore[assignment]
    world.misplaced = lambda number: ["vCPU 0: expected policy"] if len(world.benches) == 2 else []
    world.engine(small_plan()).run()
    assert world.trials[2:5] == [(3, 1, 2), (3, 2, 3), (4, 1, 3)]


def test_native_files_are_hashed_before_each_machines_first_trial(world: World) -> None:
    hashed = []
    world.proven = lambda machines: hashed.append((machines, len(world.trials)))
    world.engine(small_plan(blocks=2)).run()
    assert hashed == [(1, 0), (4, 6)]


def test_a_file_that_is_not_what_was_proven_ends_the_run_before_any_trial_of_it(
    world: World,
) -> None:
    def proven(machines: int) -> None:
        if machines > 1:
            raise HostError("/usr/bin/sysbench is not what it was")

    world.proven = proven
    with pytest.raises(HostError, match="not what it was"):
        world.engine(small_plan(blocks=2)).run()
    assert len(world.trials) == 6
    assert world.ended == world.benches


def test_a_machine_whose_setting_up_fails_as_nobody_foresaw_costs_one_attempt(
    world: World,
) -> None:
    """A guest's words are read there as well: sysfs, systemd, its network card."""
    failures = iter([True, False, False])

    def refuse(tuning: str) -> None:
        if tuning == "pinned" and next(failures):
            raise KeyError("block")

    world.refuse = refuse
    engine = world.engine(small_plan())
    engine.run()
    assert engine.counts() == {"planned": 6, "done": 6, "invalid": 1}
    (invalid,) = (r for r in world.records().values() if r.status is TrialStatus.INVALID)
    assert invalid.reasons == ("a fault in labctl, while a machine was ready: KeyError: 'block'",)
    fault = world.folder.trial(invalid.number).read_text("fault.txt")
    assert "Traceback" in fault
    assert "KeyError: 'block'" in fault


def test_a_done_trial_whose_samples_were_changed_is_done_again(world: World) -> None:
    world.engine(small_plan()).run()
    for number, text in ((2, "{}"), (3, None)):
        path = world.folder.trial(number).path / "samples.json"
        path.unlink() if text is None else path.write_text(text)
    world.trials.clear()
    world.engine(small_plan()).run()
    assert [(number, attempt) for number, attempt, _ in world.trials] == [(2, 2), (3, 2)]
    told = [text for text in world.warnings() if "does not count and is repeated" in text]
    assert "trial 0002" in told[0]
    assert "samples.json was changed after its trial ended" in told[0]
    assert "samples.json is missing" in told[1]
