"""The answer: what to roll out, in one or two sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence

from labctl.analysis.cells import place_of
from labctl.analysis.effects import on_scale
from labctl.analysis.model import Comparison, EffectKind, Role, Verdict
from labctl.analysis.verdicts import FEWEST_BLOCKS
from labctl.analysis.words import capital, effect, few, listed, size_text
from labctl.base.wording import counted, metric_title, size

NEIGHBOUR_METRIC = "neighbour_ops_per_s"

_NEVER_WITH = frozenset({Verdict.REGRESSES, Verdict.OTHER_PROMISE})
_NO_REASON_TO_CHANGE = (Verdict.EQUIVALENT, Verdict.SMALL, Verdict.REGRESSES)


def answer(
    comparisons: Sequence[Comparison],
    *,
    why_not: str | None,
    emulated: bool,
    imported: bool = False,
) -> str:
    """One or two sentences for an administrator.

    Recommended is the tuning that improves the most primary metrics, and those by most, among
    those that regress none. `why_not`: the reason, for a run of which nothing can be judged.
    `emulated`: the guests ran under TCG. `imported`: labctl has the trials from a file.
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
    tunings = {c.tuning: [p for p in primaries if p.tuning == c.tuning] for c in primaries}
    ranked = sorted(filter(recommendable, tunings.values()), key=rank, reverse=True)
    where = "Under emulation, " if emulated else ""
    if not ranked:
        settled = all(c.verdict in _NO_REASON_TO_CHANGE for c in primaries)
        verdict = "keep baseline" if settled else "nothing can be recommended"
        return capital(f"{where}{verdict}: {_named(list(tunings.values()))}.")
    best = ranked[0]
    together = "" if len(primaries) == 1 else f" for all {len(primaries)} comparisons together"
    first = (
        f"{where}roll out '{best[0].tuning}': it {_clause(best, *_bill(best, comparisons))} "
        f"(against baseline, at 95 % confidence{together}{_one_boot(primaries)})."
    )
    rest = [of for of in tunings.values() if of is not best]
    if not rest:
        return capital(first)
    unranked = "the tunings were not compared with each other; " if len(ranked) > 1 else ""
    return f"{capital(first)} {capital(unranked + _named(rest))}."


def _one_boot(primaries: Sequence[Comparison]) -> str:
    """That a verdict rests on one boot and holds for it (docs/decisions/boots-and-blocks.md)."""
    shared = any(c.boots == 1 and len(c.blocks) > 1 for c in primaries)
    return ", for the one boot that the blocks share" if shared else ""


def recommendable(of: Sequence[Comparison]) -> bool:
    """Whether a tuning, of which `of` holds all primary comparisons, may be rolled out: it
    improves one of them at least, regresses none, and keeps what baseline promises everywhere."""
    verdicts = {c.verdict for c in of}
    return Verdict.IMPROVES in verdicts and verdicts.isdisjoint(_NEVER_WITH)


def rank(of: Sequence[Comparison]) -> tuple[int, float]:
    """The order of tunings: how many primary metrics improve, and by how many margins in all."""
    gains = [_gain(c) for c in of if c.verdict is Verdict.IMPROVES]
    return len(gains), sum(gains)


def _gain(c: Comparison) -> float:
    """The size of an effect in margins, so that different metrics can be added."""
    margin = on_scale(c.margin or 1.0, c.kind)
    return abs(math.log(c.estimate) if c.kind is EffectKind.RATIO else c.estimate) / margin


def _named(tunings: Sequence[Sequence[Comparison]]) -> str:
    return "; ".join(few([f"'{of[0].tuning}' {_clause(of)}" for of in tunings]))


def _clause(of: Sequence[Comparison], *more: str) -> str:
    """What is known of one tuning, as predicates joined."""

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
    if unclear := having(Verdict.INCONCLUSIVE):
        parts.append(f"is inconclusive in {listed([_unclear(c) for c in unclear])}")
    if other := having(Verdict.OTHER_PROMISE):
        parts.append(
            f"gets no verdict in {_places(other)}, where its disk promises something else of a "
            "write"
        )
    if suspended := having(Verdict.SUSPENDED):
        parts.append(
            f"gets no verdict in {_places(suspended)}, where the control failed, is missing or "
            "leaves too much open"
        )
    if early := having(Verdict.BEFORE_LOOK):
        parts.append(f"gets no verdict in {_places(early)} before the first declared look")
    if short := having(Verdict.DEMONSTRATION):
        parts.append(f"has fewer than {FEWEST_BLOCKS} blocks in {_places(short)}")
    parts.extend(more)
    return ", and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def _places(of: Sequence[Comparison]) -> str:
    return listed([str(place_of(c)) for c in of])


def _effects(of: Sequence[Comparison]) -> str:
    return listed([f"{place_of(c)} ({metric_title(c.metric)} {effect(c)})" for c in of])


def _margin(c: Comparison) -> str:
    return "" if c.margin is None else size_text(c.margin, c.kind, c.unit)


def _unclear(c: Comparison) -> str:
    """What an inconclusive comparison could have shown, and what it would take."""
    facts = []
    if c.smallest_visible is not None:
        facts.append(
            f"an effect of {size_text(c.smallest_visible, c.kind, c.unit)} could have been seen"
        )
    if c.blocks_needed is not None:
        facts.append(f"{_margin(c)} would take {c.blocks_needed} blocks")
    place = str(place_of(c))
    return f"{place} ({'; '.join(facts)})" if facts else place


def _bill(best: Sequence[Comparison], comparisons: Sequence[Comparison]) -> list[str]:
    """What the neighbour pays (METHOD 4), at most, where the tuning improves something."""
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
