"""How sure a trial is of its own rate, held against what is known by hand and by simulation."""

import math
import random
import re
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev

import pytest

from labctl.workloads.registry import workload
from labctl.workloads.setting import Setting
from labctl.workloads.windows import RateWindow, batch_errors
from labctl.workloads.workload import Workload
from tests.unit.workloads.trials import recorded, trial, values

FIO_RANDOM = workload("fio-random")
PERF_SCHED_PIPE = workload("perf-sched-pipe")
RANDOM_ACCESS = workload("random-access")
SYSBENCH_CPU = workload("sysbench-cpu")
SYSBENCH_MEMORY = workload("sysbench-memory")


def errors(windows: list[RateWindow]) -> dict[int, float]:
    found = values(list(batch_errors(windows, "iops", "log")))
    return {
        batches: found[f"batch_error{{batches={batches},of=iops}}"]
        for batches in (8, 4)
        if f"batch_error{{batches={batches},of=iops}}" in found
    }


def test_of_equal_windows_it_is_the_standard_error_of_the_batches_mean() -> None:
    rates = [90.0, 110.0, 95.0, 120.0, 101.0, 99.0, 108.0, 84.0]
    found = errors([RateWindow(0.5, rate * 0.5) for rate in rates])
    assert found[8] == pytest.approx(stdev(rates) / math.sqrt(8) / fmean(rates))
    pairs = [fmean(rates[at : at + 2]) for at in range(0, 8, 2)]
    assert found[4] == pytest.approx(stdev(pairs) / 2 / fmean(rates))


def test_windows_of_other_lengths_at_one_rate_leave_no_error() -> None:
    found = errors([RateWindow(seconds, 7 * seconds) for seconds in (1, 2, 3, 1, 5, 2, 2, 9, 1)])
    assert found == {8: pytest.approx(0, abs=1e-12), 4: pytest.approx(0, abs=1e-12)}


def test_it_is_what_trials_scatter_by_whatever_their_windows_length() -> None:
    """2,000 trials of runs that take random time for the same work."""
    rng = random.Random(5)
    trials = [[RateWindow(rng.gammavariate(4, 0.25), 1.0) for _ in range(64)] for _ in range(2000)]
    rates = [64 / sum(w.seconds for w in trial) for trial in trials]
    told = math.sqrt(fmean(errors(trial)[4] ** 2 for trial in trials))
    assert told == pytest.approx(stdev(rates) / fmean(rates), rel=0.06)


def _correlated(rng: random.Random, phi: float, count: int) -> list[RateWindow]:
    """Rates that forget their past by `phi` per window, around 1."""
    at, found = rng.gauss(0, 0.1), []
    for _ in range(count):
        found.append(RateWindow(1.0, 1.0 + at))
        at = phi * at + math.sqrt(1 - phi**2) * rng.gauss(0, 0.1)
    return found


def test_windows_that_resemble_their_neighbours_hide_less_error_from_long_batches() -> None:
    rng = random.Random(6)
    trials = [_correlated(rng, 0.7, 64) for _ in range(1500)]
    truth = stdev(fmean(w.operations for w in trial) for trial in trials)
    long, short = (
        math.sqrt(fmean(errors(trial)[batches] ** 2 for trial in trials)) for batches in (4, 8)
    )
    naive = math.sqrt(fmean(stdev(w.operations for w in t) ** 2 / 64 for t in trials))
    assert naive < 0.5 * truth
    assert short < long < truth
    assert long == pytest.approx(truth, rel=0.1)


@pytest.mark.parametrize(
    "windows",
    [
        [],
        [RateWindow(1.0, 5.0)] * 7,
        [RateWindow(1.0, 0.0)] * 9,
        [RateWindow(0.0, 5.0), *[RateWindow(1.0, 5.0)] * 9],
        [RateWindow(-1.0, 5.0), *[RateWindow(1.0, 5.0)] * 9],
        [RateWindow(math.nan, 5.0), *[RateWindow(1.0, 5.0)] * 9],
        [RateWindow(1.0, math.inf), *[RateWindow(1.0, 5.0)] * 9],
        [RateWindow(1.0, 1e300), *[RateWindow(1.0, 5.0)] * 9],
    ],
)
def test_what_tells_no_error_gives_none(windows: list[RateWindow]) -> None:
    assert errors(windows) == {}


