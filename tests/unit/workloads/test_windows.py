"""How sure a trial is of its own rate, held against what is known by hand and by simulation."""

import math
import random
from statistics import fmean, stdev

import pytest

from labctl.workloads.windows import Window, batch_errors
from tests.unit.workloads.trials import values


def errors(windows: list[Window]) -> dict[int, float]:
    found = values(list(batch_errors(windows, "iops", "log")))
    return {
        batches: found[f"batch_error{{batches={batches},of=iops}}"]
        for batches in (8, 4)
        if f"batch_error{{batches={batches},of=iops}}" in found
    }


def test_of_equal_windows_it_is_the_standard_error_of_the_batches_mean() -> None:
    rates = [90.0, 110.0, 95.0, 120.0, 101.0, 99.0, 108.0, 84.0]
    found = errors([Window(0.5, rate * 0.5) for rate in rates])
    assert found[8] == pytest.approx(stdev(rates) / math.sqrt(8) / fmean(rates))
    pairs = [fmean(rates[at : at + 2]) for at in range(0, 8, 2)]
    assert found[4] == pytest.approx(stdev(pairs) / 2 / fmean(rates))


def test_windows_of_other_lengths_at_one_rate_leave_no_error() -> None:
    found = errors([Window(seconds, 7 * seconds) for seconds in (1, 2, 3, 1, 5, 2, 2, 9, 1)])
    assert found == {8: pytest.approx(0, abs=1e-12), 4: pytest.approx(0, abs=1e-12)}


def test_it_is_what_trials_scatter_by_whatever_their_windows_length() -> None:
    """2,000 trials of runs that take random time for the same work."""
    rng = random.Random(5)
    trials = [[Window(rng.gammavariate(4, 0.25), 1.0) for _ in range(64)] for _ in range(2000)]
    rates = [64 / sum(w.seconds for w in trial) for trial in trials]
    told = math.sqrt(fmean(errors(trial)[4] ** 2 for trial in trials))
    assert told == pytest.approx(stdev(rates) / fmean(rates), rel=0.06)


def _correlated(rng: random.Random, phi: float, count: int) -> list[Window]:
    """Rates that forget their past by `phi` per window, around 1."""
    at, found = rng.gauss(0, 0.1), []
    for _ in range(count):
        found.append(Window(1.0, 1.0 + at))
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
        [Window(1.0, 5.0)] * 7,
        [Window(1.0, 0.0)] * 9,
        [Window(0.0, 5.0), *[Window(1.0, 5.0)] * 9],
        [Window(-1.0, 5.0), *[Window(1.0, 5.0)] * 9],
        [Window(math.nan, 5.0), *[Window(1.0, 5.0)] * 9],
        [Window(1.0, math.inf), *[Window(1.0, 5.0)] * 9],
        [Window(1.0, 1e300), *[Window(1.0, 5.0)] * 9],
    ],
)
def test_what_tells_no_error_gives_none(windows: list[Window]) -> None:
    assert errors(windows) == {}
