"""Write the tables of docs/ that come from tables of the code (`make docs`); the prose stays."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import groupby
from operator import attrgetter, itemgetter
from pathlib import Path

from labctl.analysis.effects.cells import LEAST
from labctl.analysis.verdicts.table import Verdict
from labctl.base.hostfacts import EVERYTHING, FACTS, Fact, Rests
from labctl.base.metrics.row import Metric, Table, Zero
from labctl.base.metrics.table import METRICS, TABLES
from labctl.base.units import ZERO_IS_USUAL, Better
from labctl.cli.advise import PLATFORMS
from labctl.collect.table import COLLECTORS
from labctl.host.doctor import CHECKS
from labctl.host.doctor.check import Check, S
from labctl.report.export.formats import FORMATS
from labctl.report.page.pictures import PICTURES
from labctl.rollout.platforms import Entry, platform
from labctl.run.commands.host_checks import CHECKS as STUDY_CHECKS
from labctl.store.samples import labels_of
from labctl.study.conditions import NeighbourFile
from labctl.workloads.registry import checkers
from labctl.workloads.setting import BooleanParameter, IntegerParameter, NumberParameter, Parameter
from tools.key_tables import table

ROOT = Path(__file__).parents[1]
GLOSSARY = ROOT / "docs/glossary.md"

_TABLE = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- end of table -->\n)", re.DOTALL)
_ARROWS = {Better.HIGHER: "↑", Better.LOWER: "↓", Better.NEITHER: "–"}


def page(name: str, text: str) -> str:
    """Return the page with its tables as the rows are now. Raises ValueError where a mark names no
    table, and where a table has no mark or two."""
    tables = PAGES[name]
    marked = [mark[2] for mark in _TABLE.finditer(text)]
    if sorted(marked) != sorted(tables):
        raise ValueError(f"{name}: expected a mark for each of {list(tables)}, found {marked}")
    return _TABLE.sub(lambda mark: f"{mark[1]}{tables[mark[2]]()}{mark[3]}", text)


def glossary(text: str) -> str:
    """Return the glossary with an entry for each verdict, as its row has it, in alphabetical
    order."""
    head, *entries = re.split(r"^(?=\*\*)", text, flags=re.MULTILINE)
    known = dict(entry.strip().split(": ", 1) for entry in entries)
    known |= {f"**{one}**": one.row.means for one in Verdict}
    return head + "\n".join(f"{term}: {known[term]}\n" for term in sorted(known, key=alphabetical))


def alphabetical(term: str) -> str:
    """Return what a term of the glossary is sorted by."""
    return term.strip("*").casefold().replace("α", "alpha").replace("δ", "delta")


def _exports() -> str:
    alike = groupby(FORMATS, attrgetter("gives"))
    return _lines(
        ("command", "gives"),
        (
            (
                f"`labctl report RUN --format {one.name}`"
                + "".join(f", `--format {other.name}`" for other in more),
                gives,
            )
            for gives, (one, *more) in alike
        ),
    )


def _symbols() -> str:
    return _lines(
        ("symbol", "verdict", "means"),
        (
            (row.symbol, f"{row.shown} (JSON: {one})" if row.shown else str(one), row.means)
            for one in Verdict
            for row in (one.row,)
        ),
    )


def _pictures(*, leads: bool) -> str:
    return "\n".join(f"**{one.title}.** {one.shows}\n" for one in PICTURES if one.leads is leads)


def _verdicts() -> str:
    return _lines(("verdict", "means"), ((str(one), one.row.means) for one in Verdict))


def _checks() -> str:
    def rows(checks: Iterable[Check[S]]) -> Iterator[tuple[str, ...]]:
        return ((f"`{one.name}`", one.group, one.why) for one in checks)

    return _lines(("check", "group", "why it matters"), [*rows(CHECKS), *rows(STUDY_CHECKS)])


def _facts() -> str:
    def voids(fact: Fact) -> str:
        return (
            "every one"
            if fact.voids == EVERYTHING
            else "of tunings of " + ", ".join(one for one in Rests if one in fact.voids)
        )

    rows = ((fact.name, voids(fact)) for fact in FACTS if fact.voids)
    return _lines(("fact", "verdicts that it voids"), rows)


def _workloads() -> str:
    return _lines(
        ("program", "operation", "rate", "suggested primary metric", "duration"),
        (
            (
                f"`{one.name}`",
                one.operation,
                f"`{one.rate_metric}`" if one.rate_metric else "none",
                f"`{one.primary}`",
                one.durations,
            )
            for one in checkers().values()
        ),
    )


def _collectors() -> str:
    return _lines(
        ("collector", "level", "on the side", "gives", "files of its own"),
        (
            (
                f"`{one.name}`",
                f"`{one.level}`",
                ", ".join(one.sides),
                one.gives,
                ", ".join(f"`{file}`" for file in one.raw) or "–",
            )
            for one in COLLECTORS
        ),
    )


def _parameters() -> str:
    def values(of: Parameter) -> str:
        if isinstance(of, IntegerParameter | NumberParameter):
            return f"{of.minimum:,} to {of.maximum:,}"
        if isinstance(of, BooleanParameter):
            return "`true`, `false`"
        return ", ".join(f"`{choice}`" for choice in of.choices)

    return _lines(
        ("program", "parameter", "default", "values", ""),
        (
            (f"`{one.name}`", f"`{of.name}`", f"`{of.default}`", values(of), of.description)
            for one in checkers().values()
            for of in one.parameters
        ),
    )


def _metrics(table: Table) -> str:
    """Return the rows of one table; keys that differ in nothing else share a line."""
    lines = [line for metric in METRICS for line in _metric(metric, table)]
    return _lines(
        ("key", "unit", "better", "compared by", "from"),
        ((_named(key for _, key in same), *rest) for rest, same in groupby(lines, itemgetter(0))),
    )


def _platform(name: str) -> str:
    table = platform(name)

    def field(entry: Entry) -> str:
        said = "; ".join(f"{kind} `{text}`" for kind, text in entry.lines)
        said = said or (f"by `{entry.by}`" if entry.by else f"already: {entry.already}")
        said = re.sub(r"\{\{|\}\}", lambda found: found[0][0], said)
        page = f"[{said}]({table.docs[entry.docs]})" if entry.docs else said
        values = [
            one if one == its or not its else f"{one} as {its}" for one, its in entry.values.items()
        ]
        limits = [f"only {', '.join(values)}"] if values and entry.say else []
        limits += [f"with {' and '.join(f'`{key}`' for key in entry.needs)}"] if entry.needs else []
        limits += [f"otherwise: {entry.cannot}"] if entry.cannot else []
        return ", ".join((page, *limits))

    rows = [
        (_named(keys.split()), field(entry), entry.since or table.since)
        for keys, entry in table.keys.items()
        if entry.say or entry.by or entry.already
    ]
    lacking = [
        (_named(keys.split()), f"cannot be set there: {entry.cannot}", "")
        for keys, entry in table.keys.items()
        if not (entry.say or entry.by or entry.already)
    ]
    return f"Read: {table.checked}.\n\n" + _lines(("key", "field", "since"), [*rows, *lacking])


def _lines(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table as Markdown."""
    lines = (" | ".join(cell.replace("|", r"\|") for cell in row) for row in (head, *rows))
    first, *others = (f"| {line} |\n" for line in lines)
    return "".join((first, "|---" * len(head) + "|\n", *others))


