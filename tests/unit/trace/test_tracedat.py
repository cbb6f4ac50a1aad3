"""trace.dat as labctl writes it: taken apart by its own description, and read by trace-cmd."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from labctl.base.errors import BrokenError
from labctl.trace import tracedat
from labctl.trace.clocks import ClockMap
from labctl.trace.model import Nanoseconds
from labctl.trace.tracedat import Guest, write_tracedat
from tests.unit.trace import perfdata_writer as made
from tests.unit.trace.test_perfdata_recorded import FIXTURES, said_by_perf
from tests.unit.trace.tracedat_reader import Entry, TraceDat, parsed

RECORDED = [
    "sched-perf-6.1",
    "sched-perf-6.12",
    "lost-perf-6.1",
    "one-event-perf-6.1",
    "kvm-perf-6.1",
    "svm-perf-6.1",
    "svm-perf-6.12",
]
CPUSTAT, TRACECLOCK, TRACEID, GUEST = 2, 4, 11, 13
PAUSE_NS = 1 << 27
"""The longest that an event's own head has room for."""

needs_trace_cmd = pytest.mark.skipif(
    shutil.which("trace-cmd") is None, reason="trace-cmd is not installed"
)


def written(tmp_path: Path, *records: bytes) -> TraceDat:
    source, target = tmp_path / "perf.data", tmp_path / "trace.dat"
    source.write_bytes(made.perfdata(records))
    write_tracedat(source, target)
    return parsed(target.read_bytes())


def at(time: int, cpu: int = 0, tid: int = 1, text: bytes = b"", number: int = 0) -> bytes:
    if text:
        return made.variable(tid=tid, time=time, cpu=cpu, number=number, text=text)
    return made.fixed(tid=tid, time=time, cpu=cpu, pid=number)


def own_bytes(record: bytes) -> bytes:
    """Of a sample that `perfdata_writer` made."""
    (size,) = struct.unpack_from("<I", record, 56)
    return record[60 : 60 + size]


rows = st.lists(
    st.tuples(
        st.integers(0, 3) | st.integers(0, 2**40),  # since the last one
        st.integers(0, 3),
        st.just(b"") | st.binary(min_size=1, max_size=400),
    ),
    min_size=1,
    max_size=60,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=rows, together=st.sampled_from([1, 7, 1 << 16]))
def test_every_event_is_there_with_its_bytes_time_and_cpu(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rows: list[tuple[int, int, bytes]],
    together: int,
) -> None:
    monkeypatch.setattr(tracedat, "_TOGETHER", together)
    records, expected, time = [], defaultdict(list), 0
    for since, cpu, text in rows:
        time += since
        records.append(at(time, cpu, text=text, number=len(records)))
        expected[cpu].append((time, own_bytes(records[-1])))
    found = defaultdict(list)
    for entry in written(tmp_path, *records).entries:
        found[entry.cpu].append((entry.time_ns, entry.data))
    assert found == expected


@pytest.mark.parametrize("since", [0, 1, PAUSE_NS - 1, PAUSE_NS, PAUSE_NS + 1, 3600 * 10**9])
def test_however_long_a_cpu_paused_its_times_are_right(tmp_path: Path, since: int) -> None:
    times = [5, 5 + since, 5 + 2 * since]
    assert [entry.time_ns for entry in written(tmp_path, *map(at, times)).entries] == times


@pytest.mark.parametrize("words", [27, 28, 29, 400, 1000])
def test_events_of_any_size_are_whole_where_a_page_holds_them(tmp_path: Path, words: int) -> None:
    text = bytes(range(256)) * 20
    records = [at(time, text=text[: 4 * words - 16]) for time in range(40)]
    found = written(tmp_path, *records)
    assert [entry.data for entry in found.entries] == list(map(own_bytes, records))


def test_an_event_that_no_page_holds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BrokenError, match="bytes of its own, instead of 8 to") as raised:
        written(tmp_path, at(1), at(2, text=bytes(4096)))
    assert str(tmp_path / "perf.data") in raised.value.message
    assert not list(tmp_path.glob("*.dat"))
    assert not list(tmp_path.glob(".*"))


