"""Run `labctl history`: follow a metric over the runs of a host, and find where it changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from labctl.base.errors import LabctlError, UsageError
from labctl.cli.common import console, html_option, print_json, results_option, runs_folder

if TYPE_CHECKING:
    from labctl.store.run_folder import LoadedRun


@click.command("history")
@click.option(
    "--metric",
    metavar="METRIC",
    required=True,
    help="As reports name it: latency_p95, or host_cpu{thread=vcpu} for one of its labels.",
)
@click.option("--tuning", metavar="NAME", help="Of this tuning alone.")
@click.option("--workload", metavar="NAME", help="Under this workload alone.")
@click.option("--condition", metavar="NAME", help="Under this condition alone.")
@click.option("--study", metavar="NAME", help="In runs of this study alone.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/history.md).")
@html_option
@results_option
def command(
    metric: str,
    tuning: str | None,
    workload: str | None,
    condition: str | None,
    study: str | None,
    as_json: bool,
    html_file: Path | None,
    results: Path | None,
) -> None:
    """Draw a metric over all runs, and mark where it changed."""
    from dataclasses import replace

    from labctl.analysis.run_compare.history import Choice, history
    from labctl.report.terminal.history import history_json, history_table, nothing
    from labctl.store.jsonfile import check_folder

    if html_file is not None:
        check_folder(html_file)
    unread: list[str] = []
    choice = Choice(
        metric=metric, tuning=tuning, workload=workload, condition=condition, study=study
    )
    found = history(_readable(runs_folder(results), unread), choice)
    found = replace(found, left_out=(*found.left_out, *unread))
    if as_json:
        print_json(history_json(found))
    if not found.series:
        if as_json and html_file is None:
            return
        raise UsageError(
            nothing(found),
            hint="'labctl run list' shows the runs, 'labctl report RUN' what they measured.",
        )
    if html_file is not None:
        from labctl.report.page.history_page import history_page
        from labctl.store.jsonfile import write_output

        write_output(html_file, history_page(found).encode())
        click.echo(f"Wrote {html_file}", err=as_json)
    elif not as_json:
        console().print(history_table(found))


def _readable(results: Path, unread: list[str]) -> Iterator[LoadedRun]:
    """Yield every run that can be read, one at a time; why the others can't."""
    from labctl.store.run_places import all_runs

    for folder in all_runs(results):
        try:
            yield folder.load()
        except LabctlError as error:
            unread.append(f"{folder.name}: {error.message}.")
