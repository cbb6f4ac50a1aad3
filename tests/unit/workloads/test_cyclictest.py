import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from labctl.base.errors import BrokenError, UsageError
from labctl.workloads.registry import workload
from labctl.workloads.setting import Setting
from tests.unit.workloads.trials import reasons, recorded, trial, values

CYCLICTEST = workload("cyclictest")

ONE = "cyclictest-2.40-1-thread.json"
TWO = "cyclictest-2.40-2-threads.json"


def _parse(folder: Path, text: str) -> "list[Any]":
    return list(CYCLICTEST.parse(trial(folder, files__cyclictest_json=text)))


def _altered(change: Callable[[dict[str, Any]], object], name: str = ONE) -> str:
    report = json.loads(recorded(name))
    change(report)
    return json.dumps(report)


def _with(histogram: dict[str, int], **more: int) -> str:
    """The recorded report with another histogram; `more`: cycles and max of its thread."""
    entry = {"cycles": sum(histogram.values()), "max": max(map(int, histogram)), **more}
    return _altered(lambda r: r["thread"]["0"].update(histogram=histogram, **entry))


def test_a_recorded_run_gives_percentiles_in_seconds(tmp_path: Path) -> None:
    readings = _parse(tmp_path, recorded(ONE))
    found = values(readings)
    thread = json.loads(recorded(ONE))["thread"]["0"]
    assert found["wakeups"] == thread["cycles"]
    assert found["latency_max"] == pytest.approx(thread["max"] / 1e6)
    assert thread["min"] / 1e6 < found["latency_p50"] <= found["latency_p95"] < found["latency_max"]
    assert "latency_p999" in reasons(readings)


def test_threads_are_taken_together(tmp_path: Path) -> None:
    found = values(_parse(tmp_path, recorded(TWO)))
    threads = json.loads(recorded(TWO))["thread"].values()
    assert found["wakeups"] == sum(t["cycles"] for t in threads)
    assert found["latency_max"] == pytest.approx(max(t["max"] for t in threads) / 1e6)


def test_a_latency_of_no_whole_microsecond_is_above_zero(tmp_path: Path) -> None:
    assert values(_parse(tmp_path, _with({"0": 500})))["latency_p50"] == pytest.approx(0.5e-6)


def test_stall_time_counts_only_what_passes_the_interval(tmp_path: Path) -> None:
    found = values(_parse(tmp_path, _with({"10": 400, "999": 5, "1000": 5, "1500": 2, "50000": 1})))
    assert found["stall_time"] == pytest.approx((2 * 500 + 49_000) / 1e6)


def test_the_interval_of_the_stall_time_is_the_one_that_was_run(tmp_path: Path) -> None:
    # Recorded at 200 us on a busy machine: there are later wake-ups, and one of 1440 us.
    latencies = [
        (int(us), count)
        for thread in json.loads(recorded(TWO))["thread"].values()
        for us, count in thread["histogram"].items()
    ]
    expected = sum((us - 200) * count for us, count in latencies if us > 200)
    assert expected > 0
    assert values(_parse(tmp_path, recorded(TWO)))["stall_time"] == pytest.approx(expected / 1e6)


@pytest.mark.parametrize("option", ["-i 200", "-i200", "--interval 200"])
def test_the_interval_may_be_told_in_other_words(tmp_path: Path, option: str) -> None:
    asked = values(_parse(tmp_path, recorded(TWO)))["stall_time"]
    other = _altered(lambda r: r.update({"cmdline:": f"cyclictest -q {option} -h 400"}), TWO)
    assert values(_parse(tmp_path, other))["stall_time"] == asked


def test_without_an_interval_there_are_percentiles_and_no_stall_time(tmp_path: Path) -> None:
    readings = _parse(tmp_path, _altered(lambda r: r.update({"cmdline:": "cyclictest -q"})))
    assert "no interval" in reasons(readings)["stall_time"]
    assert "latency_p95" in values(readings)


def test_one_wake_up_beyond_the_histogram_has_the_maximum_s_length(tmp_path: Path) -> None:
    found = values(_parse(tmp_path, _with({"10": 999}, cycles=1000, max=250_000)))
    assert found["stall_time"] == pytest.approx(0.249)
    assert found["wakeups"] == 1000
    assert found["latency_max"] == pytest.approx(0.25)


def test_several_wake_ups_beyond_the_histogram_have_no_known_stall_time(tmp_path: Path) -> None:
    readings = _parse(tmp_path, _with({"10": 998}, cycles=1000, max=250_000))
    assert "histogram_us" in reasons(readings)["stall_time"]
    assert "latency_p95" in values(readings)


def test_a_percentile_among_those_beyond_is_unavailable(tmp_path: Path) -> None:
    readings = _parse(tmp_path, _with({"10": 500}, cycles=1000, max=250_000))
    assert "beyond" in reasons(readings)["latency_p95"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        recorded(ONE)[:900],
        _altered(lambda r: r.pop("thread")),
        _altered(lambda r: r.update(thread={})),
        _altered(lambda r: r.update(return_code=1)),
        _altered(lambda r: r.update(resolution_in_ns=1)),
        _altered(lambda r: r.pop("cmdline:")),
        "[" * 100_000,
        _altered(lambda r: r["thread"]["0"].pop("histogram")),
        _altered(lambda r: r["thread"]["0"].update(histogram={}, cycles=0)),
        _altered(lambda r: r["thread"]["0"].update(histogram={"ten": 4})),
        _altered(lambda r: r["thread"]["0"].update(histogram={"-5": 4000}, cycles=4000)),
        _altered(lambda r: r["thread"]["0"].update(cycles=1)),
        _altered(lambda r: r["thread"]["0"].pop("max")),
    ],
)
def test_output_that_is_not_whole_is_an_error_that_names_the_file(
    tmp_path: Path, text: str
) -> None:
    with pytest.raises(BrokenError, match=r"files/cyclictest\.json"):
        _parse(tmp_path, text)


def _setting(duration_s: float = 30) -> Setting:
    return Setting(parameters=CYCLICTEST.check_parameters({}), vcpus=2, duration_s=duration_s)


def test_the_command_leaves_the_system_and_the_placement_alone() -> None:
    argv = CYCLICTEST.command(_setting()).argv
    assert {"--default-system", "--threads=2", "--duration=30", "--interval=1000"} <= set(argv)
    assert not any(a.startswith(("-a", "--affinity")) for a in argv)


def test_a_window_is_counted_in_wake_ups() -> None:
    argv = CYCLICTEST.warmup_command(_setting(), 0.3, None).argv
    assert "--loops=300" in argv
    assert not any(a.startswith("--duration") for a in argv)


def test_a_warm_up_keeps_a_short_histogram_as_nobody_reads_it() -> None:
    """Each of its microseconds is a line that cyclictest formats: 60,000 took as long as a window
    in an emulated guest."""
    assert "--histogram=100000" in CYCLICTEST.command(_setting()).argv
    assert "--histogram=1000" in CYCLICTEST.warmup_command(_setting(), 0.1, None).argv


def test_a_load_of_fixed_pace_has_no_rate() -> None:
    assert CYCLICTEST.window_rates("", {}) == []


def test_a_duration_in_parts_of_seconds_is_refused() -> None:
    with pytest.raises(UsageError, match="whole seconds"):
        CYCLICTEST.command(_setting(1.5))
