"""Decide a run's verdicts: comparisons and checks, without their words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from labctl.analysis.answer.words import capital, listed
from labctl.analysis.effects.cells import Cell, Cells, Scenario, cell_of, read_cells, scenario_of
from labctl.analysis.effects.compare import Compared, comparisons
from labctl.analysis.effects.design import Design, read_design
from labctl.analysis.factors import analyse_factors
from labctl.analysis.model import Added, Comparison, FactorAnalysis, Role, RunCheck, Spares
from labctl.analysis.verdicts.checks import Checked, check, restore_checks, restore_differs
from labctl.analysis.verdicts.family import stepped_down
from labctl.analysis.verdicts.looks import (
    Stop,
    before_first_look,
    half_width,
    last_block,
    look_reached,
    stop_after,
    until,
)
from labctl.analysis.verdicts.rules import Eligibility
from labctl.analysis.verdicts.table import Verdict
from labctl.base.stopping import Looks
from labctl.store.records.plan_record import PlannedTrial
from labctl.store.records.run_record import LeftOut, LookTaken
from labctl.store.run_folder import LoadedRun
from labctl.store.trial import TrialStatus

# Report spare blocks: which of them ran, and why (METHOD 27).
#
# Verdicts use them like any other block. Whether they ran depends only on the validity of trials,
# and never on measured values, so a comparison with nine planned blocks and a spare has ten.


_MOST_NAMED = 3


def spares(run: LoadedRun) -> Spares | None:
    """Return the spares of a run's plan; None if it has none, or has none left because its rule
    ended the run."""
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
    """Warn if a comparison has fewer blocks than planned although every spare ran."""
    found = spares(run)
    if found is None or len(found.ran) < found.planned or run.run.status != "done":
        return
    planned = sum(block < found.ran[0] for block in _blocks(run.plan.trials))
    short = [c for c in primaries if len(c.blocks) < planned]
    if short:
        fewest = min(short, key=lambda c: len(c.blocks))
        which = "spare block was" if found.planned == 1 else f"{found.planned} spare blocks were"
        yield (
            f"The plan's {which} not enough: '{fewest.tuning}' has {len(fewest.blocks)} of "
            f"{planned} blocks in {scenario_of(fewest)}."
        )


def _sentence(run: LoadedRun, ran: Sequence[int]) -> str:
    one = len(ran) == 1
    which = f"Block {ran[0]} is a spare" if one else f"Blocks {listed(_texts(ran), 10)} are spares"
    found = sorted(_lost(run, ran[0]).items(), key=lambda item: item[1])
    lost = [f"{cell} ({_noun(blocks)})" for cell, blocks in found]
    why = f"{listed(lost, _MOST_NAMED)} had no valid attempt"
    if not lost:
        why = "a planned block had lost a value, which a later attempt measured"
    return f"{which}: {'it' if one else 'they'} ran because {why}."


def _lost(run: LoadedRun, before: int) -> dict[Cell, list[int]]:
    """Return, by cell, the planned blocks in which it was tried without a valid trial."""
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


# Choose the blocks on which a run's verdicts rest; the others are exploratory (METHOD 22).
#
# planned blocks, or those up to the last declared look ──▶ verdicts
# all blocks, with those that were added after the result was known ──▶ estimates, exploratory


def confirmatory(run: LoadedRun) -> LoadedRun:
    """Return the part of a run on which its verdicts rest: nearly always all of it.

    For a run with declared looks it is the blocks up to the last look that was reached; for any
    other run, and for one that reached none, the blocks before its first extension.
    """
    last = _last_deciding(run)
    return run if last is None else until(run, last)


def _last_deciding(run: LoadedRun) -> int | None:
    """Return the last block on which verdicts rest; None if it is the run's last."""
    last, extensions = look_reached(run), run.plan.extensions
    rule = run.plan.rule
    if rule is not None and last == rule.most_blocks:
        # Spares replace blocks on which the last look rests.
        last = max((last, *spares_that_ran(run)))
    if last is None and extensions:
        last = extensions[0].first_block - 1
    return None if last is None or last >= last_block(run) else last


