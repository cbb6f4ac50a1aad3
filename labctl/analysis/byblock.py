"""Hold numbers by block in one array: a long run has thousands of series of hundreds of blocks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class ByBlock(Mapping[int, float]):
    """Map block to number, in the order of the blocks."""

    __slots__ = ("array", "blocks")

    def __init__(self, blocks: tuple[int, ...], array: Floats) -> None:
        """`blocks` must be sorted; series that have the same may share them."""
        self.blocks = blocks
        self.array = array

    @classmethod
    def of(cls, numbers: Mapping[int, float]) -> ByBlock:
        if isinstance(numbers, ByBlock):
            return numbers
        blocks = tuple(sorted(numbers))
        return cls(blocks, np.array([numbers[block] for block in blocks], dtype=float))

    def at(self, blocks: tuple[int, ...]) -> Floats:
        """Return the numbers of these blocks; raises KeyError for one that isn't there."""
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

    # All at once, where a mapping's own views would look up one block after the other.
    def keys(self) -> KeysView[int]:
        return dict.fromkeys(self.blocks, 0.0).keys()

    def values(self) -> ValuesView[float]:
        return self._as_dict().values()

    def items(self) -> ItemsView[int, float]:
        return self._as_dict().items()

    def _as_dict(self) -> dict[int, float]:
        return dict(zip(self.blocks, self.array.tolist(), strict=True))
