"""Print doctor's findings: the answer first, what blocks last, next to the prompt; readable without
colour."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from labctl.base.hostfacts import EVERYTHING, Rests
from labctl.base.wording import counted, metric_title, place_in_words, printable
from labctl.host.doctor.check import Finding, Status
from labctl.host.doctor.since import difference

if TYPE_CHECKING:
    from labctl.cli.doctor_since import Since, VerdictStanding
    from labctl.run.commands.checkup import Checkup
    from labctl.run.commands.study_checks import TuningState

_SECTIONS = {
    Status.OK: ("FINE", "bold green"),
    Status.UNKNOWN: ("UNKNOWN: could not be determined", "bold"),
    Status.WARN: ("WARNINGS: results are affected, or a feature is unavailable", "bold yellow"),
    Status.BLOCK: ("BLOCKS: no sweep starts, or none is valid, until this is changed", "bold red"),
}
_FIRST_STUDY = "pinning"
"""Study by which the most important warnings are chosen when none is named."""
_WIDEST = 110
"""Longer lines are hard to read."""
_INDENT = 20


def print_checkup(
    console: Console, checkup: Checkup, seconds: float, *, full: bool = False
) -> None:
    """Print the answer and the warnings that matter most, then the other findings, what is fine in
    a line unless `full`, and, for a study, each tuning; what blocks comes last."""
    counts = {
        status: sum(finding.status is status for finding in checkup.findings) for status in Status
    }
    for_whom = f" for '{checkup.study}'" if checkup.study else ""
    blocking = [finding.name for finding in checkup.findings if finding.status is Status.BLOCK]
    answer = f"Blocked by {', '.join(blocking)}" if blocking else "Nothing blocks"
    _line(
        console,
        f"{answer}; {counted(counts[Status.WARN], 'warning')}.",
        "bold red" if blocking else "bold green",
    )
    _line(
        console,
        f"labctl doctor{for_whom}: {counted(len(checkup.findings), 'check')}, "
        f"{counts[Status.UNKNOWN]} unknown, {counts[Status.OK]} fine ({seconds:.1f} s)",
    )
    if checkup.foremost:
        _line(console, f"\nMOST IMPORTANT for '{checkup.study or _FIRST_STUDY}'", "bold yellow")
        _section(console, checkup.foremost)
    for status, (title, style) in _SECTIONS.items():
        if status is Status.BLOCK and checkup.study:
            _line(console, f"\nTUNINGS of '{checkup.study}'", "bold")
            for state in checkup.tunings:
                _tuning(console, state)
        found = [
            finding
            for finding in checkup.findings
            if finding.status is status and finding not in checkup.foremost
        ]
        if found and status is Status.OK and not full:
            _line(console, f"\n{title}: {_groups(found)} (a row each with --full)", style)
        elif found:
            _line(console, f"\n{title}", style)
            _section(console, found)
    if not counts[Status.BLOCK]:
        _line(console, "\nNothing blocks.", "bold green")


def _groups(found: Iterable[Finding]) -> str:
    """Return how many findings each group has: "memory 8, rights 5"."""
    counts = Counter(finding.group for finding in found)
    return ", ".join(f"{group} {count}" for group, count in counts.items())


def _section(console: Console, findings: Iterable[Finding]) -> None:
    group = ""
    for finding in findings:
        if finding.group != group:
            group = finding.group
            _line(console, f" {group}", "italic")
        _row(console, finding.name, finding.found)
        if finding.status is not Status.OK:
            _row(console, "", f"Why: {finding.why}", "dim")
            _remedy(console, finding.remedy)


def _tuning(console: Console, state: TuningState) -> None:
    if state.runs:
        _row(console, state.name, "runs here")
        for warning in state.warnings:
            _row(console, "", f"but {warning}")
        return
    _row(console, state.name, f"NOT HERE: {'; '.join(state.lacking)}")
    for remedy in state.remedies:
        _remedy(console, remedy)


def print_since(console: Console, since: Since, seconds: float) -> None:
    """Print what has changed since a run, and which of its verdicts stand."""
    void = since.void
    changed = counted(len(since.changes), "fact") if since.changes else "no fact"
    _line(
        console,
        f"Since run {since.run} (ended {since.ended}): {changed} changed, "
        f"{len(void)} of {counted(len(since.verdicts), 'verdict')} void ({seconds:.1f} s)",
        "bold",
    )
    if since.changes:
        _line(console, "\nCHANGED", "bold yellow")
    for change in since.changes:
        then, now = difference(change)
        _row(console, change.fact.name, f"{then}  →  {now}")
        _row(console, "", f"Voids verdicts on {_kinds(change.fact.voids)}.", "dim")
    for title, style, verdicts in (
        ("VOID: measure again before you rely on it", "bold red", void),
        ("STILL HOLDS", "bold green", [v for v in since.verdicts if not v.voided_by]),
    ):
        if verdicts:
            _line(console, f"\n{title}", style)
        for verdict in verdicts:
            _verdict(console, verdict)
    if void:
        _line(console, "")
        _remedy(console, since.command)
    if not since.verdicts:
        _line(console, "\nThe run has no verdict that anything could void.")
    if since.not_recorded:
        _line(console, "\nNOT COMPARED: unknown then or now", "bold")
        _row(console, "", ", ".join(fact.name for fact in since.not_recorded))


def _kinds(kinds: frozenset[Rests]) -> str:
    return "everything" if kinds == EVERYTHING else f"tunings of {', '.join(sorted(kinds))}"


def _verdict(console: Console, verdict: VerdictStanding) -> None:
    where = f"{place_in_words(verdict.workload, verdict.condition)}, {metric_title(verdict.metric)}"
    because = ", ".join(change.fact.name for change in verdict.voided_by)
    text = f"{verdict.verdict} ({where})"
    _row(console, verdict.tuning, f"{text}: {because} changed" if because else text)


def _remedy(console: Console, remedy: str) -> None:
    if not remedy:
        return
    if remedy[0].isupper():
        _row(console, "", f"Do:  {remedy}")
    else:
        # A command in one piece can be copied.
        line = Text(f"{'':{_INDENT}}Do:  {printable(remedy)}")
        console.print(line, soft_wrap=True)


def _row(console: Console, name: str, text: str, style: str = "") -> None:
    width = min(console.width, _WIDEST)
    lines = textwrap.wrap(
        printable(text),
        width - _INDENT,
        subsequent_indent="     " if text.startswith(("Why: ", "Do:  ")) else "",
        break_on_hyphens=False,
    )
    for number, line in enumerate(lines or [""]):
        left = f"  {printable(name)} " if number == 0 and name else ""
        if len(left) > _INDENT:
            console.print(Text(left.rstrip()), soft_wrap=True)
            left = ""
        row = Text(f"{left:{_INDENT}}")
        row.append(line, style)
        console.print(row, soft_wrap=True)


def _line(console: Console, text: str, style: str = "") -> None:
    console.print(Text(printable(text), style), soft_wrap=False)
