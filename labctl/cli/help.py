"""Run `labctl help` and `labctl completion`: help, and shell completion."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import click
from click.shell_completion import CompletionItem, get_completion_class

from labctl.base.errors import UsageError


@click.command("help")
@click.argument("words", metavar="[COMMAND]...", nargs=-1)
@click.pass_context
def command(context: click.Context, words: Sequence[str]) -> None:
    """Show the help of COMMAND, as 'labctl COMMAND --help' does; without one, list the commands."""
    found, left = context.find_root(), list(words)
    while left:
        group = found.command
        if not isinstance(group, click.Group):
            raise UsageError(
                f"{found.command_path} has no command '{left[0]}': it takes options and arguments",
                hint=f"'{found.command_path} --help' shows them.",
            )
        name, inner, left = group.resolve_command(found, left)
        assert inner is not None
        found = click.Context(inner, info_name=name, parent=found)
    click.echo(found.get_help())


# Run `labctl completion`, and complete the names of studies, tunings, workloads and runs.


_Names = Callable[[click.Context], Iterable[str]]

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that completes labctl's commands, options and names in SHELL.

    For bash: labctl completion bash > /etc/bash_completion.d/labctl
    """
    made = get_completion_class(shell)
    assert made is not None
    script = made(click.Group("labctl"), {}, "labctl", "_LABCTL_COMPLETE")
    # Click's source() asks which bash is installed; the script itself needs no such question.
    click.echo(script.source_template % script.source_vars())


def _files(kind: str) -> _Names:
    """Return what names the data files of that kind. Their loaders' own lists would load pydantic
    too."""

    def names(_: click.Context) -> Iterable[str]:
        from labctl.base.paths import data_files

        return data_files(kind)

    return names


_studies = _files("benchmarks")
_tunings = _files("domains")
_workloads = _files("benchmarks/workloads")
_conditions = _files("benchmarks/conditions")
_recipes = _files("guest-images")


def _runs(context: click.Context) -> list[str]:
    # Not of store/run_places.py, which loads pydantic.
    from labctl.base.paths import LATEST, recorded_runs, results_folder, run_names
    from labctl.cli.parts.common import state_paths

    place = context.params.get("results") or results_folder(state_paths(context))
    return list(dict.fromkeys([LATEST, *run_names(place), *recorded_runs()]))


def _fleets(context: click.Context) -> list[str]:
    from labctl.base.paths import results_folder
    from labctl.cli.parts.common import state_paths

    place = context.params.get("results") or results_folder(state_paths(context))
    return sorted(path.parent.name for path in place.glob("*/fleet.json"))


def _metrics(_: click.Context) -> list[str]:
    from labctl.base.metrics.row import ANY
    from labctl.base.metrics.table import METRICS
    from labctl.base.plugins import Group, names

    own = (metric.name for metric in METRICS if not metric.name.endswith(ANY))
    return sorted({*own, *names(Group.METRICS)})


def _terms(context: click.Context) -> list[str]:
    from labctl.base.wording import glossary

    return sorted({*glossary(), *_metrics(context), *_tunings(context)})


def _kinds(_: click.Context) -> Iterable[str]:
    from labctl.cli.lint import KINDS

    return KINDS


def _commands(context: click.Context) -> list[str]:
    found = context.find_root()
    for word in context.params.get("words") or ():
        if not isinstance(found.command, click.Group):
            return []
        inner = found.command.get_command(found, word)
        if inner is None:
            return []
        found = click.Context(inner, info_name=word, parent=found)
    return found.command.list_commands(found) if isinstance(found.command, click.Group) else []


class _Name(click.types.StringParamType):
    """Offer names; the shell completes a word that looks like a path, and one that no name begins
    with where a file may stand instead."""

    def __init__(self, names: _Names, *, or_file: bool) -> None:
        self._names, self._or_file = names, or_file

    def shell_complete(
        self, context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        file = CompletionItem(incomplete, type="file")
        if "/" in incomplete or incomplete.startswith("."):
            return [file]
        try:
            found = [name for name in self._names(context) if name.startswith(incomplete)]
        except Exception:  # A message would stand in the midst of what is typed.
            return []
        if not found and self._or_file:
            return [file]
        return [CompletionItem(name) for name in found]


_BY_NAME: Mapping[str, _Names] = {
    "study": _studies,
    "tuning": _tunings,
    "tunings": _tunings,
    "workload": _workloads,
    "workloads": _workloads,
    "condition": _conditions,
    "conditions": _conditions,
    "metric": _metrics,
}
"""Names of options and arguments to their possible values."""
_BY_METAVAR: Mapping[str, _Names] = {
    "RUN": _runs,
    "RUN_A": _runs,
    "RUN_B": _runs,
    "RUN...": _runs,
    "FLEET": _fleets,
    "FLEET_A": _fleets,
    "FLEET_B": _fleets,
    "[TERM]...": _terms,
    "[COMMAND]...": _commands,
}
_OF_COMMAND: Mapping[tuple[str, str], _Names] = {
    ("report", "metrics"): _metrics,
    ("schema", "kind"): _kinds,
}
"""Names of a command and its parameter to the possible values."""
_OF_GROUP: Mapping[str, _Names] = {
    "study": _studies,
    "tuning": _tunings,
    "tune": _tunings,
    "workload": _workloads,
    "condition": _conditions,
    "image": _recipes,
}
"""Commands whose arguments "name" and "names" are those of the same kind of file."""
_OR_FILES = (_studies, _workloads, _conditions)
"""Names instead of which a path may stand."""


def offer_names(command: click.Command, group: str = "") -> None:
    """Let the values of a command's parameters, and of its commands', be completed. `group`: the
    command that it is of."""
    if isinstance(command, click.Group):
        for one in command.commands.values():
            offer_names(one, str(command.name))
    of = str(command.name)
    for parameter in command.params:
        name = str(parameter.name)
        names = (
            _BY_METAVAR.get(str(parameter.metavar))
            or _OF_COMMAND.get((of, name))
            or _BY_NAME.get(name)
        )
        if name in ("name", "names"):
            names = names or _OF_GROUP.get(of) or _OF_GROUP.get(group)
        if names is not None:
            parameter.type = _Name(names, or_file=names in _OR_FILES)
