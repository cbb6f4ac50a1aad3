"""Simulate how often a history of runs gets a mark, with and without a change of its level."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from zlib import crc32

import numpy as np

from labctl.analysis.compare.history import search
from labctl.analysis.effects.design import ALPHA
from tools.calibrate.noise import KINDS, Values
from tools.calibrate.rates import SURE, Rate
from tools.calibrate.table import Simulations, Table, percent

RUNS = (10, 20, 30, 60)
RECALLED = (0.0, 0.3, 0.5, 0.7)
"""Correlations of each run with the one before."""
NOISES = ("normal", "skewed", "heavy-tailed")
"""Distributions of the innovations."""
SIZES = (2, 3, 4, 6)
"""Sizes of a change, in standard deviations of the runs around their level."""
_USUAL, _LIMIT, _LIMIT_BEYOND = 0.5, 0.05, 0.08
"""Up to the usual correlation, and beyond: the limit of the share of series without a change that
get a mark. Few runs don't tell a strong autocorrelation well enough to hold 5 %."""

_BURN_IN = 60


def _until_the_end(runs: int) -> Values:
    return np.asarray(np.arange(runs) >= runs // 2, dtype=float)


def _and_back(runs: int) -> Values:
    at = np.arange(runs)
    return np.asarray((at >= runs // 3) & (at < 2 * runs // 3), dtype=float)


def _sliding(runs: int) -> Values:
    return np.arange(runs) / (runs - 1)


SLIDE = "a slide over all runs"

SHAPES: Mapping[str, Callable[[int], Values]] = {
    "halfway": _until_the_end,
    "for a third, and back": _and_back,
    SLIDE: _sliding,
}


def series(noise: str, r: float, runs: int, count: int, rng: np.random.Generator) -> Values:
    """Return `count` series of a first-order autoregressive process of variance 1 [count, runs]."""
    drawn = KINDS[noise].draw(rng, (count, runs + _BURN_IN, 1))[..., 0]
    scale = np.sqrt(1 - r * r)
    for at in range(1, drawn.shape[1]):
        drawn[:, at] = r * drawn[:, at - 1] + scale * drawn[:, at]
    return drawn[:, _BURN_IN:]


def marked(noise: str, r: float, runs: int, count: int, seed: int) -> Rate:
    """Return the share of series without a change that get a mark."""
    rng = np.random.default_rng([seed, crc32(f"{noise}/{r}/{runs}".encode())])
    return Rate.of(
        bool(of.changes or of.trend)
        for of in (search(values, ALPHA) for values in series(noise, r, runs, count, rng))
    )


def found(shape: str, size: float, r: float, runs: int, count: int, seed: int) -> Rate:
    """Return the share of series with a change of a size that get a mark; of those that slide, a
    mark or a trend."""
    rng = np.random.default_rng([seed, crc32(f"{shape}/{size}/{r}/{runs}".encode())])
    shifted = series("normal", r, runs, count, rng) + size * SHAPES[shape](runs)
    found = (search(values, ALPHA) for values in shifted)
    return Rate.of(bool(of.changes or (shape == SLIDE and of.trend)) for of in found)


def marked_table(simulations: Simulations) -> Table:
    """Tell how often a mark comes of nothing."""
    count = max(1, simulations.runs // 4)
    cells = [(noise, r, runs) for noise in NOISES for runs in RUNS for r in RECALLED]
    calls = [(*cell, count, simulations.seed) for cell in cells]
    rates = dict(zip(cells, simulations.of("history", marked, calls), strict=True))
    return Table(
        title="History: marks and trends where nothing changed",
        text=(
            f"{count} series of runs each, in percent of series that get a mark, by the "
            "correlation of each run with the one before."
        ),
        header=["noise", "runs", *(f"{r:g}" for r in RECALLED)],
        rows=[
            [noise, str(runs), *(percent(rates[noise, r, runs]) for r in RECALLED)]
            for noise in NOISES
            for runs in RUNS
        ],
        broken=[
            f"history, {noise}, {runs} runs that recall {r:g}: {percent(rate)} % get a mark"
            for (noise, r, runs), rate in rates.items()
            if rate.lower_limit(SURE) > (_LIMIT if r <= _USUAL else _LIMIT_BEYOND)
        ],
        values=[
            {"noise": noise, "r": r, "runs": runs, "marked": rate.to_json()}
            for (noise, r, runs), rate in rates.items()
        ],
    )


def found_table(simulations: Simulations) -> Table:
    """Tell how often a change is found; fewer series are enough for that."""
    count = max(1, simulations.runs // 20)
    cells = [
        (shape, size, r, runs)
        for r in RECALLED[::2]
        for shape in SHAPES
        for runs in RUNS
        for size in SIZES
    ]
    calls = [(*cell, count, simulations.seed) for cell in cells]
    rates = dict(zip(cells, simulations.of("history, power", found, calls), strict=True))
    return Table(
        title="History: changes that are found",
        text=(
            f"{count} series of runs each with normal noise, in percent of series that get a mark, "
            "by the size of the change in standard deviations of the runs around their level."
        ),
        header=["correlation", "change", "runs", *(f"{size:g}" for size in SIZES)],
        rows=[
            [f"{r:g}", shape, str(runs), *(percent(rates[shape, s, r, runs]) for s in SIZES)]
            for r in RECALLED[::2]
            for shape in SHAPES
            for runs in RUNS
        ],
        values=[
            {"shape": shape, "size": size, "r": r, "runs": runs, "found": rate.to_json()}
            for (shape, size, r, runs), rate in rates.items()
        ],
    )
