"""Estimate the effects of factors and their interactions (METHOD 29), and word them. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product

from labctl.analysis.answer.words import effect_shown, listed
from labctl.analysis.effects.cells import Cell, Cells, Series, cell_of
from labctl.analysis.effects.design import ALPHA, Design, Primary
from labctl.analysis.effects.effects import alone, by_ratio, on_scale, ratio_of
from labctl.analysis.effects.intervals import Interval, Spread, sharing, spread, t_interval
from labctl.analysis.model import CellMean, Contrast, EffectKind, FactorAnalysis, Finding, Judgement
from labctl.base.errors import UsageError, nearest
from labctl.base.notation import Shown
from labctl.base.stopping import FEWEST_BLOCKS
from labctl.base.units import Better
from labctl.base.wording import counted, metric_title, place_in_words
from labctl.store.records.factor_record import FactorCell, Factorial

# Estimate effects of factors: main effects and declared interactions (METHOD 29). Pure.
#
# Blocks are complete, so each block gives one value of every contrast, and the interval is
# Student's t over these values. It is exact for any influence of a block on all of its cells, and
# needs no second engine. A factor whose levels need separate boots is a whole plot (R. A. Fisher,
# "Statistical Methods for Research Workers", 1925, on split plots): the influence of a boot on one
# level is in all blocks of that boot, so the mean over a boot's blocks is one value.


_RESOLUTION = 1e-9
"""Relative difference below which values are tied."""

Levels = frozenset[tuple[str, str]]
"""Levels of a cell by factor."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Hold the cells that are compared with each other: one arm, one workload and one condition, as
    far as factors do not set them. `planned`: the cell at each combination of levels."""

    arm: str
    workload: str
    condition: str
    primary: Primary
    planned: Mapping[Levels, Cell]


@dataclass(frozen=True, slots=True)
class _Terms:
    """Hold a contrast without values: its cells with their signs for each combination of the other
    factors."""

    group: _Group
    factors: tuple[str, ...]
    levels: tuple[str, ...]
    against: tuple[str, ...]
    sets: tuple[tuple[tuple[Cell, float], ...], ...]


def analyse_factors(
    factorial: Factorial | None, design: Design, cells: Cells
) -> FactorAnalysis | None:
    """Return contrasts and means of a run with factors; None for a run without factors.

    The family is every contrast that the plan declares: of each arm but control and known loss,
    each level against the factor's first, and each declared pair of factors.
    """
    if factorial is None:
        return None
    problems: list[str] = []
    groups = list(_groups(factorial, design, problems))
    planned = [terms for group in groups for terms in _planned(group, factorial)]
    alpha = design.level / max(1, len(planned))
    contrasts = []
    for terms in planned:
        found = _contrast(terms, factorial, cells, alpha, design)
        if found is not None:
            contrasts.append(found)
    return FactorAnalysis(
        factors=factorial.factors,
        family=len(planned),
        confidence=1 - alpha,
        contrasts=tuple(contrasts),
        means=tuple(mean for group in groups for mean in _means(group, cells)),
        pictured=_pictured(factorial),
        problems=tuple(problems),
    )


def explore(
    factorial: Factorial | None, design: Design, cells: Cells, metric: str
) -> list[Contrast]:
    """Return the contrasts of another metric than the primary one, with intervals of 95 % each and
    without findings (METHOD 19); [] without factors."""
    if factorial is None:
        return []
    groups = (
        replace(group, primary=replace(group.primary, metric=metric))
        for group in _groups(factorial, design, [])
        if group.primary.metric != metric
    )
    planned = (terms for group in groups for terms in _planned(group, factorial))
    found = (_contrast(terms, factorial, cells, ALPHA, design) for terms in planned)
    return [replace(one, finding=Finding.EXPLORATORY) for one in found if one is not None]


def picturing(judgement: Judgement, names: Sequence[str]) -> Judgement:
    """Return the judgement with pictures of these two factors. Raises UsageError unless they are
    two factors of the run."""
    analysis = judgement.factors
    known = list(analysis.factors) if analysis is not None else []
    if analysis is None or len(known) < 2:
        raise UsageError("the run has fewer than two factors, so there is nothing to draw")
    for name in names:
        if name not in known:
            raise UsageError(
                f"--factors: the run has no factor '{name}'", hint=nearest(name, known)
            )
    if len({*names}) != 2:
        raise UsageError("--factors takes two factors", hint=f"--factors {known[0]},{known[1]}")
    pair = names[0], names[1]
    return replace(judgement, factors=replace(analysis, pictured=pair))


def _pictured(factorial: Factorial) -> tuple[str, str] | None:
    """Return the first declared interaction, else the first two factors with several levels."""
    varied = [name for name, factor in factorial.factors.items() if len(factor.levels) > 1]
    pairs = (*factorial.interactions, *combinations(varied, 2))
    return next(((a, b) for a, b in pairs if {a, b} <= {*varied}), None)


def _groups(factorial: Factorial, design: Design, problems: list[str]) -> Iterator[_Group]:
    found: defaultdict[tuple[str, str, str, str], list[FactorCell]] = defaultdict(list)
    for cell in factorial.cells:
        if cell.arm in (design.control, design.known_loss) or not cell.levels:
            continue
        primary = design.primaries.get(cell.workload)
        if primary is not None:
            key = (cell.arm, cell.group, cell.under or "", primary.metric)
            found[key].append(cell)
    metrics = defaultdict(set)
    for arm, workload, condition, metric in found:
        metrics[arm, workload, condition].add(metric)
    for (arm, workload, _), names in metrics.items():
        if len(names) > 1:
            problems.append(
                f"'{workload}' ({arm}) has several primary metrics "
                f"({', '.join(sorted(names))}): cells are compared only within one metric."
            )
    for (arm, workload, condition, _), members in found.items():
        planned = {
            frozenset(member.levels.items()): place
            for member in members
            if (place := cell_of(member.place._asdict())) is not None
        }
        yield _Group(arm, workload, condition, design.primaries[members[0].workload], planned)


def _planned(group: _Group, factorial: Factorial) -> Iterator[_Terms]:
    """Yield the contrasts for which the plan has cells."""
    # An edited plan may have a factor without levels, or interactions of none of its factors.
    varied = {name: of.levels for name, of in factorial.factors.items() if len(of.levels) > 1}
    for name, (first, *others) in varied.items():
        for level in others:
            yield from _terms(group, (name,), (level,), (first,))
    for pair in factorial.interactions:
        if not {*pair} <= varied.keys():
            continue
        one, other = (varied[name] for name in pair)
        for levels in product(one[1:], other[1:]):
            yield from _terms(group, pair, levels, (one[0], other[0]))


def _terms(
    group: _Group, factors: tuple[str, ...], levels: tuple[str, ...], against: tuple[str, ...]
) -> Iterator[_Terms]:
    """Yield the contrast if the plan has all its cells at some combination of the other factors."""
    corners: list[tuple[Levels, float]] = [
        (
            frozenset(zip(factors, corner, strict=True)),
            math.prod(
                1.0 if at == level else -1.0 for at, level in zip(corner, levels, strict=True)
            ),
        )
        for corner in product(*zip(levels, against, strict=True))
    ]
    rest = dict.fromkeys(
        frozenset(item for item in of if item[0] not in factors)
        for of in group.planned
        if corners[0][0] <= of
    )
    sets = tuple(
        tuple((group.planned[others | corner], sign) for corner, sign in corners)
        for others in rest
        if all(others | corner in group.planned for corner, _ in corners)
    )
    if sets:
        yield _Terms(group, factors, levels, against, sets)


def _contrast(
    terms: _Terms, factorial: Factorial, cells: Cells, alpha: float, design: Design
) -> Contrast | None:
    """Return a contrast's estimate; None if no block has all of its cells."""
    metric = terms.group.primary.metric
    series = {
        cell: found
        for one in terms.sets
        for cell, _ in one
        if (found := cells.get(cell.tuning, cell.place, metric)) is not None
    }
    whole = [one for one in terms.sets if all(cell in series for cell, _ in one)]
    if not whole:
        return None
    weights = {cell: sign / len(whole) for one in whole for cell, sign in one}
    used = [series[cell] for cell in weights]
    logs = by_ratio(used)
    paired = all(side.interleaved for side in used)
    blocks = tuple(sorted(set.intersection(*(set(side.values) for side in used))))
    if paired and not blocks:
        return None
    tried: set[int] = set()
    for cell in weights:
        tried |= cells.tried[cell]
    per_boot = any(factorial.factors[name].own_boot for name in terms.factors)
    if paired:
        by_block = {
            block: math.fsum(
                weight * (series[cell].logs if logs else series[cell].numbers)[block]
                for cell, weight in weights.items()
            )
            for block in blocks
        }
        values = _by_boot(by_block, used) if per_boot else by_block
        of = _spread(values, used, [*weights.values()], blocks, logs=logs)
    else:
        values, of = {}, _unpaired([(series[cell], w) for cell, w in weights.items()], logs=logs)
    interval = t_interval(of, alpha)
    sample = used[0].sample
    margin = terms.group.primary.margin
    enough = (len(blocks) if paired else of.n) >= FEWEST_BLOCKS
    scaled = on_scale(margin, EffectKind.RATIO) if logs else math.inf
    return Contrast(
        arm=terms.group.arm,
        workload=terms.group.workload,
        condition=terms.group.condition,
        metric=metric,
        unit=sample.unit,
        better=sample.better,
        is_ratio=logs,
        factors=terms.factors,
        levels=terms.levels,
        against=terms.against,
        estimate=_shown(of.mean, logs=logs),
        low=None if interval is None else _shown(interval.low, logs=logs),
        high=None if interval is None else _shown(interval.high, logs=logs),
        confidence=1 - alpha,
        finding=_finding(interval, scaled, enough=enough, before_look=design.before_look),
        margin=margin,
        per="boot" if per_boot and paired else "block",
        values={at: _shown(value, logs=logs) for at, value in values.items()},
        cells=len(whole),
        left_out=tuple(sorted(tried.difference(blocks))) if paired else (),
        without=tuple(sorted({str(c) for one in terms.sets for c, _ in one} - {*map(str, series)})),
        paired=paired,
    )


