"""Make a workload of one command line: `labctl sweep STUDY --command '…' --metric NAME=REGEX`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from labctl.base.errors import UsageError
from labctl.base.wording import printable
from labctl.cli.parts.common import TIME_OPTION
from labctl.cli.parts.own_files import OwnFiles, note, script_of

if TYPE_CHECKING:
    from labctl.base.yamltext import YamlMapping
    from labctl.study.load_study import OneProgram


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """Values of the options, by the names that click gives them."""

    own_command: str
    serve: tuple[str, ...]
    port: int | None
    ready: str | None
    setup: tuple[str, ...]
    metrics: tuple[str, ...]
    units: tuple[str, ...]
    better: tuple[str, ...]
    packages: tuple[str, ...]
    files: tuple[str, ...]
    once: bool
    timeout: float | None
    given: tuple[str, ...]


_NAMES = tuple(one.name for one in fields(_Options))
_SHELL_SIGNS = ("|", "||", "&&", ";", ">", "<", ">>", "&", "2>&1")
_FILE = re.compile(r"(stdout|stderr|[A-Za-z0-9_*?][A-Za-z0-9._+*?-]*\.[A-Za-z0-9._+*?-]+):(?!\s)")
_CSV = re.compile(r"(?P<column>[^\[\]]+)(?:\[(?P<where>[^\[\]]+)\])?")
_PLACE = Path("the command line")
_PER_SECOND = re.compile(r"(?i)\bper[ _]?sec|[a-z)\]]/s(?:ec)?(?![a-z])")
_DURATION_S = 10.0
_MARGIN = 0.05

_Command = TypeVar("_Command", bound=Callable[..., Any])


def own_program_options(command: _Command) -> _Command:
    """Add the options that declare a workload."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS = (
    click.option(
        "--command",
        "own_command",
        metavar="ARGV",
        help="Measure this program instead of the study's workloads; no shell.",
    ),
    click.option(
        "--serve",
        multiple=True,
        metavar="ARGV",
        help="A server for the program, started beside it.",
    ),
    click.option(
        "--port",
        type=click.IntRange(1, 65_535),
        help="The server is ready when it listens on this port.",
    ),
    click.option(
        "--ready",
        metavar="tcp:PORT|udp:PORT|unix:PATH|log:REGEX",
        help="Other readiness test of the server.",
    ),
    click.option(
        "--setup", multiple=True, metavar="ARGV", help="A command to run before each trial."
    ),
    click.option(
        "--metric",
        "metrics",
        multiple=True,
        metavar="NAME=READER",
        help="A REGEX, json:PATH or csv:COLUMN[K=V], optionally after FILE: (docs/own-program.md).",
    ),
    click.option(
        "--unit",
        "units",
        multiple=True,
        metavar="[NAME=]UNIT",
        help="Unit of a metric, such as ms or Mops/s (default: count).",
    ),
    click.option(
        "--better",
        multiple=True,
        metavar="[NAME=]DIRECTION",
        help="higher, lower or neither (default: rates higher, times lower).",
    ),
    click.option("--package", "packages", multiple=True, help="Debian package for the guest."),
    click.option(
        "--file",
        "files",
        multiple=True,
        metavar="PATH[=NAME]",
        help="Bring this file or folder along, at {{ files }}/NAME.",
    ),
    click.option("--once", is_flag=True, help="Run it once per trial instead of repeatedly."),
    click.option("--timeout", type=TIME_OPTION, help="Kill a run after this time (30s)."),
    click.option(
        "--parameter", "given", multiple=True, metavar="K=V", help="Value for {{ K }} in it."
    ),
)


