"""Write the caveats that could change the answer, the gravest first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from labctl.analysis.attempts import invalid_trials, unequally_invalid
from labctl.analysis.cells import Cell, Cells, Scenario, done_trials, planned_trials, scenario_of
from labctl.analysis.checks import Checked
from labctl.analysis.closed_loop import closed_loop
from labctl.analysis.collecting import LEAST, costs_said, level_of
from labctl.analysis.design import Design
from labctl.analysis.foreign_cpu import unseen_disturbance
from labctl.analysis.layers import layers
from labctl.analysis.model import Attempts, Comparison, Diagnostic, Role, RunCheck
from labctl.analysis.pairing import is_interleaved
from labctl.analysis.proven import unproven
from labctl.analysis.setting import setting
from labctl.analysis.skipped import skipped
from labctl.analysis.spares import too_few_spares
from labctl.analysis.stopping import lacks_trials, last_block
from labctl.analysis.verdict_table import Verdict
from labctl.analysis.verdicts import FEWEST_BLOCKS
from labctl.analysis.words import listed, sentence
from labctl.base.stopping import Looks
from labctl.base.units import Better, Unit
from labctl.base.wording import counted, quantity
from labctl.store.run_folder import LoadedRun
from labctl.trace.problems import SIZE_LIMIT

_FEW_SKIPPED = 3
_ALWAYS_TRACED, _ALWAYS_TRACED_INSIDE = "lost_events", "lost_events{of=guest}"
"""Metrics that each trace of a host, and of a guest, yields, if only as a count of what it
lacks."""

LATENCY_LIMIT = "cpu_latency_limit"
"""Metric that has a value where a process limits it."""
LATENCY_KNOB = "cpu-dma-latency"
"""The setting of the host by which a tuning asks for that; tuned's profiles may ask as well."""


def caveats(
    run: LoadedRun,
    design: Design,
    cells: Cells,
    checks: Sequence[Checked],
    comparisons: Sequence[Comparison],
    restored: Sequence[RunCheck],
    diagnostics: Sequence[Diagnostic],
    attempts: Attempts,
) -> Iterator[str]:
    """Yield what to say of a run before its numbers; nothing of a whole run under KVM with the same
    kernel, a boot per block, and checks that passed."""
    primaries = [c for c in comparisons if c.role is Role.PRIMARY]
    yield from hindrances(design, cells)
    yield from imported(run)
    yield from _redacted(run)
    # What the verdicts are of comes before how sure they are.
    yield from closed_loop(run, design, cells)
    yield from _checks(checks, primaries)
    yield from _before_look(run, primaries)
    yield from unseen_disturbance(run)
    yield from unequally_invalid(attempts)
    yield from _boots(primaries)
    yield from _grave(diagnostics)
    yield from setting(run, design, cells)
    yield from unproven(run)
    yield from _collecting(run, cells)
    yield from _kept_awake(run, cells)
    yield from _restored(run, design, restored)
    yield from invalid_trials(attempts)
    yield from _skipped(run)
    yield from (f"{text.rstrip('.')}." for text in run.run.warnings)
    yield from _durability(design)
    yield from layers(run, design)
    yield from _left_out(design, cells, paired=is_interleaved(run))
    yield from too_few_spares(run, primaries)
    yield from _unjudgeable(primaries)
    yield from _twins(design)
    yield from _not_exercised(run, primaries)
    yield from cells.problems
    yield from run.problems
    yield from _unfinished(run)


def hindrances(design: Design, cells: Cells) -> Iterator[str]:
    """Yield why nothing, or nothing under some workload, can be judged."""
    yield from design.problems
    if not cells.series:
        yield "The run has no valid trial with a measured value."
        return
    for workload, primary in design.primaries.items():
        keys = {
            key
            for cell, by_key in cells.series.items()
            if cell.place.workload == workload
            for key in by_key
        }
        if keys and primary.metric not in keys:
            reasons = [
                m.reason
                for m in cells.missing
                if m.metric == primary.metric and workload in m.workloads
            ]
            why = f" ({listed(reasons)})" if reasons else ""
            yield (
                f"'{primary.metric}', the primary metric of '{workload}', was measured nowhere"
                f"{why}, so nothing is judged under it. Measured were {listed(sorted(keys), 8)}."
            )


