"""Compute Student's t intervals for the effects of blocks."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import (
    Collection,
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    Sequence,
    ValuesView,
)
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
import numpy.typing as npt

from labctl.analysis.special import stdtr, stdtrit

# Hold numbers by block in one array: a long run has thousands of series of hundreds of blocks.


Floats = npt.NDArray[np.float64]


class ByBlock(Mapping[int, float]):
    """Map block to number, in the order of the blocks."""

    __slots__ = ("array", "blocks")

    def __init__(self, blocks: tuple[int, ...], array: Floats) -> None:
        """Hold the numbers of `blocks`, which must be sorted; series with equal blocks may share
        the tuple."""
        self.blocks = blocks
        self.array = array

    @classmethod
    def of(cls, numbers: Mapping[int, float]) -> ByBlock:
        if isinstance(numbers, ByBlock):
            return numbers
        blocks = tuple(sorted(numbers))
        return cls(blocks, np.array([numbers[block] for block in blocks], dtype=float))

    def at(self, blocks: tuple[int, ...]) -> Floats:
        """Return the numbers of these blocks; raises KeyError for a missing one."""
        if blocks == self.blocks:
            return self.array
        return np.array([self[block] for block in blocks], dtype=float)

    def __getitem__(self, block: int) -> float:
        place = bisect_left(self.blocks, block)
        if place == len(self.blocks) or self.blocks[place] != block:
            raise KeyError(block)
        return float(self.array[place])

    def __iter__(self) -> Iterator[int]:
        return iter(self.blocks)

    def __len__(self) -> int:
        return len(self.blocks)

    def __repr__(self) -> str:
        return repr(self._as_dict())

    # Convert all numbers at once: a mapping's default views would look up each block.
    def keys(self) -> KeysView[int]:
        return dict.fromkeys(self.blocks, 0.0).keys()

    def values(self) -> ValuesView[float]:
        return self._as_dict().values()

    def items(self) -> ItemsView[int, float]:
        return self._as_dict().items()

    def _as_dict(self) -> dict[int, float]:
        return dict(zip(self.blocks, self.array.tolist(), strict=True))


POWER = 0.8
MOST_BLOCKS = 1_000_000
"""Limit on a number of blocks: a larger one only means "never"."""


@dataclass(frozen=True, slots=True)
class Interval:
    low: float
    high: float

    def mirrored(self) -> Interval:
        return Interval(-self.high, -self.low)

    def within(self, margin: float) -> bool:
        """Return whether the interval lies in the open interval (-margin, margin)."""
        return -margin < self.low and self.high < margin

    @property
    def reach(self) -> float:
        """Return the distance of the interval's farther end from 0."""
        return max(abs(self.low), abs(self.high))


@dataclass(frozen=True, slots=True)
class Spread:
    """Hold n effects with their mean and standard deviation (n - 1 in the denominator).

    `boot_error`: the mean's standard error over `boots` if several boots have several blocks each;
    else None, and blocks are the unit. `welch`: the degrees of freedom of unpaired sides; else
    None, and they follow from `units`.
    """

    n: int
    mean: float
    sd: float
    boots: int = 1
    boot_error: float | None = None
    welch: float | None = None

    @property
    def units(self) -> int:
        """Return the number of independent units: boots, or blocks."""
        return self.n if self.boot_error is None else self.boots

    @property
    def error(self) -> float:
        """Return the standard error of the mean, which has `degrees` degrees of freedom."""
        return self.sd / math.sqrt(self.n) if self.boot_error is None else self.boot_error

    @property
    def degrees(self) -> float:
        return self.units - 1 if self.welch is None else self.welch


def spread(effects: Collection[float] | Floats, resolution: float, floor: float = 0.0) -> Spread:
    """Return mean and standard deviation; effects closer together than `resolution` count as tied.

    The deviation is at least `floor`, the contribution of rounding (METHOD 16). Raises ValueError
    without effects.
    """
    values = effects if isinstance(effects, np.ndarray) else np.fromiter(effects, dtype=float)
    n = len(values)
    if n == 0:
        raise ValueError("no effects")
    # Thousands of comparisons call this: numpy's mean and std take five times as long.
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
    """Return mean +- t(1 - alpha/2, n - 1) * sd / sqrt(n); if blocks share boots, with the boots'
    error and degrees of freedom.

    None if no interval exists: one block, or effects that are all the same number. Ties come from
    a resolution too coarse to show the spread, and an interval without width would present them as
    certainty (METHOD 16).
    """
    if of.n < 2 or of.error == 0.0:
        return None
    half = quantile(1 - alpha / 2, of.degrees) * of.error
    return Interval(of.mean - half, of.mean + half)


def p_value(of: Spread) -> float:
    """Return the two-sided p-value of no effect: the alpha at which `t_interval` would end at 0; 1
    without an interval.
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
    # A side without a spread adds no uncertainty, for any number of values.
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

    None if either side has one block, or neither shows a spread.
    """
    return t_interval(unpaired(b, [a]), alpha)


def smallest_visible(of: Spread, alpha: float) -> float | None:
    """Return the smallest effect that n blocks show with 80 % power: (t(1 - alpha/2) + t(0.8)) * sd
    / sqrt(n) (METHOD 20). None without an interval."""
    if of.n < 2 or of.error == 0.0:
        return None
    return _visible(of, of.n, alpha)