def test_an_interrupted_event_comes_after_its_interrupt_if_it_was_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracedat, "_TOGETHER", 1)
    times = [*range(10, 5000, 10)]
    swapped = times.copy()
    for first in range(0, len(times) - 1, 7):
        swapped[first], swapped[first + 1] = swapped[first + 1], swapped[first]
    found = written(tmp_path, *map(at, swapped)).entries
    assert [entry.time_ns for entry in found] == times


def test_lost_events_are_told_before_the_next_one_of_their_cpu(tmp_path: Path) -> None:
    found = written(
        tmp_path,
        *(at(1, cpu=0), at(2, cpu=1), made.lost(0, 3), at(4, cpu=1), at(5, cpu=0)),
        *(made.lost(0, 2**33), at(6, cpu=0), at(7, cpu=0), made.lost(1, 9), made.lost(0, 4)),
    )
    lost = [(entry.cpu, entry.time_ns, entry.lost) for entry in found.entries]
    assert lost == [(0, 1, 0), (0, 5, 3), (0, 6, 2**33), (0, 7, 0), (1, 2, 0), (1, 4, 0)]
    # After the last two none of their CPUs followed.
    assert [text.decode() for text in found.options[CPUSTAT]] == [
        f"CPU: 0\nentries: 0\noverrun: {3 + 2**33 + 4}\n\0",
        "CPU: 1\nentries: 0\noverrun: 9\n\0",
    ]


def test_a_recording_without_events_is_a_file_without_pages(tmp_path: Path) -> None:
    assert written(tmp_path, made.comm(5, b"fifth")).entries == []


def test_threads_have_their_last_names_each_in_a_line_of_its_own(tmp_path: Path) -> None:
    found = written(
        tmp_path, made.comm(5, b"early"), made.comm(5, b"late\n6 x\x1b"), made.comm(7, b""), at(1)
    )
    assert found.names == {5: "late 6 x\N{REPLACEMENT CHARACTER}"}


def test_clock_and_ids_join_a_guest_to_its_host(tmp_path: Path) -> None:
    source, target = tmp_path / "perf.data", tmp_path / "trace.dat"
    source.write_bytes(made.perfdata([at(77)]))
    guest = Guest(trace_id=2**40, vcpu_tids={0: 500, 2: 502})
    own_id = write_tracedat(source, target, guest=guest)
    options = parsed(target.read_bytes()).options
    assert options[TRACECLOCK] == [b"[mono]\0"]
    assert options[TRACEID] == [struct.pack("<Q", own_id)]
    assert write_tracedat(shutil.copy(source, tmp_path / "other.data"), target) != own_id
    cpus = struct.pack("<6I", 0, 500, 1, 0, 2, 502)
    assert options[GUEST] == [b"guest\0" + struct.pack("<QI", 2**40, 3) + cpus]


def test_a_guests_events_are_put_at_the_hosts_times(tmp_path: Path) -> None:
    clock = ClockMap(at_ns=1000, until_ns=10**10, offset_ns=5 * 10**9, rate=1 + 1e-4, error_ns=9)
    source, target = tmp_path / "perf.data", tmp_path / "trace.dat"
    times = [1000, 2000, 10**9]
    source.write_bytes(made.perfdata([at(time) for time in times]))
    write_tracedat(source, target, to_host=clock.to_host)
    found = [entry.time_ns for entry in parsed(target.read_bytes()).entries]
    assert found == [5 * 10**9 + 1000, 5 * 10**9 + 2000, 6 * 10**9 + 10**5]


def test_times_before_the_hosts_boot_are_refused(tmp_path: Path) -> None:
    def before(times: Nanoseconds) -> Nanoseconds:
        return times - 100

    source, target = tmp_path / "perf.data", tmp_path / "trace.dat"
    source.write_bytes(made.perfdata([at(77)]))
    with pytest.raises(BrokenError, match="precedes the host's boot"):
        write_tracedat(source, target, to_host=before)


WHOLE = (FIXTURES / "one-event-perf-6.1.data").read_bytes()


