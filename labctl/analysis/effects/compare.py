"""List the comparisons of a run, and make each of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from labctl.analysis.effects.cells import Cell, Cells, Scenario, Series, scenario_of
from labctl.analysis.effects.design import ALPHA, Design
from labctl.analysis.effects.effects import Effects, effects_of, on_scale, towards_better
from labctl.analysis.effects.intervals import Interval, blocks_needed, smallest_visible, t_interval
from labctl.analysis.model import Comparison, Level, Role
from labctl.analysis.verdicts.rules import Eligibility, decide, excludes_loss
from labctl.analysis.verdicts.table import Says, Verdict, says
from labctl.base.stopping import FEWEST_BLOCKS
from labctl.base.units import Better

"""Verdicts beside which intervals have no meaning."""


@dataclass(frozen=True, slots=True)
class _Pair:
    tuning: str
    against: str
    references: tuple[str, ...]
    against_native: bool = False
    judged: bool = False
    """True if the primary metric of this pair is in the family of tests."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Hold a comparison and the effects that it was made from."""

    comparison: Comparison
    effects: Effects

    @property
    def is_primary(self) -> bool:
        return self.comparison.role is Role.PRIMARY

    @property
    def place(self) -> Scenario:
        return scenario_of(self.comparison)


def comparisons(
    design: Design, cells: Cells, eligibilities: Mapping[Scenario, Eligibility]
) -> Iterator[Compared]:
    """Yield every comparison that has a block with both sides, except for maxima.

    Against baseline: each candidate (its primary metric decides), the known loss, and arms that
    boot only for a comparison with their restored twin. Against native: baseline and each candidate
    against the twin with their placement, baseline and the twins against the free native. Control
    and known loss are instruments of the run and have no other comparisons.
    """
    pairs = list(_pairs(design))
    for place in design.places:
        for pair in pairs:
            for key in cells.at(pair.tuning, place):
                compared = _compare(design, cells, place, pair, key, eligibilities)
                if compared is not None:
                    yield compared


def levels(cells: Cells) -> Iterator[Level]:
    """Yield every metric of every cell, with its typical value."""
    for cell, by_key in cells.series.items():
        for key, series in by_key.items():
            yield Level(
                tuning=cell.tuning,
                workload=cell.place.workload,
                condition=cell.place.condition,
                metric=key,
                unit=series.sample.unit,
                better=series.sample.better,
                source=series.source,
                typical=series.typical,
                values=series.values,
            )


def _pairs(design: Design) -> Iterator[_Pair]:
    if design.baseline is not None:
        references = tuple(filter(None, (design.baseline, design.control)))
        for name in design.candidates:
            yield _Pair(name, design.baseline, references, judged=True)
        for name in filter(None, (design.known_loss, *design.restored_as)):
            yield _Pair(name, design.baseline, references)
    against: dict[tuple[str, str], None] = {}
    for name in filter(None, (design.baseline, *design.candidates)):
        twin = design.twins.get(name)
        if twin is not None and twin in design.natives:
            against[name, twin] = None
    if design.native is not None:
        if design.baseline is not None:
            against[design.baseline, design.native] = None
        for name in design.natives:
            if name != design.native:
                against[name, design.native] = None
    for name, native in against:
        yield _Pair(name, native, (native,), against_native=True)


