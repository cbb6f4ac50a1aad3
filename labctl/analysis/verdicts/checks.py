"""Decide whether a run may judge: does baseline equal itself, and was the known loss detected?

Both use the workload's primary metric, in each condition. The control's checks are a family of
their own: of p places each has confidence 1 - alpha/p, so a sound run finds its baseline different
from itself anywhere in at most 5 % of cases (docs/decisions/control-and-handicap.md). The known
loss is tested one-sided at 5 %: its 90 % interval must lie entirely below 0, so a blind run passes
in one of twenty cases. A known loss of many times the threshold does not prove that the run detects
losses as small as the threshold: then the minimum detectable effect must lie below it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from labctl.analysis.answer.words import capital, effect_shown, few, listed, size_text
from labctl.analysis.effects.cells import Cells, Scenario, Series, scenario_of
from labctl.analysis.effects.design import Design, Primary
from labctl.analysis.effects.effects import Effects, effects_of, on_scale, towards_better
from labctl.analysis.effects.intervals import (
    Interval,
    smallest_visible,
    spread_over,
    t_interval,
)
from labctl.analysis.model import EffectKind, RunCheck, Said
from labctl.analysis.verdicts.rules import Eligibility, sees_from
from labctl.base.notation import changes, size
from labctl.base.stopping import FEWEST_BLOCKS
from labctl.base.units import Better, Unit
from labctl.base.wording import metric_title


@dataclass(frozen=True, slots=True)
class Checked:
    control: RunCheck
    known_loss: RunCheck
    eligibility: Eligibility


def check(design: Design, cells: Cells, place: Scenario, primary: Primary) -> Checked:
    """Return the checks of the A/A control and the known-loss arm at one workload and condition."""
    control, judges, reach = _check_control(design, cells, place, primary)
    known_loss, least = _check_known_loss(design, cells, place, primary)
    return Checked(control, known_loss, Eligibility(judges, reach, least))


_MOST_PLACES = 8
"""Limit on the places that one sentence names."""

CONTROL_FAILED = "the A/A control failed: baseline differs from itself"
"""Reason for no conclusion against baseline."""


def control_failed(design: Design, cells: Cells, place: Scenario) -> str:
    """Return why nothing is concluded against baseline at a place; "" if the control did not fail
    there."""
    primary = design.primaries.get(place.workload)
    if primary is None or _check_control(design, cells, place, primary)[0].passed is not False:
        return ""
    return CONTROL_FAILED


def _check_control(
    design: Design, cells: Cells, place: Scenario, primary: Primary
) -> tuple[RunCheck, bool, float]:
    """Return the check, whether it lets the run judge, and its reach. The effect is y_C - y_B:
    METHOD 17's a_b in the direction of all other changes, those of an arm against baseline."""
    arm = _control(design, cells, place, primary)
    if arm.effects is None or arm.interval is None or arm.excuse is not None:
        said = Said("The A/A control could not be checked in ", f": {arm.excuse}.")
        return arm.checked("control", None, said), False, 0.0
    found = arm.quoted(arm.effects, arm.interval)
    reach = arm.interval.reach
    if arm.interval.low > 0 or arm.interval.high < 0:
        said = Said(
            "The A/A control failed in ",
            ": baseline differs from itself, so verdicts are suspended there.",
            found,
        )
        return arm.checked("control", False, said), False, reach
    if reach > on_scale(primary.margin, arm.effects.kind):
        said = Said(
            "The A/A control is too noisy in ",
            ": effects smaller than its possible bias get no verdict there.",
            f"{found}, bias up to "
            f"{size_text(arm.effects.as_size(reach), arm.effects.kind, arm.unit)}, "
            f"threshold {size_text(primary.margin, arm.effects.kind, arm.unit)}",
        )
        return arm.checked("control", None, said), True, reach
    return arm.checked("control", True, Said("The A/A control passed in ", ".", found)), True, reach