def _shown(value: float, *, logs: bool) -> float:
    return ratio_of(value) if logs else value


def _finding(
    interval: Interval | None, margin: float, *, enough: bool, before_look: bool
) -> Finding:
    if not enough:
        return Finding.NONE
    if before_look:
        return Finding.BEFORE_LOOK
    if interval is None or interval.low <= 0 <= interval.high:
        return Finding.NOT_SHOWN
    return Finding.SMALL if math.isfinite(margin) and interval.within(margin) else Finding.REAL


def _by_boot(by_block: Mapping[int, float], used: Sequence[Series]) -> dict[int, float]:
    """Return the mean of the blocks of each boot, numbered from 1. A block belongs to the boots of
    all of its cells; a block without a known boot counts as a boot."""
    return {
        number: math.fsum(by_block[block] for block in blocks) / len(blocks)
        for number, blocks in enumerate(sharing(by_block, [side.boots for side in used]), start=1)
    }


def _spread(
    values: Mapping[int, float],
    used: Sequence[Series],
    weights: Sequence[float],
    blocks: Sequence[int],
    *,
    logs: bool,
) -> Spread:
    """Return mean and deviation of a contrast's values; the deviation is at least the contribution
    of rounding to a histogram's bins, (bin width) / sqrt(12) for each cell (METHOD 16)."""
    squares = 0.0
    for side, weight in zip(used, weights, strict=True):
        if side.bin_widths:
            sizes = (1.0 if logs else side.values[block] for block in blocks)
            widths = [side.bin_widths.get(b, 0.0) * s for b, s in zip(blocks, sizes, strict=True)]
            squares += weight**2 * math.fsum(w * w for w in widths) / len(widths) / 12
    floor = math.sqrt(squares * len(values) / len(blocks))
    size = 1.0 if logs else max(abs(v) for side in used for v in side.values.values())
    return spread([*values.values()], _RESOLUTION * size, floor)


