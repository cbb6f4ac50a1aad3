"""Run `labctl workload`: list, show, validate and try programs to measure."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, final

import click

from labctl.base.command import Command
from labctl.base.errors import ExitCode, UsageError
from labctl.base.paths import shipped_data
from labctl.base.process import MARK
from labctl.base.wording import counted, printable
from labctl.base.yamltext import YamlError, parse_yaml
from labctl.cli.parts.common import (
    TIME_OPTION,
    Group,
    Sectioned,
    console,
    listing,
    print_json,
    state_paths,
)
from labctl.cli.parts.own_program import one_program, own_program_options

if TYPE_CHECKING:
    from labctl.host.accelerator import Requested
    from labctl.run.commands.try_workload import Read
    from labctl.study.load_study import OneProgram
    from labctl.workloads.loops import Output
    from labctl.workloads.readers.value import Value
    from labctl.workloads.setting import Parameter, Parameters, Setting
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
            hint=f"Not in the list: {', '.join(problems)}.",
        )


@command.command("show")
@click.argument("name", metavar="NAME|FILE")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show_command(name: str, as_json: bool) -> None:
    """Show a workload's parameters, commands, packages and metrics.
    The commands are for two CPUs and about ten seconds.
    """
    from rich.text import Text

    facts = facts_of(found_workload(name))
    if as_json:
        print_json({"schema": SCHEMA, **facts})
        return
    out = console(listing=True)
    click.echo(f"{facts['name']}: {facts['description']}")
    click.echo(f"primary metric: {facts['primary']}; duration: {facts['durations']}")
    needs = {
        "packages": facts["packages"],
        "binaries": facts["binaries"],
        "files": facts["files"],
        "wheels": facts["wheels"],
    }
    for title, names in needs.items():
        if names:
            click.echo(f"{title}: {', '.join(names)}")
    if facts["parameters"]:
        table = listing("parameter", "default", "values", "")
        for one in facts["parameters"]:
            table.add_row(one["name"], str(one["default"]), one["values"], Text(one["description"]))
        out.print(table)
    if facts["metrics"]:
        table = listing("metric", "unit", "better")
        for metric in facts["metrics"]:
            table.add_row(metric["name"], metric["unit"], metric["better"])
        out.print(table)
    for side, said in facts["sides"].items():
        click.echo(f"\n{side}:")
        if "left_out" in said:
            click.echo(f"  left out: {said['left_out']}")
            continue
        for what, argv in said["commands"].items():
            click.echo(f"  {what} (as {said['user']}): {argv}")


@command.command("validate")
@click.argument("name", metavar="NAME|FILE")
def validate_command(name: str) -> None:
    """Check a workload's file (keys, values, names and expressions) and its commands.

    On an error it names file, line and key, and exits with 2.
    """
    from labctl.base.quantities import near_unit

    found = found_workload(name)
    facts_of(found)
    click.echo(f"{name}: valid; its primary metric is {found.primary}")
    for metric, declared in found.file.metrics.items():
        if near := near_unit(declared.unit or "1"):
            click.echo(
                f"{name}: note: metric '{metric}' has a unit of its own, '{declared.unit}', which "
                f"is never converted; did you mean '{near}'?"
            )


@command.command("new")
@click.argument("name")
@own_program_options
@click.option(
    "--out",
    "folder",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write it there instead of the lab folder's benchmarks/workloads.",
)
@click.pass_context
def new_command(
    context: click.Context, /, name: str, folder: Path | None, **_own_program: object
) -> None:
    """Write the file of a workload NAME that measures your own --command.

    The files that the command brings are copied beside it.
    """
    from labctl.base.errors import HostError
    from labctl.store.jsonfile import write_bytes
    from labctl.workloads.declarations import load_declaration

    if not _NAME.fullmatch(name):
        raise UsageError(
            f"NAME: expected letters, digits and + . _ - (60 at most), got {name!r}",
            hint="labctl workload new my-program --command 'PROGRAM ARGUMENT …'",
        )
    one = one_program({**context.params, "duration": None})
    if one is None:
        raise UsageError("--command is missing", hint="Add --command 'PROGRAM ARGUMENT …'.")
    place = _place_of_new(folder)
    path = place / f"{name}.yaml"
    files = one.as_files(path.name)
    for inside in files:
        if os.path.lexists(place / inside):
            raise UsageError(
                f"{place / inside} exists already", hint="Remove it, or choose another NAME."
            )
    try:
        place.mkdir(parents=True, exist_ok=True)
        for inside, data in files.items():
            write_bytes(place / inside, data, below=place)
    except OSError as error:
        raise HostError(f"cannot write {path}: {error.strerror}") from error
    load_declaration(path)
    shown = name if folder is None else shlex.quote(str(path))
    click.echo(
        f"Wrote {path}"
        + (f" and {counted(len(files) - 1, 'file')} beside it." if len(files) > 1 else ".")
    )
    click.echo(f"Try it: labctl workload try {shown}")


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._-]{0,59}")


def _place_of_new(folder: Path | None) -> Path:
    """Return the folder of a new workload's file. Raises UsageError without a lab folder."""
    from labctl.base.paths import lab

    if folder is not None:
        return folder.resolve()
    own = lab().folder
    if own is None:
        raise UsageError(
            "this is not a lab folder",
            hint="'labctl init FOLDER' makes one; or write it elsewhere with --out FOLDER.",
        )
    return own / "benchmarks/workloads"


