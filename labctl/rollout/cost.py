"""Add up the cost of a tuning: CPUs, memory, the host's time, the neighbour, and regressions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from labctl.analysis.answer.record import Basis, Worse
from labctl.analysis.answer.view import View
from labctl.analysis.answer.words import shown
from labctl.analysis.answer.worse import neighbour_columns, side_costs_of, surely_worse, worse_of
from labctl.analysis.effects.cells import Scenario, scenario_of
from labctl.analysis.model import Comparison, EffectKind
from labctl.base.wording import metric_title
from labctl.base.xmldiff import parse

_SHOWN_HERE = ("host CPU", "work per host CPU-second")


@dataclass(frozen=True, slots=True)
class SideCosts:
    """Hold the cost to one party in one place, against baseline. `interval` is "" if there is
    none."""

    place: str
    who: str
    change: str
    interval: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Hold a tuning's costs. `takes`: CPUs and memory, in sentences. `neighbour_loss`: the largest
    share of its throughput that the neighbour lost, 0 if none was measured. `worse`: other metrics
    whose 95 % interval lies on the worse side, without a verdict; `largest`: maxima that stand out,
    not tested. `risks`: None if the run has none recorded."""

    takes: tuple[str, ...]
    side_costs: tuple[SideCosts, ...]
    neighbour_loss: float
    worse: tuple[Comparison, ...]
    largest: tuple[Worse, ...]
    risks: tuple[str, ...] | None


def cost(view: View, tuning: str, xml: str | None, memory_mib: int | None) -> Cost:
    """Return the cost of `tuning`, as far as the run has measured or recorded it. `xml`: the domain
    with the tuning, of `memory_mib`, for the virtual machine that it is rolled out to."""
    record = view.run.run.tunings.get(tuning)
    losses = [1 - item.estimate for item in _neighbours(view, tuning)]
    return Cost(
        takes=tuple(_takes(xml, memory_mib)),
        side_costs=tuple(
            entry for place in view.places for entry in _side_costs(view, tuning, place)
        ),
        neighbour_loss=max([0.0, *losses]),
        worse=tuple(surely_worse(view, tuning)),
        largest=tuple(w for w in worse_of(view, tuning) if w.tested is Basis.NOT_TESTED),
        risks=record.risks if record else None,
    )


def _neighbours(view: View, tuning: str) -> Iterator[Comparison]:
    """Yield the places where the neighbour certainly lost: its interval excludes no loss."""
    for place in view.places:
        for column in neighbour_columns(view, place):
            item = view.comparison(tuning, view.baseline, place, column)
            if item is not None and item.kind is EffectKind.RATIO and (item.high or 1.0) < 1:
                yield item


def _side_costs(view: View, tuning: str, place: Scenario) -> Iterator[SideCosts]:
    for column in neighbour_columns(view, place):
        neighbour = view.comparison(tuning, view.baseline, place, column)
        if neighbour is not None:
            yield SideCosts(place.title, column.title, *shown(neighbour))
    for price in side_costs_of(view, tuning, place):
        if price.who in _SHOWN_HERE:
            yield SideCosts(place.title, price.who, price.change, "")


def side_cost_lines(cost: Cost) -> Iterator[str]:
    """Yield a line per place: 'sysbench-cpu on a quiet host: neighbour −25 % (−31 to −18 %), host
    CPU +4 %.'"""
    for place in dict.fromkeys(entry.place for entry in cost.side_costs):
        parts = [
            f"{entry.who} {entry.change}" + (f" ({entry.interval})" if entry.interval else "")
            for entry in cost.side_costs
            if entry.place == place
        ]
        yield f"{place}: {', '.join(parts)}."


def worse_text(item: Comparison) -> str:
    """Return 'p99 latency +12 % (+3 to +20 %) in fio-randread on a quiet host'."""
    return f"{metric_title(item.metric)} {shown(item)} in {scenario_of(item).title}"


def _takes(xml: str | None, mib: int | None) -> Iterator[str]:
    if xml is None:
        yield "CPUs and memory: not recorded; the run has no domain XML for this tuning."
        return
    domain = parse(xml)
    pins = [(pin.get("vcpu", "?"), pin.get("cpuset", "?")) for pin in domain.iter("vcpupin")]
    if pins:
        placed = ", ".join(f"vCPU {vcpu} on CPU {cpus}" for vcpu, cpus in pins)
        yield f"CPUs: {placed}. They are not reserved: do not pin other guests to them."
    emulator = domain.find("./cputune/emulatorpin")
    if emulator is not None:
        yield f"CPUs: QEMU's own (emulator) threads on CPU {emulator.get('cpuset', '?')}."
    for pin in domain.iter("iothreadpin"):
        yield f"CPUs: iothread {pin.get('iothread', '?')} on CPU {pin.get('cpuset', '?')}."
    size = f"all {mib} MiB of the guest" if mib is not None else "all of the guest's memory"
    page = domain.find("./memoryBacking/hugepages")
    if page is not None:
        yield f"Memory: {size} in huge pages, which no other process can use while the guest runs."
    if domain.find("./memoryBacking/locked") is not None:
        yield f"Memory: {size} locked: never swapped or returned to the host."