@settings(
    deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    changes=st.dictionaries(
        st.integers(0, len(WHOLE) - 1), st.sampled_from([0, 1, 255]) | st.integers(0, 255)
    )
)
def test_whatever_a_guest_wrote_is_refused_or_made_a_whole_file(
    tmp_path: Path, changes: dict[int, int]
) -> None:
    data = bytearray(WHOLE)
    for place, value in changes.items():
        data[place] = value
    source, target = tmp_path / "perf.data", tmp_path / "trace.dat"
    source.write_bytes(data)
    target.unlink(missing_ok=True)
    try:
        write_tracedat(source, target)
    except BrokenError:
        assert not target.exists()
    else:
        parsed(target.read_bytes())


@pytest.fixture(params=RECORDED)
def recorded(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """A recording's name, and what was written of it."""
    target = tmp_path / "trace.dat"
    write_tracedat(FIXTURES / f"{request.param}.data", target)
    return request.param, target


def test_recorded_events_are_those_that_perf_prints(recorded: tuple[str, Path]) -> None:
    name, target = recorded
    found = parsed(target.read_bytes())
    types = {
        int(number): f"{event}"
        for text in found.formats
        for event, number in [(text.split("\n")[0].removeprefix("name: "), text_id(text))]
    }
    expected = sorted(
        (row["cpu"], row["time_ns"], event.split(":")[1], tid_of(row))
        for event, rows in said_by_perf(name).items()
        for row in rows
    )

    def told(entry: Entry) -> tuple[int, int, str, int]:
        return entry.cpu, entry.time_ns, types[entry.type], entry.pid

    assert sorted(map(told, found.entries)) == expected


def text_id(text: str) -> str:
    number = re.search(r"^ID: (\d+)", text, re.MULTILINE)
    assert number
    return number[1]


def tid_of(row: dict[str, int | str]) -> int:
    # perf has no number for a thread that dies, but its last switch tells it.
    return int(row["prev_pid"] if row["tid"] == -1 else row["tid"])


# trace-cmd 3.3 prints the flags of interrupts and preemption after the CPU, 3.1 doesn't.
REPORTED = re.compile(r"\s*(.*)-(\d+)\s+\[(\d+)\](?: [^\s:]{5})?\s+(\d+)\.(\d{9}): (\w+):\s+(.*)")
DROPPED = re.compile(r"CPU:(\d+) \[(\d+) EVENTS DROPPED\]")


def reported(target: Path, *options: str) -> list[str]:
    # Without the plugins that print events in ways of their own.
    argv = ["trace-cmd", "report", "-N", "-t", *options, "-i", str(target)]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.splitlines()


@needs_trace_cmd
def test_trace_cmd_reports_what_perf_prints(recorded: tuple[str, Path]) -> None:
    name, target = recorded
    found = sorted(
        (int(cpu), int(seconds) * 10**9 + int(fraction), int(tid), event, fields(text))
        for _, tid, cpu, seconds, fraction, event, text in (
            match.groups() for match in map(REPORTED.fullmatch, reported(target)) if match
        )
    )
    expected = sorted(
        (row["cpu"], row["time_ns"], tid_of(row), event.split(":")[1], fields(str(row["text"])))
        for event, rows in said_by_perf(name).items()
        for row in rows
    )
    assert found == expected


def fields(text: str) -> str:
    return " ".join(text.split())


@needs_trace_cmd
def test_trace_cmd_reports_lost_events_and_their_sum(tmp_path: Path) -> None:
    target = tmp_path / "trace.dat"
    write_tracedat(FIXTURES / "lost-perf-6.1.data", target)
    lost = 53 + 31 + 118  # as perf counts them
    said = [match for match in map(DROPPED.search, reported(target)) if match]
    assert sum(int(match[2]) for match in said) == lost
    statistics = [line.split() for line in reported(target, "--stat") if line]
    assert sum(int(words[1]) for words in statistics if words[0] == "overrun:") == lost


@needs_trace_cmd
def test_trace_cmd_knows_the_clock_and_the_guest(tmp_path: Path) -> None:
    target = tmp_path / "trace.dat"
    guest = Guest(trace_id=5, vcpu_tids={0: 500, 1: 501})
    write_tracedat(FIXTURES / "sched-perf-6.1.data", target, guest=guest)
    argv = ["trace-cmd", "dump", "--options", "-i", str(target)]
    said = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    assert "[mono]" in said
    assert "[Option GUEST" in said
    assert "0 500" in said
