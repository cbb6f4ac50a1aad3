"""Run `labctl workload`: list, show, validate and try programs to measure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labctl.base.errors import ExitCode, UsageError
from labctl.cli.common import TIME_OPTION, Group, console, listing, print_json, state_paths

if TYPE_CHECKING:
    from labctl.host.accelerator import Requested
    from labctl.run.commands.try_reading import Read
    from labctl.workloads.setting import Parameters
    from labctl.workloads.workload import Workload

SCHEMA = 1
_TRIED_S = 2.0
_SHOWN_LINES = 20
_SHOWN_CHARACTERS = 2000
"""Limits for what is shown of one output; --json has more."""
_MATCH = 200
_JSON_CHARACTERS = 100_000


@click.group("workload", cls=Group)
def command() -> None:
    """List, show, validate or try workloads: the programs that studies measure."""


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_command(as_json: bool) -> None:
    """List all workloads: labctl's own, and those of the lab folder."""
    from labctl.cli.workload_facts import origin_of
    from labctl.workloads.registry import checkers

    known = checkers()
    rows, problems = [], {}
    for name in known:
        try:
            program = known[name]
        except UsageError as error:
            problems[name] = error
            continue
        rows.append(
            {
                "name": name,
                "description": program.file.description,
                "primary": program.primary,
                "from": origin_of(known.file_of(name)),
            }
        )
    if as_json:
        wrong = {name: error.message for name, error in problems.items()}
        print_json({"schema": SCHEMA, "workloads": rows, "problems": wrong})
    else:
        table = listing("workload", "primary metric", "from", "what it does")
        for row in rows:
            table.add_row(row["name"], row["primary"], row["from"], row["description"])
        console(listing=True).print(table)
    if problems:
        raise UsageError(
            "\n".join(error.message for error in problems.values()),
            hint=f"Left out of the list: {', '.join(problems)}.",
        )


@command.command("show")
@click.argument("name", metavar="NAME|FILE")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show_command(name: str, as_json: bool) -> None:
    """Show a workload's parameters, commands, packages and metrics.

    The commands are those of two CPUs and ten seconds (or what is next to that).
    """
    from rich.text import Text

    from labctl.cli.workload_facts import facts_of, found_workload

    facts = facts_of(found_workload(name))
    if as_json:
        print_json({"schema": SCHEMA, **facts})
        return
    out = console(listing=True)
    click.echo(f"{facts['name']}: {facts['description']}")
    click.echo(f"primary metric: {facts['primary']}; duration: {facts['durations']}")
    for title in ("packages", "binaries", "files", "wheels"):
        if facts[title]:
            click.echo(f"{title}: {', '.join(facts[title])}")
    if facts["parameters"]:
        table = listing("parameter", "default", "values", "")
        for one in facts["parameters"]:
            table.add_row(one["name"], str(one["default"]), one["values"], Text(one["description"]))
        out.print(table)
    if facts["metrics"]:
        table = listing("metric", "unit", "better")
        for one in facts["metrics"]:
            table.add_row(one["name"], one["unit"], one["better"])
        out.print(table)
    for side, said in facts["sides"].items():
        click.echo(f"\n{side}:")
        if "left_out" in said:
            click.echo(f"  left out: {said['left_out']}")
        for what, argv in said.get("commands", {}).items():
            click.echo(f"  {what} (as {said['user']}): {argv}")


@command.command("validate")
@click.argument("name", metavar="NAME|FILE")
def validate_command(name: str) -> None:
    """Check a workload's file: keys, values, names and expressions; then its commands.

    Exit code 2 names file, line and key of what is wrong.
    """
    from labctl.base.quantities import near_unit
    from labctl.cli.workload_facts import facts_of, found_workload

    found = found_workload(name)
    facts_of(found)
    click.echo(f"{name}: nothing wrong; its primary metric is {found.primary}")
    for metric, declared in found.file.metrics.items():
        if near := near_unit(declared.unit or "1"):
            click.echo(
                f"{name}: note: metric '{metric}' has a unit of its own, '{declared.unit}', which "
                f"is never converted; did you mean '{near}'?"
            )


@command.command("try")
@click.argument("name", metavar="NAME|FILE")
@click.option("--native", "side", flag_value="native", help="Run it on the host (the default).")
@click.option("--guest", "side", flag_value="guest", help="Boot a guest and run it there.")
@click.option(
    "--duration",
    type=TIME_OPTION,
    help="How long it runs (default: 2s, or the least it takes).",
)
@click.option("--set", "given", multiple=True, metavar="KEY=VALUE", help="A parameter.")
@click.option(
    "--from",
    "recorded",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Run nothing; read this output, or this file if a metric reads one of its name.",
)
@click.option("--accel", type=click.Choice(["auto", "kvm", "tcg"]), default="auto")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--quiet", is_flag=True, help="No progress; only the result.")
@click.pass_context
def try_command(
    context: click.Context,
    name: str,
    side: str | None,
    duration: float | None,
    given: tuple[str, ...],
    recorded: tuple[Path, ...],
    accel: Requested,
    as_json: bool,
    quiet: bool,
) -> int:
    """Run a workload once for a few seconds; show its output and what each metric finds there.

    Exit code: 0 when every metric was read; 1 when the run or a metric failed.
    """
    from labctl.cli.workload_facts import found_workload, parameters_of

    program = found_workload(name)
    parameters = parameters_of(program, given)
    if recorded:
        if side is not None:
            raise UsageError(f"--from reads what a run left, and --{side} runs it: give one")
        return _show_read(*_read_recorded(program, recorded, parameters), as_json=as_json)
    seconds = duration if duration is not None else max(_TRIED_S, program.file.trial.least_s)
    return _tried(context, program, parameters, side or "native", seconds, accel, as_json, quiet)


