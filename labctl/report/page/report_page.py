"""Write the report as one self-contained page: no network, no script, no other file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from labctl.analysis.model import Judgement
from labctl.analysis.side_costs import Price, side_costs_of
from labctl.analysis.view import View
from labctl.report import sentences
from labctl.report.arm_table import ArmTable, arm_tables, explanation, host_line
from labctl.report.page import appendix, dots
from labctl.report.page.factor_page import factor_part
from labctl.report.page.overview import overviews
from labctl.report.page.pinmap import WIDTH as PIN_WIDTH
from labctl.report.page.pinmap import pin_maps
from labctl.report.page.scenario_page import Section, ShownChange, change, room_for, section
from labctl.report.page.terms import Terms
from labctl.report.study_parts import StudyPart, study_part
from labctl.report.templating import template
from labctl.store.jsonfile import check_folder, write_bytes, write_output
from labctl.store.run_folder import PAGE, LoadedRun

# All that the template may ask for: a key that an old or broken run lacks is None there.

_OPEN_WARNINGS = 4
"""The gravest come first; the others are folded, so that they don't hide the verdicts."""
_MOST_ARMS = 12
"""Rows of an arm table that are not folded."""
_MOST_TABLES = 4
"""Arm tables on the first screens; the sections have the numbers of the others."""
_COLUMNS = 4
"""Places that stand side by side: what fits on paper."""


@dataclass(frozen=True, slots=True)
class _Cell:
    """Show a tuning in a scenario: its verdict, and its side costs."""

    change: ShownChange
    side_costs: tuple[Price, ...]


@dataclass(frozen=True, slots=True)
class _MatrixRow:
    tuning: str
    description: str
    cells: tuple[_Cell | None, ...]


@dataclass(frozen=True, slots=True)
class _Matrix:
    """Show scenarios side by side, with the tunings below and the checks under them."""

    sections: tuple[Section, ...]
    rows: tuple[_MatrixRow, ...]
    checks: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]


def page(run: LoadedRun, judgement: Judgement, folder: Path) -> str:
    """Return the page's HTML. `folder` is the run's: the domain XML is read from there."""
    view = View(run, judgement)
    room, attempts = room_for(view), dots.invalid_attempts(view)
    sections = [
        section(view, place, number, attempts, room)
        for number, place in enumerate(view.places, start=1)
    ]
    invalid = appendix.invalid_trials(run)
    pictured = overviews(view)
    more = judgement.added
    arms = [table for table in arm_tables(view) if _is_judged(view, table)]
    factors, study = factor_part(view), study_part(run)
    warnings = [*judgement.warnings, *(f"Not whole: {text}" for text in view.other_problems)]
    return template("page.html.j2").render(
        run=run,
        record=run.run,
        plan=run.plan,
        judgement=judgement,
        view=view,
        answer=judgement.decision,
        warnings=warnings[:_OPEN_WARNINGS],
        more_warnings=warnings[_OPEN_WARNINGS:],
        arm_tables=arms,
        arm_notes=sorted(dict(note for table in arms for note in table.notes).items()),
        explanation=explanation(arms),
        host_line=host_line(view),
        MOST_ARMS=_MOST_ARMS,
        MOST_TABLES=_MOST_TABLES,
        terms=Terms(),
        overviews=pictured,
        more_compared=sum(len(g.bars) for o in pictured[1:] for g in o.groups)
        + sum(o.left_out for o in pictured),
        contents=_contents(view, run, study, sections, has_invalid=bool(invalid)),
        native_gap=sentences.native_gap(view),
        matrices=[
            _matrix(view, sections[at : at + _COLUMNS]) for at in range(0, len(sections), _COLUMNS)
        ],
        sections=sections,
        factors=factors,
        study=study,
        whole=room.whole,
        added=[(item, change(item)) for item in more.comparisons] if more else [],
        pin_width=PIN_WIDTH,
        no_reason=appendix.NO_REASON,
        missing=appendix.missing(judgement.unavailable),
        invalid=invalid[: appendix.MOST_INVALID],
        invalid_left=len(invalid) - appendix.MOST_INVALID,
        invalid_kinds=appendix.invalid_kinds(invalid),
        orders=appendix.orders(run),
        versions=appendix.versions(run),
        facts=appendix.facts(run),
        hashed=appendix.hashed(run),
        skipped=appendix.left_out(run),
        xml=appendix.xml_differences(run, folder, view.baseline),
        pins=pin_maps(run.run),
        notes=run.run.notes,
    )


def _is_judged(view: View, table: ArmTable) -> bool:
    return any(view.judged(table.place, tuning) for tuning in view.candidates)


def write_page(
    run: LoadedRun, judgement: Judgement, folder: Path, target: Path | None = None
) -> Path:
    """Write the page to `target`, by default into the run's folder; returns where it lies.

    Raises UsageError when there is no folder to write it to.
    """
    if target is None:
        target = folder / PAGE
        write_bytes(target, page(run, judgement, folder).encode(), below=folder)
    else:
        check_folder(target)
        write_output(target, page(run, judgement, folder).encode())
    return target


def _contents(
    view: View,
    run: LoadedRun,
    study: StudyPart,
    sections: Sequence[Section],
    *,
    has_invalid: bool,
) -> list[tuple[str, str]]:
    """Return the page's parts that it has, as (anchor, title)."""
    judgement = view.judgement
    parts: list[tuple[str, str, object]] = [
        ("verdicts", "Verdicts", sections and view.candidates),
        *((f"place-{section.number}", section.title, True) for section in sections),
        ("added", "Over all blocks", judgement.added),
        ("factors", "Factors", judgement.factors),
        ("tables", "The study's findings", study.tables),
        ("published", "Published elsewhere", study.published),
        ("unavailable", "Not available", judgement.unavailable),
        ("invalid", "Invalid and skipped", has_invalid or appendix.left_out(run)),
        ("setup", "How it was set up", True),
        ("again", "How to reproduce it", True),
        ("understanding", "Understanding this report", True),
    ]
    return [(anchor, title) for anchor, title, there in parts if there]


def _matrix(view: View, sections: Sequence[Section]) -> _Matrix:
    places = [view.places[section.number - 1] for section in sections]
    rows = []
    for tuning in view.candidates:
        cells = []
        for place in places:
            judged = next(iter(view.judged(place, tuning)), None)
            prices = tuple(
                price for price in side_costs_of(view, tuning, place) if price.who != "guest"
            )
            cells.append(_Cell(change(judged), prices) if judged is not None else None)
        rows.append(_MatrixRow(tuning, view.description(tuning), tuple(cells)))
    checks = tuple(
        (arm, tuple(sentences.check_words(view, place, name) for place in places))
        for name, arm in (("control", view.control), ("known_loss", view.known_loss))
    )
    return _Matrix(tuple(sections), tuple(rows), checks)
