"""Say what is known of each tuning, in clauses of the answer's sentences."""

from __future__ import annotations

from collections.abc import Sequence

from labctl.analysis.cells import scenario_of
from labctl.analysis.inconclusive import why_inconclusive
from labctl.analysis.model import AnswerCode, Comparison, Standing
from labctl.analysis.verdict_table import Says, Verdict, says
from labctl.analysis.words import effect, few, listed, size_text
from labctl.base.wording import metric_title


def context(primaries: Sequence[Comparison]) -> str:
    """Return what a change is against, and how sure its interval is."""
    return f"against baseline, at 95 % confidence{_together(primaries)}{_one_boot(primaries)}"


def _together(primaries: Sequence[Comparison]) -> str:
    return "" if len(primaries) == 1 else f" for all {len(primaries)} comparisons together"


def _one_boot(primaries: Sequence[Comparison]) -> str:
    """Say that a verdict rests on one boot and holds only for it
    (docs/decisions/boots-and-blocks.md).
    """
    shared = any(c.boots == 1 and len(c.blocks) > 1 for c in primaries)
    return ", for the one boot that the blocks share" if shared else ""


def nothing_matters(judged: Sequence[Standing]) -> bool:
    """Return whether the run shows of every tuning that it makes no change for the better that
    matters, wherever one was to be shown."""
    settled = all(
        says(c.verdict, Says.NO_EFFECT) or c.verdict is Verdict.REGRESSES
        for of in judged
        for c in of.judged
    )
    return settled and all(map(_is_whole, judged))


def _is_whole(of: Standing) -> bool:
    """Return whether it was compared in every place where something is left to be shown."""
    return {scenario_of(one) for one in of.unshown} <= {scenario_of(c) for c in of.judged}


def named(tunings: Sequence[Standing]) -> str:
    """Return what is known of each tuning, as clauses."""
    return "; ".join(few([_of_tuning(of) for of in tunings]))


def _of_tuning(of: Standing) -> str:
    if of.code is not AnswerCode.PRICED:
        return f"'{of.tuning}' {clause(of.judged)}"
    open_ = {scenario_of(one) for one in of.unshown}
    shown = [c for c in of.judged if scenario_of(c) not in open_]
    return f"'{of.tuning}', {of.price}; it {clause(shown)}"


def clause(of: Sequence[Comparison]) -> str:
    """Return what is known of one tuning, as predicates joined."""

    def having(verdict: Verdict) -> list[Comparison]:
        return [c for c in of if c.verdict is verdict]

    better, worse = having(Verdict.IMPROVES), having(Verdict.REGRESSES)
    parts = []
    if better and worse:
        parts.append(
            f"is a trade-off: it improves {_effects(better)} but regresses {_effects(worse)}"
        )
    elif better:
        parts.append(f"improves {_effects(better)}")
    elif worse:
        parts.append(f"regresses {_effects(worse)}")
    if small := having(Verdict.SMALL):
        parts.append(f"changes {_effects(small)}, less than matters")
    if equal := having(Verdict.EQUIVALENT):
        within = listed(list(dict.fromkeys(_margin(c) for c in equal)))
        parts.append(f"equals baseline within {within} in {_places(equal)}")
    # What does no harm matters of a tuning that does some good.
    harmless = [c for c in of if better and c.no_worse and says(c.verdict, Says.OPEN)]
    if harmless:
        parts.append(f"is {listed([_no_worse(c) for c in harmless])}")
    if unclear := [c for c in having(Verdict.INCONCLUSIVE) if c not in harmless]:
        parts.append(f"is inconclusive in {listed([_unclear(c) for c in unclear])}")
    for verdict in Verdict:
        clause = verdict.row.clause
        if clause and (found := [c for c in having(verdict) if c not in harmless]):
            parts.append(clause.format(places=_places(found)))
    return ", and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def _places(of: Sequence[Comparison]) -> str:
    return listed([str(scenario_of(c)) for c in of])


def _effects(of: Sequence[Comparison]) -> str:
    return listed([f"{scenario_of(c)} ({metric_title(c.metric)} {effect(c)})" for c in of])


def _margin(c: Comparison) -> str:
    return "" if c.margin is None else size_text(c.margin, c.kind, c.unit)


def _no_worse(c: Comparison) -> str:
    """Return what was shown of a comparison whose effect is not clear: "no more than 50 % worse in
    …"."""
    allowed = "" if c.no_worse_than is None else size_text(c.no_worse_than, c.kind, c.unit)
    return f"no more than {allowed} worse in {_effects([c])}"


def _unclear(c: Comparison) -> str:
    """Return where a comparison is inconclusive, and why."""
    why, place = why_inconclusive(c), str(scenario_of(c))
    return f"{place} ({why.reason}: {why.found})" if why else place
