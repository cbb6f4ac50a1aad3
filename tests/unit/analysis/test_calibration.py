"""Judgements of simulated runs, whose truth is known: are they right as often as they say?

Limits are such that a judgement that keeps its promise fails a test under fewer than one seed in a
thousand. `make calibrate` prints the same numbers of more runs and of more kinds of noise, and
docs/calibration.md what it printed.
"""

from dataclasses import replace
from math import log, sqrt

import pytest
from scipy import stats

from labctl.analysis.judge import judge
from labctl.analysis.verdicts.decide import decide
from labctl.base.stopping import Stopping, looks, until_width
from tools.calibrate.bias import biased
from tools.calibrate.coverage import SETTINGS, coverage
from tools.calibrate.false_verdicts import A_A, LIMIT, SCENARIOS, Scenario, false_verdicts
from tools.calibrate.harmful import LIMIT as MOST_HARMFUL
from tools.calibrate.harmful import SCENARIOS as HARMFUL
from tools.calibrate.harmful import of_loss, recommended
from tools.calibrate.power import power
from tools.calibrate.sensitivity import LOSSES, sensitivity
from tools.calibrate.sweeps import simulate

SEED = 20
RUNS = 2000


@pytest.mark.parametrize("blocks", [3, 10])
def test_a_judgement_says_what_was_decided(blocks: int) -> None:
    """What is simulated here leaves out what else a judgement says, which takes longer."""
    for run in simulate(replace(A_A, blocks=blocks), runs=3, seed=SEED, name="judged"):
        judgement, decided = judge(run), decide(run)
        assert judgement.comparisons == decided.comparisons
        assert judgement.known_loss == tuple(of.known_loss for of in decided.checked.values())
        assert judgement.control == tuple(of.control for of in decided.checked.values())


@pytest.mark.parametrize("blocks", [3, 5, 10, 30])
def test_where_the_assumptions_hold_intervals_of_95_percent_hold_the_truth_in_93_to_97(
    blocks: int,
) -> None:
    """2,000 intervals of exactly 95 % are outside by chance once in 25,000 times (4.1 sigma)."""
    found = coverage("normal", blocks, runs=RUNS, seed=SEED)
    for rate in (found.deciding, found.exploratory):
        assert rate.n == RUNS
        assert 0.93 <= rate.share <= 0.97


def test_arms_of_unequal_variance_leave_the_intervals_as_good() -> None:
    found = coverage("unequal variances", 10, runs=RUNS, seed=SEED)
    for rate in (found.deciding, found.exploratory):
        assert 0.93 <= rate.share <= 0.97


@pytest.mark.parametrize("blocks", [3, 10])
@pytest.mark.parametrize("kind", [name for name, s in SETTINGS.items() if s.least == 0.90])
def test_where_they_do_not_hold_intervals_of_95_percent_still_hold_it_in_90(
    kind: str, blocks: int
) -> None:
    """The worst of them holds it in 92.3 %, which 2,000 runs can tell from 90 (3.9 sigma); most
    hold it in 94 and more, for which 600 are enough."""
    runs = RUNS if kind.startswith("arms recalling") else 600
    found = coverage(kind, blocks, runs=runs, seed=SEED)
    for rate in (found.deciding, found.exploratory):
        assert rate.n == runs
        assert rate.share >= 0.90


SMALL = replace(A_A, effects={"one": 1.0, "other": 1.0}, conditions=1)
"""Four tests: what is judged several times in each run is kept small."""


@pytest.mark.parametrize("name", ["equal variances", "unequal variances", "2 blocks per boot"])
def test_few_runs_of_equal_arms_claim_a_difference(name: str) -> None:
    found = false_verdicts(SCENARIOS[name], runs=RUNS, seed=SEED)
    assert found.claims.n == RUNS
    assert found.claims.upper <= LIMIT


def test_few_sound_runs_open_with_a_control_that_failed() -> None:
    """Eight places at 5 % each would be a third of the runs."""
    found = false_verdicts(SCENARIOS["eight places"], runs=600, seed=SEED)
    assert found.failed.lower_limit(0.999) <= 0.05
    assert found.claims.upper <= LIMIT


def test_a_bias_that_the_control_leaves_open_seldom_becomes_a_claim() -> None:
    """With a reach of 95 % at each place it did in one run of five."""
    found = biased("8 places, 1 tuning", 2, runs=300, seed=SEED)
    assert found.claims.lower_limit(0.999) <= 0.05


