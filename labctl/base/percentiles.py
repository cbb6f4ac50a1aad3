"""Say how many samples a percentile takes (METHOD rule 16), and how many unseen ones it bears."""

from __future__ import annotations

import math

SAMPLES_BEYOND = 20
"""So many must lie beyond it: it would hang on a few of them otherwise."""


def samples_needed(q: float) -> int:
    """Return the fewest samples that the percentile q (0 < q < 1) is told of: 400 for 0.95."""
    # 1 - 0.95 is a little more than 0.05.
    return math.ceil(SAMPLES_BEYOND / (1 - q) - 1e-9)


TENTH = 0.1
"""Limit on how far unknown values may move a reported one."""


def bears_unseen(q: float, seen: int, unseen: int) -> bool:
    """Return whether the percentile q (0 < q < 1) of the values that were seen may stand for all of
    them.

    The unseen ones may all lie beyond it. As long as they are at most a tenth of the values that
    do (1 in 200 for 0.95), what is told is a percentile between q - 0.1 (1 - q) and q + 0.1 (1 - q)
    of all: for 0.95, between the 94.5th and the 95.5th.
    """
    return unseen <= TENTH * (1 - q) * (seen + unseen) + 1e-9
