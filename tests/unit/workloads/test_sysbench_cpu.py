import math
import re
from pathlib import Path

import pytest

from labctl.base.errors import BrokenError, UsageError
from labctl.workloads.registry import workload
from labctl.workloads.setting import Setting
from tests.unit.workloads.trials import reasons, recorded, trial, values

SYSBENCH_CPU = workload("sysbench-cpu")

ONE = "sysbench-1.0.20-1-thread.txt"
LONG = (ONE, "sysbench-1.0.20-2-threads.txt", "sysbench-1.0.20-tcg-guest.txt")


def _setting(duration_s: float = 2, vcpus: int = 2, max_prime: int = 2000) -> Setting:
    parameters = SYSBENCH_CPU.check_parameters({"max_prime": max_prime})
    return Setting(parameters=parameters, vcpus=vcpus, duration_s=duration_s)


def test_a_recorded_run_gives_rate_count_and_percentiles_in_seconds(tmp_path: Path) -> None:
    found = values(list(SYSBENCH_CPU.parse(trial(tmp_path, stdout_txt=recorded(ONE)))))
    printed = recorded(ONE)
    assert f"events per second:  {found['events_per_s']:.2f}" in printed
    assert f"total number of events:              {found['operations']:.0f}\n" in printed
    assert 1e-5 < found["latency_p50"] <= found["latency_p95"] <= found["latency_p99"] < 0.01
    maximum_ms = re.findall(r"max: +([\d.]+)", printed)[0]
    assert found["latency_max"] == pytest.approx(float(maximum_ms) / 1000)


@pytest.mark.parametrize("name", LONG)
def test_p95_agrees_with_sysbench_s_own(tmp_path: Path, name: str) -> None:
    text = recorded(name)
    theirs_ms = float(re.findall(r"95th percentile:\s+([\d.]+)", text)[0])
    found = values(list(SYSBENCH_CPU.parse(trial(tmp_path, stdout_txt=text))))
    assert found["latency_p95"] * 1000 == pytest.approx(theirs_ms, abs=0.0055)  # two digits


def test_a_window_s_rate_is_the_printed_one() -> None:
    text = recorded("sysbench-1.0.20-window.txt")
    assert f"events per second:  {SYSBENCH_CPU.window_rates(text, {})[0]:.2f}\n" in text


def test_a_short_window_has_no_p99(tmp_path: Path) -> None:
    raw = trial(tmp_path, stdout_txt=recorded("sysbench-1.0.20-window.txt"))
    assert "latency_p99" in reasons(list(SYSBENCH_CPU.parse(raw)))


def test_the_bins_are_under_two_percent_wide(tmp_path: Path) -> None:
    found = values(list(SYSBENCH_CPU.parse(trial(tmp_path, stdout_txt=recorded(ONE)))))
    assert found["bin_width{of=latency_p95}"] == pytest.approx(math.log(1e8) / 1023, rel=0.01)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: "\0\1\2 not sysbench at all",
        lambda text: text[: text.index("CPU speed")],
        lambda text: text[text.index("CPU speed") :],
        lambda text: text.replace("total number of events:", "total number of events: lots"),
        lambda text: text.replace("         max:", "         mox:"),
        lambda text: re.sub(r"(\|\*+ +)\d", r"\g<1>7", text, count=1),
        lambda text: text.replace("events per second:  ", "events per second:  1.2."),
    ],
    ids=["empty", "garbage", "cut", "no histogram", "words", "no max", "altered", "two dots"],
)
def test_output_that_is_not_whole_is_an_error_that_names_the_file(
    tmp_path: Path, damage: "object"
) -> None:
    text = damage(recorded(ONE))  # type: ignore[operator]
    with pytest.raises(BrokenError, match=r"stdout\.txt.*expected"):
        list(SYSBENCH_CPU.parse(trial(tmp_path, stdout_txt=text)))


def test_garbage_has_no_rate() -> None:
    with pytest.raises(BrokenError, match="events per second"):
        SYSBENCH_CPU.window_rates("sysbench: killed", {})


def test_the_command_has_a_thread_for_each_vcpu_and_no_limit_but_time() -> None:
    argv = SYSBENCH_CPU.command(_setting()).argv
    assert argv[0] == "/usr/bin/sysbench"
    assert {"--threads=2", "--time=2", "--events=0", "--histogram=on"} <= set(argv)


def test_a_window_is_as_many_events_as_the_rate_before_promises() -> None:
    argv = SYSBENCH_CPU.warmup_command(_setting(), 0.3, 5000.0).argv
    assert {"--time=0", "--events=1500", "--threads=2"} <= set(argv)


def test_the_first_window_is_short_however_long_an_event_is() -> None:
    def events(max_prime: int) -> int:
        argv = SYSBENCH_CPU.warmup_command(_setting(max_prime=max_prime), 0.3, None).argv
        return int(next(a for a in argv if a.startswith("--events=")).partition("=")[2])

    assert events(2000) == 360
    assert 2 <= events(20_000) < 30
    assert events(1_000_000) == 2  # one for each thread


def test_instructions_are_counted_with_one_thread_and_exactly_so_many_events() -> None:
    command = SYSBENCH_CPU.exact_command(_setting(), 50)
    assert command is not None
    assert {"--threads=1", "--events=50", "--time=0"} <= set(command.argv)


@pytest.mark.parametrize("duration_s", [0.5, 2.5, 0])
def test_a_duration_in_parts_of_seconds_is_refused(duration_s: float) -> None:
    with pytest.raises(UsageError, match="whole seconds"):
        SYSBENCH_CPU.check_duration(duration_s)
    with pytest.raises(UsageError, match="whole seconds"):
        SYSBENCH_CPU.command(_setting(duration_s))
