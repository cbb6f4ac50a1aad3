"""Find the numbers to which a gate's rule applies, and decide its claims."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from labctl.analysis.answer.words import listed, size_text
from labctl.analysis.effects.cells import Cell, Cells, Series
from labctl.analysis.effects.design import Design
from labctl.analysis.effects.effects import Effects, on_scale, ratio_of, towards_better
from labctl.analysis.effects.intervals import Interval
from labctl.analysis.gate.policy import Rule
from labctl.analysis.model import EffectKind
from labctl.analysis.verdicts.checks import CONTROL_FAILED, Checked, check
from labctl.base.errors import nearest
from labctl.base.units import Better, Unit
from labctl.store.run_folder import LoadedRun

# Find the numbers of a run to which a rule applies, and those that are missing.
#
# A planned cell without a value is a finding too: a rule about every tuning does not hold because
# one of them could not be measured.


TWIN = "twin"
"""Value of `against` for the native arm that has the tuning's placement and policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """Hold one metric of one cell. Without a `series`, `why` is the reason why the rule can't be
    applied; `nothing`: the run has no such metric or cell."""

    cell: Cell | None = None
    key: str = ""
    series: Series | None = None
    why: str = ""
    nothing: bool = False


def scope(rule: Rule, run: LoadedRun, design: Design, cells: Cells) -> Iterator[Spot]:
    """Yield each spot to which the rule applies; one without a cell if it applies to none."""
    metric = rule.metric or ""
    arms = {cell.tuning for cell in _cells(design, cells)}
    if rule.against not in (None, TWIN, *arms):
        yield Spot(why=_nobody("arm", str(rule.against), [TWIN, *arms]), nothing=True)
        return
    spoken = [cell for cell in _cells(design, cells) if _speaks_of(rule, cell, design)]
    if not spoken:
        yield _no_cell(rule, run, design, cells)
        return
    found = [
        Spot(cell=cell, key=key, series=series)
        for cell in spoken
        for key, series in cells.series.get(cell, {}).items()
        if rule.takes_metric(key)
    ]
    if not found:
        yield _no_metric(rule, spoken, design, cells)
        return
    yield from found
    have = {spot.cell for spot in found}
    keys = {spot.cell.place.workload: spot.key for spot in found if spot.cell is not None}
    for cell in spoken:
        if cell in have:
            continue
        unavailable = _unavailable(rule, [cell], cells)
        key = keys.get(cell.place.workload) or _primary(rule, cell, design)
        if key or unavailable:  # otherwise the workload has no such metric
            why = unavailable or f"no valid trial of it has {metric}"
            yield Spot(cell=cell, key=key or metric, why=why)


def _primary(rule: Rule, cell: Cell, design: Design) -> str:
    """Return the primary metric of the cell's workload, if the rule applies to it."""
    primary = design.primaries.get(cell.place.workload)
    return primary.metric if primary and rule.takes_metric(primary.metric) else ""


def _cells(design: Design, cells: Cells) -> list[Cell]:
    """Return the cells with values in their order, then those that were only planned."""
    planned = sorted(design.planned_cells - cells.series.keys())
    return [*cells.series, *planned]


def _speaks_of(rule: Rule, cell: Cell, design: Design) -> bool:
    # A pattern applies to arms that may be rolled out; checks of the run must be named.
    if rule.tuning != cell.tuning and cell.tuning not in design.candidates:
        return False
    return all(_is(name, pattern) for _, name, pattern in _named(rule, cell))


def _is(name: str, pattern: str) -> bool:
    """Return whether a pattern matches a name. Names of factors' cells contain brackets, which in a
    pattern mean one of several letters, so a name also matches itself."""
    return name == pattern or fnmatchcase(name, pattern)


def _named(rule: Rule, cell: Cell) -> tuple[tuple[str, str, str], ...]:
    return (
        ("tuning", cell.tuning, rule.tuning),
        ("workload", cell.place.workload, rule.workload),
        ("condition", cell.place.condition, rule.condition),
    )


