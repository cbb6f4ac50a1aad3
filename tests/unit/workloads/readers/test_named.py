"""Readers of one program's own report, by name."""

from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import ValidationError

from labctl.base.errors import BrokenError
from labctl.workloads.metric_file import read_run
from tests.unit.workloads.readers.outputs import Left, metrics
from tests.unit.workloads.trials import recorded

CASES = [
    ("sysbench-cpu", "sysbench-1.0.20-2-threads.txt", "stdout", {"rate": "printed"}),
    ("sysbench-cpu", "sysbench-1.0.20-windows-tcg-guest.txt", "stdout", {"rate": "printed"}),
    ("sysbench-memory", "sysbench-1.0.20-memory-16-mib-2-threads.txt", "stdout", {}),
    ("random-access", "sysbench-1.0.20-random-access-windows-tcg-guest.txt", "stdout", {}),
    ("fio-random", "fio-3.33-randrw-io_uring.json", "fio.json", {}),
    ("fio-random", "fio-3.33-randwrite-fsync.json", "fio.json", {}),
    ("fio-fsync", "fio-3.33-fdatasync.json", "fio.json", {"of": "flushes"}),
    ("cyclictest", "cyclictest-2.40-2-threads.json", "cyclictest.json", {}),
    ("oslat", "oslat-2.40-tcg-guest.json", "oslat.json", {}),
    ("timerlat", "rtla-6.1-timerlat-rt-tcg-guest.txt", "stdout", {"interval_us": 1000}),
    ("osnoise", "rtla-6.1-osnoise-rt-tcg-guest.txt", "stdout", {"tool": "osnoise"}),
    ("osnoise", "rtla-6.1-osnoise-nothing.txt", "stdout", {"tool": "osnoise"}),
    ("sockperf", "sockperf-3.7-ping-pong-tcg.csv", "sockperf.csv", {}),
]
READERS = {
    **dict.fromkeys(("sysbench-cpu", "sysbench-memory", "random-access"), "sysbench"),
    **dict.fromkeys(("fio-random", "fio-fsync"), "fio"),
    **dict.fromkeys(("timerlat", "osnoise"), "rtla"),
}


@pytest.mark.parametrize(("name", "fixture", "file", "arguments"), CASES)
@pytest.mark.parametrize("share", [0.0, 0.4, 0.7])
def test_a_report_that_is_cut_is_an_error_of_its_metric(
    name: str, fixture: str, file: str, arguments: Mapping[str, Any], share: float
) -> None:
    whole = recorded(fixture)
    text = whole[: int(len(whole) * share)]
    left = Left(stdout=text) if file == "stdout" else Left(files={file: text.encode()})
    declared = metrics(report={"reader": READERS.get(name, name), "arguments": dict(arguments)})
    with pytest.raises(BrokenError, match="metric 'report'"):
        read_run(declared, left)


def test_a_report_that_was_not_left_is_an_error_that_names_what_was() -> None:
    with pytest.raises(BrokenError, match=r"no file 'fio.json'; the run left other.json"):
        read_run(metrics(report={"reader": "fio"}), Left(files={"other.json": b"{}"}))


def test_a_reader_may_read_stderr() -> None:
    declared = metrics(report={"reader": "sysbench", "from": "stderr"})
    report = recorded("sysbench-1.0.20-2-threads.txt")
    assert read_run(declared, Left(stderr=report)) != {}
    with pytest.raises(BrokenError, match="metric 'report'"):
        read_run(declared, Left(stdout=report))


def test_the_files_of_a_reader_are_those_that_the_command_must_leave() -> None:
    declared = metrics(
        requests={"reader": "fio", "from": "out.json", "arguments": {"log": "w_iops.log"}},
        wakeups={"regex": r"n=(\d+)", "unit": "count", "better": "neither"},
    )
    assert declared["requests"].files == ("out.json", "w_iops.log")
    assert declared["wakeups"].files == ()


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"reader": "sysbnch"}, "sysbench"),
        ({"reader": "sysbench", "unit": "ms"}, "'unit' cannot be set for a 'reader'"),
        ({"reader": "sysbench", "arguments": {"rat": "x"}}, "Did you mean 'rate'"),
        ({"reader": "sysbench", "arguments": {"rate": "x"}}, "expected one of counted, printed"),
        ({"reader": "rtla", "arguments": {"interval_us": "x"}}, "expected a whole number"),
        ({"reader": "fio", "arguments": {"log": "../x"}}, "expected a file name, got"),
    ],
)
def test_what_a_reader_cannot_be_told_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        metrics(report=keys)
