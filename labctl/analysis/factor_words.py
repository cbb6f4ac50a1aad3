"""Put what factors did into words, the same for every report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from labctl.analysis.factor_model import Contrast, FactorAnalysis, Finding
from labctl.analysis.model import EffectKind
from labctl.analysis.words import effect_shown, listed
from labctl.base.notation import Shown
from labctl.base.stopping import FEWEST_BLOCKS
from labctl.base.units import Better
from labctl.base.wording import counted, metric_title, place_in_words

_DIRECTIONS = {Better.HIGHER: ", higher is better", Better.LOWER: ", lower is better"}


def change(of: Contrast) -> Shown:
    """Return a contrast's estimate and its interval in one form."""
    kind = EffectKind.RATIO if of.is_ratio else EffectKind.DIFFERENCE
    return effect_shown(of.estimate, of.low, of.high, kind, of.unit)


def factor_title(of: Contrast) -> str:
    """Return the factor, or both of an interaction."""
    return " × ".join(of.factors)


def levels_title(of: Contrast) -> str:
    """Return what is compared: "fifo vs other", of an interaction "fifo with 50"."""
    if of.is_interaction:
        return " with ".join(of.levels)
    return f"{of.levels[0]} vs {of.against[0]}"


def finding_words(of: Contrast) -> str:
    return "no verdict" if of.finding in (Finding.NONE, Finding.BEFORE_LOOK) else str(of.finding)


def group_title(of: Contrast) -> str:
    """Return where a contrast was measured and in which metric."""
    place = place_in_words(of.workload, of.condition) if of.condition else of.workload
    return f"{place}: {metric_title(of.metric)}{_DIRECTIONS.get(of.better, '')}"


_MOST_FINDINGS = 6
"""Effects that the answer names; the table has all."""


def question(analysis: FactorAnalysis, title: str | None) -> str:
    """Return what a study of factors asks, and that it compares no tuning."""
    asked = f"{title} " if title and title.endswith("?") else ""
    return f"{asked}No tuning was compared: this study varies {listed(list(analysis.factors), 6)}."


def findings(analysis: FactorAnalysis) -> str:
    """Return the main effects of factors on primary metrics, natively beside the guest, those that
    are shown first, and the interactions that are shown. No interaction between the sides is
    tested, and it says so."""
    groups: dict[tuple[str, ...], dict[str, Contrast]] = {}
    shown = (Finding.REAL, Finding.SMALL)
    for one in analysis.contrasts:
        if one.finding in shown or not (one.is_interaction or one.finding is Finding.EXPLORATORY):
            key = (*one.factors, *one.levels, *one.against, one.workload, one.condition, one.metric)
            groups.setdefault(key, {}).setdefault(_side(one.arm), one)
    ranked = sorted(
        groups.values(),
        key=lambda sides: not any(one.finding in shown for one in sides.values()),
    )
    places = {(one.workload, one.condition) for sides in ranked for one in sides.values()}
    found = [_effect(sides, names_place=len(places) > 1) for sides in ranked[:_MOST_FINDINGS]]
    if (more := len(ranked) - _MOST_FINDINGS) > 0:
        found.append(f"{counted(more, 'more effect')} in the table")
    text = f"{'; '.join(found)}." if found else "No effect of a factor could be worked out."
    if any(len(sides) > 1 for sides in ranked):
        text += " Whether the guest changes an effect was not tested: compare the two."
    return text


def _side(arm: str) -> str:
    """Return where an arm runs; twins and tuned guests keep their names."""
    return {"native": "natively", "baseline": "in the guest"}.get(arm, f"under {arm}")


def _effect(sides: Mapping[str, Contrast], *, names_place: bool) -> str:
    first = next(iter(sides.values()))
    where = ", ".join(f"{side} {change(one)} ({finding_words(one)})" for side, one in sides.items())
    place = f" of {group_title(first).partition(': ')[0]}" if names_place else ""
    metric = f"{metric_title(first.metric)}{place}"
    return f"{factor_title(first)} {levels_title(first)}, {metric}: {where}"


def notes(analysis: FactorAnalysis) -> Iterator[str]:
    """Yield what a reader must know of the table, as sentences."""
    found = analysis.contrasts
    yield (
        f"Family: {counted(analysis.family, 'contrast')} that the plan declares, so each interval "
        f"has {100 * analysis.confidence:.4g} %. Levels are compared with the factor's first, "
        "averaged over the cells of the other factors that both have."
    )
    if any(one.is_interaction for one in found):
        yield (
            "An interaction (×) is how much more the one level does at the other's: the effect "
            "there over the effect at the first level, or less it where values are compared by "
            "difference."
        )
    if booted := [name for name, of in analysis.factors.items() if of.own_boot]:
        yield (
            f"{listed(booted)}: guests boot for it, so each boot gives one value, the mean of its "
            "blocks."
        )
    if any(one.finding is Finding.NONE for one in found):
        yield f"Demonstration, no verdict: fewer than {FEWEST_BLOCKS} blocks."
    if any(one.finding is Finding.BEFORE_LOOK for one in found):
        yield "No verdict before the first look that the plan declares."
    if any(not one.paired for one in found):
        yield "Trials were not interleaved: means of cells are compared, unpaired."
    if lost := sorted({block for one in found for block in one.left_out}):
        blocks = listed([str(block) for block in lost], 8)
        yield (
            f"Blocks {blocks} have lost a value: they are missing in the contrasts of that cell, "
            "and nothing is imputed."
        )
    if gone := dict.fromkeys(cell for one in found for cell in one.without):
        yield (
            f"Without any value, and left out with the cells that they would be compared with: "
            f"{listed([*gone], 4)}."
        )
    yield from analysis.problems
