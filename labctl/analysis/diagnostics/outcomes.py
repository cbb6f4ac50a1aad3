"""Compute what is said of each arm, and what would be said without some blocks. Never
applied."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from labctl.analysis.boots import spread_over
from labctl.analysis.design import ALPHA
from labctl.analysis.diagnostics.lines import Ground, Line
from labctl.analysis.effects import on_scale, towards_better
from labctl.analysis.intervals import Interval, Spread, t_interval
from labctl.analysis.verdicts import FEWEST_BLOCKS, Eligibility, decide, sees_from
from labctl.base.units import Better


def outcomes(
    ground: Ground, lines: Sequence[Line], without: Collection[int] = ()
) -> Mapping[str, str]:
    """Return by arm a verdict, or the outcome of the control or the known loss, from the t
    intervals of the remaining blocks: with their own control, but without Holm's procedure.
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
            said[line.name] = "found" if found else "not found"
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
