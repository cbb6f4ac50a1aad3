"""A run waits for others to leave the host alone, and says who they were."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from labctl.base.cpus import CpuSet
from labctl.base.events import Event, Note, Waiting
from labctl.base.units import Better, Unit
from labctl.host.doctor.activity import BusyProcess
from labctl.run.trials import quiet as module
from labctl.run.trials.quiet import Others, Quiet, Since, look
from labctl.store.samples import Reading, Sample
from labctl.store.trial import TrialRecord
from tests.unit.run.engines import World, small_plan

HOG = BusyProcess(pid=812, name="cc1plus", cpus=0.93, allowed=CpuSet({0, 1}))
BUSY = Others(0.93, (HOG,))
IDLE = Others(0.0)


def looks(found: Iterable[Others]) -> Callable[[], Others]:
    left: Iterator[Others] = iter(found)
    return lambda: next(left)


def test_it_waits_until_others_were_quiet_twice_in_a_row() -> None:
    events: list[Event] = []
    quiet = Quiet(0.1, 600.0, events.append, looks([BUSY, IDLE, BUSY, IDLE, IDLE, BUSY]))
    quiet.wait()
    assert quiet.waited_s == 5.0
    assert quiet.may_wait
    shown = [event for event in events if isinstance(event, Waiting)]
    assert [event.left_s for event in shown] == [599.0, 597.0]
    assert "cc1plus (pid 812, 0.93 of a CPU)" in shown[0].text


def test_a_run_waits_no_longer_than_it_may_altogether() -> None:
    events: list[Event] = []
    quiet = Quiet(0.1, 3.0, events.append, lambda: BUSY)
    quiet.wait()
    assert not quiet.may_wait
    assert quiet.waited_s == 3.0
    said = [event.text for event in events if isinstance(event, Note)]
    assert said == [
        (
            "Other processes have kept this host busy for 3 s, the limit of --wait-quiet: the "
            "run continues and may lose attempts."
        )
    ]


def test_a_run_that_may_not_wait_goes_on_at_once_and_without_a_word() -> None:
    events: list[Event] = []
    Quiet(0.1, 0.0, events.append, lambda: pytest.fail("it looked")).wait()
    assert events == []


def test_at_the_end_it_says_what_others_cost() -> None:
    quiet = Quiet(0.1, 600.0, lambda event: None, looks([BUSY, IDLE, IDLE]))
    assert quiet.summary(100.0) is None
    quiet.blame(BUSY)
    quiet.wait()
    assert quiet.summary(100.0) == (
        "Other processes disturbed 1 attempt, and the run waited 3 s for them, 3 % of its time."
    )


def test_who_disturbed_a_run_is_named_once() -> None:
    events: list[Event] = []
    quiet = Quiet(0.1, 600.0, events.append)
    other = replace(HOG, pid=9, name="apt-get")
    for others in (BUSY, BUSY, IDLE, Others(1.0, (other, HOG)), BUSY):
        quiet.blame(others)
    assert [event.text for event in events if isinstance(event, Note)] == [
        "Also running: cc1plus (pid 812, 0.93 of a CPU).",
        "Also running: apt-get (pid 9, 0.93 of a CPU), cc1plus (pid 812, 0.93 of a CPU).",
    ]
    assert quiet.disturbed == 5


def test_a_real_hog_of_a_stranger_is_named_and_our_own_children_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as hog:
        try:
            since = Since.now()
            time.sleep(0.5)
            assert hog.pid not in {process.pid for process in since.others().processes}
            # Whoever isn't below this process is a stranger: then this hog is one.
            monkeypatch.setattr(module, "_is_ours", lambda reader, pid: False)
            assert hog.pid in {process.pid for process in since.others().processes}
            assert hog.pid in {process.pid for process in look(0.3).processes}
        finally:
            hog.kill()


def took(cpus: float) -> Sample:
    return Sample(
        metric="host_cpu",
        value=cpus,
        unit=Unit.CPUS,
        better=Better.LOWER,
        source="host.json",
        labels={"thread": "other"},
    )


def test_after_a_disturbed_attempt_the_machine_is_left_and_the_host_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def parse(record: TrialRecord) -> list[Reading]:
        return [took(0.5 if (record.number, record.attempt) == (1, 1) else 0.0)]

    world = World(monkeypatch, tmp_path, parse=parse)
    engine = world.engine(small_plan())
    waited_before: list[int] = []

    def looked() -> Others:
        waited_before.append(len(world.trials))
        return IDLE

    engine.quiet = Quiet(0.1, 60.0, world._listen, looked)
    engine.run()
    # The second trial of that machine was not tried on the busy host.
    assert world.trials[:3] == [(1, 1, 1), (1, 2, 2), (2, 1, 2)]
    assert waited_before == [1, 1]
    assert engine.quiet.disturbed == 1
    assert any(note.text.startswith("Also running") for note in notes(world))


def test_a_run_that_may_wait_no_more_keeps_the_machine_as_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    world = World(
        monkeypatch, tmp_path, parse=lambda record: [took(0.5 if record.attempt == 1 else 0.0)]
    )
    engine = world.engine(small_plan())
    engine.run()
    assert [trial[:2] for trial in world.trials[:4]] == [(1, 1), (2, 1), (1, 2), (2, 2)]
    assert engine.quiet.waited_s == 0.0


def notes(world: World) -> list[Note]:
    return [event for event in world.events if isinstance(event, Note)]
