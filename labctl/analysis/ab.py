"""Judge a comparison of A and B: in the guest, natively, and whether the two sides differ. Pure.

In the guest the verdict is that of the arm of B against the baseline, which is A. Natively there
is no A/A control, so B against A has an interval and no verdict. The interaction is the
difference of the two effects, block by block on the scale of effects (METHOD 34): of ratios, the
ratio of B to A in the guest over the ratio natively.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from labctl.analysis.answer.words import capital, effect_shown, listed
from labctl.analysis.effects.cells import Cells, Scenario, Series, scenario_of
from labctl.analysis.effects.design import ALPHA, Design
from labctl.analysis.effects.effects import Effects, effects_of, on_scale
from labctl.analysis.effects.intervals import Interval, Spread, spread_over, t_interval
from labctl.analysis.model import (
    AbAnswer,
    AbEffect,
    AbPlace,
    Comparison,
    Depends,
    EffectKind,
    Outcome,
    Role,
)
from labctl.analysis.verdicts.rules import Eligibility
from labctl.analysis.verdicts.table import Says, Verdict, says
from labctl.base.errors import ExitCode
from labctl.base.notation import size
from labctl.base.stopping import FEWEST_BLOCKS
from labctl.base.units import Better, Unit
from labctl.base.wording import metric_title
from labctl.store.records.plan_record import AbLabels

_RESOLUTION = 1e-9
"""Effects closer together than this count as tied."""


def compare_ab(
    labels: AbLabels | None,
    design: Design,
    cells: Cells,
    comparisons: Sequence[Comparison],
    eligibilities: Mapping[Scenario, Eligibility],
) -> AbAnswer | None:
    """Return the answer of a run that compares A and B; None of any other."""
    if labels is None:
        return None
    primaries = [c for c in comparisons if c.role is Role.PRIMARY and c.tuning == labels.arm]
    places = tuple(_place(c, design, cells, eligibilities.get(scenario_of(c))) for c in primaries)
    return AbAnswer(labels=labels, outcome=_outcome([p.outcome for p in places]), places=places)


def _outcome(of: Sequence[Outcome]) -> Outcome:
    """Return the outcome of all places: worse anywhere is worse."""
    for one in (Outcome.WORSE, Outcome.OPEN, Outcome.BETTER):
        if one in of:
            return one
    return Outcome.NOT_WORSE if of else Outcome.OPEN


def outcome_of(c: Comparison) -> Outcome:
    """Return what the verdict of B against A, and the loss that its interval excludes, say."""
    if c.verdict is Verdict.REGRESSES:
        return Outcome.WORSE
    if c.verdict is Verdict.IMPROVES:
        return Outcome.BETTER
    if says(c.verdict, Says.NO_EFFECT) or (c.no_worse and says(c.verdict, Says.OPEN)):
        return Outcome.NOT_WORSE
    return Outcome.OPEN


def _place(c: Comparison, design: Design, cells: Cells, eligibility: Eligibility | None) -> AbPlace:
    place = scenario_of(c)

    def series(*names: str | None) -> list[Series]:
        found = (cells.get(name, place, c.metric) for name in names if name is not None)
        return [one for one in found if one is not None]

    guest = _effects(series(c.tuning), series(design.baseline, design.control))
    # Without a native arm of its own, B is A there.
    a, b = (design.twins.get(name) for name in (c.against, c.tuning))
    native = _effects(series(b), series(a)) if a != b else None
    both = _interaction(guest, native)
    return AbPlace(
        guest=c,
        outcome=outcome_of(c),
        native=None if native is None else _shown(native, native.spread),
        interaction=None if both is None or guest is None else _shown(guest, both),
        depends=None
        if both is None or guest is None
        else _depends(both, guest.kind, c, design, eligibility),
    )


def _effects(one: Sequence[Series], references: Sequence[Series]) -> Effects | None:
    if not one or not references:
        return None
    return effects_of(one[0], references, against_native=False)


def _interaction(guest: Effects | None, native: Effects | None) -> Spread | None:
    """Return the spread of the differences of effects, by block, or by boot where blocks share
    some."""
    if guest is None or native is None or guest.kind is not native.kind:
        return None
    if not (guest.paired and native.paired):
        return None
    both = sorted(set(guest.by_block) & set(native.by_block))
    if not both:
        return None
    by_block = {block: guest.by_block[block] - native.by_block[block] for block in both}
    floor = math.hypot(guest.floor, native.floor)
    return spread_over(by_block, [*guest.boots, *native.boots], _RESOLUTION, floor)


def _shown(scale: Effects, of: Spread) -> AbEffect:
    interval = t_interval(of, ALPHA)
    return AbEffect(
        kind=scale.kind,
        estimate=scale.shown(of.mean),
        low=None if interval is None else scale.shown(interval.low),
        high=None if interval is None else scale.shown(interval.high),
        confidence=1 - ALPHA,
        blocks=of.n,
    )


def _depends(
    of: Spread,
    kind: EffectKind,
    c: Comparison,
    design: Design,
    eligibility: Eligibility | None,
) -> Depends:
    interval = t_interval(of, ALPHA)
    if of.n < FEWEST_BLOCKS or design.before_look or interval is None:
        return Depends.OPEN
    if eligibility is None or not eligibility.judges or c.verdict is Verdict.SUSPENDED:
        return Depends.OPEN
    if interval.low > 0 or interval.high < 0:
        return Depends.YES
    return Depends.NO if _is_equal(interval, kind, c, eligibility) else Depends.OPEN


def _is_equal(
    interval: Interval, kind: EffectKind, c: Comparison, eligibility: Eligibility
) -> bool:
    """Return whether both sides have the same effect, as a verdict of equivalence would say."""
    if c.margin is None:
        return False
    margin = on_scale(c.margin, kind)
    return interval.within(margin) and eligibility.sees(margin) and eligibility.reach <= margin


def as_effect(c: Comparison) -> AbEffect:
    """Return the effect of a comparison."""
    return AbEffect(
        kind=c.kind,
        estimate=c.estimate,
        low=c.low,
        high=c.high,
        confidence=c.confidence,
        blocks=len(c.blocks),
    )


# Put the answer into words.


_TIMES = (Unit.SECONDS, Unit.MICROSECONDS)
_PER_SECOND = (Unit.PER_SECOND, Unit.BYTES_PER_SECOND, Unit.BITS_PER_SECOND)


def ab_lead(answer: AbAnswer) -> str:
    """Return the answer's first sentence: B against A, wherever it was measured."""
    decided = [p for p in answer.places if p.outcome is answer.outcome]
    places = list(dict.fromkeys(str(scenario_of(p.guest)) for p in decided))
    where = f" in {listed(places)}" if len(places) < len(answer.places) else ""
    better, worse = _adjectives(decided)
    match answer.outcome:
        case Outcome.BETTER:
            return f"B is {better} than A{where}."
        case Outcome.WORSE:
            return f"B is {worse} than A{where}."
        case Outcome.NOT_WORSE:
            return f"B is not {worse} than A."
        case _:
            return f"Undecided whether B is {better} or {worse} than A{where}."