def blocks_needed(of: Spread, alpha: float, margin: float) -> int | None:
    """Return the smallest number of blocks that shows an effect of `margin` with 80 % power, at the
    present number of blocks per boot.

    None if the present blocks do, without an interval, and beyond MOST_BLOCKS.
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


# Account for blocks that share a boot: the boot is a separate level of variance.
#
# A boot may favour one tuning (by the layout of its memory, or the order in which its units
# started), and then does so in all of its blocks. So if blocks share boots, the boot is the unit,
# like the highest level in Kalibera and Jones, "Rigorous benchmarking in reasonable time" (ISMM
# 2013): the standard error comes from the boots' mean square, with boots - 1 degrees of freedom. In
# the balanced one-way layout of random effects that t interval is exact for any share of the boots
# in the variance (Searle, Casella, McCulloch, "Variance Components", 1992, section 3.6).
# Alternatives: docs/decisions/boots-and-blocks.md.


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanSquares:
    """Hold a one-way analysis of variance of effects by boot.

    `within` is None if every boot has a single block. `concentration`: the sum of the squared
    shares of the boots in the blocks, 1 / boots if all have equally many.
    """

    blocks: int
    boots: int
    between: float
    within: float | None
    concentration: float

    @property
    def blocks_per_boot(self) -> float:
        """Return the coefficient of the boots' variance in the mean square between boots: Searle's
        n_0, (n - sum(n_i^2) / n) / (boots - 1), and blocks / boots in the balanced layout."""
        return self.blocks * (1 - self.concentration) / (self.boots - 1)

    @property
    def standard_error(self) -> float:
        """Return the standard error of the mean over blocks: sqrt(between * concentration / n_0),
        which is sqrt(between / n) in the balanced layout. In other layouts the expectation of its
        square exceeds the true one: the interval is too wide rather than too narrow."""
        return math.sqrt(self.between * self.concentration / self.blocks_per_boot)


def sharing(blocks: Iterable[int], sides: Iterable[Mapping[int, int]]) -> list[list[int]]:
    """Return blocks in groups without a common boot; `sides`: each arm's boots by block.

    A block belongs to the boots of all of its arms: a tuning that boots in each block is still
    compared with a baseline that several blocks restored from one boot. A block without a known
    boot is a group.
    """
    return [list(group) for group in _sharing(tuple(blocks), tuple(map(_Same, sides))).blocks]


@dataclass(frozen=True, slots=True)
class _Groups:
    """Group blocks by boot. `order`: indices of the blocks among all blocks, group after group."""

    blocks: tuple[tuple[int, ...], ...]
    order: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False, slots=True)
class _Same:
    """Hold a mapping that equals only itself, so that comparing a mapping that series share costs
    nothing.
    """

    boots: Mapping[int, int]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.boots is other.boots

    def __hash__(self) -> int:
        return id(self.boots)


@lru_cache(maxsize=256)  # metrics of the same arms share the result
def _sharing(blocks: tuple[int, ...], sides: tuple[_Same, ...]) -> _Groups:
    group_of: dict[int, list[int]] = {}
    first_with: dict[int, int] = {}
    for block in blocks:
        group_of[block] = [block]
    for side in sides:
        for block in blocks:
            boot = side.boots.get(block)
            if boot is None:
                continue
            here, there = group_of[block], group_of[first_with.setdefault(boot, block)]
            if here is not there:
                there += here
                for moved in here:
                    group_of[moved] = there
    groups = tuple({id(group): tuple(group) for group in group_of.values()}.values())
    place = {block: number for number, block in enumerate(blocks)}
    return _Groups(
        groups,
        np.array([place[block] for group in groups for block in group], dtype=np.int64),
        np.array([len(group) for group in groups], dtype=np.int64),
    )


def mean_squares(groups: Sequence[Sequence[float]]) -> MeanSquares:
    """Return the analysis of variance of effects in at least two groups."""
    values = np.array([value for group in groups for value in group])
    return _mean_squares(values, np.array([len(group) for group in groups]))


def _mean_squares(values: Floats, sizes: npt.NDArray[np.int64]) -> MeanSquares:
    """Return the analysis of variance of values that stand group after group."""
    n, boots = len(values), len(sizes)
    means = _means(values, sizes)
    apart, around, shares = means - values.sum() / n, values - np.repeat(means, sizes), sizes / n
    between, within = float(sizes @ (apart * apart)), float(around @ around)
    return MeanSquares(
        blocks=n,
        boots=boots,
        between=between / (boots - 1),
        within=within / (n - boots) if n > boots else None,
        concentration=float(shares @ shares),
    )


def _means(values: Floats, sizes: npt.NDArray[np.int64]) -> Floats:
    """Return the mean of each group of values that stand group after group."""
    means: Floats = np.add.reduceat(values, np.cumsum(sizes) - sizes) / sizes
    return means


def spread_over(
    by_block: Mapping[int, float],
    sides: Sequence[Mapping[int, int]],
    resolution: float,
    floor: float = 0.0,
) -> Spread:
    """Return the spread of effects, by boots where blocks share them.

    With one boot for all blocks the variance of boots is unknown: the interval holds for that boot,
    and the report says so. With a boot per block the block is the unit.
    """
    numbers = ByBlock.of(by_block)
    plain = spread(numbers.array, resolution, floor)
    if not any(sides):
        return plain
    groups = _sharing(numbers.blocks, tuple(map(_Same, sides)))
    boots = len(groups.blocks)
    if not 1 < boots < plain.n:
        return Spread(plain.n, plain.mean, plain.sd, boots)
    values = numbers.array[groups.order]
    found = _mean_squares(values, groups.sizes)
    # Boots with equal means show no spread, like equal blocks (METHOD 16).
    tied = float(np.ptp(_means(values, groups.sizes))) <= resolution
    apart = 0.0 if tied else found.standard_error
    error = max(apart, floor / math.sqrt(plain.n)) if plain.sd else 0.0
    return Spread(plain.n, plain.mean, plain.sd, boots, error)
