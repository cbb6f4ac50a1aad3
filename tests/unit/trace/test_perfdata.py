"""perf.data, made up: what recordings of a quiet machine don't show, and what is broken."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from labctl.base.errors import BrokenError
from labctl.trace.model import Gap, Trace
from labctl.trace.perf import chain as perfdata_chain
from labctl.trace.perf import perfdata as perfdata_columns
from labctl.trace.perf.head import parse_format
from labctl.trace.perf.perfdata import read_trace, tracepoints
from tests.unit.trace import perfdata_writer as made

FIELDS = ("pid", "plain", "wide", "small", "tiny", "least")
WANTED = {made.FIXED: FIELDS, made.VARIABLE: ("number",)}
NUMBERS = st.integers(0, 2**31 - 1)


def read(tmp_path: Path, *records: bytes, **changes: int) -> Trace:
    file = tmp_path / "perf.data"
    file.write_bytes(made.perfdata(records, **changes))
    return read_trace(file, WANTED)


def at(time: int, cpu: int = 0, tid: int = 1, **fields: int) -> bytes:
    return made.fixed(tid=tid, time=time, cpu=cpu, **fields)


fixed_events = st.fixed_dictionaries(
    {
        "tid": st.integers(1, 2**22),
        "time": st.integers(0, 50),
        "cpu": st.integers(0, 3),
        "pid": st.integers(0, 2**22),
        "plain": st.integers(0, 2**32 - 1),
        "wide": st.integers(-(2**63), 2**63 - 1),
        "small": st.integers(-(2**15), 2**15 - 1),
        "tiny": st.integers(0, 255),
        "least": st.integers(-128, 127),
    }
)
# Texts that look like records, of events of the file, themselves.
texts = st.binary(max_size=20) | st.lists(
    st.builds(at, NUMBERS, st.integers(0, 3)) | st.just(made.FINISHED_ROUND), max_size=3
).map(b"".join)
variable_events = st.fixed_dictionaries(
    {"tid": st.just(7), "time": st.integers(0, 50), "cpu": st.just(1), "number": NUMBERS}
    | {"text": texts}
)
other_records = st.sampled_from(
    [made.FINISHED_ROUND, made.comm(5, b"fifth"), made.lost(0, 3), made.record(10, bytes(72))]
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(fixed_events | variable_events | other_records, min_size=1, max_size=40),
    chunk_bytes=st.sampled_from([512, 520, 1024, 1 << 20]),
    part=st.sampled_from([1, 2, 3, 1 << 18]),
)
def test_all_events_are_read_in_order_of_time(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rows: list[dict[str, int] | dict[str, int | bytes] | bytes],
    chunk_bytes: int,
    part: int,
) -> None:
    records = []
    expected: dict[str, list[tuple[int, ...]]] = {made.FIXED: [], made.VARIABLE: []}
    for row in rows:
        if isinstance(row, bytes):
            records.append(row)
        elif "text" in row:
            records.append(made.variable(**row))  # type: ignore[arg-type]
            expected[made.VARIABLE].append(tuple(row[k] for k in ("time", "cpu", "tid", "number")))  # type: ignore[misc]
        else:
            records.append(made.fixed(**row))  # type: ignore[arg-type]
            expected[made.FIXED].append(tuple(row[k] for k in ("time", "cpu", "tid", *FIELDS)))  # type: ignore[misc]
    with monkeypatch.context() as patched:
        patched.setattr(perfdata_chain, "CHUNK_BYTES", chunk_bytes)
        patched.setattr(perfdata_columns, "_PART", part)
        trace = read(tmp_path, *records)
    for event, found in trace.events.items():
        columns = [found.time_ns, found.cpu, found.tid, *found.fields.values()]
        assert [len(column) for column in columns] == [len(found)] * len(columns)
        rows_found = list(zip(*(column.tolist() for column in columns), strict=True))
        assert rows_found == sorted(expected[event], key=lambda one: one[0])
    assert trace.lost == 3 * records.count(made.lost(0, 3))
    assert trace.problems == ()
    assert ("fifth" in trace.names.values()) == (made.comm(5, b"fifth") in records)


whole_file = made.perfdata(
    [
        made.id_index({700: 0, 701: 1}),
        made.comm(5, b"fifth"),
        *(at(time, time % 2, pid=5) for time in range(6)),
        made.lost(1, 4),
        made.variable(tid=3, time=9, cpu=1, number=4, text=b"text"),
        made.lost_samples(701, 9),
    ]
)


@settings(deadline=None, max_examples=400, suppress_health_check=list(HealthCheck))
@given(
    changes=st.lists(
        st.tuples(st.integers(0, len(whole_file) - 1), st.binary(min_size=1, max_size=8)),
        max_size=3,
    ),
    size=st.just(len(whole_file)) | st.integers(0, len(whole_file)),
)
def test_garbage_is_an_error_or_a_trace_but_never_a_crash(
    tmp_path: Path, changes: list[tuple[int, bytes]], size: int
) -> None:
    data = bytearray(whole_file)
    for place, new in changes:
        data[place : place + len(new)] = new
    file = tmp_path / "perf.data"
    file.write_bytes(data[:size])
    refusal = None
    try:
        trace = read_trace(file, WANTED)
    except BrokenError as error:
        refusal = error
    if refusal:
        assert refusal.hint
        assert str(file) in refusal.message
    else:
        for events in trace.events.values():
            assert np.all(np.diff(events.time_ns) >= 0)
        assert all(gap.start_ns <= gap.end_ns and gap.count >= 0 for gap in trace.gaps)


def test_a_last_record_that_is_cut_is_told_and_the_rest_is_read(tmp_path: Path) -> None:
    trace = read(tmp_path, at(1), at(2), at(3)[:-8])
    assert trace.events[made.FIXED].time_ns.tolist() == [1, 2]
    (problem,) = trace.problems
    assert "is truncated: the records before it are complete" in problem


@pytest.mark.parametrize("size", range(1, len(at(1))))
def test_a_last_record_may_be_cut_anywhere(tmp_path: Path, size: int) -> None:
    trace = read(tmp_path, at(1), at(2), at(3)[:size])
    assert trace.events[made.FIXED].time_ns.tolist() == [1, 2]
    assert len(trace.problems) == 1


def test_a_gap_spans_from_the_event_before_a_loss_to_the_one_after_it(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        at(10, cpu=0),
        at(11, cpu=1),
        made.lost(0, 5, time=999),
        at(12, cpu=1),
        at(20, cpu=0),
        at(30, cpu=0),
    )
    assert trace.gaps == (Gap(cpu=0, start_ns=10, end_ns=20, count=5),)
    assert trace.lost == 5


def test_a_gap_that_nothing_bounds_reaches_to_the_traces_end(tmp_path: Path) -> None:
    trace = read(tmp_path, made.lost(1, 2), at(10, cpu=0), at(20, cpu=1), made.lost(1, 3), at(30))
    assert trace.gaps == (
        Gap(cpu=1, start_ns=10, end_ns=20, count=2),
        Gap(cpu=1, start_ns=20, end_ns=30, count=3),
    )


def test_a_gap_may_span_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perfdata_chain, "CHUNK_BYTES", 512)
    others = [at(time, cpu=1) for time in range(100)]
    trace = read(tmp_path, at(3), *others, made.lost(0, 1), *others, at(80), at(90))
    assert trace.gaps == (Gap(cpu=0, start_ns=3, end_ns=80, count=1),)


def test_what_perf_says_it_lost_is_not_counted_twice(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        made.id_index({700: 0, 701: 1, 710: 0, 711: 1}),
        at(10, cpu=0),
        made.lost(0, 4),
        at(20, cpu=0),
        at(25, cpu=1),
        made.lost_samples(700, 3),
        made.lost_samples(710, 7),
        made.lost_samples(701, 2, misc=1 << 15),  # filtered out by BPF
    )
    assert trace.gaps == (
        Gap(cpu=0, start_ns=10, end_ns=20, count=4),
        Gap(cpu=0, start_ns=20, end_ns=25, count=6),
    )


def test_a_thread_that_has_died_is_known_by_the_kernels_own_number(tmp_path: Path) -> None:
    died = bytearray(at(1, tid=44))
    died[24:32] = struct.pack("<ii", -1, -1)
    trace = read(tmp_path, bytes(died))
    assert trace.events[made.FIXED].tid.tolist() == [44]
    assert trace.processes == {}


def test_who_is_woken_has_the_name_that_is_known_and_else_the_one_that_is_told(
    tmp_path: Path,
) -> None:
    trace = read(
        tmp_path,
        made.comm(5, b"from comm"),
        made.fixed(tid=1, time=1, cpu=0, comm=b"from event", pid=5),
        made.fixed(tid=1, time=2, cpu=0, comm=b"sixth", pid=6),
        made.fixed(tid=1, time=2, cpu=0, comm=b"seventh", pid=7),
        made.comm(6, b"sixth renamed"),
    )
    named = {5: "from comm", 6: "sixth renamed", 7: "seventh"}
    assert trace.names == {0: "swapper", **named}


def test_samples_of_events_that_the_file_does_not_name_are_told(tmp_path: Path) -> None:
    unknown = made.sample(999, tid=1, time=1, cpu=0, fields=bytes(40))
    trace = read(tmp_path, at(1), unknown, at(2))
    assert trace.events[made.FIXED].time_ns.tolist() == [1, 2]
    assert "1 samples of unknown events" in trace.problems[0]


@pytest.mark.parametrize(
    ("values", "kind"), [((0, -5, 2**31 - 1), np.int32), ((0, -5, 2**31), np.int64)]
)
def test_signed_fields_of_eight_bytes_take_four_where_that_is_enough(
    tmp_path: Path, values: tuple[int, ...], kind: type
) -> None:
    trace = read(tmp_path, *(at(time, wide=wide) for time, wide in enumerate(values)))
    wide = trace.events[made.FIXED].fields["wide"]
    assert wide.dtype == kind
    assert tuple(wide.tolist()) == values


def test_a_trace_without_events_is_empty(tmp_path: Path) -> None:
    trace = read(tmp_path, made.FINISHED_ROUND)
    assert [len(events) for events in trace.events.values()] == [0, 0]
    assert (trace.start_ns, trace.end_ns, trace.gaps) == (0, 0, ())


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"sample_type": made.SAMPLE_TYPE & ~made.RAW}, "no fields of made:fixed.*-R"),
        ({"sample_type": made.SAMPLE_TYPE & ~made.TIME}, "without their time.*-T"),
        ({"sample_type": made.SAMPLE_TYPE & ~made.CPU}, "without their CPU.*--sample-cpu"),
        ({"sample_type": made.SAMPLE_TYPE & ~made.TID}, "without their thread"),
        ({"sample_type": made.SAMPLE_TYPE & ~made.IDENTIFIER}, "their event's id"),
        ({"sample_type": made.SAMPLE_TYPE | 32}, "call chains"),
        ({"sample_type": made.SAMPLE_TYPE | 16, "read_format": 8}, "counters of groups"),
        ({"period": 100}, "a part of made:fixed's events"),
        ({"flags": made.FLAGS | 1 << 10}, "a part of made:fixed's events"),
        ({"clock": 4}, "aren't CLOCK_MONOTONIC's"),
        ({"flags": 1 << 18}, "aren't CLOCK_MONOTONIC's"),
        ({"flags": 1 << 25}, "sample_id_all"),
    ],
)
def test_a_recording_that_tells_too_little_is_refused_with_what_to_record(
    tmp_path: Path, changes: dict[str, int], why: str
) -> None:
    file = tmp_path / "perf.data"
    file.write_bytes(made.perfdata([at(1)], **changes))
    with pytest.raises(BrokenError, match=why) as error:
        read_trace(file, WANTED)
    assert "-c 1 -k CLOCK_MONOTONIC" in str(error.value.hint)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (bytes(16), r"no record \(type 0, 0 bytes\)"),
        (struct.pack("<IHH", 3, 0, 0), r"no record \(type 3, 0 bytes\)"),
        (struct.pack("<IHH", 3, 0, 12), r"no record \(type 3, 12 bytes\)"),
        (struct.pack("<IHH", 4711, 0, 16) + bytes(8), r"no record \(type 4711, 16 bytes\)"),
        (at(5, tid=2**23), "of thread 8388608"),
        (at(5, cpu=2**20), "on CPU 1048576"),
        (at(2**63), "at -9223372036854775808 ns"),
        (at(5, pid=2**23), "made:fixed names a thread 8388608"),
        (at(5, pid=-1), "made:fixed names a thread -1"),
        (made.lost(2**20, 1), "no CPU 1048576"),
        (made.record(2, b""), "too short"),
        (made.record(3, b""), "too short"),
        (made.sample(700, tid=1, time=1, cpu=0, fields=bytes(8)), "20 bytes of fields"),
    ],
)
def test_what_is_no_record_is_told_with_its_place(tmp_path: Path, bad: bytes, why: str) -> None:
    before = [at(1), at(2)]
    with pytest.raises(BrokenError, match=why) as error:
        read(tmp_path, *before, bad, at(6))
    place = made.perfdata([]).index(made.layouts()) - 16 + sum(map(len, before))
    assert f"at byte {place:,}" in error.value.message


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda data: b"", "is empty"),
        (lambda data: b"2ELIFREP" + data[8:], "big-endian"),
        (lambda data: b"PERFFILE" + data[8:], "doesn't begin with 'PERFILE2'"),
        (lambda data: b"PERFILE2" + struct.pack("<Q", 16) + bytes(200), "to a pipe"),
        (lambda data: data[:50], "truncated within its header"),
        (lambda data: made.perfdata([at(1)], features=2 | 1 << 27), "compressed"),
        (lambda data: made.perfdata([made.record(81, bytes(8))]), "compressed"),
        (lambda data: made.perfdata([made.record(71, bytes(40))]), "hardware traces"),
        (lambda data: made.perfdata([at(1)], data_size=0), "before it could finish"),
        (lambda data: made.perfdata([at(1)], features=4), "holds no tracepoints"),
    ],
)
def test_another_kind_of_file_is_refused_with_the_reason(
    tmp_path: Path, change: Callable[[bytes], bytes], why: str
) -> None:
    file = tmp_path / "perf.data"
    file.write_bytes(change(made.perfdata([at(1)])))
    with pytest.raises(BrokenError, match=why) as error:
        read_trace(file, WANTED)
    assert error.value.hint


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(BrokenError, match="No such file"):
        tracepoints(tmp_path / "missing")
    with pytest.raises(BrokenError, match="Is a directory"):
        tracepoints(tmp_path)


def test_a_layout_of_any_length_is_read_in_no_time(tmp_path: Path) -> None:
    # What an expression tries again and again would take hours here.
    long = "field:" + "a" * 500_000
    found = parse_format(
        "sched", f"name: made\nID: 7\n{long}\n\tfield:int pid;\toffset:8;\tsize:4;"
    )
    assert (found.name, list(found.fields)) == ("sched:made", ["pid"])


def test_fields_are_known_by_their_name_however_they_are_declared() -> None:
    lines = (
        "field:char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;",
        "field:__data_loc char[] text;\toffset:24;\tsize:4;\tsigned:0;",
        "field:__rel_loc char[] last;\toffset:28;\tsize:4;\tsigned:0;",
        "field:const char * where;\toffset:32;\tsize:8;\tsigned:0;",
        "field:long prev_state;\toffset:40;\tsize:8;\tsigned:1;",
    )
    text = "name: made\nID: 7\nformat:\n" + "".join(f"\t{line}\n" for line in lines)
    fields = parse_format("sched", text).fields
    assert [name for name, field in fields.items() if field.is_integer] == ["where", "prev_state"]
    assert (fields["prev_comm"].array, fields["text"].array, fields["last"].array) == (True,) * 3
    assert (fields["prev_state"].offset, fields["prev_state"].signed) == (40, True)


def test_a_layout_longer_than_any_is_refused() -> None:
    with pytest.raises(ValueError, match="1,048,5.. bytes|1,048,6.. bytes"):
        parse_format("sched", "name: made\nID: 7\n" + "\n" * (1 << 20))


def test_ids_that_events_share_are_no_way_to_fill_the_memory(tmp_path: Path) -> None:
    size = 1 << 23
    attrs = b"".join(made.attr(70) + struct.pack("<QQ", 104, size) for _ in range(3))
    header = struct.pack("<8s9Q", b"PERFILE2", 104, 144, 104 + size, len(attrs), 104, 8, 0, 0, 2)
    file = tmp_path / "perf.data"
    file.write_bytes(header.ljust(104, b"\0") + bytes(size) + attrs)
    with pytest.raises(BrokenError, match=f"{size} bytes of ids"):
        tracepoints(file)


@pytest.mark.parametrize("declared", [b"int", b"u32"])
def test_the_schedulers_threads_are_checked_whatever_their_type_is_said_to_be(
    tmp_path: Path, declared: bytes
) -> None:
    file = tmp_path / "perf.data"
    data = made.perfdata([at(1, pid=2**31 - 1)]).replace(b"made\0", b"sched\0")
    # As long as before: the file says elsewhere how long it is.
    file.write_bytes(data.replace(b"pid_t pid;", declared.ljust(5) + b" pid;"))
    with pytest.raises(BrokenError, match="a thread 2147483647"):
        read_trace(file, {"sched:fixed": ("pid",)})


def test_events_that_are_years_apart_are_no_recording(tmp_path: Path) -> None:
    with pytest.raises(BrokenError, match="more than a day"):
        read(tmp_path, at(1), at(2**62))
