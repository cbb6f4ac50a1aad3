"""Simulate how often a true effect is found, in a family of four tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from labctl.analysis.model import Comparison, Role
from labctl.analysis.verdicts.rules import Eligibility
from labctl.analysis.verdicts.table import Verdict
from tools.calibrate.rates import Rate
from tools.calibrate.sweeps import Sweep, paired, verdicts

BLOCKS = (10, 20, 30)
NOISES = (0.01, 0.02, 0.05, 0.1, 0.2)
"""Standard deviations of a block's effect, on the log scale."""
EFFECTS = (0.05, 0.1, 0.2, 0.5)
EQUAL = (0.0, 0.01, 0.02, 0.05)
"""True effects of tunings that might be called equivalent; the last is the margin itself."""


@dataclass(frozen=True, slots=True)
class Power:
    """Shares of comparisons that got a verdict, that excluded no effect, and of workloads whose
    known loss of 5 % was found."""

    improves: Rate
    equivalent: Rate
    seen: Rate
    known_loss: Rate


def power(effect: float, noise: float, blocks: int, runs: int, seed: int) -> Power:
    """Return what becomes of tunings that are better by `effect` (a share), where the effects of
    blocks have a standard deviation of `noise`."""
    sweep = Sweep(
        effects={"one": 1 + effect, "other": 1 + effect},
        conditions=1,
        blocks=blocks,
        sd=paired(noise),
    )
    name = f"power/{effect}/{noise}/{blocks}"
    family: list[Comparison] = []
    eligibilities: list[Eligibility] = []
    for decided in verdicts(sweep, runs=runs, seed=seed, name=name):
        family += (c for c in decided.comparisons if c.role is Role.PRIMARY)
        eligibilities += decided.eligibilities.values()
    return Power(
        improves=_having(Verdict.IMPROVES, family),
        equivalent=_having(Verdict.EQUIVALENT, family),
        seen=Rate.of(c.low is not None and c.low > 1 for c in family),
        known_loss=Rate.of(math.isfinite(eligibility.sees_from) for eligibility in eligibilities),
    )


def _having(verdict: Verdict, family: Sequence[Comparison]) -> Rate:
    return Rate.of(c.verdict is verdict for c in family)
