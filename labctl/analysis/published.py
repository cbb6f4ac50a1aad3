"""Set what others published beside what this run found: ratio and direction, never absolute
values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from labctl.analysis.added import confirmatory
from labctl.analysis.cells import Cells, Scenario, Series, read_cells
from labctl.analysis.checks import control_failed
from labctl.analysis.design import Design, read_design
from labctl.analysis.effects import ratios
from labctl.analysis.intervals import t_interval
from labctl.analysis.verdicts import FEWEST_BLOCKS
from labctl.analysis.words import listed
from labctl.store.records.plan_record import PublishedResult
from labctl.store.run_folder import LoadedRun
from labctl.store.samples import base_name, labels_of


class Agreement(StrEnum):
    SAME = "same direction"
    OTHER = "other direction"
    NOT_SHOWN = "not shown"
    """Interval that includes no change, or a run that may not judge: `why` has the reason."""
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """Pair a published result with this run's own number. `published` and `ratio`: tuning / against
    (`published` None: only the direction is known). `low`, `high`: 95 %, by itself; more where a
    rule may end the run (METHOD 22). `source`: the number of the source in `Published.sources`.
    `why`: what keeps the two apart."""

    tuning: str
    against: str
    workload: str
    against_workload: str | None
    """Cell of factors that `workload` is against; None: the same."""
    condition: str
    metric: str
    published: float | None
    direction: str
    ratio: float | None
    low: float | None
    high: float | None
    blocks: int
    agreement: Agreement
    why: str
    source: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    sources: tuple[str, ...]
    results: tuple[Repeated, ...]


def published(run: LoadedRun) -> Published:
    """Return the published results that a run's plan carries, each beside the run's own ratio.

    Against baseline the reference is the mean of baseline and control, as everywhere (METHOD 17).
    A metric whose labels are named in part is the sum of what has them, in each block, unless it
    stands there itself. The direction is this run's where the interval of at least ten blocks
    excludes no change. As with a verdict, the blocks are those that decide, and the control may
    forbid it (METHOD 18, 22).
    """
    run = confirmatory(run)
    sources = run.plan.published
    if not sources:
        return Published(sources=(), results=())
    design, cells = read_design(run), read_cells(run)
    results = (
        _repeated(design, cells, item, place, number, run.plan.skipped)
        for place in design.places
        for number, source in enumerate(sources)
        for item in source.results
        if item.workload in (None, place.workload) and item.condition in (None, place.condition)
    )
    return Published(sources=tuple(source.source for source in sources), results=tuple(results))


def _repeated(
    design: Design,
    cells: Cells,
    item: PublishedResult,
    place: Scenario,
    source: int,
    skipped: Mapping[str, str],
) -> Repeated:
    tuning, against, metric = item.tuning, item.against, item.metric
    other = Scenario(item.against_workload or place.workload, place.condition)
    ours, theirs = _series(cells, tuning, place, metric), _series(cells, against, other, metric)
    ratio = low = high = None
    blocks, agreement = 0, Agreement.NOT_MEASURED
    if tuning == against and other == place:
        why = "an arm is not compared with itself"
    elif ours is None or theirs is None:
        lacking = tuning if ours is None else against
        why = skipped.get(lacking) or _why_missing(cells, lacking, place, metric)
    else:
        second = design.control if against == design.baseline and other == place else None
        control = _series(cells, second, place, metric) if second != tuning else None
        others = [theirs] if control is None else [theirs, control]
        found = ratios(ours, others)
        if isinstance(found, str):
            why = f"it {found}"
        else:
            interval = t_interval(found.spread, design.level)
            blocks, ratio = found.spread.n, found.shown(found.spread.mean)
            if interval is not None:
                low, high = found.shown(interval.low), found.shown(interval.high)
            if why := _forbidden(design, cells, place, against):
                agreement = Agreement.NOT_SHOWN
            else:
                agreement, why = _agreement(blocks, low, high, item.direction)
    return Repeated(
        tuning=tuning,
        against=against,
        workload=place.workload,
        against_workload=item.against_workload,
        condition=place.condition,
        metric=metric,
        published=item.ratio,
        direction=item.direction,
        ratio=ratio,
        low=low,
        high=high,
        blocks=blocks,
        agreement=agreement,
        why=why,
        source=source,
    )


def _forbidden(design: Design, cells: Cells, place: Scenario, against: str) -> str:
    """Return why this run may call no direction its own; "" where it may."""
    if design.before_look:
        return "before the first look that the plan declares"
    return control_failed(design, cells, place) if against == design.baseline else ""


def _agreement(
    blocks: int, low: float | None, high: float | None, direction: str
) -> tuple[Agreement, str]:
    if blocks < FEWEST_BLOCKS:
        return Agreement.NOT_SHOWN, f"{blocks} of the {FEWEST_BLOCKS} blocks that it takes"
    if low is None or high is None:
        return Agreement.NOT_SHOWN, "the same ratio in every block, too coarse to judge by"
    if low <= 1 <= high:
        return Agreement.NOT_SHOWN, "the interval holds no change"
    same = (low > 1) is (direction == "higher")
    return (Agreement.SAME if same else Agreement.OTHER), ""


def _series(cells: Cells, tuning: str | None, place: Scenario, metric: str) -> Series | None:
    """Return what has the metric's name and its labels and no more, or else what has them, summed
    by block; None where there is nothing, or where the numbers come from more than one source
    (METHOD 12)."""
    if tuning is None:
        return None
    base, labels = base_name(metric), labels_of(metric)
    found = [
        series
        for series in cells.at(tuning, place).values()
        if series.sample.metric == base and labels.items() <= series.sample.labels.items()
    ]
    # A total that stands beside its parts, as exits beside exits{reason=HLT}, is not one of them.
    wanted = labels.keys() | {"source"}
    found = [series for series in found if series.sample.labels.keys() <= wanted] or found
    if len({series.sample.labels.get("source") for series in found}) != 1:
        return None
    first, *more = found
    if not more:
        return first
    blocks = set.intersection(*(set(series.values) for series in found))
    return replace(
        first, values={b: math.fsum(series.values[b] for series in found) for b in sorted(blocks)}
    )


def _why_missing(cells: Cells, tuning: str, place: Scenario, metric: str) -> str:
    base = base_name(metric)
    reasons = dict.fromkeys(
        item.reason
        for item in cells.missing
        if base_name(item.metric) == base
        and tuning in item.tunings
        and place.workload in item.workloads
    )
    return listed(list(reasons)) if reasons else f"{tuning} has no value of it"
