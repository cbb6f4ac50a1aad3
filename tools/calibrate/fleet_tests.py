"""Hold the tests that were weighed for "hosts differ" against hosts alike.

docs/decisions/pooling-hosts.md has some rows: F* is used, the others are not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from zlib import crc32

import numpy as np
from scipy import special

from labctl.analysis.effects.design import ALPHA
from labctl.analysis.hosts.pool import Hosts, differ
from tools.calibrate.rates import Rate
from tools.calibrate.table import Simulations, Table, percent

HOSTS = (3, 10, 100, 1000)
BLOCKS = 10
BOOTS: Mapping[str, float] = {"a boot each block": 0.0, "one boot, of 2 %": 0.02}
"""Standard deviation of what the one boot of all blocks adds to a host."""
_LEAST, _MOST = 0.03, 0.12
_MANY = 100


def _q(hosts: Hosts) -> float:
    """Return p of Cochran's Q, which textbooks of meta-analysis have."""
    weights = 1 / hosts.errors**2
    mean = weights @ hosts.estimates / weights.sum()
    q = float(weights @ (hosts.estimates - mean) ** 2)
    return float(special.chdtrc(len(hosts) - 1, q))


def _welch(hosts: Hosts) -> float:
    """Return p of Welch's test (Biometrika 38, 1951)."""
    k, weights = len(hosts), 1 / hosts.errors**2
    shares = weights / weights.sum()
    between = float(weights @ (hosts.estimates - shares @ hosts.estimates) ** 2) / (k - 1)
    off = float(((1 - shares) ** 2 / (hosts.units - 1)).sum()) / (k**2 - 1)
    return float(special.fdtrc(k - 1, 1 / (3 * off), between / (1 + 2 * (k - 2) * off)))


def _f_star(hosts: Hosts) -> float:
    found = differ(hosts)
    assert found is not None
    return found.p


TESTS: Mapping[str, Callable[[Hosts], float]] = {
    "Q (chi²)": _q,
    "Welch": _welch,
    "F*": _f_star,
}


def rejecting(boots: str, hosts: int, runs: int, seed: int) -> dict[str, Rate]:
    """Return by test the share of fleets of hosts alike that are called different."""
    rng = np.random.default_rng([seed, crc32(f"{boots}/{hosts}".encode())])
    found: dict[str, list[bool]] = {name: [] for name in TESTS}
    for _ in range(runs):
        sds = rng.uniform(_LEAST, _MOST, hosts)
        values = sds[:, None] * rng.standard_normal((hosts, BLOCKS))
        values += BOOTS[boots] * rng.standard_normal((hosts, 1))
        errors = values.std(axis=1, ddof=1) / math.sqrt(BLOCKS)
        fleet = Hosts(values.mean(axis=1), errors, np.full(hosts, float(BLOCKS)))
        for name, test in TESTS.items():
            found[name].append(test(fleet) < ALPHA)
    return {name: Rate.of(answers) for name, answers in found.items()}


def fleet_tests_table(simulations: Simulations) -> Table:
    """Tell how often each test calls hosts alike different."""
    cells = [(boots, hosts) for boots in BOOTS for hosts in HOSTS]
    runs = simulations.runs
    calls = [
        (*cell, max(1, runs // 4) if cell[1] > _MANY else runs, simulations.seed) for cell in cells
    ]
    rates = dict(zip(cells, simulations.of("fleets' tests", rejecting, calls), strict=True))
    return Table(
        title="Tests of hosts alike",
        text=(
            f"Share of fleets that are called different at 5 %, in percent, of {runs} fleets each "
            f"(a quarter of more than {_MANY} hosts): {BLOCKS} blocks a host, whose noise is "
            "anything from 3 to 12 %."
        ),
        header=["boots", "hosts", *TESTS],
        rows=[
            [boots, f"{hosts:,}", *(percent(of[name]) for name in TESTS)]
            for (boots, hosts), of in rates.items()
        ],
        values=[
            {"boots": boots, "hosts": hosts, "test": name, "rejected": rate.to_json()}
            for (boots, hosts), of in rates.items()
            for name, rate in of.items()
        ],
    )