def added(
    run: LoadedRun, decided: LoadedRun, eligibilities: Mapping[Scenario, Eligibility]
) -> Added | None:
    """Return the estimates over all blocks of a run with the confirmatory part `decided`; None if
    that is the whole run."""
    if decided is run:
        return None
    deciding, last = last_block(decided), last_block(run)
    # Numbers of spares that did not run are left out.
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
    """Yield the caveat about such blocks; nothing in most runs."""
    if more is not None:
        what = "Everything else here rests" if before_first_look(decided) else "The verdicts rest"
        blocks = len({trial.record.block for trial in decided.trials})
        yield f"{capital(more.label)}. {what} on the {blocks} blocks before."


def _label(run: LoadedRun, first: int, last: int) -> str:
    one = first == last
    blocks = f"block {first}" if one else f"blocks {first} to {last}"
    rule = run.plan.rule
    planned = max((trial.block for trial in run.plan.trials), default=0)
    if isinstance(rule, Looks) and (ahead := [n for n in rule.at if first <= n <= planned]):
        come = "comes" if one else "come"
        return (
            f"exploratory: {blocks} {come} before the look at {ahead[0]}, which is not reached yet"
        )
    return f"exploratory: {blocks} {'was' if one else 'were'} added after the result was known"


@dataclass(frozen=True)
class Decided:
    """Hold the verdicts of a run and their input. `run`: the part of it on which they rest."""

    run: LoadedRun
    design: Design
    cells: Cells
    checked: Mapping[Scenario, Checked]
    made: tuple[Compared, ...]

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        return tuple(one.comparison for one in self.made)

    @property
    def factors(self) -> FactorAnalysis | None:
        """Return the results on the run's factors; None without factors."""
        return analyse_factors(self.run.plan.factorial, self.design, self.cells)

    @property
    def eligibilities(self) -> dict[Scenario, Eligibility]:
        return {place: checked.eligibility for place, checked in self.checked.items()}

    @cached_property
    def restored(self) -> tuple[RunCheck, ...]:
        """Return the checks of tunings that the plan has restored and booted; () in most runs."""
        return tuple(restore_checks(self.design, self.cells, self.eligibilities))


def decide(run: LoadedRun) -> Decided:
    """Return comparisons, checks and verdicts only: the part of a judgement that can be wrong,
    which thousands of simulated runs need. Never raises."""
    deciding = confirmatory(run)
    rule = deciding.plan.rule
    now = _decide(deciding)
    if not (isinstance(rule, Looks) and rule.drops):
        return now
    fell: dict[tuple[str, Scenario], Compared] = {}
    for blocks in rule.at:
        if blocks > last_block(deciding):
            break
        # The last look also rests on the spares.
        ends = blocks in (rule.most_blocks, last_block(deciding))
        at = now if ends else _decide(until(deciding, blocks))
        for one in at.made:
            if one.is_primary and _is_decided(one.comparison):
                found = replace(one, comparison=replace(one.comparison, look=blocks))
                fell.setdefault((one.comparison.tuning, one.place), found)
    return replace(now, made=tuple(_as_it_fell(one, now, fell) for one in now.made))


def _as_it_fell(
    one: Compared, now: Decided, fell: Mapping[tuple[str, Scenario], Compared]
) -> Compared:
    """Return a primary comparison as it was at the look that decided it. A control that fails later
    still suspends it."""
    if not one.is_primary or now.checked[one.place].control.passed is False:
        return one
    return fell.get((one.comparison.tuning, one.place), one)


def _decide(deciding: LoadedRun) -> Decided:
    """Return the verdicts over all blocks of a run at once."""
    design = read_design(deciding)
    cells = read_cells(deciding)
    checked = {
        place: check(design, cells, place, primary)
        for place in design.places
        if design.baseline is not None
        and (primary := design.primaries.get(place.workload)) is not None
    }
    eligibilities = {place: of.eligibility for place, of in checked.items()}
    made = tuple(
        stepped_down(tuple(comparisons(design, cells, eligibilities)), design, eligibilities)
    )
    return Decided(deciding, design, cells, checked, made)


