"""Signs in the effects of the blocks: outliers, two modes, drift, autocorrelation."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from statistics import fmean, median

from labctl.analysis.model import Sign, SignKind
from labctl.analysis.signs import series
from labctl.analysis.signs.lines import LEVEL, Ground, Line, folders
from labctl.analysis.signs.outcomes import outcomes
from labctl.analysis.words import capital, listed
from labctl.base.wording import counted, significant
from labctl.store.run_folder import LoadedRun

_MOST_ALIKE = 0.95
"""A correlation closer to 1 would make the interval's factor a number without meaning."""

_BINS_APART = 2 * math.sqrt(6)
"""Modes closer than two bins of the histogram may be those bins; a floor is (bin width)/sqrt(6)."""


def outliers(ground: Ground, lines: Sequence[Line], run: LoadedRun) -> Iterator[Sign]:
    """Blocks that stand out. One that does so for several arms is told once, as what these share
    (baseline and control, or the hour) is what to look at."""
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
) -> Sign:
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
    stands = f"{_blocks(blocks)} {'stands' if len(blocks) == 1 else 'stand'} out"
    arms = references if several else [first.name, *references]
    return ground.sign(
        SignKind.OUTLIER,
        None if several else first.name,
        f"{stands}: {seen}. Nothing is left out for that, and the interval is the wider for it. "
        f"{hanging or 'No verdict and no check hangs on that.'} "
        f"Look at {folders(run, arms, ground.place, blocks)}: invalid attempts before, CPU time "
        "of others (host_cpu{thread=other}), the kernel's log of that minute.",
        blocks=blocks,
        grave=bool(hanging),
    )


def _hanging(
    ground: Ground, lines: Sequence[Line], names: Sequence[str], blocks: Sequence[int]
) -> Iterator[str]:
    """What of these arms would be said without the blocks, where it is something else."""
    now, then = outcomes(ground, lines), outcomes(ground, lines, without=blocks)
    instruments = {ground.design.control: "The control", ground.design.handicap: "The handicap"}
    for name in names:
        # Where another rule made the verdict, these two say nothing of it.
        if now[name] != then[name] and ground.verdicts.get(name, now[name]) == now[name]:
            who = instruments.get(name, f"'{name}'")
            them = "it" if len(blocks) == 1 else "them"
            yield f"{who} is '{now[name]}' with {them} and would be '{then[name]}' without."


def two_modes(ground: Ground, lines: Sequence[Line]) -> Iterator[Sign]:
    """Effects that fall in two heaps."""
    for line in lines:
        values = line.apart_from_boots
        if series.coarse(values):
            continue
        found = series.split(values)
        if found.ratio <= series.critical_split(len(values), LEVEL / len(lines)):
            continue
        apart = values[list(found.upper)].min() - values[list(found.lower)].max()
        if apart > _BINS_APART * line.effects.floor:
            yield _modes(ground, line, sorted((found.lower, found.upper), key=len))


def _modes(ground: Ground, line: Line, parts: Sequence[tuple[int, ...]]) -> Sign:
    fewer, more = (line.at(part) for part in parts)
    few, many = (line.text(fmean(line.effects.by_block[b] for b in p)) for p in (fewer, more))
    return ground.sign(
        SignKind.BIMODAL,
        line.name,
        f"{capital(whose(ground, line))} has two modes: {many} in {counted(len(more), 'block')} "
        f"and {few} in {_blocks(fewer).lower()}. Their mean describes neither, nor does its "
        "interval. Look for what has two states: huge pages, CPU frequency and boost, the CPU or "
        "node where a thread lands. More blocks tell how often each comes.",
        blocks=fewer,
    )


def drifts(ground: Ground, lines: Sequence[Line]) -> Iterator[Sign]:
    """Effects that change over the run; where boots are shared, over each boot."""
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
        yield ground.sign(
            SignKind.DRIFT,
            line.name,
            f"{capital(whose(ground, line))} drifts {how}. Pairing takes out what drifts for all "
            "arms alike, but not this: the interval is one for this run's average, not for what "
            "comes next. Find what changes for this arm alone (temperature, a disk that fills, "
            "page merging), and run again once it is steady.",
        )


def resemblances(
    ground: Ground, lines: Sequence[Line], drifting: Collection[str | None]
) -> Iterator[Sign]:
    """Effects that resemble those of the block before. A drift makes them so, and is told alone;
    where boots are shared the interval doesn't take their blocks as independent."""
    for line in lines:
        if line.shares_boots or line.name in drifting:
            continue
        if series.alike_neighbours(line.values) > LEVEL / len(lines):
            continue
        r = min(max(series.lag_one(line.values), 0.0), _MOST_ALIKE)
        factor = math.sqrt((1 + r) / (1 - r))
        yield ground.sign(
            SignKind.AUTOCORRELATED,
            line.name,
            f"{capital(whose(ground, line))} resembles that of the block before (correlation "
            f"{significant(r, 2)}), so {len(line.blocks)} blocks tell less than they count: an "
            f"honest interval is about {significant(factor, 2)} times as wide. Look for what "
            "changes over minutes (other guests, temperature, timers), and run more blocks.",
        )


def whose(ground: Ground, line: Line) -> str:
    if line.name == ground.design.control:
        return "the control's difference from baseline"
    return f"the effect of '{line.name}'"


def _blocks(blocks: Sequence[int]) -> str:
    numbers = listed([str(block) for block in blocks], 10)
    return f"{'Block' if len(blocks) == 1 else 'Blocks'} {numbers}"
