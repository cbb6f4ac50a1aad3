"""Run `labctl tuning diff`: compare two tunings, or show what one changes in the user's own
domain.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from labctl.base.errors import UsageError
from labctl.cli.common import console, print_json
from labctl.cli.render_options import (
    domain_request,
    host_options,
    likely_accelerator,
    machine_options,
    topology_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from labctl.base.tuning import Tuning
    from labctl.base.xmldiff import XmlChange
    from labctl.host.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """Hold one side. `outside`: changes of the tuning outside the XML; `misfits`: why the domain
    can't be measured with it. One sentence or key each."""

    name: str
    xml: str
    outside: tuple[str, ...] = ()
    misfits: tuple[str, ...] = ()


@click.command("diff")
@click.argument("names", metavar="A [B]", nargs=-1, required=True)
@click.option("--domain", metavar="NAME|FILE", help="Put the tunings into this domain of yours.")
@click.option("--connect", metavar="URI", help="The libvirt connection that knows NAME.")
@host_options
@machine_options
@click.option("--unified", is_flag=True, help="Print a unified diff of the two XMLs instead.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the changes and the diff.")
@click.pass_context
def diff(
    context: click.Context,
    names: Sequence[str],
    domain: str | None,
    connect: str | None,
    accel: str | None,
    vcpus: int | None,
    memory_mib: int,
    sysfs: Path | None,
    cpus: str | None,
    unified: bool,
    as_json: bool,
) -> None:
    """Show how the XML of tuning B differs from that of A, as they would be on this host.

    With --domain, what tuning A changes in a domain of your own, or how two of them differ in it:
    your XML with the tuning and nothing else. Nothing is started or changed. With --sysfs, as they
    would be on another machine.
    """
    from labctl.base import xmldiff
    from labctl.study.tunings import load_tuning

    _check_usage(context, names, domain)
    tunings = [load_tuning(name) for name in names]
    accelerator = accel or next(
        (t.requires.accelerator for t in tunings if t.requires.accelerator), likely_accelerator()
    )
    topology = topology_of(sysfs, cpus)
    if domain is None:
        before, after = _rendered(tunings, topology, accelerator, vcpus, memory_mib)
    else:
        before, after = _in_domain(
            domain, connect, tunings, topology, accelerator, is_here=sysfs is None
        )
    found = xmldiff.changes(before.xml, after.xml)
    text = xmldiff.unified(before.xml, after.xml, (before.name, after.name))
    if as_json:
        print_json(
            {
                "before": _as_json(before),
                "after": _as_json(after),
                "accelerator": accelerator,
                "changes": [asdict(change) for change in found],
                "diff": text,
            }
        )
    elif unified:
        if text:
            click.echo(text)
    else:
        _print(before, after, found, accelerator)


def _check_usage(context: click.Context, names: Sequence[str], domain: str | None) -> None:
    from click.core import ParameterSource

    if len(names) != 2 and not (domain and len(names) == 1):
        raise UsageError(
            f"{len(names)} tuning{'s' if len(names) > 1 else ''} named, and it takes two",
            hint="One is enough with --domain. 'labctl tuning list' shows their names.",
        )
    for option in ("vcpus", "memory_mib"):
        source = context.get_parameter_source(option)
        if domain and source is ParameterSource.COMMANDLINE:
            raise UsageError(
                f"--{option.replace('_', '-')} is for labctl's own guests: '{domain}' has vCPUs "
                "and memory of its own",
                hint="Leave it out, or change a copy of its XML.",
            )


def _rendered(
    tunings: Sequence[Tuning],
    topology: Topology,
    accelerator: str,
    vcpus: int | None,
    memory_mib: int,
) -> list[_Side]:
    from labctl.domain.pinning.pin_plan import default_vcpus
    from labctl.domain.render import render
    from labctl.run.planning.own_domain import outside_xml
    from labctl.study.tunings import BASELINE, load_tuning

    baseline = load_tuning(BASELINE)
    count = vcpus or default_vcpus(topology)
    return [
        _Side(
            name=tuning.name,
            xml=render(domain_request(tuning, topology, accelerator, count, memory_mib)),
            outside=tuple(outside_xml(tuning, baseline)),
        )
        for tuning in tunings
    ]


def _in_domain(
    asked: str,
    connect: str | None,
    tunings: Sequence[Tuning],
    topology: Topology,
    accelerator: str,
    *,
    is_here: bool,
) -> list[_Side]:
    """Return the domain with each tuning, before it as it is where there is only one. `is_here`:
    whether the topology is this host's, which is asked for more then."""
    from labctl.domain.foreign.foreign_domain import why_not_copied
    from labctl.domain.foreign.graft import tuned
    from labctl.domain.pinning.pin_plan import pin_plan
    from labctl.run.planning.fitting import rt_runtime_us
    from labctl.run.planning.own_domain import check_room, domain_asked_for, misfits, outside_xml
    from labctl.study.tunings import BASELINE, load_tuning

    own = domain_asked_for(asked, connect)
    baseline = load_tuning(BASELINE)
    check_room(own, topology, "give '--sysfs COPY', a copy of its host's /sys")
    never = why_not_copied(own)
    sides = []
    for tuning in tunings:
        strategy = tuning.pin.strategy
        plan = pin_plan(topology, own.vcpus, max(1, tuning.iothreads), strategy)
        xml = tuned(own, tuning, plan, baseline, accelerator, rt_runtime_us(tuning))
        against = (
            misfits(own, {tuning.name: tuning}, baseline, {strategy: plan}, accelerator)
            if is_here
            else {}
        )
        sides.append(
            _Side(
                name=f"{own.name} with {tuning.name}",
                xml=xml,
                outside=tuple(outside_xml(tuning, baseline)),
                misfits=(*never, *(m.text for found in against.values() for m in found)),
            )
        )
    return sides if len(sides) == 2 else [_Side(name=own.name, xml=own.xml), *sides]


def _as_json(side: _Side) -> dict[str, object]:
    return {
        "name": side.name,
        "outside_xml": list(side.outside),
        "misfits": list(side.misfits),
    }


def _print(before: _Side, after: _Side, found: Sequence[XmlChange], accelerator: str) -> None:
    from rich.text import Text

    from labctl.report.parts import bare_table

    out = console()
    if found:
        table = bare_table("", "what", before.name, after.name)
        for change in found:
            values = (Text(_shown(value)) for value in (change.before, change.after))
            table.add_row(Text(change.path, overflow="fold"), *values)
        out.print(table)
    else:
        out.print(
            f"The XML of {before.name} and {after.name} is the same under {accelerator}.",
            markup=False,
        )
    for side in (before, after):
        for line in side.outside:
            out.print(f"{side.name}, outside the XML: {line}", markup=False)
        for line in side.misfits:
            out.print(f"{side.name} can't be measured here: {line}", markup=False)


def _shown(value: str | None) -> str:
    return "-" if value is None else value or "there"
