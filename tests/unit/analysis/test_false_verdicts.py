"""Simulated A/A runs: how often a run of equal arms claims a difference."""

import pytest
from scipy import stats

from labctl.analysis.judge import judge
from labctl.analysis.model import Verdict
from tests.unit.synthetic import synthetic_run

RUNS = 400


@pytest.mark.parametrize("noise", [0.03, 0.2])
def test_few_runs_of_equal_arms_claim_a_difference(noise: float) -> None:
    """Promised are at most 5 % (METHOD 19). The upper 95 % limit of the rate (Clopper-Pearson)
    of 400 runs that keep the promise exactly would lie at 7.2 %."""
    claims = {Verdict.IMPROVES, Verdict.REGRESSES}
    false = 0
    for seed in range(RUNS):
        run = synthetic_run(
            seed=seed,
            tunings=["baseline", "control", "handicap", "one", "other"],
            effects={"handicap": 0.95},
            noise=noise,
            primary_only=True,
        )
        false += any(c.verdict in claims for c in judge(run).comparisons)
    limit = stats.beta.ppf(0.95, false + 1, RUNS - false)
    assert limit <= 0.072


def test_the_simultaneous_intervals_of_equal_arms_rarely_exclude_no_effect() -> None:
    """The same promise for the intervals alone, without what control and margin hold back."""
    misses = 0
    for seed in range(RUNS):
        run = synthetic_run(
            seed=seed,
            tunings=["baseline", "control", "handicap", "one", "other"],
            effects={},
            noise=0.1,
            primary_only=True,
        )
        family = [c for c in judge(run).comparisons if c.verdict is not None]
        assert len(family) == 4
        misses += any(
            c.low is not None and c.high is not None and not c.low <= 1 <= c.high for c in family
        )
    low, high = (
        stats.beta.ppf(0.025, misses, RUNS - misses + 1),
        stats.beta.ppf(0.975, misses + 1, RUNS - misses),
    )
    # Not far fewer either: intervals that never miss are too wide to find anything.
    assert low <= 0.05
    assert high >= 0.03


def test_a_large_effect_in_the_noise_of_a_small_host_is_found_nearly_always() -> None:
    """A factor of 2.73 with a paired standard deviation of 0.2 (sqrt(3/2) x 0.163)."""
    found = 0
    for seed in range(100):
        run = synthetic_run(
            seed=seed,
            tunings=["baseline", "control", "handicap", "pinned", "pinned+fifo"],
            noise=0.163,
            primary_only=True,
        )
        verdicts = {
            c.verdict for c in judge(run).comparisons if c.tuning == "pinned+fifo" and c.verdict
        }
        found += Verdict.IMPROVES in verdicts
    assert found >= 95
