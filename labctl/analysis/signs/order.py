"""Does it matter where in its block an arm ran, and after which other arm?

    y = tuning + block + effect x (position, or: right after a certain arm) + noise

Least squares, with the standard error from a jackknife over blocks: arms need not be equally
noisy, and blocks are what is independent. t = effect / se with n - 1 degrees of freedom and
se^2 = (n - 1)/n sum (effect without block b - their mean)^2 (B. Efron, "The Jackknife, the
Bootstrap and Other Resampling Plans", SIAM 1982, chapter 3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import stdtr

Values = npt.NDArray[np.float64]

_NOTHING = 1e-9
"""A regressor of which tunings and blocks leave so little can't be told from them, and an error so
small beside the values is one of rounding."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Who ran where. By block and arm: the value (NaN for none), the position in the block, and
    the index of the arm that ran before (-1 for none)."""

    arms: tuple[str, ...]
    values: Values
    positions: Values
    before: npt.NDArray[np.int64]


def layout(
    by_arm: Mapping[str, Mapping[int, float]], orders: Mapping[int, Sequence[str]]
) -> Layout:
    """`by_arm`: values by block; `orders`: the arms of each block as they ran. Arms that ran
    without being in `by_arm` take their position and are nobody's predecessor."""
    column = {arm: i for i, arm in enumerate(by_arm)}
    shape = (len(orders), len(column))
    values, positions = np.full(shape, np.nan), np.zeros(shape)
    before = np.full(shape, -1, dtype=np.int64)
    for row, (block, order) in enumerate(orders.items()):
        previous = -1
        for position, arm in enumerate(order, start=1):
            here = column.get(arm, -1)
            if here >= 0 and (value := by_arm[arm].get(block)) is not None:
                values[row, here] = value
                positions[row, here] = position
                before[row, here] = previous
            previous = here
    return Layout(tuple(by_arm), values, positions, before)


@dataclass(frozen=True, slots=True)
class OrderEffect:
    """What order does to y: `effect` per position, or right after one arm; its two-sided p-value;
    and how much of it is in each arm's mean (its mean position; the share of its blocks in which
    it ran right after that arm)."""

    effect: float
    p: float
    shares: Mapping[str, float]


def order_effects(of: Layout) -> tuple[OrderEffect | None, dict[str, OrderEffect]]:
    """Of the position, and of running right after each arm, each by itself. None, or left out,
    where the layout can't tell."""
    after = of.before[..., None] == np.arange(len(of.arms))
    regressors = np.concatenate((of.positions[..., None], after), axis=2)
    by_position, *by_arm = _effects(of, regressors)
    return by_position, {
        arm: found for arm, found in zip(of.arms, by_arm, strict=True) if found is not None
    }


def _effects(of: Layout, regressors: Values) -> list[OrderEffect | None]:
    """Of each regressor (blocks x arms x regressors).

    Sweeping the block out is G_b = diag(m) - mm'/sum(m), where m says which arms have a value.
    The normal equations are then sums over blocks, and to leave one out is a subtraction.
    """
    n, arms, count = regressors.shape
    m = (~np.isnan(of.values)).astype(float)
    y = np.where(m > 0, of.values, 0.0)[..., None]
    x = regressors * m[..., None]
    per_block = np.maximum(m.sum(axis=1), 1.0)[:, None, None]
    sweep = m[:, :, None] * np.eye(arms) - m[:, :, None] * m[:, None, :] / per_block
    z = sweep @ np.concatenate((x, y), axis=2)
    parts = (
        # The last arm is the reference: with the block swept out, the others' dummies fix it.
        sweep[:, :-1, :-1],
        z[:, :-1],
        (x * z[..., :-1]).sum(axis=1),
        (x * z[..., -1:]).sum(axis=1),
    )
    # Row 0 has all blocks, row b all but block b.
    tunings, cross, own, with_y = (
        part.sum(axis=0) - np.concatenate((np.zeros_like(part[:1]), part)) for part in parts
    )
    try:
        solved = np.linalg.solve(tunings, cross)
    except np.linalg.LinAlgError:  # without some block, an arm has no value left
        return [None] * count
    left = own - (cross[..., :-1] * solved[..., :-1]).sum(axis=1)
    known = (left > _NOTHING * np.maximum(own, 1.0)).all(axis=0)
    slopes = (with_y - (cross[..., :-1] * solved[..., -1:]).sum(axis=1)) / np.where(known, left, 1)
    without = slopes[1:] - slopes[1:].mean(axis=0)
    errors = np.sqrt((n - 1) / n * np.square(without).sum(axis=0))
    rounding = _NOTHING * float(np.abs(y).max())
    shares = x.sum(axis=0) / np.maximum(m.sum(axis=0), 1.0)[:, None]
    return [
        OrderEffect(
            float(slopes[0, q]),
            float(2 * stdtr(n - 1, -abs(slopes[0, q]) / errors[q])),
            dict(zip(of.arms, shares[:, q].tolist(), strict=True)),
        )
        if known[q] and errors[q] > rounding
        else None
        for q in range(count)
    ]