def _compare(
    design: Design,
    cells: Cells,
    place: Scenario,
    pair: _Pair,
    key: str,
    eligibilities: Mapping[Scenario, Eligibility],
) -> Compared | None:
    """Compare equal keys only: `ipc{source=pmu}` never with `ipc{source=calibrated}` (METHOD
    12)."""
    tuning = cells.get(pair.tuning, place, key)
    references = {
        name: s for name in pair.references if (s := cells.get(name, place, key)) is not None
    }
    # The control alone is not a baseline: only its check uses it.
    if tuning is None or cells.get(pair.against, place, key) is None or tuning.is_maximum:
        return None
    effects = effects_of(tuning, [*references.values()], against_native=pair.against_native)
    if effects is None:
        return None
    primary = design.primaries.get(place.workload)
    decides = pair.judged and primary is not None and key == primary.metric
    alpha = design.alpha if decides else ALPHA
    interval = t_interval(effects.spread, alpha)
    sample = tuning.sample
    verdict, margin, visible, needed = None, None, None, None
    loss, no_worse = None, None
    if decides and primary is not None:
        verdict = verdict_at(effects, sample.better, alpha, primary.margin, eligibilities[place])
        if verdict is not Verdict.DEMONSTRATION:
            if not design.same_durability(pair.tuning, place):
                verdict = Verdict.DIFFERENT_DURABILITY
            elif design.before_look:
                verdict = Verdict.BEFORE_LOOK
        # A threshold that is a share does not apply to a difference.
        margin = None if effects.fallback is not None else primary.margin
        loss = None if effects.fallback is not None else primary.no_worse_than
        no_worse = not says(verdict, Says.NOTHING) and _excludes_loss(
            effects, sample.better, interval, primary.no_worse_than, eligibilities[place]
        )
    if verdict is Verdict.INCONCLUSIVE and margin is not None:
        seen = smallest_visible(effects.spread, alpha)
        visible = None if seen is None else effects.as_size(seen)
        needed = blocks_needed(effects.spread, alpha, on_scale(margin, effects.kind))
    comparison = Comparison(
        tuning=pair.tuning,
        against=pair.against,
        workload=place.workload,
        condition=place.condition,
        metric=key,
        unit=sample.unit,
        better=sample.better,
        kind=effects.kind,
        estimate=effects.shown(effects.spread.mean),
        low=None if interval is None else effects.shown(interval.low),
        high=None if interval is None else effects.shown(interval.high),
        confidence=1 - alpha,
        verdict=verdict,
        role=Role.PRIMARY if decides else Role.EXPLORATORY,
        source=tuning.source,
        blocks=effects.shown_by_block(),
        margin=margin,
        no_worse_than=loss,
        no_worse=no_worse,
        smallest_visible=visible,
        blocks_needed=needed,
        error=None if interval is None else effects.spread.error,
        units=effects.spread.units,
        boots=effects.spread.boots,
        left_out=_left_out(cells, place, {pair.tuning: tuning, **references})
        if effects.paired
        else (),
        paired=effects.paired,
        fallback=effects.fallback,
    )
    return Compared(comparison, effects)


def _left_out(cells: Cells, place: Scenario, sides: Mapping[str, Series]) -> tuple[int, ...]:
    """Return blocks in which a side was tried and gave no value. A side that was never tried only
    shows that the run is not finished."""
    missing: set[int] = set()
    for name, series in sides.items():
        tried = cells.tried[Cell(name, place)]
        if len(series.values) < len(tried):  # a value's block was tried
            missing |= tried - series.values.keys()
    return tuple(sorted(missing))


def verdict_at(
    effects: Effects, better: Better, alpha: float, margin: float, eligibility: Eligibility
) -> Verdict:
    """Return the verdict from intervals of confidence 1 - alpha (and 1 - 2 alpha for
    "equivalent")."""
    if effects.spread.n >= FEWEST_BLOCKS and (
        effects.fallback is not None or better is Better.NEITHER
    ):
        # The threshold can't be a share of 0; or neither direction is better.
        return Verdict.INCONCLUSIVE
    interval, narrow = (t_interval(effects.spread, a) for a in (alpha, 2 * alpha))
    mean = effects.spread.mean
    return decide(
        blocks=effects.spread.n,
        estimate=-mean if better is Better.LOWER else mean,
        interval=None if interval is None else towards_better(interval, better),
        narrow=None if narrow is None else towards_better(narrow, better),
        margin=on_scale(margin, effects.kind),
        eligibility=eligibility,
    )


def _excludes_loss(
    effects: Effects,
    better: Better,
    interval: Interval | None,
    loss: float,
    eligibility: Eligibility,
) -> bool:
    """Return `excludes_loss` for effects in natural direction; False if a share does not apply to
    them, or if neither direction is better."""
    if interval is None or effects.fallback is not None or better is Better.NEITHER:
        return False
    mean = effects.spread.mean
    return excludes_loss(
        estimate=-mean if better is Better.LOWER else mean,
        interval=towards_better(interval, better),
        loss=on_scale(loss, effects.kind),
        eligibility=eligibility,
    )
