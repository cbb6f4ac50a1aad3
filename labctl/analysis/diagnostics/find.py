"""Diagnose blocks that break what the intervals assume.

The t interval takes the effects of blocks as alike from the first to the last, and roughly normal.
docs/diagnostics.md has each test's rule with its source, level and power.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from labctl.analysis.boots import spread_over
from labctl.analysis.cells import Cell, Cells, Scenario, cell_of
from labctl.analysis.compare import Compared
from labctl.analysis.design import ALPHA, Design
from labctl.analysis.diagnostics import series
from labctl.analysis.diagnostics.lines import LEVEL, Ground, Line, by_boot, lines, whose
from labctl.analysis.effects import by_ratio, on_scale, ratio_of, towards_better
from labctl.analysis.intervals import Interval, Spread, t_interval
from labctl.analysis.model import Diagnostic, DiagnosticKind, EffectKind
from labctl.analysis.verdicts import FEWEST_BLOCKS, Eligibility, decide, sees_from
from labctl.analysis.words import capital, change_text, listed
from labctl.base.units import Better
from labctl.base.wording import metric_title
from labctl.store.run_folder import LoadedRun
from labctl.store.trial import TrialStatus


def diagnose(
    run: LoadedRun,
    design: Design,
    cells: Cells,
    eligibilities: Mapping[Scenario, Eligibility],
    made: Sequence[Compared],
) -> Iterator[Diagnostic]:
    """Return every diagnostic in the primary metric of each place with blocks enough for a verdict.
    Nothing is removed or changed because of one."""
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
    """Yield blocks that stand out. One that does so for several arms is told once, as what these
    share (baseline and control, or the hour) is what to look at."""
    alpha = LEVEL / len(lines)
    standing_out: defaultdict[int, list[Line]] = defaultdict(list)
    for line in lines:
        for block in line.at(series.outliers(line.apart_from_boots, alpha, line.effects.floor)):
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
        f"{stands}: {seen}. Nothing is left out for that, and the interval is the wider for it. "
        f"{hanging or 'No verdict and no check hangs on that.'} "
        f"Look at {_folders(run, arms, ground.place, blocks)}: invalid attempts before, CPU time "
        "of others (host_cpu{thread=other}), the kernel's log of that minute.",
        blocks=blocks,
        grave=bool(hanging),
    )


def _hanging(
    ground: Ground, lines: Sequence[Line], names: Sequence[str], blocks: Sequence[int]
) -> Iterator[str]:
    """Yield what of these arms would be said without the blocks, where it is something else."""
    now, then = _outcomes(ground, lines), _outcomes(ground, lines, without=blocks)
    design = ground.design
    instruments = {design.control: "The A/A control", design.known_loss: "The known loss"}
    for name in names:
        # Where another rule made the verdict, these two say nothing of it.
        if now[name] != then[name] and ground.verdicts.get(name, now[name]) == now[name]:
            who = instruments.get(name, f"'{name}'")
            them = "it" if len(blocks) == 1 else "them"
            yield f"{who} is '{now[name]}' with {them} and would be '{then[name]}' without."


def _folders(run: LoadedRun, arms: Iterable[str], place: Scenario, blocks: Iterable[int]) -> str:
    """Name the trials that counted there: "trials/0131 ('pinned')"."""
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
    """Return by arm a verdict, or the outcome of the control or the known loss, from the t
    intervals of the remaining blocks: with their own control, but without Holm's procedure.
    Never applied: it says what hangs on some blocks.
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
    """Return the eligibility from the control's check (analysis/checks.py)."""
    if interval is None:
        return replace(eligibility, judges=False, reach=0.0)
    return replace(eligibility, judges=interval.low <= 0 <= interval.high, reach=interval.reach)


def _verdict(ground: Ground, line: Line, of: Spread, eligibility: Eligibility) -> str:
    """Decide as if there were enough blocks: nine remaining of ten count for ten."""
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
    """Yield effects that change over the run; where boots are shared, over each boot."""
    for line in lines:
        if series.trend(line.values, line.boots) > LEVEL / len(lines):
            continue
        step = series.slope(line.values, line.blocks, line.boots)
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
            f"{capital(whose(ground, line))} drifts {how}. Pairing takes out what drifts for all "
            "arms alike, but not this: the interval is one for this run's average, not for what "
            "comes next. Find what changes for this arm alone (temperature, a disk that fills, "
            "page merging), and run again once it is steady.",
        )


def _level_drift(ground: Ground, cells: Cells) -> Iterator[Diagnostic]:
    """Yield a trend in the mean of all arms that have blocks enough: at least baseline's, as a
    place without has no lines."""
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
    if series.trend(means, boots) > LEVEL:
        return
    step = series.slope(means, blocks, boots)
    kind = EffectKind.RATIO if logs else EffectKind.DIFFERENCE
    change = change_text(ratio_of(step) if logs else step, kind, arms[0].sample.unit)
    yield ground.diagnostic(
        DiagnosticKind.DRIFT,
        None,
        f"{metric_title(ground.primary.metric)} of all arms together drifts, by about {change} "
        "from block to block. Arms are compared within a block, so verdicts and intervals don't "
        "feel it; typical values do, and the host was not steady: look at temperature, frequency "
        "and other guests.",
        grave=False,
    )