def one_program(given: Mapping[str, Any]) -> OneProgram | None:
    """Return the workload that the options declare; None where they declare none. Raises
    UsageError."""
    if given["own_command"] is None:
        for name in _NAMES:
            if given[name]:
                raise UsageError(
                    f"{_option(name)} needs --command",
                    hint="Add --command 'PROGRAM ARGUMENT …'.",
                )
        return None
    if given.get("workloads"):
        raise UsageError(
            "--command and --workload exclude each other",
            hint="Leave one of them out.",
        )
    if given.get("resume") or given.get("extend"):
        raise UsageError("--command is for a new run")
    from labctl.study.load_study import OneProgram
    from labctl.study.study import StudyWorkload
    from labctl.workloads.registry import checkers

    options = _Options(**{name: given[name] for name in _NAMES})
    command = argv_of(options.own_command, "--command")
    metrics = _metrics(options.metrics, options.units, options.better)
    files = OwnFiles(
        # The copy of a VM has its own files, and labctl copies none to it.
        is_automatic=given.get("domain") is None,
        written=[str(metric["from"]) for metric in metrics.values() if "from" in metric],
    )
    mapping = _definition(options, command, metrics, files)
    name = _name_of(command)
    program = checkers().define(name, _as_read(mapping), _PLACE)
    duration_s = given["duration"] or _DURATION_S
    program.check_duration(duration_s)
    return OneProgram(
        name=name,
        workload=StudyWorkload(
            program=name,
            parameters=dict(program.check_parameters({})),
            duration_s=duration_s,
            primary=program.primary,
            margin=_MARGIN,
            uses_data_disk=program.uses_data_disk,
            definition=program.definition,
        ),
        words=_words(options),
        definition=mapping,
        sources=files.sources,
        contents=files.contents,
    )


def _as_read(mapping: Mapping[str, object]) -> YamlMapping:
    """Return a mapping as a file's reader makes it, so that errors name keys; without lines, which
    a command line doesn't have."""
    from labctl.base.yamltext import YamlMapping

    made = YamlMapping(
        {
            key: _as_read(value) if isinstance(value, dict) else value
            for key, value in mapping.items()
        }
    )
    made.lines = {}
    return made


def _definition(
    options: _Options,
    command: Sequence[str],
    metrics: Mapping[str, Mapping[str, object]],
    files: OwnFiles,
) -> dict[str, object]:
    """Return the workload as its file would declare it. `files` takes those that it brings. Raises
    UsageError."""
    kind = _kind(options, is_measured=bool(metrics))
    trial: dict[str, object] = {"kind": kind}
    if options.timeout is not None:
        trial["limit_s"] = float(options.timeout)
    if options.setup and kind == "repeat":
        raise UsageError(
            "--setup runs once before a trial, but this program is repeated in each trial",
            hint="Add --once, or let the command run for {{ duration }} seconds.",
        )
    files.bring(options.files)
    commands = {
        "setup": [files.words(argv_of(text, "--setup"), "--setup") for text in options.setup],
        "serve": _servers(options, files),
        "command": files.words(command, "--command"),
    }
    found: dict[str, object] = {
        "description": printable(shlex.join(command))[:4000],
        "parameters": _parameters(options.given),
        "packages": list(options.packages),
        "files": files.declared,
        "env": {"LD_LIBRARY_PATH": "{{ files }}"} if files.has_library else {},
        "setup": commands["setup"],
        "serve": commands["serve"],
        "trial": trial,
        "command": commands["command"],
        "metrics": metrics,
        "primary": _primary(metrics),
        "binaries": [f"{{{{ files }}}}/{name}" for name in files.programs],
    }
    return {key: value for key, value in found.items() if value not in ([], {})}


def argv_of(text: str, option: str) -> list[str]:
    """Return the arguments of a text. Raises UsageError for one that only a shell understands."""
    try:
        words = _split(text)
    except ValueError as error:
        raise UsageError(f"{option}: {text!r} is not a command: {error}") from error
    if not words:
        raise UsageError(f"{option} is empty")
    for word in words:
        if word in _SHELL_SIGNS:
            raise UsageError(
                f"{option} contains '{word}', but it is not run by a shell",
                hint=f"To use a shell: {option} \"sh -c '…'\".",
            )
    return words


