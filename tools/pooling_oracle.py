"""Record what statsmodels makes of pooled hosts, for the tests of `labctl/analysis/hosts.py`.

    python -m venv /tmp/oracle && /tmp/oracle/bin/pip install statsmodels==0.15.0
    /tmp/oracle/bin/python tools/pooling_oracle.py > tests/unit/analysis/fixtures/FILE

statsmodels brings 168 MB with what it needs, so it is none of labctl's development tools: its
answers are recorded, with its version in the file's name. It stands alone, without labctl.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

SEED = 20261124
CASES = [
    (hosts, units, tau, unequal)
    for hosts in (3, 4, 5, 10, 40)
    for units in (2, 5, 10)
    for tau in (0.0, 0.03, 0.2)
    for unequal in (False, True)
]


def cases() -> Iterator[dict[str, Any]]:
    """Yield estimates, standard errors and units of drawn hosts, with statsmodels' answers."""
    from statsmodels.stats.meta_analysis import combine_effects
    from statsmodels.stats.oneway import anova_generic

    rng = np.random.default_rng(SEED)
    for hosts, units, tau, unequal in CASES:
        sds = rng.uniform(0.03, 0.12, hosts) if unequal else np.full(hosts, 0.06)
        counts = np.full(hosts, units) + (rng.integers(0, 4, hosts) if unequal else 0)
        values = [
            0.1 + tau * rng.standard_normal() + sd * rng.standard_normal(count)
            for sd, count in zip(sds, counts, strict=True)
        ]
        means = np.array([one.mean() for one in values])
        errors = np.array([one.std(ddof=1) / np.sqrt(len(one)) for one in values])
        pooled = combine_effects(means, errors**2, method_re="iterated", use_t=True)
        star = anova_generic(means, errors**2 * counts, counts, use_var="bf", welch_correction=True)
        yield {
            "estimates": means.tolist(),
            "errors": errors.tolist(),
            "units": counts.tolist(),
            "tau2": float(pooled.tau2),
            "mean": float(pooled.mean_effect_re),
            "hksj_error": float(np.sqrt(pooled.var_hksj_re)),
            "plain_error": float(pooled.sd_eff_w_re),
            "i2": float(pooled.i2),
            "f_star": float(star.statistic),
            "f_star_degrees": [float(star.df_num), float(star.df_denom)],
            "f_star_p": float(star.pvalue),
        }


def main() -> None:
    import statsmodels

    made = {"statsmodels": statsmodels.__version__, "seed": SEED, "cases": list(cases())}
    json.dump(made, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
