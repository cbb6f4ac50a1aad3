"""Answer what to roll out, in one or two sentences."""

from __future__ import annotations

from collections.abc import Sequence

from labctl.analysis.cells import scenario_of
from labctl.analysis.model import AnswerCode, Comparison, EffectKind, Role, Standing
from labctl.analysis.verdict_table import Says, Verdict, says
from labctl.analysis.verdicts import FEWEST_BLOCKS
from labctl.analysis.words import capital, effect, few, listed, size_text
from labctl.base.notation import size
from labctl.base.wording import counted, metric_title

NEIGHBOUR_METRIC = "neighbour_ops_per_s"


def answer(
    comparisons: Sequence[Comparison],
    standings: Sequence[Standing],
    *,
    why_not: str | None,
    emulated: bool,
    imported: bool = False,
) -> str:
    """Return one or two sentences for an administrator, which recommend the first of the standings
    that may be. What has a price is named with it, and not recommended.

    `why_not`: the reason, for a run of which nothing can be judged. `emulated`: the guests ran
    under TCG. `imported`: labctl has the trials from a file.
    """
    primaries = [c for c in comparisons if c.role is Role.PRIMARY]
    if not primaries:
        reason = why_not or "No block has a primary metric of both a tuning and baseline."
        return f"Nothing can be recommended. {reason}"
    if all(c.verdict is Verdict.DEMONSTRATION for c in primaries):
        most = max(len(c.blocks) for c in primaries)
        remedy = "Import a file" if imported else "Run the study"
        return (
            f"Demonstration, no verdict: {counted(most, 'block')} can be compared where a verdict "
            f"takes {FEWEST_BLOCKS}. {remedy} with at least {FEWEST_BLOCKS} blocks."
        )
    if all(c.verdict is Verdict.BEFORE_LOOK for c in primaries):
        return (
            "No verdict before the first look that the plan declares: estimates and intervals are "
            "shown, and nothing is decided by them."
        )
    judged = [of for of in standings if of.judged]
    where = "Under emulation, " if emulated else ""
    sure = f"against baseline, at 95 % confidence{_together(primaries)}{_one_boot(primaries)}"
    best, rest = judged[0], judged[1:]
    if best.code is AnswerCode.NONE:
        settled = all(
            says(c.verdict, Says.NO_EFFECT) or c.verdict is Verdict.REGRESSES for c in primaries
        )
        keep = settled and all(map(_is_whole, judged))
        verdict = "keep baseline" if keep else "nothing can be recommended"
        return capital(f"{where}{verdict}: {_named(judged)}.")
    if best.code is AnswerCode.PRICED:
        first = f"{where}nothing can be recommended. {_named([best])} ({sure})."
    else:
        gains = _clause(best.judged, *_side_costs(best.judged, comparisons))
        first = f"{where}roll out '{best.tuning}': it {gains} ({sure})."
    if not rest:
        return capital(first)
    several = sum(of.code is best.code for of in judged) > 1
    unranked = "the tunings were not compared with each other; " if several else ""
    return f"{capital(first)} {capital(unranked + _named(rest))}."


def _together(primaries: Sequence[Comparison]) -> str:
    return "" if len(primaries) == 1 else f" for all {len(primaries)} comparisons together"


def _one_boot(primaries: Sequence[Comparison]) -> str:
    """Say that a verdict rests on one boot and holds only for it
    (docs/decisions/boots-and-blocks.md).
    """
    shared = any(c.boots == 1 and len(c.blocks) > 1 for c in primaries)
    return ", for the one boot that the blocks share" if shared else ""


def _is_whole(of: Standing) -> bool:
    """Return whether it was compared in every place where something is left to be shown."""
    return {scenario_of(one) for one in of.unshown} <= {scenario_of(c) for c in of.judged}


def _named(tunings: Sequence[Standing]) -> str:
    return "; ".join(few([_of_tuning(of) for of in tunings]))


def _of_tuning(of: Standing) -> str:
    if of.code is not AnswerCode.PRICED:
        return f"'{of.tuning}' {_clause(of.judged)}"
    open_ = {scenario_of(one) for one in of.unshown}
    shown = [c for c in of.judged if scenario_of(c) not in open_]
    return f"'{of.tuning}', {of.price}; it {_clause(shown)}"


def _clause(of: Sequence[Comparison], *more: str) -> str:
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
    parts.extend(more)
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
    """Return what an inconclusive comparison could have shown, and what it would take."""
    facts = []
    if c.smallest_visible is not None:
        facts.append(f"minimum detectable effect: {size_text(c.smallest_visible, c.kind, c.unit)}")
    if c.blocks_needed is not None:
        facts.append(f"{_margin(c)} would take {c.blocks_needed} blocks")
    place = str(scenario_of(c))
    return f"{place} ({'; '.join(facts)})" if facts else place


def _side_costs(best: Sequence[Comparison], comparisons: Sequence[Comparison]) -> list[str]:
    """Return what the neighbour pays (METHOD 4), at most, where the tuning improves something."""
    won = {(c.workload, c.condition) for c in best if c.verdict is Verdict.IMPROVES}
    losses = [
        1 - c.estimate
        for c in comparisons
        if c.metric == NEIGHBOUR_METRIC
        and (c.tuning, c.against) == (best[0].tuning, best[0].against)
        and (c.workload, c.condition) in won
        and c.kind is EffectKind.RATIO
        and c.high is not None
        and c.high < 1
    ]
    if not losses:
        return []
    most = "up to " if len(losses) > 1 else ""
    return [f"costs the neighbour {most}{size(max(losses))}"]
