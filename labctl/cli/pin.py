"""`labctl pin`: which thread of a guest runs on which CPU, and why."""

from __future__ import annotations

import click

from labctl.cli.common import print_json


@click.group("pin")
def command() -> None:
    """Plan which thread runs on which CPU."""


@command.command("plan")
@click.option("--vcpus", type=click.IntRange(1), help="vCPUs. Default: from the topology.")
@click.option(
    "--iothreads", type=click.IntRange(0), default=1, show_default=True, help="iothreads."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plan(vcpus: int | None, iothreads: int, as_json: bool) -> None:
    """Print the pin plan for a guest on this host as a small picture, and the reasons for it."""
    from labctl.domain.pinplan import default_vcpus, picture, pin_plan
    from labctl.host.topology import read_topology

    topology = read_topology()
    planned = pin_plan(topology, vcpus or default_vcpus(topology), iothreads)
    if as_json:
        print_json({"picture": picture(planned, topology), **planned.to_json()})
        return
    click.echo(picture(planned, topology))
    for title, sentences in (("Why", planned.reasons), ("What shares", planned.shares)):
        if sentences:
            click.echo(f"\n{title}:")
            for sentence in sentences:
                click.echo(f"  {sentence}")
