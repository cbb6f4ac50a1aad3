"""Run `labctl fleet`: measure many hosts, and pool what they say."""

from __future__ import annotations

from pathlib import Path

import click

from labctl.cli import fleet_advice, fleet_report, fleet_rollout, fleet_sweep
from labctl.cli.common import Group


@click.group("fleet", cls=Group)
def command() -> None:
    """Measure many hosts with one study, over ssh, and pool what they say."""


@command.command("wheelhouse")
@click.option(
    "--out",
    metavar="FILE",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where to write it.",
)
def wheelhouse(out: Path) -> None:
    """Make one file of this labctl and all that it needs, for hosts without a network.

    Versions are those that are installed here, for the Pythons of Debian 12 and 13 and for the one
    that runs this. A host with another Python than this one needs its package python3-libvirt.
    """
    from labctl.fleet.wheelhouse import make_wheelhouse
    from labctl.store.jsonfile import check_folder

    check_folder(out)
    count = make_wheelhouse(out)
    size = out.stat().st_size >> 20
    click.echo(f"{count} wheels in {out} ({size} MiB)")


command.add_command(fleet_sweep.sweep)
command.add_command(fleet_rollout.rollout)
command.add_command(fleet_report.report)
command.add_command(fleet_advice.advise)
command.add_command(fleet_report.compact)
