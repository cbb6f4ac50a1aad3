"""Run `labctl doctor` and `labctl selftest`: check this host, and all of labctl on it."""

from __future__ import annotations

import textwrap
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from labctl.base.errors import ExitCode, LabctlError, UsageError
from labctl.base.hostfacts import EVERYTHING, Fact, Rests
from labctl.base.paths import StatePaths
from labctl.base.tuning import Level
from labctl.base.wording import counted, metric_title, place_in_words, printable
from labctl.cli.parts.common import (
    console,
    named_run,
    print_json,
    recorded_words,
    results_option,
    state_paths,
)

if TYPE_CHECKING:
    from rich.console import Console

    from labctl.analysis.model import Comparison
    from labctl.analysis.verdicts.table import Verdict
    from labctl.host.accelerator import Requested
    from labctl.host.doctor.check import Finding
    from labctl.host.doctor.since import FactChange
    from labctl.run.commands.checkup import Checkup
    from labctl.run.commands.host_checks import TuningState
    from labctl.run.commands.selftest import SelfTest, SelftestResult
    from labctl.store.run_folder import LoadedRun


# Run `labctl doctor`: check what on this host affects measurements, and what changed since a
# run.


SCHEMA = 1


@click.command("doctor")
@click.option("--for", "study", metavar="STUDY", help="Check the host for this study.")
@click.option(
    "--since", "run_name", metavar="RUN", help="Check which of this run's verdicts still hold."
)
@click.option(
    "--collect",
    "level",
    type=click.Choice([level.value for level in Level]),
    help="With --for: the level of collection (default: the study's).",
)
@click.option(
    "--hwlat",
    "hwlat_s",
    type=click.IntRange(5, 3600),
    metavar="SECONDS",
    help="Also detect firmware activity for this many seconds; each CPU is stopped in turn.",
)
@click.option("--full", "-v", is_flag=True, help="Also list the checks that passed.")
@results_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/doctor.md).")
@click.pass_context
def command(
    context: click.Context,
    study: str | None,
    run_name: str | None,
    level: str | None,
    hwlat_s: int | None,
    full: bool,
    results: Path | None,
    as_json: bool,
) -> int:
    """Check this host: findings, why they matter, and remedies. Changes nothing.

    Exit code 1: something blocks a sweep or, with --since, a verdict no longer holds.
    """
    if study and run_name:
        raise UsageError("'--for' and '--since' exclude each other", hint="Give one of them.")
    if run_name and hwlat_s:
        raise UsageError("'--since' and '--hwlat' exclude each other", hint="Give one of them.")
    if level and not study:
        raise UsageError("--collect needs a study", hint="Name it: --for STUDY.")
    started = time.monotonic()
    places = state_paths(context)
    if run_name:
        return _since(places, run_name, results, as_json, started)

    from labctl.run.commands.checkup import checkup

    found = checkup(places, study, hwlat_s, Level(level) if level else None, results)
    return _show(found, as_json, started, full=full)


def _show(found: Checkup, as_json: bool, started: float, *, full: bool) -> int:
    seconds = time.monotonic() - started
    if as_json:
        print_json(
            {
                "schema": SCHEMA,
                "study": found.study,
                "blocked": found.blocked,
                "seconds": round(seconds, 3),
                "findings": [finding.to_json() for finding in found.findings],
                "foremost": [finding.name for finding in found.foremost],
                "tunings": [tuning.to_json() for tuning in found.tunings],
            }
        )
    else:
        print_checkup(console(), found, seconds, full=full)
    return ExitCode.FOUND if found.blocked else ExitCode.DONE


def _since(
    places: StatePaths, run_name: str, results: Path | None, as_json: bool, started: float
) -> int:
    found = since(named_run(results, run_name).load(), places)
    seconds = time.monotonic() - started
    if as_json:
        print_json({"schema": SCHEMA, **found.to_json(), "seconds": round(seconds, 3)})
    else:
        print_since(console(), found, seconds)
    return ExitCode.FOUND if found.void else ExitCode.DONE