# Decide at a look which cells continue (METHOD 22).
#
# A tuning is measured until it is decided in a place; baseline and control as long as any tuning is
# undecided there, the known-loss arm until it is detected; native arms until their intervals are
# narrow enough for the table. A tuning that the plan has restored and booted (METHOD 8) continues
# both ways until it is known whether its effect is the same.


def look_at(run: LoadedRun, blocks: int) -> Stop | LookTaken | None:
    """Return the decision of the plan's rule after so many whole blocks: the run ends, or continues
    without some cells; None: it continues unchanged.

    After the last block of looks that drop, nothing ends early; decided cells are left out of later
    extensions of the run.
    """
    rule = run.plan.rule
    if rule is None:
        return None
    decided = decide(until(run, blocks))
    if not (isinstance(rule, Looks) and rule.drops):
        return stop_after(decided, rule, blocks)
    if blocks not in rule.at or not any(one.is_primary for one in decided.made):
        return None
    left_out = tuple(_left_out(decided, rule))
    places = {place for place in decided.design.places if _is_open(place, decided)}
    if places:
        # Contrasts of factors need all of their cells.
        return None if run.plan.factorial else LookTaken(blocks=blocks, left_out=left_out)
    if blocks == rule.most_blocks:
        return None
    number = rule.at.index(blocks) + 1
    also = ", and so had every restore" if decided.restored else ""
    return Stop(
        blocks, f"at look {number} of {len(rule.at)} every primary comparison had a verdict{also}"
    )


def _left_out(decided: Decided, rule: Looks) -> Iterator[LeftOut]:
    design = decided.design
    for cell in sorted(design.planned_cells):
        name, place = cell.tuning, cell.place
        every: int | None = None
        if not _is_open(place, decided):
            every = 0
        elif name in design.natives:
            every = 0 if _is_narrow(name, place, decided, rule.native_width) else 2
        elif name == design.known_loss:
            every = 0 if _found_known_loss(place, decided) else None
        elif name in design.candidates:
            every = None if _is_undecided(name, place, decided) else 0
        elif name in design.restored_as:
            unchecked, restored = _unchecked(place, decided), design.restored_as[name]
            is_open = bool(unchecked) if restored == design.baseline else restored in unchecked
            every = None if is_open else 0
        if every is not None:
            yield LeftOut(
                tuning=name, workload=place.workload, condition=place.condition, every=every
            )


def _is_open(place: Scenario, decided: Decided) -> bool:
    return any(_is_undecided(name, place, decided) for name in decided.design.candidates)


def _is_undecided(name: str, place: Scenario, decided: Decided) -> bool:
    """Return whether a tuning is undecided in a place where the plan has it."""
    design = decided.design
    if Cell(name, place) not in design.planned_cells or place.workload not in design.primaries:
        return False
    if name in _unchecked(place, decided):
        return True
    return not any(
        one.is_primary
        and (one.comparison.tuning, one.place) == (name, place)
        and _is_decided(one.comparison)
        for one in decided.made
    )


def _unchecked(place: Scenario, decided: Decided) -> set[str]:
    """Return the tunings of which it is open whether they have the same effect restored and
    booted."""
    return {
        check.name
        for check in decided.restored
        if scenario_of(check) == place and not (check.passed or restore_differs(check))
    }


def _is_decided(c: Comparison) -> bool:
    """Return whether a comparison needs no more blocks. The interval of an equal tuning may still
    include the loss that a recommendation must exclude."""
    if c.verdict is None or not c.verdict.row.is_final:
        return False
    return c.verdict is not Verdict.EQUIVALENT or bool(c.no_worse)


def _found_known_loss(place: Scenario, decided: Decided) -> bool:
    primary = decided.design.primaries[place.workload]
    return decided.checked[place].eligibility.sees(min(primary.margin, primary.no_worse_than))


def _is_narrow(name: str, place: Scenario, decided: Decided, width: float) -> bool:
    """Return whether all intervals of a native arm's primary metric are narrow enough."""
    primary = decided.design.primaries.get(place.workload)
    for one in decided.made:
        c = one.comparison
        if primary is None or one.place != place or c.metric != primary.metric:
            continue
        if name in (c.tuning, c.against) and c.against in decided.design.natives:
            found = half_width(c)
            if found is not None and found > width:
                return False
    return True
