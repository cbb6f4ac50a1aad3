"""Show the report in a terminal: 80 columns, readable without colour."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from textwrap import fill

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from labctl.analysis.answer.answer import step_text
from labctl.analysis.answer.record import AnswerRecord
from labctl.analysis.answer.view import MetricColumn, View
from labctl.analysis.answer.words import few, shown
from labctl.analysis.answer.worse import side_costs_of
from labctl.analysis.effects.cells import Scenario, skipped
from labctl.analysis.model import Added, Attempts, Comparison, Judgement
from labctl.analysis.times import level_of
from labctl.base.notation import NOT_AVAILABLE, TO, quantity
from labctl.base.tuning import Level
from labctl.base.wording import counted
from labctl.report import sentences
from labctl.report.parts import bare_table, marked, skipped_table, small, text
from labctl.report.price_list import prediction_table, predictions
from labctl.report.study_parts import study_shown
from labctl.report.terminal.factor_tables import factors_full
from labctl.store.run_folder import LoadedRun
from labctl.trace import files

# Show a run's answer in a terminal: recommendation, reasons, confidence, next command.


_LABEL = 10


def answer_lines(record: AnswerRecord) -> RenderableType:
    """Return the status of an unfinished run, the answer with its reasons, and the next step."""
    return Group(answer_head(record), answer_reasons(record))


def answer_head(record: AnswerRecord) -> RenderableType:
    """Return the status of an unfinished run, the answer's first sentence, and its cost."""
    parts = [text(line, style="bold") for line in (record.status, record.lead) if line]
    rows = _rows()
    for label, words in record.conditions:
        rows.add_row(text(label, style="dim"), text(words))
    return Group(*parts, *([rows] if rows.row_count else []))


def answer_reasons(record: AnswerRecord) -> RenderableType:
    """Return the answer's reasons, its confidence, and the next step."""
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


# Head a run's report in a terminal: the run, its size and its state.


def short_head(view: View) -> Text:
    """Return the run's name, state and sizes in one line."""
    run, judgement = view.run, view.judgement
    study = run.plan.study or run.run.study or "unknown study"
    return text(
        f"{study}, run {run.name} ({run.run.status or 'state unknown'}): "
        f"{counted(judgement.blocks, 'block')}, {counted(judgement.boots, 'boot')}, "
        f"{judgement.done} of {counted(judgement.planned, 'trial')}, "
        f"{run.run.accelerator or 'unknown accelerator'}\n"
    )


def head(view: View) -> Text:
    """Return the run's name, state and sizes in a line each."""
    run, judgement = view.run, view.judgement
    study = run.plan.study or run.run.study or "unknown study"
    kind = "quick run" if run.run.quick else "run"
    lines = [
        f"{study}, {kind} {run.name} ({run.run.status or 'state unknown'})",
        f"{counted(judgement.blocks, 'block')}, {counted(judgement.boots, 'boot')}, "
        f"{judgement.done} of {counted(judgement.planned, 'trial')} done, "
        f"{judgement.invalid} invalid, {run.run.where_guests_ran}",
    ]
    if taken := sentences.time_taken(run):
        lines.append(taken)
    if judgement.ending:
        lines.append(judgement.ending)
    if judgement.spares and judgement.spares.sentence:
        lines.append(judgement.spares.sentence)
    return text("\n".join(lines) + "\n")


# Show invalid attempts of a run, skipped parts, and the command for time lines.


def left_behind(run: LoadedRun, attempts: Attempts) -> list[RenderableType]:
    """Return a table of invalid attempts and one of skipped parts, if there are any."""
    return [*_invalid(attempts), *_skipped(skipped(run.plan, run.run))]


def time_lines(run: LoadedRun) -> list[RenderableType]:
    """Return the command that draws a traced run's trials; [] for a run without a trace."""
    if level_of(run) == Level.TRACE and any(files.has_trace(trial.folder) for trial in run.trials):
        return [text(f"\nTime line of each trial: labctl timeline {run.name}")]
    return []


def _invalid(attempts: Attempts) -> list[RenderableType]:
    """Return the number of attempts that each arm lost, with the reasons; [] if none did."""
    if not any(arm.invalid for arm in attempts.arms):
        return []
    table = bare_table("Invalid attempts by arm")
    table.add_column("arm", min_width=9, max_width=24, overflow="fold")
    table.add_column("invalid", min_width=9)
    table.add_column("why", overflow="fold")
    for arm in attempts.arms:
        why = "; ".join(few([f"{reason} ({count}×)" for reason, count in arm.reasons], 2))
        table.add_row(text(arm.tuning), text(f"{arm.invalid} of {arm.attempts}"), text(why))
    return [Text(), table]