def _control(design: Design, cells: Cells, place: Scenario, primary: Primary) -> _Arm:
    references = (design.baseline,)
    return _Arm.of(cells, place, primary, design.control, references, design.control_alpha)


def _check_known_loss(
    design: Design, cells: Cells, place: Scenario, primary: Primary
) -> tuple[RunCheck, float]:
    """Return the check, and the smallest loss that it shows the run to detect."""
    references = (design.baseline, design.control)
    # The test is one-sided, so its interval has twice the level.
    arm = _Arm.of(cells, place, primary, design.known_loss, references, 2 * design.level)
    withheld = '"equivalent" is withheld there.'
    if arm.effects is None or arm.interval is None or arm.excuse is not None:
        said = Said("The known-loss arm could not be checked in ", f": {arm.excuse}; {withheld}")
        return arm.checked("known_loss", None, said), math.inf
    found = arm.quoted(arm.effects, arm.interval)
    if arm.better is Better.NEITHER:
        said = Said(f"{primary.metric} in ", f" has no better direction; {withheld}")
        return arm.checked("known_loss", None, said), math.inf
    if towards_better(arm.interval, arm.better).high >= 0:
        said = Said(
            "The known loss was not detected in ",
            ": this run cannot show there that two tunings are equivalent.",
            found,
        )
        return arm.checked("known_loss", False, said), math.inf
    control = _control(design, cells, place, primary)
    noise = None if control.excuse or control.effects is None else control.effects.spread
    least = sees_from(abs(arm.effects.spread.mean), noise, design.alpha)
    if least <= on_scale(primary.margin, arm.effects.kind):
        said = Said("The known loss was detected in ", ".", found)
        return arm.checked("known_loss", True, said), least
    visible = None if noise is None else smallest_visible(noise, design.alpha)
    said = Said(
        "The known loss was detected in ",
        ", but it is more than twice the threshold there: a loss as small as the threshold "
        f"may go undetected, so {withheld}",
        f"{found}, minimum detectable effect {arm.size(visible)}, threshold "
        f"{size_text(primary.margin, arm.effects.kind, arm.unit)}",
    )
    return arm.checked("known_loss", None, said), least


def together(checks: Iterable[RunCheck]) -> Iterator[str]:
    """Yield the sentences of checks: one for all that differ only in place and numbers."""
    alike: dict[tuple[str, str], list[RunCheck]] = {}
    for check in checks:
        if check.said is None:
            yield check.sentence
        else:
            alike.setdefault((check.said.before, check.said.after), []).append(check)
    for (before, after), same in alike.items():
        if len(same) == 1:
            yield same[0].sentence
            continue
        places = listed([str(scenario_of(check)) for check in same], _MOST_PLACES)
        quoted = [
            f"{scenario_of(check)} {check.said.found}"
            for check in same
            if check.said is not None and check.said.found
        ]
        found = f" Found: {'; '.join(few(quoted, _MOST_PLACES))}." if quoted else ""
        yield f"{before}{places}{after}{found}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arm:
    """Compare one arm with others. `excuse`: why no check can use it."""

    place: Scenario
    metric: str
    better: Better
    unit: Unit
    """Unit of the values; arbitrary for a side without values, which is not shown."""
    effects: Effects | None
    interval: Interval | None
    confidence: float
    excuse: str | None

    @classmethod
    def of(
        cls,
        cells: Cells,
        place: Scenario,
        primary: Primary,
        name: str | None,
        references: tuple[str | None, ...],
        alpha: float,
    ) -> _Arm:
        side = cells.get(name, place, primary.metric)
        others = [s for r in references if (s := cells.get(r, place, primary.metric)) is not None]
        effects = effects_of(side, others, against_native=False) if side and others else None
        interval = t_interval(effects.spread, alpha) if effects else None
        return cls(
            place=place,
            metric=primary.metric,
            better=side.sample.better if side else Better.NEITHER,
            unit=side.sample.unit if side else Unit.COUNT,
            effects=effects,
            interval=interval,
            confidence=1 - alpha,
            excuse=(
                "the run has none"
                if name is None or references == (None,)
                else _excuse(primary.metric, effects, interval)
            ),
        )

    def quoted(self, effects: Effects, interval: Interval) -> str:
        estimate = effects.shown(effects.spread.mean)
        low, high = effects.shown(interval.low), effects.shown(interval.high)
        found = effect_shown(estimate, low, high, effects.kind, self.unit)
        return f"{metric_title(self.metric)} {found}"

    def size(self, value: float | None) -> str:
        """Return a size on the scale of effects as text."""
        if self.effects is None or value is None:
            return "not known"
        return size_text(self.effects.as_size(value), self.effects.kind, self.unit)

    def checked(self, name: str, passed: bool | None, said: Said) -> RunCheck:
        effects, interval = self.effects, self.interval
        return RunCheck(
            name=name,
            workload=self.place.workload,
            condition=self.place.condition,
            metric=self.metric,
            passed=passed,
            estimate=effects.shown(effects.spread.mean) if effects else None,
            low=effects.shown(interval.low) if effects and interval else None,
            high=effects.shown(interval.high) if effects and interval else None,
            confidence=self.confidence,
            sentence=f"{said.before}{self.place}{said.after}"
            + (f" Found: {said.found}." if said.found else ""),
            said=said,
        )


