"""What a user asks of a sweep, with everything in a test's own folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from labctl.base.paths import StatePaths
from labctl.host.topology import Topology
from labctl.run.planning import host, plan
from labctl.run.planning.planned import SweepRequest


def request(tmp_path: Path, **fields: Any) -> SweepRequest:
    given = {
        "study": "pinning",
        "places": StatePaths(tmp_path / "state"),
        "results": tmp_path / "results",
        "quick": True,
        "seed": 7,
    }
    return SweepRequest(**{**given, **fields})


def plan_on(monkeypatch: pytest.MonkeyPatch, topology: Topology) -> None:
    """Have plans made for a host with that topology."""
    for module in (plan, plan):
        monkeypatch.setattr(module, "read_topology", lambda: topology)
    monkeypatch.setattr(host, "read_rt_runtime_us", lambda: 950_000)
