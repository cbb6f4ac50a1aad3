"""Say where a plan decides by latencies that leave out what a stall hid (METHOD 26)."""

from __future__ import annotations

from collections.abc import Iterator

from labctl.analysis.cells import Cells
from labctl.analysis.design import Design
from labctl.base.latencies import CLOSED, OPEN, SKIP_PERIODS
from labctl.base.wording import metric_title
from labctl.store.run_folder import LoadedRun


def closed_loop(run: LoadedRun, design: Design, cells: Cells) -> Iterator[str]:
    """Yield a sentence for each workload whose program tells of every period, and is judged
    otherwise: plans made before the open-loop latencies were, or by choice."""
    for name, primary in design.primaries.items():
        program = run.plan.workloads[name].program
        if program not in SKIP_PERIODS or not primary.metric.startswith(CLOSED):
            continue
        there = any(
            key.startswith(OPEN)
            for cell, by_key in cells.series.items()
            if cell.place.workload == name
            for key in by_key
        )
        remedy = (
            "The open-loop latencies beside it put these periods back; they get no verdict, as the "
            "plan names another primary metric."
            if there
            else f"'labctl run reparse {run.name}' adds open-loop latencies, which put these "
            "periods back."
        )
        yield (
            f"What is said of '{name}' by its {metric_title(primary.metric)} can't be trusted: "
            f"{program} skips the periods that a stall hides (coordinated omission), so a stall of "
            f"any length is one late wake-up. {remedy}"
        )
