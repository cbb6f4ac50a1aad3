"""A figure, and how it stands to what it is meant to be."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

_COMPARISONS: dict[str, tuple[str, Callable[[float, float], bool]]] = {
    "under": ("<", operator.lt),
    "at most": ("≤", operator.le),
    "at least": ("≥", operator.ge),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A measured value and what it is meant to be. `value` is None where `note` says why."""

    name: str
    value: float | None
    unit: str
    comparison: str
    limit: float
    note: str = ""
    values: tuple[float, ...] = field(default_factory=tuple)
    """Numbers that the value was made of, in its unit."""

    @property
    def met(self) -> bool | None:
        """None when nothing was measured."""
        if self.value is None:
            return None
        return _COMPARISONS[self.comparison][1](self.value, self.limit)

    @property
    def target(self) -> str:
        return f"{_COMPARISONS[self.comparison][0]} {self.limit:g} {self.unit}".rstrip()

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "target": {"comparison": self.comparison, "limit": self.limit},
            "met": self.met,
            "note": self.note,
            "values": list(self.values),
        }


def measured(figure: Figure, values: Sequence[float], note: str) -> Figure:
    """Return the figure with the median of its values."""
    return replace(figure, value=statistics.median(values), values=tuple(values), note=note)
