"""Show who pays for a tuning: the guest, its neighbour, the host's CPUs."""

from __future__ import annotations

from dataclasses import dataclass

from labctl.analysis.cells import Scenario
from labctl.analysis.model import Comparison, EffectKind
from labctl.analysis.view import MetricColumn, View, only_label, primary_column
from labctl.analysis.words import shown
from labctl.base.notation import change
from labctl.store.samples import HELPERS, VCPU, base_name, labels_of, sample_key

NEIGHBOUR = "neighbour"
"""Beginning of what a neighbour is called among those who pay."""
_DONE = "neighbour_ops_per_s"
_PER_CPU = "ops_per_cpu_s"


@dataclass(frozen=True, slots=True)
class Price:
    """Hold what one tuning did to one party: `text` is its change against baseline, `interval` ""
    where there is none; `ratio` is the change as a number, None of a difference."""

    who: str
    text: str
    interval: str = ""
    ratio: float | None = None


def side_costs_of(view: View, tuning: str, place: Scenario) -> list[Price]:
    """Return who pays for a tuning: the guest, its neighbour, the host's CPUs, per CPU-second.

    Without this a FIFO guest looks free. [] unless there is more to say than the guest's own
    change.
    """
    prices = []
    primary = view.primary(place.workload)
    parties = neighbour_columns(view, place)
    if primary is not None:
        parties.insert(0, MetricColumn("guest", primary_column(primary).names))
    for party in parties:
        found = view.comparison(tuning, view.baseline, place, party)
        if found is not None:
            prices.append(_price(party.title, found))
    host = _host_cpu(view, tuning, place), _host_cpu(view, view.baseline, place)
    if host[0] and host[1]:
        ratio = host[0] / host[1]
        prices.append(Price("host CPU", change(ratio), ratio=ratio))
    per_cpu = MetricColumn("", (_PER_CPU,))
    found = view.comparison(tuning, view.baseline, place, per_cpu)
    if found is not None:
        prices.append(_price("work per host CPU-second", found))
    return prices if len(prices) > 1 else []


def is_side_cost(metric: str) -> bool:
    """Return whether a metric says what neighbours got done, or a second of the host's CPUs."""
    return base_name(metric) in {_DONE, _PER_CPU}


def neighbour_columns(view: View, place: Scenario) -> list[MetricColumn]:
    """Return what neighbours got done there: of all together, or, where several workloads ran, of
    each."""
    named = (only_label(level.metric, _DONE, "workload") for level in view.levels(place))
    if several := dict.fromkeys(name for name in named if name is not None):
        return [
            MetricColumn(f"{NEIGHBOUR} {name}", (sample_key(_DONE, {"workload": name}),))
            for name in several
        ]
    return [MetricColumn(NEIGHBOUR, (_DONE,))]


def _price(who: str, found: Comparison) -> Price:
    ratio = found.estimate if found.kind is EffectKind.RATIO else None
    return Price(who, *shown(found), ratio)


def _host_cpu(view: View, tuning: str, place: Scenario) -> float:
    """Return CPU seconds per second of all the guest's threads together."""
    return sum(
        level.typical
        for level in view.levels(place)
        if level.tuning == tuning
        and base_name(level.metric) == "host_cpu"
        and labels_of(level.metric).get("thread") in (VCPU, *HELPERS)
    )
