"""Recorded output, damaged at random: a parser tells metrics, or raises what it says it raises."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labctl.base.errors import BrokenError, UsageError
from labctl.collect import neighbour
from labctl.collect.counters import perf_stat
from labctl.collect.exits import bpf_exits, exits, perf
from labctl.collect.exits.perf import read_reports
from labctl.collect.traces import guest_trace
from labctl.run.trials.parse import believable
from labctl.store.samples import sample
from labctl.store.trial import TrialFolder
from labctl.trace import files
from labctl.trace.timeline.nested import timeline_of_files
from labctl.trace.timeline.recordings import Traces
from labctl.workloads.registry import checkers, workload
from tests.unit.workloads.trials import FIXTURES, file_of, outputs_of, parser_of, read_raw

UNIT = Path(__file__).parents[1]

REPORTS = (
    "perf-kvm-stat-3.7-intel-98202-samples.txt",
    "perf-kvm-stat-intel-live-two-frames.txt",
    "perf-kvm-stat-riscv-browser.txt",
)
COUNTERS = (
    "perf-stat-6.8-csv-hybrid-topdown.csv",
    "perf-stat-amd-json-user-6.x.jsonl",
    "perf-stat-json-per-thread.jsonl",
)

TRACES = ("sched-perf-6.1.data", "switches-perf-6.1.data", "svm-perf-6.1.data")

MANY = 40
"""Examples of each workload; there are some twenty."""

Damage = Callable[[bytes], bytes]

_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
_VALUES = (
    *(b"0", b"-1", b"1.5", b"1,5", b"nan", b"-inf", b"1e400", b"9" * 30, b"9" * 400, b"9" * 5000),
    *(b"null", b"true", b'""', b"[]", b"{}", b"<not counted>", "١٢".encode(), b"\xff"),
)
_WHOLE = (
    *(b"", b"\0" * 64, b"null", b"[]", b"{}", b"[" * 2_000, b'{"a":' * 2_000, b"- " * 2_000),
    *(b"Error: Permission denied\n", b"\xff\xfe\n"),
)


def _number_becomes(value: bytes, which: int) -> Damage:
    def damaged(data: bytes) -> bytes:
        found = list(_NUMBER.finditer(data))
        one = found[which % len(found)]
        return data[: one.start()] + value + data[one.end() :]

    return damaged


def _line_times(which: int, times: int) -> Damage:
    def damaged(data: bytes) -> bytes:
        lines = data.splitlines(keepends=True)
        at = which % len(lines)
        return b"".join([*lines[:at], *lines[at : at + 1] * times, *lines[at + 1 :]])

    return damaged


places = st.integers(0, 1 << 20)


def _byte_becomes(at: int, value: int) -> Damage:
    return lambda data: data[: at % len(data)] + bytes([value]) + data[at % len(data) + 1 :]


damages = st.one_of(
    st.builds(_byte_becomes, places, st.integers(0, 255)),
    st.builds(_number_becomes, st.sampled_from(_VALUES), places),
    st.builds(_line_times, places, st.sampled_from((0, 2))),
    places.map(lambda at: lambda data: data[: at % (len(data) + 1)]),
    st.sampled_from(_WHOLE).map(lambda whole: lambda _: whole),
    st.just(lambda data: data * 2),
    st.just(lambda data: data.replace(b".", b",")),
    st.just(lambda data: data.replace(b"\n", b"\r\n")),
)


@pytest.mark.parametrize("program", checkers())
def test_every_workload_has_recorded_output(program: str) -> None:
    assert outputs_of(program), (
        f"record what '{program}' writes, with its version in the file's name, "
        f"in {FIXTURES.relative_to(UNIT.parents[1])}/{program}/"
    )


@pytest.mark.parametrize("program", checkers())
@settings(max_examples=MANY)
@given(data=st.data())
def test_a_workload_s_output(program: str, data: st.DataObject) -> None:
    recorded = data.draw(st.sampled_from(outputs_of(program)))
    damaged = data.draw(damages)(recorded.read_bytes())
    read_raw(damaged, file_of(program, recorded), parser_of(program))


@pytest.mark.parametrize("program", checkers())
@settings(max_examples=MANY)
@given(data=st.data())
def test_what_a_workload_says_of_its_warm_up(program: str, data: st.DataObject) -> None:
    recorded = data.draw(st.sampled_from(outputs_of(program)))
    damaged = data.draw(damages)(recorded.read_bytes())
    file = file_of(program, recorded)
    stdout = damaged.decode(errors="replace") if file == "stdout.txt" else ""
    with suppress(BrokenError), believable("the warm-up"):
        workload(program).window_rates(stdout, {Path(file).name: damaged})


@settings(max_examples=25)
@given(damage=damages)
def test_a_neighbour_s_output(damage: Damage) -> None:
    (recorded,) = outputs_of("neighbour")
    hog = json.loads(recorded.read_text())
    hog[neighbour.OUTPUT] = damage(hog[neighbour.OUTPUT].encode()).decode(errors="replace")
    share = sample("host_cpu", 1.2, source="host.json", labels={"thread": "neighbour"})

    def parse(raw: TrialFolder) -> Iterator[object]:
        return neighbour.neighbour_readings(raw, [share])

    read_raw(json.dumps({"hogs": [hog]}).encode(), neighbour.RAW, parse)


@pytest.mark.parametrize("recorded", TRACES)
@settings(max_examples=15)
@given(damage=st.lists(st.builds(_byte_becomes, places, st.integers(0, 255)), min_size=1))
def test_perf_s_recordings(recorded: str, damage: list[Damage]) -> None:
    """Of a guest all bytes may be its own, and of a thread that is traced some of the host's."""
    data = (UNIT / "trace" / "fixtures" / recorded).read_bytes()
    for one in damage:
        data = one(data)
    side = {"pid": 7, "duration_s": 0.5, "after": {"monotonic_ns": 10**9}}
    thread = {"tid": 7, "pid": 7, "role": "vcpu", "index": 0, "name": "CPU 0/TCG"}
    with TemporaryDirectory() as place:
        folder = TrialFolder(Path(place))
        for file in (files.HOST, files.GUEST):
            folder.write_raw(file, data)
        folder.write_raw_json(files.RUNNER, side)
        folder.write_raw_json(files.THREADS, [thread])
        traces = Traces(folder)
        with suppress(BrokenError, UsageError), believable(place):
            list(guest_trace.parse(traces, kind="guest"))
            timeline_of_files(traces, "cyclictest")