# Print what `labctl doctor --since` says: a run's verdicts, and what voids them by now.
#
# It needs what a run found (analysis) and what the host is now (host), which know nothing of each
# other; only a command may know both.


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictStanding:
    """Hold a verdict of the run; `voided_by`: the changes that void it, () if it stands."""

    tuning: str
    workload: str
    condition: str
    metric: str
    verdict: Verdict
    voided_by: tuple[FactChange, ...]

    def to_json(self) -> dict[str, object]:
        from labctl.base.json import fields_of

        return {
            **fields_of(self, without=("voided_by",)),
            "void": bool(self.voided_by),
            "because": [change.fact.key for change in self.voided_by],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Since:
    run: str
    ended: str
    command: str
    """Command that made the run."""
    changes: tuple[FactChange, ...]
    same: tuple[Fact, ...]
    not_recorded: tuple[Fact, ...]
    verdicts: tuple[VerdictStanding, ...]

    @property
    def void(self) -> tuple[VerdictStanding, ...]:
        return tuple(verdict for verdict in self.verdicts if verdict.voided_by)

    def to_json(self) -> dict[str, object]:
        return {
            "run": self.run,
            "changes": [
                {
                    "fact": change.fact.key,
                    "name": change.fact.name,
                    "then": change.then,
                    "now": change.now,
                    "voids": sorted(change.fact.voids),
                }
                for change in self.changes
            ],
            "same": [fact.key for fact in self.same],
            "not_recorded": [fact.key for fact in self.not_recorded],
            "verdicts": [verdict.to_json() for verdict in self.verdicts],
        }


def since(run: LoadedRun, places: StatePaths) -> Since:
    """Return the run's facts against this host's, and what is left of its verdicts.

    Raises UsageError when the run has recorded nothing of its host.
    """
    from labctl.analysis.judge import judge
    from labctl.analysis.verdicts.table import Says, says
    from labctl.host.doctor.since import compare
    from labctl.host.facts import host_facts

    recorded = run.run.host
    if not recorded:
        raise UsageError(
            f"run '{run.name}' recorded nothing about its host",
            hint=(
                "It was imported, so nothing is known about its host."
                if run.run.imported
                else "It ended before its first boot: run it again."
            ),
        )
    now = {**host_facts(places), "accelerator": _accelerator(run, places)}
    compared = compare({**recorded, "accelerator": run.run.accelerator}, now)
    return Since(
        run=run.name,
        ended=str(run.run.ended_at or "an unknown time"),
        command=str(run.run.command or "labctl sweep STUDY"),
        changes=compared.changes,
        same=compared.same,
        not_recorded=compared.not_recorded,
        verdicts=tuple(
            _standing(item, run, compared.changes)
            for item in judge(run).comparisons
            if says(item.verdict, Says.EFFECT, Says.NO_EFFECT)
        ),
    )


def _standing(item: Comparison, run: LoadedRun, changes: tuple[FactChange, ...]) -> VerdictStanding:
    from labctl.host.doctor.since import rests_on, voided_by

    assert item.verdict is not None
    tunings = {name: tuning.to_json() for name, tuning in run.run.tunings.items()}
    rests = rests_on(tunings.get(item.tuning), tunings.get(run.plan.baseline or ""))
    return VerdictStanding(
        tuning=item.tuning,
        workload=item.workload,
        condition=item.condition,
        metric=item.metric,
        verdict=item.verdict,
        voided_by=tuple(voided_by(rests, changes)),
    )


def _accelerator(run: LoadedRun, places: StatePaths) -> str | None:
    """Return what the run's guests would run under now; None where that can't be told."""
    from labctl.run.planning.images import IMAGE, accelerator_here

    image = run.plan.guest.image or IMAGE
    try:
        return accelerator_here(image, places, _requested(run)).name
    except LabctlError:
        return None


def _requested(run: LoadedRun) -> Requested:
    """Return what the run's command line asked for."""
    from labctl.host.accelerator import Requested

    words = recorded_words(run)
    asked = words[words.index("--accel") + 1 :][:1] if "--accel" in words else []
    choices: dict[str, Requested] = {choice: choice for choice in get_args(Requested)}
    return choices.get("".join(asked), "auto")


# Print doctor's findings: the answer first, what blocks last, next to the prompt; readable without
# colour.


_SECTIONS = {
    "ok": ("FINE", "bold green"),
    "unknown": ("UNKNOWN: could not be determined", "bold"),
    "warn": ("WARNINGS: results are affected, or a feature is unavailable", "bold yellow"),
    "block": ("BLOCKS: no sweep starts, or none is valid, until this is fixed", "bold red"),
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
    from labctl.host.doctor.check import Status

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
    for word, (title, style) in _SECTIONS.items():
        status = Status(word)
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
            _line(console, f"\n{title}: {_groups(found)} (listed with --full)", style)
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
    from labctl.host.doctor.check import Status

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
    from labctl.host.doctor.since import difference

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
        _line(console, "\nThe run has no verdicts.")
    if since.not_recorded:
        _line(console, "\nNOT COMPARED: unknown in the run or now", "bold")
        _row(console, "", ", ".join(fact.name for fact in since.not_recorded))


def _kinds(kinds: frozenset[Rests]) -> str:
    return "everything" if kinds == EVERYTHING else f"tunings of {', '.join(sorted(kinds))}"


def _verdict(console: Console, verdict: VerdictStanding) -> None:
    where = f"{place_in_words(verdict.workload, verdict.condition)}, {metric_title(verdict.metric)}"
    because = ", ".join(change.fact.name for change in verdict.voided_by)
    text = f"{verdict.verdict} ({where})"
    _row(console, verdict.tuning, f"{text}: {because} changed" if because else text)


def _remedy(console: Console, remedy: str) -> None:
    from rich.text import Text

    if not remedy:
        return
    if remedy[0].isupper():
        _row(console, "", f"Do:  {remedy}")
    else:
        # A command in one piece can be copied.
        line = Text(f"{'':{_INDENT}}Do:  {printable(remedy)}")
        console.print(line, soft_wrap=True)


def _row(console: Console, name: str, text: str, style: str = "") -> None:
    from rich.text import Text

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
    from rich.text import Text

    console.print(Text(printable(text), style), soft_wrap=False)


# Run `labctl selftest`: check that all of labctl works on this host, and keep its tools'
# output.


SELFTEST_SCHEMA = 1


@click.command("selftest")
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The bundle, a tar.xz (default: labctl-selftest-… in the current folder).",
)
@click.option("--tuning", "tunings", multiple=True, help="Only these tunings (and the roles).")
@click.option("--accel", type=click.Choice(["auto", "kvm", "tcg"]), default="auto")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/selftest.md).")
@click.option("--quiet", is_flag=True, help="No progress; only the result.")
@click.pass_context
def selftest(
    context: click.Context,
    out: Path | None,
    tunings: tuple[str, ...],
    accel: Requested,
    as_json: bool,
    quiet: bool,
) -> int:
    """Run all of labctl once on this host, and bundle the output of its tools.

    Boots a guest, restores it with every restorable tuning, and uses every collector. Host
    settings are restored after each. The bundle contains nothing that identifies the host.

    Exit code: 0 if everything worked, including KVM and a PMU; 1 if something failed that this
    host supports; 3 if the host has no KVM or no PMU, so that their part is not tested.
    """
    from labctl.base.events import silent
    from labctl.cli.parts.progress import ProgressView
    from labctl.run.commands.selftest import selftest
    from labctl.store.jsonfile import check_folder

    if out is not None:
        check_folder(out)
    places = state_paths(context)
    if quiet:
        result = selftest(places, out, silent, accel=accel, only=tunings)
    else:
        with ProgressView(console(stderr=True)) as view:
            result = selftest(places, out, view.listen, accel=accel, only=tunings)
    if as_json:
        print_json({"schema": SELFTEST_SCHEMA, **result.to_json()})
    else:
        _print(console(), result)
    return _exit_code(result.outcome)


