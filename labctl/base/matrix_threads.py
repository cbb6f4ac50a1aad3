"""Keep numpy's library for matrices from taking threads of its own in this process.

OpenBLAS starts a thread for each CPU when it is loaded, numpy's and scipy's copy each. They look
for work without a pause before they sleep: a tenth of a second of CPU time for each report, which
a busy host needs, or a guest that is measured. labctl's matrices have some ten rows.
"""

from __future__ import annotations

import os
from typing import Final

_VARIABLE: Final = "OPENBLAS_NUM_THREADS"
_OURS: Final = "01"
"""Value that nobody else writes, so that it can be told from a user's own."""


def take_none() -> None:
    """Let libraries that are loaded from now on start no threads, unless the user says how many."""
    os.environ.setdefault(_VARIABLE, _OURS)


def environment() -> dict[str, str]:
    """Return the environment for other programs: as the user gave it to labctl."""
    return {
        name: value for name, value in os.environ.items() if (name, value) != (_VARIABLE, _OURS)
    }