def _adjectives(places: Sequence[AbPlace]) -> tuple[str, str]:
    units = {place.guest.unit for place in places}
    is_speed = units and all(_is_speed(unit) for unit in units)
    return ("faster", "slower") if is_speed else ("better", "worse")


def _is_speed(unit: Unit) -> bool:
    return unit in (*_TIMES, *_PER_SECOND) or (unit.is_own and unit.endswith("/s"))


def ab_because(answer: AbAnswer) -> str:
    """Return the numbers of each place, and what they say of virtualization, as sentences."""
    several, images = len(answer.places) > 1, answer.labels.are_images
    parts = [_of_place(place, names_place=several, are_images=images) for place in answer.places]
    return " ".join([_names(answer.labels), *parts])


def _names(labels: AbLabels) -> str:
    return f"A: {labels.a}. B: {labels.b}."


def _of_place(place: AbPlace, *, names_place: bool, are_images: bool) -> str:
    c = place.guest
    at = f"{scenario_of(c)}: " if names_place else ""
    direction = {Better.HIGHER: " (higher is better)", Better.LOWER: " (lower is better)"}
    text = f"{at}{metric_title(c.metric)} of B against A{direction.get(c.better, '')}: "
    text += f"{_with_interval(as_effect(c), c.unit)} in the guest ({_verdict(c)})"
    if place.native is not None:
        text += f", {_with_interval(place.native, c.unit)} natively"
    return capital("; ".join([text, *_virtualization(place, are_images)])) + "."


def _verdict(c: Comparison) -> str:
    margin = "" if c.margin is None else f", threshold {size(c.margin)}"
    return f"{'no verdict' if c.verdict is None else c.verdict.shown}{margin}"


def _with_interval(of: AbEffect, unit: Unit) -> str:
    estimate, interval = effect_shown(of.estimate, of.low, of.high, of.kind, unit)
    return f"{estimate} ({100 * of.confidence:.3g} % CI {interval})" if interval else estimate


def _virtualization(place: AbPlace, are_images: bool) -> Iterator[str]:
    if place.interaction is None:
        return
    what = "virtualization or the guests' kernels" if are_images else "virtualization"
    words = {
        Depends.YES: f"the change depends on {what}",
        Depends.NO: f"the change does not depend on {what}",
    }
    said = words.get(place.depends or Depends.OPEN, f"whether the change depends on {what} is open")
    of = place.interaction
    estimate, interval = effect_shown(of.estimate, of.low, of.high, of.kind, place.guest.unit)
    sure = f", {100 * of.confidence:.3g} % CI {interval}" if interval else ""
    yield f"{said} (interaction {estimate}{sure})"


def status_of(answer: AbAnswer | None) -> ExitCode:
    """Return the exit status that `git bisect run` expects: good, bad, or skip."""
    outcome = Outcome.OPEN if answer is None else answer.outcome
    codes = {Outcome.WORSE: ExitCode.FOUND, Outcome.OPEN: ExitCode.OPEN}
    return codes.get(outcome, ExitCode.DONE)