def _excuse(metric: str, effects: Effects | None, interval: Interval | None) -> str | None:
    if effects is None:
        return f"no block has {metric} for both it and the baseline"
    if effects.spread.n < FEWEST_BLOCKS:
        return f"{effects.spread.n} of the {FEWEST_BLOCKS} blocks that it needs"
    if effects.fallback is not None:
        return f"{metric} {effects.fallback}"
    if interval is None:
        return f"{metric} differed by the same number in every block, too coarse to judge by"
    return None


# Check whether a restored guest performs like a booted one (METHOD 8).
#
# If a plan has a tuning and the baseline both restored and booted, the tuning's effect must be the
# same both ways. The interaction (T - B restored) - (T - B booted), block by block on the scale of
# effects, must be equivalent within half the practical threshold: otherwise the restore may be the
# cause of a restored tuning's verdict. If the two differ, booting wins.


_RESOLUTION = 1e-9
"""Difference between effects up to which they count as tied."""


_DIFFERS = "does not have"
"""Part of the sentence of a check whose interval excludes that both ways are the same."""


def restore_checks(
    design: Design, cells: Cells, eligibilities: Mapping[Scenario, Eligibility]
) -> Iterator[RunCheck]:
    """Yield one check for each tuning that the plan has both ways, per workload and condition.

    `passed`: True if equivalent, by two one-sided tests at the run's level divided by the number of
    checks; False if that was not shown; None if it can't be. As with any verdict, the control and
    the known loss decide whether the run may call things equal (METHOD 5, 18).
    """
    booted_baseline = next((b for b, r in design.restored_as.items() if r == design.baseline), None)
    if booted_baseline is None:
        return
    pairs = [
        (place, primary, restored, booted)
        for place in design.places
        if (primary := design.primaries.get(place.workload)) is not None
        for booted, restored in design.restored_as.items()
        if booted != booted_baseline
    ]
    for pair in pairs:
        test = _Test(*pair, alpha=design.level / len(pairs))
        eligibility = eligibilities.get(test.place)
        yield _check(test, design, cells, booted_baseline, eligibility)


def restore_differs(check: RunCheck) -> bool:
    """Return whether a check excludes that a tuning has the same effect restored and booted."""
    return _DIFFERS in check.sentence


def restore_answer(checks: Sequence[RunCheck]) -> str:
    """Summarize all checks in a sentence; "" without checks."""
    if not checks:
        return ""
    differing = [check for check in checks if restore_differs(check)]
    unknown = [check for check in checks if check.passed is not True and check not in differing]
    parts = []
    if differing:
        parts.append(f"restoring changes the effect of {_named(differing)}: use booted guests")
    if unknown:
        parts.append(
            f"it was not shown that {_named(unknown)} has the same effect restored and booted"
        )
    if not parts:
        parts.append(
            f"restored and booted guests have the same effect, within the limits: {_named(checks)}"
        )
    return capital(f"{'; '.join(parts)}.")


