"""Decide what may be recommended, and what keeps a tuning from it (METHOD 25).

A recommendation is a claim about everything that the plan declares. It takes one primary metric
that improves, and in every place with a primary metric that a loss beyond the study's
`no_worse_than` is excluded (`verdicts.excludes_loss`). What was not shown counts as harm: a missing
value, a control that failed, a different durability, too few blocks. Report, advice and rollout
card all use this.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from labctl.analysis.answer.words import change_text, listed, size_text
from labctl.analysis.effects.cells import Scenario, scenario_of
from labctl.analysis.effects.design import Design
from labctl.analysis.effects.effects import on_scale
from labctl.analysis.model import AnswerCode, Comparison, EffectKind, Role, Standing, Unshown
from labctl.analysis.verdicts.checks import Checked
from labctl.analysis.verdicts.table import Verdict
from labctl.base.units import Better
from labctl.base.wording import metric_title

_NO_VALUE = "no block has a value for both it and the baseline"

_ORDER = (AnswerCode.RECOMMENDED, AnswerCode.PRICED, AnswerCode.NONE)


def standings(
    design: Design, comparisons: Sequence[Comparison], checked: Mapping[Scenario, Checked]
) -> tuple[Standing, ...]:
    """Return what the answer makes of each candidate, the best first: what is recommended before
    what has a price; then who improves more primary metrics, then who improves them by more
    margins."""
    judged: dict[str, dict[Scenario, Comparison]] = {name: {} for name in design.candidates}
    for c in comparisons:
        if c.role is Role.PRIMARY:
            judged[c.tuning][scenario_of(c)] = c
    found = (_standing(name, of, design, checked) for name, of in judged.items())
    return tuple(sorted(found, key=_rank))


def _standing(
    tuning: str,
    by_place: Mapping[Scenario, Comparison],
    design: Design,
    checked: Mapping[Scenario, Checked],
) -> Standing:
    judged = tuple(by_place[place] for place in design.harmless_in if place in by_place)
    unshown = tuple(_unshown(by_place, design, checked))
    verdicts = {c.verdict for c in judged if c.verdict is not None}
    code = AnswerCode.NONE
    if Verdict.IMPROVES in verdicts and not any(one.row.forbids for one in verdicts):
        code = AnswerCode.PRICED if unshown else AnswerCode.RECOMMENDED
    price = _price(unshown, by_place) if code is AnswerCode.PRICED else ""
    return Standing(tuning=tuning, code=code, judged=judged, unshown=unshown, price=price)


def _unshown(
    by_place: Mapping[Scenario, Comparison], design: Design, checked: Mapping[Scenario, Checked]
) -> Iterator[Unshown]:
    for place in design.harmless_in:
        c = by_place.get(place)
        # What Holm's procedure adds has an interval that holds no effect, but its sign is known.
        if c is not None and (c.no_worse or c.verdict is Verdict.IMPROVES):
            continue
        why, loss = (_NO_VALUE, None) if c is None else _why(c, checked.get(place))
        yield Unshown(
            workload=place.workload,
            condition=place.condition,
            metric=design.primaries[place.workload].metric,
            why=why,
            loss=loss,
        )


def _why(c: Comparison, checked: Checked | None) -> tuple[str, float | None]:
    """Return why a comparison does not show that there is no harm, and the loss that it leaves
    open."""
    if c.verdict is not None and c.verdict.row.unshown:
        return c.verdict.row.unshown, None
    if checked is None or not checked.eligibility.judges:
        failed = checked is not None and checked.control.passed is False
        return f"the A/A control {'failed' if failed else 'could not be checked'}", None
    if c.fallback is not None:
        return f"{metric_title(c.metric)} {c.fallback}", None
    if c.better is Better.NEITHER:
        return f"{metric_title(c.metric)} has no better direction", None
    worse = c.high if c.better is Better.LOWER else c.low
    if worse is None or c.no_worse_than is None:
        return "there is no interval", None
    if _size(worse, c) < on_scale(c.no_worse_than, c.kind):
        return (
            f"the A/A control cannot exclude a bias that could hide a loss of {_allowed(c)}",
            None,
        )
    return f"{metric_title(c.metric)} {change_text(worse, c.kind, c.unit)}", worse


def _size(loss: float, c: Comparison) -> float:
    """Return how far the worse end of an interval lies from no effect, on the scale of effects."""
    sign = 1 if c.better is Better.LOWER else -1
    if c.kind is EffectKind.RATIO:
        return sign * math.log(loss) if loss > 0 else math.inf
    return sign * loss


def _price(unshown: Sequence[Unshown], by_place: Mapping[Scenario, Comparison]) -> str:
    """Return where a tuning would be taken unseen, and what this run could not exclude there."""
    alone = len(unshown) == 1
    losses, others = [], []
    for one in unshown:
        place = scenario_of(one)
        told = f"{one.why} {'there' if alone else f'in {place}'}"
        if one.loss is None:
            others.append(told)
        else:
            losses.append(f"{told} (the study allows {_allowed(by_place[place])})")
    if losses:
        others.insert(0, f"this run could not exclude {listed(losses)}")
    places = listed([str(scenario_of(one)) for one in unshown])
    return f"if {places} {'does' if alone else 'do'} not matter: {'; '.join(others)}"


def _allowed(c: Comparison) -> str:
    return "" if c.no_worse_than is None else size_text(c.no_worse_than, c.kind, c.unit)


def _rank(of: Standing) -> tuple[int, int, float]:
    gains = [_gain(c) for c in of.judged if c.verdict is Verdict.IMPROVES]
    return _ORDER.index(of.code), -len(gains), -sum(gains)


def _gain(c: Comparison) -> float:
    """Return the size of an effect in margins, so that different metrics can be added."""
    margin = on_scale(c.margin or 1.0, c.kind)
    return abs(math.log(c.estimate) if c.kind is EffectKind.RATIO else c.estimate) / margin
