"""Shares of late wake-ups, from what real recorders left."""

from __future__ import annotations

import lzma
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from labctl.base.units import Better, Unit
from labctl.collect.traces import nested
from labctl.collect.traces.nested import BLOCKED, SEEN, SHARES
from labctl.report.timeline.timeline_words import answer
from labctl.store.samples import Reading, Sample, Unavailable
from labctl.store.trial import TrialFolder
from labctl.trace import files
from labctl.trace.model import TIMER_START, Trace
from labctl.trace.timeline.nested import timeline_of_files
from labctl.trace.timeline.recordings import Traces
from tests.unit.collect.targets import raw_trial

FIXTURES = Path(__file__).parent / "fixtures"
NATIVE = FIXTURES / "perf-6.1-native-cyclictest"
"""0.6 s of cyclictest natively, on a CPU of a 6.18 host that kept 154 of 600 wake-ups back."""
GUEST = FIXTURES / "perf-6.1-guest-cyclictest"
BLOCKED_GUEST = FIXTURES / "perf-6.1-guest-sysbench-blocked"
"""2 s of sysbench in an emulated guest with a FIFO vCPU, beside CPU hogs and a loop of low priority
that reads QEMU's /proc/PID/smaps."""
HOST = FIXTURES.parents[1] / "trace" / "fixtures" / "sched-perf-6.1.data"


@pytest.fixture
def raw(tmp_path: Path) -> TrialFolder:
    """A guest's trial, without a record yet, of which only the guest's own trace was recorded."""
    folder = TrialFolder(shutil.copytree(GUEST, tmp_path / "0001"))
    packed = folder.path / f"{files.GUEST}.xz"
    (folder.path / files.GUEST).write_bytes(lzma.decompress(packed.read_bytes()))
    return folder


@pytest.fixture
def native(tmp_path: Path) -> TrialFolder:
    folder = TrialFolder(shutil.copytree(NATIVE, tmp_path / "0001"))
    packed = folder.path / f"{files.HOST}.xz"
    (folder.path / files.HOST).write_bytes(lzma.decompress(packed.read_bytes()))
    return folder


def parse(raw: TrialFolder, kind: str, accelerator: str) -> Iterator[Reading]:
    return nested.parse(raw_trial(raw, program="cyclictest", kind=kind, accelerator=accelerator))


def reasons(raw: TrialFolder, kind: str, accelerator: str) -> dict[str, str]:
    found = list(parse(raw, kind=kind, accelerator=accelerator))
    assert {one.metric for one in found if isinstance(one, Sample)} <= {SEEN}
    return {one.metric: one.reason for one in found if isinstance(one, Unavailable)}


def test_without_the_hosts_side_no_share_is_told(raw: TrialFolder) -> None:
    found = reasons(raw, "guest", "tcg")
    assert found.keys() == {BLOCKED, *SHARES}
    assert found["late_exit_share"] == "emulated: no VM exits."
    assert "the causes of late wake-ups are unknown" in found["late_host_share"]


def test_a_trial_without_a_trace_has_none_of_it(tmp_path: Path) -> None:
    assert not list(parse(TrialFolder(tmp_path), kind="guest", accelerator="kvm"))


def test_traces_that_cannot_be_read_are_reasons(raw: TrialFolder) -> None:
    (raw.path / files.GUEST).write_bytes(b"no trace")
    found = reasons(raw, "guest", "kvm")
    assert found.keys() == {SEEN, BLOCKED, *SHARES}
    assert all("has no trace to show" in reason for reason in found.values())


def test_few_late_wake_ups_have_no_shares(raw: TrialFolder) -> None:
    side = raw.read_json("side.json")
    raw.write_raw_json("side.json", {**side, "duration_s": side["duration_s"] / 4})
    found = reasons(raw, "guest", "kvm")
    assert all("are fewer than 20" in found[share] for share in SHARES)


def test_natively_only_waiting_for_other_tasks_has_a_share(raw: TrialFolder) -> None:
    (raw.path / files.GUEST).rename(raw.path / files.HOST)
    raw.write_raw_json(files.THREADS, [])
    found = {reading.metric: reading for reading in parse(raw, kind="native", accelerator="kvm")}
    assert isinstance(found["late_queue_share"], Sample)
    assert 0 < found["late_queue_share"].value < 1
    assert isinstance(found["late_host_share"], Unavailable)
    assert isinstance(found["late_exit_share"], Unavailable)


