"""Share one point in time among nested waits, instead of timeouts that each wait shrinks."""

from __future__ import annotations

import time
from dataclasses import dataclass

from labctl.base.errors import DeadlineError


@dataclass(frozen=True, slots=True)
class Deadline:
    """Bound `what`: it must be over at `at` (CLOCK_MONOTONIC, seconds)."""

    what: str
    at: float
    seconds: float

    @classmethod
    def after(cls, seconds: float, what: str) -> Deadline:
        return cls(what=what, at=time.monotonic() + seconds, seconds=seconds)

    def remaining(self) -> float:
        """Return seconds left; raises DeadlineError when there are none."""
        left = self.at - time.monotonic()
        if left <= 0:
            raise self.error()
        return left

    @property
    def expired(self) -> bool:
        return time.monotonic() >= self.at

    def error(self) -> DeadlineError:
        return DeadlineError(f"{self.what} was not done within {self.seconds:g} s")
