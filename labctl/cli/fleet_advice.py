"""Run `labctl fleet advise`: say what a fleet advises to roll out, on which hosts and how."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from labctl.base.errors import ExitCode, UsageError
from labctl.cli.common import console, print_json, results_option, runs_folder
from labctl.cli.fleet_report import tell_reading

if TYPE_CHECKING:
    from collections.abc import Sequence

    from labctl.analysis.fleet.fleet_model import FleetJudgement

_INVENTORY = "hosts.yml"
"""Inventory of the next command where the fleet has recorded none."""


@click.command("advise")
@click.argument("name", metavar="FLEET")
@click.option("--tuning", metavar="TUNING", help="What to roll out (default: the best advised).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/fleet.md).")
@results_option
def advise(name: str, tuning: str | None, as_json: bool, results: Path | None) -> int | None:
    """Say which hosts of FLEET may take a tuning, what it costs and with which steps.

    A host may take it where its group of hosts may, it was measured, and it doesn't stand apart.
    Exits with 1 where no host may, and says why.
    """
    from labctl.analysis.fleet.fleet_judge import judge_fleet
    from labctl.analysis.fleet.may_take import advised_tunings, hosts_that_may
    from labctl.fleet.fleet_advice import advise_fleet
    from labctl.fleet.fleet_advice_json import fleet_advice_json
    from labctl.fleet.fleet_advice_text import (
        headline,
        print_fleet_advice,
        print_nothing,
        why_nothing,
    )
    from labctl.fleet.fleet_folder import FleetFolder
    from labctl.fleet.landing import taken

    fleet = FleetFolder.find(runs_folder(results), name)
    found = taken(fleet, tell_reading)
    judged = judge_fleet(found.rows, found.states)
    _check(fleet.name, judged, tuning)
    advised = tuple(one for one in advised_tunings(judged) if hosts_that_may(judged, one).hosts)
    chosen = tuning or next(iter(advised), None)
    about = {"fleet": fleet.name, "study": fleet.record.study}
    if chosen not in advised:
        if as_json:
            why = why_nothing(tuning)
            print_json({**about, **fleet_advice_json(judged, tuning, advised, why, None, None)})
        else:
            print_nothing(console(), judged, tuning)
        return ExitCode.FOUND
    advice = advise_fleet(fleet, judged, chosen, tell_reading)
    command = _next(name, chosen, fleet.record.inventory, results)
    if as_json:
        said = headline(judged, advice)
        print_json({**about, **fleet_advice_json(judged, chosen, advised, said, advice, command)})
    else:
        print_fleet_advice(console(), judged, advice, command)
    return None


def _check(fleet: str, judged: FleetJudgement, tuning: str | None) -> None:
    """Raise UsageError where nothing of the tuning, or of any, was pooled."""
    from labctl.base.nearest import nearest

    tunings = dict.fromkeys(answer.tuning for answer in judged.answers)
    if not tunings:
        raise UsageError(
            f"no host of {fleet} has an effect that could be pooled",
            hint=f"'labctl fleet report {shlex.quote(fleet)}' says how far each host came.",
        )
    if tuning is not None and tuning not in tunings:
        raise UsageError(
            f"{fleet} did not measure a tuning '{tuning}'", hint=nearest(tuning, tunings)
        )


def _next(name: str, tuning: str, inventory: Sequence[str], results: Path | None) -> str:
    """Return the command that rolls a tuning out."""
    words = ["labctl", "fleet", "rollout", name, "--tuning", tuning]
    for path in inventory or (_INVENTORY,):
        words += ["--inventory", path]
    if results is not None:
        words += ["--results", str(results)]
    return shlex.join(words)
