"""Run `labctl condition`: list, show and validate what runs beside trials."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from labctl.cli.common import Group, console, listing, print_json

if TYPE_CHECKING:
    from labctl.study.condition import Condition

SCHEMA = 1


@click.group("condition", cls=Group)
def command() -> None:
    """List, show or validate conditions: what else happens on the host during a trial."""


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_command(as_json: bool) -> None:
    """List all conditions: labctl's own, and those of the lab folder."""
    from labctl.base.paths import shipped_data
    from labctl.study.conditionfile import condition_files

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
    """Show a condition's neighbours: what each runs, as whom and where on this host."""
    from labctl.cli.condition_facts import facts_of

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


def show_commands(one: dict[str, Any]) -> None:
    """Print the commands of a neighbour, and as whom they run."""
    from labctl.base.wording import printable

    for what, argv in one["commands"].items():
        click.echo(f"  {what} (as {one['user']}): {printable(argv)}")


@command.command("validate")
@click.argument("name", metavar="NAME|FILE")
def validate_command(name: str) -> None:
    """Check a condition's file: keys, values and names; then its neighbours' commands.

    Exit code 2 names file, line and key of what is wrong.
    """
    from labctl.base.wording import counted
    from labctl.cli.condition_facts import facts_of

    facts = facts_of(_found(name))
    kinds = counted(len(facts["neighbours"]), "kind")
    click.echo(f"{name}: nothing wrong; it has {kinds} of neighbours")


def _found(name: str) -> Condition:
    from labctl.study.conditionfile import load_condition
    from labctl.workloads.registry import checkers

    return load_condition(name, checkers())
