"""Decide verdicts by interval and threshold, and sharpen a family of them by Holm's procedure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from labctl.analysis.effects.intervals import Interval, Spread, smallest_visible
from labctl.analysis.verdicts.table import Verdict
from labctl.base.stopping import FEWEST_BLOCKS

# Apply the table of verdicts (METHOD 18 to 21), as one pure function.


@dataclass(frozen=True, slots=True)
class Eligibility:
    """Hold the claims that a run may make about one workload and condition.

    `judges`: the control was checked and did not differ from baseline. `reach`: the largest
    difference between baseline and control that their interval leaves open. `sees_from`: the
    smallest loss that the run was shown to detect, infinite if the known loss was not detected.
    Both are on the scale of effects.
    """

    judges: bool
    reach: float
    sees_from: float

    def sees(self, loss: float) -> bool:
        return self.sees_from <= loss


ABOUT = 2.0
"""Factor up to which a known loss is about as large as a margin: a run that detects 5 % would
hardly have missed 2.5 %, but may miss 1 %."""


def sees_from(known_loss: float | None, control: Spread | None, alpha: float) -> float:
    """Return the smallest loss that a run was shown to detect
    (docs/decisions/control-and-handicap.md).

    `known_loss`: the size of the detected known loss, else None. A far smaller loss may go
    undetected, unless the noise is so low that the equal arms baseline and control would show it:
    `control` is their difference, tested at `alpha`.
    """
    if known_loss is None:
        return math.inf
    visible = None if control is None else smallest_visible(control, alpha)
    return min(known_loss / ABOUT, math.inf if visible is None else visible)


def decide(
    *,
    blocks: int,
    estimate: float,
    interval: Interval | None,
    narrow: Interval | None,
    margin: float,
    eligibility: Eligibility,
) -> Verdict:
    """Return the verdict on an effect whose positive values mean better.

    `interval` has confidence 1 - alpha/m, `narrow` 1 - 2 alpha/m (two one-sided tests);
    `margin` is the practical threshold on the scale of effects. Effects that are all the same
    number have no interval and stay inconclusive.

    The control acts by METHOD 18 ("if its interval excludes 0 or passes +-margin, verdicts are
    suspended") as follows:

    - Its interval excludes 0: baseline differs from itself, so every verdict is suspended.
    - Its interval only reaches beyond +-margin: no bias was found, but one as large as its reach is
      not excluded. Then every claim that such a bias alone could cause is suspended: "real but
      small", "equivalent", and an improvement or a regression whose estimate does not exceed the
      reach. Larger effects keep their verdict: no difference between equal arms that this run
      leaves open explains them, and their interval already contains the noise. Suspending them too
      would leave every run on a noisy host without verdicts, even for effects that are obvious in
      its dots, and would not prevent errors: an A/A run has no such effects.
    """
    if blocks < FEWEST_BLOCKS:
        return Verdict.DEMONSTRATION
    if not eligibility.judges:
        return Verdict.SUSPENDED
    claim = _claim(estimate, interval, narrow, margin)
    if claim is Verdict.EQUIVALENT and not eligibility.sees(margin):
        return Verdict.INCONCLUSIVE
    if claim in (Verdict.EQUIVALENT, Verdict.SMALL) and eligibility.reach > margin:
        return Verdict.SUSPENDED
    if claim in (Verdict.IMPROVES, Verdict.REGRESSES) and (
        eligibility.reach > margin and abs(estimate) <= eligibility.reach
    ):
        return Verdict.SUSPENDED
    return claim


def excludes_loss(
    *, estimate: float, interval: Interval, loss: float, eligibility: Eligibility
) -> bool:
    """Return whether a loss of `loss` or more is excluded: the non-inferiority that a
    recommendation needs (METHOD 25), on the scale of effects.

    The interval is the one in reports, of confidence 1 - alpha/m. Its lower end is wrong in
    alpha/2m of all cases. With k tunings in p places, m = k p, a run calls any tuning harmless in a
    place where it loses `loss` in at most k alpha/2m = alpha/2p of all cases.

    As with verdicts, a bias that the control leaves open must not cause the claim alone: the
    estimate must exceed that of a tuning that loses `loss` and gains the control's reach by bias.
    """
    return eligibility.judges and interval.low > -loss and estimate + loss > eligibility.reach


def _claim(
    estimate: float, interval: Interval | None, narrow: Interval | None, margin: float
) -> Verdict:
    """Apply METHOD 20 as if control and known loss had passed."""
    if interval is None or narrow is None:
        return Verdict.INCONCLUSIVE
    if interval.low > 0 and estimate >= margin:
        return Verdict.IMPROVES
    if interval.high < 0 and estimate <= -margin:
        return Verdict.REGRESSES
    if interval.low > 0 and interval.high < margin:
        return Verdict.SMALL
    if interval.high < 0 and interval.low > -margin:
        return Verdict.SMALL
    if narrow.within(margin):
        return Verdict.EQUIVALENT
    return Verdict.INCONCLUSIVE
