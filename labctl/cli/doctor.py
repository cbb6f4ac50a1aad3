"""Run `labctl doctor`: check what on this host affects measurements, and what changed since a
run.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from labctl.base.errors import ExitCode, UsageError
from labctl.base.levels import Level
from labctl.cli.common import console, named_run, print_json, results_option, state_paths

if TYPE_CHECKING:
    from labctl.base.paths import StatePaths
    from labctl.run.commands.checkup import Checkup

SCHEMA = 1


@click.command("doctor")
@click.option("--for", "study", metavar="STUDY", help="Ask what this study needs of the host.")
@click.option(
    "--since", "run_name", metavar="RUN", help="Ask which of this run's verdicts still hold."
)
@click.option(
    "--collect",
    "level",
    type=click.Choice([level.value for level in Level]),
    help="With --for: what its trials are to collect (default: what the study says).",
)
@click.option(
    "--hwlat",
    "hwlat_s",
    type=click.IntRange(5, 3600),
    metavar="SECONDS",
    help="Also look for that long for what firmware does. It stops each CPU in turn.",
)
@click.option("--full", "-v", is_flag=True, help="Give what is fine a row each, too.")
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
    """Check this host: what was found, why it matters, what to do. Changes nothing.

    Exit code 1: something blocks, or with --since: a verdict no longer holds.
    """
    if study and run_name:
        raise UsageError("'--for' and '--since' exclude each other", hint="Give one of them.")
    if run_name and hwlat_s:
        raise UsageError("'--since' asks about facts, '--hwlat' measures", hint="Give one of them.")
    if level and not study:
        raise UsageError("--collect says what a study collects", hint="Name it: --for STUDY.")
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
        from labctl.cli.doctor_tables import print_checkup

        print_checkup(console(), found, seconds, full=full)
    return ExitCode.FOUND if found.blocked else ExitCode.DONE


def _since(
    places: StatePaths, run_name: str, results: Path | None, as_json: bool, started: float
) -> int:
    from labctl.cli.doctor_since import since

    found = since(named_run(results, run_name).load(), places)
    seconds = time.monotonic() - started
    if as_json:
        print_json({"schema": SCHEMA, **found.to_json(), "seconds": round(seconds, 3)})
    else:
        from labctl.cli.doctor_tables import print_since

        print_since(console(), found, seconds)
    return ExitCode.FOUND if found.void else ExitCode.DONE
