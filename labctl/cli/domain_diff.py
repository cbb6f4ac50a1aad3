"""`labctl domain diff`: two tunings side by side, or what one changes in a domain of one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from labctl.base.errors import UsageError
from labctl.cli.common import console, print_json
from labctl.cli.stand_in import host_options, likely_accelerator, stand_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from labctl.base.tuning import Tuning
    from labctl.base.xmldiff import Change


@click.command("diff")
@click.argument("names", nargs=-1, required=True)
@click.option("--domain", metavar="NAME|FILE", help="Put the tunings into this domain of yours.")
@click.option("--connect", metavar="URI", help="Where a domain of that NAME is.")
@host_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def diff(
    names: Sequence[str],
    domain: str | None,
    connect: str | None,
    accel: str | None,
    vcpus: int | None,
    memory_mib: int,
    as_json: bool,
) -> None:
    """Show how the XML of tuning A differs from that of B: labctl domain diff A B.

    With --domain, what a tuning changes in a domain of your own (one name), or how two differ in
    it. Nothing is started or changed.
    """
    from labctl.base.xmldiff import changes, unified
    from labctl.study.tunings import load_tuning

    if len(names) != 2 and not (domain and len(names) == 1):
        raise UsageError(
            f"{len(names)} tunings were named",
            hint="Name two, or one with --domain. 'labctl domain list' shows their names.",
        )
    tunings = [load_tuning(name) for name in names]
    accelerator = accel or next(
        (t.requires.accelerator for t in tunings if t.requires.accelerator), likely_accelerator()
    )
    if domain is None:
        sides = list(zip(names, _rendered(tunings, accelerator, vcpus, memory_mib), strict=True))
    else:
        sides = _in_domain(domain, connect, tunings, accelerator)
    (name, before), (other, after) = sides
    found = changes(before, after)
    text = unified(before, after, (name, other))
    if as_json:
        print_json(
            {
                "before": name,
                "after": other,
                "accelerator": accelerator,
                "changes": [{"path": c.path, "before": c.before, "after": c.after} for c in found],
                "diff": text,
            }
        )
    elif found:
        click.echo(text)
        click.echo()
        _print_table(found, name, other)
    else:
        click.echo(
            f"The XML of {name} and {other} is the same under {accelerator}. What a tuning does "
            "to the host or inside the guest: labctl domain show"
        )


def _rendered(
    tunings: Sequence[Tuning], accelerator: str, vcpus: int | None, memory_mib: int
) -> list[str]:
    from labctl.domain.pinplan import default_vcpus
    from labctl.domain.render import render
    from labctl.host.topology import read_topology

    topology = read_topology()
    count = vcpus or default_vcpus(topology)
    return [
        render(stand_in(tuning, topology, accelerator, count, memory_mib)) for tuning in tunings
    ]


def _in_domain(
    domain: str, connect: str | None, tunings: Sequence[Tuning], accelerator: str
) -> list[tuple[str, str]]:
    """The domain with each tuning, before them as it is where there is only one."""
    from labctl.domain.foreign_graft import tuned
    from labctl.domain.pinplan import pin_plan
    from labctl.host.topology import read_topology
    from labctl.run.own_domain import domain_asked_for
    from labctl.study.tunings import BASELINE, load_tuning

    own = domain_asked_for(domain, connect)
    topology = read_topology()
    baseline = load_tuning(BASELINE)
    sides = [
        (
            f"{own.name} with {tuning.name}",
            tuned(
                own,
                tuning,
                pin_plan(topology, own.vcpus, max(1, tuning.iothreads), tuning.pin.strategy),
                baseline,
                accelerator,
            ),
        )
        for tuning in tunings
    ]
    return sides if len(sides) == 2 else [(own.name, own.xml), *sides]


def _print_table(found: Sequence[Change], name: str, other: str) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table("what", name, other, box=None, pad_edge=False)
    for change in found:
        values = (Text(_shown(value)) for value in (change.before, change.after))
        table.add_row(Text(change.path, overflow="fold"), *values)
    console().print(table)


def _shown(value: str | None) -> str:
    return "-" if value is None else value or "there"
