"""The guest's own scheduler, from what a real guest's perf recorded."""

from __future__ import annotations

import json
import lzma
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from labctl.base.errors import BrokenError
from labctl.collect.traces.guest_trace import parse
from labctl.store.samples import Sample, Unavailable
from labctl.store.trial import TrialFolder
from labctl.trace import files
from labctl.trace.files import GUEST_TRACE, note_problem
from labctl.trace.timeline.recordings import Traces

RECORDED = Path(__file__).parent / "fixtures" / "perf-6.1-guest-cyclictest"
"""450 wake-ups of cyclictest in an emulated guest of one vCPU, beside a busy host."""

OF_GUEST = ("ctx_switches{of=guest}", "lost_events{of=guest}")
OF_TRACE = (
    "sched_delay{of=workload}",
    "sched_unknown{of=workload}",
    "sched_delay_p50{of=workload}",
    "sched_delay_p95{of=workload}",
    "sched_delay_p99{of=workload}",
    "sched_delay_max{of=workload}",
    "preemptions{of=workload}",
    "migrations{of=workload}",
    "preempted_time{of=workload}",
    *OF_GUEST,
)


@pytest.fixture
def raw(tmp_path: Path) -> TrialFolder:
    """The trial of a guest that was traced."""
    folder = shutil.copytree(RECORDED, tmp_path / "trial")
    packed = folder / f"{files.GUEST}.xz"
    (folder / files.GUEST).write_bytes(lzma.decompress(packed.read_bytes()))
    return TrialFolder(folder)


def samples(raw: TrialFolder) -> dict[str, float]:
    found = parse(Traces(raw), kind="guest")
    return {reading.key: reading.value for reading in found if isinstance(reading, Sample)}


def reasons(raw: TrialFolder, kind: str = "guest") -> dict[str, str]:
    found = parse(Traces(raw), kind=kind)
    return {r.metric: r.reason for r in found if isinstance(r, Unavailable)}


def all_say(reasons: Iterable[str], words: str) -> bool:
    return all(words in reason for reason in reasons)


def change_side(raw: TrialFolder, **changes: object) -> None:
    side = raw.read_json("side.json")
    raw.write_raw_json("side.json", {**side, **changes})


def test_waits_of_the_workload_are_what_perf_sched_says(raw: TrialFolder) -> None:
    found = samples(raw)
    # perf sched latency -p of the same file: the longest of its threads 123 and 124 are 8.748 and
    # 5.412 ms; 86 times 0.495 and 440 times 0.173 ms in all, with its start before the window.
    assert found["sched_delay_max{of=workload}"] == pytest.approx(8.748e-3, abs=1e-6)
    everything = (86 * 0.495e-3 + 440 * 0.173e-3) / 0.884
    assert 0.9 * everything < found["sched_delay{of=workload}"] <= everything
    assert found["sched_delay_p50{of=workload}"] < found["sched_delay_p95{of=workload}"] < 1e-3


def test_switches_of_all_the_guest_and_what_was_lost_are_counted(raw: TrialFolder) -> None:
    found = samples(raw)
    # perf script shows 1208 in all, a second of them before and after the workload.
    assert 0.8 * 1208 < found["ctx_switches{of=guest}"] * 0.884 < 1208
    assert found["lost_events{of=guest}"] == 0


def test_the_clocks_bound_is_told(raw: TrialFolder) -> None:
    assert 0 < samples(raw)["clock_error"] < 0.005


def test_a_percentile_of_too_few_waits_is_unavailable(raw: TrialFolder) -> None:
    found = reasons(raw)
    assert found.keys() == {"sched_delay_p99{of=workload}"}
    assert "a percentile of that rank needs 2,000" in found["sched_delay_p99{of=workload}"]


def test_a_trial_that_was_not_traced_has_none_of_it(tmp_path: Path) -> None:
    assert list(parse(Traces(TrialFolder(tmp_path)), kind="guest")) == []
    assert list(parse(Traces(TrialFolder(tmp_path)), kind="native")) == []


def test_natively_there_is_no_guest(tmp_path: Path) -> None:
    raw = TrialFolder(tmp_path)
    raw.write_raw(files.HOST, b"PERFILE2")
    found = reasons(raw, kind="native")
    assert found.keys() == {"clock_error", *OF_GUEST}
    assert all_say(found.values(), "natively there is no guest")


def test_a_guest_that_could_not_record_says_why(raw: TrialFolder) -> None:
    (raw.path / files.GUEST).unlink()
    note_problem(raw, GUEST_TRACE, "perf can't record in the guest: no tracepoints")
    assert "clock_error" in samples(raw)
    found = reasons(raw)
    assert set(found) == set(OF_TRACE)
    assert all_say(found.values(), "perf can't record in the guest: no tracepoints.")


def test_part_of_a_trace_is_no_figure_of_the_whole(raw: TrialFolder) -> None:
    note_problem(raw, GUEST_TRACE, "perf in the guest ended before the trial: size limit")
    assert samples(raw).keys() == {"clock_error"}
    assert all_say(reasons(raw).values(), "size limit")


def test_a_trace_that_is_not_there_is_unavailable(raw: TrialFolder) -> None:
    (raw.path / files.GUEST).unlink()
    assert all_say(reasons(raw).values(), "there is no trace of the guest")


def test_a_trace_that_ends_early_tells_how_much_it_covers(raw: TrialFolder) -> None:
    end_ns = raw.read_json("side.json")["after"]["monotonic_ns"]
    change_side(raw, after={"stat": "", "monotonic_ns": end_ns + 1_000_000_000}, duration_s=1.5)
    found = reasons(raw)
    assert set(found) == set(OF_TRACE)
    assert all_say(found.values(), "covers 0.")
    assert all_say(found.values(), "s of the workload's 1.5 s")


@pytest.mark.parametrize("content", [b"", b"PERFILE2", b"x" * 5000])
def test_what_is_no_trace_is_unavailable_with_what_is_wrong(
    raw: TrialFolder, content: bytes
) -> None:
    raw.write_raw(files.GUEST, content)
    found = reasons(raw)
    assert set(found) == set(OF_TRACE)
    assert all_say(found.values(), "guest.perf.data")


def test_a_truncated_trace_is_unavailable(raw: TrialFolder) -> None:
    whole = (raw.path / files.GUEST).read_bytes()
    raw.write_raw(files.GUEST, whole[: len(whole) // 3])
    assert set(reasons(raw)) == set(OF_TRACE)


def test_a_workload_that_the_trace_does_not_show_has_no_waits(raw: TrialFolder) -> None:
    change_side(raw, pid=4_000_000)
    found = reasons(raw)
    assert "no switch of workload 0" in found["sched_delay{of=workload}"]
    assert "sched_delay_max{of=workload}" in found


def test_a_clock_that_stepped_has_no_bound(raw: TrialFolder) -> None:
    readings = raw.read_json(files.CLOCKS)
    for reading in readings[20:]:
        reading["machine_ns"] += 3_000_000_000
    raw.write_raw_json(files.CLOCKS, readings)
    assert "stopped or set" in reasons(raw)["clock_error"]


def test_a_runners_answer_without_the_workloads_pid_is_named(raw: TrialFolder) -> None:
    side = json.loads((raw.path / "side.json").read_text())
    del side["pid"]
    raw.write_raw_json("side.json", side)
    with pytest.raises(BrokenError, match=r"side\.json: expected the workload's pid"):
        list(parse(Traces(raw), kind="guest"))