def _tried(
    context: click.Context,
    program: Workload,
    parameters: Any,
    side: str,
    duration: float,
    accel: Requested,
    as_json: bool,
    quiet: bool,
) -> int:
    from labctl.base.events import silent
    from labctl.base.tuning import Kind
    from labctl.cli.progress import ProgressView
    from labctl.cli.workload_facts import asked_for
    from labctl.run.commands.try_workload import try_workload

    one = asked_for(program, parameters, duration)
    places, kind = state_paths(context), Kind(side)
    if quiet:
        found = try_workload(one, places, kind, accel, silent)
    else:
        with ProgressView(console(stderr=True)) as view:
            found = try_workload(one, places, kind, accel, view.listen)
    outputs = {
        "stdout": found.stdout,
        "stderr": found.stderr,
        **found.files,
        **{f"server {n}": text for n, text in enumerate(found.servers, start=1)},
    }
    facts = {
        "workload": program.name,
        "side": found.side,
        "commands": dict(found.commands),
        "status": found.status,
        "seconds": round(found.seconds, 3),
        "failure": found.failure,
        "output": {name: _text(data, _JSON_CHARACTERS) for name, data in outputs.items()},
    }
    if not as_json:
        for what, argv in found.commands.items():
            click.echo(f"{what}: {argv}")
        if found.status is None:
            click.echo(f"{found.side}: it did not come to its end")
            outputs = {}
        else:
            click.echo(f"{found.side}: exit status {found.status} after {found.seconds:.2f} s")
        for name, data in outputs.items():
            _show_output(name, data)
        if found.failure:
            click.echo(f"\nfailed: {found.failure}")
    code = _show_read(found.read, facts, as_json=as_json)
    return ExitCode.FOUND if found.failure else code


def _read_recorded(
    program: Workload, recorded: tuple[Path, ...], parameters: Parameters
) -> tuple[Read, dict[str, Any]]:
    from labctl.cli.workload_facts import output_of
    from labctl.run.commands.try_reading import read_recorded

    return read_recorded(program, output_of(program, recorded), parameters), {
        "workload": program.name
    }


def _show_read(read: Read, facts: dict[str, Any], *, as_json: bool) -> int:
    """Print what was read; return the exit code."""
    code = ExitCode.FOUND if read.problem else ExitCode.DONE
    if as_json:
        from labctl.cli.workload_facts import read_json

        print_json({"schema": SCHEMA, **facts, **read_json(read)})
        return code
    runs = f" (of the first of {read.runs} runs)" if read.runs > 1 else ""
    for name, metric in read.metrics.items():
        from labctl.cli.workload_facts import shown_value

        # A reader of a program's whole report matches nothing by itself.
        matched = f" matched {', '.join(map(_one_line, metric.shown))}" if metric.shown else ""
        click.echo(f"\n{name}{runs}:{matched}")
        for key, value in metric.values.items():
            click.echo(f"  {key} = {shown_value(value)}")
        if metric.error:
            click.echo(f"  wrong: {metric.error}")
            if metric.hint:
                click.echo(f"         {metric.hint}")
    if read.values:
        values = ", ".join(f"{name} = {value}" for name, value in read.values.items())
        click.echo(f"\na trial would have: {values}")
    if any(metric.error for metric in read.metrics.values()):
        click.echo("\na trial would be invalid")
    elif read.error:
        click.echo(f"\na trial would be invalid: {read.error}")
    return code


def _one_line(text: str) -> str:
    from labctl.base.wording import printable

    line = printable(" ⏎ ".join(text.splitlines()))
    return line if len(line) <= _MATCH else f"{line[:_MATCH]}…"


def _show_output(name: str, data: bytes) -> None:
    if not data:
        click.echo(f"\n{name}: empty")
        return
    text = _text(data, _SHOWN_CHARACTERS)
    lines = text.splitlines()
    click.echo(f"\n{name}: {len(data)} bytes")
    for line in lines[:_SHOWN_LINES]:
        click.echo(f"  | {line}")
    if len(lines) > _SHOWN_LINES:
        click.echo(f"  … {len(lines) - _SHOWN_LINES} lines more")


def _text(data: bytes, most: int) -> str:
    """Return text that a terminal may show, and how much was left out."""
    from labctl.base.wording import printable
    from labctl.workloads.metric_file import decoded

    text = decoded(data[: 4 * most]).replace("\x1erun\n", "— run —\n")
    shown = "\n".join(printable(line) for line in text[:most].split("\n"))
    return shown if len(data) <= most else f"{shown}… ({len(data)} bytes)"
