"""Signs in the values of all arms: drift of the level, position in the block, carry-over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from labctl.analysis.cells import Cells
from labctl.analysis.effects import by_ratio, on_scale, ratio_of
from labctl.analysis.model import EffectKind, Sign, SignKind
from labctl.analysis.signs import series
from labctl.analysis.signs.lines import LEVEL, Ground, by_boot
from labctl.analysis.signs.order import OrderEffect, layout, order_effects
from labctl.analysis.verdicts import FEWEST_BLOCKS
from labctl.analysis.words import change_text
from labctl.base.units import Unit
from labctl.base.wording import metric_title

_HARMFUL = 0.25
"""From this share of the margin on, a bias by the order is grave."""


@dataclass(frozen=True, slots=True)
class _Levels:
    """Values of the arms that have blocks enough, by arm and block, as logarithms for ratios."""

    by_arm: Mapping[str, Mapping[int, float]]
    kind: EffectKind
    unit: Unit
    boots: Sequence[Mapping[int, int]]
    """Of each arm, its boots by block."""

    def text(self, effect: float) -> str:
        shown = ratio_of(effect) if self.kind is EffectKind.RATIO else effect
        return change_text(shown, self.kind, self.unit)


def _levels(ground: Ground, cells: Cells) -> _Levels:
    """At least baseline's: a place without has no lines."""
    arms = {
        cell.tuning: found
        for cell, by_key in cells.series.items()
        if cell.place == ground.place
        and (found := by_key.get(ground.primary.metric)) is not None
        and len(found.values) >= FEWEST_BLOCKS
    }
    logs = by_ratio(list(arms.values()))
    by_arm = {
        arm: dict(zip(of.values, np.log(list(of.values.values())).tolist(), strict=True))
        if logs
        else of.values
        for arm, of in arms.items()
    }
    boots = [of.boots for of in arms.values()]
    kind = EffectKind.RATIO if logs else EffectKind.DIFFERENCE
    return _Levels(by_arm, kind, next(iter(arms.values())).sample.unit, boots)


def level_signs(
    ground: Ground, cells: Cells, orders: Mapping[int, Sequence[str]]
) -> Iterator[Sign]:
    """Signs in the values of all arms at a place where baseline has blocks enough. `orders`: the
    arms of each block as they ran."""
    levels = _levels(ground, cells)
    yield from _level_drift(ground, levels)
    yield from _order(ground, levels, orders)


def _level_drift(ground: Ground, levels: _Levels) -> Iterator[Sign]:
    """A trend in what all arms have in common."""
    blocks = sorted(set.intersection(*(set(values) for values in levels.by_arm.values())))
    if len(blocks) < FEWEST_BLOCKS:
        return
    common = np.array([[arm[block] for block in blocks] for arm in levels.by_arm.values()])
    means = common.mean(axis=0)
    boots = by_boot(blocks, levels.boots)
    if series.trend(means, boots) > LEVEL:
        return
    change = levels.text(series.slope(means, blocks, boots))
    yield ground.sign(
        SignKind.DRIFT,
        None,
        f"{metric_title(ground.primary.metric)} of all arms together drifts, by about {change} "
        "from block to block. Arms are compared within a block, so verdicts and intervals don't "
        "feel it; typical values do, and the host was not steady: look at temperature, frequency "
        "and other guests.",
        grave=False,
    )


def _order(ground: Ground, levels: _Levels, orders: Mapping[int, Sequence[str]]) -> Iterator[Sign]:
    """Does it matter when in its block an arm ran, or after which?"""
    values = levels.by_arm.values()
    ran = {
        block: order
        for block, order in orders.items()
        if sum(block in by_block for by_block in values) > 1
    }
    if len(values) < 3 or len(ran) < FEWEST_BLOCKS:
        return
    by_position, after = order_effects(layout(levels.by_arm, ran))
    title = metric_title(ground.primary.metric)
    arms = max(map(len, orders.values()))
    if by_position is not None and by_position.p <= LEVEL:
        bias, grave = _bias(ground, levels, by_position, arms)
        yield ground.sign(
            SignKind.POSITION,
            None,
            f"{title} depends on when in its block an arm runs: {levels.text(by_position.effect)} "
            f"from one position to the next. {bias} Look at what builds up within a block "
            "(temperature, page cache, free memory); a longer warm-up or a pause may end it.",
            grave=grave,
        )
    for arm, found in after.items():
        if found.p <= LEVEL / len(levels.by_arm):
            # A Williams design of an odd number takes twice as many rows for that.
            rows = arms if arms % 2 == 0 else 2 * arms
            bias, grave = _bias(ground, levels, found, rows, after=arm)
            yield ground.sign(
                SignKind.CARRY_OVER,
                arm,
                f"What runs right after '{arm}' differs: {title} {levels.text(found.effect)} "
                f"against running after another arm. {bias} Look at what it leaves behind (heat, "
                "dirty pages, a setting of the host), and see that it ends before the next begins.",
                grave=grave,
            )


def _bias(
    ground: Ground, levels: _Levels, of: OrderEffect, rows: int, after: str | None = None
) -> tuple[str, bool]:
    """What the design leaves of it in the effects, and whether that matters. `rows`: the blocks
    after which nothing is left of it; but no arm runs after itself, so what `after` leaves behind
    burdens all others and not its own."""
    design = ground.design
    both = (design.baseline, design.control)
    references = [of.shares[arm] for arm in both if arm is not None and arm in of.shares]
    biases = {
        arm: of.effect * (of.shares[arm] - sum(references) / len(references))
        for arm in design.candidates
        if arm in of.shares and references
    }
    if not biases:
        return "", False
    worst = max(biases, key=lambda arm: abs(biases[arm]))
    size = levels.text(biases[worst])
    grave = abs(biases[worst]) > _HARMFUL * on_scale(ground.primary.margin, levels.kind)
    if grave:
        balance = (
            "no number of blocks balances all of that, as no arm runs after itself."
            if after in (worst, *both)
            else f"{rows} blocks or a multiple of that balance it."
        )
        return (
            f"These blocks don't balance the order, so {size} of the effect of '{worst}' is the "
            f"order's; {balance}",
            True,
        )
    return (
        f"The order is balanced enough: of no tuning's effect is more than {size} the order's "
        f"('{worst}').",
        False,
    )
