"""Shares of simulated runs, with how well they are known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from scipy.special import betaincinv

SURE = 0.999
"""The confidence with which a promise is called broken."""


@dataclass(frozen=True, slots=True)
class Rate:
    """`hits` among `n`; its limits are those of Clopper and Pearson (Biometrika 26, 1934)."""

    hits: int
    n: int

    @classmethod
    def of(cls, found: Iterable[bool]) -> Rate:
        answers = list(found)
        return cls(sum(answers), len(answers))

    @property
    def share(self) -> float:
        return self.hits / self.n

    @property
    def upper(self) -> float:
        """The upper limit of confidence 95 %, one-sided."""
        return self.limit(0.95)

    def limit(self, confidence: float) -> float:
        """Return the one-sided upper limit of that confidence."""
        if self.hits == self.n:
            return 1.0
        return float(betaincinv(self.hits + 1, self.n - self.hits, confidence))

    def lower_limit(self, confidence: float) -> float:
        """Return the one-sided lower limit of that confidence."""
        return 1 - Rate(self.n - self.hits, self.n).limit(confidence)

    def to_json(self) -> dict[str, Any]:
        return {"hits": self.hits, "n": self.n, "share": self.share, "upper_95": self.upper}

    def __add__(self, other: Rate) -> Rate:
        return Rate(self.hits + other.hits, self.n + other.n)
