"""Simulate how often a fleet's report is wrong: hosts named apart, hosts that differ, intervals.

Only what hosts measured is made up. Each host has a true effect, drawn around 0, and `units` values
of it with noise of its own; from there on `labctl/analysis/hosts/pool.py` judges, as in a report.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from zlib import crc32

import numpy as np

from labctl.analysis.effects.design import ALPHA
from labctl.analysis.effects.intervals import Floats
from labctl.analysis.hosts.pool import Hosts, apart, differ, holm_adjusted, pool
from tools.calibrate.rates import SURE, Rate
from tools.calibrate.table import Simulations, Table, percent

HOSTS = (4, 5, 10, 30, 100)
UNITS = (2, 3, 5, 10)
NAMED_LIMIT = 0.065
"""Promised limit of fleets of hosts alike in which any host is named, or that are called
different, beyond the exceptions: 5 %, and what an approximate test may add to it."""
MEAN_LEAST, NEW_LEAST = 0.93, 0.87
"""Least share of intervals that hold the mean, and of predictions that hold a new host."""
SLOW = math.log(2)
_MANY = 30
"""Hosts beyond which a quarter of the fleets is simulated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Describe hosts. `tau`: standard deviation of true effects; `tails`: degrees of Student's t
    for these, None for normal; `least` and `most`: standard deviations of one unit. `is_promised`:
    the limits are to hold, from so many `units` on."""

    name: str
    text: str
    tau: float = 0.0
    tails: int | None = None
    least: float = 0.06
    most: float = 0.06
    is_promised: bool = True
    units: int = 2


KINDS = {
    kind.name: kind
    for kind in (
        Kind(name="alike", text="one true effect, equal noise"),
        Kind(
            name="alike, unequal noise",
            text="one true effect; a host's noise is anything from 3 to 12 %. Of two boots each "
            "nothing is promised here, as two tell a variance badly",
            least=0.03,
            most=0.12,
            units=3,
        ),
        Kind(name="3 % apart", text="true effects of standard deviation 3 %, normal", tau=0.03),
        Kind(
            name="3 % apart, unequal noise",
            text="the same; a host's noise is anything from 3 to 12 %",
            tau=0.03,
            least=0.03,
            most=0.12,
            units=3,
        ),
        Kind(
            name="3 % apart, heavy-tailed",
            text="true effects of Student's t with 4 degrees. An exception: a host far out is "
            "named, as it should be, though it comes from the same distribution",
            tau=0.03,
            tails=4,
            is_promised=False,
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Found:
    """Hold shares of fleets: any host named, hosts called different, a slow host named; and of
    intervals: the mean's and the prediction that hold the truth."""

    named: Rate
    differ: Rate
    slow: Rate
    mean: Rate
    new: Rate


def fleets(
    kind: Kind, hosts: int, units: int, runs: int, rng: np.random.Generator
) -> Iterator[tuple[Hosts, float]]:
    """Yield fleets, each with the true effect of one more host."""
    for _ in range(runs):
        sds = rng.uniform(kind.least, kind.most, hosts)
        truth = _true_effects(kind, hosts + 1, rng)
        values = truth[:hosts, None] + sds[:, None] * rng.standard_normal((hosts, units))
        errors = values.std(axis=1, ddof=1) / math.sqrt(units)
        yield Hosts(values.mean(axis=1), errors, np.full(hosts, float(units))), float(truth[-1])


def _true_effects(kind: Kind, count: int, rng: np.random.Generator) -> Floats:
    if kind.tails is None:
        return kind.tau * rng.standard_normal(count)
    scale = math.sqrt((kind.tails - 2) / kind.tails)
    return np.asarray(kind.tau * scale * rng.standard_t(kind.tails, count))


def simulated(name: str, hosts: int, units: int, runs: int, seed: int) -> Found:
    """Return the rates of one kind and size of fleet."""
    rng = np.random.default_rng([seed, crc32(f"{name}/{hosts}/{units}".encode())])
    named, different, slow, mean, new = [], [], [], [], []
    for fleet, another in fleets(KINDS[name], hosts, units, runs, rng):
        named.append(_any_named(fleet))
        test = differ(fleet)
        different.append(test is not None and test.p < ALPHA)
        slowed = fleet.estimates - SLOW * (np.arange(hosts) == 0)
        slow.append(bool(_adjusted(Hosts(slowed, fleet.errors, fleet.units))[0] < ALPHA))
        pooled = pool(fleet, ALPHA)
        mean.append(pooled.low <= 0 <= pooled.high)
        new.append(pooled.new_low <= another <= pooled.new_high)
    return Found(*map(Rate.of, (named, different, slow, mean, new)))


def _any_named(fleet: Hosts) -> bool:
    return bool(_adjusted(fleet).min() < ALPHA)


def _adjusted(fleet: Hosts) -> Floats:
    found = apart(fleet)
    # Of too few hosts none can be named.
    return np.ones(len(fleet)) if found is None else holm_adjusted(found[1])


def _all(simulations: Simulations) -> dict[tuple[str, int, int], Found]:
    cells = list(product(KINDS, HOSTS, UNITS))
    runs = simulations.runs
    calls = [(*c, max(1, runs // 4) if c[1] > _MANY else runs, simulations.seed) for c in cells]
    return dict(zip(cells, simulations.of("fleets", simulated, calls), strict=True))


def fleets_table(simulations: Simulations) -> Table:
    """Tell how often hosts alike are named apart or called different, and slow ones found."""
    found = _all(simulations)
    return Table(
        title="Fleets",
        text=(
            f"{simulations.runs} fleets each (a quarter of 100 hosts), in percent: any host named "
            "apart / hosts called different / the mean's interval of 95 % holds the truth / the "
            "prediction interval holds one more host / a host at half speed is named."
        ),
        header=["hosts are", "boots each", *(f"{hosts} hosts" for hosts in HOSTS)],
        rows=[
            [name, str(units), *(_cell(found[name, hosts, units]) for hosts in HOSTS)]
            for name in KINDS
            for units in UNITS
        ],
        notes=[f"*{kind.name}*: {kind.text}." for kind in KINDS.values()],
        broken=[text for cell, rates in found.items() for text in _broken(*cell, rates)],
        values=[
            {
                "kind": name,
                "hosts": hosts,
                "units": units,
                "named": rates.named.to_json(),
                "differ": rates.differ.to_json(),
                "slow": rates.slow.to_json(),
                "mean": rates.mean.to_json(),
                "new": rates.new.to_json(),
            }
            for (name, hosts, units), rates in found.items()
        ],
    )


def _cell(of: Found) -> str:
    return " / ".join(map(percent, (of.named, of.differ, of.mean, of.new, of.slow)))


def _broken(name: str, hosts: int, units: int, of: Found) -> Iterator[str]:
    """Yield promises that so many fleets refute, with a chance of one in a thousand to be wrong."""
    kind, where = KINDS[name], f"fleets, {name}, {hosts} hosts of {units} boots"
    if kind.is_promised and units >= kind.units:
        if of.named.lower_limit(SURE) > NAMED_LIMIT:
            yield f"{where}: {percent(of.named)} % name a host"
        if not kind.tau and of.differ.lower_limit(SURE) > NAMED_LIMIT:
            yield f"{where}: {percent(of.differ)} % are called different"
    if of.mean.limit(SURE) < MEAN_LEAST:
        yield f"{where}: {percent(of.mean)} % of the means' intervals hold"
    if of.new.limit(SURE) < NEW_LEAST:
        yield f"{where}: {percent(of.new)} % of the predictions hold"
