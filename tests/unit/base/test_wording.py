from __future__ import annotations

import math

import pytest

from labctl.base.metrics.table import METRICS
from labctl.base.units import Unit
from labctl.base.wording import (
    change,
    change_interval,
    counted,
    difference,
    difference_interval,
    metric_title,
    printable,
    quantity,
    share,
    size,
)


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (0.77, "−23 %"),
        (2.73, "×2.73"),
        (1.0, "±0 %"),
        (1.0004, "±0 %"),
        (0.9996, "±0 %"),
        (1.042, "+4.2 %"),
        (1.0996, "+10 %"),
        (0.1, "−90 %"),
        (0.09, "−91.0 %"),
        (0.0874, "−91.3 %"),
        (0.01, "−99.0 %"),
        (0.009, "×0.00900"),
        (2.0, "+100 %"),
        (2.01, "×2.01"),
        (15.26, "×15.3"),
        (152.6, "×153"),
        (1e6, ">×1000"),
        (1e-9, "<×0.001"),
        (0.0, "<×0.001"),
        (None, "n/a"),
        (math.nan, "n/a"),
        (math.inf, "n/a"),
        (-1.0, "n/a"),
    ],
)
def test_a_ratio_is_a_percentage_near_one_and_a_factor_beyond(
    ratio: float | None, text: str
) -> None:
    assert change(ratio) == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (0.69, 0.86, "−31…−14 %"),
        (0.96, 1.12, "−4.0…+12 %"),
        (2.41, 3.1, "×2.41…3.10"),
        (0.96, 2.41, "−4.0 %…×2.41"),
        (0.4, 2.5, "−60 %…×2.50"),
        (0.04, 2.5, "−96.0 %…×2.50"),
        (0.0874, 0.21, "−91.3…−79 %"),
        (0.004, 2.5, "×0.00400…×2.50"),
        (None, None, ""),
    ],
)
def test_an_interval_says_what_its_ends_share_only_once(
    low: float | None, high: float | None, text: str
) -> None:
    assert change_interval(low, high) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.00123, Unit.SECONDS, "1.23 ms"),
        (1234.0, Unit.MICROSECONDS, "1.23 ms"),
        (3.3e-5, Unit.SECONDS, "33.0 µs"),
        (0.9997, Unit.SECONDS, "1.00 s"),
        (1500.0, Unit.SECONDS, "1500 s"),
        (0.0, Unit.SECONDS, "0 s"),
        (1234.0, Unit.PER_SECOND, "1.23 k/s"),
        (999.7, Unit.PER_SECOND, "1.00 k/s"),
        (999.4, Unit.PER_SECOND, "999/s"),
        (0.004, Unit.PER_OPERATION, "0.00400/op"),
        (807.0, Unit.OPERATIONS_PER_CPU_SECOND, "807/CPU-s"),
        (12.3e6, Unit.BYTES_PER_SECOND, "12.3 MB/s"),
        (0.98, Unit.CPUS, "0.980 CPU"),
        (0.923, Unit.INSTRUCTIONS_PER_CYCLE, "0.923"),
        (0.123, Unit.FRACTION, "12.3 %"),
        (9.999e-3, Unit.SECONDS, "10.0 ms"),
        (123456.0, Unit.COUNT, "123 k"),
        (math.nan, Unit.COUNT, "n/a"),
        (None, Unit.COUNT, "n/a"),
    ],
)
def test_a_quantity_has_three_digits_a_prefix_and_its_unit(
    value: float | None, unit: Unit, text: str
) -> None:
    assert quantity(value, unit) == text


def test_every_unit_can_be_written() -> None:
    assert all(quantity(1.0, unit) for unit in Unit)


def test_a_difference_has_a_sign_and_fractions_differ_by_percentage_points() -> None:
    assert difference(0.0012, Unit.SECONDS) == "+1.20 ms"
    assert difference(-0.0012, Unit.SECONDS) == "−1.20 ms"
    assert difference(0.05, Unit.FRACTION) == "+5.00 pp"
    assert difference(0.0, Unit.COUNT) == "0"
    assert difference_interval(0.0012, 0.0034, Unit.SECONDS) == "+1.20…+3.40 ms"
    assert difference_interval(0.0002, 0.0034, Unit.SECONDS) == "+200 µs…+3.40 ms"
    assert difference_interval(None, 1.0, Unit.SECONDS) == ""


def test_metrics_are_named_in_words() -> None:
    assert metric_title("latency_p95") == "p95 latency"
    assert metric_title("latency_p95{op=read}", closed_loop=True) == (
        "closed-loop p95 latency (read)"
    )
    assert metric_title("iops", closed_loop=True) == "IOPS"
    assert metric_title("open_latency_mean") == "open-loop mean latency"
    assert metric_title("events_per_s") == "events/s"
    assert metric_title("host_cpu{thread=vcpu}") == "host CPU (vcpu)"
    assert metric_title("ctx_switches{kind=voluntary,of=workload}") == (
        "context switches (voluntary, workload)"
    )


def test_two_metrics_never_share_a_name_and_a_number_says_of_what_it_is() -> None:
    assert metric_title("exits{reason=HLT}") == "VM exits (HLT)"
    assert metric_title("exits_per_op{reason=HLT}") == "VM exits per operation (HLT)"
    assert metric_title("exit_time{vcpu=0}") == "time in VM exits (vCPU 0)"
    titles = [metric_title(row.name) for row in METRICS]
    assert sorted(set(titles)) == sorted(titles)


def test_what_drives_a_terminal_or_reorders_text_is_replaced() -> None:
    assert printable("a\x1b[31mb\u202ec\x00\r\nd\te") == "a�[31mb�c��\nd\te"


def test_a_size_has_no_sign_and_is_a_factor_where_a_change_is() -> None:
    found = [size(value) for value in (0.05, 0.0731, 0.1234, 1.0, 1.73)]
    assert found == ["5 %", "7.3 %", "12 %", "100 %", "×2.73"]


def test_counts_and_shares() -> None:
    assert (counted(1, "boot"), counted(2, "boot")) == ("1 boot", "2 boots")
    assert (share(0.9875), share(0.05)) == ("98.75 %", "5 %")
