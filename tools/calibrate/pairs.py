"""Simulate how often a comparison of two runs calls noise a difference (METHOD 19)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from labctl.analysis.compare.two_runs import Difference, compare_runs
from tools.calibrate.false_verdicts import A_A, UNEQUAL
from tools.calibrate.rates import Rate
from tools.calibrate.sweeps import Sweep, simulate

SETTINGS: Mapping[str, Sweep] = {
    "equal variances": A_A,
    "unequal variances": replace(A_A, sds=UNEQUAL),
    "little noise": replace(A_A, sd=0.005),
    "two blocks per boot": replace(A_A, boot_sd=1.0, blocks_per_boot=2),
}


@dataclass(frozen=True, slots=True)
class FalseRows:
    """Pairs of runs alike with any row that "differs": among the effects, the values, and all."""

    effects: Rate
    values: Rate
    any_row: Rate


def false_rows(name: str, pairs: int, seed: int) -> FalseRows:
    """Return what comparisons of two runs of the same sweep find, in one of SETTINGS."""
    sweep = SETTINGS[name]
    a, b = (
        simulate(sweep, runs=pairs, seed=seed, name=f"pairs/{name}/{side}") for side in ("a", "b")
    )
    found = [compare_runs(*both) for both in zip(a, b, strict=True)]
    effects = [_differs(of.effects) for of in found]
    values = [_differs(of.levels) for of in found]
    either = [any(both) for both in zip(effects, values, strict=True)]
    return FalseRows(Rate.of(effects), Rate.of(values), Rate.of(either))


def _differs(rows: Iterable[Difference]) -> bool:
    return any(row.finding == "differs" for row in rows)
