"""Write man pages of labctl's commands: `python -m tools.man_pages FOLDER`.

Building the wheel does so (`tools/wheel_hook.py`). click-man, the library for it, writes no page of
a command that is loaded only when it runs, no arguments and no headings of options.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path
from textwrap import wrap

import click

from labctl import __version__
from labctl.cli.main import cli
from labctl.cli.parts.common import Group, Sectioned

_WIDEST = 76
"""Columns of a line of source; mandoc accepts 80."""
_EXIT_CODES = (
    ("0", "Done."),
    ("1", "A check failed, or a host of a fleet."),
    ("2", "Wrong usage or file."),
    ("3", "The host cannot do it."),
    ("4", "labctl failed."),
)
_ENVIRONMENT = (
    ("LABCTL_LAB", "The lab folder, unless --lab names one."),
    ("LABCTL_RESULTS", "The folder of runs, unless --results names one."),
    ("LABCTL_STATE_DIR", "The folder of images and working files, unless --state-dir names one."),
)


def pages() -> Iterator[tuple[str, str]]:
    """Yield the name of each page's file and its text: labctl(1), and a page for each command that
    has options or commands."""
    top = click.Context(cli, info_name="labctl", **cli.context_settings)
    for context in _contexts(top):
        if context.command is cli or _is_page(context):
            yield f"{_page_name(context)}.1", page(context)


def _contexts(context: click.Context) -> Iterator[click.Context]:
    yield context
    for name, command in _commands(context):
        yield from _contexts(click.Context(command, info_name=name, parent=context))


def _commands(context: click.Context) -> Iterator[tuple[str, click.Command]]:
    group = context.command
    if not isinstance(group, click.Group):
        return
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if not command.hidden:
            yield name, command


def _is_page(context: click.Context) -> bool:
    command = context.command
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    return bool(options) or isinstance(command, click.Group)


def _page_name(context: click.Context) -> str:
    return context.command_path.replace(" ", "-")


def page(context: click.Context) -> str:
    """Return a command's page in the language man(7)."""
    return "\n".join(_lines(context)) + "\n"


def _lines(context: click.Context) -> Iterator[str]:
    command, name = context.command, _page_name(context)
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    date = time.strftime("%Y-%m-%d", time.gmtime(seconds))
    yield f'.TH "{_escaped(name.upper())}" "1" "{date}" "labctl {__version__}" "labctl"'
    # man's own default hyphenates and justifies, which breaks the words of commands.
    yield ".nh"
    yield ".ad l"
    yield ".SH NAME"
    yield from _wrapped(f"{_escaped(name)} \\- {_escaped(_sentence(context).rstrip('.'))}")
    yield ".SH SYNOPSIS"
    pieces = (_marked(piece) for piece in command.collect_usage_pieces(context))
    yield from _wrapped(" ".join([f"\\fB{_escaped(context.command_path)}\\fR", *pieces]))
    yield ".SH DESCRIPTION"
    yield from _paragraphs(cleandoc(command.help or ""))
    yield ".SH OPTIONS"
    headed = command.headed(context) if isinstance(command, Sectioned) else {}
    for heading, options in headed.items():
        yield f".SS {_escaped(heading)}"
        yield from _options(options, context)
    if not headed:
        yield from _options(command.get_params(context), context)
    yield from _commands_section(context)
    if command is cli:
        yield from _section("EXIT STATUS", _EXIT_CODES)
        yield from _section("ENVIRONMENT", _ENVIRONMENT)
    elif context.parent is not None:
        yield ".SH SEE ALSO"
        yield _reference(context.parent)


def _sentence(context: click.Context) -> str:
    """Return a command's line in the list of commands."""
    parent = context.parent
    if parent is not None and isinstance(parent.command, Group):
        return parent.command.line(parent, str(context.info_name))
    return context.command.get_short_help_str(limit=1000)


def _options(parameters: list[click.Parameter], context: click.Context) -> Iterator[str]:
    for parameter in parameters:
        record = parameter.get_help_record(context)
        if record is not None and isinstance(parameter, click.Option):
            yield from _item(_marked(record[0]), record[1])


def _commands_section(context: click.Context) -> Iterator[str]:
    found = list(_commands(context))
    if not found:
        return
    yield ".SH COMMANDS"
    for name, command in found:
        inner = click.Context(command, info_name=name, parent=context)
        title = f"\\fB{_escaped(name)}\\fR"
        if _is_page(inner):
            title = _reference(inner)
        yield from _item(title, _sentence(inner))


def _section(title: str, rows: tuple[tuple[str, str], ...]) -> Iterator[str]:
    yield f".SH {title}"
    for name, text in rows:
        yield from _item(f"\\fB{_escaped(name)}\\fR", text)


def _item(title: str, text: str) -> Iterator[str]:
    yield ".TP"
    yield title
    yield from _wrapped(_escaped(text)) if text else ("\\&",)


def _reference(context: click.Context) -> str:
    return f"\\fB{_escaped(_page_name(context))}\\fR(1)"


def _paragraphs(text: str) -> Iterator[str]:
    for number, paragraph in enumerate(text.split("\n\n")):
        if number:
            yield ".PP"
        yield from _wrapped(_escaped(paragraph))


def _wrapped(text: str) -> Iterator[str]:
    """Yield lines of escaped text, none of which can be taken for a request."""
    for line in wrap(text, _WIDEST, break_long_words=False, break_on_hyphens=False):
        yield f"\\&{line}" if line.startswith((".", "'")) else line


def _escaped(text: str) -> str:
    """Return text in the letters of any locale, as groff_char(7) writes others."""
    plain = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    return "".join(one if one.isascii() else f"\\[u{ord(one):04X}]" for one in plain)


def _marked(usage: str) -> str:
    """Return options and arguments as man pages show them: names bold, values in italics."""

    def mark(found: re.Match[str]) -> str:
        word = _escaped(found[0])
        return f"\\fB{word}\\fR" if found[0].startswith("-") else f"\\fI{word}\\fR"

    return re.sub(r"[^\s,\[\]|/]+(?:/[^\s,\[\]|/]+)*", mark, usage)


def write(folder: Path) -> int:
    """Write all pages into a folder; return how many there are."""
    folder.mkdir(parents=True, exist_ok=True)
    made = list(pages())
    for name, text in made:
        (folder / name).write_text(text, encoding="utf-8")
    return len(made)


if __name__ == "__main__":
    click.echo(f"{write(Path(sys.argv[1]))} pages")