def _named(keys: Iterable[str]) -> str:
    return ", ".join(f"`{key}`" for key in sorted(keys, key=lambda key: (len(key), key)))


def _metric(metric: Metric, table: Table) -> Iterator[tuple[tuple[str, ...], str]]:
    own = metric.forms if metric in TABLES[table] else {}
    for keys, text in {**own, **metric.elsewhere.get(table, {})}.items():
        for key in keys.split():
            labels = {name: value.split("|")[0] for name, value in labels_of(key).items()}
            better = _ARROWS[metric.better_of(labels)]
            yield (str(metric.unit), better, _scale(metric), text), key


def _scale(metric: Metric) -> str:
    if not metric.compared:
        return "nothing"
    if metric.unit in ZERO_IS_USUAL or metric.zero is Zero.USUAL:
        return "difference"
    scale = "ratio"
    if metric.counts is not None:
        scale += f" from {math.ceil(LEAST[metric.counts])} {metric.counts} on"
    return f"{scale}; difference against native" if metric.zero is Zero.NATIVE else scale


PAGES: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "docs/collectors.md": {"collectors": _collectors},
    "docs/metrics.md": {table.value: partial(_metrics, table) for table in Table},
    "docs/doctor.md": {"checks": _checks, "facts": _facts},
    "docs/report.md": {
        "verdicts": _symbols,
        "pictures above": partial(_pictures, leads=True),
        "pictures": partial(_pictures, leads=False),
    },
    "docs/report-schema.md": {"exports": _exports, "verdicts": _verdicts},
    "docs/conditions.md": {"neighbour keys": partial(table, NeighbourFile)},
    "docs/platforms.md": {name: partial(_platform, name) for name in PLATFORMS},
    "docs/workloads.md": {"workloads": _workloads, "parameters": _parameters},
}


if __name__ == "__main__":
    for name in PAGES:
        (ROOT / name).write_text(page(name, (ROOT / name).read_text()))
    GLOSSARY.write_text(glossary(GLOSSARY.read_text()))
