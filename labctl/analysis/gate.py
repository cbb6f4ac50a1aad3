"""Does a run keep a policy's rules?

A rule *holds* where its demand is shown, one-sided at 5 % each: all of them hold together with no
more than that (an intersection-union test; R. L. Berger, Technometrics 24, 1982). It is *violated*
where the contrary is shown, at 5 % over all tests of the gate together (Bonferroni), so that a
policy of many rules doesn't fail by their number. What is neither is undecided, and the policy
says what that counts as. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from labctl.analysis.added import confirmatory
from labctl.analysis.cells import Cells, Place, Series, read_cells
from labctl.analysis.checks import check
from labctl.analysis.design import ALPHA, Design, read_design
from labctl.analysis.effects import alone, by_ratio, on_scale, paired, ratio_of
from labctl.analysis.intervals import Interval, Spread, t_interval, welch_interval
from labctl.analysis.model import EffectKind
from labctl.analysis.policy import Policy, Rule, Undecided
from labctl.analysis.verdicts import FEWEST_BLOCKS
from labctl.base.units import Better, Unit
from labctl.store.run_folder import LoadedRun

TWIN = "twin"
"""As `against`: the native arm that has the tuning's placement and policy."""


class Outcome(StrEnum):
    HOLDS = "holds"
    VIOLATED = "violated"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What became of a rule in one cell. `tuning`, `workload`, `condition` are "" for a rule that
    speaks of nothing in the run.

    `estimate`, `low`, `high`: the ratio, the difference in `unit`, or the value, as `kind` says
    (None: the value itself), in natural direction; the interval's ends are one-sided 95 % each.
    `why`: what keeps it undecided.
    """

    rule: str
    limit: str
    against: str | None
    tuning: str
    workload: str
    condition: str
    metric: str
    unit: Unit | None
    kind: EffectKind | None
    estimate: float | None
    low: float | None
    high: float | None
    blocks: int
    outcome: Outcome
    why: str
    counts_as: Undecided


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    run: str
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool | None:
        """False: a rule is violated, or counts as that; None: nothing is violated, but something
        that must be decided isn't."""
        states = [_passes(finding) for finding in self.findings]
        if False in states:
            return False
        return None if None in states else True


def _passes(finding: Finding) -> bool | None:
    if finding.outcome is not Outcome.UNDECIDED:
        return finding.outcome is Outcome.HOLDS
    return {Undecided.FAIL: False, Undecided.PASS: True, Undecided.OPEN: None}[finding.counts_as]


