"""Build the parts of every terminal report. Never markup: a guest's text might look like it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich import box
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from labctl.base.wording import printable


def bare_table(title: str = "") -> Table:
    return Table(
        title=title or None,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )


def skipped_table(skipped: Mapping[str, str]) -> Table:
    """Return what this host can't have of a study, with the reasons."""
    table = bare_table("Skipped: what this host can't have")
    table.add_column("what", min_width=9, max_width=24, overflow="fold")
    table.add_column("why", overflow="fold")
    for name, reason in skipped.items():
        table.add_row(text(name), text(reason))
    return table


def marked(mark: str, sentences: Iterable[str]) -> list[RenderableType]:
    """Return sentences behind a mark, continuation lines indented."""
    return [
        Padding(text(f"{mark}: {sentence}", style="yellow"), (0, 0, 0, 2)) for sentence in sentences
    ]


def small(line: str) -> RenderableType:
    return Padding(text(line), (0, 0, 0, 2))


def text(value: str, style: str | None = None) -> Text:
    """Never markup: what a guest says might look like it."""
    return Text(printable(value), style=style or "")
