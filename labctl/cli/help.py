"""Run `labctl help` and `labctl completion`: help under headings, and shell completion."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from labctl.base.errors import UsageError

# Run `labctl help`, and show a long command's options under headings.


_REST = "Other options"
_WIDEST = 30
"""Columns for options, as Click has it; the text of a longer one begins on the next line."""


class Sectioned(click.Command):
    """Show the options in --help under headings. `sections`: heading to its options,
    as in "--json --quiet"; options without a heading come last."""

    def __init__(
        self, *args: Any, sections: Mapping[str, str] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.sections = sections or {}

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        lines: dict[str, tuple[str, str]] = {}
        long_names: dict[str, str] = {}
        for parameter in self.get_params(context):
            record = parameter.get_help_record(context)
            if record is None or not isinstance(parameter, click.Option):
                continue
            lines[str(parameter.name)] = record
            for word in (*parameter.opts, *parameter.secondary_opts):
                long_names[word] = str(parameter.name)
        placed = {
            heading: [long_names[word] for word in words.split() if word in long_names]
            for heading, words in self.sections.items()
        }
        taken = {name for names in placed.values() for name in names}
        placed[_REST] = [name for name in lines if name not in taken]
        width = min(_WIDEST, max(len(record[0]) for record in lines.values()))
        for heading, names in placed.items():
            if names:
                with formatter.section(heading):
                    # One column of texts on the whole page, as without headings.
                    rows = [lines[name] for name in names]
                    formatter.write_dl(
                        [(f"{first:<{width}}" if text else first, text) for first, text in rows]
                    )


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


def _studies(_: click.Context) -> list[str]:
    from labctl.study.study import study_names

    return study_names()


def _tunings(_: click.Context) -> list[str]:
    from labctl.study.tunings import tuning_names

    return tuning_names()


def _workloads(_: click.Context) -> list[str]:
    from labctl.base.paths import data_files

    return list(data_files("benchmarks/workloads"))


def _runs(context: click.Context) -> list[str]:
    from labctl.base.paths import results_folder
    from labctl.cli.common import state_paths
    from labctl.store.run_places import LATEST, all_runs

    place = context.params.get("results") or results_folder(state_paths(context))
    return [LATEST, *(folder.name for folder in all_runs(place))]


class _Name(click.types.StringParamType):
    """Offer names; a word that looks like a path is completed by the shell."""

    def __init__(self, names: _Names) -> None:
        self._names = names

    def shell_complete(
        self, context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        if "/" in incomplete or incomplete.startswith("."):
            return [CompletionItem(incomplete, type="file")]
        try:
            found = list(self._names(context))
        except Exception:  # A message would stand in the midst of what is typed.
            return []
        return [CompletionItem(name) for name in found if name.startswith(incomplete)]


_BY_NAME: Mapping[str, _Names] = {
    "study": _studies,
    "tuning": _tunings,
    "tunings": _tunings,
    "workload": _workloads,
    "workloads": _workloads,
}
"""Names of options' and arguments' values to what they may be. What has the metavar RUN is a run's
name."""
_OF_GROUP: Mapping[str, _Names] = {
    "study": _studies,
    "tuning": _tunings,
    "tune": _tunings,
    "workload": _workloads,
}
"""Commands whose arguments "name" and "names" are those of the same kind of file."""


def offer_names(command: click.Command, group: str = "") -> None:
    """Let the values of a command's parameters, and of its commands', be completed. `group`: the
    command that it is of."""
    if isinstance(command, click.Group):
        for one in command.commands.values():
            offer_names(one, str(command.name))
    for parameter in command.params:
        names = _BY_NAME.get(str(parameter.name))
        if str(parameter.metavar).startswith("RUN"):
            names = _runs
        elif parameter.name in ("name", "names"):
            names = _OF_GROUP.get(str(command.name)) or _OF_GROUP.get(group)
        if names is not None:
            parameter.type = _Name(names)
