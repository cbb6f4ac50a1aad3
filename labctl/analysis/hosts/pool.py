"""Pool hosts' effects: random-effects mean, prediction, heterogeneity, hosts apart. Pure.

Each host gives an estimate on its scale (for example the logarithm of a ratio), its standard error
and its number of independent units (boots, else blocks): the basis of the run's own verdict. Host
i's true effect is theta_i = mu + u_i with u_i of variance tau², its estimate is theta_i plus an
error of variance v_i. Arrays are (hosts,); no host is removed for being apart.

The reasons for these methods: docs/decisions/pooling-hosts.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from labctl.analysis.effects.intervals import Floats

FEWEST_POOLED = 3
"""Fewest hosts that are pooled: the prediction interval has hosts - 2 degrees."""
FEWEST_UNITS = 2
"""Fewest boots of each host for the claim that hosts differ."""
_CHUNK = 256
"""Hosts that are left out in one step: memory grows with this times the number of hosts."""
_STEPS = 100
"""Limit on steps of Newton's method, which needs about ten."""


@dataclass(frozen=True, slots=True, eq=False)
class Hosts:
    """Hold hosts' estimates, their standard errors (above 0) and units (2 or more)."""

    estimates: Floats
    errors: Floats
    units: Floats

    def __post_init__(self) -> None:
        if not (np.all(self.errors > 0) and np.all(self.units >= FEWEST_UNITS)):
            raise ValueError("a host without a standard error, or with fewer than two units")

    def __len__(self) -> int:
        return len(self.estimates)

    def of(self, chosen: npt.NDArray[np.bool_]) -> Hosts:
        """Return some of the hosts."""
        return Hosts(self.estimates[chosen], self.errors[chosen], self.units[chosen])


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooled:
    """Hold a pooled effect on the hosts' scale. `low`, `high`: the interval of the mean; `new_low`,
    `new_high`: the prediction interval of an unmeasured host. `tau`: the standard deviation of true
    effects between hosts. `share`: I², the part of the spread of estimates that hosts' errors do
    not explain, 0 to 1."""

    hosts: int
    mean: float
    low: float
    high: float
    new_low: float
    new_high: float
    tau: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FTest:
    """Hold a test of equal means. `f`: its statistic; `p`: the chance of one as large if all means
    are equal."""

    f: float
    degrees: float
    degrees_within: float
    p: float


def moderated(hosts: Hosts) -> tuple[Floats, Floats]:
    """Return the variance of each host's estimate, moderated towards these hosts' typical one, and
    its degrees of freedom.

    Two boots give a very uncertain variance, and 1 / v_i would weigh hosts by chance. The variance
    of a unit, s_i² = v_i n_i, is assumed to come from a scaled inverse chi² whose scale and degrees
    d_0 are estimated from all hosts: G. K. Smyth, "Linear models and empirical Bayes methods",
    Statistical Applications in Genetics and Molecular Biology 3 (2004), section 6.2 and equation 6:
    (d_0 s_0² + d_i s_i²) / (d_0 + d_i), with d_0 + d_i degrees. If s_i² scatter no more than equal
    variances do, d_0 is infinite and all hosts have the mean of s_i², weighted by degrees.
    """
    degrees = hosts.units - 1
    squares = hosts.errors**2 * hosts.units
    if len(hosts) < FEWEST_POOLED:
        return hosts.errors**2, degrees
    logs = np.log(squares) - special.digamma(degrees / 2) + np.log(degrees / 2)
    excess = float(np.var(logs, ddof=1) - np.mean(special.polygamma(1, degrees / 2)))
    if excess <= 0:
        typical = float(degrees @ squares / degrees.sum())
        return typical / hosts.units, np.full(len(hosts), degrees.sum())
    prior = 2 * _inverse_trigamma(excess)
    typical = math.exp(
        float(np.mean(logs)) + float(special.digamma(prior / 2)) - math.log(prior / 2)
    )
    drawn = (prior * typical + degrees * squares) / (prior + degrees)
    return drawn / hosts.units, prior + degrees


def _inverse_trigamma(value: float) -> float:
    """Return the x with trigamma(x) = `value`, by Newton's method on 1 / trigamma (Smyth 2004,
    appendix)."""
    x = 0.5 + 1 / value
    for _ in range(_STEPS):
        at = float(special.polygamma(1, x))
        step = at * (1 - at / value) / float(special.polygamma(2, x))
        x += step
        if abs(step) <= 1e-10 * x:
            break
    return x


