"""Declarations of whole programs, as a file has them, on what such programs print."""

import pytest

from labctl.base.errors import BrokenError
from labctl.base.yamltext import parse_yaml
from labctl.workloads.metric_file import explain_run, read_run
from labctl.workloads.readers.declaration import MetricFile
from tests.unit.workloads.readers.outputs import METRICS, Left, numbers


def _declared(text: str) -> dict[str, MetricFile]:
    return METRICS.validate_python(parse_yaml(text))


PGBENCH = _declared(r"""
failed:
  regex: '^number of failed transactions: (?P<value>\d+)'
  unit: count
  better: lower
  must_be: 0
latency:
  from: "tx.*"
  csv:
    separator: " "
    names: [client, nr, us, script, s, s_us, lag]
    column: us
    time: [s, s_us]
  as: percentiles
  unit: us
  better: lower
""")


def _transactions(client: int) -> bytes:
    rows = (f"{client} {n} {1000 + n} 0 1700000000 {n * 1000} 12\n" for n in range(500))
    return "".join(rows).encode()


def test_a_log_for_each_thread_is_one_table() -> None:
    printed = "number of failed transactions: 0 (0.000%)\n"
    left = Left(stdout=printed, files={"tx.100": _transactions(0), "tx.101": _transactions(1)})
    found = numbers(read_run(PGBENCH, left))
    assert found["failed"] == 0
    assert found["latency_p95"] == pytest.approx(1474e-6)
    assert "latency_p99" not in found


def test_a_failed_transaction_makes_the_run_invalid() -> None:
    printed = "number of failed transactions: 3 (0.010%)\n"
    left = Left(stdout=printed, files={"tx.100": _transactions(0)})
    with pytest.raises(BrokenError, match="metric 'failed': failed: expected 0, got 3"):
        read_run(PGBENCH, left)


TICKS = _declared("""
drift:
  from: ticks.csv
  csv: {column: start_ns, minus: scheduled_ns, time: start_ns, after: 1s}
  as: percentiles
  unit: ns
  better: lower
late:
  from: ticks.csv
  csv: {column: end_ns, minus: scheduled_ns, time: start_ns}
  as: share
  over: 55ms
  unit: ns
  better: lower
""")


def test_a_tick_is_late_against_its_schedule() -> None:
    begin, tick = 1_700_000_000_000_000_000, 50_000_000
    rows = [
        (due, due + 1000 + n, due + (60_000_000 if n % 100 == 0 else 5_000_000))
        for n in range(1000)
        for due in (begin + n * tick,)
    ]
    text = "scheduled_ns,start_ns,end_ns\n" + "".join(f"{a},{b},{c}\n" for a, b, c in rows)
    found = numbers(read_run(TICKS, Left(files={"ticks.csv": text.encode()})))
    assert found["late"] == pytest.approx(0.01)
    # The first second, 20 ticks, is left out.
    assert found["drift_p50"] == pytest.approx((1000 + 509) * 1e-9, rel=1e-6)


def test_a_client_without_a_server_is_no_zero() -> None:
    # hey ends with 0 and an empty table then.
    hey = _declared("slow: {csv: {column: response-time}, as: percentiles, unit: s, better: lower}")
    with pytest.raises(BrokenError, match="no row"):
        read_run(hey, Left(stdout="response-time,DNS+dialup,Status-code,offset\n"))


def test_what_a_loose_pattern_finds_is_shown_while_it_is_written() -> None:
    printed = "GET: rps=0.0\rGET: rps=50220.0\rGET: 46838.41 requests per second, p50=0.4 msec\n"
    loose = _declared(r"get: {regex: 'GET:\D*([\d.]+)', unit: 1/s, better: higher}")
    explained = explain_run(loose, Left(stdout=printed))["get"]
    assert "expected one match, got 3" in str(explained.error)
    assert len(explained.shown) == 3
    tight = _declared(
        r"get: {regex: '^GET: ([\d.]+) requests per second', unit: 1/s, better: higher}"
    )
    assert numbers(explain_run(tight, Left(stdout=printed))["get"].values) == {"get": 46838.41}
