"""What others published beside what this run found: ratio and direction, never absolute values."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from labctl.analysis.cells import Cells, Place, read_cells
from labctl.analysis.design import ALPHA, Design, read_design
from labctl.analysis.effects import ratio_of
from labctl.analysis.intervals import spread, t_interval
from labctl.analysis.verdicts import FEWEST_BLOCKS
from labctl.analysis.words import listed
from labctl.store.run_folder import LoadedRun

_RESOLUTION = 1e-9
"""Of log-ratios: what differs by less is tied."""


class Agreement(StrEnum):
    SAME = "same direction"
    OTHER = "other direction"
    NOT_SHOWN = "not shown"
    """The interval holds no change, or there are too few blocks to say."""
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """A published result and this run's own number of it. `published` and `ratio`: tuning /
    against (`published` None: only the direction is known). `low`, `high`: 95 %, by itself.
    `source`: the number of the source in `Published.sources`. `why`: what keeps the two apart."""

    tuning: str
    against: str
    workload: str
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
    """The published results that a run's plan carries, each beside the run's own ratio.

    Against baseline the reference is the mean of baseline and control, as everywhere (METHOD 17).
    A metric whose labels are named in part is the sum of what has them, in each block. The
    direction is this run's where a 95 % interval of at least ten blocks excludes no change.
    """
    sources = run.plan.get("published") or []
    if not sources:
        return Published(sources=(), results=())
    design, cells = read_design(run), read_cells(run)
    results = (
        _repeated(design, cells, item, place, number, run.plan.get("skipped") or {})
        for place in design.places
        for number, source in enumerate(sources)
        for item in source["results"]
        if item.get("workload") in (None, place.workload)
        and item.get("condition") in (None, place.condition)
    )
    return Published(sources=tuple(source["source"] for source in sources), results=tuple(results))


def _repeated(
    design: Design,
    cells: Cells,
    item: Mapping[str, Any],
    place: Place,
    source: int,
    skipped: Mapping[str, str],
) -> Repeated:
    tuning, against, metric = item["tuning"], item["against"], item["metric"]
    ours = _values(cells, tuning, place, metric)
    names = (against, design.control) if against == design.baseline else (against,)
    references = [v for name in names if (v := _values(cells, name, place, metric))]
    ratio = low = high = None
    blocks, agreement, why = 0, Agreement.NOT_MEASURED, ""
    if not ours or not _values(cells, against, place, metric):
        lacking = tuning if not ours else against
        why = skipped.get(lacking) or _why_missing(cells, lacking, place, metric)
    elif not (common := sorted(set(ours).intersection(*references))):
        why = f"no block has both {tuning} and {against}"
    elif min(side[block] for side in (ours, *references) for block in common) <= 0:
        blocks, why = len(common), "0 in some block, of which there is no ratio"
    else:
        logs = [
            math.log(ours[b]) - math.fsum(math.log(r[b]) for r in references) / len(references)
            for b in common
        ]
        found = spread(logs, _RESOLUTION)
        interval = t_interval(found, ALPHA)
        blocks, ratio = found.n, ratio_of(found.mean)
        agreement = Agreement.NOT_SHOWN
        if interval is not None:
            low, high = ratio_of(interval.low), ratio_of(interval.high)
        if blocks < FEWEST_BLOCKS:
            why = f"{blocks} of the {FEWEST_BLOCKS} blocks that it takes"
        elif low is None or high is None or low <= 1 <= high:
            why = "the interval holds no change"
        else:
            rises = low > 1
            same = rises is (item["direction"] == "higher")
            agreement = Agreement.SAME if same else Agreement.OTHER
    return Repeated(
        tuning=tuning,
        against=against,
        workload=place.workload,
        condition=place.condition,
        metric=metric,
        published=item.get("ratio"),
        direction=item["direction"],
        ratio=ratio,
        low=low,
        high=high,
        blocks=blocks,
        agreement=agreement,
        why=why,
        source=source,
    )


def _values(cells: Cells, tuning: str | None, place: Place, metric: str) -> dict[int, float]:
    """By block: the sum of the series that have the metric's name and its labels; {} where there is
    none, or where they come from more than one source (METHOD 12)."""
    if tuning is None:
        return {}
    base, labels = _parts(metric)
    found = [
        series
        for series in cells.at(tuning, place).values()
        if series.sample.metric == base and labels.items() <= series.sample.labels.items()
    ]
    if len({series.sample.labels.get("source") for series in found}) != 1:
        return {}
    sums: defaultdict[int, list[float]] = defaultdict(list)
    for series in found:
        for block, value in series.values.items():
            sums[block].append(value)
    return {block: math.fsum(v) for block, v in sums.items() if len(v) == len(found)}


def _parts(metric: str) -> tuple[str, dict[str, str]]:
    base, _, inside = metric.partition("{")
    labels = filter(None, inside.removesuffix("}").split(","))
    return base, dict(label.split("=", 1) for label in labels)


def _why_missing(cells: Cells, tuning: str, place: Place, metric: str) -> str:
    base = _parts(metric)[0]
    reasons = dict.fromkeys(
        item.reason
        for item in cells.missing
        if item.metric.partition("{")[0] == base
        and tuning in item.tunings
        and place.workload in item.workloads
    )
    return listed(list(reasons)) if reasons else f"{tuning} has no value of it"
