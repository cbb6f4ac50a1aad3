"""`labctl domain`: the tunings, and the XML that they become on this host."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labctl.base.errors import ExitCode, UsageError
from labctl.cli.common import console, print_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from labctl.base.tuning import Tuning
    from labctl.domain.render import DomainRequest

_PLACE = Path("/var/lib/labctl")
_UUID = "00000000-0000-4000-8000-000000000000"


@click.group("domain")
def command() -> None:
    """List, show, render or validate tunings (the files in domains/)."""


def _host_options(function: Callable[..., Any]) -> Callable[..., Any]:
    options = (
        click.option(
            "--accel",
            type=click.Choice(["kvm", "tcg"]),
            help="Accelerator. Default: kvm where /dev/kvm exists, else tcg. That is a guess, "
            "which a sweep checks by booting a kernel.",
        ),
        click.option("--vcpus", type=click.IntRange(1), help="vCPUs. Default: from the topology."),
        click.option(
            "--memory-mib", type=click.IntRange(64), default=1024, show_default=True, help="Memory."
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_tunings(as_json: bool) -> None:
    """List all tunings."""
    from labctl.study.tunings import load_tunings, tuning_names

    tunings = load_tunings(tuning_names())
    if as_json:
        print_json([_as_json(tuning) for tuning in tunings.values()])
        return
    from rich.table import Table

    table = Table("tuning", "kind", "restore", "twin", "what it is", box=None, pad_edge=False)
    for tuning in tunings.values():
        restore = "-" if tuning.kind == "native" else "yes" if tuning.restore else "no"
        sentence = tuning.description.partition(". ")[0].rstrip(".")
        table.add_row(tuning.name, str(tuning.kind), restore, tuning.twin or "-", sentence)
    console().print(table)


@command.command("show")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(name: str, as_json: bool) -> None:
    """Show a tuning with all that it extends."""
    from labctl.study.tunings import load_tuning, tuning_file

    tuning = load_tuning(name)
    described = {**_as_json(tuning), "file": str(tuning_file(name))}
    if as_json:
        print_json(described)
        return
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for key, value in described.items():
        if value in (None, [], {}):
            continue
        for at, line in enumerate(value if isinstance(value, list) else [value]):
            table.add_row(Text(key if at == 0 else "", style="bold"), Text(_words(line)))
    console().print(table)


@command.command("render")
@click.argument("names", nargs=-1, required=True)
@_host_options
def render_tunings(
    names: Sequence[str], accel: str | None, vcpus: int | None, memory_mib: int
) -> None:
    """Print the domain XML of tunings as they would be on this host, with placeholder paths."""
    from labctl.domain.render import render

    for name in names:
        xml = render(_request(name, accel, vcpus, memory_mib))
        # Several documents in one stream: a comment tells which is which.
        click.echo(
            f"<!-- {name.replace('--', '- -')} -->\n{xml}" if len(names) > 1 else xml, nl=False
        )


@command.command("validate")
@click.argument("names", nargs=-1)
@click.option("--all", "every", is_flag=True, help="All tunings.")
@_host_options
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
    """Check tunings: the file, its XML against libvirt's schema, its pins against this host."""
    from labctl.study.tunings import tuning_names

    if every == bool(names):
        raise UsageError(
            "name tunings, or give --all, not both",
            hint="'labctl domain list' shows their names.",
        )
    results = [_validated(name, accel, vcpus, memory_mib) for name in names or tuning_names()]
    if as_json:
        print_json(results)
    else:
        for result in results:
            click.echo(f"{result['tuning']}: {'valid' if result['valid'] else 'NOT VALID'}")
            for kind in ("problems", "warnings"):
                for line in result[kind]:
                    click.echo(f"  {line}")
    if not all(result["valid"] for result in results):
        context.exit(ExitCode.FOUND)


def _validated(name: str, accel: str | None, vcpus: int | None, memory_mib: int) -> dict[str, Any]:
    from labctl.domain.pincheck import check
    from labctl.domain.render import render
    from labctl.domain.schema import validate
    from labctl.host.topology import read_rt_runtime_us, read_topology
    from labctl.study.tunings import load_tuning

    problems: list[str] = []
    warnings: list[str] = []
    load_tuning(name)  # a tuning that isn't there, or no tuning, is wrong usage
    request = _request(name, accel, vcpus, memory_mib)
    if request.tuning.kind == "guest":
        try:
            validate(render(request))
        except UsageError as error:
            problems.append(error.message)
    for problem in check(request.tuning, request.plan, read_topology(), read_rt_runtime_us()):
        line = f"{problem.text}. {problem.hint}"
        (problems if problem.refused else warnings).append(line)
    return {"tuning": name, "valid": not problems, "problems": problems, "warnings": warnings}


def _request(name: str, accel: str | None, vcpus: int | None, memory_mib: int) -> DomainRequest:
    """A tuning's domain for this host, with paths that stand for those of a run."""
    from labctl.domain.pinplan import default_vcpus, pin_plan
    from labctl.domain.render import DomainRequest
    from labctl.host.topology import read_topology
    from labctl.study.tunings import load_tuning

    tuning = load_tuning(name)
    topology = read_topology()
    vcpus = vcpus or default_vcpus(topology)
    running = _PLACE / "running"
    return DomainRequest(
        name="labctl-guest",
        uuid=_UUID,
        tuning=tuning,
        plan=pin_plan(topology, vcpus, tuning.iothreads),
        accelerator=accel or ("kvm" if Path("/dev/kvm").exists() else "tcg"),
        vcpus=vcpus,
        memory_mib=memory_mib,
        kernel=_PLACE / "images/vmlinuz",
        initrd=_PLACE / "images/initrd.img",
        cmdline="root=/dev/vda console=ttyS0",
        root_disk=running / "root.qcow2",
        data_disk=running / "data.raw",
        seed_disk=None,
        console_log=running / "console.log",
        runner_socket=running / "runner.sock",
        agent_socket=running / "agent.sock",
    )


def _as_json(tuning: Tuning) -> dict[str, Any]:
    from labctl.base.cpus import format_cpus
    from labctl.base.tuning import Sched

    def pin(value: Any) -> Any:
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, frozenset):
            return format_cpus(value)
        return {str(number): format_cpus(cpus) for number, cpus in value.items()}

    def sched(value: Sched | None) -> dict[str, Any] | None:
        if value is None:
            return None
        return {"policy": str(value.policy), "priority": value.priority}

    pins = {"vcpus": pin(tuning.pin.vcpus), "emulator": pin(tuning.pin.emulator)}
    pins["iothreads"] = pin(tuning.pin.iothreads)
    disk = {"cache": tuning.disk.cache, "io": tuning.disk.io, "iothread": tuning.disk.iothread}
    return {
        "name": tuning.name,
        "description": tuning.description,
        "kind": str(tuning.kind),
        "restore": tuning.restore,
        "twin": tuning.twin,
        "pin": {key: value for key, value in pins.items() if value is not None},
        "vcpu_sched": sched(tuning.vcpu_sched),
        "emulator_sched": sched(tuning.emulator_sched),
        "iothread_sched": sched(tuning.iothread_sched),
        "iothreads": tuning.iothreads,
        "disk": {key: value for key, value in disk.items() if value},
        "handicap_percent": tuning.handicap_percent,
        "sources": list(tuning.sources),
        "needs": list(tuning.needs),
        "risks": list(tuning.risks),
    }


def _words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_words(inner)}" for key, inner in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)
