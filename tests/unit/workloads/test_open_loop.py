"""The periods that a stall hid, put back."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl.base.errors import BrokenError
from labctl.base.units import OPEN_MEAN, SKIP_PERIODS
from labctl.store.run_folder import RunFolder
from labctl.store.samples import Reading, Unavailable
from labctl.workloads.open_loop import METRICS, MeasuredThread, every_period, readings
from labctl.workloads.readers import rtla
from labctl.workloads.registry import checkers, workload
from tests.unit.example import EXAMPLE
from tests.unit.workloads.trials import reasons, recorded, trial, values

CYCLICTEST = workload("cyclictest")
TIMERLAT = workload("timerlat")

INTERVAL_US = 1000


def _of(*threads: MeasuredThread, interval_us: int = INTERVAL_US) -> list[Reading]:
    return list(readings(threads, interval_us, "x"))


def _thread(
    by_latency_us: dict[int, int], beyond: int = 0, max_us: int | None = None
) -> MeasuredThread:
    return MeasuredThread(by_latency_us, beyond, max(by_latency_us) if max_us is None else max_us)


@pytest.mark.parametrize(
    ("latency_us", "waited_us"),
    [
        (0, [0]),
        (999, [999]),
        (1000, [1000, 0]),  # a stall of exactly one interval: the next is due as it ends
        (1001, [1001, 1]),
        (3000, [3000, 2000, 1000, 0]),
        (3500, [3500, 2500, 1500, 500]),
    ],
)
def test_a_wake_up_stands_for_every_period_that_it_was_late_for(
    latency_us: int, waited_us: list[int]
) -> None:
    assert every_period({latency_us: 1}, INTERVAL_US) == dict.fromkeys(waited_us, 1)


def test_stalls_that_end_in_the_same_microsecond_of_a_period_add_up() -> None:
    assert every_period({500: 10, 1500: 2, 3500: 1}, INTERVAL_US) == {
        3500: 1,
        2500: 1,
        1500: 3,  # two of their own, and one of the stall's
        500: 13,
    }


def test_mean_percentiles_and_late_share_are_those_of_all_periods() -> None:
    """By hand: 950 wake-ups of 10 us, and one of 50 ms that hides 49 periods and its own."""
    found = values(_of(_thread({10: 950, 49_500: 1})))
    waited_us = [10] * 950 + [500 + 1000 * n for n in range(50)]
    assert found["periods"] == 1000
    assert found["late_periods"] == pytest.approx(49 / 1000)
    mean_us = sum(waited_us) / 1000 + 0.5  # each is cut to whole microseconds
    assert found[OPEN_MEAN] == pytest.approx(mean_us / 1e6)
    # The 950th of 1,000 is the last of those in time; 951 real wake-ups are too few for a p99.
    assert found["open_latency_p95"] == pytest.approx(10.5e-6)
    assert "open_latency_p99" not in found


def test_without_a_late_wake_up_open_and_closed_loop_are_the_same() -> None:
    found = values(_of(_thread({5: 300, 20: 90, 999: 10})))
    assert (found["periods"], found["late_periods"]) == (400, 0)
    assert found["open_latency_p50"] == pytest.approx(5.5e-6)
    assert found["open_latency_p95"] == pytest.approx(20.5e-6)
    assert found[OPEN_MEAN] == pytest.approx((5 * 300 + 20 * 90 + 999 * 10) / 400 / 1e6 + 0.5e-6)


@given(
    st.dictionaries(st.integers(0, 200_000), st.integers(1, 1000), min_size=1, max_size=40),
    st.integers(100, 20_000),
)
def test_periods_are_the_wake_ups_and_what_each_of_them_hid(
    wakeups: dict[int, int], interval_us: int
) -> None:
    requests = every_period(wakeups, interval_us)
    hidden = sum(count * (us // interval_us) for us, count in wakeups.items())
    assert sum(requests.values()) == sum(wakeups.values()) + hidden
    # And one by one, as a load would have asked that nothing holds up.
    waited: Counter[int] = Counter()
    for latency_us, count in wakeups.items():
        while latency_us >= 0:
            waited[latency_us] += count
            latency_us -= interval_us
    assert requests == waited


def test_a_percentile_takes_real_wake_ups() -> None:
    """METHOD 16: 1,000 periods of which one stall hid 900 are no 1,000 samples."""
    stalled = _of(_thread({10: 99, 900_500: 1}))
    assert values(stalled)["periods"] == 1000
    assert "open_latency_p95" not in values(stalled)
    assert "400 wake-ups" in reasons(stalled)["open_latency_p95"]
    enough = values(_of(_thread({10: 399, 900_500: 1})))
    assert enough["open_latency_p95"] > 0.8


def test_one_wake_up_beyond_each_threads_histogram_has_the_threads_maximum() -> None:
    found = values(_of(_thread({10: 998}, 1, 2500), _thread({10: 990}, 1, 9500)))
    assert found["periods"] == (998 + 3) + (990 + 10)
    assert found["late_periods"] == pytest.approx((2 + 9) / 2001)


def test_with_more_beyond_a_histogram_nothing_is_put_back_and_the_reason_says_why() -> None:
    found = _of(_thread({10: 990}), _thread({10: 988}, 2, 90_000))
    assert [type(reading) for reading in found] == [Unavailable] * len(METRICS)
    assert set(reasons(found)) == set(METRICS)
    assert all("raise 'histogram_us'" in reason for reason in reasons(found).values())


def test_a_wake_up_that_no_trial_has_is_refused_and_takes_no_memory() -> None:
    with pytest.raises(BrokenError, match="1000000000000 us late"):
        _of(_thread({10: 999}, 1, 10**12))


@pytest.mark.parametrize(("shape", "scale"), [(4.0, 1.0), (2.0, 3.0), (9.0, 0.5), (1.0, 2.0)])
def test_what_cutting_does_to_a_mean_lies_within_half_its_bin(shape: float, scale: float) -> None:
    """`bin_width` of a mean is a microsecond's share of the fullest bin: whole microseconds of
    latencies that scatter over some of them still have the right mean."""
    drawn = np.random.default_rng(1).gamma(shape, scale, 200_000)
    by_latency = dict(zip(*np.unique(drawn.astype(int), return_counts=True), strict=True))
    found = values(_of(_thread({int(us): int(n) for us, n in by_latency.items()})))
    half_us = found[OPEN_MEAN] * found[f"bin_width{{of={OPEN_MEAN}}}"] / 2 * 1e6
    assert half_us < 0.5
    assert abs(found[OPEN_MEAN] * 1e6 - drawn.mean()) <= half_us


def test_where_all_share_a_bin_the_mean_is_as_coarse_as_the_bin() -> None:
    found = values(_of(_thread({7: 1000})))
    assert found[f"bin_width{{of={OPEN_MEAN}}}"] == pytest.approx(1 / 7.5)


def test_the_recorded_run_has_the_periods_of_its_trials() -> None:
    """2 s at 1 ms are 2,000 periods; a stall at the end of a trial hides some after it."""
    found = Counter()
    for folder in RunFolder(EXAMPLE).trial_folders():
        if folder.has("files/cyclictest.json"):
            made = list(CYCLICTEST.parse(folder))
            cycles = sum(
                entry["cycles"]
                for entry in json.loads(folder.read_text("files/cyclictest.json"))[
                    "thread"
                ].values()
            )
            periods = values(made)["periods"]
            assert values(made)["late_periods"] == pytest.approx(1 - cycles / periods)
            found[periods] += 1
    assert found == {2000: 75, 2001: 1, 2002: 1, 2003: 1, 2006: 1, 2010: 1}


def test_cyclictest_goes_by_the_interval_that_it_was_run_with(tmp_path: Path) -> None:
    """Recorded at 200 us on a busy machine, with a wake-up of 1,440 us."""
    text = recorded("cyclictest-2.40-2-threads.json")
    folder = trial(tmp_path, files__cyclictest_json=text)
    threads = json.loads(text)["thread"].values()
    hidden = sum(int(us) // 200 * n for t in threads for us, n in t["histogram"].items())
    assert hidden > 0
    found = values(list(CYCLICTEST.parse(folder)))
    assert found["periods"] == sum(t["cycles"] for t in threads) + hidden


@pytest.mark.parametrize("line", ["cyclictest -q", "cyclictest -q --interval=0 -h 400"])
def test_without_an_interval_no_period_is_known(tmp_path: Path, line: str) -> None:
    report = {**json.loads(recorded("cyclictest-2.40-1-thread.json")), "cmdline:": line}
    folder = trial(tmp_path, files__cyclictest_json=json.dumps(report))
    assert "no interval" in reasons(list(CYCLICTEST.parse(folder)))[OPEN_MEAN]


@pytest.mark.parametrize("text", ["", "{}", recorded("cyclictest-2.40-1-thread.json")[:900]])
def test_output_that_is_not_whole_is_an_error_that_names_the_file(
    tmp_path: Path, text: str
) -> None:
    with pytest.raises(BrokenError, match=r"files/cyclictest\.json"):
        list(CYCLICTEST.parse(trial(tmp_path, files__cyclictest_json=text)))


def test_a_maximum_below_a_bin_is_no_report_of_cyclictest(tmp_path: Path) -> None:
    report = json.loads(recorded("cyclictest-2.40-1-thread.json"))
    report["thread"]["0"]["max"] = 1
    folder = trial(tmp_path, files__cyclictest_json=json.dumps(report))
    with pytest.raises(BrokenError, match="a maximum of 1 us"):
        list(CYCLICTEST.parse(folder))


def _timerlat(folder: Path, text: str, **parameters: int) -> list[Reading]:
    return list(TIMERLAT.with_parameters(parameters).parse(trial(folder, stdout_txt=text)))


def _rtla(irq: int, thread: int, over: int, longest: int) -> str:
    return (
        "# RTLA timerlat histogram\n# Time unit is microseconds (us)\n# Duration:   0 00:00:01\n"
        f"Index   IRQ-000   Thr-000\n5       {irq}       0\n2500    0       {thread}\n"
        f"over:   0       {over}\ncount:  {irq}      {thread + over}\nmin:    5       2500\n"
        f"avg:    5       2500\nmax:    5       {longest}\n"
    )


def test_timerlat_skips_the_periods_that_its_threads_were_late_for(tmp_path: Path) -> None:
    found = values(_timerlat(tmp_path, _rtla(501, 500, 1, 60_500), interval_us=1000))
    assert found["periods"] == 3 * 500 + 61
    assert found["late_periods"] == pytest.approx((2 * 500 + 60) / 1561)


def test_timerlats_recorded_run_hides_how_long_its_longest_stalls_were(tmp_path: Path) -> None:
    text = recorded("rtla-6.1-timerlat-rt-tcg-guest.txt")
    assert "histogram_us" in reasons(_timerlat(tmp_path, text, interval_us=1000))[OPEN_MEAN]


def test_timerlat_without_its_interval_knows_no_period() -> None:
    found = reasons(list(rtla.periods(_rtla(501, 500, 1, 60_500), "x", "x", None)))
    assert "no interval" in found[OPEN_MEAN]


def test_those_that_put_periods_back_are_those_that_skip_them() -> None:
    """And are judged by what is so found, as far as they have a say in it."""
    by_mean = {name for name in checkers() if workload(name).primary == OPEN_MEAN}
    assert by_mean == SKIP_PERIODS
    making = {name for name in checkers() if OPEN_MEAN in workload(name).deciding}
    assert making == SKIP_PERIODS
