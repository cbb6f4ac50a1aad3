"""Say what weakens a run's verdicts, or why there is none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from labctl.analysis.cells import Cell, Scenario, scenario_of
from labctl.analysis.checks import Checked, together
from labctl.analysis.design import Design
from labctl.analysis.model import Comparison, Diagnostic, RunCheck
from labctl.analysis.stopping import lacks_trials, last_block
from labctl.analysis.verdict_table import Verdict
from labctl.analysis.verdicts import FEWEST_BLOCKS
from labctl.analysis.words import listed
from labctl.base.stopping import Looks
from labctl.base.units import Better
from labctl.base.wording import counted
from labctl.store.run_folder import LoadedRun

_FEW_BOOTS = 5
"""Fewest boots: with fewer, t has so few degrees of freedom that the boots are what makes an
interval wide.
"""


def failed_checks(checks: Sequence[Checked], primaries: Sequence[Comparison]) -> Iterator[str]:
    if not primaries:
        return
    most = max(len(c.blocks) for c in primaries)
    if most < FEWEST_BLOCKS:
        yield (
            f"Demonstration, no verdict: {counted(most, 'block')} where a verdict takes "
            f"{FEWEST_BLOCKS}. The A/A control and the known-loss arm cannot be checked either."
        )
        return
    controls = [check.control for check in checks]
    yield from together(c for c in controls if c.passed is False)
    yield from together(c for c in controls if c.passed is None)
    yield from together(c.known_loss for c in checks if c.known_loss.passed is not True)


def before_first_look(run: LoadedRun, primaries: Sequence[Comparison]) -> Iterator[str]:
    rule = run.plan.rule
    if isinstance(rule, Looks) and any(c.verdict is Verdict.BEFORE_LOOK for c in primaries):
        lack = lacks_trials(run) or last_block(run) + 1
        yield (
            f"No verdict: the first look that the plan declares comes after {rule.at[0]} blocks, "
            f"and block {lack} lacks trials."
        )


def grave_diagnostics(diagnostics: Sequence[Diagnostic]) -> Iterator[str]:
    """Warn that intervals may be too narrow, once for all scenarios of the same findings; the
    diagnostics stand with their tables."""
    by_place: defaultdict[Scenario, dict[str, None]] = defaultdict(dict)
    for one in diagnostics:
        if one.grave:
            whose = f" ('{one.tuning}')" if one.tuning is not None else ""
            by_place[scenario_of(one)][f"{one.kind}{whose}"] = None
    alike: dict[str, list[str]] = {}
    for place, found in by_place.items():
        alike.setdefault(listed(list(found), 4), []).append(str(place))
    for found_there, places in alike.items():
        yield (
            f"Intervals in {listed(places, 8)} may promise too much: {found_there}. What was seen, "
            "and what to do, stands below the tables."
        )


def unshown_restores(run: LoadedRun, design: Design, restored: Sequence[RunCheck]) -> Iterator[str]:
    """Yield what a restore may have done (METHOD 8): in a run that tries it, what it found; in
    another, what runs before it had shown when it began."""
    failed = [check.sentence for check in restored if not check.passed]
    shown = {
        (entry.tuning, entry.workload, entry.condition): entry.run
        for entry in run.run.restores_shown or ()
    }
    needed = set(_restored_places(run, design))
    is_settled = bool(restored) or (bool(needed) and needed <= shown.keys())
    if run.run.restored_state and (failed or not is_settled):
        named = listed([f"'{t}' in {Scenario(w, c)} (run {r})" for (t, w, c), r in shown.items()])
        yield (
            "Restored state: tunings were restored from a saved guest, and that this equals "
            f"booting them has not been shown on this host{f', but for {named}' if shown else ''}."
        )
    yield from failed


def _restored_places(run: LoadedRun, design: Design) -> Iterator[tuple[str, str, str]]:
    """Yield each restored tuning with each workload and condition where it may get a verdict."""
    for name in design.candidates:
        if run.plan.tunings[name].restore:
            for place in design.places:
                if place.workload in design.primaries:
                    yield name, place.workload, place.condition


def unjudgeable(primaries: Sequence[Comparison]) -> Iterator[str]:
    for c in primaries:
        where = f"{c.metric} of {Cell(c.tuning, scenario_of(c))}"
        if c.better is Better.NEITHER:
            yield f"{where} has no better direction, so it gets no verdict."
        elif c.fallback is not None:
            yield (
                f"{where} or of what it is compared with {c.fallback}: no ratio "
                "can be taken, and no margin is known that a verdict could hang on."
            )
        elif c.low is None and len(c.blocks) > 1:
            yield (
                f"{where} differs from baseline by the same number in every block: the tool's "
                "resolution is too coarse for an interval."
            )


def shared_boots(primaries: Sequence[Comparison]) -> Iterator[str]:
    """Yield what sharing boots does to the intervals (docs/decisions/boots-and-blocks.md)."""
    shared = [c for c in primaries if c.boots < len(c.blocks)]
    if not shared:
        return
    fewest = min(shared, key=lambda c: (c.boots, -len(c.blocks)))
    those = f"{len(fewest.blocks)} blocks share {counted(fewest.boots, 'boot')}"
    if fewest.boots == 1:
        yield (
            f"{those}: what differs from boot to boot is not in the intervals, which hold for "
            "that boot alone."
        )
    elif fewest.boots < _FEW_BOOTS:
        yield (
            f"{those}: what differs from boot to boot is in the intervals, and so few boots make "
            "them wide. With '--blocks-per-boot 1' the same blocks say more."
        )


def not_exercised(run: LoadedRun, primaries: Sequence[Comparison]) -> Iterator[str]:
    """Yield tunings that were found equal where nothing could have shown a difference (METHOD
    5)."""
    exercised = {
        name: set(arm.exercised_by)
        for name, arm in run.plan.tunings.items()
        if arm.exercised_by is not None
    }
    equal = [c for c in primaries if c.verdict is Verdict.EQUIVALENT and c.tuning in exercised]
    idle = dict.fromkeys(
        c.tuning
        for c in equal
        if not any(p.workload in exercised[c.tuning] for p in primaries if p.tuning == c.tuning)
    )
    if idle:
        names = listed([f"'{name}'" for name in idle], 8)
        yield (
            f"No workload of this run exercises what {names} changes: that it equals baseline here "
            "says nothing of where it would act."
        )
