"""What the trial's CPUs were like: on the snapshots of a host with two CPUs."""

from pathlib import Path
from typing import Any

import pytest

from labctl.base.errors import BrokenError
from labctl.collect.counters import host_cpus
from labctl.collect.counters.host_cpus import frequency_countable
from tests.unit.collect.trials import TCG, altered, reasons, trial, values

# As perf 6.1 prints it ('perf stat --json-output --cpu 0-1', of a host with a TSC of 2.5 GHz); it
# had no APERF and MPERF, which are made up here: 1.2 times the TSC's rate in C0.
LINE = (
    '{{"counter-value" : "{value}", "unit" : "{unit}", "event" : "{event}", '
    '"event-runtime" : 2015197330, "pcnt-running" : {percent}, "metric-value" : 2.5, '
    '"metric-unit" : "G/sec"}}\n'
)
COUNTED = {
    "msr/aperf/": "1200000000.000000",
    "msr/mperf/": "1000000000.000000",
    "msr/tsc/": "5037979830.000000",
    "cpu-clock": "2015.197122",
}


def printed(percent: str = "100.00", **changed: str) -> str:
    counted = {**COUNTED, **{f"msr/{name}/": value for name, value in changed.items()}}
    return "".join(
        LINE.format(event=event, value=value, unit="", percent=percent)
        for event, value in counted.items()
    )


def _parse(folder: Path, frequency: str | None = None, **host: Any) -> list[Any]:
    made = trial(folder, host=altered(TCG, lambda data: data.update(host)))
    if frequency is not None:
        made.write_raw(host_cpus.FREQUENCY, frequency)
    return list(host_cpus.parse(made))


def _limit(value: Any) -> dict[str, Any]:
    before = altered(TCG, lambda data: None)["before"]
    return {"before": {**before, host_cpus.LIMIT: value}}


def test_load_on_siblings_is_what_was_not_idle_there(tmp_path: Path) -> None:
    whole = altered(TCG, lambda data: None)
    idle = []
    for when in ("before", "after"):
        (line,) = [x for x in whole[when]["proc_stat"].splitlines() if x.startswith("cpu1 ")]
        idle.append(sum(int(ticks) for ticks in line.split()[4:6]))
    seconds = (whole["after"]["monotonic_ns"] - whole["before"]["monotonic_ns"]) / 1e9
    found = values(_parse(tmp_path, trial_cpus="0", siblings="1"))
    busy = 1 - (idle[1] - idle[0]) / whole["clk_tck"] / seconds
    assert found["sibling_cpu"] == pytest.approx(max(0, busy))


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ({}, "older labctl"),
        ({"siblings": ""}, "no SMT"),
        ({"trial_cpus": "0-1", "siblings": "0-1"}, "only with each other"),
    ],
)
def test_without_other_siblings_their_load_is_unavailable(
    tmp_path: Path, host: dict[str, Any], reason: str
) -> None:
    assert reason in reasons(_parse(tmp_path, **host))["sibling_cpu"]


def test_frequency_is_that_of_the_time_that_was_not_idle(tmp_path: Path) -> None:
    found = values(_parse(tmp_path, printed()))
    assert found["cpu_frequency"] == pytest.approx(1.2 * 2.5e9, rel=1e-5)


def test_csv_of_an_older_perf_gives_the_same(tmp_path: Path) -> None:
    lines = "".join(f"{value},,{event},2016680424,100.00,,\n" for event, value in COUNTED.items())
    assert values(_parse(tmp_path, lines))["cpu_frequency"] == pytest.approx(3.0e9, rel=1e-5)


@pytest.mark.parametrize(
    ("frequency", "reason"),
    [
        (None, "older labctl"),
        (printed(aperf="<not supported>"), "<not supported> for msr/aperf/"),
        (printed(mperf="0.000000"), "MPERF did not count"),
        (printed(percent="66.67"), "66.67 % of the time"),
        ("", "no count of msr/aperf/"),
    ],
)
def test_a_frequency_that_was_not_counted_is_unavailable(
    tmp_path: Path, frequency: str | None, reason: str
) -> None:
    assert reason in reasons(_parse(tmp_path, frequency))["cpu_frequency"]


def test_why_the_host_cannot_tell_it_is_passed_on(tmp_path: Path) -> None:
    problem = frequency_countable(tmp_path).problem
    assert problem is not None
    made = trial(tmp_path, host=altered(TCG, lambda data: None))
    made.write_raw(host_cpus.FREQUENCY_PROBLEM, problem)
    assert reasons(list(host_cpus.parse(made)))["cpu_frequency"] == problem
    assert "virtual machines" in problem


def test_garbage_in_place_of_perfs_output_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BrokenError, match=r"frequency\.txt"):
        _parse(tmp_path, "garbage\n")


def test_a_limit_that_somebody_holds_is_a_fact_of_the_trial(tmp_path: Path) -> None:
    assert values(_parse(tmp_path, **_limit(20)))["cpu_latency_limit"] == 20e-6
    assert values(_parse(tmp_path, **_limit(0)))["cpu_latency_limit"] == 0


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        (2_000_000_000, "no process limited"),
        ({"unavailable": "/dev/cpu_dma_latency: Permission denied"}, "Permission denied."),
    ],
)
def test_no_limit_is_a_reason_and_no_number(tmp_path: Path, limit: Any, reason: str) -> None:
    assert reason in reasons(_parse(tmp_path, **_limit(limit)))["cpu_latency_limit"]


def test_a_limit_that_is_no_number_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BrokenError, match="expected microseconds"):
        _parse(tmp_path, **_limit("many"))