def _no_cell(rule: Rule, run: LoadedRun, design: Design, cells: Cells) -> Spot:
    skipped = run.plan.skipped or run.run.skipped
    if rule.tuning in skipped:
        return Spot(why=f"'{rule.tuning}' was skipped: {skipped[rule.tuning]}")
    lacks = run.plan.skipped_workloads.get(rule.workload, {})
    side = "native" if rule.tuning in design.natives else "guest"
    if side in lacks:
        return Spot(why=f"'{rule.workload}' was skipped: {lacks[side]}")
    if rule.condition in run.plan.skipped_conditions:
        why = run.plan.skipped_conditions[rule.condition]
        return Spot(why=f"'{rule.condition}' was skipped: {why}")
    there = _cells(design, cells)
    if not there:
        return Spot(why="the run has no trials", nothing=True)
    for what, pattern in (
        ("tuning", rule.tuning),
        ("workload", rule.workload),
        ("condition", rule.condition),
    ):
        names = {name for cell in there for kind, name, _ in _named(rule, cell) if kind == what}
        if not any(_is(name, pattern) for name in names):
            return Spot(why=_nobody(what, pattern, names), nothing=True)
    if rule.tuning not in {cell.tuning for cell in there} and not any(
        _is(name, rule.tuning) for name in design.candidates
    ):
        return Spot(why="none of these tunings is a candidate for a rollout", nothing=True)
    return Spot(why="no trial of the run matches everything that the rule names", nothing=True)


def _no_metric(rule: Rule, spoken: Collection[Cell], design: Design, cells: Cells) -> Spot:
    if why := _unavailable(rule, spoken, cells):
        return Spot(why=why)
    keys = {key for cell in spoken for key in cells.series.get(cell, {})}
    if not keys:
        return Spot(why="no valid trial has a value there")
    if any(_primary(rule, cell, design) for cell in spoken):
        return Spot(why=f"no valid trial has {rule.metric}")
    return Spot(why=_nobody("metric", rule.metric or "", keys), nothing=True)


def _unavailable(rule: Rule, spoken: Collection[Cell], cells: Cells) -> str:
    """Return the reasons why a metric is unavailable in these cells."""
    tunings = {cell.tuning for cell in spoken}
    workloads = {cell.place.workload for cell in spoken}
    reasons = dict.fromkeys(
        item.reason.rstrip(".")
        for item in cells.missing
        if rule.takes_metric(item.metric)
        and not tunings.isdisjoint(item.tunings)
        and not workloads.isdisjoint(item.workloads)
    )
    return f"not available: {listed(list(reasons))}" if reasons else ""


def _nobody(what: str, pattern: str, names: Collection[str]) -> str:
    told = f"the run has no {what} '{pattern}', and a rule that matches nothing cannot pass"
    return f"{told}. {nearest(pattern, names).rstrip('.')}"


# Decide whether values show that a rule's limit is kept, that it is not, or neither. Pure.


@dataclass(frozen=True, slots=True)
class Claim:
    """Hold a claim's outcome. `kept`: None if neither is shown. `of_absence`: the claim is that no
    effect exceeds the limit, which a blind run would show as well.

    `slack`: the least bias that would make the claim alone, on the scale of effects: the distance
    of the estimate from the rule's limit. For an absence it is the distance of the interval's
    nearer end, because a bias may hide any effect that noise leaves open.
    """

    kept: bool | None
    slack: float = 0.0
    of_absence: bool = False


_NEITHER = Claim(None)


def decide(
    rule: Rule,
    mean: float,
    kind: EffectKind | None,
    better: Better,
    holds: Interval,
    violated: Interval,
    *,
    logs: bool,
) -> Claim:
    """Decide a claim: the interval `holds` shows the demand, `violated` its contrary; all are on
    the log scale if `logs`."""
    if rule.limit in ("below", "above"):
        shift, turned = _logged(rule.amount) if logs else rule.amount, rule.limit == "below"
        kept_lacks = broken_lacks = False
    else:
        margin = tolerance(rule, kind)
        if rule.limit == "within":
            if holds.within(margin):
                return Claim(True, margin - holds.reach, of_absence=True)
            outside = violated.low > margin or violated.high < -margin
            return Claim(False, abs(mean) - margin) if outside else _NEITHER
        # Towards better, the effect must lie above a bound: -margin, or +margin.
        turned = better is Better.LOWER
        bound = margin if rule.limit == "better_by_at_least" else -margin
        shift = -bound if turned else bound
        # "Better" and "worse" are claims of an effect; "not much better" and "not much worse" are
        # claims of its absence.
        kept_lacks = bound < 0 and towards_better(holds, better).low <= 0
        broken_lacks = bound > 0 and towards_better(violated, better).high >= 0
    slack = abs(mean - shift)
    if turned:
        holds, violated, shift = holds.mirrored(), violated.mirrored(), -shift
    if holds.low > shift:
        return Claim(True, holds.low - shift if kept_lacks else slack, kept_lacks)
    if violated.high < shift:
        return Claim(False, shift - violated.high if broken_lacks else slack, broken_lacks)
    return _NEITHER


