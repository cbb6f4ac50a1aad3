"""Run `labctl pins`: show which thread of a guest runs on which CPU, and why."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from labctl.base.tuning import Strategy
from labctl.cli.parts.common import print_json
from labctl.cli.tuning import machine_options, topology_of

if TYPE_CHECKING:
    from labctl.domain.pinning.pin_plan import PinPlan
    from labctl.host.topology import Topology


_MOST_GUESTS = 1024
"""Guests on a host, and vCPUs of one: more than any host has."""


@click.command("pins")
@click.option(
    "--strategy",
    type=click.Choice([strategy.value for strategy in Strategy]),
    default=Strategy.COMPACT.value,
    show_default=True,
    help="Strategy for choosing the vCPUs' CPUs.",
)
@click.option("--vcpus", type=click.IntRange(1), help="vCPUs. Default: from the topology.")
@click.option(
    "--guests",
    metavar="N|N,N,...",
    help="Plan for several guests: how many, or the vCPUs of each ('4,4,2').",
)
@click.option(
    "--iothreads", type=click.IntRange(0), default=1, show_default=True, help="iothreads."
)
@machine_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    strategy: str,
    vcpus: int | None,
    guests: str | None,
    iothreads: int,
    sysfs: Path | None,
    cpus: str | None,
    as_json: bool,
) -> None:
    """Print the pin plan for one or several guests on this host as a small picture, with the
    reasons."""
    from labctl.domain.pinning.pin_picture import picture
    from labctl.domain.pinning.pin_plan import default_sizes, pin_plans, shares

    topology = topology_of(sysfs, cpus)
    sizes = _sizes(guests, vcpus) or default_sizes(topology, _count(guests))
    plans = pin_plans(topology, sizes, iothreads, Strategy(strategy))
    drawn = picture(plans, topology)
    refused = [_refused(planned) for planned in plans]
    if as_json and guests is None:
        print_json({"picture": drawn, **plans[0].to_json(), "refused_realtime": refused[0]})
    elif as_json:
        print_json(
            {
                "picture": drawn,
                "guests": [
                    {**planned.to_json(), "refused_realtime": why}
                    for planned, why in zip(plans, refused, strict=True)
                ],
                "shares": list(shares(plans, topology)),
            }
        )
    else:
        click.echo(f"{drawn}\n")
        _explain(plans, topology)
        _paragraph("Refused with a real-time policy (SCHED_FIFO) for the vCPUs", _each(refused))


def _refused(plan: PinPlan) -> list[str]:
    """Return why the plan's vCPUs can't have a real-time policy, a sentence each."""
    from labctl.domain.pinning.pin_check import plan_refusals
    from labctl.host.topology import read_rt_runtime_us

    return [f"{one.text}. {one.hint}" for one in plan_refusals(plan, read_rt_runtime_us())]


def _each(refused: Sequence[Sequence[str]]) -> list[str]:
    return [
        f"Guest {guest}: {sentence}" if len(refused) > 1 else sentence[:1].upper() + sentence[1:]
        for guest, sentences in enumerate(refused, 1)
        for sentence in sentences
    ]


def _sizes(guests: str | None, vcpus: int | None) -> list[int] | None:
    """Return the vCPUs of each guest where the options say them."""
    from labctl.base.errors import UsageError

    if guests is None or "," not in guests:
        return None if vcpus is None else [vcpus] * _count(guests)
    if vcpus is not None:
        raise UsageError(
            "--guests and --vcpus both set the vCPUs",
            hint="Leave one of them out.",
        )
    return [_whole(word, guests) for word in guests.split(",")]


def _count(guests: str | None) -> int:
    return 1 if guests is None else _whole(guests, guests)


def _whole(word: str, given: str) -> int:
    from labctl.base.errors import UsageError

    is_short = len(word) <= len(str(_MOST_GUESTS)) + 2
    if is_short and word.strip().isdecimal() and 1 <= (number := int(word)) <= _MOST_GUESTS:
        return number
    raise UsageError(
        f"--guests '{given}': expected a whole number from 1 to {_MOST_GUESTS}, got '{word}'",
        hint="'--guests 4' plans for four equal guests, '--guests 4,4,2' for the vCPUs of each.",
    )


def _explain(plans: Sequence[PinPlan], topology: Topology) -> None:
    """Print what the guests see and why they run where they do; what is said of all once."""
    from labctl.base.cpus import format_cpus
    from labctl.domain.pinning.pin_plan import shares

    for guest, planned in enumerate(plans, 1):
        sockets, cores, threads = planned.guest_topology
        who = f"Guest {guest}: strategy" if len(plans) > 1 else "Strategy"
        click.echo(
            f"{who} '{planned.strategy}': vCPUs on NUMA node {format_cpus(planned.vcpu_nodes)}. "
            f"To the guest: sockets {sockets}, cores {cores}, threads {threads}."
        )
    common = [
        sentence
        for sentence in plans[0].reasons
        if all(sentence in planned.reasons for planned in plans)
    ]
    _paragraph("Why", common)
    if len(plans) > 1:
        for guest, planned in enumerate(plans, 1):
            _paragraph(
                f"Reasons for guest {guest}",
                [sentence for sentence in planned.reasons if sentence not in common],
            )
    _paragraph("Sharing", shares(plans, topology))


def _paragraph(title: str, sentences: Sequence[str]) -> None:
    from textwrap import fill

    if sentences:
        click.echo(f"\n{title}:")
        for sentence in sentences:
            click.echo(fill(sentence, initial_indent="  ", subsequent_indent="    ", width=79))
