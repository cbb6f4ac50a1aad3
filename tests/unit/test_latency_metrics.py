"""The figures by which the primary metric of latencies was chosen are those of the recorded run."""

from __future__ import annotations

from pathlib import Path

from tests.unit.example import EXAMPLE
from tools.latency_metrics import Recorded

PAGE = Path(__file__).parents[2] / "docs/decisions/latency-is-open-loop.md"


def test_the_decision_shows_what_the_recorded_run_gives() -> None:
    recorded = Recorded.of(EXAMPLE)
    lines = PAGE.read_text().splitlines()
    for line in (*recorded.table(), *recorded.blocks_of("pinned+fifo")):
        assert line in lines, "python -m tools.latency_metrics, with --arm pinned+fifo and without"
