"""What a user asks of a sweep, with everything in a test's own folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from labctl.base.paths import StatePaths
from labctl.run.planning.planner import SweepRequest


def request(tmp_path: Path, **fields: Any) -> SweepRequest:
    given = {
        "study": "pinning",
        "places": StatePaths(tmp_path / "state"),
        "results": tmp_path / "results",
        "quick": True,
        "seed": 7,
    }
    return SweepRequest(**{**given, **fields})
