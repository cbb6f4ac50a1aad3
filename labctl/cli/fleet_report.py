"""Run `labctl fleet report` and `labctl fleet compact`: pool what the hosts of a fleet measured."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from labctl.base.errors import UsageError
from labctl.cli.common import console, html_option, print_json, results_option, runs_folder

_fleet = click.argument("name", metavar="FLEET")


@click.command("report")
@_fleet
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/fleet-report.md).")
@html_option
@results_option
def report(name: str, as_json: bool, html_file: Path | None, results: Path | None) -> None:
    """Report which groups of hosts may take a tuning, and which hosts stand apart.

    FLEET is its name in the folder of runs, or the path of its folder. Runs that have arrived since
    the last report are read first, and kept as Parquet in its folder 'data'.
    """
    from labctl.analysis.fleet.fleet_judge import judge_fleet
    from labctl.fleet.fleet_folder import FleetFolder
    from labctl.fleet.landing import taken
    from labctl.report.export.fleet_json import fleet_json
    from labctl.report.terminal.fleet_table import fleet_table
    from labctl.store.jsonfile import check_folder, write_output

    if html_file is not None:
        check_folder(html_file)
    fleet = FleetFolder.find(runs_folder(results), name)
    found = taken(fleet, tell_reading)
    judged = judge_fleet(found.rows, found.states)
    if as_json:
        print_json({"fleet": fleet.name, "study": fleet.record.study, **fleet_json(judged)})
    if not judged.effects and not as_json:
        console().print(fleet_table(fleet.name, judged))
        raise UsageError(
            f"no host of {fleet.name} has an effect that could be pooled",
            hint="It takes a done host whose study has a baseline and primary metrics.",
        )
    if html_file is not None:
        from labctl.report.page.fleet_page import fleet_page

        write_output(html_file, fleet_page(fleet.name, fleet.record.study, judged).encode())
        click.echo(f"Wrote {html_file}", err=as_json)
    elif not as_json:
        console().print(fleet_table(fleet.name, judged))


@click.command("compact")
@_fleet
@results_option
def compact(name: str, results: Path | None) -> None:
    """Merge the Parquet files of a fleet's hosts into one a day, sorted by host."""
    from labctl.base.wording import counted
    from labctl.fleet.fleet_folder import FleetFolder
    from labctl.fleet.landing import compacted

    for table, days in compacted(FleetFolder.find(runs_folder(results), name)).items():
        for day, hosts in days.items():
            click.echo(f"{table} of {day}: {counted(hosts, 'host')}")


def tell_reading(host: str) -> None:
    """Say on a terminal which host's run is read: a thousand of them take a minute or two."""
    if sys.stderr.isatty():
        from labctl.base.wording import printable

        click.echo(f"\r\033[Kreading the run of {printable(host)}\r", nl=False, err=True)
