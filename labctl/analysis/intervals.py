"""Compute Student's t intervals for the effects of blocks."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from labctl.analysis.byblock import Floats
from labctl.analysis.special import stdtr, stdtrit

POWER = 0.8
MOST_BLOCKS = 1_000_000
"""Beyond this a number of blocks says nothing but "never"."""


@dataclass(frozen=True, slots=True)
class Interval:
    low: float
    high: float

    def mirrored(self) -> Interval:
        return Interval(-self.high, -self.low)

    def within(self, margin: float) -> bool:
        """Return whether it lies in the open interval (-margin, margin)."""
        return -margin < self.low and self.high < margin

    @property
    def reach(self) -> float:
        """Return the distance of its farther end from 0."""
        return max(abs(self.low), abs(self.high))


@dataclass(frozen=True, slots=True)
class Spread:
    """Hold n effects with their mean and standard deviation (n - 1 in the denominator).

    `boot_error`: the mean's standard error over `boots`, where several of them have several blocks
    each; else None, and blocks are the unit. `welch`: the degrees of freedom of sides that were not
    paired; else None, and they follow from `units`.
    """

    n: int
    mean: float
    sd: float
    boots: int = 1
    boot_error: float | None = None
    welch: float | None = None

    @property
    def units(self) -> int:
        """Return how many independent things there are: boots, or blocks."""
        return self.n if self.boot_error is None else self.boots

    @property
    def error(self) -> float:
        """Return the standard error of the mean, with so many `degrees` of freedom."""
        return self.sd / math.sqrt(self.n) if self.boot_error is None else self.boot_error

    @property
    def degrees(self) -> float:
        return self.units - 1 if self.welch is None else self.welch


def spread(effects: Collection[float] | Floats, resolution: float, floor: float = 0.0) -> Spread:
    """Return mean and standard deviation; effects closer together than `resolution` count as tied.

    The deviation is at least `floor`, what rounding alone puts into it (METHOD 16). Raises
    ValueError when there are no effects.
    """
    values = effects if isinstance(effects, np.ndarray) else np.fromiter(effects, dtype=float)
    n = len(values)
    if n == 0:
        raise ValueError("no effects")
    # Thousands of comparisons come here: numpy's own mean and std take five times as long.
    mean = float(values.sum()) / n
    tied = n < 2 or float(values.max() - values.min()) <= resolution
    around = values - mean
    sd = 0.0 if tied else math.sqrt(float(around @ around) / (n - 1))
    return Spread(n, mean, max(sd, floor))


@cache
def quantile(p: float, degrees: float) -> float:
    """Return the quantile t_p of Student's t."""
    return float(stdtrit(degrees, p))


def t_interval(of: Spread, alpha: float) -> Interval | None:
    """Return mean +- t(1 - alpha/2, n - 1) * sd / sqrt(n); of shared boots theirs
    (analysis/boots.py).

    None where no interval exists: one block, or effects that are all the same number. Ties come
    from a resolution too coarse to show the spread, and an interval of no width would pass them
    off as certainty (METHOD 16).
    """
    if of.n < 2 or of.error == 0.0:
        return None
    half = quantile(1 - alpha / 2, of.degrees) * of.error
    return Interval(of.mean - half, of.mean + half)


def p_value(of: Spread) -> float:
    """Return the two-sided p-value of no effect: the alpha at which `t_interval` would end at 0; 1
    without one.
    """
    if of.n < 2 or of.error == 0.0:
        return 1.0
    return 2 * float(stdtr(of.degrees, -abs(of.mean) / of.error))


def unpaired(one: Spread, others: Sequence[Spread]) -> Spread:
    """Return `one` minus the mean of the others, for independent samples.

    The variances are not pooled. The degrees of freedom are Welch's and Satterthwaite's,
    (sum of v_i)^2 / (sum of v_i^2 / f_i) with v_i the squared standard error of each side's share
    and f_i its own degrees (F. E. Satterthwaite, Biometrics Bulletin 2, 1946, 110-114). It has as
    many blocks as the shortest side.
    """
    sides = [(one, 1.0), *((other, 1 / len(others)) for other in others)]
    squares = [(share * side.error) ** 2 for side, share in sides]
    total, n = sum(squares), min(side.n for side, _ in sides)
    known = [
        (square, side.degrees) for square, (side, _) in zip(squares, sides, strict=True) if square
    ]
    # Of a side without a spread nothing is uncertain, whatever its number of values.
    degrees = total**2 / sum(s * s / f for s, f in known) if n > 1 and known else 0.0
    return Spread(
        n=n,
        mean=one.mean - sum(other.mean for other in others) / len(others),
        sd=math.sqrt(total * n),
        boots=min((side.boots for side, _ in sides if side.boots < side.n), default=one.n),
        welch=degrees,
    )


def welch_interval(a: Spread, b: Spread, alpha: float) -> Interval | None:
    """Return b's mean minus a's, for independent samples (B. L. Welch, Biometrika 34, 1947).

    None where either side has one block, or neither shows a spread.
    """
    return t_interval(unpaired(b, [a]), alpha)


def smallest_visible(of: Spread, alpha: float) -> float | None:
    """Return the smallest effect that n blocks show with 80 % power: (t(1 - alpha/2) + t(0.8)) * sd
    / sqrt(n) (METHOD 20). None where there is no interval."""
    if of.n < 2 or of.error == 0.0:
        return None
    return _visible(of, of.n, alpha)


def blocks_needed(of: Spread, alpha: float, margin: float) -> int | None:
    """Return the smallest number of blocks that shows an effect of `margin` with 80 % power, with
    as many blocks to a boot as there were.

    None where these blocks do already, where there is no interval, and beyond MOST_BLOCKS.
    """
    now = smallest_visible(of, alpha)
    if now is None or now <= margin:
        return None
    few, enough = of.n, 2 * of.n
    while _visible(of, enough, alpha) > margin:
        few, enough = enough, 2 * enough
        if few > MOST_BLOCKS:
            return None
    while enough - few > 1:
        middle = (few + enough) // 2
        if _visible(of, middle, alpha) > margin:
            few = middle
        else:
            enough = middle
    return enough


def _visible(of: Spread, blocks: int, alpha: float) -> float:
    degrees = (of.degrees + 1) * blocks / of.n - 1
    error = of.error * math.sqrt(of.n / blocks)
    return (quantile(1 - alpha / 2, degrees) + quantile(POWER, degrees)) * error