@pytest.mark.parametrize("rule", [until_width(0.04, 20), looks((10, 14))])
def test_a_run_that_may_end_early_claims_no_more(rule: Stopping) -> None:
    sweep = replace(SMALL, stopping=rule, blocks=rule.most_blocks)
    found = false_verdicts(Scenario(rule.words, sweep, ""), runs=600, seed=SEED)
    assert 10 < found.blocks < rule.most_blocks
    assert found.claims.lower_limit(0.999) <= 0.05


def test_the_intervals_of_a_family_all_hold_the_truth_in_about_95_of_100_runs() -> None:
    """With little noise the margin holds nothing back: nearly every interval that excludes no
    effect is a verdict, and the rate comes so near 5 % that 2,000 runs can't tell it from 6."""
    sweep = replace(SMALL, sd=0.005)
    found = false_verdicts(Scenario("a small study", sweep, ""), runs=4000, seed=SEED)
    for rate in (found.claims, found.misses):
        assert rate.lower_limit(0.9995) <= 0.05
    # Intervals that never miss are too wide to find anything.
    assert found.misses.limit(0.9995) >= 0.045


@pytest.mark.parametrize(("noise", "blocks"), [(0.02, 10), (0.05, 10), (0.05, 20)])
def test_the_handicap_is_found_as_often_as_the_noncentral_t_says(noise: float, blocks: int) -> None:
    shift = log(0.95) / (noise / sqrt(blocks))
    expected = stats.nct.cdf(stats.t.ppf(0.05, blocks - 1), blocks - 1, shift)
    found = power(0.0, noise, blocks, runs=500, seed=SEED).known_loss
    assert found.n == 1000
    assert found.lower_limit(0.9999) <= expected <= found.limit(0.9999)


def test_a_large_effect_in_the_noise_of_a_small_host_is_found_nearly_always() -> None:
    """A factor of 2.7 where a block's effect has a standard deviation of 0.2."""
    assert power(1.7, 0.2, 10, runs=200, seed=SEED).improves.share >= 0.95


def test_a_tuning_that_is_off_by_the_margin_is_seldom_called_equivalent() -> None:
    """Each test may err in one case of eighty: one of forty is four sigma beyond."""
    found = power(0.05, 0.02, 20, runs=500, seed=SEED)
    assert found.equivalent.share <= 0.025
    assert power(0.0, 0.02, 20, runs=100, seed=SEED).equivalent.share >= 0.80


@pytest.mark.parametrize(
    ("name", "sd"),
    [
        ("three at the margin", 0.03),
        ("three at the margin", 0.3),
        ("three at the margin", 1.2),
        ("six at the margin", 0.3),
        ("in one of three", 0.3),
        ("five boots", 0.3),
        ("unequal variances", 1.2),
        ("skewed", 0.3),
    ],
)
def test_few_runs_recommend_a_tuning_that_is_worse_by_the_margin(name: str, sd: float) -> None:
    """Where a wrong recommendation is likeliest: each tuning surely gains in one workload, and is
    worse in another by exactly what the study calls harmful."""
    found = recommended(HARMFUL[name], sd, runs=300, seed=SEED)
    assert found.harmful.n == 300
    assert found.harmful.upper <= MOST_HARMFUL


def test_a_tuning_that_does_no_harm_is_recommended_where_the_noise_allows_it() -> None:
    assert of_loss(1.0, 0.1, runs=200, seed=SEED).any.share >= 0.8
    assert of_loss(0.7, 0.1, runs=200, seed=SEED).any.share >= 0.8


@pytest.mark.parametrize("loss", list(LOSSES))
@pytest.mark.parametrize("noise", [0.02, 0.03])
def test_whatever_the_known_loss_shows_as_few_unequal_tunings_are_called_equivalent(
    loss: str, noise: float
) -> None:
    """Off by the margin: each of four tests may err in one case of eighty."""
    found = sensitivity("normal", 0.05, loss, noise, runs=300, seed=SEED).equivalent
    assert found.n == 1200
    assert found.lower_limit(0.999) <= 0.0125


def test_a_known_loss_far_beyond_the_margin_lets_a_noisy_run_call_little_equivalent() -> None:
    """Where a difference of the margin would hardly be seen; where it would be, nothing changes."""
    noisy = sensitivity("normal", 0.0, "×3.3", 0.04, runs=200, seed=SEED)
    assert noisy.equivalent.share < 0.6 * noisy.found_alone.share
    quiet = sensitivity("normal", 0.0, "×3.3", 0.01, runs=200, seed=SEED)
    assert quiet.equivalent == quiet.found_alone
    about = sensitivity("normal", 0.0, "5 %", 0.04, runs=200, seed=SEED)
    assert about.equivalent.share > 0.95 * about.found_alone.share > 0.3
