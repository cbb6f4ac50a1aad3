"""Account for blocks that share a boot: the boot is a level of variance of its own.

A boot may suit one tuning and not another (the layout of its memory, the order in which its units
started), and then does so in all of its blocks. So where blocks share boots the boot is the unit,
as the highest level is in Kalibera and Jones, "Rigorous benchmarking in reasonable time" (ISMM
2013): the standard error comes from the boots' mean square, with boots - 1 degrees of freedom. In
the balanced one-way layout of random effects that t interval is exact, whatever the boots' share
of the variance is (Searle, Casella, McCulloch, "Variance Components", 1992, section 3.6). What
else was tried: docs/decisions/boots-and-blocks.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from labctl.analysis.byblock import ByBlock, Floats
from labctl.analysis.intervals import Spread, spread


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanSquares:
    """Hold a one-way analysis of variance of effects by boot.

    `within` is None where every boot has a single block. `concentration`: the sum of the squared
    shares of the boots in the blocks, 1 / boots where all have equally many.
    """

    blocks: int
    boots: int
    between: float
    within: float | None
    concentration: float

    @property
    def blocks_per_boot(self) -> float:
        """Return how often the boots' variance is in the mean square between them: Searle's n_0, (n
        - sum(n_i^2) / n) / (boots - 1), and blocks / boots in the balanced layout."""
        return self.blocks * (1 - self.concentration) / (self.boots - 1)

    @property
    def standard_error(self) -> float:
        """Return the standard error of the mean over blocks: sqrt(between * concentration / n_0),
        which is sqrt(between / n) in the balanced layout. Else its square expects the true one plus
        something positive: the interval is too wide rather than too narrow."""
        return math.sqrt(self.between * self.concentration / self.blocks_per_boot)


def sharing(blocks: Iterable[int], sides: Iterable[Mapping[int, int]]) -> list[list[int]]:
    """Return blocks in groups that have no boot in common; `sides`: of each arm, its boots by
    block.

    A block belongs to the boots of all of its arms: a tuning that boots for itself in each block
    is still compared with a baseline that was restored from one boot in several. A block of which
    no boot is known is alone.
    """
    return [list(group) for group in _sharing(tuple(blocks), tuple(map(_Same, sides))).blocks]


@dataclass(frozen=True, slots=True)
class _Groups:
    """Group blocks by boot. `order`: where the blocks of one group after the other stand among all
    blocks.
    """

    blocks: tuple[tuple[int, ...], ...]
    order: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False, slots=True)
class _Same:
    """Hold a mapping that equals only itself, so that series compare their shared one at no
    cost.
    """

    boots: Mapping[int, int]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.boots is other.boots

    def __hash__(self) -> int:
        return id(self.boots)


@lru_cache(maxsize=256)  # the same for every metric of the same arms
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
    """Return the same of values group after group, and the groups' sizes."""
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

    With one boot for all blocks there is nothing that boots could be told from: the interval holds
    for that boot, and the report says so. With a boot per block the block is the unit.
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
    # Boots that tie have no spread of their own to tell, as blocks that tie have none (METHOD 16).
    tied = float(np.ptp(_means(values, groups.sizes))) <= resolution
    apart = 0.0 if tied else found.standard_error
    error = max(apart, floor / math.sqrt(plain.n)) if plain.sd else 0.0
    return Spread(plain.n, plain.mean, plain.sd, boots, error)