def test_natively_wake_ups_that_the_kernel_kept_back_are_inferred_from_timers(
    native: TrialFolder,
) -> None:
    found = {reading.metric: reading for reading in parse(native, "native", "tcg")}
    seen, share = found[SEEN], found["late_queue_share"]
    assert isinstance(seen, Sample)
    assert isinstance(share, Sample)
    assert seen.value == 1
    assert share.value == pytest.approx(0.874, abs=0.001)


def test_natively_without_timers_the_wake_ups_that_are_left_say_nothing_of_all(
    native: TrialFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of those waited behind other tasks, as the others were made by an idle CPU."""
    host = Traces(native).host
    assert isinstance(host, Trace)
    events = {name: of for name, of in host.events.items() if name != TIMER_START}
    monkeypatch.setattr(Traces, "host", replace(host, events=events))
    found = {reading.metric: reading for reading in parse(native, "native", "tcg")}
    seen, share = found[SEEN], found["late_queue_share"]
    assert isinstance(seen, Sample)
    assert isinstance(share, Unavailable)
    assert seen.value == pytest.approx(446 / 600)
    assert share.reason == (
        "the trace shows 446 of 600 wake-ups (74.3 %), and the slowest may be among the others."
    )


@pytest.mark.parametrize(
    ("cycles", "worst_s", "reason"),
    [
        (600, 0.000451, None),
        (600, 0.00721, "it is only known to be from 42% to 94%."),
        (1200, 0.000451, "the trace shows 600 of 1,200 wake-ups (50.0 %)"),
    ],
)
def test_what_the_program_counts_itself_is_held_against_the_trace(
    native: TrialFolder, cycles: int, worst_s: float, reason: str | None
) -> None:
    told = (("wakeups", cycles, Unit.COUNT), ("latency_max", worst_s, Unit.SECONDS))
    own = [
        Sample(metric=metric, value=value, unit=unit, better=Better.LOWER, source="x")
        for metric, value, unit in told
    ]
    readings = nested.parse(raw_trial(native, program="cyclictest", kind="native", own=own))
    found = {reading.metric: reading for reading in readings}
    seen, share = found[SEEN], found["late_queue_share"]
    assert isinstance(seen, Sample)
    assert seen.value == 600 / cycles
    if reason is None:
        assert isinstance(share, Sample)
    else:
        assert isinstance(share, Unavailable)
        assert reason in share.reason


@pytest.fixture
def blocked(tmp_path: Path) -> TrialFolder:
    folder = TrialFolder(shutil.copytree(BLOCKED_GUEST, tmp_path / "0001"))
    for name in (files.HOST, files.GUEST):
        packed = folder.path / f"{name}.xz"
        (folder.path / name).write_bytes(lzma.decompress(packed.read_bytes()))
    return folder


def test_a_guest_whose_clock_may_be_off_by_more_has_no_blocked_time(blocked: TrialFolder) -> None:
    readings = blocked.read_json(files.CLOCKS)
    late = [{**one, "asked_ns": one["asked_ns"] - 5_000_000} for one in readings]
    blocked.write_raw_json(files.CLOCKS, late)
    trial = raw_trial(blocked, program="sysbench-cpu", kind="guest", accelerator="tcg")
    (found,) = [one for one in nested.parse(trial) if one.metric == BLOCKED]
    assert isinstance(found, Unavailable)
    assert "the guest's clock may be off by" in found.reason


def test_a_program_that_kept_qemus_memory_locked_is_named_as_the_waker(
    blocked: TrialFolder,
) -> None:
    """Its longest latency was 389 ms, by sysbench's own count."""
    trial = raw_trial(blocked, program="sysbench-cpu", kind="guest", accelerator="tcg")
    (found,) = [one for one in nested.parse(trial) if one.metric == BLOCKED]
    assert isinstance(found, Sample)
    assert found.value == pytest.approx(0.264, abs=0.001)
    timeline = timeline_of_files(trial.traces, trial.program, trial.own)
    said = [text for text in answer(timeline) if text.startswith("A vCPU is blocked")]
    assert said == [
        "A vCPU is blocked: the guest runs 'sysbench', but vCPU 0 sleeps 263.793 ms in the host, "
        "until it is woken by 'cat', which waits 263.763 ms of it for a CPU behind 'stress-ng-cpu'."
    ]