def _named(checks: Sequence[RunCheck]) -> str:
    names = (f"'{c.name}' ({scenario_of(c)})" for c in checks)
    return listed(few(list(names)), limit=4)


@dataclass(frozen=True, slots=True)
class _Test:
    place: Scenario
    primary: Primary
    restored: str
    booted: str
    alpha: float


def _check(
    test: _Test,
    design: Design,
    cells: Cells,
    booted_baseline: str,
    eligibility: Eligibility | None,
) -> RunCheck:
    def series(*names: str | None) -> list[Series]:
        found = (cells.get(name, test.place, test.primary.metric) for name in names)
        return [one for one in found if one is not None]

    restored = _effect(series(test.restored), series(design.baseline, design.control))
    booted = _effect(series(test.booted), series(booted_baseline))
    where = f"'{test.restored}' in {test.place}"
    unchecked = f"It could not be checked whether {where} may be restored"
    if restored is None or booted is None or EffectKind.DIFFERENCE in (restored.kind, booted.kind):
        return _checked(test, None, f"{unchecked}.")
    both = sorted(set(restored.by_block) & set(booted.by_block))
    by_block = {block: restored.by_block[block] - booted.by_block[block] for block in both}
    if len(both) < FEWEST_BLOCKS:
        lack = f"{len(both)} of the {FEWEST_BLOCKS} blocks that it needs"
        return _checked(test, None, f"{unchecked}: {lack}.")
    if eligibility is None or not eligibility.judges:
        return _checked(test, None, f"{unchecked}: the A/A control does not allow it.")
    if design.before_look:
        none = "the run reached none of its plan's looks"
        return _checked(test, None, f"{unchecked}: {none}.")
    boots = [*restored.boots, *booted.boots]
    of = spread_over(by_block, boots, _RESOLUTION, math.hypot(restored.floor, booted.floor))
    # Two one-sided tests at alpha each have an interval of confidence 1 - 2 alpha.
    interval = t_interval(of, 2 * test.alpha)
    if interval is None:
        return _checked(test, None, f"{where} differed by the same number in every block.")
    margin = on_scale(test.primary.margin, restored.kind)
    half = margin / 2
    passed = interval.within(half)
    low, high = restored.shown(interval.low), restored.shown(interval.high)
    found = (
        f"{metric_title(test.primary.metric)} {changes(restored.shown(of.mean), low, high)} "
        f"against booted guests ({size(restored.as_size(half))} is allowed)"
    )
    estimate, shown = restored.shown(of.mean), Interval(low, high)
    if passed and not (eligibility.sees(margin) and eligibility.reach <= margin):
        forbids = (
            "the A/A control and the known-loss arm do not allow this run to call things equal"
        )
        return _checked(test, None, f"{unchecked}: {found}, but {forbids}.", estimate, shown)
    apart = t_interval(of, test.alpha)
    differs = apart is not None and (apart.low > 0 or apart.high < 0)
    verb = "has" if passed else _DIFFERS if differs else "has not been shown to have"
    sentence = f"{where} {verb} the effect of a booted guest: {found}."
    return _checked(test, passed, sentence, estimate, shown)


def _effect(tuning: Sequence[Series], references: Sequence[Series]) -> Effects | None:
    if not tuning or not references:
        return None
    return effects_of(tuning[0], references, against_native=False)


def _checked(
    test: _Test,
    passed: bool | None,
    sentence: str,
    estimate: float | None = None,
    interval: Interval | None = None,
) -> RunCheck:
    return RunCheck(
        name=test.restored,
        workload=test.place.workload,
        condition=test.place.condition,
        metric=test.primary.metric,
        passed=passed,
        estimate=estimate,
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        confidence=1 - 2 * test.alpha,
        sentence=sentence,
    )
