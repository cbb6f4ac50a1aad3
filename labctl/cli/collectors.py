"""Run `labctl collectors`: list what trials collect, what works here, and what it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from labctl.base.errors import UsageError
from labctl.base.tuning import Kind, Level
from labctl.cli.common import Quantity, console, listing, print_json, state_paths

if TYPE_CHECKING:
    from collections.abc import Iterable

    from labctl.base.paths import StatePaths
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
    from labctl.run.commands.overhead import SIDES, OverheadRequest

    places = state_paths(context)
    document: dict[str, Any] = {"schema": SCHEMA, "collectors": _listed(places, accel, study)}
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
        document["overhead"] = _measured(request, quiet=quiet)
    else:
        _refuse_alone(context)
    if as_json:
        print_json(document)
        return
    _print_collectors(document["collectors"])
    if overhead:
        _print_costs(document["overhead"])


def _refuse_alone(context: click.Context) -> None:
    """Raise UsageError for options that say how to measure, where nothing is to be measured."""
    for option in ("level", "side", "pairs", "seconds", "workload", "seed"):
        name = f"{option}s" if option in ("level", "side") else option
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UsageError(
                f"--{option} has no effect without --overhead",
                hint="Add --overhead, or leave it out.",
            )


def _listed(places: StatePaths, accel: Requested, study: str) -> list[dict[str, Any]]:
    from labctl.run.collectors.collecting import tried

    found = tried(places, accel, study)
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


def _measured(request: OverheadRequest, *, quiet: bool) -> dict[str, Any]:
    from datetime import UTC, datetime

    from labctl.base.events import silent
    from labctl.cli.progress import ProgressView
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
    return {
        "accelerator": found.here.accelerator,
        "kept": kept,
        "costs": [_cost_json(side, cost) for side, cost in costs],
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


def _cost_json(side: Rates, cost: CollectingCost) -> dict[str, Any]:
    from dataclasses import asdict

    from labctl.run.commands.overhead import NOTHING

    return {
        **asdict(cost),
        "with": list(side.by_arm[cost.level]),
        "without": list(side.by_arm[NOTHING]),
        "problems": list(side.problems.get(cost.level, ())),
    }


def _print_collectors(collectors: list[dict[str, Any]]) -> None:
    from labctl.base.wording import printable

    table = listing("level", "collector", "here", "gives")
    for found in collectors:
        works = "works" if found["works"] else "no"
        table.add_row(found["level"], found["name"], works, found["gives"])
    console(listing=True).print(table)
    reasons = [(found["name"], found["reason"]) for found in collectors if not found["works"]]
    if reasons:
        click.echo()
    for name, reason in reasons:
        click.echo(printable(f"{name}: {reason}"))


def _print_costs(overhead: dict[str, Any]) -> None:
    from labctl.analysis.times import Cost, busy_words
    from labctl.base.wording import counted, printable

    out = console(listing=True)
    out.print()
    titles = ("level", "side", "cost (95 %)", "labctl itself", "of", "pairs")
    table = listing(*titles)
    for found in overhead["costs"]:
        of = f"{found['workload']}, {found['seconds']:g} s"
        busy = "?" if found["labctl_cpu"] is None else busy_words(found["labctl_cpu"])
        cost = str(Cost(found["estimate"], found["low"], found["high"]))
        row = (
            found["level"],
            found["side"],
            cost,
            busy,
            of,
            str(found["pairs"]),
        )
        table.add_row(*row)
    out.print(table)
    out.print(
        "\nCost: the share of the throughput that is lost; below 0, nothing was lost. "
        "'labctl itself': the CPU time of labctl and of the programs that record for it."
    )
    for found in overhead["costs"]:
        for problem in found["problems"]:
            where = f"{found['level']}, {found['side']}"
            click.echo(printable(f"  {where}: a collector recorded nothing: {problem}"))
    if not overhead["kept"]:
        few = counted(overhead["costs"][0]["pairs"], "pair")
        out.print(f"Not kept for reports: {few}; at least {_FEWEST_PAIRS} are needed ('--pairs').")
