"""Say what the verdicts of a run rest on, and what the rest of its blocks is worth (METHOD 22).

planned blocks, or those up to the last declared look ──▶ verdicts
all blocks, with those that were added after the result was known ──▶ estimates, exploratory
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from labctl.analysis.cells import Scenario, read_cells
from labctl.analysis.compare import comparisons
from labctl.analysis.design import read_design
from labctl.analysis.model import Added, Role
from labctl.analysis.spares import spares_that_ran
from labctl.analysis.stopping import before_first_look, last_block, look_reached, until
from labctl.analysis.verdicts import Eligibility
from labctl.analysis.words import capital
from labctl.base.stopping import Looks
from labctl.store.run_folder import LoadedRun


def confirmatory(run: LoadedRun) -> LoadedRun:
    """Return the part of a run that its verdicts rest on: nearly always all of it.

    Of a run with declared looks the blocks up to the last look that was reached; of any other, and
    of one that reached none, the blocks before its first extension.
    """
    last = _last_deciding(run)
    return run if last is None else until(run, last)


def _last_deciding(run: LoadedRun) -> int | None:
    """Return None where there is no block beyond it."""
    last, extensions = look_reached(run), run.plan.extensions
    rule = run.plan.rule
    if rule is not None and last == rule.most_blocks:
        # Spares stand in for blocks that the last look rests on.
        last = max((last, *spares_that_ran(run)))
    if last is None and extensions:
        last = extensions[0].first_block - 1
    return None if last is None or last >= last_block(run) else last


def added(
    run: LoadedRun, decided: LoadedRun, eligibilities: Mapping[Scenario, Eligibility]
) -> Added | None:
    """Return the estimates over all blocks of a run, where `decided` is its confirmatory part; None
    where that is all of it."""
    if decided is run:
        return None
    deciding, last = last_block(decided), last_block(run)
    # Numbers of spares that didn't run are left out.
    first = min(t.record.block for t in run.trials if t.record.block > deciding)
    over_all = comparisons(read_design(run), read_cells(run), eligibilities)
    return Added(
        first=first,
        last=last,
        label=_label(run, first, last),
        comparisons=tuple(
            replace(
                c,
                verdict=None,
                role=Role.EXPLORATORY,
                no_worse_than=None,
                no_worse=None,
                smallest_visible=None,
                blocks_needed=None,
            )
            for c in (one.comparison for one in over_all if one.is_primary)
        ),
    )


def caveat(more: Added | None, decided: LoadedRun) -> Iterator[str]:
    """Yield what to say of such blocks before anything else; nothing in most runs."""
    if more is not None:
        what = "All else here rests" if before_first_look(decided) else "The verdicts rest"
        blocks = len({trial.record.block for trial in decided.trials})
        yield f"{capital(more.label)}. {what} on the {blocks} blocks before."


def _label(run: LoadedRun, first: int, last: int) -> str:
    one = first == last
    blocks = f"block {first}" if one else f"blocks {first} to {last}"
    rule = run.plan.rule
    planned = max((trial.block for trial in run.plan.trials), default=0)
    if isinstance(rule, Looks) and (ahead := [n for n in rule.at if first <= n <= planned]):
        come = "comes" if one else "come"
        return f"exploratory: {blocks} {come} before the look at {ahead[0]}, not reached yet"
    return f"exploratory: {blocks} {'was' if one else 'were'} added after the result was known"