def imported(run: LoadedRun) -> Iterator[str]:
    """Warn where only the trials of the run are known."""
    source = run.run.imported
    if source:
        yield (
            f"Imported from '{source.file}', not measured by labctl: what was compared, how "
            "and on what host is known from that file alone."
        )
    if not is_interleaved(run):
        yield (
            "Compared unpaired, as nothing says that the trials were interleaved: what changed on "
            "the host between one arm's trials and another's is in the differences."
        )


def _redacted(run: LoadedRun) -> Iterator[str]:
    """Warn where the run is a redacted copy."""
    said = run.run.redacted
    if not said:
        return
    what = ", ".join(said.taken_out)
    left_out = f" {counted(said.left_out, 'file')} that it had are left out." * bool(said.left_out)
    yield (
        f"Redacted copy, made by labctl {said.labctl} at {said.at}: what identifies its host "
        f"is replaced ({what or 'there was nothing'}).{left_out}"
    )


def _checks(checks: Sequence[Checked], primaries: Sequence[Comparison]) -> Iterator[str]:
    if not primaries:
        return
    most = max(len(c.blocks) for c in primaries)
    if most < FEWEST_BLOCKS:
        yield (
            f"Demonstration, no verdict: {counted(most, 'block')} where a verdict takes "
            f"{FEWEST_BLOCKS}. Control and known loss can't be checked either."
        )
        return
    controls = [check.control for check in checks]
    yield from (c.sentence for c in controls if c.passed is False)
    yield from (c.sentence for c in controls if c.passed is None)
    yield from (
        check.known_loss.sentence for check in checks if check.known_loss.passed is not True
    )


def _before_look(run: LoadedRun, primaries: Sequence[Comparison]) -> Iterator[str]:
    rule = run.plan.rule
    if isinstance(rule, Looks) and any(c.verdict is Verdict.BEFORE_LOOK for c in primaries):
        lack = lacks_trials(run) or last_block(run) + 1
        yield (
            f"No verdict: the first look that the plan declares comes after {rule.at[0]} blocks, "
            f"and block {lack} lacks trials."
        )


def _grave(diagnostics: Sequence[Diagnostic]) -> Iterator[str]:
    """Warn once per scenario that intervals may be too narrow; the diagnostics stand with its
    table.
    """
    by_place: defaultdict[Scenario, dict[str, None]] = defaultdict(dict)
    for one in diagnostics:
        if one.grave:
            whose = f" ('{one.tuning}')" if one.tuning is not None else ""
            by_place[scenario_of(one)][f"{one.kind}{whose}"] = None
    for place, found in by_place.items():
        yield (
            f"Intervals in {place} may promise too much: {listed(list(found), 4)}. What was seen, "
            "and what to do, stands below the tables."
        )


def _collecting(run: LoadedRun, cells: Cells) -> Iterator[str]:
    """Warn where collectors ran inside the measured windows, and name windows in which they did
    not."""
    if run.plan.is_lost or level_of(run) == LEAST:
        return
    yield costs_said(run)
    for missing in cells.missing:
        if missing.metric == _ALWAYS_TRACED:
            trials = counted(missing.trials, "trial")
            yield (
                f"Of {trials} there is no trace of the host, and what tracing disturbs may not be "
                f"in their numbers: {missing.reason}"
            )
    full = sum(
        missing.trials
        for missing in cells.missing
        if missing.metric == _ALWAYS_TRACED_INSIDE and SIZE_LIMIT in missing.reason
    )
    if full:
        yield (
            f"In {counted(full, 'trial')} the guest's own recording met its {SIZE_LIMIT} before "
            "the measured window ended: of what it would tell there are no figures. Shorter "
            "windows fit."
        )