@pytest.mark.parametrize("program", checkers())
@settings(max_examples=MANY)
@given(data=st.data(), short=st.integers(1, 1 << 20) | st.integers(1, 400))
def test_a_workload_s_output_that_is_cut_tells_nothing_else(
    program: str, data: st.DataObject, short: int
) -> None:
    """But for programs that print one run after the other, and for tables, a row a sample: nobody
    knows of last ones that are missing."""
    if workload(program).file.trial.kind == "repeat":
        return
    recorded = data.draw(st.sampled_from(outputs_of(program)))
    if recorded.suffix == ".csv":
        return
    whole, file = recorded.read_bytes(), file_of(program, recorded)
    cut = whole[: -min(short, len(whole))]
    assert read_raw(cut, file, parser_of(program)) in ([], _read_whole(program, recorded))


@cache
def _read_whole(program: str, recorded: Path) -> list[object]:
    return read_raw(recorded.read_bytes(), file_of(program, recorded), parser_of(program))


@pytest.mark.parametrize("recorded", REPORTS)
@settings(max_examples=50)
@given(damage=damages)
def test_perf_kvm_stat_s(recorded: str, damage: Damage) -> None:
    data = (UNIT / "collect" / "fixtures" / recorded).read_bytes()
    text = damage(data).decode(errors="replace")
    with suppress(BrokenError):
        read_reports(text, "report.txt")


@pytest.mark.parametrize("recorded", COUNTERS)
@settings(max_examples=25)
@given(damage=damages)
def test_perf_stat_s(recorded: str, damage: Damage) -> None:
    data = (UNIT / "collect" / "fixtures" / recorded).read_bytes()
    read_raw(damage(data), perf_stat.RAW, lambda raw: perf_stat.parse(raw, kind="guest"))


@settings(max_examples=25)
@given(damage=damages)
def test_bpftrace_s(damage: Damage) -> None:
    fixtures = UNIT / "collect" / "fixtures"

    def parse(raw: TrialFolder) -> Iterator[object]:
        told = (fixtures / "exits-linux-6.18-software-kvm.json").read_bytes()
        raw.write_raw(files.EXITS, told)
        return exits.parse(raw)

    data = (fixtures / "exits-bpftrace-0.17-software-kvm.jsonl").read_bytes()
    read_raw(damage(data), bpf_exits.RAW, parse)


@settings(max_examples=25)
@given(damage=damages)
def test_perf_s_table_of_the_exits_that_it_recorded(damage: Damage) -> None:
    recording = (UNIT / "trace" / "fixtures" / "svm-perf-6.1.data").read_bytes()

    def parse(raw: TrialFolder) -> Iterator[object]:
        raw.write_raw(perf.RAW, recording)
        told = {
            "tool": exits.PERF,
            "vcpus": {"4199": 0},
            "window": {"opened_ns": 1_826_726_714_023, "closed_ns": 1_827_159_292_049},
            "kernel": "6.1.90",
            "total": {"before": {"vcpu": 0}, "after": {"vcpu": 851}, "seconds": 0.5},
        }
        raw.write_raw_json(files.EXITS, told)
        return exits.parse(raw)

    data = (UNIT / "collect" / "fixtures" / "perf-kvm-stat-6.1-svm-850-samples.txt").read_bytes()
    read_raw(damage(data), perf.REPORT, parse)