_SECTIONS = {
    "A program of your own": (
        "--command --parameter --metric --unit --better --once --timeout --setup --serve "
        "--port --ready --package --file"
    ),
    "This try": "--native --guest --duration --set --from --accel --json --quiet --help",
}
"""Heading of --help to its options."""


@command.command("try", cls=Sectioned, sections=_SECTIONS)
@click.argument("name", metavar="[NAME|FILE]", required=False)
@own_program_options
@click.option("--native", "side", flag_value="native", help="Run it on the host (default).")
@click.option("--guest", "side", flag_value="guest", help="Boot a guest and run it there.")
@click.option(
    "--duration",
    type=TIME_OPTION,
    help="Length of the run (default: 2s, or the workload's minimum).",
)
@click.option("--set", "values", multiple=True, metavar="KEY=VALUE", help="A parameter.")
@click.option(
    "--from",
    "recorded",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Do not run; read this output, or this file if a metric reads a file of that name.",
)
@click.option("--accel", type=click.Choice(["auto", "kvm", "tcg"]), default="auto")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--quiet", is_flag=True, help="No progress; only the result.")
@click.pass_context
def try_command(
    context: click.Context,
    /,
    name: str | None,
    side: str | None,
    duration: float | None,
    values: tuple[str, ...],
    recorded: tuple[Path, ...],
    accel: Requested,
    as_json: bool,
    quiet: bool,
    **_own_program: object,
) -> int:
    """Run a workload, or your own --command, once for a few seconds; show its output and the value
    of each metric.

    Exit code: 0 if every metric was read; 1 if the run or a metric failed.
    """
    from labctl.workloads.registry import workload_of

    one = one_program({**context.params, "duration": duration or _TRIED_S})
    if (name is None) is (one is None):
        raise UsageError(
            "expected either a workload's name or --command",
            hint="'labctl workload list' shows the names.",
        )
    if one is not None:
        program = workload_of(one.workload)
        parameters = program.check_parameters(words_of(values, "--set"))
    else:
        program = found_workload(name or "")
        parameters = parameters_of(program, values)
    if recorded:
        if side is not None:
            raise UsageError(f"--from and --{side} exclude each other")
        return _show_read(*_read_recorded(program, recorded, parameters), as_json=as_json)
    if one is None:
        seconds = duration if duration is not None else max(_TRIED_S, program.file.trial.least_s)
        one = asked_for(program, parameters, seconds)
    return _tried(context, program, one, side or "native", accel, as_json, quiet)


def _tried(
    context: click.Context,
    program: Workload,
    one: OneProgram,
    side: str,
    accel: Requested,
    as_json: bool,
    quiet: bool,
) -> int:
    from labctl.base.events import silent
    from labctl.base.tuning import Kind
    from labctl.cli.parts.progress import ProgressView
    from labctl.run.commands.try_workload import try_workload

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
        **({"notes": list(found.notes)} if found.notes else {}),
        "output": {name: _text(data, _JSON_CHARACTERS) for name, data in outputs.items()},
    }
    if not as_json:
        for what, argv in found.commands.items():
            click.echo(f"{what}: {argv}")
        if found.status is None:
            click.echo(f"{found.side}: it did not finish")
            outputs = {}
        else:
            click.echo(f"{found.side}: exit status {found.status} after {found.seconds:.2f} s")
        for name, data in outputs.items():
            _show_output(name, data)
        if found.failure:
            click.echo(f"\nfailed: {found.failure}")
    code = _show_read(found.read, facts, as_json=as_json)
    if not as_json:
        for note in found.notes:
            click.echo(printable(f"\nnote: {note}"))
    return ExitCode.FOUND if found.failure else code


def _read_recorded(
    program: Workload, recorded: tuple[Path, ...], parameters: Parameters
) -> tuple[Read, dict[str, object]]:
    from labctl.run.commands.try_workload import read_recorded

    return read_recorded(program, output_of(program, recorded), parameters), {
        "workload": program.name
    }