def _exit_code(outcome: SelftestResult) -> ExitCode:
    if outcome.failed:
        return ExitCode.FOUND
    return ExitCode.DONE if outcome.verifies_all else ExitCode.HOST


def _print(console: Console, result: SelfTest) -> None:
    from rich.text import Text

    from labctl.base.hostfacts import kvm_caveat, pmu_caveat
    from labctl.base.wording import printable
    from labctl.report.parts import bare_table
    from labctl.run.commands.selftest import FAILED, NOT_HERE, RAN

    outcome = result.outcome
    console.print(Text(printable(outcome.label), style="bold"))
    table = bare_table("", "shown", "what", "why")
    for claim in outcome.claims:
        table.add_row("yes" if claim.shown else "NO", claim.what, Text(printable(claim.why)))
    console.print(table)
    counts = {
        state: sum(tuning.state == state for tuning in outcome.tunings)
        for state in (RAN, FAILED, NOT_HERE)
    }
    shown = ", ".join(f"{count} {state}" for state, count in counts.items())
    console.print(Text(f"\nRestorable tunings: {shown}."))
    for tuning in outcome.tunings:
        if tuning.state != RAN:
            console.print(Text(printable(f"  {tuning.name} {tuning.state}: {tuning.why}")))
    if outcome.failure:
        console.print(Text(printable(f"The trials ended early: {outcome.failure}"), style="bold"))
    for caveat in filter(None, (kvm_caveat(), pmu_caveat())):
        console.print(Text(f"\n{caveat}"))
    console.print(
        Text(printable(f"\nWrote {result.bundle}: {result.files} files, {result.seconds:.0f} s."))
    )