def tau_squared(estimates: Floats, variances: Floats) -> float:
    """Return the variance between hosts: the tau² at which the generalized Q statistic equals its
    hosts - 1 degrees of freedom, or 0 (R. C. Paule, J. Mandel, Journal of Research of the National
    Bureau of Standards 87, 1982, 377-385)."""
    everyone = np.ones((1, len(estimates)))
    return float(_tau_squared(estimates, variances, everyone)[0])


def _tau_squared(estimates: Floats, variances: Floats, chosen: Floats, start: float = 0) -> Floats:
    """Return tau² for each row of `chosen` (rows, hosts; 1 for a host that takes part, else 0).

    Newton's method: Q is convex and decreasing, so from any `start` the first step ends at or below
    the root, and all others rise to it (R. DerSimonian, R. Kacker, Contemporary Clinical Trials 28,
    2007, 105-114).
    """
    degrees = chosen.sum(axis=1) - 1
    tau2 = np.full(len(chosen), start)
    for _ in range(_STEPS):
        weights = chosen / (variances + tau2[:, None])
        means = weights @ estimates / weights.sum(axis=1)
        weights *= estimates - means[:, None]
        weights *= weights
        slope = weights.sum(axis=1)
        q = weights @ variances + slope * tau2
        step = np.divide(q - degrees, slope, out=np.zeros_like(q), where=slope > 0)
        before, tau2 = tau2, np.maximum(0.0, tau2 + step)
        if np.all(np.abs(tau2 - before) <= 1e-12 * tau2):
            break
    return tau2


def pool(hosts: Hosts, alpha: float, alpha_new: float | None = None) -> Pooled:
    """Return the pooled effect of at least three hosts, the mean's interval of confidence
    1 - `alpha` and the prediction interval of 1 - `alpha_new` (by default the same).

    The mean is weighted by 1 / (v_i + tau²). Its interval is that of J. Hartung and G. Knapp
    (Statistics in Medicine 20, 2001, 3875-3889) and K. Sidik and J. N. Jonkman (ibid. 21, 2002,
    3153-3159) on hosts - 1 degrees, whose factor is held to at least 1 (G. Knapp, J. Hartung, ibid.
    22, 2003, 2693-2710), so that it is never narrower than the usual one. The prediction interval
    has hosts - 2 degrees and the variance tau² + error² (J. P. T. Higgins, S. G. Thompson, D. J.
    Spiegelhalter, Journal of the Royal Statistical Society A 172, 2009, 137-159, section 4), with
    that error. I²: J. P. T. Higgins, S. G. Thompson, Statistics in Medicine 21 (2002), 1539-1558.
    """
    k = len(hosts)
    if k < FEWEST_POOLED:
        raise ValueError(f"{k} hosts can't be pooled")
    y, (v, _) = hosts.estimates, moderated(hosts)
    tau2 = tau_squared(y, v)
    mean, error = knapp_hartung(y, v, tau2)
    half = float(special.stdtrit(k - 1, 1 - alpha / 2)) * error
    alpha_new = alpha if alpha_new is None else alpha_new
    beyond = float(special.stdtrit(k - 2, 1 - alpha_new / 2)) * math.sqrt(tau2 + error**2)
    q = _q(y, v)
    return Pooled(
        hosts=k,
        mean=mean,
        low=mean - half,
        high=mean + half,
        new_low=mean - beyond,
        new_high=mean + beyond,
        tau=math.sqrt(tau2),
        share=max(0.0, 1 - (k - 1) / q) if q > 0 else 0.0,
    )


def knapp_hartung(estimates: Floats, variances: Floats, tau2: float) -> tuple[float, float]:
    """Return the weighted mean and its standard error, with a factor of at least 1 (see `pool`)."""
    weights = 1 / (variances + tau2)
    total = float(weights.sum())
    mean = float(weights @ estimates) / total
    factor = float(weights @ (estimates - mean) ** 2) / (len(estimates) - 1)
    return mean, math.sqrt(max(1.0, factor) / total)


def _q(estimates: Floats, variances: Floats) -> float:
    weights = 1 / variances
    mean = weights @ estimates / weights.sum()
    return float(weights @ (estimates - mean) ** 2)


