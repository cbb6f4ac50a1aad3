"""Build the parts of every terminal report, without markup: a guest's text might look like it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from labctl.base.wording import printable


class Listing(Table):
    """Lay rows out as a table or, if the columns have no room side by side, with a line for each
    cell, so that nothing is cut off."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        needed = sum(
            min(_NARROWEST, self._measure_column(console, options, column).minimum)
            for column in self.columns
        ) + len(self.columns)
        if needed <= options.max_width:
            yield from super().__rich_console__(console, options)
        else:
            yield from self._records()

    def _records(self) -> Iterator[RenderableType]:
        if self.title:
            yield text(str(self.title), style="bold")
        heads = [str(column.header) for column in self.columns]
        for cells in zip(*(column.cells for column in self.columns), strict=True):
            first, *others = (_on_one_line(cell) for cell in cells)
            yield first
            for head, cell in zip(heads[1:], others, strict=True):
                if cell.plain:
                    label = text(f"{head}: " if head else "")
                    yield Padding(label.append_text(cell), (0, 0, 0, 2))


_NARROWEST = 12
"""Least width, in letters, of a cell that is folded beside others."""


def _on_one_line(cell: RenderableType) -> Text:
    line = cell.copy() if isinstance(cell, Text) else text(str(cell))
    line.overflow, line.no_wrap = "fold", False
    parts = Text(" ").join(line.split("\n"))
    parts.overflow = "fold"
    return parts


def bare_table(title: str = "", *columns: str, heads: bool = True) -> Table:
    """Return a table in the common style; cells of the named columns fold."""
    table = Listing(
        title=text(title, style="bold") if title else None,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_header=heads,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for column in columns:
        table.add_column(text(column), overflow="fold")
    return table


def skipped_table(skipped: Mapping[str, str]) -> Table:
    """Return the parts of a study that this host does not support, with the reasons."""
    table = bare_table("Skipped: not supported on this host")
    table.add_column("what", min_width=9, max_width=24, overflow="fold")
    table.add_column("why", overflow="fold")
    for name, reason in skipped.items():
        table.add_row(text(name), text(reason))
    return table


def marked(mark: str, sentences: Iterable[str]) -> list[RenderableType]:
    """Return sentences after a mark, with continuation lines indented."""
    return [
        Padding(text(f"{mark}: {sentence}", style="yellow"), (0, 0, 0, 2)) for sentence in sentences
    ]


def small(line: str) -> RenderableType:
    return Padding(text(line), (0, 0, 0, 2))


def text(value: str, style: str | None = None) -> Text:
    """Return text without markup: a guest's text might look like it."""
    return Text(printable(value), style=style or "")
