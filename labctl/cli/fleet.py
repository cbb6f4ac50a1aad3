"""Run `labctl fleet`: what many hosts measured."""

from __future__ import annotations

import click

from labctl.cli import fleet_report
from labctl.cli.common import Group


@click.group("fleet", cls=Group)
def command() -> None:
    """Report what many hosts measured together."""


command.add_command(fleet_report.report)
command.add_command(fleet_report.compact)
