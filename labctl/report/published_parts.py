"""Show published results beside this run's ratios, in every form of the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.text import Text

from labctl.analysis.answer.words import capital
from labctl.analysis.studies import Agreement, Published, Repeated, published
from labctl.base.notation import change, changes
from labctl.base.wording import counted, metric_title, place_in_words
from labctl.report.parts import bare_table, small, text
from labctl.store.records.plan_record import PlanRecord, PublishedResult
from labctl.store.run_folder import LoadedRun

CAUTION = (
    "Published figures come from other hardware, kernels and loads: only their ratio and "
    "direction can be compared with this run's, each with its own interval. Neither proves "
    "or refutes the other."
)

_STYLES = {str(Agreement.SAME): "green", str(Agreement.OTHER): "yellow"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRow:
    """Show one published result as text; `source`: the letter of its source."""

    arms: str
    where: str
    metric: str
    ours: str
    interval: str
    published: str
    agreement: str
    why: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedPart:
    caution: str
    sources: tuple[str, ...]
    rows: tuple[PublishedRow, ...]


def published_part(run: LoadedRun) -> PublishedPart | None:
    """Return the part for the page; None if the run's study repeats no published result."""
    found = published(run)
    if not found.results:
        return None
    return PublishedPart(
        caution=_caution(run), sources=found.sources, rows=tuple(map(_row, found.results))
    )


def _caution(run: LoadedRun) -> str:
    """Return the notes of the table, and the study's expectation under this run's accelerator."""
    expected = run.plan.expects.get(run.run.accelerator or "", "")
    return f"{CAUTION} {expected}".rstrip()


def expected_table(plan: PlanRecord) -> list[RenderableType]:
    """Return the published results and the expectation of a plan's study, for a terminal; [] if the
    study repeats no published result."""
    if not any(source.results for source in plan.published):
        return []
    table = bare_table("Expected: published figures, tuning against its reference")
    for column, width in (("arms", 28), ("metric", 26), ("published", 9), ("where", 14)):
        table.add_column(column, max_width=width, overflow="fold")
    for item in (item for source in plan.published for item in source.results):
        table.add_row(
            text(_arms(item)),
            text(metric_title(item.metric)),
            text(published_change(item)),
            text(_where(item) or "each workload"),
        )
    names = {"native": "Natively", "kvm": "Under KVM", "tcg": "Under TCG"}
    said = [
        small(f"{names.get(under, under)}: {sentence}") for under, sentence in plan.expects.items()
    ]
    return [Text(), table, *said]


_SHORT_ROWS = 16
"""Published results in the short report; the full report has all."""


def published_table(run: LoadedRun, *, is_short: bool = False) -> list[RenderableType]:
    """Return the lines for a terminal of 80 columns; [] if the run's study repeats no published
    result. `is_short`: only the first results, with those that this run measured before others."""
    found = published(run)
    if not found.results:
        return []
    rows = [_row(item) for item in found.results]
    left_out = 0
    if is_short:
        rows = sorted(rows, key=lambda row: bool(row.why))[:_SHORT_ROWS]
        left_out = len(found.results) - len(rows)
    parts: list[RenderableType] = []
    for where in dict.fromkeys(row.where for row in rows):
        here = [row for row in rows if row.where == where]
        parts += [Text(), _table(f"Published elsewhere, beside {where}", here)]
        parts += [small(f"{why}: {', '.join(names)}.") for why, names in _reasons(here).items()]
    if left_out:
        parts.append(small(f"{counted(left_out, 'more published result')}: --full"))
    named = {row.source for row in rows}
    parts += [
        small(f"[{_letter(n)}] {source}")
        for n, source in enumerate(found.sources)
        if _letter(n) in named
    ]
    return [*parts, small(_caution(run))]


def _table(title: str, rows: Sequence[PublishedRow]) -> RenderableType:
    table = bare_table(title)
    for column, width in (("arms", 23), ("metric", 20), ("here", 15), ("published", 9), ("", 9)):
        table.add_column(column, max_width=width, overflow="fold")
    for row in rows:
        table.add_row(
            text(row.arms),
            text(f"{row.metric} [{row.source}]"),
            text("\n".join(filter(None, (row.ours, row.interval)))),
            text(row.published),
            text(row.agreement, style=_STYLES.get(row.agreement)),
        )
    return table


def _reasons(rows: Sequence[PublishedRow]) -> dict[str, list[str]]:
    """Return the reasons for results that are not shown, with their metrics."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.why:
            names = reasons.setdefault(capital(f"{row.agreement} ({row.why})"), [])
            names.append(f"{row.arms} {row.metric} [{row.source}]")
    return reasons


def published_json(run: LoadedRun) -> dict[str, object] | None:
    """Return JSON with the keys of docs/report-schema.md; None if the run's study repeats no
    published result.
    """
    found = published(run)
    if not found.results:
        return None
    return {"sources": list(found.sources), "results": [_json(found, i) for i in found.results]}


def published_change(item: Repeated | PublishedResult) -> str:
    """Return a published change, or only its direction."""
    ratio = item.published if isinstance(item, Repeated) else item.ratio
    if ratio is not None:
        return change(ratio)
    return "rises" if item.direction == "higher" else "falls"


def _row(item: Repeated) -> PublishedRow:
    ours = changes(item.ratio, item.low, item.high)
    return PublishedRow(
        arms=_arms(item),
        where=place_in_words(item.workload, item.condition),
        metric=metric_title(item.metric),
        ours=ours.estimate,
        interval=ours.interval,
        published=published_change(item),
        agreement=str(item.agreement),
        why=item.why,
        source=_letter(item.source),
    )


def _arms(item: Repeated | PublishedResult) -> str:
    """Return the two sides of a comparison: two arms, or two levels of factors in one arm."""
    arms = f"{item.tuning} : {item.against}"
    if item.against_workload is None:
        return arms
    ours, theirs = _levels(item.workload or ""), _levels(item.against_workload)
    levels = " : ".join(
        ", ".join(one for one in mine if one not in other)
        for mine, other in ((ours, theirs), (theirs, ours))
    )
    return f"{levels} ({item.tuning if item.tuning == item.against else arms})"


def _where(item: PublishedResult) -> str | None:
    """Return the workload; for a cell that is compared with another, with the levels that both
    have."""
    if item.against_workload is None or item.workload is None:
        return item.workload
    other = _levels(item.against_workload)
    return ", ".join(one for one in _levels(item.workload) if one in other)


def _levels(workload: str) -> list[str]:
    """Return the levels in a cell's name (`labctl.study.factors`)."""
    return workload.partition("[")[2].removesuffix("]").split(",")


def _letter(number: int) -> str:
    """Return a, b, c …: digits are the report's own footnotes."""
    return chr(ord("a") + number % 26)


def _json(found: Published, item: Repeated) -> dict[str, object]:
    return {
        "tuning": item.tuning,
        "against": item.against,
        "workload": item.workload,
        "against_workload": item.against_workload,
        "condition": item.condition,
        "metric": item.metric,
        "published_ratio": item.published,
        "published_direction": item.direction,
        "ratio": item.ratio,
        "low": item.low,
        "high": item.high,
        "blocks": item.blocks,
        "agreement": str(item.agreement),
        "why": item.why or None,
        "source": found.sources[item.source],
    }
