"""Pooled hosts: against statsmodels' recorded answers, and by what each formula has to hold."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from labctl.analysis.effects.intervals import Floats
from labctl.analysis.hosts.pool import (
    Hosts,
    apart,
    differ,
    groups_differ,
    holm_adjusted,
    knapp_hartung,
    moderated,
    pool,
    tau_squared,
)

ORACLE = json.loads(
    (Path(__file__).parent / "fixtures/pooled-statsmodels-0.15.0.json").read_text()
)["cases"]


def _hosts(estimates: Any, errors: Any, units: Any = 10) -> Hosts:
    y = np.array(estimates, dtype=float)
    return Hosts(y, np.broadcast_to(errors, y.shape) + 0.0, np.broadcast_to(units, y.shape) + 0.0)


def _of_case(case: dict[str, Any]) -> Hosts:
    return _hosts(case["estimates"], case["errors"], case["units"])


@pytest.mark.parametrize("case", ORACLE, ids=range(len(ORACLE)))
def test_mean_and_spread_between_hosts_are_those_of_statsmodels(case: dict[str, Any]) -> None:
    hosts = _of_case(case)
    variances = hosts.errors**2
    tau2 = tau_squared(hosts.estimates, variances)
    mean, error = knapp_hartung(hosts.estimates, variances, tau2)
    assert tau2 == pytest.approx(case["tau2"], rel=1e-4, abs=1e-9)
    assert mean == pytest.approx(case["mean"], rel=1e-6)
    # Its HKSJ error may be smaller than the plain one; ours is never.
    assert error == pytest.approx(max(case["hksj_error"], case["plain_error"]), rel=1e-5)


@pytest.mark.parametrize("case", ORACLE, ids=range(len(ORACLE)))
def test_brown_and_forsythes_f_is_that_of_statsmodels(case: dict[str, Any]) -> None:
    test = differ(_of_case(case))
    assert test is not None
    assert test.f == pytest.approx(case["f_star"])
    assert [test.degrees, test.degrees_within] == pytest.approx(case["f_star_degrees"])
    assert test.p == pytest.approx(case["f_star_p"], abs=1e-12)


def test_the_oracle_has_hosts_that_differ_and_hosts_that_dont() -> None:
    assert {case["tau2"] > 0 for case in ORACLE} == {True, False}


def test_what_is_pooled_solves_the_generalized_q_statistic() -> None:
    hosts = _hosts([0.1, 0.3, -0.2, 0.5, 0.0], [0.02, 0.05, 0.03, 0.04, 0.02])
    tau2 = tau_squared(hosts.estimates, hosts.errors**2)
    weights = 1 / (hosts.errors**2 + tau2)
    mean = weights @ hosts.estimates / weights.sum()
    assert weights @ (hosts.estimates - mean) ** 2 == pytest.approx(4)


def test_a_prediction_is_wider_than_the_mean_and_has_two_degrees_less_than_hosts() -> None:
    hosts = _hosts([0.1, 0.3, -0.2, 0.5, 0.0], 1e-6)
    found = pool(hosts, 0.05)
    sd, k = float(np.std(hosts.estimates, ddof=1)), 5
    assert found.tau == pytest.approx(sd, rel=1e-6)
    assert found.high - found.mean == pytest.approx(stats.t.ppf(0.975, k - 1) * sd / math.sqrt(k))
    reach = stats.t.ppf(0.975, k - 2) * sd * math.sqrt(1 + 1 / k)
    assert found.new_high - found.mean == pytest.approx(reach)
    assert found.share == pytest.approx(1.0)


def test_the_prediction_has_a_confidence_of_its_own() -> None:
    hosts = _hosts([0.1, 0.12, 0.09, 0.11, 0.3], 0.01)
    wide, narrow = pool(hosts, 0.001, 0.05), pool(hosts, 0.05, 0.05)
    assert wide.high > narrow.high
    assert wide.new_high == narrow.new_high


@pytest.mark.parametrize("count", [0, 1, 2])
def test_fewer_than_three_hosts_are_not_pooled(count: int) -> None:
    with pytest.raises(ValueError, match="can't be pooled"):
        pool(_hosts([0.1] * count, 0.01), 0.05)


@pytest.mark.parametrize(("error", "units"), [(0.0, 10), (0.01, 1), (math.nan, 10)])
def test_a_host_without_a_spread_is_refused(error: float, units: float) -> None:
    with pytest.raises(ValueError, match="without a standard error"):
        _hosts([0.1, 0.2, 0.3], error, units)


def test_variances_that_scatter_by_chance_are_drawn_to_their_mean() -> None:
    errors = np.linspace(0.01, 0.03, 50)  # two boots of one variance scatter far more
    variances, degrees = moderated(_hosts(np.zeros(50), errors, 2))
    assert np.ptp(variances) == 0
    assert variances[0] == pytest.approx(float(np.mean(errors**2)))
    assert degrees[0] == 50


def test_variances_that_differ_indeed_stay_apart() -> None:
    rng = np.random.default_rng(2)
    truth = np.repeat([0.01, 0.1], 25)
    errors = truth * np.sqrt(rng.chisquare(9, 50) / 9)
    variances, degrees = moderated(_hosts(np.zeros(50), errors, 10))
    assert np.all(variances[25:] > 10 * np.median(variances[:25]))
    assert 9 < degrees[0] < 12


def _apart(hosts: Hosts) -> tuple[Floats, Floats]:
    found = apart(hosts)
    assert found is not None
    return found


def test_a_host_apart_has_the_least_p_and_is_not_in_what_it_is_held_against() -> None:
    estimates = [0.10, 0.11, 0.09, 0.105, -0.60]
    residuals, p = _apart(_hosts(estimates, 0.01))
    assert int(np.argmin(p)) == 4
    assert residuals[4] < -10
    # With the far host among the others, these are anything but apart.
    assert np.all(p[:4] > 0.5)


def test_a_host_apart_is_tested_as_one_more_value_of_the_others_distribution() -> None:
    estimates = np.array([0.1, 0.3, -0.2, 0.5, 0.0, 0.9])
    _, p = _apart(_hosts(estimates, 1e-6))
    others = estimates[:5]
    t = (0.9 - others.mean()) / (others.std(ddof=1) * math.sqrt(1 + 1 / 5))
    assert p[5] == pytest.approx(2 * stats.t.sf(t, 4), rel=1e-5)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_of_three_hosts_or_fewer_none_is_apart(count: int) -> None:
    assert apart(_hosts([5.0, 0.1, 0.1][:count], 0.01)) is None


def test_many_hosts_are_left_out_in_parts_that_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hosts = _hosts(np.random.default_rng(3).normal(0, 0.1, 37), 0.03)
    whole = _apart(hosts)
    monkeypatch.setattr("labctl.analysis.hosts.pool._CHUNK", 5)
    assert np.allclose(_apart(hosts), whole, rtol=1e-9)


def test_hosts_of_one_mean_do_not_differ_and_others_do() -> None:
    alike, unlike = _hosts([0.1, 0.1, 0.1], 0.02), _hosts([0.1, 0.2, 0.3], 0.005)
    found = [test.p for hosts in (alike, unlike) if (test := differ(hosts))]
    assert found[0] == pytest.approx(1.0)
    assert found[1] < 1e-6
    assert differ(_hosts([0.1], 0.02)) is None


def test_groups_are_held_against_each_other_with_the_host_as_the_unit() -> None:
    rng = np.random.default_rng(4)
    values = rng.normal(0, 0.05, 20)
    codes = np.repeat([0, 1], 10)
    same = groups_differ(values, codes)
    other = groups_differ(values + 0.5 * codes, codes)
    assert same is not None
    assert other is not None
    assert same.p > 0.05
    assert other.p < 1e-6
    # Of two groups of equal size F* is the square of Welch's t.
    t = stats.ttest_ind(values[:10], values[10:], equal_var=False)
    assert same.f == pytest.approx(t.statistic**2)
    assert same.p == pytest.approx(t.pvalue)


def test_groups_of_one_host_take_no_part() -> None:
    assert groups_differ(np.array([0.1, 0.2, 5.0]), np.array([0, 0, 1])) is None


def test_holms_adjusted_values_are_those_that_may_be_held_to_alpha() -> None:
    found = holm_adjusted(np.array([0.01, 0.04, 0.03, 0.005]))
    assert found.tolist() == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm_adjusted(np.array([])).tolist() == []