def _skipped(left_out: Mapping[str, str]) -> list[RenderableType]:
    """Return the parts of the study that this host does not support; [] if it supports all."""
    return [Text(), skipped_table(left_out)] if left_out else []


_VERDICT = "verdict"
_WIDEST = 12
"""Letters of a column: enough for an interval, or for a verdict's longest word."""


class _Footnotes:
    """Number reasons, each given once per report."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def mark(self, reason: str) -> str:
        number = self._numbers.setdefault(reason, len(self._numbers) + 1)
        return f"{NOT_AVAILABLE} [{number}]"

    def lines(self) -> Iterable[str]:
        return (f"[{number}] {reason}" for reason, number in self._numbers.items())


def print_report(
    console: Console, run: LoadedRun, judgement: Judgement, *, html: Path | None = None
) -> None:
    """Print the report; `html` is the path of the page, if there is one."""
    console.print(report(run, judgement))
    # Do not wrap it: users copy it.
    where = "run with --html FILE." if html is None else str(html)
    console.print(text(f"\nHTML report: {where}"), soft_wrap=True)


def report(run: LoadedRun, judgement: Judgement) -> RenderableType:
    """Return the report for rich to print."""
    view = View(run, judgement)
    notes = _Footnotes()
    parts: list[RenderableType] = [head(view), answer_lines(judgement.decision), Text()]
    parts += marked("Warning", judgement.warnings)
    parts += marked("Incomplete", view.other_problems)
    parts += _verdicts(view)
    for place in view.places:
        parts += _place(view, place, notes)
    parts += factors_full(judgement.factors)
    parts += _added(judgement.added)
    parts += study_shown(run)
    parts += left_behind(run, judgement.attempts)
    parts.append(Text())
    parts += [text(line, style="dim") for line in notes.lines()]
    parts += time_lines(run)
    return Group(*parts)


def _verdicts(view: View) -> list[RenderableType]:
    """Return every judged tuning with its verdict and its cost to others; [] if none was judged."""
    table = bare_table(f"Verdicts: change of the primary metric against {view.baseline}")
    table.add_column("tuning", min_width=9, max_width=16, overflow="fold")
    table.add_column("workload", min_width=9, max_width=17, overflow="fold")
    table.add_column("verdict", min_width=9, max_width=14, overflow="fold")
    table.add_column("change", min_width=9, max_width=12, overflow="fold")
    table.add_column("cost to others", overflow="fold")
    for tuning in view.candidates:
        for place in view.places:
            for item in view.judged(place, tuning):
                prices = [p for p in side_costs_of(view, tuning, place) if p.who != "guest"]
                table.add_row(
                    text(tuning),
                    text(place.title.replace(f"{place.workload} ", f"{place.workload}\n", 1)),
                    _verdict_cell(item),
                    _change_cell(item),
                    text("\n".join(f"{price.who} {price.change}" for price in prices)),
                )
    return [Text(), table] if table.row_count else []


def _verdict_cell(item: Comparison, widest: int = 80) -> Text:
    if item.verdict is None:
        return text("")
    row = item.verdict.row
    words = fill(f"{row.symbol} {item.verdict.shown}", widest)
    holm = "\n(by Holm)" if item.by_holm else ""
    return text(words + holm, style=row.style)


def _place(view: View, place: Scenario, notes: _Footnotes) -> list[RenderableType]:
    columns = view.columns(place.workload)
    parts: list[RenderableType] = [_rule(place.title)]
    if how := sentences.direction(view, place):
        parts.append(text(how))
    parts += [Text(), _levels(view, place, columns, notes)]
    guests = [t for t in view.tunings if not view.is_native(t)]
    against_baseline = [(t, view.baseline) for t in guests]
    against_twin = [
        (t, twin) for t in (view.baseline, *view.candidates) if (twin := view.twin(t)) is not None
    ]
    baseline_title = f"Change against {view.baseline}"
    for title, pairs in (
        (baseline_title, against_baseline),
        (f"Change against native ({sentences.native_gap(view)})", against_twin),
    ):
        table = _changes(view, place, columns, pairs, notes, title)
        if table is not None:
            parts += [Text(), table]
    parts += _side_costs(view, place)
    if (found := predictions(view, place)).rows:
        parts += [Text(), prediction_table(found)]
    parts += [Text(), *(small(line) for line in _legend(view, place))]
    return parts


def _levels(view: View, place: Scenario, columns: list[MetricColumn], notes: _Footnotes) -> Table:
    title = "Typical values (geometric means over blocks)"
    table = _table(title, view.column_titles(place, columns))
    for tuning in view.tunings:
        levels = [view.level(tuning, place, column) for column in columns]
        if not any(levels):
            continue
        cells = [
            quantity(level.typical, level.unit)
            if level is not None
            else notes.mark(view.reason(tuning, place, column))
            for level, column in zip(levels, columns, strict=True)
        ]
        table.add_row(text(tuning), *map(text, cells))
    return table


def _changes(
    view: View,
    place: Scenario,
    columns: list[MetricColumn],
    pairs: list[tuple[str, str]],
    notes: _Footnotes,
    title: str,
) -> Table | None:
    """Show per arm the change of each metric with its interval below; None without any."""
    rows = []
    for tuning, against in pairs:
        found = [view.comparison(tuning, against, place, column) for column in columns]
        if tuning == view.control and against == view.baseline:
            found = [view.control_as_comparison(place) if c.primary else None for c in columns]
        if any(found):
            rows.append((tuning, against, found))
    if not rows:
        return None
    judged = any(item is not None and item.verdict for _, _, found in rows for item in found)
    titles = view.column_titles(place, columns)
    if judged:
        titles.insert(1, _VERDICT)
    table = _table(title, titles)
    for tuning, against, found in rows:
        cells = [
            _change_cell(item)
            if item is not None
            else text(_gap(view, tuning, against, place, column, notes))
            for item, column in zip(found, columns, strict=True)
        ]
        if judged:
            first = next((item for item in found if item and item.verdict), None)
            cells.insert(1, _verdict_cell(first, _WIDEST) if first is not None else text(""))
        arm = tuning if against == view.baseline else f"{tuning}\nvs {against}"
        table.add_row(text(arm), *cells)
    return table


def _gap(
    view: View, tuning: str, against: str, place: Scenario, column: MetricColumn, notes: _Footnotes
) -> str:
    """Return the text of a cell without a comparison: the control is only checked by the primary
    metric."""
    if tuning == view.control:
        return ""
    return notes.mark(view.why_not_compared(tuning, against, place, column))


def _change_cell(item: Comparison) -> Text:
    estimate, interval = shown(item)
    return text(f"{estimate}\n{_folded(interval)}".rstrip())


def _folded(interval: str) -> str:
    """Return an interval that wraps between its ends, never inside a number."""
    return interval if len(interval) <= _WIDEST else interval.replace(TO, f"{TO.rstrip()}\n", 1)


def _side_costs(view: View, place: Scenario) -> list[RenderableType]:
    """Return each tuning's effect on guest, neighbour and host; [] if none was measured."""
    side_costs = {tuning: side_costs_of(view, tuning, place) for tuning in view.candidates}
    header = dict.fromkeys(price.who for prices in side_costs.values() for price in prices)
    if not header:
        return []
    table = _table(f"Cost to others: change against {view.baseline}", [*header])
    for tuning, prices in side_costs.items():
        if prices:
            found = {
                price.who: f"{price.change}\n{_folded(price.interval)}".rstrip() for price in prices
            }
            cells = (text(found.get(who, NOT_AVAILABLE)) for who in header)
            table.add_row(text(tuning), *cells)
    return [Text(), table]