def _split(text: str) -> list[str]:
    """Split as a shell does, but keep what stands in {{ }} together."""
    kept: list[str] = []

    def keep(found: re.Match[str]) -> str:
        kept.append(found[0])
        return f"\x00{len(kept) - 1}\x00"

    words = shlex.split(re.sub(r"\{\{.*?\}\}", keep, text))
    return [re.sub(r"\x00(\d+)\x00", lambda found: kept[int(found[1])], word) for word in words]


def _kind(options: _Options, *, is_measured: bool) -> str:
    if options.once:
        return "once"
    if re.search(r"\{\{[^}]*\bduration\b", options.own_command):
        return "duration"
    return "repeat" if is_measured else "once"


def _primary(metrics: Mapping[str, object]) -> str:
    """Return the first metric; of a program without any, the time that it takes."""
    return next(iter(metrics), "elapsed")


def _metrics(
    given: Sequence[str], units: Sequence[str], better: Sequence[str]
) -> dict[str, dict[str, object]]:
    if not given:
        for option, words in (("--better", better), ("--unit", units)):
            if words:
                raise UsageError(
                    f"{option} needs a --metric",
                    hint="Add --metric NAME=REGEX, or leave it out to compare the elapsed time.",
                )
    readers: dict[str, str] = {}
    for word in given:
        name, is_there, reader = word.partition("=")
        if not is_there or not reader:
            raise UsageError(
                f"--metric: expected NAME=READER, got {word!r}",
                hint=r"--metric 'get=GET: ([\d.]+) requests per second'",
            )
        if name in readers:
            raise UsageError(f"--metric: '{name}' is given twice")
        readers[name] = reader
    units_of, better_of = _each("--unit", units, readers), _each("--better", better, readers)
    found: dict[str, dict[str, object]] = {}
    for name, reader in readers.items():
        metric, unit = _reader(reader), units_of.get(name)
        if unit is not None:
            metric["unit"] = unit
            _note_near_unit(name, unit)
        elif "(?P<unit>" not in reader:
            metric["unit"] = "count"
        direction = better_of.get(name) or _direction(name, unit, reader)
        found[name] = {**metric, "better": direction}
        _check_better(name, direction)
    return found


def _each(option: str, given: Sequence[str], metrics: Mapping[str, str]) -> dict[str, str]:
    """Return what an option gives of each metric: as NAME=VALUE, or in the metrics' order."""
    named = dict(word.split("=", 1) for word in given if "=" in word)
    if given and not named and len(given) == len(metrics):
        return dict(zip(metrics, given, strict=True))
    for name in named:
        if name not in metrics:
            from labctl.base.errors import nearest

            raise UsageError(f"{option}: no metric '{name}'", hint=nearest(name, metrics))
    if len(named) < len(given):
        first = next(iter(metrics))
        raise UsageError(
            f"{option}: expected one for each of the {len(metrics)} --metric, in order, got "
            f"{len(given)}",
            hint=f"Or name the metric: {option} {first}={given[0].rpartition('=')[2]}",
        )
    return named


def _direction(name: str, unit: str | None, reader: str) -> str:
    """Return the direction that a metric's unit or name tells, or else the words of its reader.
    Raises UsageError where none does."""
    from labctl.base.units import Better, usual_direction

    better = usual_direction(name, unit)
    if better is not None:
        return str(better)
    better = Better.HIGHER if _PER_SECOND.search(reader) else usual_direction(reader, None)
    if better is None:
        raise UsageError(
            f"--metric {name}: the better direction cannot be derived from its unit or name",
            hint=f"Add '--better {name}=higher', lower or neither.",
        )
    note(
        f"--metric {name}: {better} is better, guessed from its reader (otherwise: --better "
        f"{name}=…)"
    )
    return str(better)


def _note_near_unit(name: str, unit: str) -> None:
    from labctl.base.quantities import near_unit

    if near := near_unit(unit):
        note(
            f"--unit: '{unit}' is not a unit that labctl converts, so it is shown as it is; did "
            f"you mean '{near}'? Then: --unit {name}={near}"
        )


def _check_better(name: str, word: str) -> None:
    if word not in ("higher", "lower", "neither"):
        raise UsageError(
            f"--better {name}: expected higher, lower or neither, got '{word[:40]}'",
            hint=f"--better {name}=higher",
        )


