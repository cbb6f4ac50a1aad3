"""Simulate how often equal and unequal tunings are called equivalent, by how large the known loss
shows.

A run that found a known loss of 5 % has shown that it sees about as much; one whose metric makes
it threefold has not (METHOD 5). `found_alone` is what the rule before made of the same runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from labctl.analysis.effects.compare import verdict_at
from labctl.analysis.model import Role
from labctl.analysis.verdicts.decide import Decided
from labctl.analysis.verdicts.table import Verdict
from tools.calibrate.noise import KINDS
from tools.calibrate.rates import Rate
from tools.calibrate.sweeps import Sweep, paired, verdicts
from tools.calibrate.table import Simulations, Table, percent, shown

LOSSES = {"5 %": 0.95, "×3.3": 0.3}
"""Rest of the metric in the known-loss arm."""
EFFECTS = (0.0, 0.05)
"""Effects of tunings that may be called equivalent; the last is the margin."""
NOISES = (0.01, 0.02, 0.03, 0.04, 0.05, 0.1)
"""Standard deviations of a block's effect, on the log scale."""
SCATTER = ("normal", "skewed", "bimodal", "heavy-tailed", "drifting", "arms recalling 0.3")
LIMIT = 0.025
"""Most for the upper 95 % limit of tunings that are off by the margin and called equivalent: in a
family of four each test may err in 1.25 %."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Shares of comparisons that are called equivalent."""

    equivalent: Rate
    found_alone: Rate


def sensitivity(
    kind: str, effect: float, loss: str, noise: float, runs: int, seed: int
) -> Sensitivity:
    """Return what becomes of tunings that are better by `effect` beside one of LOSSES, in ten
    blocks."""
    sweep = Sweep(
        effects={"one": 1 + effect, "other": 1 + effect, "handicap": LOSSES[loss]},
        conditions=1,
        noise=KINDS[kind],
        sd=paired(noise),
    )
    name = f"sensitivity/{kind}/{effect}/{loss}/{noise}"
    now: list[bool] = []
    before: list[bool] = []
    for decided in verdicts(sweep, runs=runs, seed=seed, name=name):
        now += (
            c.verdict is Verdict.EQUIVALENT for c in decided.comparisons if c.role is Role.PRIMARY
        )
        before += _found_alone(decided, sweep.margin)
    return Sensitivity(Rate.of(now), Rate.of(before))


def _found_alone(decided: Decided, margin: float) -> Iterator[bool]:
    for one in decided.made:
        if one.is_primary:
            eligibility = decided.eligibilities[one.place]
            found = replace(
                eligibility, sees_from=0.0 if math.isfinite(eligibility.sees_from) else math.inf
            )
            verdict = verdict_at(
                one.effects, one.comparison.better, decided.design.alpha, margin, found
            )
            yield verdict is Verdict.EQUIVALENT


def sensitivity_table(simulations: Simulations) -> Table:
    """Equal tunings and such as are off by the margin, by the known loss and the noise."""
    runs = max(1, simulations.runs // 4)
    columns = list(product(EFFECTS, LOSSES))
    rows = [("normal", noise) for noise in NOISES]
    rows += list(product(SCATTER[1:], NOISES[1:3]))
    cells = [(row, column) for row in rows for column in columns]
    calls = [
        (kind, effect, loss, noise, runs, simulations.seed)
        for (kind, noise), (effect, loss) in cells
    ]
    results = simulations.of("sensitivity", sensitivity, calls)
    found = dict(zip(cells, results, strict=True))
    return Table(
        title="Sensitivity",
        text=(
            "Share of tunings that are called *equivalent* within 5 %, in percent, by their true "
            "effect and by how large the known loss shows; in brackets where finding it were "
            f"enough. At 5 % the verdict is false. Ten blocks, {runs} runs each, with a family of "
            "four tests. Noise is the standard deviation of a block's effect."
        ),
        header=[
            "noise",
            *(f"{shown(effect)}, known loss {loss}" for effect, loss in columns),
        ],
        rows=[
            [
                shown(noise) if kind == "normal" else f"{shown(noise)}, {kind}",
                *(_with_and_without(found[(kind, noise), column]) for column in columns),
            ]
            for kind, noise in rows
        ],
        broken=[
            f"{kind}, {shown(noise)}: {percent(of.equivalent)} % of tunings that are off by "
            "the margin are called equivalent"
            for ((kind, noise), (effect, _)), of in found.items()
            if effect and not KINDS[kind].why and of.equivalent.upper > LIMIT
        ],
        values=[
            {
                "kind": kind,
                "noise": noise,
                "effect": effect,
                "loss": LOSSES[loss],
                "equivalent": of.equivalent.to_json(),
                "found_alone": of.found_alone.to_json(),
            }
            for ((kind, noise), (effect, loss)), of in found.items()
        ],
    )


def _with_and_without(of: Sensitivity) -> str:
    return f"{percent(of.equivalent)} ({percent(of.found_alone)})"
