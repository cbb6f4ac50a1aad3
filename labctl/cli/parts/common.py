"""Provide what several commands share."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labctl.base.errors import HostError, UsageError
from labctl.base.paths import StatePaths, shipped_data

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from labctl.store.run_folder import LoadedRun, RunFolder


results_option = click.option(
    "--results",
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder of runs (default: results/ of the lab folder, else of the state folder).",
)
"""Option of commands that read runs."""

html_option = click.option(
    "--html",
    "html_file",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write one self-contained page.",
)
"""Option of commands that draw."""


def state_paths(context: click.Context) -> StatePaths:
    """Return where state lies: --state-dir, else the default."""
    chosen = (context.find_root().obj or {}).get("state_dir")
    return StatePaths(chosen.resolve()) if chosen else StatePaths.default()


def runs_folder(chosen: Path | None) -> Path:
    """Return the folder of runs: what --results chose, else where they are kept."""
    from labctl.base.paths import results_folder

    if chosen is not None:
        return chosen.resolve()
    return results_folder(state_paths(click.get_current_context()))


def named_run(results: Path | None, name: str) -> RunFolder:
    """Return the run of that name in `runs_folder`, or at that path; raises UsageError."""
    from labctl.store.run_places import find_run

    return find_run(runs_folder(results), name)


class Quantity(click.ParamType[float]):
    """Read an option's value that may have a unit: '2G', '10s'. The command gets it in the unit
    of a bare number."""

    def __init__(
        self, kind: str, *, is_whole: bool = False, least: float = -inf, most: float = inf
    ) -> None:
        self.name, self._is_whole, self._least, self._most = kind, is_whole, least, most

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | int:
        if isinstance(value, int | float):  # a default
            return value
        from labctl.base.quantities import KINDS

        (kind,) = (kind for kind in KINDS if kind.name == self.name)
        try:
            found = kind.whole(value) if self._is_whole else kind.read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not self._least <= found <= self._most:
            ends = f"at least {self._least:g}" if self._most == inf else ""
            bounds = ends or f"{self._least:g} to {self._most:g}"
            self.fail(f"expected {bounds} {kind.base}, got '{value}'", param, ctx)
        return found


TIME_OPTION = Quantity("time")
MEMORY_OPTION = Quantity("size", is_whole=True)
"""Types of options in seconds, and in MiB."""


class Group(click.Group):
    """Group commands with whole sentences in --help, and suggest the nearest name for an unknown
    one."""

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0].startswith("-") or args[0] in self.list_commands(context):
            return super().resolve_command(context, args)
        from labctl.base.errors import nearest

        raise UsageError(
            f"{context.command_path} has no command '{args[0]}'",
            hint=nearest(args[0], self.list_commands(context)),
        )

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, self.line(context, name)) for name in self.list_commands(context)]
            )

    def line(self, context: click.Context, name: str) -> str:
        """Return what --help says of a command: the first sentence of its own help."""
        command = self.get_command(context, name)
        assert command is not None
        return command.get_short_help_str(limit=1000)


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

    def headed(self, context: click.Context) -> dict[str, list[click.Parameter]]:
        """Return the options of --help by heading, without empty headings."""
        options: dict[str, click.Parameter] = {}
        long_names: dict[str, str] = {}
        for parameter in self.get_params(context):
            if not isinstance(parameter, click.Option) or not parameter.get_help_record(context):
                continue
            options[str(parameter.name)] = parameter
            for word in (*parameter.opts, *parameter.secondary_opts):
                long_names[word] = str(parameter.name)
        placed = {
            heading: [long_names[word] for word in words.split() if word in long_names]
            for heading, words in self.sections.items()
        }
        taken = {name for names in placed.values() for name in names}
        placed[_REST] = [name for name in options if name not in taken]
        return {
            heading: [options[name] for name in names] for heading, names in placed.items() if names
        }

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        records = {
            heading: [parameter.get_help_record(context) or ("", "") for parameter in parameters]
            for heading, parameters in self.headed(context).items()
        }
        longest = max(len(first) for rows in records.values() for first, _ in rows)
        width = min(_WIDEST, longest)
        for heading, rows in records.items():
            with formatter.section(heading):
                # One column of texts on the whole page, as without headings.
                formatter.write_dl(
                    [(f"{first:<{width}}" if text else first, text) for first, text in rows]
                )


def recorded_words(run: LoadedRun) -> list[str]:
    """Return the words of the command that made a run; [] of one that was edited into no
    command."""
    try:
        return shlex.split(str(run.run.command or ""))
    except ValueError:  # a quote that isn't closed
        return []


def recorded_sweep(run: LoadedRun) -> tuple[list[str], str | None] | None:
    """Return the words after `sweep` of the command that made a run, and the lab folder that it
    named; None where it was no sweep, or went on with another run."""
    words = recorded_words(run)
    if words[:1] != ["labctl"] or "sweep" not in words or "--resume" in words:
        return None
    at = words.index("sweep")
    before = words[1:at]
    if not before:
        return words[at + 1 :], None
    if len(before) == 2 and before[0] == "--lab":
        return words[at + 1 :], before[1]
    return None


def listing(*titles: str) -> Table:
    """Return a table in the style of all commands."""
    from labctl.report.parts import bare_table

    return bare_table("", *titles)


_ANY_WIDTH = 10_000
"""Columns of a table that a program reads: no cell is folded."""


def json_text(value: Any) -> str:
    # Loaded here: commands that print none must not take longer to start.
    from labctl.base.json import without_controls

    text = json.dumps(value, indent=2, ensure_ascii=False)
    return without_controls(text.encode(errors="surrogatepass")).decode(errors="surrogatepass")


def print_json(value: Any) -> None:
    click.echo(json_text(value))


def console(*, stderr: bool = False, listing: bool = False) -> Console:
    """Return a console as wide as the terminal, or as COLUMNS says. Where the output is neither,
    sentences have 80 columns, and a `listing` all that its table takes."""
    from rich.console import Console

    class Piped(Console):
        def on_broken_pipe(self) -> None:
            """Ignore that the reader has left. rich would exit with 1, and in the middle of a
            run.
            """
            if not self.stderr:
                raise  # called where the BrokenPipeError is handled
            self.quiet = True

    plain = Piped(stderr=stderr, highlight=False)
    if plain.is_terminal or os.environ.get("COLUMNS", "").isdigit():
        return plain
    return Piped(stderr=stderr, highlight=False, width=_ANY_WIDTH if listing else 80)


def listing_width() -> int:
    """Return the columns of `console(listing=True)`, without rich."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit():
        from shutil import get_terminal_size

        return get_terminal_size().columns
    return _ANY_WIDTH