def _show_read(read: Read, facts: Mapping[str, object], *, as_json: bool) -> int:
    """Print what was read; return the exit code."""
    code = ExitCode.FOUND if read.problem else ExitCode.DONE
    if as_json:
        print_json({"schema": SCHEMA, **facts, **read_json(read)})
        return code
    runs = f" (of the first of {read.runs} runs)" if read.runs > 1 else ""
    for name, metric in read.metrics.items():
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
    line = printable(" ⏎ ".join(text.splitlines()))
    return line if len(line) <= _MATCH else f"{line[:_MATCH]}…"


def _show_output(name: str, data: bytes) -> None:
    """Print the start of an output; of a repeated program that of its first run."""
    runs = data.split(f"{MARK}run\n".encode())
    if len(runs) > 2 and not runs[0]:
        name, data = f"{name} (the first of {len(runs) - 1} runs)", runs[1]
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
    from labctl.workloads.readers.output import decoded

    text = decoded(data[: 4 * most]).replace("\x1erun\n", "— run —\n")
    shown = "\n".join(printable(line) for line in text[:most].split("\n"))
    return shown if len(data) <= most else f"{shown}… ({len(data)} bytes)"


# Gather what `labctl workload` shows of one, and make values of what it was given.


_SIDES: Mapping[str, tuple[str, ...]] = {"native": ("/data/data.img",), "guest": ("/dev/vdb",)}
"""Sides, and where each has its data disk in an example."""
_PEER = "192.0.2.1"
"""Address of a peer in an example (RFC 5737)."""
_DURATION_S = 10.0
_MARGIN = 0.05
"""Margin of a study that judges nothing."""
_MOST_BYTES = 64 << 20
"""Limit for a recorded output."""


class _ParameterFacts(TypedDict):
    name: str
    default: int | float | str
    values: str
    description: str


class _MetricFacts(TypedDict):
    name: str
    unit: str
    better: str


@final
class _LeftOut(TypedDict):
    left_out: str


class WorkloadFacts(TypedDict):
    """Describe a workload as `labctl workload show --json` has it."""

    name: str
    description: str
    operation: str | None
    primary: str
    durations: str
    packages: list[str]
    files: list[str]
    wheels: list[str]
    binaries: list[str]
    parameters: list[_ParameterFacts]
    metrics: list[_MetricFacts]
    sides: dict[str, _LeftOut | SideCommands]


def facts_of(program: Workload) -> WorkloadFacts:
    """Return all that is known of a workload, as JSON has it. Raises UsageError for commands that
    can't be made."""
    from labctl.workloads.metric_file import metric_names

    file = program.file
    parameters = program.check_parameters({})
    left_out = program.left_out(parameters)
    return {
        "name": program.name,
        "description": file.description,
        "operation": program.operation,
        "primary": program.primary,
        "durations": program.durations,
        "packages": list(file.packages),
        "files": list(file.files),
        "wheels": [one.requirement for one in file.wheels.values()],
        "binaries": list(program.binaries),
        "parameters": [
            {
                "name": one.name,
                "default": one.default,
                "values": limits_of(one),
                "description": one.description,
            }
            for one in program.parameters
        ],
        "metrics": [
            {"name": name, "unit": one.unit or "as printed", "better": str(one.better)}
            for name, one in metric_names(file.metrics).items()
        ],
        "sides": {
            side: {"left_out": left_out[side]}
            if side in left_out
            else commands_json(program, example_of(program, parameters, side))
            for side in _SIDES
        },
    }


def example_of(
    program: Workload, parameters: Parameters, side: str, *, vcpus: int = 2, seconds: float = 0
) -> Setting:
    """Return a setting as a trial of that side has it, with made-up paths and addresses."""
    from labctl.workloads.setting import Setting

    seconds = seconds or _DURATION_S
    return Setting(
        parameters=parameters,
        vcpus=vcpus,
        duration_s=seconds,
        data_paths=_SIDES[side] if program.uses_data_disk else (),
        peer=_PEER if program.peer(parameters) is not None else None,
    )


@final
class SideCommands(TypedDict):
    """Hold the commands of a side by their names, and as whom they run."""

    user: str
    commands: dict[str, str]


def commands_json(program: Workload, setting: Setting) -> SideCommands:
    """Return what runs on a side, and as whom."""
    from labctl.run.commands.try_workload import commands_of

    command = program.command(setting)
    commands = commands_of(command, program.servers(setting))
    peer = program.peer(setting.parameters)
    if peer is not None:
        commands = {"serve on the peer": commands_of(peer.command, [])["command"], **commands}
    competitor = program.competitor(setting.parameters)
    if competitor is not None:
        served = commands_of(competitor.command, [])["command"]
        commands = {"serve on the competitor": served, **commands}
    return {"user": user_of(command), "commands": commands}


