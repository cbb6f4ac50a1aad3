"""Find trends over the run: of an arm's effect, and of what all arms have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

import numpy as np

from labctl.analysis.cells import Cells
from labctl.analysis.diagnostics import series
from labctl.analysis.diagnostics.lines import LEVEL, Ground, Line, by_boot, whose
from labctl.analysis.effects import by_ratio, ratio_of
from labctl.analysis.model import Diagnostic, DiagnosticKind, EffectKind
from labctl.analysis.verdicts import FEWEST_BLOCKS
from labctl.analysis.words import capital, change_text
from labctl.base.wording import metric_title


def drifts(ground: Ground, lines: Sequence[Line]) -> Iterator[Diagnostic]:
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


def level_drift(ground: Ground, cells: Cells) -> Iterator[Diagnostic]:
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