def bold(text: str) -> str:
    """Return a heading as terminals show it, without rich; click leaves the codes out elsewhere."""
    is_dumb = os.environ.get("TERM") in ("dumb", "unknown")
    return text if is_dumb else click.style(text, bold=True)


def levels_asked_for(given: Iterable[str]) -> dict[str, tuple[str, ...]] | None:
    """Return the levels by factor of words like "collector=zgc,g1"; None without any. Raises
    UsageError for a word of another form, and for a factor that is named twice."""
    found: dict[str, tuple[str, ...]] = {}
    for word in given:
        name, _, levels = word.partition("=")
        chosen = tuple(filter(None, levels.split(",")))
        if not name or not chosen:
            raise UsageError(
                f"--factor: expected NAME=LEVEL,LEVEL, got '{word}'",
                hint="Write it as '--factor collector=zgc,g1'.",
            )
        if name in found:
            both = ",".join((*found[name], *chosen))
            raise UsageError(
                f"--factor names '{name}' twice", hint=f"Give all at once: --factor {name}={both}"
            )
        found[name] = chosen
    return found or None


def print_table(titles: list[str], rows: list[list[str]]) -> None:
    """Print a table of text that may be others'."""
    from rich.text import Text

    from labctl.base.wording import printable
    from labctl.report.parts import bare_table

    table = bare_table("", *titles)
    for row in rows:
        table.add_row(*(Text(printable(str(cell)), overflow="fold") for cell in row))
    console(listing=True).print(table)


# Read the variables of roles that `labctl fleet` takes with --set.


def named_variables(given: tuple[str, ...]) -> dict[str, str]:
    """Return NAME=VALUE words as a mapping. Raises UsageError for one that isn't."""
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"--set: '{text}' is not NAME=VALUE", hint="--set labctl_hosts=rack7")
        found[name] = value
    return found


def need_pyarrow(what: str) -> None:
    """Raise HostError if pyarrow isn't installed. `what`: the command or option that needs it."""
    if find_spec("pyarrow") is not None:
        return
    is_checkout = (shipped_data() / "pyproject.toml").is_file()
    raise HostError(
        f"'{what}' needs pyarrow, which is not installed",
        hint="Run 'make setup'." if is_checkout else "Install it: pip install 'labctl[parquet]'.",
    )