def _kept_awake(run: LoadedRun, cells: Cells) -> Iterator[str]:
    """Warn where another process limited the sleep of the host's CPUs (METHOD 9)."""
    tunings = run.run.tunings
    found: list[float] = []
    tried = 0
    for cell, blocks in cells.tried.items():
        tuning = tunings.get(cell.tuning)
        if not (tuning and {LATENCY_KNOB, "tuned"} & tuning.host.keys()):
            tried += len(blocks)
            limits = cells.at(cell.tuning, cell.place).get(LATENCY_LIMIT)
            found += limits.values.values() if limits else ()
    if found:
        least = quantity(min(found), Unit.SECONDS)
        yield (
            f"In {len(found)} of {tried} trials a program other than labctl had idle CPUs of the "
            f"host wake up within a limit ({least} at the least): waking up cost less there than "
            "by the host's own settings."
        )


def _restored(run: LoadedRun, design: Design, restored: Sequence[RunCheck]) -> Iterator[str]:
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
        named = listed([f"'{t}' in {w} under '{c}' (run {r})" for (t, w, c), r in shown.items()])
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


def _skipped(run: LoadedRun) -> Iterator[str]:
    left_out = skipped(run.plan, run.run)
    if len(left_out) > _FEW_SKIPPED:
        names = listed([f"'{name}'" for name in left_out])
        yield f"{names} were skipped, as this host can't have them: the table of them says why."
        return
    for name, reason in left_out.items():
        yield f"'{name}' was skipped: {sentence(reason)}"


def _durability(design: Design) -> Iterator[str]:
    """Warn of tunings without a verdict because of their disk's durability (METHOD 10)."""
    others = [
        f"'{name}' ({design.durabilities[name]})"
        for name in design.candidates
        if any(not design.same_durability(name, place) for place in design.places)
    ]
    if others:
        theirs = design.durabilities.get(design.baseline or "")
        yield (
            f"The cache modes of {listed(others, 8)} have a different durability than baseline's "
            f"({theirs}), so there is no verdict on their disk. Compare them with a baseline of "
            "their own mode."
        )


def _left_out(design: Design, cells: Cells, *, paired: bool) -> Iterator[str]:
    """Yield blocks of which a cell has no value to compare (METHOD: nothing is imputed)."""
    for cell, tried in cells.tried.items():
        blocks = sorted(tried - _usable(design, cells, cell))
        if not blocks:
            continue
        which = "any block" if len(blocks) == len(tried) else _blocks(blocks)
        shared = paired and cell.tuning in _references(design)
        others = " and of every tuning against it" if shared else ""
        yield f"{cell} has no usable value in {which}: left out of its comparisons{others}."


def _usable(design: Design, cells: Cells, cell: Cell) -> set[int]:
    by_key = cells.at(cell.tuning, cell.place)
    primary = design.primaries.get(cell.place.workload)
    if primary is not None:
        return set(by_key[primary.metric].values) if primary.metric in by_key else set()
    return {block for series in by_key.values() for block in series.values}


def _references(design: Design) -> tuple[str | None, ...]:
    return (design.baseline, design.control, *design.natives)


def _unjudgeable(primaries: Sequence[Comparison]) -> Iterator[str]:
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


_FEW_BOOTS = 5
"""Fewest boots: with fewer, t has so few degrees of freedom that the boots are what makes an
interval wide.
"""


def _boots(primaries: Sequence[Comparison]) -> Iterator[str]:
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


def _twins(design: Design) -> Iterator[str]:
    for tuning in design.candidates:
        twin = design.twins.get(tuning)
        if twin is not None and twin not in design.natives:
            yield f"'{tuning}' is not compared with native: its twin '{twin}' is not in this run."


def _not_exercised(run: LoadedRun, primaries: Sequence[Comparison]) -> Iterator[str]:
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


def _unfinished(run: LoadedRun) -> Iterator[str]:
    status = run.run.status
    if status != "done":
        yield (
            f"The run is not finished (status: {status or 'unknown'}): {done_trials(run)} "
            f"of {planned_trials(run)} planned trials have a valid result. "
            f"'labctl sweep --resume {run.name}' goes on with it."
        )


def _blocks(blocks: Sequence[int]) -> str:
    noun = "block" if len(blocks) == 1 else "blocks"
    return f"{noun} {listed([str(block) for block in blocks], 10)}"
