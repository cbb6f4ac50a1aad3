"""Gather what `labctl workload` shows of one, and make values of what it was given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from labctl.base.command import Command
from labctl.base.errors import UsageError
from labctl.base.paths import shipped_data
from labctl.base.yamltext import YamlError, parse_yaml
from labctl.run.commands.try_reading import Read
from labctl.run.commands.try_run import commands_of
from labctl.study.load_study import OneProgram
from labctl.study.study import StudyWorkload
from labctl.workloads.declarations import load_declaration
from labctl.workloads.loops import Output
from labctl.workloads.metric_file import Value, metric_names
from labctl.workloads.registry import workload
from labctl.workloads.setting import (
    BooleanParameter,
    ChoiceParameter,
    Parameter,
    Parameters,
    Setting,
)
from labctl.workloads.workload import Workload

_SIDES: Mapping[str, tuple[str, ...]] = {"native": ("/data/data.img",), "guest": ("/dev/vdb",)}
"""Sides, and where each has its data disk in an example."""
_PEER = "192.0.2.1"
"""Address of a peer in an example (RFC 5737)."""
_DURATION_S = 10.0
_MARGIN = 0.05
"""Margin of a study that judges nothing."""
_MOST_BYTES = 64 << 20
"""Limit for a recorded output."""


def facts_of(program: Workload) -> dict[str, Any]:
    """Return all that is known of a workload, as JSON has it. Raises UsageError for commands that
    can't be made."""
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
    seconds = seconds or _DURATION_S
    return Setting(
        parameters=parameters,
        vcpus=vcpus,
        duration_s=seconds,
        data_paths=_SIDES[side] if program.uses_data_disk else (),
        peer=_PEER if program.peer(parameters) is not None else None,
    )


def commands_json(program: Workload, setting: Setting) -> dict[str, Any]:
    """Return what runs on a side, and as whom."""
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
    if isinstance(parameter, BooleanParameter):
        return "true or false"
    if isinstance(parameter, ChoiceParameter):
        return ", ".join(parameter.choices)
    return f"{parameter.minimum:,} to {parameter.maximum:,}"


def parameters_of(program: Workload, given: Iterable[str]) -> Parameters:
    """Return the parameters that KEY=VALUE words give; raises UsageError."""
    return program.check_parameters(words_of(given, "--set"))


def words_of(given: Iterable[str], option: str) -> dict[str, Any]:
    """Return the values of KEY=VALUE words, as YAML takes them."""
    found = {}
    for word in given:
        key, is_there, text = word.partition("=")
        if not is_there or not key:
            raise UsageError(f"{option} {word}: KEY=VALUE is needed")
        try:
            found[key] = parse_yaml(f"v: {text}\n")["v"]
        except (YamlError, KeyError, TypeError) as error:
            raise UsageError(f"{option} {word}: no value: {error}") from error
    return found


def asked_for(program: Workload, parameters: Parameters, duration_s: float) -> OneProgram:
    """Return the workload as a study of its own has it."""
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
    wanted = [name for metric in program.file.metrics.values() for name in metric.files]
    files: dict[str, bytes] = {}
    stdout: str | None = None
    for path in recorded:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
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


def read_json(read: Read) -> dict[str, Any]:
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
    if name.endswith((".yaml", ".yml")) or "/" in name:
        path = Path(name)
        return load_declaration(path, path.name.rpartition(".")[0])
    return workload(name)


def origin_of(path: Path | None) -> str:
    """Return where a workload comes from. `path`: of its file."""
    is_own = path is not None and path.is_relative_to(shipped_data())
    return "built in" if is_own else "yours"
