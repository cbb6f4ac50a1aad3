"""Readers of output that was damaged at random: they read it or say what is wrong, and never
break."""

import random
from contextlib import suppress

import pytest

from labctl.base.errors import BrokenError
from labctl.workloads.metric_file import read_run
from labctl.workloads.readers.declaration import MetricFile
from tests.unit.workloads.readers.outputs import Left, metric, metrics
from tests.unit.workloads.trials import recorded

CASES: list[tuple[str, dict[str, MetricFile]]] = [
    ("iperf3-3.12-native.json", metric(json="end.sum_received.bits_per_second", unit="bit/s")),
    ("iperf3-3.12-windows.json", metric(json="intervals[*].sum.bytes", which="sum")),
    ("stress-ng-0.15.06-mmap.yaml", metric(yaml="metrics[stressor=mmap].bogo-ops")),
    (
        "fio-3.33-randread-windows-tcg-guest.log",
        metric(csv={"column": "rate", "names": ["ms", "rate", "to", "size", "at"]}, as_="mean"),
    ),
    ("hdrhistogram-0.10.8-lognormal.hlog", metric(hdr={}, as_="percentiles", unit="ns")),
    ("hackbench-2.40-tcg-guest.txt", metric(regex=r"^Time: (.+)$", which="mean", unit="s")),
    ("sysbench-1.0.20-2-threads.txt", metrics(report={"reader": "sysbench"})),
    ("rtla-6.1-timerlat-rt-tcg-guest.txt", metrics(report={"reader": "rtla"})),
    ("cyclictest-2.40-2-threads.json", metrics(it={"reader": "cyclictest", "from": "out"})),
    ("oslat-2.40-native.json", metrics(it={"reader": "oslat", "from": "out"})),
    ("fio-3.33-randrw-io_uring.json", metrics(it={"reader": "fio", "from": "out"})),
    ("sockperf-3.7-ping-pong-tcg.csv", metrics(it={"reader": "sockperf", "from": "out"})),
]
TOKENS = ("", "nan", "-1", "1e999", "9" * 400, '"', "[", "]", ",", "\0", "\n", "é", "null", "-")
DAMAGED = 12


def damaged(text: str, chance: random.Random) -> bytes:
    """The text with one to three changes."""
    for _ in range(chance.randint(1, 3)):
        begin = chance.randrange(len(text) + 1)
        end = min(len(text), begin + chance.choice((0, 1, 3, 50, 5000)))
        text = text[:begin] + chance.choice(TOKENS) + text[end:]
    data = bytearray(text.encode())
    if data and chance.random() < 0.3:
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


@pytest.mark.parametrize(("name", "declared"), CASES, ids=[name for name, _ in CASES])
def test_damaged_output_is_read_or_an_error(name: str, declared: dict[str, MetricFile]) -> None:
    text = recorded(name)
    read_run(declared, Left(stdout=text, files={"out": text.encode()}))  # whole
    for number in range(DAMAGED):
        data = damaged(text, random.Random(f"{name} {number}"))
        left = Left(stdout=data.decode(errors="replace"), files={"out": data})
        with suppress(BrokenError):
            read_run(declared, left)