CPU = "sysbench-1.0.20-windows-tcg-guest.txt"
MEMORY = "sysbench-1.0.20-memory-windows-tcg-guest.txt"
ACCESS = "sysbench-1.0.20-random-access-windows-tcg-guest.txt"


@pytest.mark.parametrize(
    ("program", "name"),
    [(SYSBENCH_CPU, CPU), (SYSBENCH_MEMORY, MEMORY), (RANDOM_ACCESS, ACCESS)],
)
def test_sysbench_tells_each_second_of_a_trial(
    tmp_path: Path, program: Workload, name: str
) -> None:
    """Ten seconds, recorded in an emulated guest: the errors are those of the printed rates."""
    text = recorded(name)
    printed = re.findall(r"^\[ \d+s \] (?:thds: 1 [et]ps: )?([\d.]+)", text, re.M)
    assert len(printed) == 10
    found = values(list(program.parse(trial(tmp_path, stdout_txt=text))))
    windows = [RateWindow(1.0, float(rate)) for rate in printed]
    expected = values(list(batch_errors(windows, "events_per_s", "stdout.txt")))
    assert {k: v for k, v in found.items() if k.startswith("batch_error")} == expected
    assert len(expected) == 2


@pytest.mark.parametrize("program", [SYSBENCH_CPU, SYSBENCH_MEMORY, RANDOM_ACCESS])
def test_sysbench_is_asked_for_each_second_of_a_trial_alone(program: Workload) -> None:
    """A warm-up window and a count of instructions have no use for it."""
    parameters = program.check_parameters({})
    setting = Setting(parameters=parameters, vcpus=1, duration_s=10)
    assert "--report-interval=1" in program.command(setting).argv
    assert "--report-interval=1" not in program.warmup_command(setting, 0.3, 50.0).argv
    exact = program.exact_command(setting, 50)
    assert exact is None or "--report-interval=1" not in exact.argv


def test_fio_logs_its_windows_by_their_own_lengths(tmp_path: Path) -> None:
    """One of them lasted 544 ms where 303 were asked for: a guest's CPU was elsewhere."""
    log = recorded("fio-3.33-randread-windows-tcg-guest.log")
    ends = [0, *(int(line.split(",")[0]) for line in log.splitlines())]
    rates = [int(line.split(",")[1]) for line in log.splitlines()]
    seconds = [(after - before) / 1000 for before, after in pairwise(ends)]
    windows = [RateWindow(s, rate * s) for s, rate in zip(seconds, rates, strict=True)]
    raw = trial(
        tmp_path, files__fio_json=recorded("fio-3.33-randread.json"), files__windows_iops_log=log
    )
    found = values(list(FIO_RANDOM.parse(raw)))
    assert max(seconds) == pytest.approx(0.544)
    told = values(list(batch_errors(windows, "iops", "log")))
    assert told == {k: v for k, v in found.items() if k.startswith("batch_error")}
    assert len(told) == 2


def test_a_trial_of_fio_without_a_log_has_its_other_numbers(tmp_path: Path) -> None:
    """As trials that were measured before there was one."""
    raw = trial(tmp_path, files__fio_json=recorded("fio-3.33-randread.json"))
    found = values(list(FIO_RANDOM.parse(raw)))
    assert "iops" in found
    assert not any(key.startswith("batch_error") for key in found)


def test_runs_that_follow_each_other_are_windows(tmp_path: Path) -> None:
    text = recorded("perf-6.1-sched-pipe.txt")
    found = values(list(PERF_SCHED_PIPE.parse(trial(tmp_path, stdout_txt=text))))
    rates = PERF_SCHED_PIPE.window_rates(text, {})
    assert len(rates) >= 8
    spread = stdev(rates) / fmean(rates) / math.sqrt(len(rates))
    assert 0 < found["batch_error{batches=8,of=ops_per_s}"] < 4 * spread
