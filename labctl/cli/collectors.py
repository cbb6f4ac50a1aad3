"""Run `labctl collectors`: list what trials collect, what works here, and what it costs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from labctl.base.errors import UsageError
from labctl.base.tuning import Kind, Level
from labctl.cli.parts.common import Quantity, console, listing, print_json, state_paths

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from labctl.collect.collector import Collector
    from labctl.host.accelerator import Requested
    from labctl.run.commands.overhead import OverheadRequest, Overheads, Rates
    from labctl.store.collecting_costs import CollectingCost

SCHEMA = 1
_FEWEST_PAIRS = 10
"""Fewer are shown, and forgotten (METHOD 21)."""


@click.command("collectors")
@click.option(
    "--overhead",
    is_flag=True,
    help="Measure the cost of collecting, natively and in a guest (some minutes).",
)
@click.option(
    "--level",
    "levels",
    multiple=True,
    type=click.Choice([x.value for x in Level]),
    help="Measure only these levels (default: all).",
)
@click.option(
    "--side",
    "sides",
    multiple=True,
    type=click.Choice([Kind.NATIVE.value, Kind.GUEST.value]),
    help="Measure only there (default: both).",
)
@click.option(
    "--pairs",
    type=click.IntRange(min=2),
    default=20,
    show_default=True,
    help="Pairs of windows with and without. Under 10 the result is not kept.",
)
@click.option(
    "--seconds",
    type=Quantity("time", least=0.1, most=3600),
    help="Length of a window (default: the study's).",
)
@click.option(
    "--study",
    default="selftest",
    show_default=True,
    help="Study with the workload, roles and image.",
)
@click.option("--workload", help="One of the study's (default: its first).")
@click.option(
    "--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Seed of the order."
)
@click.option("--accel", type=click.Choice(["auto", "kvm", "tcg"]), default="auto")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/collectors.md).")
@click.option("--quiet", is_flag=True, help="No progress; only the result.")
@click.pass_context
def command(
    context: click.Context,
    overhead: bool,
    levels: tuple[str, ...],
    sides: tuple[str, ...],
    pairs: int,
    seconds: float | None,
    study: str,
    workload: str | None,
    seed: int,
    accel: Requested,
    as_json: bool,
    quiet: bool,
) -> None:
    """List what trials collect at each level, and which collectors work on this host.

    With --overhead, also measure the cost of a level: the share of a workload's throughput that
    is lost, with its 95 % CI, from alternating windows with and without it. Reports of later
    runs on this host show it.
    """
    from labctl.run.collectors.collecting import tried
    from labctl.run.commands.overhead import SIDES, OverheadRequest

    places = state_paths(context)
    found = tried(places, accel, study)
    document: dict[str, object] = {"schema": SCHEMA, "collectors": _collectors_json(found)}
    measured: _Measured | None = None
    if overhead:
        request = OverheadRequest(
            places=places,
            study=study,
            workload=workload,
            levels=tuple(Level(x) for x in dict.fromkeys(levels)) or tuple(Level),
            sides=tuple(Kind(x) for x in dict.fromkeys(sides)) or SIDES,
            pairs=pairs,
            seconds=seconds,
            seed=seed,
            accel=accel,
        )
        measured = _measured(request, quiet=quiet)
        document["overhead"] = _measured_json(measured)
    else:
        _refuse_alone(context)
    if as_json:
        print_json(document)
        return
    _print_collectors(found)
    if measured is not None:
        _print_costs(measured)


def _refuse_alone(context: click.Context) -> None:
    """Raise UsageError for options that say how to measure, where nothing is to be measured."""
    for option in ("level", "side", "pairs", "seconds", "workload", "seed"):
        name = f"{option}s" if option in ("level", "side") else option
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UsageError(
                f"--{option} has no effect without --overhead",
                hint="Add --overhead, or leave it out.",
            )


def _collectors_json(found: Mapping[Collector, str | None]) -> list[dict[str, object]]:
    return [
        {
            "name": collector.name,
            "level": str(collector.level),
            "gives": collector.gives,
            "works": why is None,
            "reason": why,
        }
        for collector, why in found.items()
    ]


@dataclass(frozen=True, slots=True)
class _Measured:
    """Hold the costs of levels, each with the rates that it is from. `kept`: for reports."""

    accelerator: str | None
    kept: bool
    costs: Sequence[tuple[Rates, CollectingCost]]


def _measured(request: OverheadRequest, *, quiet: bool) -> _Measured:
    from datetime import UTC, datetime

    from labctl.base.events import silent
    from labctl.cli.parts.progress import ProgressView
    from labctl.run.commands.overhead import measure_overheads
    from labctl.store.collecting_costs import remember

    if quiet:
        found = measure_overheads(request, silent)
    else:
        with ProgressView(console(stderr=True)) as view:
            found = measure_overheads(request, view.listen)
    at = datetime.now(UTC).isoformat(timespec="seconds")
    costs = [
        (side, cost) for side in found.sides for cost in _costs(found, side, request.levels, at)
    ]
    kept = request.pairs >= _FEWEST_PAIRS
    if kept:
        remember(request.places.collecting_costs, found.here, [cost for _, cost in costs])
    return _Measured(found.here.accelerator, kept, costs)


def _measured_json(measured: _Measured) -> dict[str, object]:
    return {
        "accelerator": measured.accelerator,
        "kept": measured.kept,
        "costs": [_cost_json(side, cost) for side, cost in measured.costs],
    }


def _costs(
    found: Overheads, side: Rates, levels: Iterable[Level], at: str
) -> Iterable[CollectingCost]:
    from statistics import mean

    from labctl.analysis.times import cost
    from labctl.run.commands.overhead import NOTHING
    from labctl.store.collecting_costs import CollectingCost

    for level in levels:
        bare = side.by_arm[NOTHING]
        lost = cost(side.by_arm[level], bare)
        yield CollectingCost(
            level=str(level),
            side=side.side,
            workload=found.workload,
            estimate=lost.estimate,
            low=lost.low,
            high=lost.high,
            labctl_cpu=mean(busy) if (busy := side.labctl_cpu[level]) else None,
            pairs=len(bare),
            seconds=found.seconds,
            measured_at=at,
        )


def _cost_json(side: Rates, cost: CollectingCost) -> dict[str, object]:
    from labctl.run.commands.overhead import NOTHING

    return {
        **asdict(cost),
        "with": list(side.by_arm[cost.level]),
        "without": list(side.by_arm[NOTHING]),
        "problems": [*_problems(side, cost)],
    }


def _problems(side: Rates, cost: CollectingCost) -> Iterable[str]:
    return side.problems.get(cost.level, ())


def _print_collectors(found: Mapping[Collector, str | None]) -> None:
    from labctl.base.wording import printable

    table = listing("level", "collector", "here", "gives")
    for collector, why in found.items():
        works = "works" if why is None else "no"
        table.add_row(str(collector.level), collector.name, works, collector.gives)
    console(listing=True).print(table)
    reasons = [(collector.name, why) for collector, why in found.items() if why is not None]
    if reasons:
        click.echo()
    for name, reason in reasons:
        click.echo(printable(f"{name}: {reason}"))


def _print_costs(measured: _Measured) -> None:
    from labctl.analysis.times import Cost, busy_words
    from labctl.base.wording import counted, printable

    out = console(listing=True)
    out.print()
    titles = ("level", "side", "cost (95 %)", "labctl itself", "of", "pairs")
    table = listing(*titles)
    for _, cost in measured.costs:
        of = f"{cost.workload}, {cost.seconds:g} s"
        busy = "?" if cost.labctl_cpu is None else busy_words(cost.labctl_cpu)
        lost = str(Cost(cost.estimate, cost.low, cost.high))
        table.add_row(cost.level, cost.side, lost, busy, of, str(cost.pairs))
    out.print(table)
    out.print(
        "\nCost: the share of the throughput that is lost; below 0, nothing was lost. "
        "'labctl itself': the CPU time of labctl and of the programs that record for it."
    )
    for side, cost in measured.costs:
        for problem in _problems(side, cost):
            where = f"{cost.level}, {cost.side}"
            click.echo(printable(f"  {where}: a collector recorded nothing: {problem}"))
    if not measured.kept:
        few = counted(measured.costs[0][1].pairs, "pair")
        out.print(f"Not kept for reports: {few}; at least {_FEWEST_PAIRS} are needed ('--pairs').")
