"""Hold a limit on a metric: the maximum or minimum of a value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from labctl.base.notation import quantity
from labctl.base.units import Unit


class Bound(StrEnum):
    BELOW = "<"
    AT_MOST = "<="
    ABOVE = ">"
    AT_LEAST = ">="

    @property
    def is_upper(self) -> bool:
        """Return whether smaller values are within the limit."""
        return self in (Bound.BELOW, Bound.AT_MOST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Hold a metric's limit. `value`: in labctl's own `unit`."""

    metric: str
    bound: Bound
    value: float
    unit: Unit

    def holds(self, value: float) -> bool:
        match self.bound:
            case Bound.BELOW:
                return value < self.value
            case Bound.AT_MOST:
                return value <= self.value
            case Bound.ABOVE:
                return value > self.value
            case Bound.AT_LEAST:
                return value >= self.value

    def worst(self, values: Iterable[float]) -> float:
        """Return the value that breaks the limit first. Raises ValueError without values."""
        return max(values) if self.bound.is_upper else min(values)

    def __str__(self) -> str:
        """Return "frame_p95 < 16.0 ms"."""
        return f"{self.metric} {self.bound} {quantity(self.value, self.unit)}"
