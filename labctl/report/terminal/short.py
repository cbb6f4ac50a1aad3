"""Show a run's answer on one screen: what to do, the verdicts, what could change them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.text import Text

from labctl.analysis.cells import Scenario
from labctl.analysis.inconclusive import why_inconclusive
from labctl.analysis.model import Comparison, Judgement
from labctl.analysis.side_costs import side_costs_of
from labctl.analysis.verdict_table import Says, Verdict, says
from labctl.analysis.view import View
from labctl.analysis.words import few, listed, shown
from labctl.base.wording import counted
from labctl.report.parts import bare_table, marked, text
from labctl.report.terminal.answer_lines import answer_lines
from labctl.report.terminal.factor_tables import factors_short
from labctl.report.terminal.head import short_head
from labctl.store.run_folder import LoadedRun

_MOST_ROWS = 24
"""Verdicts that have a row each; of more, those that show no effect share a line."""
_MOST_WARNINGS = 2


def print_short(
    console: Console, run: LoadedRun, judgement: Judgement, *, html: Path | None = None
) -> None:
    """Print the answer; `html` is where the page lies, if there is one."""
    console.print(short(run, judgement))
    # In one piece: they are there to be copied.
    console.print(text(f"\nEverything else: labctl report {run.name} --full"), soft_wrap=True)
    if html is not None:
        console.print(text(f"In pictures: {html}"), soft_wrap=True)


def short(run: LoadedRun, judgement: Judgement) -> RenderableType:
    """Return the answer, the verdicts and what could change them as something that rich can print:
    some 40 lines for two tunings."""
    view = View(run, judgement)
    problems = [*judgement.warnings, *view.other_problems]
    parts: list[RenderableType] = [short_head(view), answer_lines(judgement.decision, others=False)]
    parts += _verdicts(view)
    parts += factors_short(judgement.factors)
    if problems:
        parts.append(text("\nWhat could change it", style="bold"))
        parts += marked("Warning", map(_brief, problems[:_MOST_WARNINGS]))
    if (more := len(problems) - _MOST_WARNINGS) > 0:
        parts.append(text(f"  and {counted(more, 'more warning')}, with --full."))
    return Group(*parts)


def _brief(warning: str) -> str:
    """Return a warning without the numbers that those of several workloads end with."""
    return warning.partition(" Found: ")[0]


def _verdicts(view: View) -> list[RenderableType]:
    """Return a table for each place in which tunings were judged."""
    judged = {
        place: [item for tuning in view.candidates for item in view.judged(place, tuning)]
        for place in view.places
    }
    crowded = sum(map(len, judged.values())) > _MOST_ROWS
    return [part for place, items in judged.items() for part in _place(view, place, items, crowded)]


def _place(
    view: View, place: Scenario, items: Sequence[Comparison], crowded: bool
) -> Iterator[RenderableType]:
    if not items:
        return
    shares_line = [c for c in items if crowded and not says(c.verdict, Says.EFFECT)]
    rows = [c for c in items if c not in shares_line]
    title = f"{place.title}: {view.title(place.workload, items[0].metric)}"
    yield Text()
    if rows:
        table = bare_table(title, "tuning", "verdict", "change", "beside it", heads=False)
        for item in rows:
            cells = (text(item.tuning), _verdict(item), text(str(shown(item))))
            table.add_row(*cells, text(_beside(view, place, item)))
        yield table
    else:
        yield text(title, style="bold")
    for verdict in dict.fromkeys(c.verdict for c in shares_line):
        names = [c.tuning for c in shares_line if c.verdict is verdict]
        yield text(f"{_words(verdict)}: {listed(few(names, 8), 9)}")


def _beside(view: View, place: Scenario, item: Comparison) -> str:
    """Return why a verdict is inconclusive, else who else pays most visibly."""
    if (why := why_inconclusive(item)) is not None:
        return str(why.reason)
    costs = (cost for cost in side_costs_of(view, item.tuning, place) if cost.who != "guest")
    return next((f"{cost.who} {cost.text}" for cost in costs), "")


def _verdict(item: Comparison) -> Text:
    style = item.verdict.row.style if item.verdict is not None else ""
    return text(_words(item.verdict) + (" (by Holm)" if item.by_holm else ""), style=style)


def _words(verdict: Verdict | None) -> str:
    return f"{verdict.row.symbol} {verdict.shown}" if verdict is not None else ""
