"""Add up times by pairs of threads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labctl.trace.model import Nanoseconds

_CELLS = 1 << 18
"""Cells of a table that is worth making for a few pairs."""
_MOST = 1 << 18
"""Sums that are kept before those of the same pair are added up: it bounds the memory."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Hold columns of one length. `first`, `second`: the numbers of two threads."""

    first: NDArray[np.int32]
    second: NDArray[np.int32]
    length_ns: Nanoseconds


class SumsOfPairs:
    """Add up, for each pair of threads that is told of, for however short. `count`: above all
    numbers of threads."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._parts: list[tuple[NDArray[np.int64], Nanoseconds]] = []
        self._kept = 0

    def add(self, pairs: Pairs) -> None:
        """Take pairs, all of whose times add up to less than 2^53 ns, some hundred days."""
        if not len(pairs.first):
            return
        least = int(pairs.first.min())
        cells = (int(pairs.first.max()) - least + 1) * self._count
        pair = (pairs.first.astype(np.int64) - least) * self._count + pairs.second
        if cells <= max(_CELLS, 4 * len(pair)):
            found = np.flatnonzero(np.bincount(pair))
            total = np.bincount(pair, weights=pairs.length_ns)[found]
        else:
            found, place = np.unique(pair, return_inverse=True)
            total = np.bincount(place, weights=pairs.length_ns)
        self._parts.append((found + least * self._count, total.astype(np.int64)))
        self._kept += len(found)
        if self._kept > _MOST:
            self._parts = [self._added_up()]
            self._kept = 0

    def _added_up(self) -> tuple[NDArray[np.int64], Nanoseconds]:
        nothing = np.zeros(0, np.int64)
        pair, place = np.unique(
            np.concatenate([nothing, *(pair for pair, _ in self._parts)]), return_inverse=True
        )
        total_ns = np.zeros(len(pair), np.int64)
        np.add.at(total_ns, place, np.concatenate([nothing, *(part for _, part in self._parts)]))
        return pair, total_ns

    def found(self) -> tuple[NDArray[np.int64], NDArray[np.int64], Nanoseconds]:
        """Return both threads of each pair, in order, and its sum."""
        pair, total_ns = self._added_up()
        return pair // self._count, pair % self._count, total_ns