def _reader(text: str) -> dict[str, object]:
    """Return the keys of a metric for `json:PATH`, `csv:COLUMN[K=V]` or a regular expression, each
    maybe after `FILE:`."""
    found: dict[str, object] = {}
    if file := _FILE.match(text):
        found["from"], text = file[1], text[file.end() :]
    kind, _, rest = text.partition(":")
    if kind == "json":
        return {**found, "json": rest}
    if kind == "csv":
        parts = _CSV.fullmatch(rest)
        if parts is None:
            raise UsageError(
                f"--metric: expected csv:COLUMN, got csv:{rest}",
                hint="csv:COLUMN, or csv:COLUMN[K=V]",
            )
        csv: dict[str, object] = {"column": parts["column"]}
        if parts["where"]:
            pairs = (pair.partition("=") for pair in parts["where"].split(","))
            csv["where"] = {key.strip(): value for key, _, value in pairs}
        return {**found, "csv": csv}
    return {**found, "regex": text}


def _servers(options: _Options, files: OwnFiles) -> list[dict[str, object]]:
    if not options.serve:
        for option, value in (("port", options.port), ("ready", options.ready)):
            if value:
                raise UsageError(f"--{option} needs --serve 'PROGRAM …'")
        return []
    if len(options.serve) > 1:
        raise UsageError("expected one --serve", hint="A workload file can have several servers.")
    if bool(options.port) is bool(options.ready):
        raise UsageError("--serve needs exactly one of --port and --ready")
    ready = _ready(options.ready) if options.ready else {"tcp": options.port}
    argv = files.words(argv_of(options.serve[0], "--serve"), "--serve")
    return [{"argv": argv, "ready": ready}]


def _ready(text: str) -> dict[str, object]:
    kind, _, value = text.partition(":")
    if kind in ("tcp", "udp") and value.isdecimal() and 0 < int(value) < 65_536:
        return {kind: int(value)}
    if kind in ("unix", "log") and value:
        return {kind: value}
    raise UsageError(
        f"--ready: expected tcp:PORT, udp:PORT, unix:PATH or log:REGEX, got {text}",
        hint="--ready tcp:6379",
    )


def _parameters(given: Sequence[str]) -> dict[str, dict[str, object]]:
    """Return a parameter for each K=V, whose one value it is."""
    from labctl.cli.workload import words_of

    found: dict[str, dict[str, object]] = {}
    for key, value in words_of(given, "--parameter").items():
        about = {"description": "from the command line"}
        match value:
            case bool():
                found[key] = {"boolean": value, **about}
            case int():
                found[key] = {"integer": value, "from": value, "to": value, **about}
            case float():
                found[key] = {"number": value, "from": value, "to": value, **about}
            case _:
                found[key] = {"choice": str(value), "of": [str(value)], **about}
    return found


def _name_of(words: Sequence[str]) -> str:
    """Return the program's own name, as a workload's may be."""
    first = Path(words[0]).name
    if (script := script_of(words)) is not None and "." in words[script]:
        first = Path(words[script]).name
    elif first in ("sh", "bash", "dash", "env", "python3") and len(words) > 1:
        first = "command"
    name = re.sub(r"[^A-Za-z0-9+._-]+", "-", first).strip("-.+_")
    return name[:60] or "command"


def _words(options: _Options) -> tuple[str, ...]:
    """Return the options as they were given."""
    words: list[str] = []
    for name in _NAMES:
        value, option = getattr(options, name), _option(name)
        if isinstance(value, tuple):
            for one in value:
                words += [option, one]
        elif value is True:
            words.append(option)
        elif value not in (None, False):
            words += [option, str(value)]
    return tuple(words)


_NAMED = {"own_command": "command", "given": "parameter"}
_SINGULAR = {"metrics": "metric", "units": "unit", "packages": "package", "files": "file"}


def _option(name: str) -> str:
    return f"--{_NAMED.get(name) or _SINGULAR.get(name, name)}"
