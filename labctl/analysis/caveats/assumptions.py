"""Diagnose blocks that break the assumptions of the intervals: outliers and drift."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import median

import numpy as np
import numpy.typing as npt

from labctl.analysis.answer.words import capital, change_text, listed
from labctl.analysis.effects.cells import Cell, Cells, Scenario, Series, cell_of
from labctl.analysis.effects.compare import Compared
from labctl.analysis.effects.design import ALPHA, Design, Primary
from labctl.analysis.effects.effects import (
    Effects,
    by_ratio,
    effects_of,
    on_scale,
    ratio_of,
    towards_better,
)
from labctl.analysis.effects.intervals import (
    Interval,
    Spread,
    quantile,
    sharing,
    spread_over,
    t_interval,
)
from labctl.analysis.model import Diagnostic, DiagnosticKind, EffectKind
from labctl.analysis.special import ndtr
from labctl.analysis.verdicts.rules import Eligibility, decide, sees_from
from labctl.analysis.verdicts.table import Verdict
from labctl.base.stopping import FEWEST_BLOCKS
from labctl.base.units import Better
from labctl.base.wording import metric_title
from labctl.store.run_folder import LoadedRun
from labctl.store.trial import TrialStatus

# Test one series of numbers, in the order of the blocks, for outliers and trend.
#
# Both are chosen for ten to thirty values. The trend test uses ranks, so that neither a heavy tail
# nor an outlier raises its rate of false alarms. docs/diagnostics.md has level and power of each.


Values = npt.NDArray[np.float64]

_SHARE_OF_OUTLIERS = 5
_MOST_OUTLIERS = 10
"""Limits on outliers: one value of five, because more are a second mode, and ten in all, because
single blocks do not explain more."""

_ROSNERS_FEWEST = 25
"""Start of Rosner's tables. With ten to twenty values the formula gives nearly twice the requested
false alarms, so half are requested."""

_MOST_STEPS = 100
"""Most values of the trend test. A longer run is divided into so many stretches, so that the cost
stays linear."""

_MOST_PAIRS = 5_000
"""Limit for the exact test: with more pairs the distribution of Kendall's S is normal to all digits
that count.
"""

Groups = Sequence[Sequence[int]]
"""Indices of values whose order has a meaning: those of the blocks of one boot."""


def coarse(values: Values) -> bool:
    """Return whether half of the values or more repeat another: then their spread is the tool's
    resolution, and rules on spread do not hold."""
    return 2 * len(set(values.tolist())) <= len(values)


def outliers(values: Values, alpha: float, floor: float = 0.0) -> tuple[int, ...]:
    """Return indices of outliers by the generalized extreme Studentized deviate test, the farthest
    first.

    B. Rosner, "Percentage points for a generalized ESD many-outlier procedure", Technometrics 25
    (1983), 165-172: R_i = max |x - mean| / s of the values left after i - 1 removals; the number of
    outliers is the largest i with R_i beyond its critical value. So it finds two outliers that hide
    each other, which a single test misses. `alpha`: the chance of any outlier in normal values;
    `floor`: the least credible s.
    """
    n = len(values)
    if coarse(values):
        return ()
    if n < _ROSNERS_FEWEST:
        alpha /= 2
    left = np.arange(n)
    removed: list[int] = []
    found = 0
    for i in range(1, min(n // _SHARE_OF_OUTLIERS, _MOST_OUTLIERS) + 1):
        away = values[left]
        away = away - away.sum() / len(left)
        sd = max(math.sqrt(float(away @ away) / (len(left) - 1)), floor)
        if sd == 0.0:
            break
        farthest = int(np.abs(away).argmax())
        removed.append(int(left[farthest]))
        if abs(away[farthest]) > _critical_deviate(n - i + 1, alpha) * sd:
            found = i
        left = np.concatenate((left[:farthest], left[farthest + 1 :]))
    return tuple(removed[:found])


@cache
def _critical_deviate(n: int, alpha: float) -> float:
    """Return Rosner's lambda of a step with n values left: (n - 1) t / sqrt(n (n - 2 + t^2)) with
    t = t(1 - alpha / 2n, n - 2)."""
    t = quantile(1 - alpha / (2 * n), n - 2)
    return (n - 1) * t / math.sqrt(n * (n - 2 + t * t))


def trend(values: Values, groups: Groups) -> float:
    """Return the two-sided p-value of Mann and Kendall's test for a trend that the groups share.

    S adds up over groups: R. M. Hirsch, J. R. Slack, R. A. Smith, "Techniques of trend analysis
    for monthly water quality data", Water Resources Research 18 (1982), 107-121. Exact for values
    without ties; tied pairs count as neither, which errs to the safe side.
    """
    parts = [_stretches(values[list(group)]) for group in groups]
    signs = (np.sign(part - part[:, None]) * _later(len(part)) for part in parts)
    s = abs(int(sum(float(of_pairs.sum()) for of_pairs in signs)))
    sizes = tuple(sorted(map(len, parts)))
    pairs = sum(n * (n - 1) // 2 for n in sizes)
    if pairs > _MOST_PAIRS:
        sd = math.sqrt(sum(n * (n - 1) * (2 * n + 5) for n in sizes) / 18)
        return min(1.0, 2 * float(ndtr(-(s - 1) / sd)))
    return min(1.0, 2 * float(_inversions(sizes)[(pairs - s) // 2]))


@cache
def _later(n: int) -> Values:
    """Return 1 if the column's value comes after the row's, else 0."""
    return np.triu(np.ones((n, n)), 1)


def slope(values: Values, at: Sequence[int], groups: Groups) -> float:
    """Return the median of the slopes of all pairs within a group (P. K. Sen, "Estimates of the
    regression coefficient based on Kendall's tau", JASA 63 (1968), 1379-1389)."""
    x = np.asarray(at, dtype=float)
    found = []
    for group in groups:
        there, here = _stretches(x[list(group)]), _stretches(values[list(group)])
        first, second = np.triu_indices(len(here), 1)
        found.append((here[second] - here[first]) / (there[second] - there[first]))
    return float(np.median(np.concatenate(found)))


def _stretches(values: Values) -> Values:
    """Return the values, or if they are many the means of consecutive stretches."""
    if len(values) <= _MOST_STEPS:
        return values
    return np.array([part.mean() for part in np.array_split(values, _MOST_STEPS)])


@cache
def _inversions(sizes: tuple[int, ...]) -> Values:
    """Return, by k, the probability that random permutations of so many items have at most k
    inversions in all (M. G. Kendall, "A new measure of rank correlation", Biometrika 30 (1938),
    81-93)."""
    chances = np.ones(1)
    for n in sizes:
        for k in range(2, n + 1):
            # Item k precedes 0 to k - 1 of the items that it should follow, each number equally
            # likely.
            chances = np.convolve(chances, np.full(k, 1 / k))
    return chances.cumsum()


# Gather the input of diagnostics: the effects from which a verdict or a check follows.


LEVEL = 0.01
"""Chance of any false alarm of one kind at one place, divided among the series that are tested
there (Bonferroni)."""


@dataclass(frozen=True, slots=True)
class Ground:
    """Hold a workload and condition with the input of its verdicts."""

    design: Design
    place: Scenario
    primary: Primary
    eligibility: Eligibility
    verdicts: Mapping[str, Verdict | None]
    """Verdicts by tuning, as the run has them."""

    def diagnostic(
        self,
        kind: DiagnosticKind,
        tuning: str | None,
        sentence: str,
        *,
        blocks: Iterable[int] = (),
        grave: bool = True,
    ) -> Diagnostic:
        return Diagnostic(
            kind=kind,
            tuning=tuning,
            workload=self.place.workload,
            condition=self.place.condition,
            metric=self.primary.metric,
            sentence=sentence,
            blocks=tuple(sorted(blocks)),
            grave=grave,
        )


@dataclass(frozen=True, slots=True)
class Line:
    """Hold the effects of one arm by block: those of a candidate or the known loss against baseline
    and control, or of the control against baseline."""

    name: str
    side: Series
    effects: Effects
    values: Values
    boots: Groups
    """Indices of the blocks by the boots that they share; one group if they share none."""

    @property
    def blocks(self) -> tuple[int, ...]:
        return tuple(self.effects.by_block)

    @property
    def apart_from_boots(self) -> Values:
        """Return the values as if all boots had the same mean: if several boots share the blocks,
        the interval contains their differences already."""
        if not self.shares_boots:
            return self.values
        apart = self.values.copy()
        for group in self.boots:
            apart[list(group)] += self.values.mean() - self.values[list(group)].mean()
        return apart

    @property
    def shares_boots(self) -> bool:
        return len(self.boots) > 1

    def at(self, indices: Iterable[int]) -> tuple[int, ...]:
        """Return the blocks of these values."""
        return tuple(sorted(self.blocks[i] for i in indices))

    def text(self, effect: float) -> str:
        return change_text(self.effects.shown(effect), self.effects.kind, self.side.sample.unit)


def lines(
    design: Design, cells: Cells, place: Scenario, primary: Primary, made: Iterable[Compared]
) -> Iterator[Line]:
    """Yield the series with enough blocks for a verdict."""
    baseline, control = (
        cells.get(name, place, primary.metric) for name in (design.baseline, design.control)
    )
    found: dict[str, Effects | None] = {}
    if design.control is not None and baseline is not None and control is not None:
        found[design.control] = effects_of(control, [baseline], against_native=False)
    for one in made:
        c = one.comparison
        if one.place == place and c.metric == primary.metric and c.against == design.baseline:
            found[c.tuning] = one.effects
    for name in filter(None, (design.control, design.known_loss, *design.candidates)):
        effects, side = found.get(name), cells.get(name, place, primary.metric)
        if effects is None or side is None or effects.fallback is not None or not effects.paired:
            continue
        if effects.spread.n >= FEWEST_BLOCKS:
            values = np.fromiter(effects.by_block.values(), dtype=float)
            yield Line(name, side, effects, values, by_boot(effects.by_block, effects.boots))


def by_boot(blocks: Iterable[int], boots: Sequence[Mapping[int, int]]) -> Groups:
    """Return indices of the blocks in groups that share a boot; one group if no boot is shared, or
    all blocks share one. `boots`: each arm's boots by block."""
    index = {block: i for i, block in enumerate(blocks)}
    # An arm that boots in each block does not join blocks; usually this holds for all arms.
    own = [side for side in boots if len(set(side.values())) < len(side)]
    groups = sharing(index, own) if own else []
    if not 1 < len(groups) < len(index):
        return [range(len(index))]
    return [sorted(index[block] for block in group) for group in groups]


def whose(ground: Ground, line: Line) -> str:
    if line.name == ground.design.control:
        return "the A/A control's difference from baseline"
    return f"the effect of '{line.name}'"


# Diagnose blocks that break the assumptions of the intervals.
#
# The t interval assumes that the effects of blocks have one distribution from the first to the last
# block, and that it is roughly normal. docs/diagnostics.md has each test's rule with its source,
# level and power.


def diagnose(
    run: LoadedRun,
    design: Design,
    cells: Cells,
    eligibilities: Mapping[Scenario, Eligibility],
    made: Sequence[Compared],
) -> Iterator[Diagnostic]:
    """Return every diagnostic in the primary metric of each place with enough blocks for a verdict.
    No value is removed or changed because of one."""
    for place, eligibility in eligibilities.items():
        primary = design.primaries[place.workload]
        here = list(lines(design, cells, place, primary, made))
        if not here:
            continue
        given = {
            one.comparison.tuning: one.comparison.verdict
            for one in made
            if one.is_primary and one.place == place
        }
        ground = Ground(design, place, primary, eligibility, given)
        yield from _outliers(ground, here, run)
        yield from _drifts(ground, here)
        yield from _level_drift(ground, cells)


def _outliers(ground: Ground, lines: Sequence[Line], run: LoadedRun) -> Iterator[Diagnostic]:
    """Yield outlying blocks. A block that is an outlier for several arms is named once, because its
    cause is probably one that they share (baseline and control, or the time of day)."""
    alpha = LEVEL / len(lines)
    standing_out: defaultdict[int, list[Line]] = defaultdict(list)
    for line in lines:
        for block in line.at(outliers(line.apart_from_boots, alpha, line.effects.floor)):
            standing_out[block].append(line)
    alike: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for block, found in sorted(standing_out.items()):
        alike[tuple(line.name for line in found)].append(block)
    for names, blocks in alike.items():
        yield _outlier(ground, lines, names, blocks, run)


def _outlier(
    ground: Ground,
    lines: Sequence[Line],
    names: Sequence[str],
    blocks: Sequence[int],
    run: LoadedRun,
) -> Diagnostic:
    first = next(line for line in lines if line.name == names[0])
    several = len(names) > 1
    typical = median(v for block, v in first.effects.by_block.items() if block not in blocks)
    there = listed([first.text(first.effects.by_block[block]) for block in blocks], 5)
    seen = f"{whose(ground, first)} is {there} where it is typically {first.text(typical)}"
    if several:
        others = listed([f"'{name}'" for name in names[1:]], 4)
        seen += f", and {others} stand{'' if len(names) > 2 else 's'} out there as well"
    hanging = " ".join(_hanging(ground, lines, names, blocks))
    references = [name for name in (ground.design.baseline, ground.design.control) if name]
    stands = f"{_block_words(blocks)} {'stands' if len(blocks) == 1 else 'stand'} out"
    arms = references if several else [first.name, *references]
    return ground.diagnostic(
        DiagnosticKind.OUTLIER,
        None if several else first.name,
        f"{stands}: {seen}. Nothing is left out, so the interval is wider. "
        f"{hanging or 'No verdict and no check depends on it.'} Look at "
        f"{_folders(run, arms, ground.place, blocks)}: earlier invalid attempts, CPU time "
        "of other processes (host_cpu{thread=other}) and the kernel's log of that minute.",
        blocks=blocks,
        grave=bool(hanging),
    )


def _hanging(
    ground: Ground, lines: Sequence[Line], names: Sequence[str], blocks: Sequence[int]
) -> Iterator[str]:
    """Yield the verdicts of these arms that would differ without the blocks."""
    now, then = _outcomes(ground, lines), _outcomes(ground, lines, without=blocks)
    design = ground.design
    instruments = {design.control: "The A/A control", design.known_loss: "The known loss"}
    for name in names:
        # If another rule made the verdict, these two do not explain it.
        if now[name] != then[name] and ground.verdicts.get(name, now[name]) == now[name]:
            who = instruments.get(name, f"'{name}'")
            them = "it" if len(blocks) == 1 else "them"
            yield f"{who} is '{now[name]}' with {them} and would be '{then[name]}' without."


def _folders(run: LoadedRun, arms: Iterable[str], place: Scenario, blocks: Iterable[int]) -> str:
    """Name the trials that counted in the blocks: "trials/0131 ('pinned')"."""
    wanted = {(Cell(arm, place), block) for arm in arms for block in blocks}
    return listed(
        [
            f"trials/{trial.folder.path.name} ('{trial.record.cell['tuning']}')"
            for trial in run.trials
            if trial.record.status is TrialStatus.DONE
            and (cell_of(trial.record.cell), trial.record.block) in wanted
        ],
        6,
    )


def _block_words(blocks: Sequence[int]) -> str:
    numbers = listed([str(block) for block in blocks], 10)
    return f"{'Block' if len(blocks) == 1 else 'Blocks'} {numbers}"


def _outcomes(
    ground: Ground, lines: Sequence[Line], without: Collection[int] = ()
) -> Mapping[str, str]:
    """Return each arm's verdict, or the outcome of the control or the known loss, from the t
    intervals of the remaining blocks: with their own control, but without Holm's procedure.
    It is never applied: it only shows what depends on some blocks.
    """
    left = {line.name: _spread(line, without) for line in lines}
    design = ground.design
    said: dict[str, str] = {}
    eligibility = ground.eligibility
    for line in lines:
        alpha = design.control_alpha if line.name == design.control else ALPHA
        interval = t_interval(left[line.name], alpha)
        if line.name == design.control:
            eligibility = _eligibility(eligibility, interval)
            said[line.name] = "not different from" if eligibility.judges else "different from"
            said[line.name] += " baseline"
        elif line.name == design.known_loss:
            found = interval is not None and towards_better(interval, _better(line)).high < 0
            known = abs(left[line.name].mean) if found else None
            control = left.get(design.control or "")
            least = sees_from(known, control, design.alpha)
            eligibility = Eligibility(eligibility.judges, eligibility.reach, least)
            said[line.name] = "detected" if found else "not detected"
    for line in lines:
        if line.name not in said:
            said[line.name] = _verdict(ground, line, left[line.name], eligibility)
    return said


def _spread(line: Line, without: Collection[int]) -> Spread:
    left = {b: value for b, value in line.effects.by_block.items() if b not in without}
    return spread_over(left, line.effects.boots, 0.0, line.effects.floor)


def _eligibility(eligibility: Eligibility, interval: Interval | None) -> Eligibility:
    """Return the eligibility from the control's check (analysis/verdicts/checks.py)."""
    if interval is None:
        return replace(eligibility, judges=False, reach=0.0)
    return replace(eligibility, judges=interval.low <= 0 <= interval.high, reach=interval.reach)


def _verdict(ground: Ground, line: Line, of: Spread, eligibility: Eligibility) -> str:
    """Decide as if the blocks were enough: nine that remain of ten count as ten."""
    alpha, better = ground.design.alpha, _better(line)
    wide, narrow = (t_interval(of, a) for a in (alpha, 2 * alpha))
    verdict = decide(
        blocks=FEWEST_BLOCKS,
        estimate=-of.mean if better is Better.LOWER else of.mean,
        interval=None if wide is None else towards_better(wide, better),
        narrow=None if narrow is None else towards_better(narrow, better),
        margin=on_scale(ground.primary.margin, line.effects.kind),
        eligibility=eligibility,
    )
    return str(verdict)


def _better(line: Line) -> Better:
    return line.side.sample.better


def _drifts(ground: Ground, lines: Sequence[Line]) -> Iterator[Diagnostic]:
    """Yield effects that change over the run, or over each boot if boots are shared."""
    for line in lines:
        if trend(line.values, line.boots) > LEVEL / len(lines):
            continue
        step = slope(line.values, line.blocks, line.boots)
        if line.shares_boots:
            how = f"within the boots, by about {line.text(step)} from block to block"
        else:
            first, last = line.blocks[0], line.blocks[-1]
            middle, half = median(line.values.tolist()), step * (last - first) / 2
            how = (
                f"from about {line.text(middle - half)} in block {first} to "
                f"{line.text(middle + half)} in block {last}"
            )
        yield ground.diagnostic(
            DiagnosticKind.DRIFT,
            line.name,
            f"{capital(whose(ground, line))} drifts {how}. Pairing removes a drift that all "
            "arms share, but not this one: the interval holds for this run's average, not "
            "for later runs. Find what changes for this arm alone (temperature, a disk "
            "that fills, page merging), and run again when it is steady.",
        )


def _level_drift(ground: Ground, cells: Cells) -> Iterator[Diagnostic]:
    """Yield a trend in the mean of all arms with enough blocks. Baseline is always among them,
    because a place without it has no series."""
    arms = [
        found
        for cell, by_key in cells.series.items()
        if cell.place == ground.place
        and (found := by_key.get(ground.primary.metric)) is not None
        and len(found.values) >= FEWEST_BLOCKS
    ]
    blocks = tuple(sorted(set.intersection(*(set(arm.values) for arm in arms))))
    if len(blocks) < FEWEST_BLOCKS:
        return
    logs = by_ratio(arms)
    means = np.mean([(arm.logs if logs else arm.numbers).at(blocks) for arm in arms], axis=0)
    boots = by_boot(blocks, [arm.boots for arm in arms])
    if trend(means, boots) > LEVEL:
        return
    step = slope(means, blocks, boots)
    kind = EffectKind.RATIO if logs else EffectKind.DIFFERENCE
    change = change_text(ratio_of(step) if logs else step, kind, arms[0].sample.unit)
    yield ground.diagnostic(
        DiagnosticKind.DRIFT,
        None,
        f"{metric_title(ground.primary.metric)} of all arms together drifts, by about "
        f"{change} from block to block. Arms are compared within a block, so verdicts and "
        "intervals are not affected. Typical values are, and the host was not steady: "
        "check temperature, frequency and other guests.",
        grave=False,
    )
