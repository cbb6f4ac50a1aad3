"""The BCa bootstrap beside t, and what is said when they disagree."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from labctl.analysis.bootstrap import bca, bootstrapped, disagreements
from labctl.analysis.cells import read_cells
from labctl.analysis.compare import comparisons
from labctl.analysis.design import read_design
from labctl.analysis.judge import judge
from labctl.analysis.model import Comparison, Judgement, SignKind
from labctl.analysis.verdicts import Licence
from tests.unit.analysis.alter import only, primaries, with_values
from tests.unit.synthetic import WORKLOADS, synthetic_run

ONE = {"sysbench-cpu": WORKLOADS["sysbench-cpu"]}


@pytest.mark.parametrize("alpha", [0.05, 0.0125])
def test_the_interval_is_that_of_scipy_within_the_luck_of_the_draw(alpha: float) -> None:
    """Skewed values, so that bias and acceleration matter: percentiles alone are 8 % off."""
    values = np.random.default_rng(5).lognormal(0, 1, 40)
    found = bca([[value] for value in values], alpha, 1)
    expected = stats.bootstrap(
        (values,), np.mean, confidence_level=1 - alpha, n_resamples=20_000, method="BCa", rng=1
    ).confidence_interval
    assert found is not None
    width = expected.high - expected.low
    assert found.low == pytest.approx(expected.low, abs=0.05 * width)
    assert found.high == pytest.approx(expected.high, abs=0.05 * width)


def test_the_same_seed_gives_the_same_interval_and_another_one_another() -> None:
    values = [[value] for value in np.random.default_rng(2).normal(size=25)]
    assert bca(values, 0.05, 7) == bca(values, 0.05, 7)
    assert bca(values, 0.05, 7) != bca(values, 0.05, 8)


def test_equal_values_have_no_interval() -> None:
    assert bca([[1.0]] * 20, 0.05, 1) is None


def test_boots_are_drawn_before_their_blocks() -> None:
    """Blocks that are alike within a boot say no more than one of them: drawn one by one they
    would make the interval half as wide."""
    means = np.random.default_rng(3).normal(size=20)
    shared = bca([[mean] * 4 for mean in means], 0.05, 1)
    alone = bca([[mean] for mean in means], 0.05, 1)
    one_by_one = bca([[mean] for mean in means for _ in range(4)], 0.05, 1)
    assert shared is not None
    assert alone is not None
    assert one_by_one is not None
    assert shared.high - shared.low == pytest.approx(alone.high - alone.low, rel=0.1)
    assert one_by_one.high - one_by_one.low < 0.6 * (shared.high - shared.low)


def test_boots_of_unequal_size_are_drawn_whole() -> None:
    """The mean of a resample is over the blocks that it has: of equal values it never moves."""
    found = bca([[1.0, 1.0, 1.0], [1.0], [1.0, 1.0], [2.0]], 0.05, 1)
    assert found is not None
    assert 1.0 <= found.low < found.high <= 2.0


def judged(blocks: int, boots: int) -> Judgement:
    return judge(synthetic_run(blocks=blocks, boots=boots, workloads=ONE, primary_only=True))


def test_only_primaries_with_many_units_have_a_bootstrap() -> None:
    many = judged(20, 20)
    assert all(c.bootstrap_low is not None for c in primaries(many))
    assert only(many, "native+fifo", "native", "events_per_s").bootstrap_low is None
    assert all(c.bootstrap_low is None for c in primaries(judged(19, 19)))
    assert all(c.bootstrap_low is None for c in primaries(judged(20, 5)))
    assert all(c.bootstrap_low is not None for c in primaries(judged(40, 20)))


def test_it_agrees_with_t_where_noise_is_normal() -> None:
    found = primaries(judged(30, 30))
    for c in found:
        assert c.low is not None
        assert c.high is not None
        assert c.bootstrap_low == pytest.approx(c.low, rel=0.02)
        assert c.bootstrap_high == pytest.approx(c.high, rel=0.02)
    assert list(disagreements(found)) == []


def test_one_absurd_block_makes_them_disagree() -> None:
    run = with_values(
        synthetic_run(blocks=20, boots=20, workloads=ONE, primary_only=True, noise=0.002),
        "pinned",
        "events_per_s",
        lambda block, old: 40 * old if block == 7 else old * 1.35,
    )
    (sign,) = [s for s in judge(run).signs if s.kind is SignKind.BOOTSTRAP]
    assert sign.tuning == "pinned"
    assert "more blocks" in sign.sentence


def comparison(low: float, high: float) -> Comparison:
    c = only(judged(20, 20), "pinned", "baseline", "events_per_s")
    return replace(c, low=0.98, high=1.02, bootstrap_low=low, bootstrap_high=high)


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.98, 1.02, None),
        (1.001, 1.02, "excludes no effect"),
        (0.98, 1.06, "reaches beyond the threshold"),
        (0.995, 1.005, "0.25 times as wide"),
        (0.975, 1.025, "1.3 times as wide"),
        (0.985, 1.015, None),
    ],
)
def test_what_they_disagree_about_is_said(low: float, high: float, said: str | None) -> None:
    found = list(disagreements([comparison(low, high)]))
    if said is None:
        assert found == []
    else:
        assert said in found[0].sentence


def test_ties_in_bins_are_not_drawn_from() -> None:
    """Where the bins' floor is all the spread there is, resampling would make certainty of it."""
    run = synthetic_run(blocks=20, boots=20, workloads=ONE, primary_only=True)
    design, cells = read_design(run), read_cells(run)
    licences = dict.fromkeys(design.places, Licence(judges=True, reach=0.0, sees=True))
    one = next(c for c in comparisons(design, cells, licences) if c.is_primary)
    tied = replace(one, effects=replace(one.effects, floor=one.effects.spread.sd))
    plain, coarse = bootstrapped([one, tied], seed=1)
    assert plain.comparison.bootstrap_low is not None
    assert coarse.comparison.bootstrap_low is None
