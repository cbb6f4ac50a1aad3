"""rtla's histograms, recorded on Debian's PREEMPT_RT kernel in an emulated guest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from labctl.base.errors import BrokenError
from labctl.workloads.registry import workload
from labctl.workloads.setting import Setting
from labctl.workloads.workload import Workload
from tests.unit.workloads.trials import reasons, recorded, trial, values

OSNOISE = workload("osnoise")
TIMERLAT = workload("timerlat")

LATENCY = "rtla-6.1-timerlat-rt-tcg-guest.txt"
NOISE = "rtla-6.1-osnoise-rt-tcg-guest.txt"
NOTHING = "rtla-6.1-osnoise-nothing.txt"


def _parse(program: Workload, folder: Path, text: str) -> list[Any]:
    return list(program.parse(trial(folder, stdout_txt=text)))


def _summary(name: str, row: str) -> list[int]:
    (line,) = (line for line in recorded(name).splitlines() if line.startswith(f"{row}:"))
    return [int(value) for value in line.split()[1:]]


def _noise(rows: str, over: int = 0, count: int = 0, longest: int = 0) -> str:
    return (
        "# RTLA osnoise histogram\n# Time unit is microseconds (us)\n# Duration:   0 00:00:10\n"
        f"Index   CPU-000\n{rows}over:  {over}\ncount: {count}\nmin:   5\navg:   7\n"
        f"max:   {longest}\n"
    )


def test_a_thread_s_latencies_are_the_primary_ones_and_its_interrupt_s_stand_beside(
    tmp_path: Path,
) -> None:
    found = values(_parse(TIMERLAT, tmp_path, recorded(LATENCY)))
    irq0, thread0, irq1, thread1 = _summary(LATENCY, "count")
    assert found["wakeups"] == thread0 + thread1
    maxima = _summary(LATENCY, "max")
    assert found["latency_max"] == pytest.approx(max(maxima[1], maxima[3]) / 1e6)
    assert found["latency_max{part=irq}"] == pytest.approx(max(maxima[0], maxima[2]) / 1e6)
    # A thread cannot run before the interrupt that wakes it.
    for name in ("p50", "p95"):
        assert found[f"latency_{name}"] > found[f"latency_{name}{{part=irq}}"] > 0
    assert irq0 + irq1 == thread0 + thread1


def test_a_percentile_with_too_few_wake_ups_beyond_it_is_unavailable(tmp_path: Path) -> None:
    found = reasons(_parse(TIMERLAT, tmp_path, recorded(LATENCY)))
    assert "p999 needs 20000" in found["latency_p999"]


def test_noise_is_the_sum_of_all_stalls_over_the_time(tmp_path: Path) -> None:
    text = _noise("5   100\n1000  3\n", over=1, count=104, longest=80_000)
    found = values(_parse(OSNOISE, tmp_path, text))
    assert found["noise"] == pytest.approx((5.5 * 100 + 1000.5 * 3 + 80_000) / 1e6 / 10)
    assert found["stalls"] == 104
    assert found["latency_max"] == pytest.approx(0.08)


def test_several_stalls_beyond_the_histogram_have_no_known_sum(tmp_path: Path) -> None:
    readings = _parse(OSNOISE, tmp_path, recorded(NOISE))
    assert _summary(NOISE, "over")[0] > 1
    assert "raise 'histogram_us'" in reasons(readings)["noise"]
    found = values(readings)
    assert found["stalls"] == sum(_summary(NOISE, "count"))
    assert found["latency_max"] == pytest.approx(max(_summary(NOISE, "max")) / 1e6)


@pytest.mark.parametrize(
    "text",
    [recorded(NOTHING), recorded(NOTHING).replace(":  \n", ":  0\n").replace(": \n", ": 0\n")],
    ids=["6.1", "6.11"],
)
def test_a_cpu_that_nothing_disturbs_has_no_noise_and_no_longest_stall(
    tmp_path: Path, text: str
) -> None:
    readings = _parse(OSNOISE, tmp_path, text)
    assert values(readings) == {"noise": 0, "stalls": 0}
    assert "nothing kept" in reasons(readings)["latency_max"]


def test_threads_in_user_space_have_columns_of_their_own_which_may_be_empty(tmp_path: Path) -> None:
    # Posted on a public kernel list in October 2025.
    text = (
        "# RTLA timerlat histogram\n# Time unit is microseconds (us)\n# Duration:   0 00:00:01\n"
        "Index   IRQ-000   Thr-000   Usr-000\n6             1         0         0\n"
        "21            0         1         0\nover:         0         0         0\n"
        "count:        1         1         0\nmin:          6        21         -\n"
        "avg:          6        21         -\nmax:          6        21         -\n"
        "ALL:        IRQ       Thr       Usr\ncount:        1         1         0\n"
        "min:          6        21         -\navg:          6        21         -\n"
        "max:          6        21         -\n"
    )
    found = values(_parse(TIMERLAT, tmp_path, text))
    assert found["wakeups"] == 1
    assert found["latency_max"] == pytest.approx(21e-6)


def test_buckets_of_more_than_a_microsecond_are_not_taken_for_microseconds(tmp_path: Path) -> None:
    # Posted publicly, of one CPU, from 'rtla timerlat hist -b 10'.
    text = (
        "# RTLA timerlat histogram\n# Time unit is microseconds (us)\n# Duration:   0 00:00:02\n"
        "Index   IRQ-001   Thr-001\n0          1000       944\n10            0        55\n"
        "20            0         1\nover:         0         0\ncount:     1000      1000\n"
        "min:          0         3\navg:          1         7\nmax:          7        21\n"
    )
    with pytest.raises(BrokenError, match="0 us in its last row and 7 at most"):
        _parse(TIMERLAT, tmp_path, text)


@pytest.mark.parametrize("said", ["7 (0.10%) events missed", "unknown number of events missed"])
def test_a_histogram_that_lost_events_is_refused_in_rtla_s_words(tmp_path: Path, said: str) -> None:
    text = recorded(NOTHING) + f"{said}, results might not be accurate\n"
    with pytest.raises(BrokenError, match="events missed"):
        _parse(OSNOISE, tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\0\1",
        recorded(NOISE),
        recorded(NOTHING).replace("osnoise", "timerlat"),
        recorded(LATENCY)[:2000],
        recorded(LATENCY)[: recorded(LATENCY).index("max:")],
        recorded(LATENCY).replace("microseconds (us)", "nanoseconds (ns)"),
        recorded(LATENCY).replace("count:     2275", "count:     2276"),
        recorded(LATENCY).replace("over:         3", "over:          "),
        recorded(LATENCY).replace("over:         3", "over:         x"),
    ],
)
def test_output_that_is_not_whole_is_an_error_that_names_the_file(
    tmp_path: Path, text: str
) -> None:
    with pytest.raises(BrokenError, match=r"stdout\.txt.*expected"):
        _parse(TIMERLAT, tmp_path, text)


@pytest.mark.parametrize("program", [TIMERLAT, OSNOISE])
def test_it_is_told_which_cpus_to_measure(program: Workload) -> None:
    setting = Setting(
        parameters=program.check_parameters({}), vcpus=2, duration_s=5, cpus=frozenset({4, 6})
    )
    argv = program.command(setting).argv
    assert argv[0] == "/usr/bin/rtla"
    assert {"--cpus=4,6", "--duration=5", "--entries=60000"} <= set(argv)
