"""Show the exit price list on a terminal, and compare it with a run's measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from rich.console import Group, RenderableType

from labctl.analysis.answer.view import View, only_label, primary_column
from labctl.analysis.answer.words import listed
from labctl.analysis.effects.cells import Scenario
from labctl.analysis.model import EffectKind
from labctl.analysis.times import ExitCost, exit_cost
from labctl.base.notation import NOT_AVAILABLE, TO, quantity, shares, significant
from labctl.base.units import Better, Unit
from labctl.base.wording import metric_title
from labctl.report.parts import bare_table, small, text
from labctl.store.exit_prices import Price, usable


def price_table(prices: Sequence[Price]) -> RenderableType:
    """Return a row per kind in 80 columns. Reasons for missing prices stand below the table."""
    table = bare_table("Cost of a VM exit on this host")
    table.add_column("kind", no_wrap=True)
    table.add_column("reason", no_wrap=True)
    table.add_column("ns", justify="right", no_wrap=True)
    table.add_column("95 % CI", no_wrap=True)
    table.add_column("action of the guest", overflow="fold")
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
    return f"{significant(price.low_ns)}{TO}{significant(price.high_ns)}"


class Loss(NamedTuple):
    """Hold a share and its interval; `low` and `high` None without one."""

    estimate: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        return shares(self.estimate, self.low, self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """Hold the cost of an arm's exits by the price list, and its measured loss to its native twin.

    `predicted`: share of the vCPUs' CPU time, None if it is unknown. `measured`: share of the
    twin's throughput, None for the reason `why`."""

    arm: str
    cost: ExitCost
    predicted: Loss | None
    measured: Loss | None
    why: str

    @property
    def rest(self) -> Loss | None:
        """Return the loss that the prices do not explain; its interval covers both errors."""
        if self.predicted is None or self.measured is None:
            return None
        return Loss(
            self.measured.estimate - self.predicted.estimate,
            _less(self.measured.low, self.predicted.high),
            _less(self.measured.high, self.predicted.low),
        )

    @property
    def cells(self) -> tuple[str, ...]:
        """Return the cells as text, in the order of the table's columns."""
        cost = quantity(self.cost.typical, Unit.CPUS)
        return (
            quantity(self.cost.exits, Unit.PER_SECOND),
            cost if self.predicted is None else str(self.predicted),
            f"{NOT_AVAILABLE}: {self.why}" if self.measured is None else str(self.measured),
            NOT_AVAILABLE if self.rest is None else str(self.rest),
            quantity(self.cost.priced, Unit.FRACTION),
        )


@dataclass(frozen=True, slots=True)
class Predictions:
    """Hold the predictions of a workload under a condition. `why_none`: a sentence on the reason if
    nothing is predicted."""

    rows: tuple[Predicted, ...]
    why_none: str

    title: ClassVar = "Loss predicted from VM exits × price, and measured"
    header: ClassVar = ("exits", "predicted loss", "measured loss", "rest", "exits with a price")
    legend: ClassVar = (
        "Predicted: the cost of these exits by this host's price list, as a share of the "
        "vCPUs' CPU time. Measured: the loss of throughput against the native twin, with "
        "its interval. HLT exits are left out, because they are idle time. The difference "
        "comes from exits without a price, caches, page tables and queueing. For a "
        "workload that also waits, the prediction is too high, because waiting uses no CPU "
        "time."
    )

    @property
    def caption(self) -> str:
        unpriced = dict.fromkeys(reason for row in self.rows for reason in row.cost.unpriced)
        return f"{self.legend} Without a price: {listed([*unpriced], 8) or 'none'}."


def predictions(view: View, place: Scenario) -> Predictions:
    """Return the predictions of each guest whose exits are known by reason, except for the run's
    checks."""
    prices = usable(view.run.run.exit_prices)
    if not prices:
        why = "no price list was made on this host before the run ('labctl exits price')."
        return Predictions((), why)
    arms = (view.baseline, *view.candidates)
    rows = tuple(row for arm in arms if (row := _predicted(view, place, arm, prices)) is not None)
    return Predictions(rows, "" if rows else "none of the exits has a price in this host's list.")


def _predicted(view: View, place: Scenario, arm: str, prices: Sequence[Price]) -> Predicted | None:
    exits = _by_reason(view, place, arm, "exits")
    cost = exit_cost(exits, _by_reason(view, place, arm, "userspace_exits"), prices)
    if cost is None:
        return None
    measured, why = _lost(view, place, arm)
    predicted = _of_cpu_time(cost, _one(view, place, arm, "host_cpu{thread=vcpu}"))
    return Predicted(arm=arm, cost=cost, predicted=predicted, measured=measured, why=why)


def prediction_table(found: Predictions) -> RenderableType:
    """Return one workload's predictions as a table for a terminal of 80 columns."""
    table = bare_table(found.title)
    table.add_column("arm", overflow="fold")
    for name in found.header:
        table.add_column(name, overflow="fold")
    for row in found.rows:
        table.add_row(text(row.arm), *map(text, row.cells))
    return Group(table, small(found.caption))


def predicted_json(view: View) -> list[dict[str, object]]:
    """Return all predictions of a run; docs/report-schema.md has the keys."""
    return [
        {
            "tuning": item.arm,
            "against": view.twin(item.arm),
            "workload": place.workload,
            "condition": place.condition,
            "exits_per_s": item.cost.exits,
            "cpu_s_per_s": _loss_json(Loss(item.cost.typical, item.cost.low, item.cost.high)),
            "predicted": _loss_json(item.predicted),
            "measured": _loss_json(item.measured),
            "rest": _loss_json(item.rest),
            "reason": item.why or None,
            "priced": item.cost.priced,
            "unpriced": list(item.cost.unpriced),
        }
        for place in view.places
        for item in predictions(view, place).rows
    ]


def _loss_json(loss: Loss | None) -> dict[str, float | None] | None:
    return loss._asdict() if loss is not None else None


def _of_cpu_time(cost: ExitCost, busy: float | None) -> Loss | None:
    if not busy:
        return None
    return Loss(cost.typical / busy, cost.low / busy, cost.high / busy)


def _less(end: float | None, other: float | None) -> float | None:
    return None if end is None or other is None else end - other


def _by_reason(view: View, place: Scenario, arm: str, metric: str) -> Mapping[str, float]:
    return {
        reason: level.typical
        for level in view.levels(place)
        if level.tuning == arm and (reason := only_label(level.metric, metric, "reason"))
    }


def _one(view: View, place: Scenario, arm: str, metric: str) -> float | None:
    levels = (item for item in view.levels(place) if item.tuning == arm)
    return next((item.typical for item in levels if item.metric == metric), None)


def _lost(view: View, place: Scenario, arm: str) -> tuple[Loss | None, str]:
    """Return the guest's loss of throughput to its native twin, or why it is unknown."""
    twin, primary = view.twin(arm), view.primary(place.workload)
    if twin is None or primary is None:
        return None, "no native twin" if twin is None else "no primary metric"
    item = view.comparison(arm, twin, place, primary_column(primary))
    if item is None:
        return None, f"not compared with {twin}"
    if item.kind is not EffectKind.RATIO or item.better is not Better.HIGHER:
        return None, f"{metric_title(item.metric)} is not a throughput"
    return Loss(1 - item.estimate, _less(1, item.high), _less(1, item.low)), ""
