"""Measure how intervals hold when blocks share boots: `python -m tools.boot_coverage`.

Simulated are effects of blocks in boots, normal, with a component that the boots share. For each
estimator the coverage of its 95 % interval and its median half-width are printed; the block's
standard deviation is 1 and the true effect 0. docs/decisions/boots-and-blocks.md holds the table.
"""

from __future__ import annotations

from collections.abc import Iterator

import click
import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtrc, stdtrit

RUNS = 20_000
SEED = 1
ALPHA = 0.05
DESIGNS = ((1, 10), (2, 5), (5, 2), (10, 1), (5, 4), (6, 5))
"""Boots, and blocks to each."""
BOOT_DEVIATIONS = (0.0, 0.5, 1.0, 2.0)
POOLED_UP_TO = 0.25
"""The level of the F test after which boots are ignored (Bancroft, 1964)."""

Numbers = NDArray[np.float64]


def half_widths(effects: Numbers) -> Iterator[tuple[str, Numbers]]:
    """Yield the half-widths of each estimator's interval; `effects` by run, boot and block."""
    _, boots, per_boot = effects.shape
    blocks = boots * per_boot
    means = effects.mean(axis=2)
    of_blocks = _t(blocks) * effects.std(axis=(1, 2), ddof=1) / np.sqrt(blocks)
    yield "blocks", of_blocks
    if boots == 1:
        return
    of_boots = _t(boots) * means.std(axis=1, ddof=1) / np.sqrt(boots)
    yield "boots", of_boots
    yield "the wider", np.maximum(of_blocks, of_boots)
    if per_boot == 1:
        return
    within = ((effects - means[:, :, None]) ** 2).sum(axis=(1, 2)) / (blocks - boots)
    between = per_boot * means.var(axis=1, ddof=1)
    p = fdtrc(boots - 1, blocks - boots, between / within)
    yield "boots if p < 0.25", np.where(p < POOLED_UP_TO, of_boots, of_blocks)


def _t(units: int) -> float:
    return float(stdtrit(units - 1, 1 - ALPHA / 2))


def main() -> None:
    generator = np.random.default_rng(SEED)
    click.echo(f"{RUNS} runs, seed {SEED}: coverage of {1 - ALPHA:.0%} (median half-width)")
    for boots, per_boot in DESIGNS:
        for deviation in BOOT_DEVIATIONS:
            effects = generator.normal(size=(RUNS, boots, per_boot))
            effects += deviation * generator.normal(size=(RUNS, boots, 1))
            distance = np.abs(effects.mean(axis=(1, 2)))
            cells = [
                f"{name} {np.mean(distance <= half):.1%} ({np.median(half):.2f})"
                for name, half in half_widths(effects)
            ]
            click.echo(f"{boots} x {per_boot}, boots' sd {deviation}: {', '.join(cells)}")


if __name__ == "__main__":
    main()
