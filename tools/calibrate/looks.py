"""Simulate what looks that drop decide, beside a fixed plan of ten blocks, and at what price."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from statistics import fmean

from labctl.analysis.model import Comparison, Role
from labctl.analysis.verdicts.table import Verdict
from labctl.base.stopping import Looks, looks
from tools.calibrate.coverage import holds
from tools.calibrate.noise import KINDS
from tools.calibrate.rates import SURE, Rate
from tools.calibrate.sweeps import Sweep, paired, verdicts
from tools.calibrate.table import Simulations, Table, percent, shown

RULE = looks((10, 20, 30))
EFFECTS = (0.0, 0.05, 0.068, 0.1, 0.2)
"""True effects of both tunings; the second is the threshold itself."""
NOISES = (0.03, 0.05, 0.07)
"""Standard deviations of a block's effect, on the log scale; the last is a busy small host's."""
KINDS_TOO = ("autocorrelated", "bimodal", "heavy-tailed")
LIMIT = 0.05
"""Most for the rate of runs with a false verdict, and of those in which an interval misses the
truth: broken if it is surely more."""


@dataclass(frozen=True, slots=True)
class Decided:
    """`decided`: comparisons with a verdict; `wrong`: runs with a verdict that is false; `misses`:
    runs of which an interval of the family excludes the truth. `trials`: mean share of the trials
    of 30 whole blocks."""

    decided: Rate
    wrong: Rate
    misses: Rate
    trials: float


def decided_by(
    kind: str, effect: float, noise: float, rule: Looks | None, runs: int, seed: int
) -> Decided:
    """Return what runs of two tunings under two workloads decide by `rule`; None: ten blocks."""
    sweep = Sweep(
        effects={"one": 1 + effect, "other": 1 + effect},
        conditions=1,
        blocks=rule.most_blocks if rule else 10,
        noise=KINDS[kind],
        sd=paired(noise),
        stopping=rule,
    )
    final: list[bool] = []
    wrong, misses, trials = [], [], []
    every = len(sweep.truth) * len(sweep.places) * RULE.most_blocks
    for found in verdicts(sweep, runs=runs, seed=seed, name=f"looks/{kind}/{effect}/{noise}"):
        family = [c for c in found.comparisons if c.role is Role.PRIMARY]
        final += (c.verdict is not None and c.verdict.row.is_final for c in family)
        wrong.append(any(_is_wrong(c, effect, sweep.margin) for c in family))
        misses.append(not all(holds(c, sweep.truth) for c in family))
        trials.append(len(found.run.trials) / every)
    return Decided(Rate.of(final), Rate.of(wrong), Rate.of(misses), fmean(trials))


def _is_wrong(c: Comparison, effect: float, margin: float) -> bool:
    """Return whether a verdict claims what isn't true of an effect ≥ 0."""
    if c.verdict is Verdict.IMPROVES:
        return effect == 0
    if c.verdict in (Verdict.EQUIVALENT, Verdict.SMALL):
        return effect >= margin or (c.verdict is Verdict.SMALL and effect == 0)
    return c.verdict is Verdict.REGRESSES


def looks_table(simulations: Simulations) -> Table:
    """Decided comparisons, false verdicts and trials, by effect and noise."""
    runs = simulations.runs
    settings = [("normal", noise) for noise in NOISES] + [(kind, NOISES[-1]) for kind in KINDS_TOO]
    cells = list(product(settings, EFFECTS, (None, RULE)))
    calls = [
        (kind, effect, noise, rule, runs, simulations.seed) for (kind, noise), effect, rule in cells
    ]
    results = simulations.of("looks", decided_by, calls)
    found = dict(zip(cells, results, strict=True))
    return Table(
        title="Looks",
        text=(
            f"Two tunings under two workloads, {runs} runs each: comparisons with a verdict after "
            f"a fixed plan of ten blocks → by looks after {', '.join(map(str, RULE.at))} blocks, "
            "in percent; in brackets the trials, as a share of 30 whole blocks. Second line: runs "
            "with a false verdict / runs of which an interval misses the truth. The threshold is "
            "5 %. Noise is the standard deviation of a block's effect."
        ),
        header=["noise", *(f"effect {shown(effect)}" for effect in EFFECTS)],
        rows=[
            [
                shown(noise) if kind == "normal" else f"{shown(noise)}, {kind}",
                *(
                    _cell(found[(kind, noise), effect, None], found[(kind, noise), effect, RULE])
                    for effect in EFFECTS
                ),
            ]
            for kind, noise in settings
        ],
        broken=[
            f"{kind}, {shown(noise)}, effect {shown(effect)}: {percent(rate)} % of runs {what}"
            for ((kind, noise), effect, rule), of in found.items()
            for rate, what in (
                (of.wrong, "have a false verdict"),
                (of.misses, "miss the truth"),
            )
            if rule and kind == "normal" and rate.lower_limit(SURE) > LIMIT
        ],
        values=[
            {
                "kind": kind,
                "noise": noise,
                "effect": effect,
                "looks": list(rule.at) if rule else None,
                "decided": of.decided.to_json(),
                "wrong": of.wrong.to_json(),
                "misses": of.misses.to_json(),
                "trials": of.trials,
            }
            for ((kind, noise), effect, rule), of in found.items()
        ],
    )


def _cell(fixed: Decided, by_looks: Decided) -> str:
    return (
        f"{percent(fixed.decided)} → {percent(by_looks.decided)} ({by_looks.trials:.2f})<br>"
        f"{percent(by_looks.wrong)} / {percent(by_looks.misses)}"
    )