def _legend(view: View, place: Scenario) -> Iterable[str]:
    yield sentences.intervals(view, place)
    yield from sentences.calibrated(view, place)
    yield from sentences.inconclusive(view, place)
    yield from sentences.harmless(view, place)
    yield from sentences.left_out(view, place)
    for check in view.checks(place):
        yield check.sentence
    yield from sentences.holm(view, place)
    yield from sentences.diagnostics(view, place)
    yield from sentences.precision(view, place)


def _added(more: Added | None) -> list[RenderableType]:
    """Return the estimates over all blocks of a run if no verdict uses some of them; else []."""
    if more is None:
        return []
    table = _table(f"Over all {more.last} blocks ({more.label})", ["workload", "condition", "all"])
    for item in more.comparisons:
        cells = (text(item.tuning), text(item.workload), text(item.condition))
        table.add_row(*cells, _change_cell(item))
    return [Text(), table]


def _table(title: str, columns: list[str]) -> Table:
    table = bare_table(title)
    table.add_column("arm", min_width=9, overflow="fold")
    for name in columns:
        if name == _VERDICT:
            table.add_column(name, no_wrap=True)
            continue
        # The least width for "−31 to −14 %", since a line cannot wrap at a hyphen.
        heading = text(name.replace("-loop ", " loop "))
        table.add_column(heading, min_width=9, max_width=14, overflow="fold")
    return table


def _rule(title: str) -> Text:
    line = text(f"\n== {title} ", style="bold")
    line.append("=" * max(0, 79 - len(line)))
    line.no_wrap = True
    return line
