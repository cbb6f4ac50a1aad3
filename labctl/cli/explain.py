"""Run `labctl explain`: say what a word of a report means."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import click

from labctl.base.errors import UsageError
from labctl.cli.parts.common import console, print_json

_MOST_SHOWN = 6
"""Sources of a metric that are shown; docs/metrics.md has all."""


@dataclass(frozen=True, slots=True)
class _Meaning:
    """Hold what one kind of word means: `kind` is "term", "metric" or "tuning"; `more` names where
    it is explained further."""

    kind: str
    name: str
    text: str
    more: str


@click.command("explain")
@click.argument("words", metavar="[TERM]...", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(words: tuple[str, ...], as_json: bool) -> None:
    """Explain TERM: a word of a report, a verdict, a metric or a tuning.

    Without TERM, list all terms.
    """
    word = " ".join(words).strip()
    if not word:
        _list_words(as_json=as_json)
        return
    found = list(_meanings(word))
    if not found:
        from labctl.base.errors import nearest

        raise UsageError(
            f"no term, metric or tuning '{word}'",
            hint=nearest(word, [name for names in _words().values() for name in names]),
        )
    if as_json:
        print_json([asdict(one) for one in found])
        return
    from rich.padding import Padding

    from labctl.report.parts import text

    out = console()
    for number, one in enumerate(found):
        if number:
            out.print()
        out.print(text(f"{one.name} ({one.kind})", style="bold"))
        out.print(Padding(text(one.text), (0, 0, 0, 2), expand=False))
        out.print(Padding(text(f"More: {one.more}", style="dim"), (0, 0, 0, 2), expand=False))


def _words() -> dict[str, list[str]]:
    """Return what can be explained, by heading."""
    from labctl.analysis.verdicts.table import Verdict
    from labctl.base.metrics.table import METRICS
    from labctl.base.plugins import Group, names
    from labctl.base.wording import glossary
    from labctl.study.tunings import tuning_names

    verdicts = [str(one) for one in Verdict]
    return {
        "Verdicts": verdicts,
        "Terms": [name for name in glossary() if name not in verdicts],
        "Metrics": list(dict.fromkeys([*(one.name for one in METRICS), *names(Group.METRICS)])),
        "Tunings": tuning_names(),
    }


def _list_words(*, as_json: bool) -> None:
    found = _words()
    if as_json:
        print_json({heading.lower(): names for heading, names in found.items()})
        return
    from rich.columns import Columns

    out = console()
    for heading, names in found.items():
        out.print(f"[bold]{heading}[/bold]")
        out.print(Columns(names, padding=(0, 2), column_first=True))
        out.print()
    out.print("'labctl explain TERM' explains one of them.", markup=False)


def _meanings(word: str) -> Iterator[_Meaning]:
    from labctl.base.wording import glossary

    for term in glossary().find(word):
        yield _Meaning("term", term.name, term.plain, "docs/glossary.md")
    yield from _metrics(word)
    yield from _tunings(word)


def _metrics(word: str) -> Iterator[_Meaning]:
    from labctl.base.metrics.table import METRICS, metric_of
    from labctl.base.wording import metric_title, plain
    from labctl.store.samples import base_name

    row = metric_of(base_name(word))
    if row is None:
        folded = word.casefold()
        row = next((one for one in METRICS if metric_title(one.name).casefold() == folded), None)
    if row is None:
        return
    forms = (row.forms, *row.elsewhere.values())
    exact = [own[word] for own in forms if word in own]
    said = dict.fromkeys(exact or [text for own in forms for text in own.values()])
    sources = [text for text in said if text][:_MOST_SHOWN]
    yield _Meaning(
        "metric",
        word if exact else row.name,
        f"{metric_title(row.name)}, in {row.unit}; {_direction(row.better)}. "
        f"From: {plain('; '.join(sources))}.",
        "docs/metrics.md" if row in METRICS else "docs/plugins.md",
    )


def _direction(better: object) -> str:
    from labctl.base.units import Better

    if better is Better.NEITHER:
        return "no direction is better"
    return f"{better} is better"


def _tunings(word: str) -> Iterator[_Meaning]:
    from labctl.study.tunings import load_tuning, tuning_names

    names = tuning_names()
    if word in names or all(part in names for part in word.split("+")):
        tuning = load_tuning(word)
        yield _Meaning(
            "tuning", tuning.name, tuning.description, f"'labctl tuning show {tuning.name}'"
        )
