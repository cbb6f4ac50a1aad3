"""Run `labctl host`: show facts, the accelerator, its settings, and the undo journal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labctl.base.errors import HostError
from labctl.base.wording import shortened
from labctl.cli import host_tune
from labctl.cli.common import Group, console, print_json, state_paths
from labctl.cli.host_tune import told

if TYPE_CHECKING:
    from labctl.base.paths import StatePaths

_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group("host", cls=Group)
def command() -> None:
    """Show facts and settings of this host, and restore what labctl changed on it."""


for member in (host_tune.tune, host_tune.keep, host_tune.status, host_tune.restore):
    command.add_command(member)


@command.command()
@_json
@click.pass_context
def facts(context: click.Context, as_json: bool) -> None:
    """Show what bears on measurements here: kernel, CPUs, settings, versions."""
    from labctl.host.facts import host_facts

    found = host_facts(state_paths(context))
    if as_json:
        print_json(found)
        return
    width = max(map(len, found))
    for name, value in found.items():
        click.echo(f"{name:{width}}  {_in_words(value)}")


@command.command()
@_json
@click.pass_context
def journal(context: click.Context, as_json: bool) -> None:
    """List what labctl has changed on this host and not yet put back."""
    from labctl.host.settings.journal import Journal
    from labctl.report.parts import bare_table

    pending = Journal(state_paths(context).journal).pending()
    if as_json:
        print_json(
            [
                {
                    **e.to_json(),
                    "old": told(e.old),
                    "new": told(e.new),
                    "owner_lives": e.owner_lives(),
                }
                for e in pending
            ]
        )
        return
    if not pending:
        click.echo("nothing is changed")
        return
    table = bare_table("", "what", "now", "before", "since", "by")
    for entry in pending:
        owner = "running" if entry.owner_lives() else "ended"
        table.add_row(
            entry.name,
            shortened(entry.new or "?"),
            shortened(entry.old),
            entry.time,
            f"{entry.pid} ({owner})",
        )
    console(listing=True).print(table)


@command.command()
@click.option(
    "--accel",
    "requested",
    type=click.Choice(["auto", "kvm", "tcg"]),
    default="auto",
    show_default=True,
    help="What to ask for.",
)
@click.option(
    "--kernel",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The kernel to boot (default: that of a built guest image).",
)
@_json
@click.pass_context
def accel(context: click.Context, requested: Any, kernel: Path | None, as_json: bool) -> None:
    """Tell whether guests run under KVM here, by booting a kernel with it."""
    from labctl.host.accelerator import accelerator

    places = state_paths(context)
    chosen = accelerator(requested, kernel or _image_kernel(places), places)
    if as_json:
        print_json(
            {
                "accelerator": chosen.name,
                "reason": chosen.reason,
                "disabled_features": list(chosen.disabled_features),
            }
        )
    else:
        click.echo(chosen.reason)


def _image_kernel(places: StatePaths) -> Path:
    from labctl.guest.images import list_images

    images = list_images(places)
    if not images:
        raise HostError(
            "the probe boots a kernel, and no guest image is built yet",
            hint="Build one with 'labctl image build', or give '--kernel FILE'.",
        )
    return images[0].kernel


def _in_words(value: Any) -> str:
    if isinstance(value, dict):
        if set(value) == {"unavailable"}:
            return f"unavailable: {value['unavailable']}"
        return "; ".join(f"{name}: {_in_words(item)}" for name, item in value.items())
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) if value != "" else "none"
