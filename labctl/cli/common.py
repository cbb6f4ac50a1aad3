"""What several commands share."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from labctl.base.places import StatePlaces

if TYPE_CHECKING:
    from rich.console import Console


def state_places(context: click.Context) -> StatePlaces:
    """Where state lies: --state-dir, else the default."""
    chosen = (context.find_root().obj or {}).get("state_dir")
    return StatePlaces(chosen.resolve()) if chosen else StatePlaces.default()


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def console(*, stderr: bool = False) -> Console:
    """A console whose tables fit 80 columns where the output is no terminal."""
    from rich.console import Console

    plain = Console(stderr=stderr, highlight=False)
    return plain if plain.is_terminal else Console(stderr=stderr, highlight=False, width=80)