def gate(run: LoadedRun, policy: Policy, others: Mapping[str, LoadedRun]) -> GateResult:
    """Every rule in every cell that it speaks of. `others`: the runs that rules name by `like`.

    Nothing raises: what the run can't say is undecided, with the reason.
    """
    run = confirmatory(run)
    design, cells = read_design(run), read_cells(run)
    theirs = {name: read_cells(confirmatory(other)) for name, other in others.items()}
    asked = [test for rule in policy.rules for test in _tests(rule, design, cells, theirs)]
    alpha = design.level / max(1, sum(test.values is not None for test in asked))
    return GateResult(
        run=run.name,
        findings=tuple(_finding(test, policy.counts_as(test.rule), alpha) for test in asked),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Values:
    """What a test is made on, in natural direction. `interval(alpha)`: two-sided."""

    kind: EffectKind | None
    logs: bool
    mean: float
    n: int
    interval: Callable[[float], Interval | None]

    def shown(self, value: float) -> float:
        return ratio_of(value) if self.logs else value


@dataclass(frozen=True, slots=True, kw_only=True)
class _Test:
    """`values` None, or `why`: it can't be decided."""

    rule: Rule
    tuning: str = ""
    place: Place | None = None
    key: str = ""
    series: Series | None = None
    against: str | None = None
    values: _Values | None = None
    why: str = ""


def _tests(
    rule: Rule, design: Design, cells: Cells, others: Mapping[str, Cells]
) -> Iterator[_Test]:
    found = False
    for cell, by_key in cells.series.items():
        for key, series in by_key.items():
            place = cell.place
            if not rule.takes(
                workload=place.workload,
                condition=place.condition,
                tuning=cell.tuning,
                metric=key,
            ):
                continue
            # A pattern speaks of what may be rolled out; checks of the run are named or left out.
            if rule.tuning != cell.tuning and cell.tuning not in design.candidates:
                continue
            found = True
            yield _test(rule, design, cells, others, cell.tuning, place, key, series)
    if not found:
        yield _Test(rule=rule, why="the run has no such value")


def _test(
    rule: Rule,
    design: Design,
    cells: Cells,
    others: Mapping[str, Cells],
    tuning: str,
    place: Place,
    key: str,
    series: Series,
) -> _Test:
    against, references, why = _references(rule, design, cells, others, tuning, place, key)
    values: _Values | None = None
    if not why and rule.like is not None:
        values = _between_runs(references[0], series)
    elif not why and rule.against is not None:
        native = against in design.natives
        effects = paired(series, references, against_native=native)
        if effects is None:
            why = f"no block has both {tuning} and {against}"
        else:
            values = _of_spread(effects.spread, effects.kind, effects.kind is EffectKind.RATIO)
    elif not why:
        values = _of_itself(series)
    if values is not None:
        why = _mismatch(rule, values, series) or why
    return _Test(
        rule=rule,
        tuning=tuning,
        place=place,
        key=key,
        series=series,
        against=against,
        values=None if why else values,
        why=why,
    )


def _references(
    rule: Rule,
    design: Design,
    cells: Cells,
    others: Mapping[str, Cells],
    tuning: str,
    place: Place,
    key: str,
) -> tuple[str | None, Sequence[Series], str]:
    """What it is compared with: its name, its series, and why there is none."""
    if rule.like is not None:
        other = others[rule.like].get(tuning, place, key)
        if other is None:
            return rule.like, (), f"{rule.like} has no such value"
        return rule.like, (other,), ""
    if rule.against is None:
        return None, (), ""
    against = design.twins.get(tuning) if rule.against == TWIN else rule.against
    if against is None:
        return TWIN, (), f"{tuning} has no native twin"
    names = (against, design.control) if against == design.baseline else (against,)
    found = [s for name in names if (s := cells.get(name, place, key)) is not None]
    if cells.get(against, place, key) is None:
        return against, (), f"{against} has no such value"
    if against == design.baseline and (failed := _control_failed(design, cells, place)):
        return against, (), failed
    return against, found, ""


def _control_failed(design: Design, cells: Cells, place: Place) -> str:
    primary = design.primaries.get(place.workload)
    if primary is None or check(design, cells, place, primary).control.passed is not False:
        return ""
    return "the control failed: baseline differs from itself"


def _of_itself(series: Series) -> _Values:
    logs = min(series.values.values()) > 0
    return _of_spread(alone(series, logs=logs), None, logs)


def _of_spread(of: Spread, kind: EffectKind | None, logs: bool) -> _Values:
    return _Values(
        kind=kind, logs=logs, mean=of.mean, n=of.n, interval=lambda alpha: t_interval(of, alpha)
    )


def _between_runs(other: Series, series: Series) -> _Values:
    logs = by_ratio([other, series])
    theirs, ours = (alone(side, logs=logs) for side in (other, series))
    return _Values(
        kind=EffectKind.RATIO if logs else EffectKind.DIFFERENCE,
        logs=logs,
        mean=ours.mean - theirs.mean,
        n=min(ours.n, theirs.n),
        interval=lambda alpha: welch_interval(theirs, ours, alpha),
    )


def _mismatch(rule: Rule, values: _Values, series: Series) -> str:
    """Why the rule's limit says nothing of these values."""
    if values.kind is EffectKind.DIFFERENCE and rule.is_share:
        return (
            f"{series.sample.metric} is compared by difference, as 0 is a usual value of it: "
            f"the limit must be a number in {series.sample.unit}"
        )
    if values.kind is EffectKind.RATIO and not rule.is_share:
        return f"{series.sample.metric} is compared by ratio: the limit must be a share ('5 %')"
    if series.sample.better is Better.NEITHER and rule.limit.startswith(("worse", "better")):
        return f"{series.sample.metric} has no better direction"
    return ""


def _finding(test: _Test, counts_as: Undecided, alpha: float) -> Finding:
    rule, values, series = test.rule, test.values, test.series
    outcome, why, interval = Outcome.UNDECIDED, test.why, None
    if values is not None and series is not None:
        interval = values.interval(2 * ALPHA)
        if series.is_maximum:
            outcome, why = _of_maximum(rule, series)
            interval = None
        elif values.n < FEWEST_BLOCKS:
            why = f"{values.n} of the {FEWEST_BLOCKS} blocks that it takes"
        elif interval is None:
            why = "the same number in every block, too coarse to judge by"
        else:
            sure = values.interval(2 * alpha)
            outcome = _decide(rule, values, series.sample.better, interval, sure or interval)
            why = "the interval holds both" if outcome is Outcome.UNDECIDED else ""
    return Finding(
        rule=rule.title,
        limit=rule.demand,
        against=test.against,
        tuning=test.tuning,
        workload=test.place.workload if test.place else "",
        condition=test.place.condition if test.place else "",
        metric=test.key or rule.metric,
        unit=series.sample.unit if series else None,
        kind=values.kind if values else None,
        estimate=values.shown(values.mean) if values else None,
        low=values.shown(interval.low) if values and interval else None,
        high=values.shown(interval.high) if values and interval else None,
        blocks=values.n if values else 0,
        outcome=outcome,
        why=why,
        counts_as=counts_as,
    )


def _of_maximum(rule: Rule, series: Series) -> tuple[Outcome, str]:
    """A maximum grows with the number of samples: it can break a limit, and never prove one."""
    if rule.limit != "below":
        return Outcome.UNDECIDED, "a maximum can only be held against 'below'"
    if series.typical >= rule.amount:
        return Outcome.VIOLATED, ""
    return Outcome.UNDECIDED, "no maximum reached it, which doesn't prove that none will"


def _decide(
    rule: Rule, values: _Values, better: Better, holds: Interval, violated: Interval
) -> Outcome:
    """`holds` is the interval to show the demand by, `violated` the one for its contrary."""
    if rule.limit in ("below", "above"):
        limit = _logged(rule.amount) if values.logs else rule.amount
        shift, turned = limit, rule.limit == "below"
    else:
        margin = on_scale(rule.amount, values.kind or EffectKind.DIFFERENCE)
        if rule.limit == "within":
            if holds.within(margin):
                return Outcome.HOLDS
            outside = violated.low > margin or violated.high < -margin
            return Outcome.VIOLATED if outside else Outcome.UNDECIDED
        # Towards better, the effect must lie above a bound: -margin, or +margin.
        turned = better is Better.LOWER
        bound = margin if rule.limit == "better_by_at_least" else -margin
        shift = -bound if turned else bound
    if turned:
        holds, violated, shift = holds.mirrored(), violated.mirrored(), -shift
    if holds.low > shift:
        return Outcome.HOLDS
    return Outcome.VIOLATED if violated.high < shift else Outcome.UNDECIDED


def _logged(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
