"""Run `labctl fleet`: measure many hosts, and roll out to them."""

from __future__ import annotations

import click

from labctl.cli import fleet_sweep
from labctl.cli.common import Group


@click.group("fleet", cls=Group)
def command() -> None:
    """Measure many hosts with one study, over ssh."""


command.add_command(fleet_sweep.sweep)
