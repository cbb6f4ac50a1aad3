"""List what is said of spare blocks: which of them ran, and for what (METHOD 27).

Verdicts take them as any other block. That they ran hangs on which trials were valid alone, and
never on what was measured, so a comparison with nine planned blocks and a spare has ten.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from labctl.analysis.cells import Cell, cell_of, scenario_of
from labctl.analysis.model import Comparison, Spares
from labctl.analysis.words import listed
from labctl.store.records.plan_record import PlannedTrial
from labctl.store.run_folder import LoadedRun
from labctl.store.trial import TrialStatus

_MOST_NAMED = 3


def spares(run: LoadedRun) -> Spares | None:
    """Return the spares of a run's plan; None where it has none (any more: its rule may have ended
    it)."""
    planned = _blocks(run.plan.spares)
    if not planned:
        return None
    ran = spares_that_ran(run)
    return Spares(planned=len(planned), ran=ran, sentence=_sentence(run, ran) if ran else None)


def spares_that_ran(run: LoadedRun) -> tuple[int, ...]:
    """Return the numbers of the blocks that are spares, in order; () in most runs."""
    due = set(_blocks(run.plan.trials))
    return tuple(block for block in _blocks(run.plan.spares) if block in due)


def too_few_spares(run: LoadedRun, primaries: Sequence[Comparison]) -> Iterator[str]:
    """Warn where a comparison has fewer blocks than planned although every spare ran."""
    found = spares(run)
    if found is None or len(found.ran) < found.planned or run.run.status != "done":
        return
    planned = sum(block < found.ran[0] for block in _blocks(run.plan.trials))
    short = [c for c in primaries if len(c.blocks) < planned]
    if short:
        fewest = min(short, key=lambda c: len(c.blocks))
        which = "spare block was" if found.planned == 1 else f"{found.planned} spare blocks were"
        yield (
            f"The plan's {which} too few: '{fewest.tuning}' has {len(fewest.blocks)} of {planned} "
            f"blocks in {scenario_of(fewest)}."
        )


def _sentence(run: LoadedRun, ran: Sequence[int]) -> str:
    one = len(ran) == 1
    which = f"Block {ran[0]} is a spare" if one else f"Blocks {listed(_texts(ran), 10)} are spares"
    found = sorted(_lost(run, ran[0]).items(), key=lambda item: item[1])
    lost = [f"{cell} ({_noun(blocks)})" for cell, blocks in found]
    why = f"no attempt was valid for {listed(lost, _MOST_NAMED)}"
    if not lost:
        why = "a planned block had lost a value then, which a later attempt has measured"
    return f"{which}: {'it' if one else 'they'} ran because {why}."


def _lost(run: LoadedRun, before: int) -> dict[Cell, list[int]]:
    """Return, by cell, the planned blocks in which it was tried and has no valid trial."""
    tried: defaultdict[Cell, dict[int, bool]] = defaultdict(dict)
    for trial in run.trials:
        record = trial.record
        cell = cell_of(record.cell)
        if cell is not None and record.block < before:
            valid = record.status is TrialStatus.DONE
            tried[cell][record.block] = valid or tried[cell].get(record.block, False)
    lost = {cell: sorted(b for b, valid in of.items() if not valid) for cell, of in tried.items()}
    return {cell: blocks for cell, blocks in lost.items() if blocks}


def _blocks(trials: Sequence[PlannedTrial]) -> list[int]:
    return sorted({trial.block for trial in trials})


def _noun(blocks: Sequence[int]) -> str:
    return f"{'block' if len(blocks) == 1 else 'blocks'} {listed(_texts(blocks), 10)}"


def _texts(numbers: Sequence[int]) -> list[str]:
    return [str(number) for number in numbers]
