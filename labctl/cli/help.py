"""Run `labctl help`, and show a long command's options under headings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from labctl.base.errors import UsageError

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
