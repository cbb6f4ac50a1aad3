"""Run `labctl condition`: list, show and validate what runs beside trials."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from labctl.base.cpus import CpuSet, format_cpus
from labctl.base.errors import LabctlError
from labctl.cli.parts.common import Group, console, listing, print_json
from labctl.cli.workload import SideCommands, user_of

if TYPE_CHECKING:
    from labctl.study.conditions import Condition, Neighbour

SCHEMA = 1


@click.group("condition", cls=Group)
def command() -> None:
    """List, show or validate conditions: the load that runs on the host beside a trial."""


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_command(as_json: bool) -> None:
    """List all conditions: labctl's own, and those of the lab folder."""
    from labctl.base.paths import shipped_data
    from labctl.study.conditions import condition_files

    table = listing("condition", "from", "what happens", "neighbours")
    rows = []
    for name, path in condition_files().items():
        condition = _found(name)
        words = [one.record().words for one in condition.neighbours]
        whose = "labctl" if path.is_relative_to(shipped_data()) else "yours"
        about = condition.description
        rows.append({"name": name, "description": about, "neighbours": words, "from": whose})
        table.add_row(name, whose, about, "; ".join(words) or "none")
    if as_json:
        print_json({"schema": SCHEMA, "conditions": rows})
    else:
        console(listing=True).print(table)


@command.command("show")
@click.argument("name", metavar="NAME|FILE")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show_command(name: str, as_json: bool) -> None:
    """Show a condition's neighbours: the commands, users and CPUs of each on this host."""

    facts = facts_of(_found(name))
    if as_json:
        print_json({"schema": SCHEMA, **facts})
        return
    click.echo(f"{facts['name']}: {facts['description']}")
    if not facts["neighbours"]:
        click.echo("neighbours: none")
    for one in facts["neighbours"]:
        click.echo(f"\n{one['words']}")
        click.echo(f"  here: {one['here']}")
        show_commands(one)


def show_commands(one: SideCommands) -> None:
    """Print the commands of a neighbour, and as whom they run."""
    from labctl.base.wording import printable

    for what, argv in one["commands"].items():
        click.echo(f"  {what} (as {one['user']}): {printable(argv)}")


@command.command("validate")
@click.argument("name", metavar="NAME|FILE")
def validate_command(name: str) -> None:
    """Check a condition's file (keys, values and names) and its neighbours' commands.

    On an error it names file, line and key, and exits with 2.
    """
    from labctl.base.wording import counted

    facts = facts_of(_found(name))
    kinds = counted(len(facts["neighbours"]), "kind")
    click.echo(f"{name}: valid; it has {kinds} of neighbours")


def _found(name: str) -> Condition:
    from labctl.study.conditions import load_condition
    from labctl.workloads.registry import checkers

    return load_condition(name, checkers())


# Gather what `labctl condition` and a plan show of neighbours.


_EXAMPLE: CpuSet = frozenset({0})
"""CPUs of a command that is shown without a host."""


def facts_of(condition: Condition) -> dict[str, Any]:
    """Return all that is known of a condition, as JSON has it. Raises UsageError for commands that
    can't be made."""
    return {
        "name": condition.name,
        "description": condition.description,
        "neighbours": [
            {
                "words": one.record().words,
                "here": _here(one),
                **one.to_json(),
                **neighbour_commands(one),
            }
            for one in condition.neighbours
        ],
    }


def neighbour_commands(neighbour: Neighbour) -> SideCommands:
    """Return what a neighbour runs, and as whom."""
    from labctl.run.commands.try_workload import commands_of
    from labctl.run.planning.conditions import beside_of

    beside = beside_of(neighbour)
    command = beside.command(_EXAMPLE)
    commands = commands_of(command, beside.servers(_EXAMPLE))
    return {"user": user_of(command), "commands": commands}


def _here(neighbour: Neighbour) -> str:
    """Return where neighbours would run on this host, or why they can't."""
    from labctl.domain.pinning.pin_plan import default_vcpus, pin_plan
    from labctl.host import cgroups
    from labctl.host.topology import read_topology
    from labctl.run.planning.conditions import cpus_of, why_not

    try:
        topology = read_topology()
        pins = pin_plan(topology, default_vcpus(topology), iothreads=1)
    except LabctlError as error:
        return error.message
    if why := why_not(neighbour, topology, pins, cgroups.detect()):
        return f"not possible: {why}"
    return f"CPUs {format_cpus(cpus_of(neighbour, topology, pins))}"