def user_of(command: Command) -> str:
    """Return as whom a command runs, with which rights."""
    who = "root" if command.user is None else str(command.user)
    who = f"uid {who}" if isinstance(command.user, int) else who
    return f"{who} with {', '.join(command.capabilities)}" if command.capabilities else who


def limits_of(parameter: Parameter) -> str:
    """Return what values a parameter takes."""
    from labctl.workloads.setting import BooleanParameter, ChoiceParameter

    if isinstance(parameter, BooleanParameter):
        return "true or false"
    if isinstance(parameter, ChoiceParameter):
        return ", ".join(parameter.choices)
    return f"{parameter.minimum:,} to {parameter.maximum:,}"


def parameters_of(program: Workload, given: Iterable[str]) -> Parameters:
    """Return the parameters that KEY=VALUE words give; raises UsageError."""
    return program.check_parameters(words_of(given, "--set"))


def words_of(given: Iterable[str], option: str) -> dict[str, object]:
    """Return the values of KEY=VALUE words, as YAML takes them."""
    found = {}
    for word in given:
        key, is_there, text = word.partition("=")
        if not is_there or not key:
            raise UsageError(f"{option}: expected KEY=VALUE, got {word}")
        try:
            found[key] = parse_yaml(f"v: {text}\n")["v"]
        except (YamlError, KeyError, TypeError) as error:
            raise UsageError(f"{option} {word}: not a valid value: {error}") from error
    return found


def asked_for(program: Workload, parameters: Parameters, duration_s: float) -> OneProgram:
    """Return the workload as a study of its own has it."""
    from labctl.study.load_study import OneProgram
    from labctl.study.study import StudyWorkload

    program.check_duration(duration_s)
    return OneProgram(
        name=program.name,
        workload=StudyWorkload(
            program=program.name,
            parameters=dict(parameters),
            duration_s=duration_s,
            primary=program.primary,
            margin=_MARGIN,
            uses_data_disk=program.uses_data_disk,
            definition=program.definition,
        ),
    )


def output_of(program: Workload, recorded: Iterable[Path]) -> Output:
    """Return the output that files hold: a file that a metric reads by its name, else stdout.
    Raises UsageError for two that are neither, and for what is too large."""
    from labctl.workloads.loops import Output

    wanted = [name for metric in program.file.metrics.values() for name in metric.files]
    files: dict[str, bytes] = {}
    stdout: str | None = None
    for path in recorded:
        try:
            with path.open("rb") as file:
                data = file.read(_MOST_BYTES + 1)
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}") from error
        if len(data) > _MOST_BYTES:
            raise UsageError(f"{path} is larger than {_MOST_BYTES >> 20} MiB")
        if any(fnmatchcase(path.name, name) for name in wanted):
            files[path.name] = data
        elif stdout is None:
            stdout = data.decode(errors="replace")
        else:
            raise UsageError(
                f"{path}: standard output was read from another file already",
                hint=f"Files that metrics read: {', '.join(wanted) or 'none'}.",
            )
    return Output(stdout or "", "", files)


def shown_value(value: Value | str) -> str:
    """Return a value with its unit, or why there is none."""
    return f"unavailable: {value}" if isinstance(value, str) else f"{value.value:g} {value.unit}"


def read_json(read: Read) -> dict[str, object]:
    """Return what a try read, as JSON has it."""
    return {
        "metrics": {
            name: {
                "matched": list(one.shown),
                "values": {
                    key: {"unavailable": value}
                    if isinstance(value, str)
                    else {"value": value.value, "unit": str(value.unit)}
                    for key, value in one.values.items()
                },
                "error": one.error,
            }
            for name, one in read.metrics.items()
        },
        "trial": dict(read.values),
        "problem": read.problem,
    }


def found_workload(name: str) -> Workload:
    """Return the workload of that name, or of a file. Raises UsageError with file, line and
    key."""
    from labctl.workloads.declarations import load_declaration
    from labctl.workloads.registry import workload

    if name.endswith((".yaml", ".yml")) or "/" in name:
        path = Path(name)
        return load_declaration(path, path.name.rpartition(".")[0])
    return workload(name)


def origin_of(path: Path | None) -> str:
    """Return where a workload comes from. `path`: of its file."""
    is_own = path is not None and path.is_relative_to(shipped_data())
    return "built in" if is_own else "yours"
