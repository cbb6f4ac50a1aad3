"""Run `labctl tuning`: show the tunings, and the XML that they become on this host."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import click

from labctl.base.errors import ExitCode, UsageError
from labctl.cli.parts.common import Group, Quantity, bold, console, listing_width, print_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from labctl.base.tuning import Tuning
    from labctl.base.xmldiff import XmlChange
    from labctl.domain.render import DomainRequest
    from labctl.host.topology import Topology


# Request a tuning's domain XML without a run, with the options that shape it.


_PLACE = Path("/var/lib/labctl")
MEMORY_MIB = 1024
"""Memory of a guest that is only rendered."""
_UUID = "00000000-0000-4000-8000-000000000000"


def host_options(function: Callable[..., Any]) -> Callable[..., Any]:
    options = (
        click.option(
            "--accel",
            type=click.Choice(["kvm", "tcg"]),
            help="Accelerator. Default: the tuning's, otherwise kvm if /dev/kvm exists, "
            "otherwise tcg. This is a guess; a sweep checks it by booting a kernel.",
        ),
        click.option("--vcpus", type=click.IntRange(1), help="vCPUs. Default: from the topology."),
        click.option(
            *("--memory", "--memory-mib", "memory_mib"),
            type=Quantity("size", is_whole=True, least=64),
            default=MEMORY_MIB,
            show_default=True,
            help="Memory (2G; a number: MiB).",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def machine_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that `topology_of` takes."""
    options = (
        click.option(
            "--sysfs",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            help="Plan for another machine, from a copy of its /sys.",
        ),
        click.option(
            "--cpus",
            metavar="LIST",
            help="Use only these CPUs in the plan ('0-7,16-23').",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def topology_of(sysfs: Path | None, cpus: str | None) -> Topology:
    """Return this host's topology, or that of a copy of /sys. Raises UsageError where it is none,
    or where the CPUs aren't numbers."""
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
            f"{sysfs} is not a copy of /sys: it has no folder devices/system/cpu",
            hint="docs/pin-plan.md explains how to make one.",
        )
    return read_topology(sysfs or SYS, allowed=allowed)


def domain_request(
    tuning: Tuning, topology: Topology, accel: str | None, vcpus: int, memory_mib: int
) -> DomainRequest:
    """Return a tuning's domain for this host, with paths that stand for those of a run. Raises
    UsageError for a guest that is too large for it."""
    from labctl.domain.pinning.pin_plan import pin_plan
    from labctl.domain.render import DomainRequest
    from labctl.run.planning.host import check_memory, host_memory_bytes, rt_runtime_us

    check_memory(memory_mib, host_memory_bytes())

    running = _PLACE / "running"
    return DomainRequest(
        name="labctl-guest",
        uuid=_UUID,
        tuning=tuning,
        plan=pin_plan(topology, vcpus, tuning.iothreads, tuning.pin.strategy),
        accelerator=accel or tuning.requires.accelerator or likely_accelerator(),
        vcpus=vcpus,
        memory_mib=memory_mib,
        kernel=_PLACE / "images/vmlinuz",
        initrd=_PLACE / "images/initrd.img",
        cmdline=" ".join(["root=/dev/vda console=ttyS0", *tuning.guest.command_line]),
        root_disk=running / "root.qcow2",
        data_disks=(running / f"data.{tuning.disk.format}",),
        seed_disk=None,
        console_log=running / "console.log",
        runner_socket=running / "runner.sock",
        agent_socket=running / "agent.sock",
        rt_runtime_us=rt_runtime_us(tuning),
    )


def likely_accelerator() -> str:
    """Return a guess: a sweep boots a kernel to know."""
    return "kvm" if Path("/dev/kvm").exists() else "tcg"


# Run `labctl tuning diff`: compare two tunings, or show what one changes in the user's own
# domain.


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
@click.option("--domain", metavar="NAME|FILE", help="Apply the tunings to this domain.")
@click.option("--connect", metavar="URI", help="The libvirt connection of NAME.")
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
    """Show how the XML of tuning B differs from that of A on this host.

    With --domain, show the changes of tuning A in your own domain, or the difference of two tunings
    there. With --sysfs, show them for another machine. Nothing is started or changed.
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
                "before": _diff_json(before),
                "after": _diff_json(after),
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
            f"{len(names)} tuning{'s' if len(names) > 1 else ''} named; two are needed",
            hint="One is enough with --domain. 'labctl tuning list' shows their names.",
        )
    for option in ("vcpus", "memory_mib"):
        source = context.get_parameter_source(option)
        if domain and source is ParameterSource.COMMANDLINE:
            raise UsageError(
                f"--{option.replace('_', '-')} is for labctl's own guests: '{domain}' has "
                "its own vCPUs and memory",
                hint="Leave it out, or edit a copy of its XML.",
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
    from labctl.run.planning.host import rt_runtime_us
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


def _diff_json(side: _Side) -> dict[str, object]:
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


# Run `labctl tuning validate`: check tunings against their schema, libvirt's and this host.


@click.command("validate")
@click.argument("names", nargs=-1)
@click.option("--all", "every", is_flag=True, help="All tunings.")
@host_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def validate_tunings(
    context: click.Context,
    names: Sequence[str],
    every: bool,
    accel: str | None,
    vcpus: int | None,
    memory_mib: int,
    as_json: bool,
) -> None:
    """Check tunings: the file, its XML against libvirt's schema and its pins against this host.

    Missing features of this host are shown, but do not make a tuning invalid.
    """
    from labctl.study.tunings import load_tunings, tuning_names

    if every == bool(names):
        raise UsageError(
            "expected names or --all, not both",
            hint="'labctl tuning list' shows their names.",
        )
    results = validated(load_tunings(names or tuning_names()), accel, vcpus, memory_mib)
    if as_json:
        print_json(results)
    else:
        for result in results:
            click.echo(f"{result['tuning']}: {'valid' if result['valid'] else 'NOT VALID'}")
            lacking = [f"not here: {line}" for line in result["lacking"]]
            for line in (*result["problems"], *lacking, *result["warnings"]):
                click.echo(f"  {line}")
    if not all(result["valid"] for result in results):
        context.exit(ExitCode.FOUND)


class Checked(TypedDict):
    """Hold the result of checking a tuning, as JSON has it."""

    tuning: str
    valid: bool
    problems: list[str]
    lacking: list[str]
    warnings: list[str]


def validated(
    tunings: Mapping[str, Tuning],
    accel: str | None = None,
    vcpus: int | None = None,
    memory_mib: int = MEMORY_MIB,
) -> list[Checked]:
    """Return for each tuning whether it is valid, its problems, what this host lacks for it, and
    warnings."""
    from labctl.domain.pinning.pin_check import check
    from labctl.domain.pinning.pin_plan import default_vcpus
    from labctl.domain.render import compared_xml
    from labctl.domain.schema import covers, validate
    from labctl.host.facts import libvirt_version
    from labctl.host.topology import read_rt_runtime_us, read_topology
    from labctl.run.planning.requirements import read_offers, unmet
    from labctl.workloads.registry import checkers

    topology, rt_runtime_us = read_topology(), read_rt_runtime_us()
    vcpus = vcpus or default_vcpus(topology)
    offers = read_offers(
        tunings.values(), topology, vcpus=vcpus, memory_mib=memory_mib, accelerator=accel
    )
    installed = libvirt_version()
    results: list[Checked] = []
    for name, tuning in tunings.items():
        problems: list[str] = []
        warnings: list[str] = []
        lacking = [problem.text for problem in unmet(tuning, offers)]
        try:
            request = domain_request(tuning, topology, accel, vcpus, memory_mib)
            if tuning.kind == "guest":
                xml = compared_xml(request)
                if covers(tuning, installed):
                    validate(xml)
        except UsageError as error:
            # A pin plan that this host has no CPUs or nodes for: what lacks says so already.
            if not lacking:
                problems.append(error.message)
        else:
            problems += [
                f"'exercised_by': no workload '{program}'"
                for program in tuning.exercised_by
                if program not in checkers()
            ]
            for problem in check(tuning, request.plan, topology, rt_runtime_us):
                line = f"{problem.text}. {problem.hint}"
                (problems if problem.refused else warnings).append(line)
        results.append(
            {
                "tuning": name,
                "valid": not problems,
                "problems": problems,
                "lacking": lacking,
                "warnings": warnings,
            }
        )
    return results


@click.group("tuning", cls=Group)
def command() -> None:
    """List, show, compare, render or validate tunings (the files in domains/)."""


command.add_command(diff)
command.add_command(validate_tunings)


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--markdown", is_flag=True, help="Print everything as markdown, as in docs/tunings.md."
)
def list_tunings(as_json: bool, markdown: bool) -> None:
    """List all tunings with their changes. 'a+b' combines two of them."""
    from labctl.study.tunings import BASELINE, load_tunings, tuning_names

    tunings = load_tunings(tuning_names())
    if as_json:
        print_json([_as_json(tuning) for tuning in tunings.values()])
    elif markdown:
        from labctl.study.tunings import reference

        click.echo(reference(tunings, tunings[BASELINE]), nl=False)
    else:
        for line in _listed(tunings, tunings[BASELINE]):
            click.echo(line, file=sys.stdout)  # named: it shows simpler letters where it must


def _listed(tunings: Mapping[str, Tuning], baseline: Tuning) -> Iterator[str]:
    """Yield the lines of the list, each as wide as a terminal at most, without rich: loading it
    takes a fifth of the time of this command."""
    from labctl.study.changes import GROUPS, changes, dotted, group_of, word

    name_width = max(len(name) for name in tunings)
    room = max(20, listing_width() - name_width - len("  restored  "))
    members: dict[str, list[str]] = {heading: [] for heading in GROUPS}
    for tuning in tunings.values():
        changed = changes(tuning, baseline)
        restored = "" if tuning.kind == "native" else "yes" if tuning.restore else "no"
        said = "; ".join(f"{dotted(key)}: {word(value)}" for key, value in changed.items())
        said = said or tuning.description.partition(". ")[0]
        said = said if len(said) <= room else f"{said[: room - 1]}…"
        line = f"{tuning.name:<{name_width}}  {restored:<8}  {said}"
        members[group_of(tuning, changed)].append(line)
    for heading, lines in members.items():
        if lines:
            yield f"\n{bold(f'{heading:<{name_width}}')}  restored"
            yield from lines


@command.command("show")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(name: str, as_json: bool) -> None:
    """Show a tuning, or a combination such as 'vcpupin+cache-none': changes, reasons, requirements
    and risks."""
    from labctl.base.paths import is_shadowing
    from labctl.study.tunings import load_tuning, tuning_files

    tuning = load_tuning(name)
    paths = tuning_files(name)
    files = [str(path) for path in paths]
    if as_json:
        print_json({**_as_json(tuning), "files": files})
        return
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for heading, lines in _described(tuning):
        for at, line in enumerate(lines):
            table.add_row(Text(heading if at == 0 else "", style="bold"), Text(line))
    for at, path in enumerate(paths):
        stands_in = is_shadowing(path)
        said = f"{path} (replaces labctl's own)" if stands_in else str(path)
        table.add_row(Text("files" if at == 0 else "", style="bold"), Text(said))
    console().print(table)


@command.command("render")
@click.argument("names", nargs=-1, required=True)
@host_options
def render_tunings(
    names: Sequence[str], accel: str | None, vcpus: int | None, memory_mib: int
) -> None:
    """Print the domain XML of tunings for this host, with placeholder paths."""
    from labctl.domain.pinning.pin_plan import default_vcpus
    from labctl.domain.render import render
    from labctl.host.topology import read_topology
    from labctl.study.tunings import load_tunings

    topology = read_topology()
    for name, tuning in load_tunings(names).items():
        request = domain_request(
            tuning, topology, accel, vcpus or default_vcpus(topology), memory_mib
        )
        xml = render(request)
        # Several documents in one stream: a comment tells which is which.
        click.echo(
            f"<!-- {name.replace('--', '- -')} -->\n{xml}" if len(names) > 1 else xml, nl=False
        )


def _as_json(tuning: Tuning) -> dict[str, object]:
    from labctl.study.changes import group
    from labctl.study.tunings import BASELINE, load_tuning, tuning_json

    return {**tuning_json(tuning), "group": group(tuning, load_tuning(BASELINE))}


def _described(tuning: Tuning) -> Iterator[tuple[str, list[str]]]:
    """Heading and lines of each part of what a tuning says about itself."""
    from labctl.study.changes import changes, dotted, group, word
    from labctl.study.tunings import BASELINE, load_tuning

    baseline = load_tuning(BASELINE)
    yield "name", [tuning.name]
    yield "group", [group(tuning, baseline)]
    yield "description", [tuning.description]
    changed = changes(tuning, baseline)
    yield "changes", [f"{dotted(key)}: {word(value)}" for key, value in changed.items()]
    yield "needs", list(tuning.needs)
    yield (
        "checked",
        [
            f"{key}: {word(value)}"
            for key, value in asdict(tuning.requires).items()
            if value not in (None, False, ())
        ],
    )
    yield "risks", list(tuning.risks)
    if tuning.kind == "guest":
        boots = "no: it has its own boot in each block"
        yield "restored", ["yes, from the boot that its block shares" if tuning.restore else boots]
        yield (
            "native twin",
            [tuning.twin or "none: no native tuning has the same placement and policy"],
        )
    yield "exercised by", list(tuning.exercised_by)
    yield "sources", list(tuning.sources)