def tolerance(rule: Rule, kind: EffectKind | None) -> float:
    """Return the limit of a comparing rule on the scale of effects."""
    return on_scale(rule.amount, kind or EffectKind.DIFFERENCE)


def _logged(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


# Limit a gate's rules against baseline by the run's control and known loss.
#
# A rule about a primary metric is a claim like a verdict, so the run's eligibility limits it in the
# same way (METHOD 5, 18, 20), but by the rule's own limit. Other metrics have no check: they are
# undecided if the scenario's control failed, and are not limited otherwise. Pure.


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Hold reasons to leave a rule undecided; by default none.

    `refused`: no claim is allowed. `blind`: no claim of an absent effect is allowed, because
    nothing shows that the run would have seen it. `open`: the control leaves open a bias as large
    as `reach` (on the scale of effects) between equal arms, which is too large to neglect; without
    such a bias it has no value.
    """

    refused: str = ""
    blind: str = ""
    open: str = ""
    reach: float = 0.0

    def why_not(self, claim: Claim) -> str:
        """Return why a claim is not allowed; "" if it is. It is not if such a bias may have moved
        the estimate across the rule's limit."""
        if claim.of_absence and self.blind:
            return self.blind
        return self.open if claim.slack <= self.reach else ""


def leave(
    rule: Rule,
    design: Design,
    cells: Cells,
    cell: Cell,
    key: str,
    effects: Effects,
    unit: Unit,
) -> Leave:
    """Return the limits of a rule on a tuning's effects against baseline, or against the control.

    A bias up to the workload's threshold is neglected, as in verdicts, unless the rule's limit is
    smaller: a bias that is small for the study may be large for the rule.

    For baseline and control themselves the control's check does not apply: the rule is about that
    difference.
    """
    tuning, place = cell
    primary = design.primaries.get(place.workload)
    if primary is None:
        return Leave()
    checked = check(design, cells, place, primary)
    itself = tuning in (design.baseline, design.control)
    if key != primary.metric:
        failed = checked.control.passed is False and not itself
        return Leave(refused=CONTROL_FAILED if failed else "")
    if effects.fallback is not None:
        # Its threshold is a share, which does not exist for 0.
        return Leave(refused=f"{key} {effects.fallback}")
    limit = tolerance(rule, effects.kind)
    blind = _blind(checked, limit)
    if itself:
        return Leave(blind=blind)
    if not checked.eligibility.judges:
        return Leave(refused=_refusal(checked))
    reach = checked.eligibility.reach
    small = min(on_scale(primary.margin, effects.kind), limit)
    if reach <= small:
        return Leave(blind=blind)
    size = ratio_of(reach) - 1 if effects.kind is EffectKind.RATIO else reach
    return Leave(
        blind=blind,
        open=(
            "the A/A control cannot exclude a bias of up to "
            f"{size_text(size, effects.kind, unit)}, which may have carried it across the "
            "limit"
        ),
        reach=reach,
    )


def _refusal(checked: Checked) -> str:
    if checked.control.passed is False:
        return CONTROL_FAILED
    told = checked.control.sentence.rstrip(".")
    return told[:1].lower() + told[1:]


def _blind(checked: Checked, loss: float) -> str:
    """Return why a loss as large as the rule's limit may have gone unseen."""
    if checked.eligibility.sees(loss):
        return ""
    if math.isfinite(checked.eligibility.sees_from):
        return (
            "the known loss was detected, but that does not show that a loss as small as "
            "the limit would be detected"
        )
    failed = checked.known_loss.passed is False
    why = "the known loss was not detected" if failed else "the known-loss arm was not checked"
    return f"{why}, so this run may miss a loss"
