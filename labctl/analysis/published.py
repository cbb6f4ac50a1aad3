"""Set what others published beside what this run found: ratio and direction, never absolute
values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from labctl.analysis.added import confirmatory
from labctl.analysis.cells import Scenario
from labctl.analysis.checks import control_failed
from labctl.analysis.own_numbers import Measured, Own
from labctl.analysis.verdicts import FEWEST_BLOCKS
from labctl.store.records.plan_record import PublishedResult
from labctl.store.run_folder import LoadedRun


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
    measured = Measured.of(run)
    results = (
        _repeated(measured, item, place, number)
        for place in measured.design.places
        for number, source in enumerate(sources)
        for item in source.results
        if item.workload in (None, place.workload) and item.condition in (None, place.condition)
    )
    return Published(sources=tuple(source.source for source in sources), results=tuple(results))


def _repeated(measured: Measured, item: PublishedResult, place: Scenario, source: int) -> Repeated:
    other = Scenario(item.against_workload or place.workload, place.condition)
    found = measured.ratio(item.metric, item.tuning, place, item.against, other)
    agreement, why = Agreement.NOT_MEASURED, found.why
    if found.number is not None:
        if why := _forbidden(measured, place, item.against):
            agreement = Agreement.NOT_SHOWN
        else:
            agreement, why = _agreement(found, item.direction)
    return Repeated(
        tuning=item.tuning,
        against=item.against,
        workload=place.workload,
        against_workload=item.against_workload,
        condition=place.condition,
        metric=item.metric,
        published=item.ratio,
        direction=item.direction,
        ratio=found.number,
        low=found.low,
        high=found.high,
        blocks=found.blocks,
        agreement=agreement,
        why=why,
        source=source,
    )


def _forbidden(measured: Measured, place: Scenario, against: str) -> str:
    """Return why this run may call no direction its own; "" where it may."""
    design = measured.design
    if design.before_look:
        return "before the first look that the plan declares"
    return control_failed(design, measured.cells, place) if against == design.baseline else ""


def _agreement(found: Own, direction: str) -> tuple[Agreement, str]:
    blocks, low, high = found.blocks, found.low, found.high
    if blocks < FEWEST_BLOCKS:
        return Agreement.NOT_SHOWN, f"{blocks} of the {FEWEST_BLOCKS} blocks that it takes"
    if low is None or high is None:
        return Agreement.NOT_SHOWN, "the same ratio in every block, too coarse to judge by"
    if low <= 1 <= high:
        return Agreement.NOT_SHOWN, "the interval holds no change"
    same = (low > 1) is (direction == "higher")
    return (Agreement.SAME if same else Agreement.OTHER), ""
