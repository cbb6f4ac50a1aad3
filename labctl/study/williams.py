"""Balanced, seeded orders: Williams designs.

E. J. Williams, "Experimental designs balanced for the estimation of residual effects of
treatments", Australian Journal of Scientific Research A 2 (1949), 149-168: with an even number of
treatments n, n orders are enough for each to come equally often at every position and equally
often right after every other; with an odd number it takes 2n.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
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
    two orders of one seed are independent. Raises ValueError for doubled items.
    """
    names = sorted(items)
    if len(set(names)) != len(names):
        raise ValueError(f"doubled items: {', '.join(names)}")
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


def _shuffled(items: Sequence[Item], stream: str) -> list[Item]:
    # Sorting by a hash gives the same permutation under every Python version, which
    # random.shuffle does not promise ("Notes on Reproducibility" in its documentation).
    return sorted(items, key=lambda item: hashlib.sha256(f"{stream}/{item}".encode()).digest())