def _unpaired(sides: Sequence[tuple[Series, float]], *, logs: bool) -> Spread:
    """Return the contrast of the cells' means, for trials that were not interleaved (METHOD 30).
    Variances are not pooled, and the degrees of freedom are Satterthwaite's, as in
    `intervals.unpaired`. If blocks share boots, boots are the unit here as well."""
    mean, squares, shares, fewest = 0.0, 0.0, 0.0, math.inf
    for side, weight in sides:
        one = alone(side, logs=logs)
        square = (weight * one.error) ** 2
        mean += weight * one.mean
        squares += square
        shares += square**2 / one.degrees if one.degrees and square else 0.0
        fewest = min(fewest, one.n)
    n = int(fewest)
    degrees = squares**2 / shares if n > 1 and shares else 0.0
    return Spread(n=n, mean=mean, sd=math.sqrt(squares * n), welch=degrees)


def _means(group: _Group, cells: Cells) -> Iterator[CellMean]:
    for levels, cell in group.planned.items():
        series = cells.get(cell.tuning, cell.place, group.primary.metric)
        if series is not None:
            yield CellMean(
                arm=group.arm,
                workload=group.workload,
                condition=group.condition,
                metric=group.primary.metric,
                unit=series.sample.unit,
                levels=dict(sorted(levels)),
                typical=series.typical,
                blocks=len(series.values),
                is_geometric=series.least > 0 and not series.is_maximum,
            )


