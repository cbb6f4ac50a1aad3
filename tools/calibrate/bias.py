"""Simulate how many runs claim an effect that is only a bias between equal arms (METHOD 18).

Control and tunings are the baseline again, but the run sets them apart from it: the control's
effect has a true size of `bias`, and so have the tunings' against baseline and control.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from labctl.analysis.model import Role
from tools.calibrate.false_verdicts import CLAIMS
from tools.calibrate.rates import Rate
from tools.calibrate.sweeps import Sweep, verdicts

SHAPES: Mapping[str, tuple[int, int, int]] = {
    "4 places, 3 tunings": (2, 2, 3),
    "8 places, 1 tuning": (4, 2, 1),
}
"""Workloads, conditions and tunings."""
SIZES = (0, 1, 2, 3, 4, 5)
"""Sizes of the bias, in standard errors of the control's effect."""
_BLOCKS, _SD = 10, 0.08


@dataclass(frozen=True, slots=True)
class Biased:
    """Runs with any claim, and runs that open with a control that failed."""

    claims: Rate
    failed: Rate


def biased(shape: str, size: int, runs: int, seed: int) -> Biased:
    """Return what runs of a shape claim, all of whose places have a bias of `size` standard
    errors."""
    workloads, conditions, tunings = SHAPES[shape]
    bias = size * _SD * math.sqrt(2 / _BLOCKS)
    # The reference has half of the control's bias in it.
    effects = {f"tuning {number}": math.exp(1.5 * bias) for number in range(tunings)}
    sweep = Sweep(
        effects={"control": math.exp(bias), **effects},
        workloads=workloads,
        conditions=conditions,
        blocks=_BLOCKS,
        sd=_SD,
    )
    claims, failed = [], []
    for decided in verdicts(sweep, runs=runs, seed=seed, name=f"bias/{shape}/{size}"):
        primaries = (c for c in decided.comparisons if c.role is Role.PRIMARY)
        claims.append(any(c.verdict in CLAIMS for c in primaries))
        failed.append(any(of.control.passed is False for of in decided.checked.values()))
    return Biased(Rate.of(claims), Rate.of(failed))
