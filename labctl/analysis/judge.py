"""Judge a loaded run: levels, comparisons, verdicts, checks, caveats and the answer.

    trials ─ cells ─▶ values per block ─ effects, intervals ─▶ comparisons ─ verdicts ─▶ answer
    plan ── design ─▶ arms, primaries, family ── checks ─▶ eligibility of the run ─┘

Pure: values in, values out. The rules are those of METHOD 15 to 22 in their plain form.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from labctl.analysis.ab import compare_ab
from labctl.analysis.answer.answer import answer_record
from labctl.analysis.answer.standing import standings
from labctl.analysis.answer.words import capital, few, listed
from labctl.analysis.caveats.assumptions import diagnose
from labctl.analysis.caveats.caveats import caveats
from labctl.analysis.caveats.run import count_attempts, count_trials, hindrances
from labctl.analysis.effects.cells import Cells, Scenario, Series, scenario_of
from labctl.analysis.effects.compare import levels
from labctl.analysis.effects.design import Design, Primary
from labctl.analysis.effects.effects import Effects, effects_of, on_scale
from labctl.analysis.effects.intervals import Interval, spread_over, t_interval
from labctl.analysis.effects.variance import precision
from labctl.analysis.model import EffectKind, Judged, Judgement, RunCheck
from labctl.analysis.verdicts.decide import added, caveat, decide, spares
from labctl.analysis.verdicts.looks import ending
from labctl.analysis.verdicts.rules import Eligibility
from labctl.base.notation import changes, size
from labctl.base.stopping import FEWEST_BLOCKS
from labctl.base.wording import metric_title
from labctl.store.run_folder import LoadedRun

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


def restore_answer(checks: Sequence[RunCheck]) -> str:
    """Summarize all checks in a sentence; "" without checks."""
    if not checks:
        return ""
    differing = [check for check in checks if _DIFFERS in check.sentence]
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


def judge(run: LoadedRun, fresh: Sequence[LoadedRun] = ()) -> Judgement:
    """Return levels, comparisons with verdicts, checks, caveats and the answer of a run. `fresh`:
    runs that verified its advice.

    Never raises: for the missing parts of an incomplete run there is a sentence.
    """
    decided = decide(run)
    design, cells, checked = decided.design, decided.cells, decided.checked
    eligibilities = decided.eligibilities
    compared = decided.comparisons
    restored = tuple(restore_checks(design, cells, eligibilities))
    found = tuple(diagnose(decided.run, design, cells, eligibilities, decided.made))
    ranked = standings(design, compared, checked)
    more = added(run, decided.run, eligibilities)
    attempts, counts = count_attempts(run), count_trials(run)
    judged = Judged(
        comparisons=compared,
        levels=tuple(levels(cells)),
        control=tuple(c.control for c in checked.values()),
        known_loss=tuple(c.known_loss for c in checked.values()),
        unavailable=cells.missing,
        warnings=(
            *caveat(more, decided.run),
            *caveats(
                run, design, cells, tuple(checked.values()), compared, restored, found, attempts
            ),
        ),
        blocks=cells.blocks,
        boots=cells.boots,
        planned=counts.planned,
        done=counts.done,
        invalid=counts.invalid,
        attempts=attempts,
        primaries={workload: primary.metric for workload, primary in design.primaries.items()},
        restored=restored,
        diagnostics=found,
        precision=tuple(precision(decided.run, decided.made)),
        ending=ending(run, compared),
        added=more,
        spares=spares(run),
        factors=decided.factors,
        ab=compare_ab(run.plan.ab, design, cells, compared, eligibilities),
        standings=ranked,
    )
    record = answer_record(
        run,
        decided,
        judged,
        fresh=fresh,
        why_not=next(hindrances(design, cells, attempts), None),
        restored=restore_answer(restored),
    )
    return Judgement.of(judged, record)
