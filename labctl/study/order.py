"""In which order the trials of a block come. Pure; from the seed and the block's number alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import product

from labctl.study.williams import block_order

FACTORS = ("tuning", "workload", "condition")
"""The factors that a cell assigns levels to; later studies add more."""


def cells_of(
    block: int,
    *,
    seed: int,
    kinds: Mapping[str, str],
    workloads: Collection[str],
    conditions: Collection[str],
    skipped: Mapping[str, Mapping[str, str]],
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield position and cell of each trial of a block, in order. `kinds`: of each tuning;
    `skipped`: workloads with the kinds that can't have them.

    A tuning is restored once per block and all its trials run inside that restore; their order is
    the same for every tuning of the block, so that what one trial does to the next cancels in the
    comparison.
    """
    pairs = {"/".join(pair): pair for pair in product(workloads, conditions)}
    inside = block_order(pairs, seed=seed, block=block, what="trials")
    order = block_order(kinds, seed=seed, block=block, what="tunings")
    for position, tuning in enumerate(order, start=1):
        for workload, condition in (pairs[name] for name in inside):
            if kinds[tuning] not in skipped.get(workload, {}):
                yield position, dict(zip(FACTORS, (tuning, workload, condition), strict=True))


def boot_of(block: int, blocks_per_boot: int) -> int:
    """Return the boot that a block shares, from 1. From the block's number alone, so that it
    stays."""
    return (block + blocks_per_boot - 1) // blocks_per_boot
