"""The whole chain, from perf's file to figures and lanes, against schedules that dice have played.

Nothing that is said may be wrong, whatever is kept back or lost; and where nothing is, all is said.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from labctl.store.trial import TrialFolder
from labctl.trace import files
from labctl.trace.model import SWITCH, Trace
from labctl.trace.sched import schedule
from labctl.trace.timeline.host_lanes import HostSide, switching_cpus, task_lane
from labctl.trace.timeline.lanes import STATES, Lane, State
from labctl.trace.timeline.recordings import Traces
from tests.unit.trace.simulated import ABSENT, RUNS, SLEEPS, WAITS, Machine

SEEDS = range(10)
STEPS = 250
TOLERANCE_NS = 3
"""perf's own records come a little after the event."""
STATE_OF = {
    RUNS: State.GUEST,
    WAITS: State.PREEMPTED,
    SLEEPS: State.HALTED,
    ABSENT: State.UNKNOWN,
}
NUMBER_OF = {state: number for number, state in enumerate(STATES)}
UNKNOWN = NUMBER_OF[State.UNKNOWN]


def read(folder: Path, data: bytes) -> Trace:
    raw = TrialFolder(folder)
    raw.write_raw(files.HOST, data)
    found = Traces(raw).host
    assert isinstance(found, Trace)
    assert found.problems == ()
    return found


def played(seed: int) -> Machine:
    machine = Machine.started(seed)
    machine.play(STEPS)
    return machine


def raster(lane: Lane, start_ns: int, end_ns: int) -> np.ndarray:
    found = np.full(end_ns - start_ns, UNKNOWN)
    for first, last, state in zip(lane.start_ns, lane.end_ns, lane.state, strict=True):
        found[first - start_ns : last - start_ns] = state
    return found


def told_of(trace: Trace, tid: int, *names: str) -> list[int]:
    """When such events tell of it."""
    found = [trace.start_ns] if names == (SWITCH,) else []
    for events in map(trace.events.__getitem__, names):
        for name in events.fields.keys() & {"prev_pid", "next_pid", "pid", "child_pid"}:
            found += events.time_ns[events.fields[name] == tid].tolist()
    return found


def steady(truth: np.ndarray) -> np.ndarray:
    """Where it is the same for a little while before and after."""
    is_steady = np.ones(len(truth), dtype=bool)
    is_steady[:TOLERANCE_NS] = False
    for change in np.flatnonzero(truth[1:] != truth[:-1]) + 1:
        is_steady[max(0, change - TOLERANCE_NS) : change + TOLERANCE_NS] = False
    return is_steady


@pytest.mark.parametrize("seed", SEEDS)
def test_of_a_whole_recording_every_figure_is_the_truth(seed: int, tmp_path: Path) -> None:
    machine = played(seed)
    trace = read(tmp_path, machine.file())
    found = schedule(trace)
    for tid, told in found.threads.items():
        truth = machine.raster(tid, trace.start_ns, trace.end_ns)
        waits = machine.waits(tid, trace.end_ns)
        delays = zip(told.delays.start_ns.tolist(), told.delays.length_ns.tolist(), strict=True)
        assert list(delays) == waits, tid
        assert told.on_cpu_ns == np.count_nonzero(truth == RUNS), tid
        assert told.unknown_ns == 0
        assert told.migrations == machine.moves[tid]
        assert dict(told.preempted_by_ns) == machine.preemptors(tid, trace.end_ns), tid


@pytest.mark.parametrize("seed", SEEDS)
def test_of_a_whole_recording_lanes_are_the_truth(seed: int, tmp_path: Path) -> None:
    machine = played(seed)
    trace = read(tmp_path, machine.file())
    side = HostSide.of(trace, {})
    for tid in schedule(trace).threads:
        lane, denied = side.vcpu_lane([tid], 0)
        assert denied == 0
        truth = machine.raster(tid, trace.start_ns, trace.end_ns)
        told = raster(lane, trace.start_ns, trace.end_ns)
        expected = np.vectorize(lambda what: NUMBER_OF[STATE_OF[what]])(truth)
        known = (told != UNKNOWN) & (truth != ABSENT)
        assert (told[known] == expected[known]).all(), tid
        # Before its first event nothing is known of a thread that waits then.
        first = min(told_of(trace, tid, *trace.events)) - trace.start_ns
        assert (known | (expected == UNKNOWN))[first:].all(), tid
    for cpu in switching_cpus(trace):
        tasks = task_lane(
            trace,
            cpu,
            side="host",
            mapped=lambda times: times,
            window_ns=(trace.start_ns, trace.end_ns),
        )
        for start, end, detail in zip(tasks.start_ns, tasks.end_ns, tasks.detail, strict=True):
            who = [who for at, who in machine.ran[cpu] if at <= start][-1]
            assert tasks.details[detail] == (f"task {who}" if who else "")
            assert not [at for at, _ in machine.ran[cpu] if start < at < end]


@pytest.mark.parametrize("losing", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_that_is_said_is_wrong_whatever_is_kept_back_or_lost(
    seed: int, losing: bool, tmp_path: Path
) -> None:
    machine = played(seed)
    # Of a switch between two that are silent nobody tells.
    silent = {(0, 102)[seed % 2]}
    trace = read(tmp_path, machine.file(silent=silent, losing=losing))
    side = HostSide.of(trace, {})
    for tid, told in schedule(trace).threads.items():
        truth = machine.raster(tid, trace.start_ns, trace.end_ns)
        slack = told.unknown_ns + TOLERANCE_NS * 2 * len(machine.truth[tid])
        assert abs(told.on_cpu_ns - np.count_nonzero(truth == RUNS)) <= slack, tid
        waits = dict(machine.waits(tid, trace.end_ns))
        for start, length in zip(told.delays.start_ns, told.delays.length_ns, strict=True):
            near = [at for at in waits if abs(at - start) <= TOLERANCE_NS]
            assert any(abs(waits[at] - length) <= 2 * TOLERANCE_NS for at in near), (tid, start)
        lane, _ = side.vcpu_lane([tid], 0)
        said = raster(lane, trace.start_ns, trace.end_ns)
        expected = np.vectorize(lambda what: NUMBER_OF[STATE_OF[what]])(truth)
        wrong = (said != UNKNOWN) & (said != expected) & steady(truth) & (truth != ABSENT)
        # Who was last seen to fall asleep may have been woken by a silent one.
        wrong[max(told_of(trace, tid, SWITCH)) - trace.start_ns :] = False
        assert not wrong.any(), (tid, trace.start_ns + np.flatnonzero(wrong)[:3])
