"""The exit price list: on a terminal, and held against what a run measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType

from labctl.analysis.exit_cost import ExitCost, exit_cost
from labctl.analysis.model import EffectKind
from labctl.base.units import Better, Unit
from labctl.base.wording import NOT_AVAILABLE, TO, share, significant
from labctl.report.parts import bare_table, small, text
from labctl.report.view import Scene, View, base_name, label, primary_column
from labctl.store.exit_prices import Price, prices_of


def price_table(prices: Sequence[Price]) -> RenderableType:
    """A row per kind; why one has no price stands below the table. Fits 80 columns."""
    table = bare_table("What a VM exit costs on this host")
    table.add_column("kind", no_wrap=True)
    table.add_column("reason", no_wrap=True)
    table.add_column("ns", justify="right", no_wrap=True)
    table.add_column("95 % interval", no_wrap=True)
    table.add_column("what the guest does", overflow="fold")
    for price in prices:
        table.add_row(
            text(price.kind), text(price.reason), _ns(price), _interval(price), text(price.what)
        )
    why = [small(f"{price.kind}: {price.problem}") for price in prices if price.problem]
    lines = [text("")] if why else []
    return Group(table, *lines, *why)


def _ns(price: Price) -> str:
    return NOT_AVAILABLE if price.ns is None else significant(price.ns)


def _interval(price: Price) -> str:
    if price.low_ns is None or price.high_ns is None:
        return ""
    return f"{significant(price.low_ns)} to {significant(price.high_ns)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """A row: what an arm's exits should cost by the price list, and what it lost to its native
    twin. `rest` is what is left: caches, page tables, queueing."""

    arm: str
    exits: str
    predicted: str
    measured: str
    rest: str
    priced: str


def predicted_losses(view: View, scene: Scene) -> tuple[Predicted, ...]:
    """A row per guest whose exits are known by reason; () without a price list of its host."""
    prices = prices_of(view.run.run.get("exit_prices"))
    found = []
    for arm in view.tunings if prices else ():
        exits = _by_reason(view, scene, arm, "exits")
        cost = exit_cost(exits, _by_reason(view, scene, arm, "userspace_exits"), prices)
        if cost is not None:
            found.append(_row(view, scene, arm, sum(exits.values()), cost))
    return tuple(found)


def _row(view: View, scene: Scene, arm: str, exits: float, cost: ExitCost) -> Predicted:
    busy = _one(view, scene, arm, "host_cpu{thread=vcpu}")
    lost = _lost(view, scene, arm)
    predicted = cost.typical / busy if busy else None
    without = f"; without a price: {', '.join(cost.unpriced)}" if cost.unpriced else ""
    return Predicted(
        arm=arm,
        exits=f"{significant(exits)}/s",
        predicted=f"{share(predicted)} ({share(cost.low / busy)}{TO}{share(cost.high / busy)})"
        if predicted is not None and busy
        else f"{significant(cost.typical)} {Unit.CPUS}",
        measured=NOT_AVAILABLE if lost is None else share(lost),
        rest=NOT_AVAILABLE if lost is None or predicted is None else share(lost - predicted),
        priced=f"{share(cost.priced)}{without}",
    )


def _by_reason(view: View, scene: Scene, arm: str, metric: str) -> Mapping[str, float]:
    return {
        reason: level.typical
        for level in view.levels(scene)
        if level.tuning == arm
        and base_name(level.metric) == metric
        and (reason := label(level.metric, "reason")) is not None
    }


def _one(view: View, scene: Scene, arm: str, metric: str) -> float | None:
    levels = (item for item in view.levels(scene) if item.tuning == arm)
    return next((item.typical for item in levels if item.metric == metric), None)


def _lost(view: View, scene: Scene, arm: str) -> float | None:
    """Share of the native twin's throughput that the guest doesn't reach."""
    twin, primary = view.twin(arm), view.primary(scene.workload)
    if twin is None or primary is None:
        return None
    item = view.comparison(arm, twin, scene, primary_column(primary))
    if item is None or item.kind is not EffectKind.RATIO or item.better is not Better.HIGHER:
        return None
    return 1 - item.estimate
