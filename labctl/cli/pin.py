"""Run `labctl pin`: show which thread of a guest runs on which CPU, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from labctl.base.tuning import Strategy
from labctl.cli.common import Group, print_json

if TYPE_CHECKING:
    from labctl.domain.pinning.pin_plan import PinPlan
    from labctl.host.topology import Topology


@click.group("pin", cls=Group)
def command() -> None:
    """Plan which thread runs on which CPU."""


@command.command("plan")
@click.option(
    "--strategy",
    type=click.Choice([strategy.value for strategy in Strategy]),
    default=Strategy.COMPACT.value,
    show_default=True,
    help="How to choose the vCPUs' CPUs.",
)
@click.option("--vcpus", type=click.IntRange(1), help="vCPUs. Default: from the topology.")
@click.option(
    "--iothreads", type=click.IntRange(0), default=1, show_default=True, help="iothreads."
)
@click.option(
    "--sysfs",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Plan for the machine of which this is a copy of /sys.",
)
@click.option(
    "--cpus", metavar="LIST", help="Plan as if labctl might use these CPUs only ('0-7,16-23')."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plan(
    strategy: str,
    vcpus: int | None,
    iothreads: int,
    sysfs: Path | None,
    cpus: str | None,
    as_json: bool,
) -> None:
    """Print the pin plan for a guest on this host as a small picture, and the reasons for it."""
    from labctl.domain.pinning.pin_picture import picture
    from labctl.domain.pinning.pin_plan import default_vcpus, pin_plan

    topology = _topology(sysfs, cpus)
    planned = pin_plan(topology, vcpus or default_vcpus(topology), iothreads, Strategy(strategy))
    drawn = picture(planned, topology)
    if as_json:
        print_json({"picture": drawn, **planned.to_json()})
    else:
        click.echo(f"{drawn}\n")
        _explain(planned)


def _topology(sysfs: Path | None, cpus: str | None) -> Topology:
    from labctl.base.cpus import parse_cpus
    from labctl.base.errors import UsageError
    from labctl.host.topology import SYS, read_topology

    if sysfs is None and cpus is None:
        return read_topology()
    try:
        allowed = None if cpus is None else parse_cpus(cpus)
    except ValueError as error:
        raise UsageError(f"--cpus: {error}", hint="Give numbers and ranges: '0-7,16-23'.") from None
    if sysfs is not None and not (sysfs / "devices/system/cpu").is_dir():
        raise UsageError(
            f"{sysfs} is not a copy of a machine's /sys: it has no folder devices/system/cpu",
            hint="docs/pin-plan.md says how to make one.",
        )
    return read_topology(sysfs or SYS, allowed=allowed)


def _explain(planned: PinPlan) -> None:
    from textwrap import fill

    from labctl.base.cpus import format_cpus

    sockets, cores, threads = planned.guest_topology
    click.echo(
        f"Strategy '{planned.strategy}': vCPUs on NUMA node {format_cpus(planned.vcpu_nodes)}. "
        f"To the guest: sockets {sockets}, cores {cores}, threads {threads}."
    )
    for title, sentences in (("Why", planned.reasons), ("What shares", planned.shares)):
        if sentences:
            click.echo(f"\n{title}:")
            for sentence in sentences:
                click.echo(fill(sentence, initial_indent="  ", subsequent_indent="    ", width=79))
