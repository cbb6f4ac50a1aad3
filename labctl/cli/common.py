"""What several commands share."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

import click

from labctl.base.places import StatePlaces

if TYPE_CHECKING:
    from rich.console import Console

    from labctl.store.run_folder import LoadedRun


def state_places(context: click.Context) -> StatePlaces:
    """Where state lies: --state-dir, else the default."""
    chosen = (context.find_root().obj or {}).get("state_dir")
    return StatePlaces(chosen.resolve()) if chosen else StatePlaces.default()


def recorded_words(run: LoadedRun) -> list[str]:
    """The words of the command that made a run; [] of one that was edited into no command."""
    try:
        return shlex.split(str(run.run.get("command") or ""))
    except ValueError:  # a quote that isn't closed
        return []


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def console(*, stderr: bool = False) -> Console:
    """A console whose tables fit 80 columns where the output is no terminal."""
    from rich.console import Console

    class Piped(Console):
        def on_broken_pipe(self) -> None:
            """The reader has left. rich would exit with 1, and in the middle of a run."""
            if not self.stderr:
                raise  # called where the BrokenPipeError is handled
            self.quiet = True

    plain = Piped(stderr=stderr, highlight=False)
    return plain if plain.is_terminal else Piped(stderr=stderr, highlight=False, width=80)
