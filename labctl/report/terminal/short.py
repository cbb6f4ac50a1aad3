"""Show a run's answer on one screen: recommendation, verdicts and caveats."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.text import Text

from labctl.analysis.answer.view import View
from labctl.analysis.answer.words import few, listed
from labctl.analysis.model import Comparison, Judgement
from labctl.analysis.verdicts.table import Says, Verdict, says
from labctl.base.wording import counted
from labctl.report.arm_table import ArmCell, ArmTable, arm_tables, explanation, host_line
from labctl.report.parts import bare_table, marked, text
from labctl.report.published_parts import published_table
from labctl.report.terminal.factor_tables import factors_short
from labctl.report.terminal.tables import answer_head, answer_reasons, short_head
from labctl.store.run_folder import LoadedRun

_MOST_ROWS = 24
"""Most verdicts that have a row each; of more, those that show no effect share a line."""
_MOST_TABLES = 4
"""Workloads and conditions that have a table of arms."""
_MOST_WARNINGS = 2

_STYLES = {"better": "green", "worse": "red"}
"""Colours of changes without a verdict whose interval excludes no change."""


def print_short(
    console: Console, run: LoadedRun, judgement: Judgement, *, html: Path | None = None
) -> None:
    """Print the answer; `html` is the path of the page, if there is one."""
    console.print(short(run, judgement))
    # Do not wrap them: users copy them.
    console.print(text(f"\nFull report: labctl report {run.name} --full"), soft_wrap=True)
    if html is not None:
        console.print(text(f"HTML report: {html}"), soft_wrap=True)


def short(run: LoadedRun, judgement: Judgement) -> RenderableType:
    """Return the answer, a table of arms for each workload, reasons and caveats, for rich to
    print."""
    view = View(run, judgement)
    problems = [*judgement.warnings, *view.other_problems]
    parts: list[RenderableType] = [short_head(view), text(f"{host_line(view)}\n", style="dim")]
    parts.append(answer_head(judgement.decision))
    parts += _tables(view)
    parts += [Text(), answer_reasons(judgement.decision)]
    parts += factors_short(judgement.factors)
    parts += published_table(run, is_short=True)
    if problems:
        parts.append(text("\nCaveats", style="bold"))
        parts += marked("Warning", map(_brief, problems[:_MOST_WARNINGS]))
    if (more := len(problems) - _MOST_WARNINGS) > 0:
        parts.append(text(f"  and {counted(more, 'more warning')}, with --full."))
    return Group(*parts)


def _brief(warning: str) -> str:
    """Return a warning without the numbers at its end, which differ between workloads."""
    return warning.partition(" Found: ")[0]


def _tables(view: View) -> Iterator[RenderableType]:
    """Yield a table for each place in which tunings were judged, then how to read them."""
    found = [table for table in arm_tables(view) if _judged(view, table)]
    crowded = sum(len(table.arms) for table in found) > _MOST_ROWS
    for table in found[:_MOST_TABLES]:
        yield Text()
        yield from _table(view, table, crowded=crowded)
    if (more := len(found) - _MOST_TABLES) > 0:
        yield text(f"\n{counted(more, 'more table')} of other workloads and conditions: --full")
    notes = dict(note for table in found for note in table.notes)
    if found:
        yield Text()
        yield text(explanation(found), style="dim")
    if notes:
        lines = (f"({number}) {note}" for number, note in sorted(notes.items()))
        yield text(" ".join(lines), style="dim")


def _judged(view: View, table: ArmTable) -> list[Comparison]:
    return [item for tuning in view.candidates for item in view.judged(table.place, tuning)]


def _table(view: View, table: ArmTable, *, crowded: bool) -> Iterator[RenderableType]:
    items = _judged(view, table)
    shares_line = [c for c in items if crowded and not says(c.verdict, Says.EFFECT)]
    without_row = {c.tuning for c in shares_line}
    shown = bare_table(table.place.title, "arm", *table.titles)
    for row in table.arms:
        if row.arm not in without_row:
            shown.add_row(text(row.arm), *(_cell(cell) for cell in row.cells))
    yield shown
    for verdict in dict.fromkeys(c.verdict for c in shares_line):
        names = [c.tuning for c in shares_line if c.verdict is verdict]
        yield text(f"{_words(verdict)}: {listed(few(names, 8), 9)}")


def _cell(cell: ArmCell) -> Text:
    """Return the value, and below it the verdict's sign, the change and its interval."""
    if cell.level is None:
        return text("–" if cell.note is None else f"– ({cell.note})", style="dim")
    found = text(cell.value)
    if cell.ratio is not None:
        return found.append_text(text(f" {cell.change}"))
    if cell.change:
        sign = f"{cell.verdict.row.symbol} " if cell.verdict else ""
        style = cell.verdict.row.style if cell.verdict else _STYLES.get(cell.leans, "")
        found.append_text(text(f"\n{sign}{cell.change}", style=style))
    if cell.interval:
        found.append_text(text(f"\n({cell.interval})"))
    return found


def _words(verdict: Verdict | None) -> str:
    return f"{verdict.row.symbol} {verdict.shown}" if verdict is not None else ""
