"""Balance orders with seeded Williams designs.

E. J. Williams, "Experimental designs balanced for the estimation of residual effects of
treatments", Australian Journal of Scientific Research A 2 (1949), 149-168: with an even number of
treatments n, n orders are enough for each to come equally often at every position and equally
often right after every other; with an odd number it takes 2n.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import TypeVar

Item = TypeVar("Item", int, str)

Row = tuple[int, ...]


def williams_rows(n: int) -> tuple[Row, ...]:
    """Return the orders of a Williams design for treatments 0 to n - 1: n rows, for odd n 2n.

    An odd design's first n rows are a Latin square already: positions are balanced after n rows,
    predecessors after 2n. Raises ValueError for n < 1.
    """
    if n < 1:
        raise ValueError(f"a design needs at least one treatment, not {n}")
    # 0, 1, n-1, 2, n-2, ...: the differences of neighbours are all different modulo n.
    first = [(k + 1) // 2 if k % 2 else (n - k // 2) % n for k in range(n)]
    square = tuple(tuple((start + shift) % n for start in first) for shift in range(n))
    if n % 2 == 0:
        return square
    # With odd n half of the differences occur twice and half not at all: the mirror image has
    # the others.
    return square + tuple(row[::-1] for row in square)


def block_order(items: Iterable[str], *, seed: int, block: int, what: str) -> tuple[str, ...]:
    """Return the order of `items` in a block (numbered from 1), drawn from a seeded Williams
    design.

    It follows from its arguments alone, so that more blocks never change the earlier ones; the
    order in which `items` come does not matter. `what` names the thing that is ordered, so that
    two orders of one seed are independent. Raises ValueError for duplicate items.
    """
    names = sorted(items)
    if len(set(names)) != len(names):
        raise ValueError(f"duplicate items: {', '.join(names)}")
    if block < 1:
        raise ValueError(f"blocks are numbered from 1, not {block}")
    n = len(names)
    rows = williams_rows(n)
    cycle, index = divmod(block - 1, len(rows))
    half, within = divmod(index, n)
    stream = f"{seed}/{what}/{cycle}"
    labels = _shuffled(names, f"{stream}/labels")
    # Rows are shuffled inside each Latin square, so that every n blocks balance the positions.
    row = rows[half * n + _shuffled(range(n), f"{stream}/rows/{half}")[within]]
    return tuple(labels[treatment] for treatment in row)


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
    only: Collection[tuple[str, str, str]] | None = None,
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield position and cell of each trial of a block, in order. `kinds`: of each tuning;
    `skipped`: workloads with the kinds that can't have them; `only`: the cells of a plan that
    doesn't have all combinations.

    A tuning is restored once per block and all its trials run inside that restore; their order is
    the same for every tuning of the block, so that what one trial does to the next cancels in the
    comparison.
    """
    pairs = {"/".join(pair): pair for pair in product(workloads, conditions)}
    inside = block_order(pairs, seed=seed, block=block, what="trials")
    order = block_order(kinds, seed=seed, block=block, what="tunings")
    for position, tuning in enumerate(order, start=1):
        for workload, condition in (pairs[name] for name in inside):
            cell = (tuning, workload, condition)
            if kinds[tuning] not in skipped.get(workload, {}) and (only is None or cell in only):
                yield position, dict(zip(FACTORS, cell, strict=True))


def boot_of(block: int, blocks_per_boot: int) -> int:
    """Return the boot that a block shares, from 1. From the block's number alone, so that it
    stays."""
    return (block + blocks_per_boot - 1) // blocks_per_boot


def _shuffled(items: Sequence[Item], stream: str) -> list[Item]:
    # Sorting by a hash gives the same permutation under every Python version, which
    # random.shuffle does not promise ("Notes on Reproducibility" in its documentation).
    return sorted(items, key=lambda item: hashlib.sha256(f"{stream}/{item}".encode()).digest())