# Word the effects of factors, alike for every report.


_DIRECTIONS = {Better.HIGHER: ", higher is better", Better.LOWER: ", lower is better"}


def contrast_shown(of: Contrast) -> Shown:
    """Return a contrast's estimate and its interval in one form."""
    kind = EffectKind.RATIO if of.is_ratio else EffectKind.DIFFERENCE
    return effect_shown(of.estimate, of.low, of.high, kind, of.unit)


def factor_title(of: Contrast) -> str:
    """Return the factor, or both factors of an interaction."""
    return " × ".join(of.factors)


def levels_title(of: Contrast) -> str:
    """Return the compared levels: "fifo vs other", or "fifo with 50" for an interaction."""
    if of.is_interaction:
        return " with ".join(of.levels)
    return f"{of.levels[0]} vs {of.against[0]}"


def finding_words(of: Contrast) -> str:
    return "no verdict" if of.finding in (Finding.NONE, Finding.BEFORE_LOOK) else str(of.finding)


def group_title(of: Contrast) -> str:
    """Return a contrast's place and metric."""
    place = place_in_words(of.workload, of.condition) if of.condition else of.workload
    return f"{place}: {metric_title(of.metric)}{_DIRECTIONS.get(of.better, '')}"


_MOST_FINDINGS = 6
"""Effects that the answer names; the table has all."""


def question(analysis: FactorAnalysis, title: str | None) -> str:
    """Return the question of a study of factors, and that it does not compare tunings."""
    asked = f"{title} " if title and title.endswith("?") else ""
    return f"{asked}No tuning was compared: this study varies {listed(list(analysis.factors), 6)}."


def findings(analysis: FactorAnalysis) -> str:
    """Return the main effects of factors on primary metrics, natively beside the guest, with shown
    effects first, and the shown interactions. The text says that interactions between the sides are
    not tested."""
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
    text = f"{'; '.join(found)}." if found else "No effect of a factor could be computed."
    if any(len(sides) > 1 for sides in ranked):
        text += " Whether the guest changes an effect was not tested: compare the two."
    return text


def _side(arm: str) -> str:
    """Return the side on which an arm runs; twins and tuned guests keep their names."""
    return {"native": "natively", "baseline": "in the guest"}.get(arm, f"under {arm}")


def _effect(sides: Mapping[str, Contrast], *, names_place: bool) -> str:
    first = next(iter(sides.values()))
    where = ", ".join(
        f"{side} {contrast_shown(one)} ({finding_words(one)})" for side, one in sides.items()
    )
    place = f" of {group_title(first).partition(': ')[0]}" if names_place else ""
    metric = f"{metric_title(first.metric)}{place}"
    return f"{factor_title(first)} {levels_title(first)}, {metric}: {where}"


def notes(analysis: FactorAnalysis) -> Iterator[str]:
    """Yield the notes of the table, as sentences."""
    found = analysis.contrasts
    yield (
        f"Family: {counted(analysis.family, 'contrast')} declared in the plan, so each "
        f"interval has {100 * analysis.confidence:.4g} % confidence. Each level is compared "
        "with the factor's first level, averaged over the cells of the other factors that "
        "both have."
    )
    if any(one.is_interaction for one in found):
        yield (
            "An interaction (×) is the effect at one level divided by the effect at the "
            "first level, or their difference if values are compared by difference."
        )
    if booted := [name for name, of in analysis.factors.items() if of.own_boot]:
        yield (
            f"{listed(booted)}: guests boot for each level, so each boot gives one value, "
            "the mean of its blocks."
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
            f"Blocks {blocks} lost a value: they are missing from the contrasts of that "
            "cell; nothing is imputed."
        )
    if gone := dict.fromkeys(cell for one in found for cell in one.without):
        yield (
            "Left out because they have no value, together with the cells compared with "
            f"them: {listed([*gone], 4)}."
        )
    yield from analysis.problems
