"""Whether guest and host count the same seconds."""

from __future__ import annotations

import pytest

from labctl.base.channel import ClockReading
from labctl.run.trials.window_checks import LIMIT_PPM, clock_problem, clock_rates

S = 1_000_000_000


def readings(*, seconds: float, ppm: float, took_ns: int) -> dict[str, float]:
    """Two readings, `took_ns` each from question to answer, of a clock that runs `ppm` fast."""
    first = ClockReading(0, 5 * S, took_ns)
    gone = round(seconds * S)
    machine = 5 * S + round(gone * (1 + ppm / 1e6))
    return clock_rates(first, ClockReading(gone, machine, gone + took_ns))


def test_equal_clocks_differ_by_nothing() -> None:
    found = readings(seconds=10, ppm=0, took_ns=0)
    assert found == {"seconds": 10, "ppm": 0, "uncertainty_ppm": 0}
    assert clock_problem(found) is None


@pytest.mark.parametrize("ppm", [-250.0, 250.0])
def test_a_clock_that_runs_wrong_is_told_with_its_sign(ppm: float) -> None:
    found = readings(seconds=10, ppm=ppm, took_ns=1000)
    assert found["ppm"] == pytest.approx(ppm, abs=0.01)
    assert f"runs {ppm:+.0f} ppm" in str(clock_problem(found))


def test_the_limit_itself_is_allowed() -> None:
    assert clock_problem({"ppm": LIMIT_PPM, "uncertainty_ppm": 0.0}) is None
    assert clock_problem({"ppm": LIMIT_PPM + 0.1, "uncertainty_ppm": 0.0}) is not None


def test_slow_answers_make_unsure_and_never_guilty() -> None:
    # 5 ms each over 10 s: the rate may be off by 500 ppm either way.
    found = readings(seconds=10, ppm=400, took_ns=5_000_000)
    assert found["uncertainty_ppm"] == pytest.approx(500)
    assert clock_problem(found) is None


def test_the_same_answers_over_a_longer_time_tell_more() -> None:
    found = readings(seconds=100, ppm=400, took_ns=5_000_000)
    assert found["uncertainty_ppm"] == pytest.approx(50)
    assert clock_problem(found) is not None