def differ(hosts: Hosts) -> FTest | None:
    """Test that hosts' true effects are equal, by Brown and Forsythe's F* (M. B. Brown, A. B.
    Forsythe, Technometrics 16, 1974, 129-132); None for fewer than two hosts.

    With n_i units of variance s_i², F* = sum n_i (y_i - y)² / sum (1 - n_i / N) s_i², where y is
    the mean over all N units. The degrees of both sides are Satterthwaite's, the numerator's as
    corrected by D. V. Mehrotra (Communications in Statistics: Simulation 26, 1997, 1139-1145):
    hosts - 1 is too many if hosts' variances differ. Chi² and Welch's test find differences between
    equal hosts far too often (docs/decisions/pooling-hosts.md).
    """
    if len(hosts) < 2:
        return None
    y, n = hosts.estimates, hosts.units
    squares, weights = hosts.errors**2 * n, n / n.sum()
    shares = (1 - weights) * squares
    within = float(shares.sum())
    between = float(n @ (y - weights @ y) ** 2)
    spread = squares @ squares + (weights @ squares) ** 2 - 2 * weights @ squares**2
    degrees = within**2 / float(spread)
    degrees_within = within**2 / float((shares**2 / (n - 1)).sum())
    f = between / within
    return FTest(
        f=f,
        degrees=degrees,
        degrees_within=degrees_within,
        p=float(special.fdtrc(degrees, degrees_within, f)),
    )


def groups_differ(estimates: Floats, groups: npt.NDArray[np.int64]) -> FTest | None:
    """Test that groups of hosts have equal mean effects, by the same F* with the host as the unit;
    None if fewer than two groups have two hosts or more, or if hosts tie.

    `groups`: each host's group as a number. Groups of one host are ignored.
    """
    known = [estimates[groups == one] for one in np.unique(groups)]
    spread = [values for values in known if len(values) >= 2]
    errors = [float(np.std(values, ddof=1)) / math.sqrt(len(values)) for values in spread]
    if len(spread) < 2 or min(errors) == 0:
        return None
    means = np.array([float(np.mean(values)) for values in spread])
    sizes = np.array([float(len(values)) for values in spread])
    return differ(Hosts(means, np.array(errors), sizes))


def apart(hosts: Hosts) -> tuple[Floats, Floats] | None:
    """Return each host's distance from the others' prediction, and its two-sided p; None for fewer
    than four hosts.

    The residual is studentized with the host left out: (y_i - m) / sqrt(v_i + tau² + error²), with
    mean m, tau² and error of the others alone (W. Viechtbauer, M. W.-L. Cheung, Research Synthesis
    Methods 1, 2010, 112-125, section 2.1; the error as in `knapp_hartung`). p is Student's on
    hosts - 2 degrees: there are hosts - 1 others, and with equal variances and tau² > 0 this is the
    exact test of one more value from the same normal distribution. With the normal distribution, or
    with v_i's degrees, one in eight small fleets whose hosts differ would have a false host apart.
    """
    k = len(hosts)
    if k <= FEWEST_POOLED:
        return None
    y, (v, degrees) = hosts.estimates, moderated(hosts)
    residuals = np.empty(k)
    of_all = tau_squared(y, v)
    for start in range(0, k, _CHUNK):
        rows = np.arange(start, min(start + _CHUNK, k))
        chosen = np.ones((len(rows), k))
        chosen[np.arange(len(rows)), rows] = 0.0
        tau2 = _tau_squared(y, v, chosen, of_all)
        weights = chosen / (v + tau2[:, None])
        total = weights.sum(axis=1)
        means = weights @ y / total
        factor = (weights * (y - means[:, None]) ** 2).sum(axis=1) / (k - 2)
        errors2 = np.maximum(1.0, factor) / total
        residuals[rows] = (y[rows] - means) / np.sqrt(v[rows] + tau2 + errors2)
    p = 2 * special.stdtr(np.minimum(degrees, k - 2), -np.abs(residuals))
    return residuals, p


def holm_adjusted(p: Floats) -> Floats:
    """Return p-values that may each be compared with alpha: the largest (m - j + 1) p_(j) up to
    each (S. Holm, Scandinavian Journal of Statistics 6, 1979)."""
    order = np.argsort(p)
    adjusted = np.empty(len(p))
    steps = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted[order] = np.minimum(1.0, steps)
    return adjusted
