"""Show a run's answer in a terminal: what to do, why, how sure it is, and what to type next."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from labctl.analysis.answer_record import AnswerRecord
from labctl.analysis.next_steps import step_text
from labctl.report.parts import text

_LABEL = 10


def answer_lines(record: AnswerRecord) -> RenderableType:
    """Return the status of a run that isn't finished, the answer with its grounds, and the next
    step."""
    return Group(answer_head(record), answer_reasons(record))


def answer_head(record: AnswerRecord) -> RenderableType:
    """Return the status of a run that isn't finished, the answer's first sentence, and what it
    costs."""
    parts = [text(line, style="bold") for line in (record.status, record.lead) if line]
    rows = _rows()
    for label, words in record.conditions:
        rows.add_row(text(label, style="dim"), text(words))
    return Group(*parts, *([rows] if rows.row_count else []))


def answer_reasons(record: AnswerRecord) -> RenderableType:
    """Return why the answer is what it is, how sure it is, and the next step."""
    rows = _rows()
    for label, words in record.reasons:
        rows.add_row(text(label, style="dim"), text(words))
    for label, command in _next(record):
        rows.add_row(text(label, style="dim"), command)
    return rows


def _rows() -> Table:
    rows = Table.grid(padding=(0, 1, 0, 0))
    rows.add_column(width=_LABEL, no_wrap=True)
    rows.add_column(overflow="fold")
    return rows


def _next(record: AnswerRecord) -> Iterator[tuple[str, Text]]:
    for number, step in enumerate(record.next):
        yield "" if number else "next", text(step_text(step), style="" if number else "bold")
