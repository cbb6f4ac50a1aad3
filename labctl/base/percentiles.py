"""Of how many samples a percentile is told (METHOD rule 16)."""

from __future__ import annotations

import math

SAMPLES_BEYOND = 20
"""So many must lie beyond it: it would hang on a few of them otherwise."""


def samples_needed(q: float) -> int:
    """The fewest samples that the percentile q (0 < q < 1) is told of: 400 for 0.95."""
    # 1 - 0.95 is a little more than 0.05.
    return math.ceil(SAMPLES_BEYOND / (1 - q) - 1e-9)
